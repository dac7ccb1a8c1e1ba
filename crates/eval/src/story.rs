//! A text that is made up, for comparisons without one. It has names that come again and things that change
//! hands, so that there is something to remember; it is no measure of how well a model knows English.

use crate::dice::Dice;
use crate::words::{ADJECTIVES, ANIMALS, COLOURS, THINGS, TOPICS};

const NAMES: [&str; 10] = [
    "Anna", "Ben", "Clara", "David", "Ella", "Frank", "Grace", "Henry", "Ida", "Jack",
];
/// With commas between them.
const PLACES: &str = "the harbour, the old mill, the market, the school, the station, the river, \
    the garden, the library, the bakery, the hill";

/// At least `letters` letters of it.
pub fn text(seed: u64, letters: usize) -> String {
    let mut dice = Dice::new(seed, &[83]);
    let mut text = String::new();
    let mut sentences = 0;
    while text.len() < letters {
        text.push_str(&sentence(&mut dice));
        sentences += 1;
        text.push_str(if sentences % 6 == 0 { "\n\n" } else { " " });
    }
    text
}

fn sentence(dice: &mut Dice) -> String {
    let (name, other) = (dice.pick(&NAMES), dice.pick(&NAMES));
    let (place, topic) = (dice.word(PLACES), dice.word(TOPICS));
    let thing = format!("{} {}", dice.pick(&ADJECTIVES), dice.pick(&THINGS));
    let animal = format!("{} {}", dice.pick(&COLOURS), dice.pick(&ANIMALS));
    match dice.below(9) {
        0 => format!("{name} went to {place} with a {thing}."),
        1 => format!("At {place} {name} met {other}, who was reading about {topic}."),
        2 => format!("\"Have you seen my {thing}?\" asked {name}."),
        3 => format!("{other} gave {name} the {thing} and walked on to {place}."),
        4 => format!("A {animal} sat near {place} and looked at {name}."),
        5 => format!("They spoke for a long time about {topic}, until {other} had to leave."),
        6 => format!("Nobody at {place} knew whose {thing} it was, not even {name}."),
        7 => format!("{name} remembered what {other} had said about {topic}."),
        _ => format!("In the evening {name} wrote to {other} about the {animal} at {place}."),
    }
}
