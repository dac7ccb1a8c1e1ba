//! Tokens per second over the last few seconds.

use std::collections::VecDeque;
use std::time::Duration;

/// Samples older than this are dropped.
const WINDOW: Duration = Duration::from_secs(3);

/// Totals with their times.
#[derive(Clone, Debug, Default)]
pub struct Speed {
    samples: VecDeque<(Duration, [u64; 2])>,
}

impl Speed {
    /// Totals of sampled and read tokens.
    pub fn add(&mut self, now: Duration, sampled: u64, read: u64) {
        self.samples.push_back((now, [sampled, read]));
        // One older sample stays: a slow step would leave nothing to compare with.
        while self.samples.len() > 2 && self.samples[1].0 + WINDOW <= now {
            self.samples.pop_front();
        }
    }

    /// Sampled, read.
    pub fn per_second(&self) -> [f64; 2] {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
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
    fn only_the_last_seconds_count() {
        let mut speed = Speed::default();
        assert_eq!(speed.per_second(), [0.0; 2]);
        for i in 0..20u64 {
            speed.add(Duration::from_millis(500 * i), 10 * i, 25 * i);
        }
        assert_eq!(speed.per_second(), [20.0, 50.0]);
        assert!(speed.samples.len() < 10);
        // No more tokens.
        for i in 20..40u64 {
            speed.add(Duration::from_millis(500 * i), 200, 500);
        }
        assert_eq!(speed.per_second(), [0.0; 2]);
        speed.add(Duration::from_secs(60), 240, 500);
        assert!(speed.per_second()[0] > 0.0);
    }
}
