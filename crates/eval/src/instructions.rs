//! Instructions for free-running answers: templates filled by a seeded throw, all different.

use crate::dice::Dice;
use crate::words::{ADJECTIVES, ANIMALS, COLOURS, THINGS, TOPICS};
use std::collections::HashSet;

/// With commas between them, like those below.
const AUDIENCES: &str = "a child of six, a teenager, a busy manager, a retired teacher, a new \
    neighbour, a tourist, a beginner, an engineer, a poet, a farmer";

const LENGTHS: &str = "one sentence, two sentences, three sentences, a short paragraph, about \
    fifty words";

const MOODS: &str = "formal, friendly, cheerful, very polite, plain, dramatic, humorous, calm";

const SENTENCES: [&str; 8] = [
    "The train was late again and nobody told us why.",
    "We need your answer before Friday.",
    "I cannot find my keys and the shop is closing.",
    "The soup was cold but the bread was excellent.",
    "Our new office has more windows than the old one.",
    "She said that she would call when the parcel arrived.",
    "The meeting took three hours and decided nothing.",
    "He painted the fence on the only rainy day of the month.",
];

/// The most that [`instructions`] can be asked for.
pub const MOST: usize = 500;

/// `count` different instructions, at most [`MOST`].
pub fn instructions(seed: u64, count: usize) -> Vec<String> {
    let mut dice = Dice::new(seed, &[71]);
    let mut seen = HashSet::new();
    let mut list = Vec::new();
    while list.len() < count.min(MOST) {
        let instruction = one(&mut dice);
        if seen.insert(instruction.clone()) {
            list.push(instruction);
        }
    }
    list
}

fn one(dice: &mut Dice) -> String {
    let topic = dice.word(TOPICS);
    let other = dice.word(TOPICS);
    let audience = dice.word(AUDIENCES);
    let length = dice.word(LENGTHS);
    let mood = dice.word(MOODS);
    let thing = format!("{} {}", dice.pick(&ADJECTIVES), dice.pick(&THINGS));
    let animal = format!("{} {}", dice.pick(&COLOURS), dice.pick(&ANIMALS));
    let sentence = dice.pick(&SENTENCES);
    let number = 3 + dice.below(4);
    match dice.below(14) {
        0 => format!("Explain {topic} to {audience} in {length}."),
        1 => format!("List {number} facts about {topic}."),
        2 => format!("Rewrite this in a {mood} tone: {sentence}"),
        3 => format!("Write a short story about a {animal} and a {thing}."),
        4 => format!("Give {number} reasons why {audience} might care about {topic}."),
        5 => format!("Compare {topic} with {other} in {length}."),
        6 => format!("Write a {mood} poem of four lines about {topic}."),
        7 => format!("What questions would {audience} ask about {topic}?"),
        8 => format!("Describe a {thing} so that somebody could draw it."),
        9 => format!("Write a {mood} message that invites {audience} to a talk about {topic}."),
        10 => format!("Name {number} things that one needs for {topic}, and say what each is for."),
        11 => format!("Continue this story in {length}: {sentence}"),
        12 => format!("A {animal} finds a {thing}. What happens next? Answer in {length}."),
        _ => format!("Summarise what is known about {topic} in {length}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_hundred_are_different_and_the_same_again() {
        let list = instructions(1, MOST);
        let set: HashSet<&String> = list.iter().collect();
        assert_eq!(set.len(), MOST);
        assert_eq!(list[..10], instructions(1, 10));
        assert_ne!(list, instructions(2, MOST));
        assert_eq!(instructions(1, MOST + 1).len(), MOST);
    }
}
