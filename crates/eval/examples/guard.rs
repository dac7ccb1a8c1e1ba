//! How well the guard foresees damage:
//! `cargo run --release -p haversack-eval --example guard -- MODEL.gguf CANDIDATES FILE:TOKEN…`
//!
//! Lines of `samples` go to standard output (place, kind, layers, rows, statistic, exact statistic, KL), then the summary.

use haversack_engine::kv_quality::guard::{GuardParams, fit};
use haversack_engine::{
    Activations, KvForm, KvOptions, Policy, Retention, Runtime, RuntimeOptions,
};
use haversack_eval::guard::{Sample, measure, spearman};
use haversack_text::tokenizer::EncodeOptions;
use std::ops::ControlFlow;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let usage = "usage: guard MODEL.gguf CANDIDATES FILE:TOKEN…";
    let mut args = std::env::args().skip(1);
    let (model, count) = (args.next().ok_or(usage)?, args.next().ok_or(usage)?);
    let count: usize = count.parse()?;
    let places: Vec<String> = args.collect();
    if places.is_empty() {
        return Err(usage.into());
    }
    let model = haversack_eval::load(Path::new(&model))?;
    let plain = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    let options = RuntimeOptions {
        threads: 2,
        activations: Activations::F32,
        kv: KvOptions::new(KvForm::F16),
        // Canaries are kept, and there is room for everything.
        retention: Retention {
            policy: Policy::Heavy,
            ..Retention::default()
        },
        ..RuntimeOptions::default()
    };
    let mut runtime = Runtime::new(model.clone(), &options)?;
    let mut halves: [Vec<Sample>; 2] = Default::default();
    println!("samples");
    for (i, place) in places.iter().enumerate() {
        let (file, first) = place.rsplit_once(':').ok_or(usage)?;
        let tokens = model
            .tokenizer()
            .encode(&std::fs::read_to_string(file)?, plain)?;
        let tokens = tokens.get(first.parse()?..).ok_or("the text ends before")?;
        let share = count.div_ceil(places.len());
        let tell = &mut |done: usize| {
            eprint!("\r{place}, {done}/{share}  ");
            ControlFlow::Continue(())
        };
        let found = measure(&mut runtime, tokens, share, i as u64, tell)?;
        for s in &found {
            println!(
                "{i} {} {} {} {:e} {:e} {:e}",
                s.kind, s.layers, s.rows, s.foreseen.statistic, s.foreseen.exact, s.kl
            );
        }
        halves[i % 2].extend(found);
    }
    eprintln!();
    let all: Vec<Sample> = halves.iter().flatten().copied().collect();
    let [evictions, roundings] =
        [true, false].map(|e| all.iter().filter(|s| s.is_eviction == e).copied().collect());
    println!("candidates {}", all.len());
    for (name, exact) in [("statistic", false), ("with the output matrix", true)] {
        println!("{name}");
        for (kind, samples) in [
            ("all", &all),
            ("evictions", &evictions),
            ("roundings", &roundings),
        ] {
            report(kind, &pairs(samples, exact));
        }
        // Fitted on every second text, judged on the others.
        if let Some(params) = fit(&pairs(&halves[0], exact), GuardParams::default().bound) {
            let held = pairs(&halves[1], exact);
            let below = |&&(s, kl): &&(f64, f64)| kl <= params.factor * params.predict(s);
            let share = 100.0 * held.iter().filter(below).count() as f64 / held.len() as f64;
            println!(
                "  held back: {share:.1} % below {:.2} times the prediction",
                params.factor
            );
        }
    }
    Ok(())
}

fn pairs(samples: &[Sample], exact: bool) -> Vec<(f64, f64)> {
    let pair = |s: &Sample| match exact {
        true => (s.foreseen.exact, s.kl),
        false => (s.foreseen.statistic, s.kl),
    };
    samples.iter().map(pair).collect()
}

fn report(kind: &str, pairs: &[(f64, f64)]) {
    let Some(params) = fit(pairs, 1.0) else {
        println!("  {kind}: too few");
        return;
    };
    let residual = |(s, kl): &(f64, f64)| (kl / params.predict(*s)).log10();
    let squares = pairs.iter().map(residual).map(|r| r * r).sum::<f64>();
    println!(
        "  {kind}: {} candidates, Spearman {:.3}, residual {:.3} decades, offset {:.3}, slope {:.3}, 95 % below {:.2} times",
        pairs.len(),
        spearman(pairs),
        (squares / pairs.len() as f64).sqrt(),
        params.offset,
        params.slope,
        params.factor
    );
}
