//! The script, a telling of it, and what a session is in one number.

use crate::World;
pub use crate::common::session::try_say as say;
use haversack_conversations::session::{
    Answer, RebuildProgress, SessionError, SessionId, Sessions,
};
use haversack_engine::Runtime;
use std::hash::{DefaultHasher, Hash, Hasher};

pub const OPENING: &str = "You know things.";

/// More than the stream has room for beside the rest.
const TOO_MUCH: &str = "The first boat leaves at six. The second boat leaves at seven. The third boat leaves at eight. \
    Nobody sails at night. The harbour is closed in winter. The captain is called Anna. The mate is called Bert. \
    Bread is sold in the hall. Fish is sold on Fridays.";

/// One step. Each changes what the sessions are, so that they tell how far they came.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    Create,
    Say(&'static str),
    Fact(&'static str),
    Supersede(u64, &'static str),
    Revoke(u64),
    Retract,
    /// A turn, counted back from the last.
    Pin(u64, bool),
    /// A turn to recall, and a question.
    Recall(u64, &'static str),
    Fork,
    /// In the fork.
    SayThere(&'static str),
    /// What holds now, in place of what did.
    State(&'static str),
    /// The persistent stream has too much, is condensed and swapped.
    Condense,
}

use Op::*;

pub const SCRIPT: &[Op] = &[
    Create,
    Say("my cat is called Miso"),
    Say("the garden has seven apple trees"),
    Fact("The shop opens at nine."),
    Say("tell me about trains"),
    Say("and about ships at sea"),
    Pin(3, true),
    Say("what colour is the sky"),
    Say("how many apple trees has the garden"),
    Supersede(1, "The shop opens at ten."),
    Say("the boat leaves at nine"),
    Say("what is my cat called"),
    Retract,
    Say("which train leaves first"),
    Say("the sky is full of ships"),
    Recall(1, "which trees"),
    Fork,
    Say("who sails the boat"),
    SayThere("who sails the ship"),
    Fact("Trains are late on Mondays."),
    Say("is the cat in the garden"),
    SayThere("my cat is called Miso"),
    Pin(3, false),
    State("room: kitchen"),
    Say("my dog is called Rex"),
    Say("the garden has four pear trees"),
    Revoke(3),
    State("room: garden"),
    Say("tell me about boats"),
    SayThere("what is my cat called"),
    Say("what is my dog called"),
    Say("how many pear trees has the garden"),
    Recall(4, "the sea again"),
    State("room: hall"),
    Say("and the sky again"),
    Say("good night"),
    Fact(TOO_MUCH),
    Condense,
    State("room: attic"),
    Say("when does the second boat leave"),
];

/// The steps that a disk without room changes nothing of: condensing is given up there.
pub const BEFORE_CONDENSING: &[Op] = SCRIPT.split_at(SCRIPT.len() - 4).0;

/// Steps for models that take their time.
pub const SHORT: &[Op] = &[
    Create,
    Say("My cat is called Miso."),
    Fact("The shop opens at nine."),
    Say("The garden has seven apple trees."),
    Say("Tell me about trains."),
    Supersede(1, "The shop opens at ten."),
    Say("What is my cat called?"),
    Fork,
    SayThere("When does the shop open?"),
    Retract,
    Say("How many apple trees has the garden?"),
    State("room: kitchen"),
    Say("And about ships at sea?"),
    Recall(0, "Good night."),
];

/// What a step said and left behind.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    pub tokens: Vec<u32>,
    pub state: u64,
}

/// Two sessions, of which the second begins in the middle.
pub struct Telling {
    pub runtime: Runtime,
    pub sessions: Sessions,
    pub main: Option<SessionId>,
    pub fork: Option<SessionId>,
}

impl Telling {
    pub fn new(world: &World) -> Telling {
        let runtime = world.runtime();
        Telling {
            sessions: world.sessions(&runtime),
            runtime,
            main: None,
            fork: None,
        }
    }

    /// What the files have. Whatever cannot be resumed must not have been acknowledged.
    pub fn resumed(world: &World) -> (Telling, Vec<String>) {
        let mut telling = Telling::new(world);
        let mut refused = Vec::new();
        let mut resume = |name| {
            let found = telling.sessions.resume(&mut telling.runtime, name);
            found.map_err(|e| refused.push(e.to_string())).ok()
        };
        telling.main = resume("main");
        telling.fork = resume("fork");
        (telling, refused)
    }

    pub fn step(&mut self, op: Op) -> Told {
        let answer = self.try_step(op).unwrap_or_else(|e| panic!("{op:?}: {e}"));
        Told {
            tokens: answer.map(|a| a.tokens).unwrap_or_default(),
            state: self.state(),
        }
    }

    pub fn try_step(&mut self, op: Op) -> Result<Option<Answer>, SessionError> {
        let (sessions, runtime) = (&mut self.sessions, &mut self.runtime);
        if let Create = op {
            self.main = Some(sessions.create(runtime, "main", OPENING, 5)?);
            return Ok(None);
        }
        let main = self.main.unwrap();
        match op {
            Create => {}
            Say(text) => return say(sessions, runtime, main, text).map(Some),
            SayThere(text) => return say(sessions, runtime, self.fork.unwrap(), text).map(Some),
            Recall(turn, text) => {
                sessions.recall(main, turn)?;
                return say(sessions, runtime, main, text).map(Some);
            }
            Fact(text) => drop(sessions.add_fact(runtime, main, text, 6)?),
            Supersede(fact, text) => drop(sessions.supersede(runtime, main, fact, text, 7)?),
            Revoke(fact) => sessions.revoke(runtime, main, fact)?,
            Retract => drop(sessions.retract(runtime, main)?),
            Pin(back, is_pinned) => {
                let turns = sessions.turns(main)?;
                // What is pinned is found again when it is let go.
                let turn = match is_pinned {
                    true => turns.len().checked_sub(back as usize).map(|i| &turns[i]),
                    false => turns.iter().find(|t| t.is_pinned),
                };
                let number = turn.unwrap().number;
                sessions.pin(runtime, main, number, is_pinned)?;
            }
            State(text) => {
                let turns = sessions.turns(main)?;
                let old = turns.iter().find(|t| t.is_state).map(|t| t.number);
                sessions.tell_state(runtime, main, text, 8, old)?;
            }
            Condense => {
                let done = sessions.settle(runtime, main)?;
                assert!(matches!(done, RebuildProgress::Swapped(_)), "{done:?}");
            }
            Fork => self.fork = Some(sessions.fork(runtime, main, "fork")?),
        }
        Ok(None)
    }

    /// Everything the sessions say about themselves, every token of every turn included.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for id in [self.main, self.fork].into_iter().flatten() {
            let mut stats = self.sessions.stats(&self.runtime, id).unwrap();
            stats.file_bytes = 0;
            // Said once, and not kept.
            stats.condensed = None;
            text.push_str(&format!("{stats:?}\n"));
            for fact in self.sessions.facts(id).unwrap() {
                text.push_str(&format!("{fact:?}\n"));
            }
            for turn in self.sessions.turns(id).unwrap() {
                let view = self.sessions.turn(id, turn.number).unwrap();
                text.push_str(&format!("{view:?}\n"));
            }
        }
        text
    }

    pub fn state(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.describe().hash(&mut hasher);
        hasher.finish()
    }
}
