//! Tokens of a sequence as a strip: which are kept how, which are hidden, on disk or gone. Pure.
//!
//! ```text
//! table    ▓▓ sinks │ rest ░░░░ │ missing │ rest ░ │ hidden │ recent ▒▒▒
//! session            │           │ disk ids│        │        │
//! strip    ▓▓ sinks │ rest ░░░░ │disk│ids │ rest ░ │ hidden │ recent ▒▒▒      every token once, in order
//! ```

use crate::session::picture::Away;
use haversack_cache::{LayerShape, Run, Spot, Zone};
use std::ops::Range;

/// Where a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockSource {
    /// In memory, in the form of this zone.
    Held(Zone),
    /// In memory, and not seen.
    Hidden,
    /// The window of these layers has passed it.
    Passed,
    /// Its rows are in the session's file.
    Disk,
    /// The file has its id alone.
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
        BlockSource::ALL
            .iter()
            .position(|l| *l == self)
            .unwrap_or(0)
    }
}

/// Tokens behind each other.
pub type Stretch = (u64, BlockSource);

/// Layers that keep the same tokens in the same forms.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenMap {
    pub layers: Vec<usize>,
    pub shape: LayerShape,
    /// Tokens by where they are, as in [`Lies::ALL`]; together all that were seen.
    pub tokens: [u64; BlockSource::ALL.len()],
    /// From the first token to the last, at most [`STRETCHES`]. Where there would be more, what is shown of a part is what
    /// most of it is.
    pub stretches: Vec<Stretch>,
}

/// Of one strip. A screen has no more to show them on.
pub const STRETCHES: usize = 256;
/// Of one sequence.
pub const STRIPS: usize = 8;

/// The strips of a sequence, from the runs of each layer, and how many layers have no strip because there are too many.
pub fn strips(
    layers: impl Iterator<Item = (LayerShape, Vec<Run>)>,
    away: &[(Range<u64>, Away)],
) -> (Vec<TokenMap>, usize) {
    // Layers that keep the same are told by their runs, before anything is made of them.
    let mut groups: Vec<(LayerShape, Vec<Run>, Vec<usize>)> = Vec::new();
    let mut left_off = 0;
    for (i, (shape, runs)) in layers.enumerate() {
        let same = |group: &(LayerShape, Vec<Run>, Vec<usize>)| group.0 == shape && group.1 == runs;
        match groups.iter().position(same) {
            Some(at) => groups[at].2.push(i),
            None if groups.len() == STRIPS => left_off += 1,
            None => groups.push((shape, runs, vec![i])),
        }
    }
    let strips = groups.into_iter().map(|(shape, runs, layers)| {
        let stretches = refine(&runs, away);
        let mut tokens = [0; BlockSource::ALL.len()];
        for &(count, lies) in &stretches {
            tokens[lies.index()] += count;
        }
        TokenMap {
            layers,
            shape,
            tokens,
            stretches: coarsen(stretches, STRETCHES),
        }
    });
    (strips.collect(), left_off)
}

/// What a table does not have may be somewhere else.
fn refine(runs: &[Run], away: &[(Range<u64>, Away)]) -> Vec<Stretch> {
    let mut stretches = Vec::new();
    let mut at = 0;
    let mut away = away.iter().peekable();
    for run in runs {
        let end = at + run.tokens;
        let lies = match run.spot {
            Spot::Held(zone) => BlockSource::Held(zone),
            Spot::Hidden => BlockSource::Hidden,
            Spot::Passed => BlockSource::Passed,
            Spot::Missing => {
                while at < end {
                    while away.next_if(|(span, _)| span.end <= at).is_some() {}
                    let (until, lies) = match away.peek() {
                        Some((span, what)) if span.start <= at => (
                            span.end,
                            match what {
                                Away::Disk => BlockSource::Disk,
                                Away::Ids => BlockSource::Ids,
                            },
                        ),
                        Some((span, _)) => (span.start, BlockSource::Gone),
                        None => (end, BlockSource::Gone),
                    };
                    push(&mut stretches, until.min(end) - at, lies);
                    at = until.min(end);
                }
                continue;
            }
        };
        push(&mut stretches, run.tokens, lies);
        at = end;
    }
    stretches
}

/// The same tokens in no more than so many stretches.
fn coarsen(stretches: Vec<Stretch>, most: usize) -> Vec<Stretch> {
    if stretches.len() <= most {
        return stretches;
    }
    let all: u64 = stretches.iter().map(|(tokens, _)| tokens).sum();
    let part = all.div_ceil(most as u64).max(1);
    let mut coarse = Vec::new();
    let mut counts = [0u64; BlockSource::ALL.len()];
    let mut filled = 0;
    for (mut tokens, lies) in stretches {
        while tokens > 0 {
            let take = tokens.min(part - filled);
            counts[lies.index()] += take;
            filled += take;
            tokens -= take;
            if filled == part {
                push(&mut coarse, part, most_of(&counts));
                (counts, filled) = ([0; BlockSource::ALL.len()], 0);
            }
        }
    }
    push(&mut coarse, filled, most_of(&counts));
    coarse
}

fn most_of(counts: &[u64; BlockSource::ALL.len()]) -> BlockSource {
    let most = BlockSource::ALL
        .iter()
        .zip(counts)
        .rev()
        .max_by_key(|(_, n)| **n);
    most.map_or(BlockSource::Gone, |(lies, _)| *lies)
}

fn push(stretches: &mut Vec<Stretch>, tokens: u64, lies: BlockSource) {
    match stretches.last_mut() {
        _ if tokens == 0 => {}
        Some(last) if last.1 == lies => last.0 += tokens,
        _ => stretches.push((tokens, lies)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack_kernels::format::kv::KvForm;

    const REST: BlockSource = BlockSource::Held(Zone::Rest);

    fn run(tokens: u64, spot: Spot) -> Run {
        Run { tokens, spot }
    }

    #[test]
    fn what_is_missing_is_looked_for() {
        let runs = [
            run(4, Spot::Held(Zone::Sinks)),
            run(60, Spot::Missing),
            run(32, Spot::Held(Zone::Rest)),
            run(40, Spot::Missing),
        ];
        let away = [
            (0..10, Away::Disk),
            (10..20, Away::Disk),
            (30..40, Away::Ids),
            (80..100, Away::Disk),
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

    /// However many there are, all tokens are in the strip, and a part shows what most of it is.
    #[test]
    fn a_long_strip_is_coarse_and_whole() {
        for count in [1u64, 255, 256, 257, 1000, 40_001] {
            let many: Vec<Stretch> = (0..count)
                .map(|i| match i % 2 {
                    0 => (3, REST),
                    _ => (1, BlockSource::Hidden),
                })
                .collect();
            let all: u64 = many.iter().map(|s| s.0).sum();
            let is_coarse = many.len() > STRETCHES;
            let coarse = coarsen(many, STRETCHES);
            assert!(coarse.len() <= STRETCHES);
            assert_eq!(coarse.iter().map(|s| s.0).sum::<u64>(), all, "{count}");
            if is_coarse && count > 512 {
                assert!(coarse.iter().all(|s| s.1 == REST), "{coarse:?}");
            }
        }
    }

    #[test]
    fn layers_that_keep_the_same_are_one_strip() {
        let plain = LayerShape::plain(1, 32, KvForm::F16);
        let windowed = LayerShape {
            window: Some(64),
            ..plain
        };
        let whole = vec![run(100, Spot::Held(Zone::Rest))];
        let passed = vec![run(36, Spot::Passed), run(64, Spot::Held(Zone::Rest))];
        let layers = [&whole, &passed, &whole, &passed].map(|runs| match runs.len() {
            1 => (plain, runs.clone()),
            _ => (windowed, runs.clone()),
        });
        let (found, left_off) = strips(layers.into_iter(), &[]);
        let layers: Vec<&[usize]> = found.iter().map(|s| &s.layers[..]).collect();
        assert_eq!((layers, left_off), (vec![&[0, 2][..], &[1, 3]], 0));
        assert_eq!(found[1].tokens[BlockSource::Passed.index()], 36);
        let each = (1..12).map(|n| (plain, vec![run(n, Spot::Missing)]));
        let (found, left_off) = strips(each, &[]);
        assert_eq!((found.len(), left_off), (STRIPS, 3));
    }
}
