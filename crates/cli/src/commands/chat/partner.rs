//! What a chat needs whether it is saved or not: the partner that answers, its commands, and an answer on the terminal.

use crate::interrupt::Cooperative;
use crate::{out, progress};
use anyhow::Result;
use haversack::engine::runtime::{GenerateEvent, Generation};
use std::ops::ControlFlow;

/// Warm enough to talk, cool enough for a small model.
pub const TEMPERATURE: f32 = 0.7;
/// Presses of Ctrl-C that an answer may ignore while it reads a long prompt.
const PATIENCE: usize = 3;

/// What answers in a chat: a saved session, or a conversation in memory.
pub trait Partner {
    /// One turn. On an error the conversation is as it was.
    fn answer(&mut self, text: &str) -> Result<()>;

    /// Does what a command says; `false`: not this one.
    fn command(&mut self, slash: &Slash<'_>) -> Result<bool>;
}

#[derive(Debug, PartialEq, Eq)]
pub enum Slash<'a> {
    Help,
    System(Option<&'a str>),
    Clear,
    Stats,
    Sessions,
    Open(Option<&'a str>),
    New(Option<&'a str>),
    Fork(Option<&'a str>),
    Fact(Option<&'a str>),
    State(Option<&'a str>),
    Forget(Option<&'a str>),
    Turns,
    Recall(Option<&'a str>),
    Context,
    Regenerate,
    Edit(Option<&'a str>),
    Quit,
    Unknown(&'a str),
}

/// An answer on its way to the terminal: a bar while the prompt is read, then the text; Ctrl-C stops it.
pub struct Showing {
    interrupt: Cooperative,
    /// The bar of the prompt, once its length is known.
    bar: Option<Option<progress::Count>>,
    writing: Result<()>,
}

impl Showing {
    /// `prompt` is how many tokens will be read, where that is known beforehand.
    pub fn new(prompt: Option<usize>) -> Showing {
        Showing {
            interrupt: Cooperative::begin(PATIENCE),
            bar: prompt.map(progress::Count::of_prompt),
            writing: Ok(()),
        }
    }

    pub fn show(&mut self, event: GenerateEvent<'_>) -> ControlFlow<()> {
        match event {
            GenerateEvent::Prompt { done, total } => {
                let bar = &mut self.bar;
                if let Some(bar) = bar.get_or_insert_with(|| progress::Count::of_prompt(total)) {
                    bar.set(done);
                }
            }
            GenerateEvent::Token { text, .. } => {
                self.bar = Some(None);
                if !text.is_empty() && self.writing.is_ok() {
                    self.writing = out::text(text);
                }
            }
        }
        if self.writing.is_err() || self.interrupt.raised() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Whether all of it could be written. Ctrl-C means what it meant before.
    pub fn end(self) -> Result<()> {
        self.writing
    }
}

/// Numbers of the last answer.
pub struct Last {
    pub prompt: usize,
    pub reused: usize,
    pub generation: Generation,
}
