//! Where a fetch reports what it does: the command line draws a bar, an app shows its own.

use std::fmt::Debug;

pub trait Progress: Debug + Send + Sync {
    /// A line for the user.
    fn note(&self, line: &str);

    /// `done` of `total` bytes; `phase` names what is done beside downloading, or is empty. A download that starts again
    /// moves back.
    fn bytes(&self, done: u64, total: u64, phase: &'static str);

    /// The last [`Progress::bytes`] of a download has been reported.
    fn bytes_end(&self);
}

/// Reports nothing.
#[derive(Debug)]
pub struct Silent;

impl Progress for Silent {
    fn note(&self, _: &str) {}
    fn bytes(&self, _: u64, _: u64, _: &'static str) {}
    fn bytes_end(&self) {}
}

/// One download being reported.
pub(crate) struct Meter<'a> {
    progress: &'a dyn Progress,
    total: u64,
    done: u64,
}

impl Meter<'_> {
    pub fn new(progress: &dyn Progress, total: u64) -> Meter<'_> {
        Meter {
            progress,
            total,
            done: 0,
        }
    }

    pub fn set(&mut self, done: u64) {
        self.done = done;
        self.phase("");
    }

    pub fn phase(&mut self, phase: &'static str) {
        self.progress.bytes(self.done, self.total, phase);
    }
}

impl Drop for Meter<'_> {
    fn drop(&mut self) {
        self.progress.bytes_end();
    }
}
