//! Token map: where each token of a sequence is: in memory by zone, hidden, on disk, or gone. Pure.
//!
//! ```text
//! cache    ▓▓ sinks │ rest ░░░░ │ missing │ rest ░ │ hidden │ recent ▒▒▒
//! session           │           │ disk ids│        │        │
//! map      ▓▓ sinks │ rest ░░░░ │disk│ids │ rest ░ │ hidden │ recent ▒▒▒      every token once, in order
//! ```

use crate::session::report::RowsAway;
use haversack_cache::{LayerShape, TokenRun, TokenState, Zone};
use std::ops::Range;

/// Where a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockSource {
    /// In memory, in the form of this zone.
    Held(Zone),
    /// In memory, masked from attention.
    Hidden,
    /// Outside the window of these layers.
    Passed,
    /// Its rows are in the session's file.
    Disk,
    /// Only its id is in the session's file.
    Ids,
    Gone,
}

impl BlockSource {
    pub const ALL: [BlockSource; 8] = [
        BlockSource::Held(Zone::Sinks),
        BlockSource::Held(Zone::Recent),
        BlockSource::Held(Zone::Rest),
        BlockSource::Hidden,
        BlockSource::Passed,
        BlockSource::Disk,
        BlockSource::Ids,
        BlockSource::Gone,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            BlockSource::Held(zone) => zone.name(),
            BlockSource::Hidden => "hidden",
            BlockSource::Passed => "passed",
            BlockSource::Disk => "disk",
            BlockSource::Ids => "ids",
            BlockSource::Gone => "gone",
        }
    }

    fn index(self) -> usize {
        let same = |source: &BlockSource| *source == self;
        BlockSource::ALL.iter().position(same).unwrap_or(0)
    }
}

impl From<RowsAway> for BlockSource {
    fn from(away: RowsAway) -> BlockSource {
        match away {
            RowsAway::Disk => BlockSource::Disk,
            RowsAway::Ids => BlockSource::Ids,
        }
    }
}

/// Consecutive tokens in one place.
pub type SourceRun = (u64, BlockSource);

/// The map of all layers that keep the same tokens in the same forms.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenMap {
    pub layers: Vec<usize>,
    pub shape: LayerShape,
    /// Tokens by where they are, as in [`BlockSource::ALL`]; their sum is the position of the sequence.
    pub tokens: [u64; BlockSource::ALL.len()],
    /// From the first token to the last, at most [`MAX_RUNS`]. A longer map is coarsened: each part shows where most of its
    /// tokens are.
    pub runs: Vec<SourceRun>,
}

/// Of one map: about what a screen can show.
pub const MAX_RUNS: usize = 256;
/// Of one sequence.
pub const MAX_MAPS: usize = 8;

/// The maps of a sequence, from the runs of each layer, and the number of layers left without one.
pub fn token_maps(
    layers: impl Iterator<Item = (LayerShape, Vec<TokenRun>)>,
    away: &[(Range<u64>, RowsAway)],
) -> (Vec<TokenMap>, usize) {
    // Layers are grouped by their runs before a map is made.
    let mut groups: Vec<(LayerShape, Vec<TokenRun>, Vec<usize>)> = Vec::new();
    let mut left_off = 0;
    for (i, (shape, runs)) in layers.enumerate() {
        let same =
            |group: &(LayerShape, Vec<TokenRun>, Vec<usize>)| group.0 == shape && group.1 == runs;
        match groups.iter().position(same) {
            Some(at) => groups[at].2.push(i),
            None if groups.len() == MAX_MAPS => left_off += 1,
            None => groups.push((shape, runs, vec![i])),
        }
    }
    let maps = groups.into_iter().map(|(shape, runs, layers)| {
        let runs = refine(&runs, away);
        let mut tokens = [0; BlockSource::ALL.len()];
        for &(count, source) in &runs {
            tokens[source.index()] += count;
        }
        TokenMap {
            layers,
            shape,
            tokens,
            runs: coarsen(runs, MAX_RUNS),
        }
    });
    (maps.collect(), left_off)
}

/// Looks up in the session what the cache is missing.
fn refine(cache_runs: &[TokenRun], away: &[(Range<u64>, RowsAway)]) -> Vec<SourceRun> {
    let mut runs = Vec::new();
    let mut at = 0;
    let mut away = away.iter().peekable();
    for run in cache_runs {
        let end = at + run.tokens;
        let source = match run.state {
            TokenState::Held(zone) => BlockSource::Held(zone),
            TokenState::Hidden => BlockSource::Hidden,
            TokenState::Passed => BlockSource::Passed,
            TokenState::Missing => {
                while at < end {
                    while away.next_if(|(span, _)| span.end <= at).is_some() {}
                    let (until, source) = match away.peek() {
                        Some((span, place)) if span.start <= at => (span.end, (*place).into()),
                        Some((span, _)) => (span.start, BlockSource::Gone),
                        None => (end, BlockSource::Gone),
                    };
                    push(&mut runs, until.min(end) - at, source);
                    at = until.min(end);
                }
                continue;
            }
        };
        push(&mut runs, run.tokens, source);
        at = end;
    }
    runs
}

/// The same tokens in at most `max` runs.
fn coarsen(runs: Vec<SourceRun>, max: usize) -> Vec<SourceRun> {
    if runs.len() <= max {
        return runs;
    }
    let all: u64 = runs.iter().map(|(tokens, _)| tokens).sum();
    let part = all.div_ceil(max as u64).max(1);
    let mut coarse = Vec::new();
    let mut counts = [0u64; BlockSource::ALL.len()];
    let mut filled = 0;
    for (mut tokens, source) in runs {
        while tokens > 0 {
            let take = tokens.min(part - filled);
            counts[source.index()] += take;
            filled += take;
            tokens -= take;
            if filled == part {
                push(&mut coarse, part, majority(&counts));
                (counts, filled) = ([0; BlockSource::ALL.len()], 0);
            }
        }
    }
    push(&mut coarse, filled, majority(&counts));
    coarse
}

fn majority(counts: &[u64; BlockSource::ALL.len()]) -> BlockSource {
    let counted = BlockSource::ALL.iter().zip(counts).rev();
    let max = counted.max_by_key(|(_, n)| **n);
    max.map_or(BlockSource::Gone, |(source, _)| *source)
}

fn push(runs: &mut Vec<SourceRun>, tokens: u64, source: BlockSource) {
    match runs.last_mut() {
        _ if tokens == 0 => {}
        Some(last) if last.1 == source => last.0 += tokens,
        _ => runs.push((tokens, source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack_kernels::format::kv::KvForm;

    const REST: BlockSource = BlockSource::Held(Zone::Rest);

    fn run(tokens: u64, spot: TokenState) -> TokenRun {
        TokenRun {
            tokens,
            state: spot,
        }
    }

    #[test]
    fn missing_tokens_are_looked_up_in_the_session() {
        let runs = [
            run(4, TokenState::Held(Zone::Sinks)),
            run(60, TokenState::Missing),
            run(32, TokenState::Held(Zone::Rest)),
            run(40, TokenState::Missing),
        ];
        let away = [
            (0..10, RowsAway::Disk),
            (10..20, RowsAway::Disk),
            (30..40, RowsAway::Ids),
            (80..100, RowsAway::Disk),
        ];
        assert_eq!(
            refine(&runs, &away),
            [
                (4, BlockSource::Held(Zone::Sinks)),
                (16, BlockSource::Disk),
                (10, BlockSource::Gone),
                (10, BlockSource::Ids),
                (24, BlockSource::Gone),
                (32, REST),
                (4, BlockSource::Disk),
                (36, BlockSource::Gone),
            ]
        );
    }

    /// A coarse map still has every token, and each part shows where most of its tokens are.
    #[test]
    fn a_long_map_is_coarse_and_complete() {
        for count in [1u64, 255, 256, 257, 1000, 40_001] {
            let many: Vec<SourceRun> = (0..count)
                .map(|i| match i % 2 {
                    0 => (3, REST),
                    _ => (1, BlockSource::Hidden),
                })
                .collect();
            let all: u64 = many.iter().map(|s| s.0).sum();
            let is_coarse = many.len() > MAX_RUNS;
            let coarse = coarsen(many, MAX_RUNS);
            assert!(coarse.len() <= MAX_RUNS);
            assert_eq!(coarse.iter().map(|s| s.0).sum::<u64>(), all, "{count}");
            if is_coarse && count > 512 {
                assert!(coarse.iter().all(|s| s.1 == REST), "{coarse:?}");
            }
        }
    }

    #[test]
    fn layers_that_keep_the_same_share_a_map() {
        let plain = LayerShape::plain(1, 32, KvForm::F16);
        let windowed = LayerShape {
            window: Some(64),
            ..plain
        };
        let whole = vec![run(100, TokenState::Held(Zone::Rest))];
        let passed = vec![
            run(36, TokenState::Passed),
            run(64, TokenState::Held(Zone::Rest)),
        ];
        let layers = [&whole, &passed, &whole, &passed].map(|runs| match runs.len() {
            1 => (plain, runs.clone()),
            _ => (windowed, runs.clone()),
        });
        let (found, left_off) = token_maps(layers.into_iter(), &[]);
        let layers: Vec<&[usize]> = found.iter().map(|s| &s.layers[..]).collect();
        assert_eq!((layers, left_off), (vec![&[0, 2][..], &[1, 3]], 0));
        assert_eq!(found[1].tokens[BlockSource::Passed.index()], 36);
        let each = (1..12).map(|n| (plain, vec![run(n, TokenState::Missing)]));
        let (found, left_off) = token_maps(each, &[]);
        assert_eq!((found.len(), left_off), (MAX_MAPS, 3));
    }
}
