//! Does the guard know? Changes of a cache, what was foreseen of each, and what it did.
//!
//! A prefix is read once. Each candidate change is foreseen on it, made on a fork, and the fork reads the tokens
//! that follow: their mean KL to the untouched cache is the truth. Candidates differ in all that a policy might vary:
//! which rows, how many, in which layers, dropped or rounded to which codec.

use crate::dice::Dice;
use haversack_cache::KvRow;
use haversack_engine::runtime::trial::{TrialChange, TrialPrediction, final_rows};
use haversack_engine::runtime::{Runtime, SequenceId, StepError};
use haversack_engine::sample::kl_divergence;
use haversack_engine::{Codec, KvForm};
use std::ops::ControlFlow;

/// Tokens of a prefix, whole blocks, and those judged behind it.
pub const PREFIX: usize = 1024;
pub const BEHIND: usize = 128;

/// First tokens that no candidate touches: every policy keeps them.
const SINKS: u64 = 4;

/// One candidate.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub is_eviction: bool,
    /// How rows were chosen, or the codec they were rounded to.
    pub kind: &'static str,
    pub layers: usize,
    pub rows: usize,
    pub foreseen: TrialPrediction,
    pub kl: f64,
}

/// Candidates on the text from `offset` on, as many as asked for. `tell` hears how many are done and may stop.
pub fn measure(
    runtime: &mut Runtime,
    tokens: &[u32],
    count: usize,
    seed: u64,
    tell: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<Vec<Sample>, StepError> {
    let Some((prefix, rest)) = tokens.split_at_checked(PREFIX) else {
        return Ok(Vec::new());
    };
    let behind = &rest[..rest.len().min(BEHIND)];
    let vocab = runtime.model().config().vocab;
    let mut dice = Dice::new(seed, &[]);
    let id = runtime.open()?;
    runtime.feed(id, prefix, &mut |_| ControlFlow::Continue(()))?;
    let truth = on_fork(runtime, id, None, behind)?;
    let mut samples = Vec::new();
    for done in 0..count {
        let (kind, change) = candidate(runtime, id, &mut dice)?;
        if let Some(foreseen) = change.predict(runtime, id)? {
            let found = on_fork(runtime, id, Some(&change), behind)?;
            let pairs = truth.chunks_exact(vocab).zip(found.chunks_exact(vocab));
            let kl: f64 = pairs.map(|(a, b)| kl_divergence(a, b).0).sum();
            samples.push(Sample {
                is_eviction: change.round.is_none(),
                kind,
                layers: change.rows.len(),
                rows: change.rows.iter().map(|(_, rows)| rows.len()).sum(),
                foreseen,
                kl: kl / behind.len().max(1) as f64,
            });
        }
        if tell(done + 1).is_break() {
            break;
        }
    }
    runtime.close(id)?;
    Ok(samples)
}

fn on_fork(
    runtime: &mut Runtime,
    id: SequenceId,
    change: Option<&TrialChange>,
    behind: &[u32],
) -> Result<Vec<f32>, StepError> {
    let fork = runtime.fork(id)?;
    let logits = change
        .map_or(Ok(()), |change| change.apply(runtime, fork))
        .and_then(|()| runtime.all_logits(fork, behind));
    runtime.close(fork)?;
    logits
}

/// Any change.
fn candidate(
    runtime: &Runtime,
    id: SequenceId,
    dice: &mut Dice,
) -> Result<(&'static str, TrialChange), StepError> {
    let layers = runtime.model().config().layers.len();
    let touched = [1, 1, 3, 8, layers][dice.below(5)].min(layers);
    let mut all: Vec<usize> = (0..layers).collect();
    dice.draw(&mut all, touched);
    let is_eviction = dice.below(2) == 0;
    let (kind, share) = (dice.below(3), dice.below(6));
    let mut rows = Vec::new();
    for &layer in &all[..touched] {
        let mut settled = final_rows(runtime, id, layer)?;
        settled.retain(|row| row.position >= SINKS);
        if settled.is_empty() {
            continue;
        }
        settled.sort_by_key(|row| row.position);
        let chosen = match is_eviction {
            true => victims(settled, kind, share, dice),
            false => span(settled, share, dice),
        };
        rows.push((layer, chosen));
    }
    let codecs = [Codec::Int4, Codec::Int3, Codec::Int2];
    let name = match is_eviction {
        true => ["random", "oldest", "least"][kind],
        false => ["int4", "int3", "int2"][kind],
    };
    let round = (!is_eviction).then(|| KvForm::both(codecs[kind].form()));
    Ok((name, TrialChange { rows, round }))
}

/// Random rows, the oldest, or those that got least attention.
fn victims(mut rows: Vec<KvRow>, kind: usize, share: usize, dice: &mut Dice) -> Vec<KvRow> {
    let parts = [0.03, 0.06, 0.125, 0.25, 0.5, 0.75];
    let count = (rows.len() as f64 * parts[share]).ceil() as usize;
    match kind {
        0 => dice.draw(&mut rows, count),
        1 => {}
        _ => {
            let worth = |row: &KvRow| f64::from(row.norm_sq) * f64::from(row.mass);
            let per_query = |row: &KvRow| worth(row) / row.queries(PREFIX as u64).max(1) as f64;
            rows.sort_by(|a, b| per_query(a).total_cmp(&per_query(b)));
        }
    }
    rows.truncate(count);
    rows
}

/// Neighbours.
fn span(rows: Vec<KvRow>, share: usize, dice: &mut Dice) -> Vec<KvRow> {
    let parts = [0.06, 0.125, 0.25, 0.5, 0.75, 1.0];
    let count = (rows.len() as f64 * parts[share]).ceil() as usize;
    let first = dice.below(rows.len() - count + 1);
    rows[first..first + count].to_vec()
}

/// Rank correlation; ties share their mean rank.
pub fn spearman(pairs: &[(f64, f64)]) -> f64 {
    let ranks = |value: &dyn Fn(&(f64, f64)) -> f64| {
        let mut order: Vec<usize> = (0..pairs.len()).collect();
        order.sort_by(|&a, &b| value(&pairs[a]).total_cmp(&value(&pairs[b])));
        let mut ranks = vec![0.0; pairs.len()];
        let mut start = 0;
        while start < order.len() {
            let same = |i: &&usize| value(&pairs[**i]) == value(&pairs[order[start]]);
            let end = start + order[start..].iter().take_while(same).count().max(1);
            for &i in &order[start..end] {
                ranks[i] = (start + end - 1) as f64 / 2.0;
            }
            start = end;
        }
        ranks
    };
    let (a, b) = (ranks(&|p| p.0), ranks(&|p| p.1));
    let mean = (pairs.len() as f64 - 1.0) / 2.0;
    let sum = |a: &[f64], b: &[f64]| {
        let products = a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean));
        products.sum::<f64>()
    };
    sum(&a, &b) / (sum(&a, &a) * sum(&b, &b)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_correlate() {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(near(
            spearman(&[(1.0, 10.0), (2.0, 11.0), (9.0, 99.0)]),
            1.0
        ));
        assert!(near(spearman(&[(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]), -1.0));
        // Ranks 0 1 2 3 and 0.5 0.5 2 3.
        let tied = [(1.0, 5.0), (2.0, 5.0), (3.0, 6.0), (4.0, 7.0)];
        assert!(near(spearman(&tied), 4.5 / (5.0f64 * 4.5).sqrt()));
    }
}
