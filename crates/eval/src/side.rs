//! Predictions side by side: one piece of text through a full f16 cache and any number of contenders.

use haversack_engine::runtime::perplexity::{KlTally, TextReader, side_by_side};
use haversack_engine::runtime::{Runtime, SequenceId, StepError};
use std::ops::ControlFlow;

/// What one cache made of a piece of text.
#[derive(Clone, Debug, Default)]
pub struct CacheVerdict {
    pub tally: KlTally,
    /// What a token takes at the end of the text: the median.
    pub token_ms: Option<f64>,
    pub held: CacheUse,
}

/// What a sequence holds at the end of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Of its blocks.
    pub bytes: u64,
    /// Values of the rows kept, keys and values, over all layers.
    pub values: u64,
    /// Rows of the fullest layer.
    pub rows: usize,
    /// (layer, bucket of positions): the share of its rows that is kept, of 255.
    pub kept: Vec<Vec<u8>>,
}

/// Buckets of positions in a picture of what was kept.
pub const BUCKETS: usize = 64;
/// Tokens at the end that are read one at a time, for their time.
pub const SINGLES: usize = 32;

impl CacheUse {
    pub fn of(runtime: &Runtime, id: SequenceId) -> Result<CacheUse, StepError> {
        let (stats, store) = (runtime.stats(id)?, runtime.store());
        let seen = stats.position.max(1);
        let mut held = CacheUse {
            bytes: stats.bytes as u64,
            rows: stats.rows,
            ..CacheUse::default()
        };
        let buckets = BUCKETS.min(seen as usize) as u64;
        let bucket = |position: u64| (position * buckets / seen).min(buckets - 1) as usize;
        let mut all = vec![0u64; buckets as usize];
        (0..seen).for_each(|position| all[bucket(position)] += 1);
        for (layer, shape) in store.layers().iter().enumerate() {
            let mut kept = vec![0u64; buckets as usize];
            for position in store.kept_positions(id, layer)? {
                kept[bucket(position)] += 1;
                held.values += 2 * shape.width() as u64;
            }
            let shares = kept.iter().zip(&all);
            let shares = shares.map(|(kept, all)| (kept * 255).div_ceil(*all).min(255) as u8);
            held.kept.push(shares.collect());
        }
        Ok(held)
    }
}

/// Reads `tokens` from empty sequences; places from `from` on count. The reference is judged too, by
/// itself. `None` if `progress` stopped it.
pub fn judge(
    reference: &mut Runtime,
    contenders: &mut [&mut Runtime],
    tokens: &[u32],
    from: usize,
    progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<Option<(CacheVerdict, Vec<CacheVerdict>)>, StepError> {
    let id = reference.open()?;
    let mut truth = TextReader::new(reference, id);
    let mut readers = Vec::new();
    for runtime in contenders {
        let id = runtime.open()?;
        readers.push(TextReader::new(runtime, id));
    }
    let reference = Some(&mut truth);
    let whole = side_by_side(&mut readers, reference, tokens, from, SINGLES, progress);
    let mut result = whole.and_then(|whole| {
        let all: Result<Vec<CacheVerdict>, StepError> = readers.iter().map(judged).collect();
        Ok((judged(&truth)?, all?, whole))
    });
    for reader in readers.iter_mut().chain([&mut truth]) {
        if let Err(error) = reader.runtime.close(reader.id) {
            result = Err(error);
        }
    }
    let (mut truth, judged, whole) = result?;
    truth.tally.kl = vec![0.0; truth.tally.tokens];
    truth.tally.top1 = truth.tally.tokens;
    Ok(whole.then_some((truth, judged)))
}

fn judged(reader: &TextReader<'_>) -> Result<CacheVerdict, StepError> {
    let times = reader.step_times.iter();
    let times = times.map(|time| time.as_secs_f64() * 1e3);
    Ok(CacheVerdict {
        tally: reader.tally.clone(),
        token_ms: crate::stats::median(&times.collect::<Vec<f64>>()),
        held: CacheUse::of(reader.runtime, reader.id)?,
    })
}
