//! How fast tokens come, over the last few seconds.

use std::collections::VecDeque;
use std::time::Duration;

/// What is remembered.
const WINDOW: Duration = Duration::from_secs(3);

/// Totals and when they were seen.
#[derive(Clone, Debug, Default)]
pub struct Speed {
    seen: VecDeque<(Duration, [u64; 2])>,
}

impl Speed {
    /// Tokens that were sampled, and tokens that were read, in all.
    pub fn note(&mut self, now: Duration, sampled: u64, read: u64) {
        self.seen.push_back((now, [sampled, read]));
        // One that is older stays: otherwise a slow step would leave nothing to compare with.
        while self.seen.len() > 2 && self.seen[1].0 + WINDOW <= now {
            self.seen.pop_front();
        }
    }

    /// Of each, per second.
    pub fn per_second(&self) -> [f64; 2] {
        let (Some(first), Some(last)) = (self.seen.front(), self.seen.back()) else {
            return [0.0; 2];
        };
        let seconds = last.0.saturating_sub(first.0).as_secs_f64();
        [0, 1].map(|i| match seconds > 0.0 {
            true => last.1[i].saturating_sub(first.1[i]) as f64 / seconds,
            false => 0.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_seconds_count() {
        let mut speed = Speed::default();
        assert_eq!(speed.per_second(), [0.0; 2]);
        for i in 0..20u64 {
            speed.note(Duration::from_millis(500 * i), 10 * i, 25 * i);
        }
        assert_eq!(speed.per_second(), [20.0, 50.0]);
        assert!(speed.seen.len() < 10);
        // Nothing comes any more.
        for i in 20..40u64 {
            speed.note(Duration::from_millis(500 * i), 200, 500);
        }
        assert_eq!(speed.per_second(), [0.0; 2]);
        speed.note(Duration::from_secs(60), 240, 500);
        assert!(speed.per_second()[0] > 0.0);
    }
}
