//! Arithmetic: sums shown here and there in a long text, then one without its result.
//!
//! ```text
//! … filler … 23 + 45 = 68 … filler … 31 + 17 = 48 … filler …
//! 52 + 36 = ▮
//! ```
//!
//! Ten results are judged: the right one and nine near it. What the sums look like must be remembered, how
//! to add must survive.

use crate::choice::{Case, QUESTION_TOKENS, Question, encode, filler, opening};
use crate::dice::Dice;
use haversack_text::tokenizer::Tokenizer;

const SHOTS: usize = 8;
const QUESTIONS: usize = 4;
const NEAR: [i64; 13] = [-20, -11, -10, -9, -2, -1, 1, 2, 9, 10, 11, 20, 100];
const WRONG: usize = 9;

fn sum(dice: &mut Dice) -> (usize, usize) {
    (10 + dice.below(80), 10 + dice.below(80))
}

/// The case of this number in a context of `tokens` tokens, question and answer included.
pub fn case(tokenizer: &Tokenizer, text: &[u32], tokens: usize, seed: u64, number: usize) -> Case {
    let mut dice = Dice::new(seed, &[59, number as u64]);
    let shots = (0..SHOTS).map(|_| {
        let (a, b) = sum(&mut dice);
        encode(tokenizer, &format!("\n{a} + {b} = {}\n", a + b))
    });
    let shots: Vec<Vec<u32>> = shots.collect();
    let mut prompt = opening(tokenizer);
    let taken = prompt.len() + QUESTION_TOKENS + shots.iter().map(Vec::len).sum::<usize>();
    let text = filler(text, tokens.saturating_sub(taken), number);
    let piece = text.len() / SHOTS;
    for (i, shot) in shots.iter().enumerate() {
        prompt.extend_from_slice(&text[i * piece..(i + 1) * piece]);
        prompt.extend_from_slice(shot);
    }
    prompt.extend_from_slice(&text[SHOTS * piece..]);
    let questions = (0..QUESTIONS).map(|_| {
        let (a, b) = sum(&mut dice);
        let mut near = NEAR;
        dice.shuffle(&mut near);
        let right = (a + b) as i64;
        let wrong = near.iter().map(|by| right + by).filter(|n| *n > 0);
        let offered = std::iter::once(right).chain(wrong.take(WRONG));
        let answer = |n: i64| encode(tokenizer, &format!(" {n}"));
        Question {
            ask: encode(tokenizer, &format!("\n{a} + {b} =")),
            answers: offered.map(answer).collect(),
        }
    });
    let questions = questions.collect();
    Case { prompt, questions }
}
