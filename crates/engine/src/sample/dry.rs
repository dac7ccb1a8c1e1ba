//! DRY: penalises a token that would continue a repetition of what came before it. By p-e-w (2024); the meaning of its
//! options is that of llama.cpp.
//!
//! ```text
//! a b c x … y a b c ?      the last three tokens were there before, followed by x: x is penalised
//! ```
//!
//! How long the suffixes repeat is found for all places at once (the Z function of the reversed tokens), so a token costs
//! time and memory linear in the tokens looked back at. No repetition reaches across a sequence breaker, a text that may
//! begin in one token and end in another; a token that contains one is never penalised. Nothing is remembered from one
//! token to the next: the result depends on logits and history only.

use super::options::DryOptions;
use haversack_text::tokenizer::Tokenizer;
use std::collections::HashMap;

/// Scratch of DRY: lists that are used again.
#[derive(Debug, Clone, Default)]
pub struct Dry {
    /// By distance from the end of the history: how many tokens repeat that end there.
    repeats: Vec<u32>,
    /// The longest repetition that a token would continue.
    continues: HashMap<u32, u32>,
    /// The text of the history from its end, and up to which byte each token of it reaches.
    reversed: Vec<u8>,
    ends: Vec<usize>,
}

impl Dry {
    /// Lowers the logits of tokens that would continue a repetition. Without a tokenizer there are no breakers.
    pub fn penalise(
        &mut self,
        options: &DryOptions,
        logits: &mut [f32],
        history: &[u32],
        tokenizer: Option<&Tokenizer>,
    ) {
        let window = &history[history.len().saturating_sub(options.last_n)..];
        let allowed = options.allowed_length;
        let longest = self.find_repeats(window);
        if longest < allowed {
            return;
        }
        let tokens_max = match tokenizer {
            Some(tokenizer) => self.tokens_since_breaker(options, window, longest, tokenizer),
            None => longest,
        };
        self.continues.clear();
        for (distance, &repeated) in self.repeats.iter().enumerate().skip(1) {
            let repeated = (repeated as usize).min(tokens_max);
            if repeated >= allowed {
                // What followed the place where the repetition was.
                let token = window[window.len() - distance];
                let longest = self.continues.entry(token).or_default();
                *longest = (*longest).max(repeated as u32);
            }
        }
        for (&token, &repeated) in &self.continues {
            let Some(logit) = logits.get_mut(token as usize) else {
                continue;
            };
            let breaks = |tokenizer: &Tokenizer| {
                let piece = tokenizer.piece_bytes(token);
                let mut breakers = options.breakers.iter();
                breakers.any(|breaker| contains(&piece, breaker.as_bytes()))
            };
            if !tokenizer.is_some_and(breaks) {
                *logit -= penalty(options, repeated as usize - allowed);
            }
        }
    }

    /// Fills `repeats`; the longest of them.
    fn find_repeats(&mut self, window: &[u32]) -> usize {
        let len = window.len();
        let at = |i: usize| window[len - 1 - i];
        let repeats = &mut self.repeats;
        repeats.clear();
        repeats.resize(len, 0);
        let mut longest = 0;
        // The stretch that is known to repeat and reaches farthest.
        let (mut left, mut right) = (0, 0);
        for i in 1..len {
            let mut z = match i < right {
                true => (repeats[i - left] as usize).min(right - i),
                false => 0,
            };
            while i + z < len && at(z) == at(i + z) {
                z += 1;
            }
            if i + z > right {
                (left, right) = (i, i + z);
            }
            repeats[i] = z as u32;
            longest = longest.max(z);
        }
        longest
    }

    /// Tokens after the last one in which a breaker ends, of the last `tokens` ones.
    fn tokens_since_breaker(
        &mut self,
        options: &DryOptions,
        window: &[u32],
        tokens: usize,
        tokenizer: &Tokenizer,
    ) -> usize {
        let Some(bytes_max) = options.breakers.iter().map(String::len).max() else {
            return tokens;
        };
        self.reversed.clear();
        self.ends.clear();
        let (mut place, mut token) = (0, 0);
        let mut older = window.iter().rev();
        loop {
            // A breaker that ends at `place` must be there as a whole.
            while self.reversed.len() < place + bytes_max {
                let Some(&id) = older.next() else {
                    break;
                };
                let piece = tokenizer.piece_bytes(id);
                self.reversed.extend(piece.iter().rev());
                self.ends.push(self.reversed.len());
            }
            if place >= self.reversed.len() {
                return tokens;
            }
            while self.ends.get(token).is_some_and(|&end| end <= place) {
                token += 1;
            }
            if token >= tokens {
                return tokens;
            }
            let rest = &self.reversed[place..];
            let ends_here = |breaker: &String| {
                let backwards = breaker.bytes().rev();
                rest.len() >= breaker.len() && backwards.eq(rest[..breaker.len()].iter().copied())
            };
            if options.breakers.iter().any(ends_here) {
                return token;
            }
            place += 1;
        }
    }
}

/// Finite, so that a penalised token stays possible. By squaring: the library's power differs between systems in the last
/// digit.
fn penalty(options: &DryOptions, beyond: usize) -> f32 {
    let (mut power, mut square, mut exponent) = (1.0, f64::from(options.base), beyond);
    while exponent > 0 {
        if exponent % 2 == 1 {
            power *= square;
        }
        square *= square;
        exponent /= 2;
    }
    let penalty = f64::from(options.multiplier) * power;
    penalty.min(PENALTY_MAX) as f32
}

/// Far below any logit of a model, and far from where f32 ends.
const PENALTY_MAX: f64 = 1e30;

fn contains(text: &[u8], part: &[u8]) -> bool {
    !part.is_empty() && text.windows(part.len()).any(|window| window == part)
}
