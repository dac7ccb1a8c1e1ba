//! Facts told early and asked late, in four kinds of memory: `talk MODEL ENCODER_DIR [DIALOGUES] [FACTS] [TURNS] [MODES] [RELEVANCE_TOP]`.
//!
//! Prints a line for each kind of memory: how often the right one of ten answers is the likeliest, with the interval
//! over dialogues, its mean log-probability, and the difference to the full cache, dialogue by dialogue.

use haversack::encoder::{Encoder, EncoderOptions};
use haversack::session::layout::Layout;
use haversack::session::relevance::Relevance;
use haversack::session::{SessionOptions, Sessions};
use haversack::{LoadOptions, Model, Policy, Retention, Runtime, RuntimeOptions};
use haversack_eval::choice::Verdict;
use haversack_eval::{stats, talk};
use std::path::Path;
use std::sync::Arc;

const PERSISTENT: &str =
    "You are a helpful assistant with a good memory. Answer in one short sentence.";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, usual: usize| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(usual);
    let (Some(model), Some(encoder)) = (args.get(1), args.get(2)) else {
        return Err("talk MODEL ENCODER_DIR [DIALOGUES] [FACTS] [TURNS] [MODES] [TOP]".into());
    };
    let (dialogues, facts, turns) = (number(3, 34), number(4, 12), number(5, 130));
    let modes = args
        .get(6)
        .map_or("full,window,streams,recall", |m| m.as_str());
    let top = number(7, 8);
    let model = Model::load(Path::new(model), &LoadOptions::default(), &mut |_, _| ())?;
    let encoder = Arc::new(Encoder::open(
        Path::new(encoder),
        &EncoderOptions::default(),
    )?);
    let layout = Layout::new(model.clone());
    let session = SessionOptions::default();
    let rows = session.persistent_max + session.capacity;

    let mut all: Vec<(&str, Vec<Vec<Verdict>>)> = Vec::new();
    for mode in modes.split(',') {
        let retention = match mode {
            "full" => Retention::full(),
            "window" => Retention {
                policy: Policy::Window,
                anchors: Some(4),
                window: Some(rows - 36),
                ..Retention::default()
            },
            _ => Retention::managed(),
        };
        let options = RuntimeOptions {
            retention,
            ..RuntimeOptions::default()
        };
        let mut runtime = Runtime::new(model.clone(), &options)?;
        let folder = std::env::temp_dir().join(format!("haversack-talk-{}", std::process::id()));
        let relevance = match mode {
            "recall" => Relevance::Top {
                turns: top,
                hysteresis: 0.05,
                least: -1.0,
            },
            "threshold" => Relevance::Threshold(0.6),
            _ => Relevance::All,
        };
        let mut sessions = match mode {
            "full" | "window" => None,
            _ => {
                let options = SessionOptions {
                    dir: Some(folder.clone()),
                    relevance,
                    ..session.clone()
                };
                let sessions = Sessions::new(&runtime, options)?;
                Some(match mode {
                    "streams" => sessions,
                    _ => sessions.with_encoder(encoder.clone()),
                })
            }
        };
        let (mut verdicts, mut seen, mut asked) = (Vec::new(), 0, 0);
        for number in 0..dialogues {
            let dialogue = talk::dialogue(1, number, facts, turns);
            let found = match &mut sessions {
                None => talk::plain(&mut runtime, &layout, PERSISTENT, &dialogue)?,
                Some(sessions) => {
                    let found =
                        talk::session(&mut runtime, sessions, "talk", PERSISTENT, &dialogue)?;
                    asked += found.len();
                    seen += found.iter().filter(|(_, seen)| *seen).count();
                    found.into_iter().map(|(verdict, _)| verdict).collect()
                }
            };
            eprintln!(
                "{mode} {number}: {} of {} right",
                right(&found),
                found.len()
            );
            verdicts.push(found);
        }
        let _ = std::fs::remove_dir_all(&folder);
        let flat: Vec<&Verdict> = verdicts.iter().flatten().collect();
        let accuracy = |units: &[&Vec<Verdict>]| {
            let count: usize = units.iter().map(|u| u.len()).sum();
            units.iter().map(|u| right(u)).sum::<usize>() as f64 / count.max(1) as f64
        };
        let units: Vec<&Vec<Verdict>> = verdicts.iter().collect();
        let interval = stats::interval(&verdicts, 1, accuracy);
        let logprob = flat.iter().map(|v| v.logprob).sum::<f64>() / flat.len().max(1) as f64;
        println!(
            "{mode}: {:.3} right of {} facts {:?}, logprob {logprob:.3}, told turn seen {seen} of {asked}, peak {} bytes",
            accuracy(&units),
            flat.len(),
            interval.map(|i| (i.low, i.high)),
            runtime.ledger().peak,
        );
        if let Some((_, full)) = all.first().filter(|(name, _)| *name == "full") {
            let pairs: Vec<(f64, usize)> = full
                .iter()
                .zip(&verdicts)
                .map(|(a, b)| (right(b) as f64 - right(a) as f64, b.len()))
                .collect();
            let mean = pairs.iter().map(|p| p.0).sum::<f64>() / flat.len() as f64;
            let interval = stats::interval(&pairs, 1, stats::ratio);
            println!(
                "  against full: {mean:+.3} {:?}",
                interval.map(|i| (i.low, i.high))
            );
        }
        all.push((mode, verdicts));
    }
    Ok(())
}

fn right(verdicts: &[Verdict]) -> usize {
    verdicts.iter().filter(|v| v.right).count()
}
