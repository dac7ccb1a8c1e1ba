//! Recall: facts told early in a dialogue, asked for late.
//!
//! ```text
//! User: By the way, my dog is called Biscuit.
//! Assistant: Thank you, I will remember that.
//! … turns about other things …
//! User: Do you remember what my dog is called?
//! Assistant: Yes, your dog is called ▮
//! ```
//!
//! Facts lie in the first quarter. Ten answers are judged, all of one kind; nine were never said.

use crate::choice::{Case, QUESTION_TOKENS, Question, encode, filler, opening};
use crate::dice::Dice;
use haversack_text::tokenizer::Tokenizer;

/// What is said, what is asked, how the answer begins, and what it may be.
type Kind = [&'static str; 4];

const KINDS: [Kind; 6] = [
    [
        "my dog is called",
        "what my dog is called",
        "your dog is called",
        "Biscuit Rocket Pepper Shadow Ginger Captain Maple Ziggy Cookie Thunder",
    ],
    [
        "I live in",
        "where I live",
        "you live in",
        "Lisbon Oslo Chicago Nairobi Toronto Vienna Mumbai Dublin Prague Seoul",
    ],
    [
        "my favourite fruit is the",
        "what my favourite fruit is",
        "your favourite fruit is the",
        "mango apple cherry banana lemon peach grape melon plum strawberry",
    ],
    [
        "I work as a",
        "what I work as",
        "you work as a",
        "teacher carpenter nurse lawyer baker pilot farmer writer dentist plumber",
    ],
    [
        "my sister is called",
        "what my sister is called",
        "your sister is called",
        "Clara Emily Sofia Hannah Laura Maria Julia Alice Grace Rachel",
    ],
    [
        "I play the",
        "which instrument I play",
        "you play the",
        "piano violin guitar flute drums trumpet cello harp clarinet saxophone",
    ],
];

const FACTS: usize = 4;
/// What an answer may be, of each kind.
const VALUES: usize = 10;
/// Tokens of an answer about something else.
const TURN_TOKENS: usize = 80;

const PROMPTS: [&str; 6] = [
    "Tell me something I do not know.",
    "Please go on.",
    "What happened next?",
    "Read me a little more of it.",
    "And then?",
    "Give me another passage.",
];

/// The case of this number in a context of `tokens` tokens, question and answer included.
pub fn case(tokenizer: &Tokenizer, text: &[u32], tokens: usize, seed: u64, number: usize) -> Case {
    let mut dice = Dice::new(seed, &[43, number as u64]);
    let mut kinds: Vec<&Kind> = KINDS.iter().collect();
    dice.shuffle(&mut kinds);
    kinds.truncate(FACTS);
    let told: Vec<usize> = kinds.iter().map(|_| dice.below(VALUES)).collect();

    let room = tokens.saturating_sub(QUESTION_TOKENS);
    let mut passages = filler(text, room, number).into_iter();
    let mut prompt = opening(tokenizer);
    let mut facts = kinds.iter().zip(&told);
    // No turn about something else has room any more.
    let mut is_full = false;
    loop {
        // One fact every sixteenth, so that all are told in the first quarter.
        let next = room / 16 * (FACTS - facts.len());
        let fact = match is_full || prompt.len() >= next {
            true => facts.next(),
            false => None,
        };
        if let Some(([said, _, _, values], told)) = fact {
            let value = values.split(' ').nth(*told).unwrap_or_default();
            let turn = format!(
                "User: By the way, {said} {value}.\nAssistant: Thank you, I will remember that.\n"
            );
            prompt.extend(encode(tokenizer, &turn));
            continue;
        }
        let ask = format!("User: {}\nAssistant:", dice.pick(&PROMPTS));
        let mut turn = encode(tokenizer, &ask);
        turn.extend(passages.by_ref().take(TURN_TOKENS));
        turn.extend(encode(tokenizer, "\n"));
        turn.truncate(room.saturating_sub(prompt.len()));
        is_full = turn.is_empty();
        prompt.extend(turn);
        if is_full && facts.len() == 0 {
            break;
        }
    }
    let facts = kinds.iter().zip(&told);
    let questions = facts.map(|([_, asked, begin, values], told)| {
        let mut values: Vec<&str> = values.split(' ').collect();
        values.swap(0, *told);
        let answer = |value: &&str| encode(tokenizer, &format!(" {value}"));
        let ask = format!("\nUser: Do you remember {asked}?\nAssistant: Yes, {begin}");
        Question {
            ask: encode(tokenizer, &ask),
            answers: values.iter().map(answer).collect(),
        }
    });
    let questions = questions.collect();
    Case { prompt, questions }
}
