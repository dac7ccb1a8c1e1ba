//! Prefix cache: KV of prompts and answers that were read, evicted first.
//!
//! A sequence can be cut back exactly only inside its last block: rows that were recent are recoded when they no longer
//! are. So a request leaves *checkpoints* while its prompt is read: forks of its sequence at message borders, where the
//! prompt departs from a cached one, and at its end; and at last the sequence itself, where the answer ended. A fork
//! shares all blocks; its own are the recent ones, which the sequence gives up when it goes on. The next prompt goes on from
//! the furthest of them, cut back to what both have in common.
//!
//! Tokens are compared one by one, without hashes, and no user of an owner gets what another's requests have read. No bytes
//! are promised to cached sequences.
//!
//! Of requests that continue each other ([`Request::continues`](super::Request::continues)) it caches the last of each
//! owner, under every policy, with checkpoints only where the caller named borders.

use super::plan::Priority;
use super::request::RequestId;
use crate::session::Requester;
use haversack_engine::runtime::{Runtime, SequenceId, SequenceRetention, StepError};
use haversack_kernels::attention::BLOCK_SLOTS;

#[derive(Debug, Default)]
pub(super) struct PrefixCache {
    /// Least recently used first.
    cached: Vec<CachedPrefix>,
    /// Of how many requests sequences are cached.
    max_requests: usize,
    stats: PrefixCacheStats,
}

/// A sequence that holds the rows of all its tokens.
#[derive(Debug)]
pub(super) struct CachedPrefix {
    key: PrefixKey,
    tokens: Vec<u32>,
    sequence: SequenceId,
    /// It can be cut back to any number of tokens from this one on.
    oldest: usize,
}

/// Which request read it, and which requests may use it: those of the same owner that keep the same rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefixKey {
    pub request: RequestId,
    pub owner: Requester,
    pub keep: SequenceRetention,
    pub continues: bool,
}

impl PrefixKey {
    fn serves(&self, other: PrefixKey) -> bool {
        self.owner == other.owner && self.keep == other.keep && self.continues == other.continues
    }
}

/// A prompt that a running request reads, and where it will be cached.
#[derive(Debug)]
pub(super) struct PromptBeingRead<'a> {
    pub key: PrefixKey,
    pub priority: Priority,
    pub prompt: &'a [u32],
    /// Those that it has not reached.
    pub checkpoints: &'a [usize],
}

impl PromptBeingRead<'_> {
    /// Whether the cache will soon have at least a block more of another prompt than it has now.
    pub fn will_serve(
        &self,
        key: PrefixKey,
        priority: Priority,
        prompt: &[u32],
        found: PrefixMatch,
    ) -> bool {
        let is_for_it = self.key.serves(key) && !key.continues && self.priority <= priority;
        if !is_for_it || self.checkpoints.is_empty() {
            return false;
        }
        let common = common_tokens(self.prompt, prompt);
        let block = |tokens: usize| tokens.div_ceil(BLOCK_SLOTS);
        let serves = |&&at: &&usize| at <= common || block(at) == block(common);
        let furthest = self.checkpoints.iter().rev().find(serves);
        furthest.is_some_and(|&at| at.min(common) >= found.tokens + BLOCK_SLOTS)
    }
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
    pub fn new(max_requests: usize) -> PrefixCache {
        PrefixCache {
            max_requests,
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

    /// It caches nothing.
    pub fn is_off(&self) -> bool {
        self.max_requests == 0
    }

    pub fn find(&self, key: PrefixKey, prompt: &[u32]) -> PrefixMatch {
        let cached = self.cached.iter().filter(|cached| cached.key.serves(key));
        // Less than a block is read sooner than shared.
        let least = if key.continues { 1 } else { BLOCK_SLOTS };
        let cached = cached.map(|c| (&c.tokens[..], c.oldest.max(least)));
        longest_match(cached, prompt)
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
        let is_it = |c: &CachedPrefix| {
            c.key.serves(key) && c.oldest <= prefix.len() && c.tokens.starts_with(prefix)
        };
        let i = self
            .cached
            .iter()
            .position(is_it)
            .filter(|_| found.tokens > 0)?;
        Some(self.cached.remove(i))
    }

    /// A sequence that goes on from a cached one after `tokens` tokens. The cached one stays, unless there is no memory for
    /// a second, or it was the last state of requests that continue each other.
    pub fn continue_from(
        &mut self,
        runtime: &mut Runtime,
        cached: CachedPrefix,
        tokens: usize,
    ) -> Result<SequenceId, StepError> {
        let is_last = cached.key.continues && tokens == cached.tokens.len();
        let fork = if is_last {
            None
        } else {
            runtime.fork(cached.sequence).ok()
        };
        let sequence = fork.unwrap_or(cached.sequence);
        if fork.is_some() {
            self.cached.push(cached);
        }
        match runtime.truncate(sequence, tokens as u64) {
            Ok(()) => Ok(sequence),
            Err(error) => runtime.close(sequence).and(Err(error)),
        }
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

    /// Caches a fork of a sequence that has read these tokens of a prompt. Caching takes no promised memory; where there
    /// is no other, it is not cached.
    pub fn insert_fork(
        &mut self,
        runtime: &mut Runtime,
        key: PrefixKey,
        tokens: &[u32],
        sequence: SequenceId,
    ) -> Result<(), StepError> {
        let is_known = |c: &CachedPrefix| c.key.serves(key) && c.tokens == tokens;
        if tokens.len() < BLOCK_SLOTS || self.cached.iter().any(is_known) {
            return Ok(());
        }
        match runtime.fork(sequence) {
            Ok(fork) => self.insert(runtime, key, tokens.to_vec(), fork),
            Err(_) => Ok(()),
        }
    }

    /// Caches a sequence, or closes it where it is too short, incomplete or cached already.
    pub fn insert(
        &mut self,
        runtime: &mut Runtime,
        key: PrefixKey,
        tokens: Vec<u32>,
        sequence: SequenceId,
    ) -> Result<(), StepError> {
        let stats = runtime.stats(sequence)?;
        let is_whole = stats.rows as u64 == stats.position;
        let is_all = stats.position == tokens.len() as u64;
        let is_same = |c: &CachedPrefix| c.key.serves(key) && c.tokens == tokens;
        let is_useful = key.continues
            || is_whole && tokens.len() >= BLOCK_SLOTS && !self.cached.iter().any(is_same);
        if self.is_off() || !is_all || !is_useful {
            return runtime.close(sequence);
        }
        if key.continues {
            // Two of an owner may have run at the same time; the next goes on from the last that ended.
            self.close_if(runtime, |c| c.serves(key) && c.request != key.request)?;
        }
        let oldest = runtime.store().oldest_restorable(sequence);
        let oldest = oldest.map_or(tokens.len(), |oldest| oldest as usize);
        self.cached.push(CachedPrefix {
            key,
            tokens,
            sequence,
            oldest,
        });
        while self.requests() > self.max_requests {
            self.evict_one(runtime)?;
        }
        // Without a budget the limit is one whole context.
        if runtime.ledger().budget.is_none() {
            let context = runtime.model().config().context;
            while self.distinct_tokens() > context && self.evict_one(runtime)? {}
        }
        Ok(())
    }

    /// Closes what this request's predecessors have cached, of those that continue each other.
    pub fn close_continued(
        &mut self,
        runtime: &mut Runtime,
        key: PrefixKey,
    ) -> Result<(), StepError> {
        self.close_if(runtime, |c| key.continues && c.serves(key))
    }

    fn close_if(
        &mut self,
        runtime: &mut Runtime,
        leaves: impl Fn(&PrefixKey) -> bool,
    ) -> Result<(), StepError> {
        for cached in self.cached.extract_if(.., |cached| leaves(&cached.key)) {
            runtime.close(cached.sequence)?;
        }
        Ok(())
    }

    /// How many requests have sequences here.
    fn requests(&self) -> usize {
        let mut requests: Vec<RequestId> = self.cached.iter().map(|c| c.key.request).collect();
        requests.sort_unstable();
        requests.dedup();
        requests.len()
    }

    /// Tokens of all sequences together; what some have in common counts once. Of those that are continued there is one
    /// for each owner, which may have evicted rows: they do not count.
    fn distinct_tokens(&self) -> usize {
        let cached = self.cached.iter().filter(|c| !c.key.continues);
        let mut all: Vec<(Requester, &[u32])> =
            cached.map(|c| (c.key.owner, &c.tokens[..])).collect();
        all.sort_unstable();
        let mut before = (Requester::default(), &[][..]);
        let mut total = 0;
        for (owner, tokens) in all {
            let common = match before.0 == owner {
                true => same_tokens(before.1, tokens),
                false => 0,
            };
            total += tokens.len() - common;
            before = (owner, tokens);
        }
        total
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
    pub fn sequence(&self) -> SequenceId {
        self.sequence
    }

    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }
}

/// Where a prompt is cached while it is read: at `borders`, where it departs from a cached one, and as near to its end as a
/// prompt of the same tokens can go on from. A step ends at each, so they are at least a block apart.
pub(super) fn checkpoints(prompt: usize, borders: &[usize], found: PrefixMatch) -> Vec<usize> {
    let last = prompt.saturating_sub(1);
    // The last token of a prompt must be read for its logits. Inside a block the end can be cut back by one.
    let end = if last.is_multiple_of(BLOCK_SLOTS) {
        last
    } else {
        prompt
    };
    let mut places: Vec<usize> = borders.iter().copied().chain(found.fork_at).collect();
    places.sort_unstable();
    let mut before = found.tokens;
    places.retain(|&at| {
        let is_apart = at >= before.saturating_add(BLOCK_SLOTS) && at < end;
        before = if is_apart { at } else { before };
        is_apart
    });
    places.push(end);
    places
}

fn same_tokens(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// How far a prompt is the same, without its last token: that must be read for its logits.
fn common_tokens(tokens: &[u32], prompt: &[u32]) -> usize {
    same_tokens(tokens, &prompt[..prompt.len().saturating_sub(1)])
}

/// `cached`: the tokens of a sequence, and how far it can be cut back.
fn longest_match<'a>(
    cached: impl Iterator<Item = (&'a [u32], usize)>,
    prompt: &[u32],
) -> PrefixMatch {
    let (mut matched, mut longest_common) = (0, 0);
    for (tokens, oldest) in cached {
        let common = common_tokens(tokens, prompt);
        longest_common = longest_common.max(common);
        if common >= oldest {
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
    use crate::session::Owner;

    #[test]
    fn matches_and_forks() {
        let all: Vec<u32> = (0..300).collect();
        let cached = [(&all[..40], 33), (&all[..100], 97)];
        let of = |prompt: &[u32]| {
            let found = longest_match(cached.into_iter(), prompt);
            (found.tokens, found.fork_at)
        };
        assert_eq!(of(&all), (100, None));
        // The last token is never matched.
        assert_eq!(of(&all[..100]), (99, None));
        assert_eq!(of(&all[..101]), (100, None));
        // Further than its last block a sequence cannot be cut back.
        assert_eq!(of(&all[..98]), (97, None));
        assert_eq!(of(&all[..97]), (40, Some(96)));
        // A fork must be at least a block beyond the match.
        assert_eq!(of(&all[..72]), (40, None));
        assert_eq!(of(&all[..73]), (40, Some(72)));
        let mut other = all.clone();
        other[80] = 7;
        assert_eq!(of(&other), (40, Some(80)));
        assert_eq!(of(&all[1..]), (0, None));
        assert_eq!(of(&[]), (0, None));
    }
    #[test]
    fn checkpoints_are_a_block_apart() {
        let of = |prompt, borders: &[usize], tokens, fork_at| {
            checkpoints(prompt, borders, PrefixMatch { tokens, fork_at })
        };
        assert_eq!(of(300, &[], 0, None), [300]);
        assert_eq!(of(300, &[280, 40], 0, Some(100)), [40, 100, 280, 300]);
        // Another prompt of the same tokens goes on before the last one, which is alone in its block here.
        assert_eq!(of(289, &[], 0, None), [288]);
        // Too near to what is cached, to another, or not in the prompt.
        assert_eq!(of(300, &[31, 270, 280, 300, 900], 0, None), [270, 300]);
        assert_eq!(of(300, &[270, 280], 240, None), [280, 300]);
        assert_eq!(of(0, &[0], 0, None), [0]);
    }

    #[test]
    fn a_prompt_waits_for_one_that_reads_the_same() {
        let all: Vec<u32> = (0..300).collect();
        let key = |user| PrefixKey {
            request: RequestId(1),
            owner: Owner::default().user(user),
            keep: SequenceRetention::Default,
            continues: false,
        };
        let reader = PromptBeingRead {
            key: key(1),
            priority: Priority::Interactive,
            prompt: &all,
            checkpoints: &[200, 300],
        };
        let found = |tokens| PrefixMatch {
            tokens,
            fork_at: None,
        };
        let waits = |user, prompt: &[u32], tokens| {
            reader.will_serve(key(user), Priority::Interactive, prompt, found(tokens))
        };
        assert!(waits(1, &all, 0) && waits(1, &all, 267) && !waits(1, &all, 268));
        assert!(!waits(2, &all, 0), "another user");
        // A departure behind a checkpoint, and before the first.
        assert!(waits(1, &all[..220], 0) && !waits(1, &all[..220], 180));
        assert!(!waits(1, &all[..190], 0));
        let background = PromptBeingRead {
            priority: Priority::Background,
            ..reader
        };
        assert!(!background.will_serve(key(1), Priority::Interactive, &all, found(0)));
    }
}
