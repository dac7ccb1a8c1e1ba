//! An answer on its way to the terminal: a bar while the prompt is read, then the text. Ctrl-C stops it.

use crate::engine::Memory;
use crate::interrupt::Cooperative;
use crate::screen::Screen;
use crate::{out, progress};
use anyhow::Result;
use haversack::engine::runtime::Finish;
use haversack::scheduler::RequestReport;
use haversack::{AnswerEvent, ContextSeen, Error, EventOptions, Prompt, Report};
use std::time::Duration;

/// An answer that has ended.
pub struct Shown {
    pub text: String,
    /// Everything sampled, the ending token included.
    pub tokens: Vec<u32>,
    pub finish: Finish,
    pub report: Report,
}

impl Shown {
    /// How long reading the prompt took.
    pub fn prefill(&self) -> Duration {
        self.report.first_token.unwrap_or(self.report.time)
    }

    pub fn decode(&self) -> Duration {
        self.report.time.saturating_sub(self.prefill())
    }

    /// What the sequence of a completion held at its end.
    pub fn held(&self) -> RequestReport {
        match &self.report.context {
            ContextSeen::Completion(held) => (**held).clone(),
            ContextSeen::Turn { .. } => RequestReport::default(),
        }
    }
}

/// How an answer is shown.
pub struct Showing<'a> {
    /// Presses of Ctrl-C that may be ignored while a long prompt is read.
    pub patience: usize,
    /// Where it is written while it comes; `None`: nowhere.
    pub screen: Option<Screen>,
    pub memory: Option<&'a mut Memory>,
}

/// Sends the prompt, shows what comes, and returns the whole. The engine waits where the terminal does.
pub fn show(prompt: Prompt, showing: Showing<'_>) -> Result<Shown> {
    let Showing {
        patience,
        screen,
        mut memory,
    } = showing;
    let interrupt = Cooperative::begin(patience);
    let mut events = prompt.events(EventOptions {
        max_behind: 64,
        waits: true,
        progress: true,
        ..EventOptions::default()
    })?;
    let mut output = Output {
        screen,
        bytes: 0,
        result: Ok(()),
    };
    let (mut bar, mut tokens, mut is_stopped) = (None, Vec::new(), false);
    loop {
        let (_, event) = events.recv().ok_or(Error::CutOff)?;
        if let Some(memory) = &mut memory {
            memory.poll_event(tokens.len(), matches!(event, AnswerEvent::Token { .. }));
        }
        match event {
            AnswerEvent::PromptRead { done, total } => {
                let bar = bar.get_or_insert_with(|| progress::Count::of_prompt(total));
                if let Some(bar) = bar {
                    bar.set(done);
                }
            }
            AnswerEvent::Token { id, text, .. } => {
                bar = Some(None);
                tokens.push(id);
                output.write(&text);
            }
            AnswerEvent::SessionRead { .. } => {}
            AnswerEvent::Failed(error) => return Err(error.into()),
            AnswerEvent::Finished {
                text,
                finish,
                report,
            } => {
                drop(bar);
                // Half a character, or the beginning of a stop string that never came.
                output.write(text.get(output.bytes..).unwrap_or_default());
                output.end()?;
                return Ok(Shown {
                    text,
                    tokens,
                    finish,
                    report,
                });
            }
        }
        if !is_stopped && (output.result.is_err() || interrupt.raised()) {
            is_stopped = true;
            events.stop();
        }
    }
}

struct Output {
    screen: Option<Screen>,
    /// Of the answer, so far.
    bytes: usize,
    result: Result<()>,
}

impl Output {
    fn write(&mut self, text: &str) {
        self.bytes += text.len();
        let Some(screen) = &mut self.screen else {
            return;
        };
        let shown = screen.show(text);
        if !shown.is_empty() && self.result.is_ok() {
            self.result = out::text(&shown);
        }
    }

    /// What a terminal still needs: the last characters, and its own style back.
    fn end(&mut self) -> Result<()> {
        if let Some(mut screen) = self.screen.take() {
            let rest = screen.end();
            if !rest.is_empty() && self.result.is_ok() {
                self.result = out::text(&rest);
            }
        }
        std::mem::replace(&mut self.result, Ok(()))
    }
}

impl Drop for Output {
    /// An answer that failed leaves no style behind.
    fn drop(&mut self) {
        let _ = self.end();
    }
}
