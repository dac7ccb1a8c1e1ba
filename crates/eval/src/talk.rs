//! Long conversations: facts told early, many turns about other things, and questions late.
//!
//! ```text
//! user       My dog is called Rex.                             ┐ facts of different kinds, each told once
//! assistant  I see. Your dog is called Rex.                    ┘
//! user       Can you tell me something about bridges?          ┐ sixty turns and more about other things,
//! assistant  A bridge carries a road over a river. …           ┘ four times what memory holds
//! user       What is my dog called?
//! assistant  Your dog is called ▮                              ten answers are judged, all of them names of dogs
//! ```
//!
//! The same dialogue is had with a full cache, with a window that slides, with two streams, and with two streams that
//! recall. The answer's beginning is given, so that a small model is asked what it remembers and not how it talks.

use crate::choice::{Question, Verdict, ask, encode};
use crate::dice::Dice;
use haversack_conversations::session::layout::{ChatLayout, LayoutError};
use haversack_conversations::session::{SessionError, SessionId, Sessions};
use haversack_engine::runtime::{Runtime, SequenceId, StepError};
use haversack_text::tokenizer::Tokenizer;
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};

/// A question, and the answer that was given.
pub type Exchange = (String, String);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dialogue {
    pub turns: Vec<Exchange>,
    pub asked: Vec<DialogueQuestion>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialogueQuestion {
    pub question: String,
    /// How the answer begins.
    pub begins: String,
    /// The right one first.
    pub answers: Vec<String>,
    /// The turn that told it.
    pub told_in: usize,
}

/// One thing a person may tell of, once in a dialogue: told, asked, how the answer begins, and what it may be. No answer
/// of one kind is an answer of another, and no topic speaks of one.
struct Kind {
    told: &'static str,
    question: &'static str,
    begins: &'static str,
    /// With blanks between them.
    answers: &'static str,
}

const KINDS: [Kind; 14] = [
    Kind {
        told: "My dog is called",
        question: "What is my dog called?",
        begins: "Your dog is called",
        answers: "Rex Bella Max Luna Rocky Daisy Buddy Milo Toby Coco",
    },
    Kind {
        told: "The city I was born in is",
        question: "Which city was I born in?",
        begins: "The city you were born in is",
        answers: "Boston Denver Chicago Paris London Berlin Madrid Rome Dublin Vienna",
    },
    Kind {
        told: "The name of my sister is",
        question: "What is the name of my sister?",
        begins: "The name of your sister is",
        answers: "Emma Sarah Laura Anna Julia Karen Susan Alice Helen Rachel",
    },
    Kind {
        told: "The instrument I play is the",
        question: "Which instrument do I play?",
        begins: "The instrument you play is the",
        answers: "piano violin guitar flute cello trumpet harp clarinet organ banjo",
    },
    Kind {
        told: "The colour of my car is",
        question: "What is the colour of my car?",
        begins: "The colour of your car is",
        answers: "red blue black yellow purple orange silver brown pink gray",
    },
    Kind {
        told: "The dish I like best is",
        question: "Which dish do I like best?",
        begins: "The dish you like best is",
        answers: "pizza soup sushi pasta salad curry steak rice lasagna stew",
    },
    Kind {
        told: "By profession I am a",
        question: "What am I by profession?",
        begins: "By profession you are a",
        answers: "nurse teacher lawyer pilot farmer dentist plumber painter baker judge",
    },
    Kind {
        told: "The month of my birthday is",
        question: "In which month is my birthday?",
        begins: "The month of your birthday is",
        answers: "January February March April June July August September October November",
    },
    Kind {
        told: "The sport I do every week is",
        question: "Which sport do I do every week?",
        begins: "The sport you do every week is",
        answers: "tennis football swimming golf boxing hockey rowing judo cycling archery",
    },
    Kind {
        told: "The language I am learning is",
        question: "Which language am I learning?",
        begins: "The language you are learning is",
        answers: "Spanish French German Russian Japanese Arabic Polish Greek Turkish Swedish",
    },
    Kind {
        told: "The country my grandmother came from is",
        question: "Which country did my grandmother come from?",
        begins: "The country your grandmother came from is",
        answers: "Italy Ireland Norway Mexico India China Brazil Egypt Cuba Iran",
    },
    Kind {
        told: "The name of my boss is",
        question: "What is the name of my boss?",
        begins: "The name of your boss is",
        answers: "Peter Henry Oscar Frank George Louis Simon Victor Walter Arthur",
    },
    Kind {
        told: "The code of my safe is",
        question: "What is the code of my safe?",
        begins: "The code of your safe is",
        answers: "4821 7390 1562 9047 3618 2754 8139 5926 6403 1875",
    },
    Kind {
        told: "The drink I order in a bar is",
        question: "Which drink do I order in a bar?",
        begins: "The drink you order in a bar is",
        answers: "beer wine whiskey rum gin vodka lemonade cider cola milk",
    },
];
/// What may be asked about, and what is said of it.
const TOPICS: [&str; 12] = [
    "bridges: A bridge carries a road or a railway over a river or a valley.",
    "bread: Bread is made of flour, water and yeast.",
    "clouds: Clouds are made of tiny drops of water.",
    "chess: Chess is played by two people on a board of sixty-four squares.",
    "rivers: Rivers begin in the hills and run down to the sea.",
    "clocks: A clock tells the time with hands or with digits.",
    "gardens: A garden needs sun, water and patience.",
    "letters: People wrote letters long before there were telephones.",
    "mountains: Mountains rise where plates of rock push against each other.",
    "shoes: Shoes protect the feet.",
    "music: Music is made of rhythm and melody.",
    "trains: Trains run on rails and can carry many people at once.",
];
const ASK: [&str; 6] = [
    "Can you tell me something about",
    "What do you know about",
    "Please say a few words about",
    "I would like to hear more about",
    "Let us talk about",
    "Explain to a child what is special about",
];

/// Small talk: every topic asked for in every way.
pub fn small_talk() -> Vec<Exchange> {
    let topics = TOPICS.iter().filter_map(|topic| topic.split_once(": "));
    let about =
        |(topic, text): (&str, &str)| ASK.map(|ask| (format!("{ask} {topic}?"), text.to_owned()));
    topics.flat_map(about).collect()
}

/// The exchanges that say nothing of what dialogues are asked about.
pub fn apart(exchanges: Vec<Exchange>) -> Vec<Exchange> {
    let silent = |(question, answer): &Exchange| !speaks(question) && !speaks(answer);
    exchanges.into_iter().filter(silent).collect()
}

/// Whether an answer of any kind is in the text.
fn speaks(text: &str) -> bool {
    let mut words = text.split(|c: char| !c.is_alphanumeric());
    words.any(|word| {
        let mut answers = KINDS.iter().flat_map(|kind| kind.answers.split(' '));
        answers.any(|answer| answer.eq_ignore_ascii_case(word))
    })
}

/// A dialogue of `turns` turns with `facts` facts of different kinds among the first, the rest
/// of them from `filler`.
pub fn dialogue(
    seed: u64,
    number: usize,
    facts: usize,
    turns: usize,
    filler: &[Exchange],
) -> Dialogue {
    let mut dice = Dice::new(seed, &[0x7a1c, number as u64]);
    let mut kinds = std::array::from_fn::<usize, { KINDS.len() }, _>(|i| i);
    dice.shuffle(&mut kinds);
    let mut dialogue = Dialogue::default();
    for kind in kinds.iter().take(facts).map(|&i| &KINDS[i]) {
        let mut answers: Vec<String> = kind.answers.split(' ').map(str::to_owned).collect();
        let first = dice.below(answers.len());
        answers.rotate_left(first);
        let told_in = dialogue.turns.len();
        dialogue.turns.push((
            format!("{} {}.", kind.told, answers[0]),
            format!("I see. {} {}.", kind.begins, answers[0]),
        ));
        dialogue.asked.push(DialogueQuestion {
            question: kind.question.to_owned(),
            begins: kind.begins.to_owned(),
            answers,
            told_in,
        });
    }
    while dialogue.turns.len() < turns && !filler.is_empty() {
        let turn = &filler[dice.below(filler.len())];
        dialogue.turns.push(turn.clone());
    }
    dialogue
}

impl DialogueQuestion {
    fn tokens(&self, tokenizer: &Tokenizer) -> Question {
        Question {
            ask: encode(tokenizer, &self.begins),
            answers: (self.answers.iter())
                .map(|answer| encode(tokenizer, &format!(" {answer}.")))
                .collect(),
        }
    }
}

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heard {
    pub verdict: Verdict,
    /// The answer, freely given, has the right word.
    pub said: bool,
    /// The turn that told it was seen.
    pub seen: bool,
    /// All of the persistent text was seen.
    pub instructed: bool,
    /// Tokens of the dialogue before the question.
    pub position: u64,
}

/// Of a freely given answer.
const ANSWER_TOKENS: usize = 16;

/// Every question of a dialogue, on a plain sequence: a full cache, or whatever the runtime's policy leaves of it.
pub fn plain(
    runtime: &mut Runtime,
    layout: &ChatLayout,
    persistent: &str,
    dialogue: &Dialogue,
) -> Result<Vec<Heard>, TalkError> {
    let id = runtime.open()?;
    let result = plain_on(runtime, id, layout, persistent, dialogue);
    runtime.close(id)?;
    result
}

fn plain_on(
    runtime: &mut Runtime,
    id: SequenceId,
    layout: &ChatLayout,
    persistent: &str,
    dialogue: &Dialogue,
) -> Result<Vec<Heard>, TalkError> {
    let model = runtime.model().clone();
    let mut go_on = |_| ControlFlow::Continue(());
    let mut tokens = layout.opening(persistent, 0)?;
    let opening = 0..tokens.len() as u64;
    let mut told = Vec::new();
    for (question, answer) in &dialogue.turns {
        let from = tokens.len() as u64;
        tokens.extend(layout.question(question)?);
        tokens.extend(encode(model.tokenizer(), answer));
        tokens.extend_from_slice(layout.ending()?);
        told.push(from..tokens.len() as u64);
    }
    runtime.feed(id, &tokens, &mut go_on)?;
    let mut heard = Vec::new();
    for asked in &dialogue.asked {
        let fork = runtime.fork(id)?;
        let question = layout.question(&asked.question)?;
        let found = runtime
            .feed(fork, &question, &mut go_on)
            .map(|_| ())
            .and_then(|()| hear(runtime, fork, asked));
        let kept = |range: &Range<u64>| is_kept(runtime, fork, range);
        let (seen, instructed) = (kept(&told[asked.told_in]), kept(&opening));
        runtime.close(fork)?;
        let (verdict, said) = found?;
        heard.push(Heard {
            verdict,
            said,
            seen: seen?,
            instructed: instructed?,
            position: tokens.len() as u64,
        });
    }
    Ok(heard)
}

/// Positions that a query sees, in the first layer.
pub fn seen(runtime: &Runtime, id: SequenceId) -> Result<Vec<Range<u64>>, StepError> {
    let store = runtime.store();
    let mut hidden: VecDeque<Range<u64>> = store.hidden(id).iter().cloned().collect();
    let mut seen = Vec::new();
    for block in &store.snapshot(id)?.blocks {
        let mut at = block.first_position;
        let end = at + u64::from(block.rows);
        while at < end {
            while hidden.front().is_some_and(|h| h.end <= at) {
                hidden.pop_front();
            }
            let from = hidden.front().map_or(end, |h| h.start.clamp(at, end));
            if at < from {
                seen.push(at..from);
            }
            at = hidden.front().map_or(end, |h| h.end.clamp(from, end));
        }
    }
    Ok(seen)
}

/// Whether these positions have rows that a query sees.
fn is_kept(runtime: &Runtime, id: SequenceId, range: &Range<u64>) -> Result<bool, StepError> {
    Ok(overlap(&seen(runtime, id)?, range) == range.end - range.start)
}

/// How many positions of a range are among these.
pub fn overlap(seen: &[Range<u64>], range: &Range<u64>) -> u64 {
    let shared = |s: &Range<u64>| (s.start.max(range.start), s.end.min(range.end));
    let shared = seen.iter().map(shared);
    shared.map(|(from, to)| to.saturating_sub(from)).sum()
}

/// The freely given answer and the judged ones, right behind the question.
fn hear(
    runtime: &mut Runtime,
    id: SequenceId,
    asked: &DialogueQuestion,
) -> Result<(Verdict, bool), StepError> {
    let model = runtime.model().clone();
    let fork = runtime.fork(id)?;
    let answer = greedy(runtime, fork);
    runtime.close(fork)?;
    let text = model.tokenizer().decode(&answer?).unwrap_or_default();
    let mut words = text.split(|c: char| !c.is_alphanumeric());
    let said = words.any(|word| word.eq_ignore_ascii_case(&asked.answers[0]));
    let verdict = ask(runtime, id, &asked.tokens(model.tokenizer()))?;
    Ok((verdict, said))
}

/// The likeliest tokens, from the logits of the last step on, up to the end of a sentence.
fn greedy(runtime: &mut Runtime, id: SequenceId) -> Result<Vec<u32>, StepError> {
    let mut answer = Vec::new();
    while answer.len() < ANSWER_TOKENS {
        let logits = runtime.logits();
        let likeliest = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
        let token = likeliest.unwrap_or_default() as u32;
        if runtime.model().tokenizer().is_end(token) {
            break;
        }
        answer.push(token);
        let text = runtime.model().tokenizer().decode(&[token]);
        if text.is_ok_and(|text| text.contains(['.', '\n'])) {
            break;
        }
        runtime.decode(id, token)?;
    }
    Ok(answer)
}

/// The same in a session.
pub fn session(
    runtime: &mut Runtime,
    sessions: &mut Sessions,
    name: &str,
    persistent: &str,
    dialogue: &Dialogue,
) -> Result<Vec<Heard>, TalkError> {
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
) -> Result<Vec<Heard>, TalkError> {
    let opening = 0..runtime.position(sessions.sequence(id)?)?;
    let mut numbers = Vec::new();
    for (question, answer) in &dialogue.turns {
        numbers.push(sessions.tell(runtime, id, question, answer, 0)?);
    }
    let mut heard = Vec::new();
    for asked in &dialogue.asked {
        let mut look = |runtime: &mut Runtime, id| {
            Ok((hear(runtime, id, asked)?, is_kept(runtime, id, &opening)))
        };
        let (((verdict, said), instructed), context) =
            sessions.peek(runtime, id, &asked.question, &mut look)?;
        let told = numbers[asked.told_in];
        let mut turns = sessions.turns(id)?.into_iter();
        let seen = context.recalled.contains(&told)
            || turns.any(|turn| turn.number == told && turn.is_visible);
        heard.push(Heard {
            verdict,
            said,
            seen,
            instructed: instructed?,
            position: runtime.position(sessions.sequence(id)?)?,
        });
    }
    Ok(heard)
}

#[derive(Debug, thiserror::Error)]
pub enum TalkError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Session(#[from] SessionError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dialogue_asks_what_it_told() {
        let make = |number| dialogue(1, number, 12, 120, &small_talk());
        let one = make(0);
        assert_eq!(one, make(0));
        assert_ne!(one, make(1));
        assert_eq!((one.turns.len(), one.asked.len()), (120, 12));
        for asked in &one.asked {
            let (told, heard) = &one.turns[asked.told_in];
            let right = format!(" {}.", asked.answers[0]);
            assert!(told.ends_with(&right) && heard.ends_with(&right));
            assert!(asked.told_in < 12 && asked.answers.len() == 10);
        }
    }

    /// Otherwise a fact would be told twice, or a wrong answer be heard as often as the right one.
    #[test]
    fn answers_are_said_in_one_place_only() {
        let answers: Vec<&str> = KINDS
            .iter()
            .flat_map(|kind| kind.answers.split(' '))
            .collect();
        let mut once = answers.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), answers.len());
        for kind in &KINDS {
            for text in [kind.told, kind.question, kind.begins] {
                assert!(!speaks(text), "{text}");
            }
        }
        assert_eq!(apart(small_talk()), small_talk());
        let spoken = vec![("My cat?".into(), "It is RED, I see.".into())];
        assert_eq!(apart(spoken), []);
    }
}
