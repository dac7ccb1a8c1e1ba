//! Where a fetch reports what it does: the command line draws a bar, an app shows its own.

use std::fmt::Debug;

pub trait FetchProgress: Debug + Send + Sync {
    /// A line for the user.
    fn note(&self, line: &str);

    /// `done` of `total` bytes; `phase` names what is done beside downloading, or is empty. A download that starts again
    /// moves back.
    fn bytes(&self, done: u64, total: u64, phase: &'static str);

    /// The last [`FetchProgress::bytes`] of a download has been reported.
    fn bytes_end(&self);
}

/// Reports nothing.
#[derive(Debug)]
pub struct Silent;

impl FetchProgress for Silent {
    fn note(&self, _: &str) {}
    fn bytes(&self, _: u64, _: u64, _: &'static str) {}
    fn bytes_end(&self) {}
}

/// One download being reported.
pub(crate) struct DownloadMeter<'a> {
    progress: &'a dyn FetchProgress,
    total: u64,
    done: u64,
}

impl DownloadMeter<'_> {
    pub fn new(progress: &dyn FetchProgress, total: u64) -> DownloadMeter<'_> {
        DownloadMeter {
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

impl Drop for DownloadMeter<'_> {
    fn drop(&mut self) {
        self.progress.bytes_end();
    }
}
