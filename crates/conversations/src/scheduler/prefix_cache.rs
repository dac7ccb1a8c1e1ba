//! What requests have read that are over: kept while nobody needs the room, so that who begins with the same tokens does
//! not read them again.
//!
//! A sequence is kept where a prompt ended, where an answer ended, and where a prompt parted from one before it: the third
//! that begins alike goes on from there. Tokens are compared one by one, nothing is found by a hash, and owners do not find
//! what others have read. What is kept is promised to nobody, and leaves before anything else does.

use super::request::RequestId;
use haversack_engine::runtime::{Keep, Runtime, SequenceId, StepError};
use haversack_kernels::attention::BLOCK_SLOTS;

#[derive(Debug, Default)]
pub(super) struct PrefixCache {
    /// The one used longest ago first.
    kept: Vec<CachedPrefix>,
    /// Sequences at most.
    most: usize,
    reuse: PrefixCacheStats,
}

/// A sequence, and all that it has seen, of which nothing has left.
#[derive(Debug)]
pub(super) struct CachedPrefix {
    pub of: PrefixKey,
    pub tokens: Vec<u32>,
    pub sequence: SequenceId,
    /// Where prompts part: more than one may go on from it.
    pub is_fork: bool,
}

/// Who reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefixKey {
    pub ticket: RequestId,
    pub owner: u64,
    pub keep: Keep,
}

/// What became of prompts that others had read the beginning of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCacheStats {
    /// Prompts that went on from what was kept.
    pub found: u64,
    /// Tokens that they did not read.
    pub tokens: u64,
    /// Prompts that began like one before, and parted from it where nothing was kept.
    pub parted: u64,
    /// Prompts that began like none.
    pub new: u64,
    /// What was kept and had to leave.
    pub left: u64,
}

/// How a prompt begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Begins {
    /// Tokens of the longest that is kept and that it goes on from.
    pub from: usize,
    /// Behind that: where it parts from another.
    pub parts: Option<usize>,
}

impl PrefixCache {
    pub fn new(most: usize) -> PrefixCache {
        PrefixCache {
            most,
            ..PrefixCache::default()
        }
    }

    pub fn reuse(&self) -> PrefixCacheStats {
        self.reuse
    }

    pub fn sequences(&self) -> impl Iterator<Item = SequenceId> {
        self.kept.iter().map(|kept| kept.sequence)
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// How the prompt begins.
    pub fn begins(&self, of: PrefixKey, prompt: &[u32]) -> Begins {
        let kept = self.kept.iter().filter(|kept| kept.is_for(of));
        begins(kept.map(|kept| &kept.tokens[..]), prompt)
    }

    /// Takes out the sequence that has the first `from` tokens of the prompt, as [`PrefixCache::begins`] says. It is to be handed
    /// to [`PrefixCache::go_on`] or [`PrefixCache::put_back`].
    pub fn take(&mut self, of: PrefixKey, prompt: &[u32], from: usize) -> Option<CachedPrefix> {
        let is_it = |kept: &CachedPrefix| kept.is_for(of) && kept.tokens == prompt[..from];
        let i = self.kept.iter().position(is_it)?;
        Some(self.kept.remove(i))
    }

    /// A sequence that goes on from what was kept.
    pub fn go_on(&mut self, runtime: &mut Runtime, kept: CachedPrefix) -> SequenceId {
        if !kept.is_fork {
            return kept.sequence;
        }
        match runtime.fork(kept.sequence) {
            Ok(fork) => {
                self.kept.push(kept);
                fork
            }
            // Then nobody else goes on from it.
            Err(_) => kept.sequence,
        }
    }

    pub fn put_back(&mut self, kept: CachedPrefix) {
        self.kept.push(kept);
    }

    /// Counts how a prompt that enters begins.
    pub fn count(&mut self, begins: Begins) {
        let reuse = &mut self.reuse;
        match begins {
            Begins {
                from: 0,
                parts: None,
            } => reuse.new += 1,
            Begins { from: 0, .. } => reuse.parted += 1,
            Begins { from, .. } => {
                reuse.found += 1;
                reuse.tokens += from as u64;
            }
        }
    }

    /// Keeps a sequence; or closes it, where that is of no use.
    pub fn keep(&mut self, runtime: &mut Runtime, new: CachedPrefix) -> Result<(), StepError> {
        let stats = runtime.stats(new.sequence)?;
        let is_whole = stats.rows as u64 == stats.position;
        let is_all = stats.position == new.tokens.len() as u64;
        let is_known = |kept: &CachedPrefix| kept.is_for(new.of) && kept.tokens == new.tokens;
        if !is_whole
            || !is_all
            || !self.is_worth(new.tokens.len())
            || self.kept.iter().any(is_known)
        {
            return runtime.close(new.sequence);
        }
        while self.kept.len() >= self.most {
            self.drop_one(runtime)?;
        }
        self.kept.push(new);
        // Without a budget there is an end too: as many tokens as one whole context.
        if runtime.ledger().budget.is_none() {
            let context = runtime.model().config().context;
            let tokens =
                |past: &PrefixCache| past.kept.iter().map(|k| k.tokens.len()).sum::<usize>();
            while tokens(self) > context && self.drop_one(runtime)? {}
        }
        Ok(())
    }

    /// Whether a sequence of so many tokens is kept at all.
    pub fn is_worth(&self, tokens: usize) -> bool {
        self.most > 0 && tokens >= BLOCK_SLOTS
    }

    /// Nothing stays of somebody who has left.
    pub fn forget(&mut self, runtime: &mut Runtime, ticket: RequestId) -> Result<(), StepError> {
        for kept in self.kept.extract_if(.., |kept| kept.of.ticket == ticket) {
            runtime.close(kept.sequence)?;
        }
        Ok(())
    }

    /// What was used longest ago leaves. `false`: there is nothing.
    pub fn drop_one(&mut self, runtime: &mut Runtime) -> Result<bool, StepError> {
        if self.kept.is_empty() {
            return Ok(false);
        }
        self.reuse.left += 1;
        let kept = self.kept.remove(0);
        runtime.close(kept.sequence).map(|()| true)
    }
}

impl CachedPrefix {
    fn is_for(&self, of: PrefixKey) -> bool {
        self.of.owner == of.owner && self.of.keep == of.keep
    }
}

/// How a prompt begins, beside others that were read. Its last token is read in any case: what comes next is said behind
/// it.
fn begins<'a>(read: impl Iterator<Item = &'a [u32]>, prompt: &[u32]) -> Begins {
    let most = prompt.len().saturating_sub(1);
    let (mut from, mut alike) = (0, 0);
    for tokens in read {
        let same = |(a, b): &(&u32, &u32)| a == b;
        let common = tokens.iter().zip(&prompt[..most]).take_while(same).count();
        alike = alike.max(common);
        if common == tokens.len() {
            from = from.max(common);
        }
    }
    let parts = (alike >= from + BLOCK_SLOTS).then_some(alike);
    Begins { from, parts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_prompts_begin() {
        let all: Vec<u32> = (0..300).collect();
        let kept = [&all[..40], &all[..100]];
        let of = |tokens: &[u32]| {
            let begins = begins(kept.into_iter(), tokens);
            (begins.from, begins.parts)
        };
        assert_eq!(of(&all), (100, None));
        // The last token is read in any case.
        assert_eq!(of(&all[..100]), (40, Some(99)));
        assert_eq!(of(&all[..101]), (100, None));
        // Where it parts is remembered, if that is worth a block.
        assert_eq!(of(&all[..72]), (40, None));
        assert_eq!(of(&all[..73]), (40, Some(72)));
        let mut other = all.clone();
        other[80] = 7;
        assert_eq!(of(&other), (40, Some(80)));
        assert_eq!(of(&all[1..]), (0, None));
        assert_eq!(of(&[]), (0, None));
    }
}
