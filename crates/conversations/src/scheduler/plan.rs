//! Which tokens the next step computes. Pure.
//!
//! A step is one pass over the weights, however many sequences take part, so everybody who has a token to decode does.
//! Prompts are read beside them, in portions: what is left of the chunk is shared out in whole blocks, evenly, so that a
//! short prompt does not wait for a long one. Background work gets what nobody else wants.
//!
//! How much is read in a step follows the clock ([`Portion`]): whoever waits for a token, or has left, waits for the step.
//!
//! What a sequence computes does not depend on any of this; only when.

use haversack_kernels::attention::BLOCK_SLOTS;
use std::time::Duration;

/// Who goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Somebody waits for it.
    #[default]
    Interactive,
    Background,
}

/// What one sequence wants of the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    pub priority: Priority,
    /// Tokens that it has to read before it can say one.
    pub pending: usize,
    /// Steps since it took part in one.
    pub waited: u64,
}

impl Wish {
    pub(super) fn is_decode(&self) -> bool {
        self.pending == 1
    }
}

/// How much one step may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Sequences that take part at most.
    pub batch: usize,
    /// Tokens of prompts at most. At least a block is read, or nobody would ever begin.
    pub chunk: usize,
}

/// Tokens of prompts that a step reads, by how long steps take: half as many once one takes longer than
/// [`Portion::LONG`], twice as many again once one takes less than [`Portion::SHORT`]. Where even a block
/// takes longer than [`Portion::HOPELESS`], as many as there may be: small portions would only cost.
#[derive(Clone, Debug)]
pub struct Portion {
    tokens: usize,
    most: usize,
    /// When the last step began, and what it read.
    last: Option<(Duration, usize)>,
}

impl Portion {
    /// A device on which a whole portion takes longer is slow, or others have its cores just now.
    pub const LONG: Duration = Duration::from_millis(40);
    /// Less than half of it, so that twice as many are not too many at once.
    pub const SHORT: Duration = Duration::from_millis(15);
    pub const HOPELESS: Duration = Duration::from_millis(100);

    pub fn new(most: usize) -> Portion {
        Portion {
            tokens: most,
            most,
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
        // A clock that was set back says nothing, and nor does a step that read little.
        let Some(took) = now.checked_sub(began).filter(|_| 2 * read > self.tokens) else {
            return;
        };
        let block = took.mul_f64(BLOCK_SLOTS as f64 / read as f64);
        if block > Portion::HOPELESS {
            self.tokens = self.most;
        } else if took > Portion::LONG {
            self.tokens = (self.tokens / 2).max(BLOCK_SLOTS).min(self.most);
        } else if took < Portion::SHORT {
            self.tokens = (self.tokens * 2).min(self.most);
        }
    }

    /// The step that began then reads so much of prompts.
    pub fn reads(&mut self, now: Duration, tokens: usize) {
        self.last = Some((now, tokens));
    }
}

/// (wish): tokens that it gets, in the order they were given; 0 waits for another step.
pub fn plan(wishes: &[Wish], pace: Pace) -> Vec<usize> {
    let mut takes = vec![0; wishes.len()];
    let mut order: Vec<usize> = (0..wishes.len())
        .filter(|&i| wishes[i].pending > 0)
        .collect();
    // Whoever waited longest comes first among equals, and whoever came first among those.
    order.sort_by_key(|&i| {
        let wish = &wishes[i];
        (wish.priority, !wish.is_decode(), u64::MAX - wish.waited)
    });
    order.truncate(pace.batch.max(1));
    let mut readers = Vec::new();
    for &i in &order {
        match wishes[i].is_decode() {
            true => takes[i] = 1,
            false => readers.push(i),
        }
    }
    share(wishes, pace.chunk.max(BLOCK_SLOTS), &readers, &mut takes);
    takes
}

/// A chunk among those who read, block by block in turn, until it or what they want is used up. Nobody in the background
/// gets a block that somebody else would take.
fn share(wishes: &[Wish], chunk: usize, readers: &[usize], takes: &mut [usize]) {
    let mut left = chunk;
    for priority in [Priority::Interactive, Priority::Background] {
        loop {
            let before = left;
            for &i in readers.iter().filter(|&&i| wishes[i].priority == priority) {
                let more = (wishes[i].pending - takes[i]).min(BLOCK_SLOTS).min(left);
                takes[i] += more;
                left -= more;
            }
            if left == before {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Background, Interactive};

    fn wish(priority: Priority, pending: usize, waited: u64) -> Wish {
        Wish {
            priority,
            pending,
            waited,
        }
    }

    const PACE: Pace = Pace {
        batch: 4,
        chunk: 128,
    };

    #[test]
    fn everybody_decodes_and_prompts_share_the_chunk() {
        let wishes = [
            wish(Interactive, 1, 0),
            wish(Interactive, 500, 0),
            wish(Interactive, 40, 0),
            wish(Interactive, 1, 0),
        ];
        assert_eq!(plan(&wishes, PACE), [1, 88, 40, 1]);
    }

    #[test]
    fn the_background_gets_what_nobody_wants() {
        let reading = [
            wish(Background, 500, 90),
            wish(Interactive, 100, 0),
            wish(Background, 1, 0),
        ];
        assert_eq!(plan(&reading, PACE), [28, 100, 1]);
        let full = [
            wish(Background, 1, 900),
            wish(Interactive, 1, 0),
            wish(Interactive, 300, 0),
        ];
        let pace = Pace { batch: 2, ..PACE };
        assert_eq!(plan(&full, pace), [0, 1, 128]);
    }

    #[test]
    fn a_portion_follows_the_clock() {
        let mut portion = Portion::new(256);
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
        // Nobody was there for a while, or the clock began anew.
        assert_eq!(step(&mut portion, 0, 100 * slow), 256);
        assert_eq!(step(&mut Portion::new(8), 8, slow), 8);
        portion.reads(1000 * slow, 256);
        portion.begin(Duration::ZERO);
        assert_eq!(portion.tokens(), 256);
    }

    /// However many there are and however narrow the step, each takes part after a while.
    #[test]
    fn nobody_waits_for_ever() {
        let mut wishes: Vec<Wish> = (0..9).map(|_| wish(Interactive, 1, 0)).collect();
        let mut parts = [0; 9];
        for _ in 0..27 {
            let takes = plan(&wishes, Pace { batch: 3, ..PACE });
            assert_eq!(takes.iter().sum::<usize>(), 3);
            for (i, &take) in takes.iter().enumerate() {
                parts[i] += take;
                wishes[i].waited = if take > 0 { 0 } else { wishes[i].waited + 1 };
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
            let wishes: Vec<Wish> = (0..roll(12))
                .map(|_| {
                    let priority = [Interactive, Background][roll(2) as usize];
                    let pending = [0, 1, 2, 31, 33, 700][roll(6) as usize];
                    wish(priority, pending, roll(5))
                })
                .collect();
            let pace = Pace {
                batch: roll(9) as usize,
                chunk: roll(300) as usize,
            };
            let takes = plan(&wishes, pace);
            let taking = takes.iter().filter(|&&take| take > 0).count();
            let wanting = wishes.iter().filter(|w| w.pending > 0).count();
            assert!(taking <= pace.batch.max(1));
            assert_eq!(taking > 0, wanting > 0);
            assert!(takes.iter().zip(&wishes).all(|(&t, w)| t <= w.pending));
            let read = takes.iter().zip(&wishes).filter(|(_, w)| w.pending > 1);
            let read: usize = read.map(|(&take, _)| take).sum();
            assert!(read <= pace.chunk.max(BLOCK_SLOTS));
        }
    }
}
