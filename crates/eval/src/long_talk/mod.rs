//! Long talks as people have them: what matters is said once, in passing, and asked for in other words.
//!
//! ```text
//! 12   user       Nora rang yesterday, we talked about nothing in particular.
//!      assistant  That happens to everyone now and then.
//! 13   user       She finally got taken on at the sawmill, the first shift is on Monday.   ┐ evidence: 12, who she is,
//!      assistant  Oh, I did not know that.                                                 ┘ and 13
//!      …          three hundred turns with the same names, and with the words of the question
//!      user       Who employs Nora?
//! ```
//!
//! A question knows the turns that it cannot be answered without. Whether these were visible needs no language model to
//! judge. Talks follow from a seed. The development set and the held-out one differ in their seeds and in what is told
//! and asked: a retriever is tuned on the first and reported on the second.

mod chatter;
mod facts;

use crate::dice::Dice;
use crate::talk::Exchange;
use facts::{EVENTS, FACTS, Fact, ROLES};

/// Which talks: those that a retriever is tuned on, or those that it is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TalkSet {
    Development,
    HeldOut,
}

impl TalkSet {
    /// Seeds of the talks of a set. Committed before the first retriever was tuned.
    pub fn seed(self) -> u64 {
        match self {
            TalkSet::Development => 27_001,
            TalkSet::HeldOut => 94_302,
        }
    }

    /// Which of the facts and events its talks tell: every second one.
    fn remainder(self) -> usize {
        match self {
            TalkSet::Development => 0,
            TalkSet::HeldOut => 1,
        }
    }
}

/// What makes a question hard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hardness {
    /// It is asked in other words than it was told, about one of several people.
    Paraphrase,
    /// It was told of "she", who is named in the turn before.
    Pronoun,
    /// When something was: it was told with "last Tuesday" or a date.
    Date,
    /// A later turn says otherwise.
    Changed,
    /// Two people are asked about at once.
    Two,
    /// The person is asked for by who they are, told in another turn than what is asked.
    Role,
    /// Nothing was said of it.
    Never,
}

impl Hardness {
    pub const ALL: [Hardness; 7] = [
        Hardness::Paraphrase,
        Hardness::Pronoun,
        Hardness::Date,
        Hardness::Changed,
        Hardness::Two,
        Hardness::Role,
        Hardness::Never,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Hardness::Paraphrase => "paraphrase",
            Hardness::Pronoun => "pronoun",
            Hardness::Date => "date",
            Hardness::Changed => "changed",
            Hardness::Two => "two",
            Hardness::Role => "role",
            Hardness::Never => "never",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongQuestion {
    pub question: String,
    pub hardness: Hardness,
    /// Turns without which it cannot be answered; none if nothing was said of it.
    pub evidence: Vec<usize>,
    /// In the words of the one who told it.
    pub answer: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LongTalk {
    pub turns: Vec<Exchange>,
    pub asked: Vec<LongQuestion>,
}

/// Turns of a talk.
pub const TURNS: usize = 370;

/// What is right where nothing was said.
pub const NOT_MENTIONED: &str = "not mentioned";

const WOMEN: &str = "Nora, Ines, Greta, Helen, Yara, Maud, Olga, Priya, Sofie, Wanda, Beatrix, Dilek, Fiona, Carla, Judith, Amina";
const MEN: &str = "Tomas, Viktor, Leon, Rashid, Edgar, Piotr, Malik, Dennis, Hannes, Cedric, Ivan, Ruben, Stefan, Gordon, Bela, Kenji";
const MONTHS: &str = "January, February, March, April, May, June, July, August, September, October, November, December";
const WEEKDAYS: &str = "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday";

/// People that a talk is about.
const PEOPLE: usize = 10;
/// Facts of a talk, each told of this many people.
const FACTS_TOLD: usize = 14;
const TOLD_OF: usize = 3;
/// Of all that is told: in a turn after the one that names the person; and said otherwise later.
const PRONOUNS: usize = 8;
const CHANGES: usize = 8;
/// Questions of each kind where a talk has enough to ask about.
const PARAPHRASES: usize = 10;
const DATES: usize = 6;
const TWOS: usize = 5;
const ROLES_ASKED: usize = 3;
const NEVER: usize = 5;

#[derive(Clone, Copy)]
struct Person {
    name: &'static str,
    is_woman: bool,
}

impl Person {
    /// The template with this person in it.
    fn fill(self, template: &str, value: &str) -> String {
        let [he, his, him] = match self.is_woman {
            true => ["she", "her", "her"],
            false => ["he", "his", "him"],
        };
        template
            .replace("{W}", self.name)
            .replace("{V}", value)
            .replace("{he}", he)
            .replace("{his}", his)
            .replace("{him}", him)
    }

    /// The same without the name, which the template begins with.
    fn fill_pronoun(self, template: &str, value: &str) -> String {
        let he = if self.is_woman { "She" } else { "He" };
        self.fill(&template.replacen("{W}", he, 1), value)
    }
}

/// Something told, and the turns of the talk that tell it, once they have their places.
#[derive(Clone)]
struct Told {
    person: usize,
    what: What,
    /// One turn, or two neighbours.
    sentences: Vec<String>,
    answer: String,
    is_pronoun: bool,
    /// It is told after this one.
    after: Option<usize>,
    /// A later one says otherwise.
    is_over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Fact(usize),
    Event(usize),
    Role(usize),
}

/// The talk of this number. `filler` are turns of other origin, which take the place of every second turn of small talk.
pub fn long_talk(set: TalkSet, number: usize, turns: usize, filler: &[Exchange]) -> LongTalk {
    let mut dice = Dice::new(set.seed(), &[0x10_47a1, number as u64]);
    let dice = &mut dice;
    let people = people(dice);
    let names: Vec<&str> = people.iter().map(|person| person.name).collect();
    let of_set =
        |count: usize| -> Vec<usize> { (0..count).filter(|i| i % 2 == set.remainder()).collect() };
    let told = everything_told(dice, &people, of_set(FACTS.len()), of_set(EVENTS.len()));
    let places = places(dice, &told, turns);

    let mut talk = LongTalk::default();
    let mut next = places
        .iter()
        .map(|place| place.at)
        .enumerate()
        .collect::<Vec<_>>();
    next.sort_by_key(|&(_, at)| at);
    let mut next = next.into_iter().peekable();
    while talk.turns.len() < turns {
        if next.peek().is_some_and(|&(_, at)| at <= talk.turns.len()) {
            let Some((i, _)) = next.next() else { break };
            for sentence in &told[i].sentences {
                talk.turns.push(telling(dice, sentence, &names));
            }
        } else if !filler.is_empty() && dice.below(2) == 0 {
            talk.turns.push(filler[dice.below(filler.len())].clone());
        } else {
            talk.turns.push(small_talk(dice, &names));
        }
    }
    let spans: Vec<Vec<usize>> = (told.iter().zip(&places))
        .map(|(told, place)| (place.at..place.at + told.sentences.len()).collect())
        .collect();
    ask(dice, &people, &told, &spans, &mut talk);
    talk
}

fn people(dice: &mut Dice) -> Vec<Person> {
    let mut people: Vec<Person> = Vec::new();
    for (names, is_woman) in [(WOMEN, true), (MEN, false)] {
        let mut names: Vec<&'static str> = names.split(", ").collect();
        dice.draw(&mut names, PEOPLE / 2);
        let some = names.into_iter().take(PEOPLE / 2);
        people.extend(some.map(|name| Person { name, is_woman }));
    }
    people
}

/// Some of the numbers below `count`, each once.
fn some_of(dice: &mut Dice, count: usize, some: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..count).collect();
    let some = some.min(count);
    dice.draw(&mut all, some);
    all.truncate(some);
    all
}

fn everything_told(
    dice: &mut Dice,
    people: &[Person],
    mut facts: Vec<usize>,
    mut events: Vec<usize>,
) -> Vec<Told> {
    let mut told = Vec::new();
    dice.shuffle(&mut facts);
    for &fact in facts.iter().take(FACTS_TOLD) {
        let values = values(&FACTS[fact]);
        let drawn = some_of(dice, values.len(), TOLD_OF);
        for (person, value) in some_of(dice, people.len(), TOLD_OF).into_iter().zip(drawn) {
            let way = dice.below(3);
            told.push(Told {
                person,
                what: What::Fact(fact),
                sentences: vec![people[person].fill(FACTS[fact].tells[way], values[value])],
                answer: values[value].to_owned(),
                is_pronoun: false,
                after: None,
                is_over: false,
            });
        }
    }
    let count = told.len();
    let special = some_of(dice, count, PRONOUNS + CHANGES);
    for (at, &i) in special.iter().enumerate() {
        let What::Fact(fact) = told[i].what else {
            continue;
        };
        let person = people[told[i].person];
        if at < PRONOUNS {
            let named = dice.pick(&[
                "{W} dropped by for a coffee, in a good mood for once.",
                "You remember {W}, don't you?",
                "I was on the phone with {W} for an hour.",
                "Guess who I ran into: {W}, of all people.",
            ]);
            let tells = FACTS[fact].tells[0];
            told[i].sentences = vec![
                person.fill(named, ""),
                person.fill_pronoun(tells, &told[i].answer),
            ];
            told[i].is_pronoun = true;
            continue;
        }
        let values = values(&FACTS[fact]);
        let taken: Vec<&str> = told.iter().map(|told| told.answer.as_str()).collect();
        let other = values.iter().find(|value| !taken.contains(value));
        let Some(&other) = other else { continue };
        let sentence = person.fill(FACTS[fact].changes, other);
        let changed = Told {
            sentences: vec![sentence.replace("{O}", &told[i].answer)],
            answer: other.to_owned(),
            after: Some(i),
            is_pronoun: false,
            ..told[i].clone()
        };
        told[i].is_over = true;
        told.push(changed);
    }
    dice.shuffle(&mut events);
    for &event in events.iter().take(DATES) {
        let person = dice.below(people.len());
        let (day, answer) = a_day(dice);
        let way = dice.below(2);
        let text = people[person].fill(EVENTS[event].tells[way], "");
        told.push(Told {
            person,
            what: What::Event(event),
            sentences: vec![in_place(&text, &day)],
            answer,
            is_pronoun: false,
            after: None,
            is_over: false,
        });
    }
    let roles = some_of(dice, ROLES.len(), ROLES_ASKED);
    for (person, role) in some_of(dice, people.len(), ROLES_ASKED)
        .into_iter()
        .zip(roles)
    {
        told.push(Told {
            person,
            what: What::Role(role),
            sentences: vec![people[person].fill(ROLES[role].0, "")],
            answer: people[person].name.to_owned(),
            is_pronoun: false,
            after: None,
            is_over: false,
        });
    }
    told
}

fn values(fact: &Fact) -> Vec<&'static str> {
    fact.values.split(", ").collect()
}

/// A day in the middle of a sentence, or at its beginning.
fn in_place(text: &str, day: &str) -> String {
    match text.strip_prefix("{D}") {
        Some(rest) => {
            let mut letters = day.chars();
            let first = letters.next().map(|c| c.to_ascii_uppercase());
            first.into_iter().chain(letters).collect::<String>() + rest
        }
        None => text.replace("{D}", day),
    }
}

/// How a day is told, and which one it is.
fn a_day(dice: &mut Dice) -> (String, String) {
    let (month, number) = (dice.word(MONTHS), 9 + dice.below(19));
    let weekday = dice.word(WEEKDAYS);
    match dice.below(3) {
        0 => (
            format!("on {month} {number}"),
            format!("on the {number}th of {month}"),
        ),
        1 => (
            format!("last {weekday} (today is {month} {number})"),
            format!("the {weekday} before the {number}th of {month}"),
        ),
        _ => (
            format!("the day before yesterday, and today is the {number}th of {month},"),
            format!("on the {}th of {month}", number - 2),
        ),
    }
}

/// Where something is told.
struct Place {
    at: usize,
}

/// Places that do not touch, none of them among the last turns. What says otherwise comes later.
fn places(dice: &mut Dice, told: &[Told], turns: usize) -> Vec<Place> {
    // A slot has room for a turn that names somebody and one that goes on.
    let slots = (turns.saturating_sub(12)) / 2;
    let mut drawn = some_of(dice, slots, told.len());
    for (i, told) in told.iter().enumerate() {
        if let Some(before) = told.after.filter(|&before| drawn[before] > drawn[i]) {
            drawn.swap(before, i);
        }
    }
    let place = |slot: usize| Place { at: slot * 2 };
    drawn.into_iter().map(place).collect()
}

/// A turn that tells something, with small talk around it.
fn telling(dice: &mut Dice, sentence: &str, names: &[&str]) -> Exchange {
    let said = match dice.below(4) {
        0 => format!("{sentence} {}", chatter::said(dice, names)),
        1 => format!("{} {sentence}", chatter::said(dice, names)),
        _ => sentence.to_owned(),
    };
    let heard = dice.pick(&chatter::HEARD);
    let heard = chatter::fill(dice, heard, names);
    let answer = match dice.below(3) {
        0 => format!("{heard} {}", chatter::answered(dice, names)),
        _ => heard,
    };
    (said, answer)
}

fn small_talk(dice: &mut Dice, names: &[&str]) -> Exchange {
    let sentences = |dice: &mut Dice, count: usize, say: fn(&mut Dice, &[&str]) -> String| {
        let all: Vec<String> = (0..count).map(|_| say(dice, names)).collect();
        all.join(" ")
    };
    let (said, answered) = (1 + dice.below(2), 1 + dice.below(2));
    (
        sentences(dice, said, chatter::said),
        sentences(dice, answered, chatter::answered),
    )
}

fn ask(
    dice: &mut Dice,
    people: &[Person],
    told: &[Told],
    spans: &[Vec<usize>],
    talk: &mut LongTalk,
) {
    let mut asked = Vec::new();
    let mut put = |question: String, hardness, evidence: Vec<usize>, answer: String| {
        asked.push(LongQuestion {
            question,
            hardness,
            evidence,
            answer,
        });
    };
    let mut order: Vec<usize> = (0..told.len()).collect();
    dice.shuffle(&mut order);
    let mut paraphrases = 0;
    for &i in &order {
        let Told { person, what, .. } = told[i];
        let (person, answer) = (people[person], told[i].answer.clone());
        match what {
            What::Fact(fact) if !told[i].is_over => {
                let hardness = match (told[i].is_pronoun, told[i].after) {
                    (true, _) => Hardness::Pronoun,
                    (_, Some(_)) => Hardness::Changed,
                    _ if paraphrases < PARAPHRASES => {
                        paraphrases += 1;
                        Hardness::Paraphrase
                    }
                    _ => continue,
                };
                let question = person.fill(dice.pick(&FACTS[fact].asks), "");
                put(question, hardness, spans[i].clone(), answer);
            }
            What::Event(event) => {
                let question = person.fill(dice.pick(&EVENTS[event].asks), "");
                put(question, Hardness::Date, spans[i].clone(), answer);
            }
            What::Role(role) => {
                // Something that holds of the person whom only this turn calls so.
                let about = |&&j: &&usize| {
                    told[j].person == told[i].person
                        && !told[j].is_over
                        && matches!(told[j].what, What::Fact(_))
                };
                let Some(&j) = order.iter().find(about) else {
                    continue;
                };
                let What::Fact(fact) = told[j].what else {
                    continue;
                };
                let question = dice.pick(&FACTS[fact].asks).replace("{W}", ROLES[role].1);
                let question = person.fill(&question, "");
                let evidence = [spans[i].clone(), spans[j].clone()].concat();
                put(
                    capital(&question),
                    Hardness::Role,
                    evidence,
                    told[j].answer.clone(),
                );
            }
            What::Fact(_) => {}
        }
    }
    let is_plain = |i: &&usize| !told[**i].is_over && matches!(told[**i].what, What::Fact(_));
    let mut twos = 0;
    for &i in order.iter().filter(is_plain) {
        let other = |&&j: &&usize| j > i && told[j].what == told[i].what;
        let Some(&j) = order.iter().filter(is_plain).find(other) else {
            continue;
        };
        let What::Fact(fact) = told[i].what else {
            continue;
        };
        let question = FACTS[fact].both.replace("{A}", people[told[i].person].name);
        let question = question.replace("{B}", people[told[j].person].name);
        let evidence = [spans[i].clone(), spans[j].clone()].concat();
        let answer = format!("{} and {}", told[i].answer, told[j].answer);
        put(question, Hardness::Two, evidence, answer);
        twos += 1;
        if twos == TWOS {
            break;
        }
    }
    let mut never = 0;
    for &i in order.iter().filter(is_plain) {
        let What::Fact(fact) = told[i].what else {
            continue;
        };
        let knows = |person: usize| {
            let mut all = told.iter();
            all.any(|told| told.person == person && told.what == What::Fact(fact))
        };
        let stranger = (0..people.len()).find(|&person| !knows(person));
        let Some(stranger) = stranger else { continue };
        let question = people[stranger].fill(dice.pick(&FACTS[fact].asks), "");
        put(
            question,
            Hardness::Never,
            Vec::new(),
            NOT_MENTIONED.to_owned(),
        );
        never += 1;
        if never == NEVER {
            break;
        }
    }
    talk.asked = asked;
}

/// With a capital letter, as a sentence begins.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(set: TalkSet) -> Vec<LongTalk> {
        (0..4)
            .map(|number| long_talk(set, number, TURNS, &[]))
            .collect()
    }

    #[test]
    fn a_talk_follows_from_its_seed() {
        let one = long_talk(TalkSet::Development, 1, TURNS, &[]);
        assert_eq!(one, long_talk(TalkSet::Development, 1, TURNS, &[]));
        assert_ne!(one, long_talk(TalkSet::Development, 2, TURNS, &[]));
        assert_ne!(one, long_talk(TalkSet::HeldOut, 1, TURNS, &[]));
    }

    #[test]
    fn questions_know_the_turns_that_answer_them() {
        for set in [TalkSet::Development, TalkSet::HeldOut] {
            for talk in all(set) {
                assert_eq!(talk.turns.len(), TURNS);
                let words: usize = (talk.turns.iter())
                    .map(|(said, heard)| said.split(' ').count() + heard.split(' ').count())
                    .sum();
                // About three tokens for two words, and six of each turn are markers.
                assert!(words > 6_500, "{words} words");
                assert!(talk.asked.len() >= 38, "{} questions", talk.asked.len());
                for asked in &talk.asked {
                    let said: Vec<&str> = asked
                        .evidence
                        .iter()
                        .map(|&i| talk.turns[i].0.as_str())
                        .collect();
                    let said = said.join(" ");
                    assert!(
                        !asked.question.contains('{') && !said.contains('{'),
                        "{asked:?}"
                    );
                    match asked.hardness {
                        Hardness::Never => assert!(said.is_empty()),
                        Hardness::Date => {
                            let month = MONTHS.split(", ").find(|&m| asked.answer.contains(m));
                            assert!(said.contains(month.unwrap()), "{asked:?}: {said}");
                        }
                        _ => {
                            let mut parts = asked.answer.split(" and ");
                            assert!(parts.all(|part| said.contains(part)), "{asked:?}: {said}");
                        }
                    }
                }
                for hardness in Hardness::ALL {
                    assert!(
                        talk.asked.iter().any(|asked| asked.hardness == hardness),
                        "{hardness:?}"
                    );
                }
            }
        }
    }

    /// No telling has a word of its question that is not a name or a word of every day.
    #[test]
    fn questions_are_asked_in_other_words() {
        let words = |text: &str| -> Vec<String> {
            let words = text.split(|c: char| !c.is_alphanumeric());
            words
                .map(str::to_lowercase)
                .filter(|word| word.len() > 4)
                .collect()
        };
        let common = [
            "about", "their", "there", "which", "would", "where", "every", "things",
        ];
        for fact in &FACTS {
            let told: Vec<String> = fact.tells.iter().flat_map(|tell| words(tell)).collect();
            for ask in fact.asks {
                for word in words(ask) {
                    let is_same = told.contains(&word) && !common.contains(&word.as_str());
                    assert!(!is_same, "{ask}: {word}");
                }
            }
        }
    }

    /// The held-out talks tell and ask nothing that the development talks do.
    #[test]
    fn sets_share_no_fact() {
        let asked = |set| -> Vec<String> {
            let names: Vec<&str> = WOMEN.split(", ").chain(MEN.split(", ")).collect();
            let mut all: Vec<String> = (all(set).into_iter().flat_map(|talk| talk.asked))
                .filter(|asked| asked.hardness != Hardness::Role && asked.hardness != Hardness::Two)
                .map(|asked| {
                    names
                        .iter()
                        .fold(asked.question, |q, name| q.replace(name, "X"))
                })
                .collect();
            all.sort();
            all
        };
        let (ours, theirs) = (asked(TalkSet::Development), asked(TalkSet::HeldOut));
        assert!(ours.iter().all(|question| !theirs.contains(question)));
    }
}
