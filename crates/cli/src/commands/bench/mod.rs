//! `bench`: speed, alone or beside llama-bench.
//!
//! A row is measured in rounds, ours and the other program's by turns, so that a busy machine slows
//! both; the medians count. The other program gets the same threads, depth and number of tokens, and
//! the better of its two attention paths.

mod peer;
mod record;
mod roofline;
mod work;

use crate::args;
use crate::engine::{self, Habits, LoadedModel};
use crate::error::usage;
use crate::{out, resolve};
use anyhow::Result;
use haversack::engine::runtime::SequenceId;
use haversack::engine::step::{LogitRows, StepSpan};
use haversack::memory::bytes::human;
use peer::Peer;
use serde_json::json;
use std::ops::ControlFlow;
use std::time::Instant;
use work::{BATCH_PROMPT, Work, median};

const ROWS: [(&str, Work); 13] = [
    ("prefill_512", Work::Prefill(512)),
    ("prefill_8000", Work::Prefill(8000)),
    ("decode_d0", Work::Decode { depth: 0 }),
    ("decode_d2048", Work::Decode { depth: 2048 }),
    ("decode_d8000", Work::Decode { depth: 8000 }),
    ("batch_1", Work::Batch(1)),
    ("batch_2", Work::Batch(2)),
    ("batch_3", Work::Batch(3)),
    ("batch_4", Work::Batch(4)),
    ("batch_5", Work::Batch(5)),
    ("batch_6", Work::Batch(6)),
    ("batch_7", Work::Batch(7)),
    ("batch_8", Work::Batch(8)),
];

/// A measured row.
pub struct BenchRow {
    pub name: &'static str,
    /// Tokens per second.
    pub value: f64,
    pub against: Option<f64>,
}

impl BenchRow {
    pub fn ratio(&self) -> Option<f64> {
        let against = self.against.filter(|against| *against > 0.0);
        against.map(|against| self.value / against)
    }
}

pub fn bench(args: &args::BenchArgs, as_json: bool) -> Result<()> {
    let chosen = chosen(&args.only)?;
    let path = resolve::model(args.model.as_deref())?;
    let threads = engine::threads(&args.compute);
    let peer = args.against.as_ref();
    let peer = peer.map(|program| Peer::new(program, &path, threads, &args.against_kv));
    let peer = peer.transpose()?;
    let mut engine = engine::load(path.to_str(), &args.compute, Habits::MEASURE)?;
    engine.note_budget();
    // Of a model with a shorter context some rows do not exist. A budget leaves none out.
    let context = engine.model.config().context;
    let (chosen, skipped): (Vec<_>, Vec<_>) = chosen
        .into_iter()
        .partition(|(_, work)| work.context() <= context);
    for (name, work) in &chosen {
        check_fits(&engine, name, *work)?;
    }
    for (name, work) in &skipped {
        let needs = work.context();
        out::note(&format!(
            "{name}: skipped, it needs {needs} tokens and the context is {context}"
        ));
    }
    let kv = engine.runtime.kv().name();
    out::note(&format!("{kv} keys and values, {threads} threads"));
    if cfg!(debug_assertions) {
        out::note("this build is not optimised; measure with --release");
    }
    let skipped: Vec<&str> = skipped.iter().map(|(name, _)| *name).collect();
    let mut rows = Vec::new();
    for (name, work) in chosen {
        let row = measure(&mut engine, peer.as_ref(), name, work, args.repeat)?;
        if !as_json {
            out::line(&line(&row))?;
        }
        rows.push(row);
    }
    let weight_bytes = engine.model.weights().bytes_per_token() as u64;
    drop(engine);
    let decode = rows.iter().find(|row| row.name == "decode_d0");
    let (ours, theirs) = (decode.map(|d| d.value), decode.and_then(|d| d.against));
    let roofline = roofline::measure(threads, weight_bytes, ours, theirs);
    if !as_json {
        out::line(&roofline.line())?;
    }
    let setting = record::Setting::now(&path, threads, &kv, args);
    if let Some(csv) = &args.csv {
        record::append(csv, &setting, &rows, &roofline)?;
    }
    if !as_json {
        return Ok(());
    }
    let rows = out::list(&rows, |row| {
        json!({
            "name": row.name,
            "value": row.value,
            "unit": "tokens/s",
            "against": row.against,
            "ratio": row.ratio(),
        })
    });
    out::json(&json!({
        "rows": rows,
        "skipped": skipped,
        "roofline": roofline.json(),
        "setting": setting.json(),
    }))
}

/// Refuses a row that the budget has no room for, before any is measured.
fn check_fits(engine: &LoadedModel, name: &str, work: Work) -> Result<()> {
    let runtime = &engine.runtime;
    let Some(budget) = runtime.ledger().budget else {
        return Ok(());
    };
    // What is measured is a fork of each sequence, with rows of its own behind those that both have.
    let (count, mut rows) = (work.sequences(), work.context());
    if runtime.bounds().window.is_some() {
        rows = rows.min(runtime.bounds().rows_max);
    }
    let others = runtime.sequence_bytes(rows) * (count - 1);
    let forks = runtime.sequence_bytes(work.measured().min(rows)) * count;
    let needed = runtime.needs_bytes(rows) + others + forks;
    if needed <= budget {
        return Ok(());
    }
    Err(anyhow::anyhow!(
        "{name} needs {}, and {} allows {}; accepted: more, or --only with rows that fit",
        human(needed as u64),
        engine.budget_name(),
        human(budget as u64),
    ))
}

fn chosen(only: &[String]) -> Result<Vec<(&'static str, Work)>> {
    for name in only {
        if !ROWS.iter().any(|(known, _)| known == name) {
            let names = ROWS.map(|(name, _)| name).join(", ");
            let what = format!("--only has no row '{name}'; accepted: {names}");
            return Err(usage(what));
        }
    }
    let wanted = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    Ok(ROWS.into_iter().filter(|(name, _)| wanted(name)).collect())
}

fn line(row: &BenchRow) -> String {
    let ours = format!("{:14} {:>9.1} tokens/s", row.name, row.value);
    match (row.against, row.ratio()) {
        (Some(against), Some(ratio)) => format!("{ours} {against:>9.1} theirs {ratio:>6.2} x"),
        _ => ours,
    }
}

fn measure(
    engine: &mut LoadedModel,
    peer: Option<&Peer>,
    name: &'static str,
    work: Work,
    repeat: usize,
) -> Result<BenchRow> {
    let mut bed = Bed::prepare(engine, work)?;
    // Once without counting: pages come in, threads wake up.
    bed.run(engine)?;
    let mut ours = Vec::new();
    let mut theirs = peer::Samples::default();
    for round in 1..=repeat {
        ours.push(bed.run(engine)?);
        if let Some(peer) = peer {
            theirs.add(&peer.run(work)?);
        }
        let theirs = theirs.best().map(|speed| format!(", theirs {speed:.1}"));
        let (speed, theirs) = (median(&ours), theirs.unwrap_or_default());
        let note = format!("  {name} {round}/{repeat}: {speed:.1} tokens/s{theirs}");
        out::note(&note);
    }
    bed.close(engine)?;
    Ok(BenchRow {
        name,
        value: median(&ours),
        against: theirs.best(),
    })
}

/// Sequences ready to be measured again and again.
struct Bed {
    work: Work,
    sequences: Vec<SequenceId>,
    /// Where each stands before a round.
    depth: usize,
}

impl Bed {
    fn prepare(engine: &mut LoadedModel, work: Work) -> Result<Bed> {
        let count = work.sequences();
        let depth = match work {
            Work::Prefill(_) => 0,
            // The first token needs one before it; it is what a beginning token is for.
            Work::Decode { depth } => depth.max(1),
            Work::Batch(_) => BATCH_PROMPT,
        };
        let opened = (0..count).map(|_| engine.runtime.open());
        let sequences = opened.collect::<Result<Vec<SequenceId>, _>>()?;
        for (index, &sequence) in sequences.iter().enumerate() {
            if depth > 0 {
                let prompt = ids(engine, index as u64, depth);
                feed(engine, sequence, &prompt)?;
            }
        }
        Ok(Bed {
            work,
            sequences,
            depth,
        })
    }

    /// One measurement in tokens per second; the sequences stand where they stood.
    fn run(&mut self, engine: &mut LoadedModel) -> Result<f64> {
        let per_sequence = self.work.measured();
        let seeds = 1000..1000 + self.sequences.len() as u64;
        let tokens = seeds.map(|seed| ids(engine, seed, per_sequence));
        let tokens: Vec<Vec<u32>> = tokens.collect();
        // Cutting back is not always possible; a fork that is closed leaves the base as it was.
        let sequences = self.sequences.iter();
        let forks = sequences.map(|&sequence| engine.runtime.fork(sequence));
        let forks = forks.collect::<Result<Vec<SequenceId>, _>>()?;
        let started = Instant::now();
        if let Work::Prefill(_) = self.work {
            feed(engine, forks[0], &tokens[0])?;
        } else {
            for step in 0..per_sequence {
                let spans = forks.iter().zip(&tokens);
                let spans = spans.map(|(&sequence, tokens)| StepSpan {
                    sequence,
                    position: (self.depth + step) as u64,
                    tokens: &tokens[step..=step],
                    want: LogitRows::Last,
                });
                engine.runtime.step(&spans.collect::<Vec<_>>())?;
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        for fork in forks {
            engine.runtime.close(fork)?;
        }
        Ok((per_sequence * self.sequences.len()) as f64 / seconds)
    }

    fn close(self, engine: &mut LoadedModel) -> Result<()> {
        for sequence in self.sequences {
            engine.runtime.close(sequence)?;
        }
        Ok(())
    }
}

fn feed(engine: &mut LoadedModel, sequence: SequenceId, tokens: &[u32]) -> Result<()> {
    let mut on = |_| ControlFlow::Continue(());
    engine.runtime.feed(sequence, tokens, &mut on)?;
    Ok(())
}

/// Token ids without meaning, the same every time.
fn ids(engine: &LoadedModel, seed: u64, count: usize) -> Vec<u32> {
    let vocabulary = engine.model.config().vocab as u64;
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % vocabulary) as u32
    };
    (0..count).map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
    }

    #[test]
    fn rows_are_chosen_by_name() {
        assert_eq!(chosen(&[]).unwrap().len(), ROWS.len());
        let one = chosen(&["decode_d0".into()]).unwrap();
        assert_eq!(one, [("decode_d0", Work::Decode { depth: 0 })]);
        assert!(
            chosen(&["decode".into()])
                .unwrap_err()
                .to_string()
                .contains("decode_d2048")
        );
    }
}
