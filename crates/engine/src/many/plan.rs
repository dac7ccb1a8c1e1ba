//! Which tokens the next step computes. Pure.
//!
//! A step is one pass over the weights, however many sequences take part, so everybody who has a token to decode does.
//! Prompts are read beside them, in portions: what is left of the chunk is shared out in whole blocks, evenly, so that a
//! short prompt does not wait for a long one. Background work gets what nobody else wants.
//!
//! What a sequence computes does not depend on any of this; only when.

use haversack_kernels::attention::BLOCK_SLOTS;

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
    fn is_decode(&self) -> bool {
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
