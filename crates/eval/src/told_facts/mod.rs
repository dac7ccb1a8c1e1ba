//! Talks in which a few turns tell facts that last, for what is to find them.
//!
//! ```text
//! user  Thanks, that helps.
//! user  I rang my sister Clara yesterday.
//! user  She moved to Antwerp last spring.            told: Clara, Antwerp
//! user  If I had a dog I would call it Ziggy.
//! user  I'm vegetarian. Tell me a joke.              told: vegetarian
//! …
//! user  Clara doesn't live in Antwerp any more, Clara moved to Oslo.     told: Clara, Oslo, in place of the other
//! ```
//!
//! Around them are requests, questions, suppositions about the same things, moods and small talk; answers suppose things,
//! too. Talks follow from a seed. The development set and the held-out one differ in their seeds and in all sentences.

mod kinds;

use crate::dice::Dice;
use crate::long_talk::TalkSet;
use kinds::{KINDS, Kind, NAMED, PASSING, PEOPLE};

/// A message with its answer, and what it tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TellingTurn {
    pub said: String,
    pub answered: String,
    pub told: Option<Told>,
}

/// A fact that a turn tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Words that say it: the value, and who it is about if it is not the speaker.
    pub words: Vec<String>,
    /// The turn that told what holds no more.
    pub replaces: Option<usize>,
    /// What it answers.
    pub question: String,
}

impl Told {
    /// Whether a text says it: by all of its words.
    pub fn is_in(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        let has = |word: &String| text.contains(&word.to_lowercase());
        self.words.iter().all(has)
    }
}

/// One in eight facts is told in the turn after the one that names the person; one in two is contradicted later.
const PRONOUN_OF: usize = 8;
const CHANGED_OF: usize = 2;

const ANSWERS: [&str; 12] = [
    "I see.",
    "Good to know.",
    "Of course. You could start with something simple.",
    "That depends. Some people live in Rome and are happy there.",
    "Certainly. Do you have a cat?",
    "Here is a short version: it works, and that is all.",
    "Thank you for telling me.",
    "I would say yes, but I am no doctor.",
    "A nurse or a baker gets up early, for example.",
    "All right.",
    "Perhaps your brother in Madrid can help.",
    "I am glad to hear that.",
];

/// A talk of `turns` turns, of which `told` tell a fact; at most a third of them.
pub fn telling_talk(set: TalkSet, number: usize, turns: usize, told: usize) -> Vec<TellingTurn> {
    let (seed, remainder) = match set {
        TalkSet::Development => (31_007, 0),
        TalkSet::HeldOut => (58_411, 1),
    };
    let mut talk = Talk {
        dice: Dice::new(seed, &[number as u64]),
        kinds: every_second(&KINDS, remainder),
        passing: every_second(&PASSING, remainder),
    };
    // A slot has room for a turn that names a person and one that tells something.
    let mut slots: Vec<usize> = (0..turns / 2).collect();
    let facts = talk.facts(told.min(turns / 3));
    talk.dice.draw(&mut slots, facts.len());
    for (i, fact) in facts.iter().enumerate() {
        if let Some(before) = fact.replaces.filter(|&before| slots[before] > slots[i]) {
            slots.swap(before, i);
        }
    }
    let mut said: Vec<TellingTurn> = (0..turns).map(|_| talk.passes()).collect();
    let mut named = Vec::new();
    let mut order: Vec<usize> = (0..facts.len()).collect();
    order.sort_by_key(|&i| slots[i]);
    for i in order {
        let at = 2 * slots[i] + 1;
        if facts[i].is_pronoun {
            said[at - 1].said = facts[i].naming(&mut talk.dice, &mut named);
        }
        let text = facts[i].text(&mut named);
        said[at].said = talk.beside(text, facts[i].is_pronoun);
        said[at].told = Some(Told {
            words: facts[i].words(),
            replaces: facts[i].replaces.map(|before| 2 * slots[before] + 1),
            question: filled(facts[i].kind.asks_for, PEOPLE[facts[i].person].1, "", ""),
        });
    }
    said
}

fn every_second<T>(all: &'static [T], remainder: usize) -> Vec<&'static T> {
    all.iter().skip(remainder).step_by(2).collect()
}

struct Talk {
    dice: Dice,
    kinds: Vec<&'static Kind>,
    passing: Vec<&'static &'static str>,
}

/// A fact before it has its place.
struct Fact {
    kind: &'static Kind,
    /// Of [`PEOPLE`].
    person: usize,
    value: &'static str,
    /// What it takes the place of, by its number and its value.
    replaces: Option<usize>,
    before: &'static str,
    way: usize,
    is_pronoun: bool,
}

impl Talk {
    /// The speaker is told of by half of them, once by each kind.
    fn facts(&mut self, count: usize) -> Vec<Fact> {
        let changes = count / (CHANGED_OF + 1);
        let mut kinds = self.kinds.clone();
        self.dice.shuffle(&mut kinds);
        let (of_others, of_self): (Vec<_>, Vec<_>) =
            kinds.into_iter().partition(|kind| kind.is_of_other);
        let mut people: Vec<usize> = (0..PEOPLE.len()).collect();
        self.dice.shuffle(&mut people);
        let mut facts: Vec<Fact> = Vec::new();
        let mut of_self = of_self.into_iter();
        for i in 0..count - changes {
            let own = (i % 2 == 0).then(|| of_self.next()).flatten();
            let kind = own.unwrap_or(of_others[i / 2 % of_others.len()]);
            let value = self.other_value(kind, &facts);
            facts.push(Fact {
                kind,
                person: people[i % people.len()],
                value,
                replaces: None,
                before: "",
                way: self.dice.below(3),
                is_pronoun: kind.is_of_other && i % PRONOUN_OF == 1,
            });
        }
        for i in 0..changes.min(facts.len()) {
            // Those of the speaker and of others in turn.
            let value = self.other_value(facts[i].kind, &facts);
            facts.push(Fact {
                value,
                replaces: Some(i),
                before: facts[i].value,
                is_pronoun: false,
                ..facts[i]
            });
        }
        facts
    }

    /// A value that nothing told so far has.
    fn other_value(&mut self, kind: &Kind, facts: &[Fact]) -> &'static str {
        let values: Vec<&'static str> = KINDS
            .iter()
            .find(|k| k.values == kind.values)
            .map(|k| k.values.split(", ").collect())
            .unwrap_or_default();
        let free = values
            .iter()
            .filter(|value| facts.iter().all(|fact| fact.value != **value));
        let free: Vec<&'static str> = free.copied().collect();
        self.dice
            .pick(if free.is_empty() { &values } else { &free })
    }

    /// A turn that tells nothing.
    fn passes(&mut self) -> TellingTurn {
        let mut said = self.passing();
        if self.dice.below(3) == 0 {
            said = format!("{said} {}", self.passing());
        }
        TellingTurn {
            said,
            answered: (*self.dice.pick(&ANSWERS)).to_owned(),
            told: None,
        }
    }

    /// Half of what passes is about things that may be told.
    fn passing(&mut self) -> String {
        let kind = self.kinds[self.dice.below(self.kinds.len())];
        let text = match self.dice.below(6) {
            0 | 1 => self.dice.pick(&kind.supposes),
            2 => kind.asks,
            _ => self.passing[self.dice.below(self.passing.len())],
        };
        let person = PEOPLE[self.dice.below(PEOPLE.len())].1;
        filled(text, person, self.dice.word(kind.values), "")
    }

    /// What is told, in one message of three with something else.
    fn beside(&mut self, text: String, is_pronoun: bool) -> String {
        match self.dice.below(6) {
            0 => format!("{text} {}", self.passing()),
            1 if !is_pronoun => format!("{} {text}", self.passing()),
            _ => text,
        }
    }
}

impl Fact {
    fn words(&self) -> Vec<String> {
        let name = self.kind.is_of_other.then_some(PEOPLE[self.person].1);
        let words = [self.value].into_iter().chain(name);
        words.map(str::to_owned).collect()
    }

    /// As the speaker names them: at first with who they are.
    fn who(&self, named: &mut Vec<usize>) -> &'static str {
        let (first, later) = PEOPLE[self.person];
        if named.contains(&self.person) {
            return later;
        }
        named.push(self.person);
        first
    }

    fn naming(&self, dice: &mut Dice, named: &mut Vec<usize>) -> String {
        filled(dice.pick(&NAMED), self.who(named), "", "")
    }

    fn text(&self, named: &mut Vec<usize>) -> String {
        let template = match self.replaces {
            Some(_) => self.kind.changes,
            None if self.is_pronoun => self.kind.tells[0],
            None => self.kind.tells[self.way],
        };
        let is_woman = PEOPLE[self.person].0.split(' ').nth(1).is_some_and(|role| {
            [
                "sister", "boss", "aunt", "daughter", "cousin", "niece", "mother",
            ]
            .contains(&role)
        });
        let who = match self.is_pronoun && self.replaces.is_none() {
            true if is_woman => "she",
            true => "he",
            false if self.kind.is_of_other => self.who(named),
            false => "",
        };
        filled(template, who, self.value, self.before)
    }
}

/// The template with what it is about, as a sentence.
fn filled(template: &str, who: &str, value: &str, before: &str) -> String {
    // Who is named twice is named shortly the second time.
    let short = who.split(' ').next_back().unwrap_or_default();
    let text = template
        .replacen("{W}", who, 1)
        .replace("{W}", short)
        .replace("{V}", value)
        .replace("{O}", before);
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_talk_tells_what_it_says_it_tells() {
        for set in [TalkSet::Development, TalkSet::HeldOut] {
            let talk = telling_talk(set, 0, 100, 30);
            assert_eq!(talk, telling_talk(set, 0, 100, 30));
            assert_ne!(talk, telling_talk(set, 1, 100, 30));
            assert_eq!(talk.len(), 100);
            assert_eq!(talk.iter().filter(|turn| turn.told.is_some()).count(), 30);
            let mut changes = 0;
            for (at, turn) in talk.iter().enumerate() {
                let Some(told) = &turn.told else { continue };
                // A pronoun stands for who is named in the turn before.
                assert!(
                    told.is_in(&format!("{} {}", talk[at - 1].said, turn.said)),
                    "{turn:?}"
                );
                let Some(before) = told.replaces else {
                    continue;
                };
                changes += 1;
                let before_told = talk[before].told.as_ref().unwrap();
                assert!(before < at && before_told.words[1..] == told.words[1..]);
                assert!(
                    turn.said.contains(&before_told.words[0]) && before_told.words != told.words
                );
            }
            assert_eq!(changes, 10);
        }
    }

    /// What was tuned on one set says nothing about the words of the other.
    #[test]
    fn the_sets_have_no_sentence_in_common() {
        let first: Vec<String> = sentences(TalkSet::Development);
        let second = sentences(TalkSet::HeldOut);
        assert!(first.iter().all(|text| !second.contains(text)));
    }

    fn sentences(set: TalkSet) -> Vec<String> {
        let talk = telling_talk(set, 0, 200, 0);
        talk.into_iter().map(|turn| turn.said).collect()
    }
}
