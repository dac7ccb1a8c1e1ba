//! Somebody who reads ahead and goes back: what was drafted and taken back must leave nothing.

use crate::common::Dice;
use crate::models::{CONTEXT, Stage, fingerprint, pick};
use crate::seed_settings::Setting;
use haversack_conversations::scheduler::Scheduler;
use haversack_engine::runtime::{Keep, Runtime, SequenceId};
use std::ops::ControlFlow;

pub struct Draft {
    id: SequenceId,
    keep: Keep,
    /// All that holds.
    tokens: Vec<u32>,
    /// (place of a token, what came behind it)
    heard: Vec<(usize, u64)>,
}

fn some(dice: &mut Dice, most: usize) -> Vec<u32> {
    (0..1 + dice.roll(most))
        .map(|_| 3 + dice.roll(310) as u32)
        .collect()
}

fn feed(runtime: &mut Runtime, id: SequenceId, tokens: &[u32]) -> Result<u64, String> {
    let fed = runtime.feed(id, tokens, &mut |_| ControlFlow::Continue(()));
    let logits = fed.map_err(|e| e.to_string())?;
    Ok(fingerprint(logits.unwrap_or_default()))
}

impl Draft {
    pub fn new(dice: &mut Dice, desk: &mut Scheduler) -> Result<Draft, String> {
        let window = Keep::Window {
            anchors: 4,
            window: 70,
        };
        let keep = pick(dice, &[Keep::All { tokens: CONTEXT }, window]);
        let id = desk.runtime_mut().open_keeping(keep);
        Ok(Draft {
            id: id.map_err(|e| e.to_string())?,
            keep,
            tokens: Vec::new(),
            heard: Vec::new(),
        })
    }

    /// Reads on, or drafts and goes back.
    pub fn act(&mut self, dice: &mut Dice, desk: &mut Scheduler) -> Result<(), String> {
        let runtime = desk.runtime_mut();
        if self.tokens.len() > CONTEXT / 2 {
            return Ok(());
        }
        let most = pick(dice, &[3, 40]);
        let more = some(dice, most);
        let hash = feed(runtime, self.id, &more)?;
        self.tokens.extend(more);
        self.heard.push((self.tokens.len() - 1, hash));
        if dice.roll(2) == 0 {
            return Ok(());
        }
        let drafted = some(dice, 6);
        feed(runtime, self.id, &drafted)?;
        // Sometimes further back than the draft began: a question asked anew.
        let back = pick(dice, &[0, 0, 1, 25]).min(self.tokens.len() - 1);
        let to = self.tokens.len() - back;
        match runtime.truncate(self.id, to as u64) {
            Ok(()) => {
                self.tokens.truncate(to);
                self.heard.retain(|heard| heard.0 < to);
            }
            // What is no longer there cannot be restored, and is said so: then the draft holds.
            Err(error) if error.to_string().contains("cannot be") => self.tokens.extend(drafted),
            Err(error) => return Err(format!("going back: {error}")),
        }
        Ok(())
    }

    pub fn end(self, desk: &mut Scheduler) -> Result<Heard, String> {
        desk.runtime_mut()
            .close(self.id)
            .map_err(|e| e.to_string())?;
        Ok(Heard {
            keep: self.keep,
            tokens: self.tokens,
            heard: self.heard,
        })
    }
}

/// What is left to be judged.
pub struct Heard {
    keep: Keep,
    tokens: Vec<u32>,
    heard: Vec<(usize, u64)>,
}

impl Heard {
    pub fn judge(&self, stage: &mut Stage, setting: &Setting) -> Result<(), String> {
        if self.tokens.is_empty() {
            return Ok(());
        }
        let runtime = stage.alone(setting.model, setting.form, false);
        let vocabulary = runtime.model().config().vocab;
        let id = runtime.open_keeping(self.keep).map_err(|e| e.to_string())?;
        let logits = runtime.all_logits(id, &self.tokens);
        runtime.close(id).map_err(|e| e.to_string())?;
        let logits = logits.map_err(|e| e.to_string())?;
        for &(place, hash) in &self.heard {
            if fingerprint(&logits[place * vocabulary..][..vocabulary]) != hash {
                return Err(format!(
                    "a draft: token {place} was followed by something else"
                ));
            }
        }
        Ok(())
    }
}
