//! Which tokens the next step computes. Pure.
//!
//! A step is one pass over the weights, however many sequences take part, so every request that decodes takes part. Prompts
//! are read in the same step, in portions: owners share the chunk by what they had lately ([`super::owner_loads`]), and the
//! requests of an owner share its part evenly, in whole blocks, so that a short prompt does not wait for a long one.
//! Background requests get what interactive ones leave.
//!
//! How much a step reads follows the clock ([`Portion`]), because decoding requests and cancellations wait for the step.
//!
//! The plan decides when a sequence is computed, never what.

use crate::session::Owner;
use haversack_kernels::attention::BLOCK_SLOTS;
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// A user waits for it.
    #[default]
    Interactive,
    Background,
}

/// What one request wants of the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    pub priority: Priority,
    /// Tokens to read before its next token can be sampled.
    pub pending: usize,
    /// Steps since it last took part in one.
    pub skipped_steps: u64,
    pub owner: Owner,
    /// Tokens that were computed for its owner lately.
    pub owner_load: u64,
}

impl Demand {
    fn is_decode(&self) -> bool {
        self.pending == 1
    }
}

/// How much one step may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Maximum sequences of a step.
    pub batch: usize,
    /// Maximum prompt tokens of a step. It reads at least a block, or no request would ever begin.
    pub chunk: usize,
}

/// Prompt tokens that a step reads, by how long steps take. There are three:
///
/// * [`Portion::shared`], while several requests run or wait. It halves when a step takes longer than 40 ms, down to a block, and
///   doubles when one takes less than 15 ms. Where even a block takes longer than 100 ms it goes back to the maximum: small
///   portions would only cost.
/// * [`Portion::light`], for an owner that had less than every other ([`reads_for_light_owner`]). Each portion costs it a token
///   of all who decode, who have had more: it halves when a step takes longer than 200 ms, down to the shared maximum.
/// * [`Portion::lone`], for the only request. No other request waits for its steps, so it reads the runtime's own chunk, as
///   generation without a scheduler does. Only a cancellation or a new request waits for the step: the portion halves
///   when a step takes longer than a second, down to the shared maximum, and doubles when one takes less than 0.4 s.
#[derive(Clone, Debug)]
pub struct Portion {
    tokens: usize,
    min: usize,
    max: usize,
    /// A step that takes longer halves it.
    long: Duration,
    /// A step that takes less doubles it. Less than half of `long`, so that it does not swing.
    short: Duration,
    /// A block that takes longer sets it to the maximum.
    hopeless: Duration,
    /// When the last step began, and what it read.
    last: Option<(Duration, usize)>,
}

impl Portion {
    pub fn shared(max: usize) -> Portion {
        Portion {
            tokens: max,
            min: BLOCK_SLOTS.min(max),
            max,
            long: Duration::from_millis(40),
            short: Duration::from_millis(15),
            hopeless: Duration::from_millis(100),
            last: None,
        }
    }

    /// `min`: of [`Portion::shared`] the maximum.
    pub fn light(min: usize, max: usize) -> Portion {
        Portion {
            tokens: min.min(max),
            long: Duration::from_millis(200),
            short: Duration::from_millis(90),
            ..Portion::lone(min, max)
        }
    }

    /// `min`: of [`Portion::shared`] the maximum.
    pub fn lone(min: usize, max: usize) -> Portion {
        Portion {
            tokens: max,
            min: min.min(max),
            max,
            long: Duration::from_secs(1),
            short: Duration::from_millis(400),
            hopeless: Duration::MAX,
            last: None,
        }
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// A step begins, and with it ends the one before.
    pub fn begin(&mut self, now: Duration) {
        let Some((began, read)) = self.last.take() else {
            return;
        };
        // A clock that went backwards says nothing, nor does a step that read little.
        let Some(took) = now.checked_sub(began).filter(|_| 2 * read > self.tokens) else {
            return;
        };
        let block = took.mul_f64(BLOCK_SLOTS as f64 / read as f64);
        if block > self.hopeless {
            self.tokens = self.max;
        } else if took > self.long {
            self.tokens = (self.tokens / 2).max(self.min);
        } else if took < self.short {
            self.tokens = (self.tokens * 2).min(self.max);
        }
    }

    /// The step that began at `now` reads this many prompt tokens.
    pub fn reads(&mut self, now: Duration, tokens: usize) {
        self.last = Some((now, tokens));
    }
}

/// Whether others take part, and an owner that had less than each of them has a prompt to read.
pub fn reads_for_light_owner(demands: &[Demand]) -> bool {
    let Some(least) = demands.iter().min_by_key(|demand| demand.owner_load) else {
        return false;
    };
    let (its, others): (Vec<&Demand>, Vec<_>) = demands
        .iter()
        .partition(|demand| demand.owner == least.owner);
    let reads = |demand: &&Demand| demand.priority == Priority::Interactive && demand.pending > 1;
    let has_more = |demand: &&Demand| demand.owner_load > least.owner_load;
    !others.is_empty() && others.iter().all(has_more) && its.iter().any(reads)
}

/// (demand): tokens that it gets; 0 waits for another step.
pub fn plan(demands: &[Demand], pace: Pace) -> Vec<usize> {
    let mut takes = vec![0; demands.len()];
    let mut order: Vec<usize> = (0..demands.len())
        .filter(|&i| demands[i].pending > 0)
        .collect();
    // Of an owner the request that was skipped most comes first, then the one admitted first.
    order.sort_by_key(|&i| {
        let demand = &demands[i];
        (
            demand.priority,
            !demand.is_decode(),
            demand.owner_load,
            u64::MAX - demand.skipped_steps,
        )
    });
    order.truncate(pace.batch.max(1));
    let mut readers = Vec::new();
    for &i in &order {
        if demands[i].is_decode() {
            takes[i] = 1;
        } else {
            readers.push(i);
        }
    }
    share(demands, pace.chunk.max(BLOCK_SLOTS), &readers, &mut takes);
    takes
}

/// Shares a chunk among the readers, interactive ones first: each block goes to the owner that had least, and of its readers
/// to the one that has least of this chunk.
fn share(demands: &[Demand], chunk: usize, readers: &[usize], takes: &mut [usize]) {
    let mut left = chunk;
    for priority in [Priority::Interactive, Priority::Background] {
        while left > 0 {
            let had = |owner: Owner| -> usize {
                let its = readers.iter().filter(|&&i| demands[i].owner == owner);
                its.map(|&i| takes[i]).sum()
            };
            let waiting = readers
                .iter()
                .copied()
                .filter(|&i| demands[i].priority == priority && takes[i] < demands[i].pending);
            let next = waiting.min_by_key(|&i| {
                let demand = &demands[i];
                (demand.owner_load + had(demand.owner) as u64, takes[i])
            });
            let Some(i) = next else {
                break;
            };
            let more = (demands[i].pending - takes[i]).min(BLOCK_SLOTS).min(left);
            takes[i] += more;
            left -= more;
        }
    }
}

/// Prompt tokens of a plan.
pub fn prompt_tokens(demands: &[Demand], takes: &[usize]) -> usize {
    let readers = demands.iter().zip(takes).filter(|(d, _)| !d.is_decode());
    readers.map(|(_, take)| take).sum()
}

/// Makes a plan smaller that does not fit into memory: first at most `chunk` tokens of a prompt. `false`: none has more.
pub fn limit_takes(takes: &mut [usize], chunk: usize) -> bool {
    let is_wider = takes.iter().any(|&take| take > chunk);
    takes.iter_mut().for_each(|take| *take = (*take).min(chunk));
    is_wider
}

/// Makes a plan smaller that does not fit into memory: first a block of each prompt, then decoding alone, or one prompt
/// where no request decodes, then half of what it reads. `false`: it cannot be smaller.
pub fn shrink(demands: &[Demand], takes: &mut [usize]) -> bool {
    if limit_takes(takes, BLOCK_SLOTS) {
        return true;
    }
    let reads = |(demand, take): &(&Demand, &mut usize)| demand.pending > 1 && **take > 0;
    let readers: Vec<_> = demands.iter().zip(takes.iter_mut()).filter(reads).collect();
    let kept = usize::from(!demands.iter().any(Demand::is_decode));
    let spare = readers.len() > kept;
    readers
        .into_iter()
        .skip(kept)
        .for_each(|(_, take)| *take = 0);
    let halved = takes.iter_mut().find(|take| !spare && **take > 1);
    spare || halved.map(|take| *take /= 2).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Background, Interactive};

    fn demand(priority: Priority, pending: usize, skipped_steps: u64) -> Demand {
        Demand {
            priority,
            pending,
            skipped_steps,
            owner: Owner::default(),
            owner_load: 0,
        }
    }

    const PACE: Pace = Pace {
        batch: 4,
        chunk: 128,
    };

    #[test]
    fn all_decode_and_prompts_share_the_chunk() {
        let demands = [
            demand(Interactive, 1, 0),
            demand(Interactive, 500, 0),
            demand(Interactive, 40, 0),
            demand(Interactive, 1, 0),
        ];
        assert_eq!(plan(&demands, PACE), [1, 88, 40, 1]);
    }

    #[test]
    fn owners_share_a_chunk_by_what_they_had() {
        let ann = Owner::new("ann").unwrap();
        let of_ann = |pending| Demand {
            owner: ann,
            ..demand(Interactive, pending, 0)
        };
        let busy = |pending| Demand {
            owner_load: 96,
            ..demand(Interactive, pending, 7)
        };
        // A new one is read first until it has had as much, then both in turn.
        assert_eq!(plan(&[busy(500), busy(500), of_ann(90)], PACE), [32, 6, 90]);
        assert_eq!(plan(&[busy(500), of_ann(500)], PACE), [32, 96]);
        let equal = Demand {
            owner: ann,
            ..busy(500)
        };
        assert_eq!(plan(&[busy(500), busy(500), equal], PACE), [32, 32, 64]);
        // Where not all decode, too.
        let pace = Pace { batch: 1, ..PACE };
        assert_eq!(plan(&[busy(1), of_ann(1)], pace), [0, 1]);
    }

    #[test]
    fn an_owner_that_had_less_than_others_reads_in_larger_portions() {
        let ann = Owner::new("ann").unwrap();
        let of_ann = |owner_load, pending| Demand {
            owner: ann,
            owner_load,
            ..demand(Interactive, pending, 0)
        };
        let other = |pending| Demand {
            owner_load: 96,
            ..demand(Interactive, pending, 0)
        };
        assert!(reads_for_light_owner(&[
            other(1),
            of_ann(95, 1),
            of_ann(95, 200)
        ]));
        assert!(!reads_for_light_owner(&[other(1), of_ann(95, 1)]));
        assert!(!reads_for_light_owner(&[other(1), of_ann(96, 200)]));
        assert!(!reads_for_light_owner(&[of_ann(95, 1), of_ann(95, 200)]));
        let in_background = Demand {
            priority: Background,
            ..of_ann(0, 200)
        };
        assert!(!reads_for_light_owner(&[other(1), in_background]));
        assert!(!reads_for_light_owner(&[]));
        let mut portion = Portion::light(64, 256);
        let mut now = Duration::ZERO;
        let mut step = |millis: u64| {
            let tokens = portion.tokens();
            portion.reads(now, tokens);
            now += Duration::from_millis(millis);
            portion.begin(now);
            portion.tokens()
        };
        assert_eq!(
            [50, 89, 199, 201, 300].map(&mut step),
            [128, 256, 256, 128, 64]
        );
        assert_eq!([5000, 91].map(&mut step), [64, 64]);
    }

    #[test]
    fn the_background_gets_what_is_left() {
        let reading = [
            demand(Background, 500, 90),
            demand(Interactive, 100, 0),
            demand(Background, 1, 0),
        ];
        assert_eq!(plan(&reading, PACE), [28, 100, 1]);
        let full = [
            demand(Background, 1, 900),
            demand(Interactive, 1, 0),
            demand(Interactive, 300, 0),
        ];
        let pace = Pace { batch: 2, ..PACE };
        assert_eq!(plan(&full, pace), [0, 1, 128]);
    }

    #[test]
    fn a_portion_follows_the_clock() {
        let mut portion = Portion::shared(256);
        let mut now = Duration::ZERO;
        let mut step = |portion: &mut Portion, read: usize, took: Duration| {
            portion.begin(now);
            portion.reads(now, read);
            now += took;
            portion.begin(now);
            portion.tokens()
        };
        let (slow, fast) = (Duration::from_millis(41), Duration::from_millis(14));
        let between = Duration::from_millis(28);
        assert_eq!(step(&mut portion, 256, slow), 128);
        assert_eq!(step(&mut portion, 128, between), 128);
        assert_eq!(step(&mut portion, 64, slow), 128, "read little");
        let down = [slow; 3].map(|took| {
            let tokens = portion.tokens();
            step(&mut portion, tokens, took)
        });
        assert_eq!(down, [64, 32, 32]);
        let up = [fast; 4].map(|took| {
            let tokens = portion.tokens();
            step(&mut portion, tokens, took)
        });
        assert_eq!(up, [64, 128, 256, 256]);
        // A model of a billion weights, say.
        let [slower, hopeless] = [2, 8].map(|times| times * slow);
        assert_eq!(step(&mut portion, 256, slower), 128);
        assert_eq!(step(&mut portion, 128, hopeless), 64);
        assert_eq!(step(&mut portion, 64, hopeless), 256);
        // The scheduler was idle for a while, or the clock began anew.
        assert_eq!(step(&mut portion, 0, 100 * slow), 256);
        assert_eq!(step(&mut Portion::shared(8), 8, slow), 8);
        portion.reads(1000 * slow, 256);
        portion.begin(Duration::ZERO);
        assert_eq!(portion.tokens(), 256);
    }

    /// 512 tokens may take a second; on a slower device a step reads less, but never less than beside other requests.
    #[test]
    fn a_lone_portion_follows_a_slower_clock() {
        let mut portion = Portion::lone(64, 512);
        let mut now = Duration::ZERO;
        let mut step = |millis: u64| {
            let tokens = portion.tokens();
            portion.reads(now, tokens);
            now += Duration::from_millis(millis);
            portion.begin(now);
            portion.tokens()
        };
        assert_eq!([900; 3].map(&mut step), [512; 3]);
        assert_eq!([8000; 4].map(&mut step), [256, 128, 64, 64]);
        assert_eq!(
            [500, 399, 30, 30, 30].map(&mut step),
            [64, 128, 256, 512, 512]
        );
        assert_eq!(Portion::lone(64, 17).tokens(), 17);
    }

    /// With more requests than a step takes, each takes part in turn.
    #[test]
    fn no_request_starves() {
        let mut demands: Vec<Demand> = (0..9).map(|_| demand(Interactive, 1, 0)).collect();
        let mut parts = [0; 9];
        for _ in 0..27 {
            let takes = plan(&demands, Pace { batch: 3, ..PACE });
            assert_eq!(takes.iter().sum::<usize>(), 3);
            for (i, &take) in takes.iter().enumerate() {
                parts[i] += take;
                let demand = &mut demands[i];
                demand.skipped_steps = if take > 0 {
                    0
                } else {
                    demand.skipped_steps + 1
                };
            }
        }
        assert_eq!(parts, [9; 9]);
    }

    #[test]
    fn a_step_always_does_something_and_never_too_much() {
        let mut seed = 7u64;
        let mut roll = |below: u64| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..20_000 {
            let demands: Vec<Demand> = (0..roll(12))
                .map(|_| {
                    let priority = [Interactive, Background][roll(2) as usize];
                    let pending = [0, 1, 2, 31, 33, 700][roll(6) as usize];
                    demand(priority, pending, roll(5))
                })
                .collect();
            let pace = Pace {
                batch: roll(9) as usize,
                chunk: roll(300) as usize,
            };
            let takes = plan(&demands, pace);
            let taking = takes.iter().filter(|&&take| take > 0).count();
            let wanting = demands.iter().filter(|w| w.pending > 0).count();
            assert!(taking <= pace.batch.max(1));
            assert_eq!(taking > 0, wanting > 0);
            assert!(takes.iter().zip(&demands).all(|(&t, w)| t <= w.pending));
            let read = takes.iter().zip(&demands).filter(|(_, w)| w.pending > 1);
            let read: usize = read.map(|(&take, _)| take).sum();
            assert!(read <= pace.chunk.max(BLOCK_SLOTS));
        }
    }
}
