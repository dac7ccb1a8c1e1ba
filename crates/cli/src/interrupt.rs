//! Ctrl-C, and what must be tidied when the program ends by it.
//!
//! Two manners. Normally a signal ends the program at once: what was registered here (temporary
//! folders, child processes) is removed by the signal thread, then one line and exit 1. While an
//! answer is being generated ([`Cooperative`]) a signal only raises a flag, and the generation stops
//! between two tokens; a second signal before it has done so ends the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, exit};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

static COOPERATIVE: AtomicUsize = AtomicUsize::new(0);
static RAISED: AtomicBool = AtomicBool::new(false);
static NEXT: AtomicU64 = AtomicU64::new(0);
static REGISTERED: Mutex<Vec<(u64, Tidy)>> = Mutex::new(Vec::new());

enum Tidy {
    Folder(PathBuf),
    Child(Arc<Mutex<Child>>),
}

/// Installs the handler; called once by `main`.
pub fn install() {
    // Failing to install leaves the default behaviour, which is to end: good enough to go on.
    let _ = ctrlc::set_handler(on_signal);
}

fn on_signal() {
    let first = !RAISED.swap(true, Ordering::SeqCst);
    if first && COOPERATIVE.load(Ordering::SeqCst) > 0 {
        return;
    }
    let mut registered = lock(&REGISTERED);
    // Children first: a child must not go on writing into a folder that is being removed.
    registered.sort_by_key(|(_, tidy)| matches!(tidy, Tidy::Folder(_)));
    for (_, tidy) in registered.drain(..) {
        match tidy {
            Tidy::Child(child) => end(&mut lock(&child)),
            Tidy::Folder(path) => drop(fs::remove_dir_all(path)),
        }
    }
    crate::out::note("\nerror: interrupted");
    // The lock stays held: nobody registers anything new while the process ends.
    exit(1);
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While one of these lives, Ctrl-C raises the flag instead of ending the program.
pub struct Cooperative(());

impl Cooperative {
    pub fn begin() -> Cooperative {
        RAISED.store(false, Ordering::SeqCst);
        COOPERATIVE.fetch_add(1, Ordering::SeqCst);
        Cooperative(())
    }

    /// Whether Ctrl-C was pressed since this began.
    pub fn raised(&self) -> bool {
        RAISED.load(Ordering::SeqCst)
    }
}

impl Drop for Cooperative {
    fn drop(&mut self) {
        COOPERATIVE.fetch_sub(1, Ordering::SeqCst);
        RAISED.store(false, Ordering::SeqCst);
    }
}

fn register(tidy: Tidy) -> u64 {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    lock(&REGISTERED).push((id, tidy));
    id
}

fn forget(id: u64) {
    lock(&REGISTERED).retain(|(other, _)| *other != id);
}

/// A folder that is removed when this is dropped or the program is interrupted.
pub struct Folder {
    path: PathBuf,
    id: u64,
}

impl Folder {
    pub fn new(path: PathBuf) -> Folder {
        let id = register(Tidy::Folder(path.clone()));
        Folder { path, id }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
        forget(self.id);
    }
}

/// A child process that is ended when this is dropped or the program is interrupted.
pub struct Process {
    child: Arc<Mutex<Child>>,
    id: u64,
}

impl Process {
    pub fn new(child: Child) -> Process {
        let child = Arc::new(Mutex::new(child));
        let id = register(Tidy::Child(child.clone()));
        Process { child, id }
    }

    /// The exit status, once there is one.
    pub fn poll(&self) -> std::io::Result<Option<std::process::ExitStatus>> {
        lock(&self.child).try_wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        end(&mut lock(&self.child));
        forget(self.id);
    }
}
