//! Adapts the window to the memory of the device: smaller in a shortage, larger again when memory
//! returns.
//!
//! ```text
//! headroom = min of    MemAvailable - floor
//!                      cgroup limit - anonymous pages - weights, where the group has room for weights at all
//! below LOW            shrink by what is missing, at once if the device changed, else every 10 s
//! above HIGH           grow by what is spare, at most to what was asked for, every 10 s
//! in between           nothing: the hysteresis
//! ```
//!
//! A window shrinks by eighths of what was asked for, so that small movements of a reading change
//! nothing. Every change has a reason in words and a position; a run that replays the same changes
//! gives the same tokens.

use haversack_memory::Reading;
use std::time::Duration;

/// A change of the window, as it is reported and replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowChange {
    /// From this position on.
    pub position: u64,
    pub window: usize,
    pub reason: String,
}

/// Below this much room the window shrinks.
pub const LOW_BYTES: u64 = 16 << 20;
/// Above this much room it grows again.
pub const HIGH_BYTES: u64 = 48 << 20;
/// RAM left to other processes.
pub const FLOOR_BYTES: u64 = 64 << 20;
/// Minimal time between two changes while the limit stays the same.
pub const CALM: Duration = Duration::from_secs(10);
/// Time between two readings.
pub const INTERVAL: Duration = Duration::from_millis(500);
/// Share of time, in percent, that tasks stalled on memory (PSI): above it the machine thrashes
/// whatever the byte counts say.
const STALL_PERCENT: f32 = 20.0;
/// Sizes of the window.
const STEPS: usize = 8;

/// Decides on the window from readings.
#[derive(Clone, Debug)]
pub struct Governor {
    /// The window that was asked for.
    asked: usize,
    window_min: usize,
    bytes_per_token: usize,
    weights_bytes: u64,
    window: usize,
    last_change: Option<Duration>,
    last_limit: Option<u64>,
}

impl Governor {
    pub fn new(asked: usize, bytes_per_token: usize, weights_bytes: u64) -> Governor {
        Governor {
            asked,
            window_min: (asked / STEPS).max(32).min(asked),
            bytes_per_token: bytes_per_token.max(1),
            weights_bytes,
            window: asked,
            last_change: None,
            last_limit: None,
        }
    }

    /// The new window and why, if a reading at time `now` changes it.
    pub fn decide(&mut self, reading: &Reading, now: Duration) -> Option<(usize, String)> {
        let (headroom, bound) = headroom(reading, self.weights_bytes)?;
        let limit = reading.cgroup.as_ref().and_then(|group| group.limit_bytes);
        let moved = self.last_limit.is_some() && self.last_limit != limit;
        self.last_limit = limit;
        let last = self.last_change;
        let calm = last.is_none_or(|then| now.saturating_sub(then) >= CALM);
        let stalled = is_stalled(reading);

        let target = if headroom < LOW_BYTES as i64 || stalled {
            let missing = (LOW_BYTES as i64 - headroom).max(1) as u64;
            self.down(missing)
        } else if headroom > HIGH_BYTES as i64 {
            self.up((headroom - HIGH_BYTES as i64) as u64)
        } else {
            return None;
        };
        if target == self.window || !(calm || moved) {
            return None;
        }
        let shrinks = target < self.window;
        let verb = if shrinks { "shrunk" } else { "grown" };
        let reason = if stalled && headroom >= LOW_BYTES as i64 {
            format!("{verb}: tasks stand still for memory")
        } else {
            format!("{verb}: {bound} leaves {} MiB", headroom >> 20)
        };
        self.window = target;
        self.last_change = Some(now);
        Some((target, reason))
    }

    /// One of the eight sizes, rounded down.
    fn step(&self, window: usize) -> usize {
        let step = (self.asked / STEPS).max(32);
        if window >= self.asked {
            self.asked
        } else {
            (window / step * step).max(self.window_min)
        }
    }

    fn down(&self, missing: u64) -> usize {
        let target = self.window.saturating_sub(self.tokens(missing).max(1));
        self.step(target).min(self.window)
    }

    fn up(&self, spare: u64) -> usize {
        let target = self.window.saturating_add(self.tokens(spare));
        self.step(target).max(self.window)
    }

    fn tokens(&self, bytes: u64) -> usize {
        usize::try_from(bytes / self.bytes_per_token as u64).unwrap_or(usize::MAX)
    }
}

/// Whether tasks stall on memory, whatever the byte counts say.
pub fn is_stalled(reading: &Reading) -> bool {
    let mut psi = [reading.psi, reading.cgroup_psi].into_iter().flatten();
    psi.any(|psi| psi.full_avg10 >= STALL_PERCENT)
}

/// Bytes that a device has left beside the weights, and which limit says so.
pub fn headroom(reading: &Reading, weights_bytes: u64) -> Option<(i64, &'static str)> {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let system = reading.mem_available_bytes;
    let system = system.map(|bytes| (signed(bytes) - signed(FLOOR_BYTES), "available memory"));
    let group = reading.cgroup.as_ref().and_then(|group| {
        let limit = group.limit_bytes?;
        // Weights that cannot stay are read again for every token: a smaller window would not change that.
        let weights = Some(weights_bytes).filter(|weights| *weights < limit);
        let used = signed(group.anon_bytes?).saturating_add(signed(weights.unwrap_or(0)));
        Some((signed(limit) - used, "the memory group"))
    });
    system.into_iter().chain(group).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group smaller than the weights: what counts is whether the anonymous pages fit.
    #[test]
    fn weights_that_cannot_stay_do_not_shrink_the_window() {
        let reading = |limit: u64, anon: u64| Reading {
            cgroup: Some(haversack_memory::Cgroup {
                limit_bytes: Some(limit << 20),
                anon_bytes: Some(anon << 20),
                ..Default::default()
            }),
            ..Reading::default()
        };
        let room = |limit, anon| {
            let room = headroom(&reading(limit, anon), 100 << 20);
            room.map(|(room, _)| room >> 20)
        };
        assert_eq!(room(50, 20), Some(30));
        assert_eq!(room(150, 20), Some(30));
    }
    use haversack_memory::{Cgroup, Psi};

    const TOKEN: usize = 64 << 10;

    fn reading(limit: u64, anon: u64) -> Reading {
        Reading {
            mem_available_bytes: Some(8 << 30),
            mem_total_bytes: Some(16 << 30),
            cgroup: Some(Cgroup {
                version: 2,
                limit_bytes: Some(limit),
                usage_bytes: Some(anon),
                anon_bytes: Some(anon),
                ..Cgroup::default()
            }),
            ..Reading::default()
        }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lowered_limit_shrinks_at_once_and_a_raised_one_grows_again() {
        let mut governor = Governor::new(512, TOKEN, 0);
        assert_eq!(governor.decide(&reading(200 << 20, 64 << 20), at(0)), None);
        let (small, why) = governor
            .decide(&reading(70 << 20, 64 << 20), at(1))
            .unwrap();
        assert!(small < 512 && why.contains("memory group"), "{small} {why}");
        let (large, _) = governor
            .decide(&reading(200 << 20, 64 << 20), at(2))
            .unwrap();
        assert_eq!(large, 512);
    }

    #[test]
    fn a_steady_limit_changes_once_in_ten_seconds_at_most() {
        let mut governor = Governor::new(512, TOKEN, 0);
        governor.decide(&reading(200 << 20, 64 << 20), at(0));
        let mut changes = Vec::new();
        for tenth in 10..1000 {
            let now = Duration::from_millis(100 * tenth);
            // The reading trembles across both borders.
            let anon = if tenth % 2 == 0 { 10 << 20 } else { 64 << 20 };
            if governor.decide(&reading(70 << 20, anon), now).is_some() {
                changes.push(now);
            }
        }
        assert!(changes.len() > 2);
        assert!(changes.windows(2).all(|w| w[1] - w[0] >= CALM));
    }

    #[test]
    fn never_above_what_was_asked_nor_below_the_least() {
        let mut governor = Governor::new(512, TOKEN, 0);
        governor.decide(&reading(1 << 30, 0), at(0));
        for second in 1..100 {
            let limit = if second % 3 == 0 { 1 << 30 } else { 1 << 20 };
            governor.decide(&reading(limit, 64 << 20), at(second));
            assert!((64..=512).contains(&governor.window));
        }
    }

    #[test]
    fn between_the_borders_nothing_changes() {
        let mut governor = Governor::new(512, TOKEN, 0);
        for (second, room) in [20u64, 30, 47, 17, 40].into_iter().enumerate() {
            let reading = reading((64 + room) << 20, 64 << 20);
            assert_eq!(governor.decide(&reading, at(20 * second as u64)), None);
        }
    }

    #[test]
    fn standing_still_counts_as_a_shortage() {
        let mut governor = Governor::new(512, TOKEN, 0);
        let mut stalled = reading(1 << 30, 0);
        stalled.psi = Some(Psi {
            some_avg10: 50.0,
            full_avg10: 40.0,
            full_total_us: 1,
        });
        let (window, why) = governor.decide(&stalled, at(0)).unwrap();
        assert!(window < 512 && why.contains("stand still"));
    }
}
