//! Ctrl-C, and what must be tidied when the program ends by it.
//!
//! Two manners. Normally a signal ends the program at once: what was registered in `haversack_hub::tidy` (temporary
//! folders, child processes) is removed by the signal thread, then one line and exit 1. While an
//! answer is being generated ([`Cooperative`]) a signal only raises a flag, and the generation stops
//! between two tokens; further signals before it has done so end the program.

use std::io::{self, IsTerminal};
use std::process::exit;
use std::sync::atomic::{AtomicUsize, Ordering};

static PATIENCE: AtomicUsize = AtomicUsize::new(0);
static RAISED: AtomicUsize = AtomicUsize::new(0);

/// Installs the handler; called once by `main`.
pub fn install() {
    // Failing to install leaves the default behaviour, which is to end: good enough to go on.
    let _ = ctrlc::set_handler(on_signal);
}

fn on_signal() {
    let before = RAISED.fetch_add(1, Ordering::SeqCst);
    if before < PATIENCE.load(Ordering::SeqCst) {
        return;
    }
    haversack_hub::tidy::tidy_all();
    // A terminal has just echoed ^C, perhaps in the middle of something bold.
    let begin = match (io::stderr().is_terminal(), crate::out::wants_no_style()) {
        (true, false) => "\x1b[0m\n",
        (true, true) => "\n",
        (false, _) => "",
    };
    crate::out::note(&format!("{begin}error: interrupted"));
    exit(1);
}

/// While one of these lives, Ctrl-C raises the flag instead of ending the program; only more of
/// them than `patience` end it.
pub struct Cooperative(());

impl Cooperative {
    pub fn begin(patience: usize) -> Cooperative {
        RAISED.store(0, Ordering::SeqCst);
        PATIENCE.store(patience, Ordering::SeqCst);
        Cooperative(())
    }

    /// Whether Ctrl-C was pressed since this began.
    pub fn raised(&self) -> bool {
        RAISED.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Cooperative {
    fn drop(&mut self) {
        PATIENCE.store(0, Ordering::SeqCst);
    }
}
