//! Prefix cache: KV of finished requests, evicted first.
//!
//! It caches a sequence where a prompt ended, where an answer ended, and where a prompt departed from an earlier one: the
//! third prompt with that beginning goes on from there. Tokens are compared one by one, without hashes, and an owner never
//! gets what another owner's requests have read. No bytes are promised to cached sequences.
//!
//! Of requests that continue each other ([`RequestKind::Completion`](super::RequestKind::Completion)) it caches the last
//! of each owner, cut back to what the next prompt has in common with it.

use super::request::RequestId;
use haversack_engine::runtime::{Runtime, SequenceId, SequenceRetention, StepError};
use haversack_kernels::attention::BLOCK_SLOTS;

#[derive(Debug, Default)]
pub(super) struct PrefixCache {
    /// Least recently used first.
    cached: Vec<CachedPrefix>,
    max_sequences: usize,
    stats: PrefixCacheStats,
}

/// A sequence that holds the rows of all its tokens.
#[derive(Debug)]
pub(super) struct CachedPrefix {
    pub key: PrefixKey,
    pub tokens: Vec<u32>,
    pub sequence: SequenceId,
    /// Prompts depart here, so it stays cached when a request goes on from it.
    pub is_fork: bool,
}

/// Which request read it, and which requests may use it: those of the same owner that keep the same rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefixKey {
    pub request: RequestId,
    pub owner: u64,
    pub keep: SequenceRetention,
    pub continues: bool,
}

/// Prompts by what the cache had for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCacheStats {
    pub hits: u64,
    /// Prompt tokens not computed because of hits.
    pub hit_tokens: u64,
    /// Prompts that began like an earlier one and departed from it where nothing was cached.
    pub forks: u64,
    pub misses: u64,
    pub evicted: u64,
}

/// How much of a prompt the cache has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PrefixMatch {
    /// Tokens of the longest cached prefix.
    pub tokens: usize,
    /// Beyond that: where the prompt departs from a cached one.
    pub fork_at: Option<usize>,
}

impl PrefixCache {
    pub fn new(max_sequences: usize) -> PrefixCache {
        PrefixCache {
            max_sequences,
            ..PrefixCache::default()
        }
    }

    pub fn stats(&self) -> PrefixCacheStats {
        self.stats
    }

    pub fn sequences(&self) -> impl Iterator<Item = SequenceId> {
        self.cached.iter().map(|cached| cached.sequence)
    }

    pub fn is_empty(&self) -> bool {
        self.cached.is_empty()
    }

    pub fn find(&self, key: PrefixKey, prompt: &[u32]) -> PrefixMatch {
        let cached = self.cached.iter().filter(|cached| cached.serves(key));
        if key.continues {
            let common = cached.map(|cached| common_tokens(&cached.tokens, prompt));
            return PrefixMatch {
                tokens: common.max().unwrap_or(0),
                fork_at: None,
            };
        }
        longest_match(cached.map(|cached| &cached.tokens[..]), prompt)
    }

    /// Takes out the sequence that [`PrefixCache::find`] has found, if it has. The caller hands it to
    /// [`PrefixCache::continue_from`] or [`PrefixCache::put_back`].
    pub fn take(
        &mut self,
        key: PrefixKey,
        prompt: &[u32],
        found: PrefixMatch,
    ) -> Option<CachedPrefix> {
        let prefix = &prompt[..found.tokens];
        let is_it = |cached: &CachedPrefix| {
            cached.serves(key) && (key.continues || cached.tokens == prefix)
        };
        let i = self.cached.iter().position(is_it)?;
        Some(self.cached.remove(i))
    }

    /// A sequence that goes on from a cached one. `None`, where that is closed: its state of `tokens` tokens is gone.
    pub fn continue_from(
        &mut self,
        runtime: &mut Runtime,
        cached: CachedPrefix,
        tokens: usize,
    ) -> Result<Option<SequenceId>, StepError> {
        let sequence = cached.sequence;
        if cached.key.continues {
            return match runtime.truncate(sequence, tokens as u64) {
                Ok(()) => Ok(Some(sequence)),
                Err(StepError::Cache(_)) => runtime.close(sequence).map(|()| None),
                Err(error) => Err(error),
            };
        }
        if !cached.is_fork {
            return Ok(Some(sequence));
        }
        Ok(Some(match runtime.fork(sequence) {
            Ok(fork) => {
                self.cached.push(cached);
                fork
            }
            // No memory for a second one: the request takes the cached one itself.
            Err(_) => sequence,
        }))
    }

    pub fn put_back(&mut self, cached: CachedPrefix) {
        self.cached.push(cached);
    }

    /// Counts a prompt that was admitted.
    pub fn count(&mut self, found: PrefixMatch) {
        let stats = &mut self.stats;
        match (found.tokens, found.fork_at) {
            (0, None) => stats.misses += 1,
            (0, Some(_)) => stats.forks += 1,
            (tokens, _) => {
                stats.hits += 1;
                stats.hit_tokens += tokens as u64;
            }
        }
    }

    /// Caches a sequence, or closes it where it is too short, incomplete or cached already.
    pub fn insert(&mut self, runtime: &mut Runtime, new: CachedPrefix) -> Result<(), StepError> {
        let stats = runtime.stats(new.sequence)?;
        let is_whole = stats.rows as u64 == stats.position;
        let is_all = stats.position == new.tokens.len() as u64;
        let is_same = |cached: &CachedPrefix| cached.serves(new.key) && cached.tokens == new.tokens;
        let is_useful = match new.key.continues {
            true => self.max_sequences > 0,
            false => {
                let is_known = self.cached.iter().any(is_same);
                is_whole && self.accepts(new.tokens.len()) && !is_known
            }
        };
        if !is_all || !is_useful {
            return runtime.close(new.sequence);
        }
        if new.key.continues {
            // Two of an owner may have run at the same time; the next goes on from the last that ended.
            for earlier in self.cached.extract_if(.., |cached| cached.serves(new.key)) {
                runtime.close(earlier.sequence)?;
            }
        }
        while self.cached.len() >= self.max_sequences {
            self.evict_one(runtime)?;
        }
        self.cached.push(new);
        // Without a budget the limit is one whole context.
        if runtime.ledger().budget.is_none() {
            let context = runtime.model().config().context;
            // One that is continued is the only one of its owner, and may have evicted rows.
            let tokens = |c: &CachedPrefix| if c.key.continues { 0 } else { c.tokens.len() };
            let total = |cache: &PrefixCache| cache.cached.iter().map(tokens).sum::<usize>();
            while total(self) > context && self.evict_one(runtime)? {}
        }
        Ok(())
    }

    /// Whether it caches sequences of this length.
    pub fn accepts(&self, tokens: usize) -> bool {
        self.max_sequences > 0 && tokens >= BLOCK_SLOTS
    }

    /// Closes what a cancelled request has cached.
    pub fn forget(&mut self, runtime: &mut Runtime, request: RequestId) -> Result<(), StepError> {
        let is_its = |cached: &mut CachedPrefix| cached.key.request == request;
        for cached in self.cached.extract_if(.., is_its) {
            runtime.close(cached.sequence)?;
        }
        Ok(())
    }

    /// Closes the least recently used sequence. `false`: the cache is empty.
    pub fn evict_one(&mut self, runtime: &mut Runtime) -> Result<bool, StepError> {
        if self.cached.is_empty() {
            return Ok(false);
        }
        self.stats.evicted += 1;
        let cached = self.cached.remove(0);
        runtime.close(cached.sequence).map(|()| true)
    }
}

impl CachedPrefix {
    fn serves(&self, key: PrefixKey) -> bool {
        self.key.owner == key.owner
            && self.key.keep == key.keep
            && self.key.continues == key.continues
    }
}

/// How far a prompt is the same, without its last token: that must be read for its logits.
fn common_tokens(tokens: &[u32], prompt: &[u32]) -> usize {
    let beginning = &prompt[..prompt.len().saturating_sub(1)];
    let same = |(a, b): &(&u32, &u32)| a == b;
    tokens.iter().zip(beginning).take_while(same).count()
}

fn longest_match<'a>(cached: impl Iterator<Item = &'a [u32]>, prompt: &[u32]) -> PrefixMatch {
    let (mut matched, mut longest_common) = (0, 0);
    for tokens in cached {
        let common = common_tokens(tokens, prompt);
        longest_common = longest_common.max(common);
        if common == tokens.len() {
            matched = matched.max(common);
        }
    }
    PrefixMatch {
        tokens: matched,
        fork_at: (longest_common >= matched + BLOCK_SLOTS).then_some(longest_common),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_and_forks() {
        let all: Vec<u32> = (0..300).collect();
        let cached = [&all[..40], &all[..100]];
        let of = |prompt: &[u32]| {
            let found = longest_match(cached.into_iter(), prompt);
            (found.tokens, found.fork_at)
        };
        assert_eq!(of(&all), (100, None));
        // The last token is never matched.
        assert_eq!(of(&all[..100]), (40, Some(99)));
        assert_eq!(of(&all[..101]), (100, None));
        // A fork must be at least a block beyond the match.
        assert_eq!(of(&all[..72]), (40, None));
        assert_eq!(of(&all[..73]), (40, Some(72)));
        let mut other = all.clone();
        other[80] = 7;
        assert_eq!(of(&other), (40, Some(80)));
        assert_eq!(of(&all[1..]), (0, None));
        assert_eq!(of(&[]), (0, None));
    }
}
