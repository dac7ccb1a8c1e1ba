//! Throttle: heat slows the scheduler down, one level at a time, in a published order. Pure.
//!
//! | level | prompt tokens of a step | threads | batch |
//! |---|---|---|---|
//! | 0 | a whole chunk | all | all |
//! | 1 | a quarter of one | all | all |
//! | 2 | a quarter | half | all |
//! | 3 | a quarter | half | half |
//! | 4 | a block | one | one |
//!
//! No level changes a token: running requests go on, slower. Nominal heat allows level 0, fair 1, serious 3, critical 4.
//! Each reading may raise the level by one. The level goes down by one each time it has been cooler for [`CALM`], so that a
//! device at the border does not swing.

use super::plan::Pace;
use haversack_engine::device::governor::CALM;
use haversack_kernels::attention::BLOCK_SLOTS;
use haversack_memory::Thermal;
use std::time::Duration;

/// The level that a thermal state allows.
fn allowed_level(thermal: Thermal) -> u8 {
    match thermal {
        Thermal::Nominal => 0,
        Thermal::Fair => 1,
        Thermal::Serious => 3,
        Thermal::Critical => 4,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    pub pace: Pace,
    pub threads: usize,
}

/// A change of the level. Displays as a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleChange {
    pub from: u8,
    pub to: u8,
    pub thermal: Thermal,
    pub limits: StepLimits,
}

impl std::fmt::Display for ThrottleChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let StepLimits { pace, threads } = self.limits;
        let heat = self.thermal.name();
        write!(
            f,
            "heat is {heat}: throttle level {} -> {}, prompts {} tokens a step, {threads} threads, batch of {}",
            self.from, self.to, pace.chunk, pace.batch
        )
    }
}

#[derive(Clone, Debug)]
pub struct Throttle {
    /// At level 0.
    max: StepLimits,
    level: u8,
    /// Since when it has been cool enough for the level below.
    cool_since: Option<Duration>,
}

impl Throttle {
    pub fn new(max: StepLimits) -> Throttle {
        Throttle {
            max,
            level: 0,
            cool_since: None,
        }
    }

    pub fn level(&self) -> u8 {
        self.level
    }

    /// The limits of level 0.
    pub fn max(&self) -> StepLimits {
        self.max
    }

    pub fn limits(&self) -> StepLimits {
        let StepLimits { pace, threads } = self.max;
        let half = |n: usize| n.div_ceil(2);
        let quarter = (pace.chunk / 4).max(BLOCK_SLOTS);
        let (chunk, threads, batch) = match self.level {
            0 => (pace.chunk, threads, pace.batch),
            1 => (quarter, threads, pace.batch),
            2 => (quarter, half(threads), pace.batch),
            3 => (quarter, half(threads), half(pace.batch)),
            _ => (BLOCK_SLOTS, 1, 1),
        };
        let chunk = chunk.min(pace.chunk);
        StepLimits {
            pace: Pace { batch, chunk },
            threads,
        }
    }

    /// Takes a reading. Returns the change of level, if there is one.
    pub fn observe(&mut self, thermal: Thermal, now: Duration) -> Option<ThrottleChange> {
        let (from, allowed) = (self.level, allowed_level(thermal));
        if allowed >= from {
            self.cool_since = None;
        }
        self.level = match allowed {
            hotter if hotter > from => from + 1,
            cooler if cooler < from => {
                let since = *self.cool_since.get_or_insert(now);
                if now.saturating_sub(since) < CALM {
                    return None;
                }
                self.cool_since = Some(now);
                from - 1
            }
            _ => return None,
        };
        Some(ThrottleChange {
            from,
            to: self.level,
            thermal,
            limits: self.limits(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Thermal::{Critical, Fair, Nominal, Serious};

    const MAX: StepLimits = StepLimits {
        pace: Pace {
            batch: 8,
            chunk: 512,
        },
        threads: 4,
    };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A level up with each reading, a level down each ten seconds, never two at once.
    #[test]
    fn levels_follow_in_order() {
        let mut throttle = Throttle::new(MAX);
        let up: Vec<u8> = (0..6)
            .filter_map(|s| throttle.observe(Critical, at(s)))
            .map(|change| change.to)
            .collect();
        assert_eq!(up, [1, 2, 3, 4]);
        let down: Vec<(u64, u8)> = (6..60)
            .filter_map(|s| Some((s, throttle.observe(Nominal, at(s))?.to)))
            .collect();
        assert_eq!(down, [(16, 3), (26, 2), (36, 1), (46, 0)]);
    }

    #[test]
    fn limits_of_each_level() {
        let mut throttle = Throttle::new(MAX);
        let mut seen = vec![throttle.limits()];
        for _ in 0..4 {
            seen.push(throttle.observe(Critical, at(0)).unwrap().limits);
        }
        let seen: Vec<(usize, usize, usize)> = seen
            .iter()
            .map(|l| (l.pace.chunk, l.threads, l.pace.batch))
            .collect();
        assert_eq!(
            seen,
            [
                (512, 4, 8),
                (128, 4, 8),
                (128, 2, 8),
                (128, 2, 4),
                (32, 1, 1)
            ]
        );
        let mut min = Throttle::new(StepLimits {
            pace: Pace { batch: 1, chunk: 8 },
            threads: 1,
        });
        while let Some(change) = min.observe(Critical, at(0)) {
            assert_eq!(change.limits.threads, 1);
            assert_eq!(change.limits.pace, Pace { batch: 1, chunk: 8 });
        }
    }

    /// At the border: each hot reading starts the calm time anew.
    #[test]
    fn no_swinging() {
        let mut throttle = Throttle::new(MAX);
        let mut changes = 0;
        for second in 0..600 {
            let heat = if second % 8 < 4 { Fair } else { Nominal };
            changes += usize::from(throttle.observe(heat, at(second)).is_some());
        }
        assert_eq!((changes, throttle.level()), (1, 1));
        for second in 600..700 {
            throttle.observe(Serious, at(second));
        }
        assert_eq!(throttle.level(), 3);
    }

    #[test]
    fn a_clock_that_goes_backwards_delays() {
        let mut throttle = Throttle::new(MAX);
        throttle.observe(Fair, at(100));
        for second in (0..100).rev() {
            assert_eq!(throttle.observe(Nominal, at(second)), None);
        }
        assert!(throttle.observe(Nominal, at(200)).is_some());
    }
}
