//! Long conversations: facts told early, many turns about other things, and questions late.
//!
//! ```text
//! user       Yesterday I met a baker called Alice Stone.          ┐ facts, each once
//! assistant  It must have been nice to meet Alice Stone, the baker. ┘
//! user       Can you tell me something about bridges?          ┐ sixty turns and more about other things,
//! assistant  A bridge carries a road over a river. …           ┘ four times what memory holds
//! user       What is the full name of Alice, the baker I told you about?
//! assistant  The full name of the baker is Alice ▮             ten answers are judged, all of them names of others
//! ```
//!
//! The same dialogue is had with a full cache, with a window that slides, with two streams, and with two streams that
//! recall. The answer's beginning is given, so that a small model is asked what it remembers and not how it talks.

use crate::choice::{Question, Verdict, ask, encode};
use crate::dice::Dice;
use haversack::run::{Runtime, SequenceId, StepError};
use haversack::session::layout::{Layout, LayoutError};
use haversack::session::{SessionError, SessionId, Sessions};
use haversack::text::tokenizer::Tokenizer;
use std::ops::ControlFlow;

/// A question, and the answer that was given.
pub type Exchange = (String, String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialogue {
    pub turns: Vec<Exchange>,
    pub asked: Vec<Asked>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub question: String,
    /// How the answer begins.
    pub begins: String,
    /// The right one first.
    pub answers: Vec<String>,
    /// The turn that told it.
    pub told_in: usize,
}

/// As many as there are facts in a dialogue at most: nobody is met twice.
const FIRST: [&str; 32] = [
    "Alice", "Bruno", "Clara", "David", "Edith", "Felix", "Grace", "Henry", "Irene", "Jacob",
    "Karen", "Louis", "Maria", "Nora", "Oliver", "Paula", "Quentin", "Rosa", "Simon", "Tessa",
    "Ursula", "Victor", "Wanda", "Xavier", "Yvonne", "Zack", "Agnes", "Boris", "Celia", "Dennis",
    "Elsa", "Frank",
];
const JOBS: [&str; 32] = [
    "baker",
    "dentist",
    "pilot",
    "gardener",
    "teacher",
    "plumber",
    "lawyer",
    "painter",
    "farmer",
    "nurse",
    "singer",
    "barber",
    "tailor",
    "sailor",
    "judge",
    "writer",
    "banker",
    "carpenter",
    "chemist",
    "dancer",
    "driver",
    "fisherman",
    "miner",
    "librarian",
    "photographer",
    "postman",
    "soldier",
    "surgeon",
    "waiter",
    "translator",
    "engineer",
    "journalist",
];
const LAST: [&str; 10] = [
    "Brown", "Carter", "Fisher", "Green", "Hunter", "King", "Miller", "Stone", "Walker", "Young",
];
const TOPICS: [(&str, &str); 12] = [
    (
        "bridges",
        "A bridge carries a road or a railway over a river or a valley. Long ones hang from cables.",
    ),
    (
        "bread",
        "Bread is made of flour, water and yeast. The dough has to rest before it goes into the oven.",
    ),
    (
        "clouds",
        "Clouds are made of tiny drops of water. When the drops grow heavy, it begins to rain.",
    ),
    (
        "chess",
        "Chess is played by two people on a board of sixty-four squares. The game ends with mate.",
    ),
    (
        "rivers",
        "Rivers begin in the hills and run down to the sea. Many towns were built beside them.",
    ),
    (
        "clocks",
        "A clock tells the time with hands or with digits. The first ones were driven by weights.",
    ),
    (
        "gardens",
        "A garden needs sun, water and patience. Some plants come back every year by themselves.",
    ),
    (
        "letters",
        "People wrote letters long before there were telephones. A stamp pays for the journey.",
    ),
    (
        "mountains",
        "Mountains rise where plates of rock push against each other. Their tops are cold.",
    ),
    (
        "shoes",
        "Shoes protect the feet. They are made of leather, cloth or rubber, and wear out in time.",
    ),
    (
        "music",
        "Music is made of rhythm and melody. Every culture that we know of has its own songs.",
    ),
    (
        "trains",
        "Trains run on rails and can carry many people at once. Fast ones are driven by electricity.",
    ),
];
const ASK: [&str; 6] = [
    "Can you tell me something about",
    "What do you know about",
    "Please say a few words about",
    "I would like to hear more about",
    "Let us talk about",
    "Explain to a child what is special about",
];

/// A dialogue with so many facts among its first turns and so many turns in all.
pub fn dialogue(seed: u64, number: usize, facts: usize, turns: usize) -> Dialogue {
    let mut dice = Dice::new(seed, &[0x7a1c, number as u64]);
    let (mut people, mut jobs) = (FIRST, JOBS);
    dice.shuffle(&mut people);
    dice.shuffle(&mut jobs);
    let mut dialogue = Dialogue {
        turns: Vec::new(),
        asked: Vec::new(),
    };
    for (first, job) in people.iter().zip(jobs).take(facts) {
        let right = dice.below(LAST.len());
        let last = LAST[right];
        let told_in = dialogue.turns.len();
        dialogue.turns.push((
            format!("Yesterday I met a {job} called {first} {last}."),
            format!("It must have been nice to meet {first} {last}, the {job}."),
        ));
        let mut answers = vec![last.to_owned()];
        let others = LAST.iter().enumerate().filter(|&(i, _)| i != right);
        answers.extend(others.map(|(_, last)| last.to_string()));
        dialogue.asked.push(Asked {
            question: format!("What is the full name of {first}, the {job} I told you about?"),
            begins: format!("The full name of the {job} is {first}"),
            answers,
            told_in,
        });
    }
    while dialogue.turns.len() < turns {
        let (topic, text) = TOPICS[dice.below(TOPICS.len())];
        let question = format!("{} {topic}?", dice.pick(&ASK));
        dialogue.turns.push((question, text.to_owned()));
    }
    dialogue
}

impl Asked {
    fn tokens(&self, tokenizer: &Tokenizer) -> Question {
        Question {
            ask: encode(tokenizer, &self.begins),
            answers: (self.answers.iter())
                .map(|answer| encode(tokenizer, &format!(" {answer}.")))
                .collect(),
        }
    }
}

/// Every question of a dialogue, on a plain sequence: a full cache, or whatever the runtime's policy leaves of it.
pub fn plain(
    runtime: &mut Runtime,
    layout: &Layout,
    persistent: &str,
    dialogue: &Dialogue,
) -> Result<Vec<Verdict>, TalkError> {
    let id = runtime.open()?;
    let result = plain_on(runtime, id, layout, persistent, dialogue);
    runtime.close(id)?;
    result
}

fn plain_on(
    runtime: &mut Runtime,
    id: SequenceId,
    layout: &Layout,
    persistent: &str,
    dialogue: &Dialogue,
) -> Result<Vec<Verdict>, TalkError> {
    let model = runtime.model().clone();
    let mut go_on = |_| ControlFlow::Continue(());
    runtime.feed(id, &layout.opening(persistent, 0)?, &mut go_on)?;
    for (question, answer) in &dialogue.turns {
        let mut tokens = layout.question(question)?;
        tokens.extend(encode(model.tokenizer(), answer));
        tokens.extend_from_slice(layout.ending()?);
        runtime.feed(id, &tokens, &mut go_on)?;
    }
    let mut verdicts = Vec::new();
    for asked in &dialogue.asked {
        let fork = runtime.fork(id)?;
        let question = layout.question(&asked.question)?;
        let verdict = runtime
            .feed(fork, &question, &mut go_on)
            .map(|_| ())
            .and_then(|()| ask(runtime, fork, &asked.tokens(model.tokenizer())));
        runtime.close(fork)?;
        verdicts.push(verdict?);
    }
    Ok(verdicts)
}

/// The same in a session, and for each question whether the turn that told it was seen.
pub fn session(
    runtime: &mut Runtime,
    sessions: &mut Sessions,
    name: &str,
    persistent: &str,
    dialogue: &Dialogue,
) -> Result<Vec<(Verdict, bool)>, TalkError> {
    let id = sessions.create(runtime, name, persistent, 0)?;
    let result = session_on(runtime, sessions, id, dialogue);
    sessions.suspend(runtime, id)?;
    if sessions.options().dir.is_some() {
        sessions.delete(name)?;
    }
    result
}

fn session_on(
    runtime: &mut Runtime,
    sessions: &mut Sessions,
    id: SessionId,
    dialogue: &Dialogue,
) -> Result<Vec<(Verdict, bool)>, TalkError> {
    let model = runtime.model().clone();
    let mut numbers = Vec::new();
    for (question, answer) in &dialogue.turns {
        numbers.push(sessions.tell(runtime, id, question, answer, 0)?);
    }
    let mut verdicts = Vec::new();
    for asked in &dialogue.asked {
        let question = asked.tokens(model.tokenizer());
        let mut look = |runtime: &mut Runtime, id| ask(runtime, id, &question);
        let (verdict, context) = sessions.peek(runtime, id, &asked.question, &mut look)?;
        let told = numbers[asked.told_in];
        let turns = sessions.turns(id)?;
        let seen = context.recalled.contains(&told)
            || turns
                .iter()
                .any(|turn| turn.number == told && turn.is_visible);
        verdicts.push((verdict, seen));
    }
    Ok(verdicts)
}

#[derive(Debug)]
pub enum TalkError {
    Step(StepError),
    Layout(LayoutError),
    Session(SessionError),
}

impl std::fmt::Display for TalkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TalkError::Step(error) => error.fmt(f),
            TalkError::Layout(error) => error.fmt(f),
            TalkError::Session(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TalkError {}

impl From<StepError> for TalkError {
    fn from(error: StepError) -> TalkError {
        TalkError::Step(error)
    }
}

impl From<LayoutError> for TalkError {
    fn from(error: LayoutError) -> TalkError {
        TalkError::Layout(error)
    }
}

impl From<SessionError> for TalkError {
    fn from(error: SessionError) -> TalkError {
        TalkError::Session(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dialogue_asks_what_it_told() {
        let one = dialogue(1, 0, 30, 120);
        assert_eq!(one, dialogue(1, 0, 30, 120));
        assert_ne!(one, dialogue(1, 1, 30, 120));
        assert_eq!((one.turns.len(), one.asked.len()), (120, 30));
        for asked in &one.asked {
            let told = &one.turns[asked.told_in].0;
            let first = asked.begins.rsplit(' ').next().unwrap();
            assert!(told.ends_with(&format!("{first} {}.", asked.answers[0])));
            assert!(asked.told_in < 30 && asked.answers.len() == 10);
            let same = one
                .turns
                .iter()
                .filter(|t| t.0.contains(&format!(" {first} ")));
            assert_eq!(same.count(), 1, "told once");
        }
    }
}
