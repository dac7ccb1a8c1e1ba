//! Conversations: what was done to each, and what it says when the same is done to it alone.
//!
//! Two judges. Where nothing was ever hidden from a conversation, it is a list of tokens: the list is made here, from the
//! texts and the template, and computed at once. Where turns left and came back, the same steps are told to a session that
//! is alone in a process with all the memory there is. Whatever else was in the world must make no difference: company,
//! budgets, forks, questions that were never answered, processes that died.

use crate::models::{Stage, fingerprint};
use crate::reference_request::Told;
use crate::seed_settings::Setting;
use haversack_conversations::session::layout::Layout;
use haversack_conversations::session::{Answer, SessionId, Sessions};
use haversack_engine::runtime::{Event, Finish, GenerateOptions, Runtime, Took};
use haversack_engine::sample::{SampleOptions, Sampler};
use std::ops::ControlFlow;
use std::path::Path;

/// A turn that was said.
#[derive(Clone, Debug)]
pub struct Turn {
    pub text: String,
    pub sample: SampleOptions,
    pub options: GenerateOptions,
    pub told: Vec<Told>,
    pub finish: Finish,
    /// Tokens of turns that were not in memory.
    pub spilled: u64,
}

/// Something that was done to a conversation, and succeeded.
#[derive(Clone, Debug)]
pub enum Op {
    Say(Turn),
    Fact(String),
    Supersede(u64, String),
    Revoke(u64),
    Retract,
    Pin(u64, bool),
    Recall(u64),
    /// Its process died, and it was read from its file.
    Reopen,
}

#[derive(Clone, Debug)]
pub struct Talk {
    pub name: String,
    pub opening: String,
    pub ops: Vec<Op>,
    pub exists: bool,
    /// A disk that failed, or a fact told where there was no room, has made it forget: it goes on, and nobody can say how.
    pub is_lossy: bool,
    /// Something was hidden from it at some time.
    pub has_gaps: bool,
    /// The last step is not in its file.
    pub is_unsaved: bool,
    pub was_unsaved: bool,
    /// Some step is.
    pub was_saved: bool,
}

impl Talk {
    pub fn new(name: String, opening: &str) -> Talk {
        Talk {
            name,
            opening: opening.to_owned(),
            ops: Vec::new(),
            exists: true,
            is_lossy: false,
            has_gaps: false,
            is_unsaved: false,
            was_unsaved: false,
            was_saved: false,
        }
    }

    /// A turn has become part of it.
    pub fn said(&mut self, turn: Turn, answer: &Answer) {
        let context = &answer.context;
        let moved = context.masked + context.spilled + context.evicted + context.recomputed;
        self.has_gaps |= moved > 0 || !context.recalled.is_empty();
        self.saved(context.unsaved.is_none());
        // What has to leave while the file does not take it is lost, wholly or but for its tokens.
        self.is_lossy |= self.was_unsaved && moved > 0;
        self.ops.push(Op::Say(turn));
    }

    /// What somebody wanted to see in the next turn.
    pub fn forget_recalls(&mut self) {
        let last = self.ops.iter().rposition(|op| matches!(op, Op::Say(_)));
        let behind = last.map_or(0, |last| last + 1);
        let wanted = self.ops.split_off(behind);
        let kept = wanted.into_iter().filter(|op| !matches!(op, Op::Recall(_)));
        self.ops.extend(kept);
    }

    pub fn saved(&mut self, is_saved: bool) {
        self.is_unsaved = !is_saved;
        self.was_unsaved |= self.is_unsaved;
        self.was_saved |= is_saved;
    }

    /// Turns that hold, by number.
    pub fn turns(&self) -> Vec<(u64, &Turn)> {
        let mut turns: Vec<(u64, &Turn)> = Vec::new();
        let mut made = 0;
        for op in &self.ops {
            match op {
                Op::Say(turn) => {
                    turns.push((made, turn));
                    made += 1;
                }
                Op::Retract => drop(turns.pop()),
                _ => {}
            }
        }
        turns
    }

    fn is_a_list(&self) -> bool {
        let adds = |op: &Op| matches!(op, Op::Say(_) | Op::Fact(_) | Op::Reopen);
        !self.has_gaps && self.ops.iter().all(adds)
    }
}

/// The tokens of a turn, as the template has them.
pub fn turn_tokens(layout: &Layout, turn: &Turn) -> Result<Vec<u32>, String> {
    let wrong = |e: haversack_conversations::session::layout::LayoutError| e.to_string();
    let mut tokens = layout.question(&turn.text).map_err(wrong)?;
    let ending = layout.ending().map_err(wrong)?;
    tokens.extend(turn.told.iter().map(|t| t.0));
    // An answer that ended by itself has the first token of its ending already.
    if ending.first() == tokens.last() {
        tokens.pop();
    }
    tokens.extend_from_slice(ending);
    Ok(tokens)
}

pub fn judge(stage: &mut Stage, setting: &Setting, talk: &Talk, dir: &Path) -> Result<(), String> {
    match (talk.is_lossy, talk.is_a_list()) {
        (true, _) => Ok(()),
        (false, true) => judge_list(stage, setting.model, setting.form, talk),
        (false, false) => judge_again(stage, setting, talk, dir),
    }
    .map_err(|wrong| format!("{}: {wrong}", talk.name))
}

/// All of it at once.
pub fn judge_list(stage: &mut Stage, model: usize, form: usize, talk: &Talk) -> Result<(), String> {
    let layout = Layout::new(stage.models[model].clone());
    let wrong = |e: haversack_conversations::session::layout::LayoutError| e.to_string();
    let mut tokens = layout.opening(&talk.opening, 0).map_err(wrong)?;
    // (place of the token before, what it was drawn from)
    let mut drawn: Vec<(usize, u64)> = Vec::new();
    for op in &talk.ops {
        match op {
            Op::Say(turn) => {
                let question = layout.question(&turn.text).map_err(wrong)?.len();
                let first = tokens.len() + question - 1;
                let told = turn.told.iter().enumerate();
                drawn.extend(told.map(|(i, told)| (first + i, told.1)));
                tokens.extend(turn_tokens(&layout, turn)?);
            }
            Op::Fact(text) => tokens.extend(layout.fact(text).map_err(wrong)?),
            _ => {}
        }
    }
    let Some(&(last, _)) = drawn.last() else {
        return Ok(());
    };
    let runtime = stage.alone(model, form, false);
    let vocabulary = runtime.model().config().vocab;
    let id = runtime.open().map_err(|e| e.to_string())?;
    let logits = runtime.all_logits(id, &tokens[..=last]);
    runtime.close(id).map_err(|e| e.to_string())?;
    let logits = logits.map_err(|e| e.to_string())?;
    for (i, (place, hash)) in drawn.into_iter().enumerate() {
        if fingerprint(&logits[place * vocabulary..][..vocabulary]) != hash {
            return Err(format!("token {i} of all was drawn from other logits"));
        }
    }
    Ok(())
}

/// The same steps, alone.
fn judge_again(
    stage: &mut Stage,
    setting: &Setting,
    talk: &Talk,
    dir: &Path,
) -> Result<(), String> {
    let runtime = stage.alone(setting.model, setting.form, true);
    let mut sessions = setting.sessions_alone(runtime, dir.to_owned())?;
    let name = "alone";
    let wrong = |e: haversack_conversations::session::SessionError| format!("alone: {e}");
    let mut id = sessions
        .create(runtime, name, &talk.opening, 0)
        .map_err(wrong)?;
    for (i, op) in talk.ops.iter().enumerate() {
        let done = match op {
            Op::Say(turn) => {
                let (heard, spilled) = say_alone(runtime, &mut sessions, id, turn)?;
                // An attempt to enter that found no room has sent nobody away.
                if turn.spilled > spilled {
                    let more = turn.spilled - spilled;
                    return Err(format!("step {i}: {more} tokens have left that stay alone"));
                }
                if heard != turn.told {
                    let same = heard.iter().zip(&turn.told).take_while(|(a, b)| a == b);
                    let (at, said) = (same.count(), turn.told.len());
                    return Err(format!(
                        "step {i}: alone it says something else from token {at} of {said} on"
                    ));
                }
                Ok(())
            }
            Op::Fact(text) => sessions.add_fact(runtime, id, text, 8).map(drop),
            Op::Supersede(fact, text) => sessions.supersede(runtime, id, *fact, text, 8).map(drop),
            Op::Revoke(fact) => sessions.revoke(runtime, id, *fact),
            Op::Retract => sessions.retract(runtime, id).map(drop),
            Op::Pin(turn, is_pinned) => sessions.pin(runtime, id, *turn, *is_pinned),
            Op::Recall(turn) => sessions.recall(id, *turn),
            Op::Reopen => {
                sessions.close(runtime, id).map_err(wrong)?;
                // Another process: nothing is known but what the file says.
                sessions = setting.sessions_alone(runtime, dir.to_owned())?;
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
    turn: &Turn,
) -> Result<(Vec<Told>, u64), String> {
    let wrong = |e: haversack_conversations::session::SessionError| format!("alone: {e}");
    let nobody = &mut |_: Event<'_>| ControlFlow::Continue(());
    let model = runtime.model().clone();
    let mut sampler = Sampler::new(turn.sample.clone()).map_err(|e| e.to_string())?;
    let begun = sessions.begin(runtime, id, &turn.text, None, 8, &turn.options);
    let mut saying = begun.map_err(wrong)?;
    let mut heard = Vec::new();
    loop {
        let pending = saying.pending().to_vec();
        if !pending.is_empty() {
            let go_on = &mut |_| ControlFlow::Continue(());
            let fed = runtime.feed(saying.sequence(), &pending, go_on);
            fed.map_err(|e| e.to_string())?;
        }
        let samples = saying.samples_after(pending.len());
        saying.read(pending.len());
        let Some(completion) = saying.completion().filter(|_| samples) else {
            break;
        };
        let logits = runtime.logits();
        let sampled = completion.sample(&mut sampler, model.tokenizer(), logits);
        heard.push((sampled.map_err(|e| e.to_string())?.id, fingerprint(logits)));
        if turn.finish == Finish::Cancelled && heard.len() == turn.told.len() {
            completion.cancel();
        }
        if completion.is_over() {
            break;
        }
    }
    let saying = sessions.conclude(runtime, saying, Took::default(), nobody);
    let ended = saying.and_then(|saying| sessions.end(runtime, saying, None));
    let answer = ended.map_err(wrong)?;
    Ok((heard, answer.context.spilled))
}
