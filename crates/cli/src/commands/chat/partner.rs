//! What a chat needs whether it is saved or not: the partner that answers, its commands, and an answer on the terminal.

use super::lines::Print;
use crate::answer::{self, Showing, Shown};
use crate::engine::per_second;
use crate::out;
use crate::screen::Screen;
use anyhow::Result;
use haversack::Prompt;
use haversack::engine::Model;
use haversack::engine::runtime::Finish;
use haversack::engine::sample::SampleOptions;
use std::sync::Arc;

/// Presses of Ctrl-C that an answer may ignore while it reads a long prompt.
const PATIENCE: usize = 3;

/// What answers in a chat: a saved session, or a conversation in memory.
pub trait Partner {
    /// One turn. On an error the conversation is as it was.
    fn answer(&mut self, text: &str) -> Result<()>;

    /// Does what a command says; `false`: not this one.
    fn command(&mut self, slash: &Slash<'_>) -> Result<bool>;

    /// Without its markers; `None`: nothing was answered yet.
    fn last_answer(&self) -> Result<Option<String>>;

    /// The whole conversation as Markdown.
    fn page(&self) -> Result<String>;

    fn model(&self) -> &Arc<Model>;

    /// The chat waits for a line. What is found meanwhile is printed.
    fn waits(&mut self, _printer: &mut dyn FnMut() -> Option<Print>) {}

    /// It has one.
    fn goes_on(&mut self) {}
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
    Pin(Option<&'a str>),
    Exclude(Option<&'a str>),
    Context,
    Regenerate,
    Edit(Option<&'a str>),
    File(Option<&'a str>),
    /// With `!` a file that is there is replaced.
    Copy(Option<&'a str>, bool),
    Export(Option<&'a str>, bool),
    Search(Option<&'a str>),
    Quit,
    Unknown(&'a str),
}

/// The answer to a prompt, shown as it comes.
pub fn show(prompt: Prompt, is_plain: bool) -> Result<Shown> {
    let showing = Showing {
        patience: PATIENCE,
        screen: Some(Screen::of_stdout(is_plain)),
        memory: None,
    };
    answer::show(prompt, showing)
}

/// How the tokens of one answer were sampled: each from a seed of its own, so that asking again gives another answer.
pub fn next_sample(sample: &mut SampleOptions) -> SampleOptions {
    let this = sample.clone();
    sample.seed = sample.seed.wrapping_add(1);
    this
}

/// The speed of an answer, and of the prompt it read.
pub fn speed(answer: &Shown, prompt: &str, read: usize) -> String {
    let tokens = answer.tokens.len();
    let decode = per_second(tokens.saturating_sub(1), answer.decode());
    let prefill = per_second(read, answer.prefill());
    format!("{tokens} tokens at {decode:.1}/s; prompt {prompt} at {prefill:.1}/s; ")
}

/// Why an answer ended, where that is worth a line. `full_at`: tokens of a context that is full.
pub fn note_end(finish: Finish, full_at: Option<usize>) {
    match (finish, full_at) {
        (Finish::Stop, _) => {}
        (Finish::Repetition, _) => {
            out::note("(stopped: the answer repeated itself; --stop-repetition off lets it go on)")
        }
        (Finish::Cancelled, _) => out::note("(stopped)"),
        (Finish::Length, Some(room)) => out::note(&format!(
            "(the context of {room} tokens is full; /clear starts over)"
        )),
        (Finish::Length, None) => {
            out::note("(stopped at the token limit of an answer; set it with -n)")
        }
    }
}
