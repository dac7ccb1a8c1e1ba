//! Counters and gauges of an engine, as of its last step.

use crate::alerts::{Alert, RaisedAlert};
use crate::channel::lock;
use haversack_cache::Ledger;
use haversack_conversations::scheduler::{PrefixCacheStats, SchedulerStats};
use haversack_conversations::session::ContextReport;
use haversack_engine::device::Thermal;
use haversack_engine::runtime::Finish;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What an engine has done and what it holds. Counts are of all requests since its start.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Bytes by account.
    pub ledger: Ledger,
    /// Requests that are computed.
    pub active: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Steps, each one pass over the weights.
    pub steps: u64,
    /// Sequences of all steps, summed.
    pub step_sequences: u64,
    /// Prompt tokens of accepted requests.
    pub prompt_tokens: u64,
    /// Tokens of answers.
    pub sampled_tokens: u64,
    /// Answers that ended by themselves or at their longest.
    pub completed: u64,
    /// Requests that were cancelled, most often because their client left.
    pub cancelled: u64,
    /// Requests that failed through no fault of their own.
    pub failed: u64,
    /// Requests that asked for what could not be followed, such as a form that takes too much.
    pub unfollowed: u64,
    /// Requests that found no place.
    pub refused: u64,
    /// What finished requests left for later ones.
    pub prefix_cache: PrefixCacheStats,
    /// How hot the device is, where it says so.
    pub thermal: Option<Thermal>,
    /// 0: not throttled.
    pub throttle_level: u8,
    /// Changes that followed from readings of the device.
    pub device_changes: u64,
    /// The last of them, the latest last.
    pub last_device_changes: VecDeque<(Duration, String)>,
    /// Tokens per second: sampled, read.
    pub speed: [f64; 2],
    /// What the scheduler says of itself.
    pub stats: SchedulerStats,
    /// Alerts that are raised now.
    pub alerts: Vec<RaisedAlert>,
    /// How often each alert was raised, in the order of [`Alert::ALL`].
    pub alert_counts: [u64; Alert::ALL.len()],
    /// Tokens by where their keys and values were.
    pub cache: CacheCounters,
    /// Tokens that left the windows of completions.
    pub window_evictions: u64,
}

/// Tokens that answers saw, by whether their keys and values were in the cache.
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheCounters {
    /// In the cache.
    pub hits: u64,
    /// Read for the first time.
    pub new: u64,
    /// Of requests without a session.
    pub no_session: u64,
    /// Of turns whose rows had left memory and disk.
    pub rows_gone: u64,
}

/// Device changes that are remembered.
const CHANGES_MAX: usize = 32;

impl Metrics {
    pub(crate) fn count_end(&mut self, finish: Finish) {
        match finish {
            Finish::Cancelled => self.cancelled += 1,
            Finish::Stop | Finish::Repetition | Finish::Length => self.completed += 1,
        }
    }

    /// Counts what of a turn's context was in the cache.
    pub(crate) fn count_turn(&mut self, context: &ContextReport) {
        let read = context.kept.saturating_sub(context.cached);
        self.prompt_tokens += read;
        self.cache.hits += context.cached;
        self.cache.rows_gone += context.recomputed;
        self.cache.new += read.saturating_sub(context.recomputed);
    }

    pub(crate) fn add_device_change(&mut self, now: Duration, change: String) {
        self.device_changes += 1;
        if self.last_device_changes.len() == CHANGES_MAX {
            self.last_device_changes.pop_front();
        }
        self.last_device_changes.push_back((now, change));
    }
}

/// Written by the driver, read by every handle.
#[derive(Default)]
pub(crate) struct SharedMetrics {
    pub metrics: Mutex<Metrics>,
    /// Not behind the lock: refusing a request waits for no other thread.
    pub refused: AtomicU64,
}

impl SharedMetrics {
    pub fn active(&self) -> usize {
        lock(&self.metrics).active
    }

    pub fn snapshot(&self) -> Metrics {
        Metrics {
            refused: self.refused.load(Ordering::Relaxed),
            ..lock(&self.metrics).clone()
        }
    }
}
