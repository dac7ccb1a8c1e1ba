//! Finds out when an answer has fallen into a loop: its last tokens are one block, over and over.
//!
//! A small model that has lost the thread repeats itself until a limit ends the answer. The detector is given each token of
//! the answer and nothing else, so what it finds depends on the tokens only. For each length of a block it counts how many
//! of the last tokens equal the one that far before them: 128 comparisons a token, and memory for 128 tokens and counts.

/// Tokens of a block at most: a paragraph. A longer loop is ended by the limit of the answer.
const BLOCK_MAX: usize = 128;

/// Copies of the block, at least. Verses, table rows and `case` labels that are alike word for word come twice or thrice,
/// and those that count (`1.`, `2.`, …) are not alike.
const COPIES_MIN: usize = 8;

/// Tokens of all copies, at least. Short blocks repeat for good reasons: a rule of dashes, the separators of a table, a row
/// of 50 zeros with their commas. A line of 80 columns stays below this even where each column is a token, and a loop is
/// ended after an eighth of the 1,024 tokens that an answer has unless a client asks for more.
const TOKENS_MIN: usize = 128;

/// Counts repetitions at the end of an answer.
#[derive(Clone, Debug)]
pub struct RepetitionDetector {
    /// The last tokens, in a ring.
    last: [u32; BLOCK_MAX],
    seen: usize,
    /// By length of a block, less one: how many of the last tokens equal the token one block before.
    equal: [usize; BLOCK_MAX],
}

impl Default for RepetitionDetector {
    fn default() -> Self {
        RepetitionDetector {
            last: [0; BLOCK_MAX],
            seen: 0,
            equal: [0; BLOCK_MAX],
        }
    }
}

impl RepetitionDetector {
    /// Takes the next token; whether the answer ends in a loop now.
    pub fn push(&mut self, token: u32) -> bool {
        let mut is_loop = false;
        for block in 1..=BLOCK_MAX.min(self.seen) {
            let before = self.last[(self.seen - block) % BLOCK_MAX];
            let equal = &mut self.equal[block - 1];
            *equal = if before == token { *equal + 1 } else { 0 };
            // The first copy has none before it.
            let repeated = *equal + block;
            is_loop |= *equal > 0 && repeated >= TOKENS_MIN.max(COPIES_MIN * block);
        }
        self.last[self.seen % BLOCK_MAX] = token;
        self.seen += 1;
        is_loop
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same, slow and obvious.
    fn twin(tokens: &[u32]) -> bool {
        (1..=BLOCK_MAX).any(|block| {
            let len = TOKENS_MIN.max(COPIES_MIN * block);
            let Some(start) = tokens.len().checked_sub(len) else {
                return false;
            };
            let tail = &tokens[start..];
            tail.iter().zip(&tail[block..]).all(|(a, b)| a == b)
        })
    }

    /// The first token after which there is a loop.
    fn end(tokens: impl IntoIterator<Item = u32>) -> Option<usize> {
        let mut detector = RepetitionDetector::default();
        let mut all = Vec::new();
        for (i, token) in tokens.into_iter().enumerate() {
            all.push(token);
            let found = detector.push(token);
            assert_eq!(found, twin(&all), "at {i}");
            if found {
                return Some(i + 1);
            }
        }
        None
    }

    #[test]
    fn a_loop_ends_where_it_is_long_enough() {
        for block in [1, 2, 3, 7, 16, 17, 40, 127, 128] {
            let long_enough = TOKENS_MIN.max(COPIES_MIN * block);
            for before in [0, 1, 5, 200] {
                // The text before does not repeat.
                let text = (0..before).map(|i| 1000 + i as u32);
                let copies = (0..2000).map(|i| (i % block) as u32);
                let found = end(text.chain(copies));
                assert_eq!(found, Some(before + long_enough), "{block} {before}");
            }
        }
        assert_eq!(end((0..3000).map(|i| i % 129)), None, "too long a block");
    }

    #[test]
    fn what_repeats_for_good_reasons_goes_on() {
        let rule = std::iter::repeat_n(7, 80);
        assert_eq!(end(rule.chain(0..40)), None);
        let zeros = (0..100).map(|i| i % 2);
        assert_eq!(end(zeros.chain(5..40)), None);
        // A row of 20 tokens, seven times.
        let rows = (0..140).map(|i| i % 20);
        assert_eq!(end(rows.chain(30..60)), None);
        // Rows that are alike but for their number.
        let numbered = (0..2000).map(|i| if i % 10 == 0 { 1000 + i } else { i % 10 });
        assert_eq!(end(numbered), None);
    }

    /// Streams of few letters have many loops, and almost loops.
    #[test]
    fn the_detector_finds_what_its_twin_finds() {
        let mut state = 1u64;
        for _ in 0..200 {
            let mut tokens = Vec::new();
            while tokens.len() < 600 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                let (block, copies) = (1 + (state >> 33) % 30, 1 + (state >> 40) % 40);
                for i in 0..block * copies {
                    tokens.push((i % block) as u32);
                }
                if state >> 62 == 0 {
                    tokens.push(99);
                }
            }
            tokens.truncate(1200);
            end(tokens);
        }
    }
}
