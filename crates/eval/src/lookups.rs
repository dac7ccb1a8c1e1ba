//! Lookups: a list of keys and values, then other text, then a key.
//!
//! ```text
//! amber lantern: grey heron
//! rusty kettle: blue otter
//! … filler …
//! rusty kettle: ▮
//! ```
//!
//! The list is the first half of the prompt. Ten values are judged: the right one, four others of the list,
//! five that appear nowhere.

use crate::choice::{Case, QUESTION_TOKENS, Question, encode, filler, opening};
use crate::dice::Dice;
use crate::words::{ADJECTIVES, ANIMALS, COLOURS, THINGS};
use haversack_text::tokenizer::Tokenizer;

const QUESTIONS: usize = 4;
const LISTED: usize = 4;
const STRANGERS: usize = 5;
/// Longer lists are no better a question, and keys must stay different.
const ENTRIES_MAX: usize = 200;

/// All pairs of two lists, shuffled.
fn pairs(dice: &mut Dice, first: &[&str], second: &[&str]) -> Vec<String> {
    let mut pairs: Vec<String> = first
        .iter()
        .flat_map(|a| second.iter().map(move |b| format!("{a} {b}")))
        .collect();
    dice.shuffle(&mut pairs);
    pairs
}

/// The case of this number in a context of `tokens` tokens, question and answer included.
pub fn case(tokenizer: &Tokenizer, text: &[u32], tokens: usize, seed: u64, number: usize) -> Case {
    let mut dice = Dice::new(seed, &[29, number as u64]);
    let keys = pairs(&mut dice, &ADJECTIVES, &THINGS);
    let values = pairs(&mut dice, &COLOURS, &ANIMALS);
    let mut prompt = opening(tokenizer);
    prompt.extend(encode(tokenizer, "A list of keys and values.\n\n"));
    let room = tokens.saturating_sub(QUESTION_TOKENS);
    let mut entries = 0;
    while entries < ENTRIES_MAX {
        let line = format!("{}: {}\n", keys[entries], values[entries]);
        let line = encode(tokenizer, &line);
        // A few even where the context is hardly long enough.
        if entries > LISTED && prompt.len() + line.len() > room / 2 {
            break;
        }
        prompt.extend(line);
        entries += 1;
    }
    prompt.extend(encode(tokenizer, "\n"));
    prompt.extend(filler(text, room.saturating_sub(prompt.len()), number));

    let mut asked: Vec<usize> = (0..entries).collect();
    dice.shuffle(&mut asked);
    let questions = asked.iter().take(QUESTIONS).map(|&asked| {
        let mut others: Vec<usize> = (0..entries).filter(|&i| i != asked).collect();
        dice.shuffle(&mut others);
        let strangers = entries..entries + STRANGERS;
        let offered = others.into_iter().take(LISTED).chain(strangers);
        let answer = |i: usize| encode(tokenizer, &format!(" {}", values[i]));
        Question {
            ask: encode(tokenizer, &format!("\n\n{}:", keys[asked])),
            answers: std::iter::once(asked).chain(offered).map(answer).collect(),
        }
    });
    let questions = questions.collect();
    Case { prompt, questions }
}
