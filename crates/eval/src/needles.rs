//! Needles: facts planted in a long text, asked for at its end.
//!
//! ```text
//! … filler … The secret code of Alder is 4182. … filler … (four facts) … filler …
//! The secret code of Alder is ▮
//! ```
//!
//! Ten answers are judged: the right code, the three other planted ones, six that appear nowhere.
//! Perplexity hardly sees what this sees, because a forgotten number costs one token in a thousand.

use crate::choice::{Case, QUESTION_TOKENS, Question, encode, filler, opening};
use crate::dice::Dice;
use haversack_text::tokenizer::Tokenizer;

const NAMES: [&str; 12] = [
    "Alder", "Birch", "Cedar", "Dogwood", "Elder", "Fern", "Gorse", "Hazel", "Iris", "Juniper",
    "Larch", "Maple",
];
const FACTS: usize = 4;
const STRANGERS: usize = 6;

/// The case of this number in a context of `tokens` tokens, question and answer included.
pub fn case(tokenizer: &Tokenizer, text: &[u32], tokens: usize, seed: u64, number: usize) -> Case {
    let mut dice = Dice::new(seed, &[17, number as u64]);
    let codes = dice.codes(FACTS + STRANGERS);
    let first_name = dice.below(NAMES.len());
    let name = |fact: usize| NAMES[(first_name + fact) % NAMES.len()];
    let fact = |fact: usize| {
        let fact = format!(" The secret code of {} is {}.", name(fact), codes[fact]);
        encode(tokenizer, &fact)
    };
    let facts: Vec<Vec<u32>> = (0..FACTS).map(fact).collect();
    let mut prompt = opening(tokenizer);
    let taken = prompt.len() + QUESTION_TOKENS + facts.iter().map(Vec::len).sum::<usize>();
    let text = filler(text, tokens.saturating_sub(taken), number);
    // Facts lie in the fifths of the text, the last fifth has none.
    let fifth = text.len() / (FACTS + 1);
    for (i, fact) in facts.iter().enumerate() {
        let at = dice.below(fifth.max(2) / 2) + fifth / 4;
        let piece = &text[i * fifth..(i + 1) * fifth];
        let at = at.min(piece.len());
        prompt.extend_from_slice(&piece[..at]);
        prompt.extend_from_slice(fact);
        prompt.extend_from_slice(&piece[at..]);
    }
    prompt.extend_from_slice(&text[FACTS * fifth..]);
    let questions = (0..FACTS).map(|asked| {
        let mut codes = codes.clone();
        codes.swap(0, asked);
        let answer = |code: &String| encode(tokenizer, &format!(" {code}"));
        let ask = format!(" The secret code of {} is", name(asked));
        Question {
            ask: encode(tokenizer, &ask),
            answers: codes.iter().map(answer).collect(),
        }
    });
    let questions = questions.collect();
    Case { prompt, questions }
}
