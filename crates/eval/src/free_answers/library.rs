//! Talks in sessions of the library, as programs have them.

use super::choices::TurnChoice;
use crate::long_talk::{LongQuestion, LongTalk};
use crate::talk::Exchange;
use haversack::scheduler::Request;
use haversack::session::SessionRead;
use haversack::{ContextSeen, Conversation, Engine, Error};
use haversack_memory::clock::now_ms;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Tokens of an answer at most.
pub const ANSWER_TOKENS: usize = 48;

/// Turns that [`TurnChoice::EncoderEight`] shows beside the latest.
const EIGHT: usize = 8;

/// Budget of an engine: what is measured is what an answer sees, which the capacity bounds.
const MEMORY_BYTES: u64 = 4 << 30;

/// The session that a question is asked in.
const COPY: &str = "question";

const SYSTEM: &str = "You are a helpful assistant with a good memory.";
/// Without an offer of "not mentioned": a model of 1.5B takes it for whatever is asked (docs/measured/recall.md).
const INSTRUCTION: &str = "Answer in a few words from what I told you.";

/// Where a model is told how to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionPlace {
    /// Behind the question. Turns are ranked by its words, too.
    Question,
    /// At the beginning of the session.
    System,
}

impl InstructionPlace {
    /// What the session of a talk begins with.
    pub fn system(self) -> String {
        match self {
            InstructionPlace::Question => SYSTEM.to_owned(),
            InstructionPlace::System => format!("{SYSTEM} {INSTRUCTION}"),
        }
    }

    /// The message with a question.
    pub fn message(self, question: &str) -> String {
        match self {
            InstructionPlace::Question => format!("{question} {INSTRUCTION}"),
            InstructionPlace::System => question.to_owned(),
        }
    }
}

/// The models and folders that talks are had with.
#[derive(Clone, Debug)]
pub struct TalkEngine {
    pub model: PathBuf,
    pub encoder: Option<PathBuf>,
    /// Of the session files, which another run goes on with.
    pub folder: PathBuf,
    /// Of what is made of models once.
    pub cache: PathBuf,
    pub instruction: InstructionPlace,
    /// That compute; one for each core unless said.
    pub threads: Option<usize>,
}

/// What was given to a question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenAnswer {
    pub text: String,
    /// (turn of the talk): the answer saw it.
    pub is_shown: Vec<bool>,
    /// That the answer saw, the question and what the session begins with included.
    pub tokens: u64,
    pub first: Duration,
    pub whole: Duration,
}

/// What talks are told to, and asked of.
pub trait TalkListener {
    type Error;

    /// Has a session of this name that heard the turns, and nothing else.
    fn hear(&mut self, name: &str, turns: &[Exchange]) -> Result<(), Self::Error>;

    /// Asks at the end of a talk that was heard, which is as it was afterwards.
    fn ask(
        &mut self,
        name: &str,
        talk: &LongTalk,
        asked: &LongQuestion,
    ) -> Result<GivenAnswer, Self::Error>;
}

/// Sessions of an engine in which turns are chosen in one way.
pub struct LibraryTalks {
    engine: Engine,
    choice: TurnChoice,
    instruction: InstructionPlace,
    /// Of the turns of the talk that was asked about last.
    embedded: Option<(String, Vec<Vec<f32>>)>,
}

impl TalkEngine {
    pub fn start(&self, choice: TurnChoice, capacity: usize) -> Result<LibraryTalks, Error> {
        let mut engine = Engine::open(&self.model)
            .memory(MEMORY_BYTES)
            .cache_dir(&self.cache)
            .sessions(&self.folder)
            .session_settings(choice.settings(capacity));
        if let Some(encoder) = self.encoder.as_ref().filter(|_| choice.has_encoder()) {
            engine = engine.encoder(encoder);
        }
        if let Some(threads) = self.threads {
            engine = engine.threads(threads);
        }
        Ok(LibraryTalks {
            engine: engine.start()?,
            choice,
            instruction: self.instruction,
            embedded: None,
        })
    }
}

impl LibraryTalks {
    /// Turns that the question is told beforehand.
    fn recalled(
        &mut self,
        name: &str,
        talk: &LongTalk,
        asked: &LongQuestion,
    ) -> Result<Vec<usize>, Error> {
        match self.choice {
            TurnChoice::Oracle => Ok(asked.evidence.clone()),
            TurnChoice::EncoderEight => {
                let is_same = |(of, _): &&(String, Vec<Vec<f32>>)| of == name;
                if self.embedded.as_ref().filter(is_same).is_none() {
                    let turns = talk.turns.iter();
                    // As a session embeds a turn.
                    let embed = |(said, answered): &Exchange| {
                        self.engine.embed(&format!("{said}\n{answered}"))
                    };
                    let turns: Result<Vec<_>, Error> = turns.map(embed).collect();
                    self.embedded = Some((name.to_owned(), turns?));
                }
                let turns = self.embedded.iter().flat_map(|(_, turns)| turns);
                let question = self.engine.embed(&asked.question)?;
                let similarity = |turn: &Vec<f32>| -> f32 {
                    turn.iter().zip(&question).map(|(a, b)| a * b).sum()
                };
                let mut order: Vec<(f32, usize)> = turns.map(similarity).zip(0..).collect();
                order.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
                Ok(order.into_iter().take(EIGHT).map(|(_, i)| i).collect())
            }
            _ => Ok(Vec::new()),
        }
    }

    fn ask_in(
        &self,
        copy: &Conversation,
        turns: usize,
        asked: &LongQuestion,
        recalled: &[usize],
    ) -> Result<GivenAnswer, Error> {
        for &turn in recalled {
            copy.recall(turn as u64)?;
        }
        let start = Instant::now();
        let message = self.instruction.message(&asked.question);
        let answer = copy.say(message).temperature(0.0);
        let mut answer = answer.max_tokens(ANSWER_TOKENS).send()?;
        let text = answer.text()?;
        let whole = start.elapsed();
        let report = answer.report();
        let mut is_shown = vec![false; turns];
        for seen in copy.view(usize::MAX)?.turns {
            let turn = usize::try_from(seen.turn.number).ok();
            if let Some(is_shown) = turn.and_then(|turn| is_shown.get_mut(turn)) {
                *is_shown = seen.turn.is_visible;
            }
        }
        Ok(GivenAnswer {
            text,
            is_shown,
            tokens: match &report.context {
                ContextSeen::Turn { context, .. } => context.kept,
                ContextSeen::Completion(_) => 0,
            },
            first: report.first_token.unwrap_or(whole),
            whole,
        })
    }
}

impl TalkListener for LibraryTalks {
    type Error = Error;

    fn hear(&mut self, name: &str, turns: &[Exchange]) -> Result<(), Error> {
        let client = self.engine.client();
        if client.open(name).wait()? {
            let has_all = client.view(name, 0).wait()?.stats.turns == turns.len() as u64;
            if has_all {
                return Ok(());
            }
            client.delete(name).wait()?;
        }
        let (texts, now) = (client.texts()?, now_ms());
        let read = SessionRead::Create {
            opening: texts.opening("", &self.instruction.system(), now)?,
            history: texts.history(turns, &mut || ControlFlow::Continue(()))?,
        };
        client.read_blocking(Request::read(name, read, now))?;
        client.suspend(name).wait()
    }

    fn ask(
        &mut self,
        name: &str,
        talk: &LongTalk,
        asked: &LongQuestion,
    ) -> Result<GivenAnswer, Error> {
        let recalled = self.recalled(name, talk, asked)?;
        let heard = self.engine.conversation(name).open()?;
        // Of a run that was cut off.
        self.engine.client().make_way(COPY).wait()?;
        let copy = heard.fork(COPY)?;
        let given = self.ask_in(&copy, talk.turns.len(), asked, &recalled);
        copy.delete()?;
        given
    }
}
