//! Heat and load change the pace, one rung at a time, in a published order. Pure.
//!
//! | rung | prompts are read | threads | at once |
//! |---|---|---|---|
//! | 0 | a whole chunk a step | all | all |
//! | 1 | a quarter of one | all | all |
//! | 2 | a quarter | half | all |
//! | 3 | a quarter | half | half |
//! | 4 | a block | one | one |
//!
//! Nothing here changes a token: whoever has entered goes on, slower. Nominal heat allows rung 0, fair 1, serious 3,
//! critical 4. The way down is taken rung by rung, one for each reading; the way up as well, but only after it has been
//! cooler for [`CALM`]: so that a device at the border does not swing.

use crate::scheduler::Pace;
use haversack_engine::device::governor::CALM;
use haversack_kernels::attention::BLOCK_SLOTS;
use haversack_memory::Thermal;
use std::time::Duration;

/// The rung that a state allows.
fn rung_of(thermal: Thermal) -> u8 {
    match thermal {
        Thermal::Nominal => 0,
        Thermal::Fair => 1,
        Thermal::Serious => 3,
        Thermal::Critical => LAST,
    }
}

const LAST: u8 = 4;

/// What a rung leaves of all there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    pub pace: Pace,
    pub threads: usize,
}

/// A step on the ladder, as it is logged.
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
            "heat is {heat}: rung {} -> {}, prompts {} tokens a step, {threads} threads, {} at once",
            self.from, self.to, pace.chunk, pace.batch
        )
    }
}

#[derive(Clone, Debug)]
pub struct Throttle {
    most: StepLimits,
    rung: u8,
    /// Since when it has been cool enough for the rung above.
    cool: Option<Duration>,
}

impl Throttle {
    /// `most`: what there is when nothing is in the way.
    pub fn new(most: StepLimits) -> Throttle {
        Throttle {
            most,
            rung: 0,
            cool: None,
        }
    }

    pub fn rung(&self) -> u8 {
        self.rung
    }

    pub fn limits(&self) -> StepLimits {
        let StepLimits { pace, threads } = self.most;
        let half = |n: usize| n.div_ceil(2);
        let quarter = (pace.chunk / 4).max(BLOCK_SLOTS);
        let (chunk, threads, batch) = match self.rung {
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

    /// What a reading changes, if anything.
    pub fn decide(&mut self, thermal: Thermal, now: Duration) -> Option<ThrottleChange> {
        let (from, allowed) = (self.rung, rung_of(thermal));
        if allowed >= from {
            self.cool = None;
        }
        self.rung = match allowed {
            hotter if hotter > from => from + 1,
            cooler if cooler < from => {
                let since = *self.cool.get_or_insert(now);
                if now.saturating_sub(since) < CALM {
                    return None;
                }
                self.cool = Some(now);
                from - 1
            }
            _ => return None,
        };
        Some(ThrottleChange {
            from,
            to: self.rung,
            thermal,
            limits: self.limits(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Thermal::{Critical, Fair, Nominal, Serious};

    const MOST: StepLimits = StepLimits {
        pace: Pace {
            batch: 8,
            chunk: 512,
        },
        threads: 4,
    };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Down a rung with each reading, up a rung each ten seconds, never past one.
    #[test]
    fn the_ladder_is_followed_in_order() {
        let mut ladder = Throttle::new(MOST);
        let down: Vec<u8> = (0..6)
            .filter_map(|s| ladder.decide(Critical, at(s)))
            .map(|rung| rung.to)
            .collect();
        assert_eq!(down, [1, 2, 3, 4]);
        let up: Vec<(u64, u8)> = (6..60)
            .filter_map(|s| Some((s, ladder.decide(Nominal, at(s))?.to)))
            .collect();
        assert_eq!(up, [(16, 3), (26, 2), (36, 1), (46, 0)]);
    }

    #[test]
    fn rungs_say_what_they_leave() {
        let mut ladder = Throttle::new(MOST);
        let mut seen = vec![ladder.limits()];
        for _ in 0..4 {
            seen.push(ladder.decide(Critical, at(0)).unwrap().limits);
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
        let mut least = Throttle::new(StepLimits {
            pace: Pace { batch: 1, chunk: 8 },
            threads: 1,
        });
        while let Some(rung) = least.decide(Critical, at(0)) {
            assert_eq!(rung.limits.threads, 1);
            assert_eq!(rung.limits.pace, Pace { batch: 1, chunk: 8 });
        }
    }

    /// A device at the border: each time it is hot again, the calm begins anew.
    #[test]
    fn no_swinging() {
        let mut ladder = Throttle::new(MOST);
        let mut changes = 0;
        for second in 0..600 {
            let heat = if second % 8 < 4 { Fair } else { Nominal };
            changes += usize::from(ladder.decide(heat, at(second)).is_some());
        }
        assert_eq!((changes, ladder.rung()), (1, 1));
        for second in 600..700 {
            ladder.decide(Serious, at(second));
        }
        assert_eq!(ladder.rung(), 3);
    }

    /// A clock that stands still or goes back only makes it wait.
    #[test]
    fn clocks_may_lie() {
        let mut ladder = Throttle::new(MOST);
        ladder.decide(Fair, at(100));
        for second in (0..100).rev() {
            assert_eq!(ladder.decide(Nominal, at(second)), None);
        }
        assert!(ladder.decide(Nominal, at(200)).is_some());
    }
}
