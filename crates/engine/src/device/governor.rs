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

/// A budget that no flag named: what the device has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBudget {
    pub bytes: usize,
    /// Which limit says so.
    pub bound: &'static str,
}

/// Where the device says nothing about itself.
const UNKNOWN_BYTES: u64 = 1 << 30;
/// Budgets are whole multiples of it where they are larger, so that small movements of a reading change nothing.
const BUDGET_STEP: u64 = 16 << 20;

/// What a process that holds `held_bytes` of its budget may have in all: these, and what the device has left beside the
/// weights, all of which stay in memory where they can. Half of that while tasks stall for memory.
pub fn budget(reading: &Reading, weights_bytes: u64, held_bytes: u64) -> DeviceBudget {
    let unknown = (UNKNOWN_BYTES as i64, "no reading of this device");
    let (mut room, bound) = [
        // Pages of the weights count as available, and are needed.
        system_room(reading).map(|(room, bound)| {
            let total = reading.mem_total_bytes.unwrap_or(u64::MAX);
            (room - signed(staying(weights_bytes, total)), bound)
        }),
        group_room(reading, weights_bytes),
    ]
    .into_iter()
    .flatten()
    .min()
    .unwrap_or(unknown);
    room -= (room / 4).clamp(0, LOW_BYTES as i64);
    if is_stalled(reading) {
        room /= 2;
    }
    let bytes = (signed(held_bytes).saturating_add(room)).max(0) as u64;
    let bytes = match bytes / BUDGET_STEP {
        0..4 => bytes,
        steps => steps * BUDGET_STEP,
    };
    DeviceBudget {
        bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
        bound,
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Weights that cannot stay are read again for every token: a smaller cache would not change that.
fn staying(weights_bytes: u64, limit: u64) -> u64 {
    if weights_bytes < limit {
        weights_bytes
    } else {
        0
    }
}

fn system_room(reading: &Reading) -> Option<(i64, &'static str)> {
    let available = signed(reading.mem_available_bytes?);
    Some((available - signed(FLOOR_BYTES), "available memory"))
}

fn group_room(reading: &Reading, weights_bytes: u64) -> Option<(i64, &'static str)> {
    let group = reading.cgroup.as_ref()?;
    let limit = group.limit_bytes?;
    let weights = signed(staying(weights_bytes, limit));
    let used = signed(group.anon_bytes?).saturating_add(weights);
    Some((signed(limit) - used, "the memory group"))
}

/// Bytes that a device has left beside the weights, and which limit says so.
pub fn headroom(reading: &Reading, weights_bytes: u64) -> Option<(i64, &'static str)> {
    let system = system_room(reading);
    let group = group_room(reading, weights_bytes);
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
    fn a_budget_is_what_the_device_leaves_beside_the_weights() {
        let mib = |n: u64| n << 20;
        let of = |reading: &Reading, weights, held| budget(reading, mib(weights), mib(held));
        // 1000 - 100 of weights - 64 for others - 16 that stay free, in steps of 16.
        let mut device = Reading {
            mem_available_bytes: Some(mib(1000)),
            mem_total_bytes: Some(mib(4000)),
            ..Reading::default()
        };
        let found = of(&device, 100, 0);
        assert_eq!(found.bytes as u64, mib(816));
        assert_eq!(found.bound, "available memory");
        // What is held is no longer available.
        device.mem_available_bytes = Some(mib(700));
        assert_eq!(of(&device, 100, 300).bytes as u64, mib(816));
        // The group is tighter, of either version; weights that cannot stay do not count.
        for version in [1, 2] {
            device.cgroup = Some(Cgroup {
                version,
                limit_bytes: Some(mib(200)),
                anon_bytes: Some(mib(20)),
                ..Cgroup::default()
            });
            let found = of(&device, 100, 0);
            assert_eq!(
                (found.bytes as u64, found.bound),
                (mib(64), "the memory group")
            );
            assert_eq!(of(&device, 300, 0).bytes as u64, mib(160));
            // A full group leaves what is held.
            assert_eq!(of(&device, 190, 10).bytes as u64, 0);
        }
        device.cgroup = None;
        device.psi = Some(Psi {
            full_avg10: 40.0,
            ..Psi::default()
        });
        assert_eq!(of(&device, 100, 0).bytes as u64, mib(256));
        assert_eq!(of(&Reading::default(), 100, 0).bytes as u64, mib(1008));
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
