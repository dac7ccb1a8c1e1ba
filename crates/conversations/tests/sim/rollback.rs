//! Speculation: a sequence reads tokens ahead and truncates them again, which must leave no trace.

use crate::common::Dice;
use crate::models::{CONTEXT, Models, fingerprint, pick};
use crate::seed_settings::SeedSettings;
use haversack_conversations::scheduler::Scheduler;
use haversack_engine::runtime::{Keep, Runtime, SequenceId};
use std::ops::ControlFlow;

pub struct Rollback {
    id: SequenceId,
    keep: Keep,
    /// Tokens that were not truncated.
    tokens: Vec<u32>,
    /// (index of a token, hash of the logits after it)
    heard: Vec<(usize, u64)>,
}

fn some(dice: &mut Dice, max: usize) -> Vec<u32> {
    (0..1 + dice.roll(max))
        .map(|_| 3 + dice.roll(310) as u32)
        .collect()
}

fn feed(runtime: &mut Runtime, id: SequenceId, tokens: &[u32]) -> Result<u64, String> {
    let fed = runtime.feed(id, tokens, &mut |_| ControlFlow::Continue(()));
    let logits = fed.map_err(|e| e.to_string())?;
    Ok(fingerprint(logits.unwrap_or_default()))
}

impl Rollback {
    pub fn new(dice: &mut Dice, scheduler: &mut Scheduler) -> Result<Rollback, String> {
        let window = Keep::Window {
            anchors: 4,
            window: 70,
        };
        let keep = pick(dice, &[Keep::All { tokens: CONTEXT }, window]);
        let id = scheduler.runtime_mut().open_keeping(keep);
        Ok(Rollback {
            id: id.map_err(|e| e.to_string())?,
            keep,
            tokens: Vec::new(),
            heard: Vec::new(),
        })
    }

    /// Reads on, or reads ahead and truncates.
    pub fn act(&mut self, dice: &mut Dice, scheduler: &mut Scheduler) -> Result<(), String> {
        let runtime = scheduler.runtime_mut();
        if self.tokens.len() > CONTEXT / 2 {
            return Ok(());
        }
        let max = pick(dice, &[3, 40]);
        let more = some(dice, max);
        let hash = feed(runtime, self.id, &more)?;
        self.tokens.extend(more);
        self.heard.push((self.tokens.len() - 1, hash));
        if dice.roll(2) == 0 {
            return Ok(());
        }
        let drafted = some(dice, 6);
        feed(runtime, self.id, &drafted)?;
        // Sometimes further back than it read ahead, as for a question asked anew.
        let back = pick(dice, &[0, 0, 1, 25]).min(self.tokens.len() - 1);
        let to = self.tokens.len() - back;
        match runtime.truncate(self.id, to as u64) {
            Ok(()) => {
                self.tokens.truncate(to);
                self.heard.retain(|heard| heard.0 < to);
            }
            // Rows that were evicted cannot be restored: then the tokens stay.
            Err(error) if error.to_string().contains("cannot be") => self.tokens.extend(drafted),
            Err(error) => return Err(format!("truncating: {error}")),
        }
        Ok(())
    }

    pub fn end(self, scheduler: &mut Scheduler) -> Result<RollbackRecord, String> {
        scheduler
            .runtime_mut()
            .close(self.id)
            .map_err(|e| e.to_string())?;
        Ok(RollbackRecord {
            keep: self.keep,
            tokens: self.tokens,
            heard: self.heard,
        })
    }
}

/// What is checked at the end.
pub struct RollbackRecord {
    keep: Keep,
    tokens: Vec<u32>,
    heard: Vec<(usize, u64)>,
}

impl RollbackRecord {
    pub fn check_tokens(&self, models: &mut Models, settings: &SeedSettings) -> Result<(), String> {
        if self.tokens.is_empty() {
            return Ok(());
        }
        let runtime = models.alone(settings.model, settings.form, false);
        let vocabulary = runtime.model().config().vocab;
        let id = runtime.open_keeping(self.keep).map_err(|e| e.to_string())?;
        let logits = runtime.all_logits(id, &self.tokens);
        runtime.close(id).map_err(|e| e.to_string())?;
        let logits = logits.map_err(|e| e.to_string())?;
        for &(place, hash) in &self.heard {
            if fingerprint(&logits[place * vocabulary..][..vocabulary]) != hash {
                return Err(format!("a rollback: other logits after token {place}"));
            }
        }
        Ok(())
    }
}
