//! Records: what a ward wrote down about a patient, and questions about single lines of it.
//!
//! ```text
//! Notes of the ward, day 4.
//!
//! Slept well and ate little. In the afternoon a walk in the garden. …
//! The door code is 4182.
//! …
//!
//! The door code is ▮
//! ```
//!
//! Six facts, two in each third, and one question for each third. The answer counts where it is said digit for digit. Each fact
//! begins in its own way: small models that have all of the record before them then find it.

use crate::choice::{encode, opening};
use crate::dice::Dice;
use haversack_text::tokenizer::Tokenizer;

const FACTS: [&str; 12] = [
    "The door code is",
    "Her locker has the number",
    "Her sister can be reached at extension",
    "The allergy card has the entry",
    "The wheelchair is marked with",
    "The insurance file is kept under",
    "The blood sample was labelled",
    "Parking is paid for with ticket",
    "The X-ray is stored in drawer",
    "Her parcel is waiting at desk",
    "The television answers to channel",
    "The taxi is booked under reference",
];

/// What stands between them; no question is about it.
const NOTES: [&str; 16] = [
    "Slept well and ate little.",
    "In the afternoon a walk in the garden.",
    "The cough is better than yesterday.",
    "Asked for a second blanket.",
    "Had a visit from a sister.",
    "No fever in the morning, a little in the evening.",
    "Read a book until late.",
    "The left knee still hurts on the stairs.",
    "Drank three cups of tea.",
    "Wants to go home soon.",
    "Blood was taken before breakfast.",
    "The new tablets are taken without trouble.",
    "Was tired after the bath.",
    "Played chess with a neighbour.",
    "The bandage was changed at noon.",
    "Talked to the doctor about the operation.",
];

/// Parts of a record, each with a question of its own.
pub const THIRDS: usize = 3;
/// Of each part.
const FACTS_EACH: usize = 2;
/// Of a line.
const NOTES_EACH: usize = 4;
/// Of a question, at most.
const QUESTION_TOKENS: usize = 24;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub prompt: Vec<u32>,
    /// One for each third.
    pub questions: Vec<RecordQuestion>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordQuestion {
    /// Behind the record.
    pub ask: Vec<u32>,
    pub answer: String,
    /// Where in the record the fact begins, in tokens.
    pub at: usize,
}

impl Record {
    /// What is read: the record and one of its questions.
    pub fn asked(&self, question: &RecordQuestion) -> Vec<u32> {
        [&self.prompt[..], &question.ask].concat()
    }
}

/// The record of this number, of up to `tokens` tokens with a question.
pub fn record(tokenizer: &Tokenizer, tokens: usize, seed: u64, number: usize) -> Record {
    let mut dice = Dice::new(seed, &[41, number as u64]);
    let mut facts = FACTS;
    dice.shuffle(&mut facts);
    let codes = dice.codes(THIRDS * FACTS_EACH);
    let mut prompt = opening(tokenizer);
    let head = format!("Notes of the ward, day {}.\n", 1 + dice.below(28));
    prompt.extend(encode(tokenizer, &head));
    let room = tokens.saturating_sub(QUESTION_TOKENS);
    let mut fill = |prompt: &mut Vec<u32>, to: usize| loop {
        let notes: Vec<&str> = (0..NOTES_EACH).map(|_| dice.pick(&NOTES)).collect();
        let line = encode(tokenizer, &format!("\n{}", notes.join(" ")));
        if prompt.len() + line.len() > to {
            break;
        }
        prompt.extend(line);
    };
    // A fact in the middle of each part.
    let part = room / codes.len();
    let mut places = Vec::new();
    for (i, code) in codes.iter().enumerate() {
        fill(&mut prompt, part * i + part / 2);
        places.push(prompt.len());
        let fact = format!("\n{} {code}.\n", facts[i]);
        prompt.extend(encode(tokenizer, &fact));
    }
    fill(&mut prompt, room);
    let questions = (0..THIRDS).map(|third| {
        let i = third * FACTS_EACH + dice.below(FACTS_EACH);
        RecordQuestion {
            ask: encode(tokenizer, &format!("\n\n{}", facts[i])),
            answer: codes[i].clone(),
            at: places[i],
        }
    });
    let questions = questions.collect();
    Record { prompt, questions }
}

/// Whether an answer says it, digit for digit, at its beginning.
pub fn is_right(said: &str, answer: &str) -> bool {
    let rest = said.trim_start().strip_prefix(answer);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}
