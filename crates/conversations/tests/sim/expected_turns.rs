//! Expected sessions: what was done to each, and the tokens it gives when the same is done to it alone.
//!
//! Two checks. A session from which nothing was ever evicted is a list of tokens: it is made here, from the texts and the
//! template, and computed at once. Otherwise the same steps are replayed in a session alone in a process without a budget.
//! Nothing else in the world may make a difference: other requests, budgets, forks, questions without an answer, killed
//! processes.

use crate::models::{Models, fingerprint};
use crate::reference_request::TokenHash;
use crate::seed_settings::SeedSettings;
use haversack_conversations::session::layout::ChatLayout;
use haversack_conversations::session::{AskedQuestion, SessionId, Sessions, TurnAnswer};
use haversack_engine::runtime::{Finish, GenerateEvent, GenerateOptions, GenerateTimes, Runtime};
use haversack_engine::sample::{SampleOptions, Sampler};
use std::ops::ControlFlow;
use std::path::Path;

/// A saved turn.
#[derive(Clone, Debug)]
pub struct ExpectedTurn {
    pub text: String,
    pub sample: SampleOptions,
    pub options: GenerateOptions,
    pub tokens: Vec<TokenHash>,
    pub finish: Finish,
    /// Tokens of turns that were only on disk.
    pub spilled: u64,
}

/// A change of a session that succeeded.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a handful of them in a test")]
pub enum SessionOp {
    Say(ExpectedTurn),
    Fact(String),
    Supersede(u64, String),
    Revoke(u64),
    Retract,
    Pin(u64, bool),
    Recall(u64),
    /// The process was killed, and the session read from its file.
    Reopen,
}

#[derive(Clone, Debug)]
pub struct ExpectedSession {
    pub name: String,
    pub opening: String,
    pub ops: Vec<SessionOp>,
    pub exists: bool,
    /// A disk failure, or a fact added without memory for it, lost some of it: its answers cannot be predicted any more.
    pub is_lossy: bool,
    /// Turns were hidden or evicted at some time.
    pub had_evictions: bool,
    /// The last change is not in its file.
    pub is_unsaved: bool,
    pub was_unsaved: bool,
    /// At least one change is.
    pub was_saved: bool,
}

impl ExpectedSession {
    pub fn new(name: String, opening: &str) -> ExpectedSession {
        ExpectedSession {
            name,
            opening: opening.to_owned(),
            ops: Vec::new(),
            exists: true,
            is_lossy: false,
            had_evictions: false,
            is_unsaved: false,
            was_unsaved: false,
            was_saved: false,
        }
    }

    /// Adds a saved turn.
    pub fn said(&mut self, turn: ExpectedTurn, answer: &TurnAnswer) {
        let context = &answer.context;
        let moved = context.masked + context.spilled + context.evicted + context.recomputed;
        self.had_evictions |= moved > 0 || !context.recalled.is_empty();
        self.saved(context.unsaved.is_none());
        // Turns evicted while the file cannot be written are lost, wholly or but for their tokens.
        self.is_lossy |= self.was_unsaved && moved > 0;
        self.ops.push(SessionOp::Say(turn));
    }

    /// Drops recalls for the next turn.
    pub fn forget_recalls(&mut self) {
        let last = self
            .ops
            .iter()
            .rposition(|op| matches!(op, SessionOp::Say(_)));
        let behind = last.map_or(0, |last| last + 1);
        let wanted = self.ops.split_off(behind);
        let kept = wanted
            .into_iter()
            .filter(|op| !matches!(op, SessionOp::Recall(_)));
        self.ops.extend(kept);
    }

    pub fn saved(&mut self, is_saved: bool) {
        self.is_unsaved = !is_saved;
        self.was_unsaved |= self.is_unsaved;
        self.was_saved |= is_saved;
    }

    /// Turns that were not retracted, by number.
    pub fn turns(&self) -> Vec<(u64, &ExpectedTurn)> {
        let mut turns: Vec<(u64, &ExpectedTurn)> = Vec::new();
        let mut made = 0;
        for op in &self.ops {
            match op {
                SessionOp::Say(turn) => {
                    turns.push((made, turn));
                    made += 1;
                }
                SessionOp::Retract => drop(turns.pop()),
                _ => {}
            }
        }
        turns
    }

    fn is_a_list(&self) -> bool {
        let adds = |op: &SessionOp| {
            matches!(
                op,
                SessionOp::Say(_) | SessionOp::Fact(_) | SessionOp::Reopen
            )
        };
        !self.had_evictions && self.ops.iter().all(adds)
    }
}

/// The tokens of a turn by the chat template.
pub fn turn_tokens(layout: &ChatLayout, turn: &ExpectedTurn) -> Result<Vec<u32>, String> {
    let wrong = |e: haversack_conversations::session::layout::LayoutError| e.to_string();
    let mut tokens = layout.question(&turn.text).map_err(wrong)?;
    let ending = layout.ending().map_err(wrong)?;
    tokens.extend(turn.tokens.iter().map(|t| t.0));
    // An answer that ended by itself has the first token of the ending already.
    if ending.first() == tokens.last() {
        tokens.pop();
    }
    tokens.extend_from_slice(ending);
    Ok(tokens)
}

pub fn check_tokens(
    models: &mut Models,
    settings: &SeedSettings,
    expected: &ExpectedSession,
    dir: &Path,
) -> Result<(), String> {
    match (expected.is_lossy, expected.is_a_list()) {
        (true, _) => Ok(()),
        (false, true) => check_as_list(models, settings.model, settings.form, expected),
        (false, false) => check_by_replay(models, settings, expected, dir),
    }
    .map_err(|wrong| format!("{}: {wrong}", expected.name))
}

/// Computes the whole session at once.
pub fn check_as_list(
    models: &mut Models,
    model: usize,
    form: usize,
    expected: &ExpectedSession,
) -> Result<(), String> {
    let layout = ChatLayout::new(models.models[model].clone());
    let wrong = |e: haversack_conversations::session::layout::LayoutError| e.to_string();
    let mut tokens = layout.opening(&expected.opening, 0).map_err(wrong)?;
    // (index of the token before, hash of the logits)
    let mut drawn: Vec<(usize, u64)> = Vec::new();
    for op in &expected.ops {
        match op {
            SessionOp::Say(turn) => {
                let question = layout.question(&turn.text).map_err(wrong)?.len();
                let first = tokens.len() + question - 1;
                let answer = turn.tokens.iter().enumerate();
                drawn.extend(answer.map(|(i, token)| (first + i, token.1)));
                tokens.extend(turn_tokens(&layout, turn)?);
            }
            SessionOp::Fact(text) => tokens.extend(layout.fact(text).map_err(wrong)?),
            _ => {}
        }
    }
    let Some(&(last, _)) = drawn.last() else {
        return Ok(());
    };
    let runtime = models.alone(model, form, false);
    let vocabulary = runtime.model().config().vocab;
    let id = runtime.open().map_err(|e| e.to_string())?;
    let logits = runtime.all_logits(id, &tokens[..=last]);
    runtime.close(id).map_err(|e| e.to_string())?;
    let logits = logits.map_err(|e| e.to_string())?;
    for (i, (place, hash)) in drawn.into_iter().enumerate() {
        if fingerprint(&logits[place * vocabulary..][..vocabulary]) != hash {
            return Err(format!("token {i} was drawn from other logits"));
        }
    }
    Ok(())
}

/// Replays the same steps alone.
fn check_by_replay(
    models: &mut Models,
    settings: &SeedSettings,
    expected: &ExpectedSession,
    dir: &Path,
) -> Result<(), String> {
    let runtime = models.alone(settings.model, settings.form, true);
    let mut sessions = settings.sessions_alone(runtime, dir.to_owned())?;
    let name = "alone";
    let wrong = |e: haversack_conversations::session::SessionError| format!("alone: {e}");
    let mut id = sessions
        .create(runtime, name, &expected.opening, 0)
        .map_err(wrong)?;
    for (i, op) in expected.ops.iter().enumerate() {
        let done = match op {
            SessionOp::Say(turn) => {
                let (heard, spilled) = say_alone(runtime, &mut sessions, id, turn)?;
                // An attempt to start that found no memory has evicted nothing.
                if turn.spilled > spilled {
                    let more = turn.spilled - spilled;
                    return Err(format!(
                        "step {i}: {more} more tokens are evicted than alone"
                    ));
                }
                if heard != turn.tokens {
                    let same = heard.iter().zip(&turn.tokens).take_while(|(a, b)| a == b);
                    let (at, said) = (same.count(), turn.tokens.len());
                    return Err(format!(
                        "step {i}: alone it differs from token {at} of {said} on"
                    ));
                }
                Ok(())
            }
            SessionOp::Fact(text) => sessions.add_fact(runtime, id, text, 8).map(drop),
            SessionOp::Supersede(fact, text) => {
                sessions.supersede(runtime, id, *fact, text, 8).map(drop)
            }
            SessionOp::Revoke(fact) => sessions.revoke(runtime, id, *fact),
            SessionOp::Retract => sessions.retract(runtime, id).map(drop),
            SessionOp::Pin(turn, is_pinned) => sessions.pin(runtime, id, *turn, *is_pinned),
            SessionOp::Recall(turn) => sessions.recall(id, *turn),
            SessionOp::Reopen => {
                sessions.close(runtime, id).map_err(wrong)?;
                // Another process knows only what the file says.
                sessions = settings.sessions_alone(runtime, dir.to_owned())?;
                sessions.resume(runtime, name).map(|again| id = again)
            }
        };
        done.map_err(|e| format!("step {i}: {e}"))?;
    }
    sessions.close(runtime, id).map_err(wrong)?;
    sessions.delete(name).map_err(wrong)
}

fn say_alone(
    runtime: &mut Runtime,
    sessions: &mut Sessions,
    id: SessionId,
    turn: &ExpectedTurn,
) -> Result<(Vec<TokenHash>, u64), String> {
    let wrong = |e: haversack_conversations::session::SessionError| format!("alone: {e}");
    let ignore = &mut |_: GenerateEvent<'_>| ControlFlow::Continue(());
    let model = runtime.model().clone();
    let mut sampler = Sampler::new(turn.sample.clone()).map_err(|e| e.to_string())?;
    let begun = sessions.begin(
        runtime,
        id,
        AskedQuestion::new(&turn.text, 8),
        &turn.options,
    );
    let mut turn_in_progress = begun.map_err(wrong)?;
    let mut heard = Vec::new();
    loop {
        let pending = turn_in_progress.pending().to_vec();
        if !pending.is_empty() {
            let go_on = &mut |_| ControlFlow::Continue(());
            let fed = runtime.feed(turn_in_progress.sequence(), &pending, go_on);
            fed.map_err(|e| e.to_string())?;
        }
        let samples = turn_in_progress.samples_after(pending.len());
        turn_in_progress.read(pending.len());
        let Some(completion) = turn_in_progress.completion().filter(|_| samples) else {
            break;
        };
        let logits = runtime.logits();
        let sampled = completion.sample(&mut sampler, model.tokenizer(), logits);
        heard.push((sampled.map_err(|e| e.to_string())?.id, fingerprint(logits)));
        if turn.finish == Finish::Cancelled && heard.len() == turn.tokens.len() {
            completion.cancel();
        }
        if completion.is_over() {
            break;
        }
    }
    let turn_in_progress =
        sessions.conclude(runtime, turn_in_progress, GenerateTimes::default(), ignore);
    let ended =
        turn_in_progress.and_then(|turn_in_progress| sessions.end(runtime, turn_in_progress, None));
    let answer = ended.map_err(wrong)?;
    Ok((heard, answer.context.spilled))
}
