//! Facts told early and asked late, in four kinds of memory:
//! `cargo run --release -p haversack-eval --example talk -- MODEL ENCODER_DIR [NAME=VALUE…]`
//!
//! | name | | usual |
//! |---|---|---|
//! | `dialogues`, `facts`, `turns` | how many, how many facts in each, how many turns in each | 30, 14, 180 |
//! | `capacity` | tokens of the ephemeral stream | 1536 |
//! | `modes` | of `full`, `window`, `streams`, `recall`, `threshold` | the first four |
//! | `top` | turns that `recall` shows beside the last | 8 |
//! | `filler` | turns between: a file of dialogues, one `{"history": [{"user", "bot"}]}` a line | small talk |
//!
//! Prints a line for each kind of memory: how often the right one of ten answers is the likeliest, with the interval
//! over dialogues, its mean log-probability, how often a free answer says it, and the difference to the full cache,
//! dialogue by dialogue.

use haversack_conversations::session::layout::ChatLayout;
use haversack_conversations::session::relevance::Relevance;
use haversack_conversations::session::{SessionOptions, SessionSettings, Sessions};
use haversack_engine::encoder::{Encoder, EncoderOptions};
use haversack_engine::{Policy, Retention, Runtime, RuntimeOptions};
use haversack_eval::stats;
use haversack_eval::talk::{self, Exchange, Heard};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

type Failure = Box<dyn std::error::Error>;

const PERSISTENT: &str =
    "You are a helpful assistant with a good memory. Answer in one short sentence.";

/// Letters of an exchange from a file, at most: a turn must fit several times into the stream.
const FILLER_LETTERS: usize = 600;

fn main() -> Result<(), Failure> {
    let usage = "usage: talk MODEL ENCODER_DIR [NAME=VALUE…]";
    let mut args = std::env::args().skip(1);
    let (model, encoder) = (args.next().ok_or(usage)?, args.next().ok_or(usage)?);
    let mut said = HashMap::new();
    for arg in args {
        let (name, value) = arg.split_once('=').ok_or(usage)?;
        said.insert(name.to_owned(), value.to_owned());
    }
    let number = |name: &str, usual: usize| said.get(name).map_or(Ok(usual), |n| n.parse());
    let (dialogues, facts, turns) = (
        number("dialogues", 30)?,
        number("facts", 14)?,
        number("turns", 180)?,
    );
    let top = number("top", 8)?;
    let usual = "full,window,streams,recall".to_owned();
    let modes = said.get("modes").unwrap_or(&usual);
    let filler = match said.get("filler") {
        Some(file) => talk::apart(exchanges(Path::new(file))?),
        None => talk::small_talk(),
    };
    let (persistent, capacity) = (512, number("capacity", 1536)?);
    let session = SessionSettings {
        persistent_max: Some(persistent),
        capacity: Some(capacity),
        ..SessionSettings::default()
    };

    let model = haversack_eval::load(Path::new(&model))?;
    let encoder = Encoder::open(Path::new(&encoder), &EncoderOptions::default())?;
    let encoder = Arc::new(encoder);
    let layout = ChatLayout::new(model.clone());
    let rows = persistent + capacity;

    let mut full: Option<Vec<Vec<Heard>>> = None;
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
        let mut sessions = None;
        if !["full", "window"].contains(&mode) {
            let options = SessionOptions {
                dir: Some(folder.clone()),
                settings: SessionSettings {
                    relevance: Some(relevance),
                    ..session
                },
                ..SessionOptions::default()
            };
            let without = Sessions::new(&runtime, options)?;
            sessions = Some(match mode {
                "streams" => without,
                _ => without.with_encoder(encoder.clone()),
            });
        }
        let mut heard = Vec::new();
        for number in 0..dialogues {
            let dialogue = talk::dialogue(1, number, facts, turns, &filler);
            let found = match &mut sessions {
                None => talk::plain(&mut runtime, &layout, PERSISTENT, &dialogue)?,
                Some(sessions) => {
                    talk::session(&mut runtime, sessions, "talk", PERSISTENT, &dialogue)?
                }
            };
            let right = found.iter().filter(|h| h.verdict.right).count();
            eprintln!("{mode} {number}: {right} of {} right", found.len());
            heard.push(found);
        }
        let _ = std::fs::remove_dir_all(&folder);
        print(mode, &heard, full.as_deref());
        let tokens = heard.iter().flatten().map(|h| h.position);
        println!(
            "  memory at most {} bytes; asked at token {} at least",
            runtime.ledger().peak,
            tokens.min().unwrap_or(0)
        );
        if mode == "full" {
            full = Some(heard);
        }
    }
    Ok(())
}

fn print(mode: &str, heard: &[Vec<Heard>], full: Option<&[Vec<Heard>]>) {
    let all: Vec<&Heard> = heard.iter().flatten().collect();
    let share = |is: fn(&Heard) -> bool| {
        let parts = heard.iter().map(|h| (count(h, is), h.len()));
        let parts: Vec<(f64, usize)> = parts.collect();
        let mean = parts.iter().map(|p| p.0).sum::<f64>() / all.len().max(1) as f64;
        (mean, stats::interval(&parts, 1, stats::ratio))
    };
    let words = |(mean, interval): (f64, Option<stats::Interval>)| match interval {
        Some(i) => format!("{mean:.3} ({:.3} to {:.3})", i.low, i.high),
        None => format!("{mean:.3}"),
    };
    let logprob = all.iter().map(|h| h.verdict.logprob).sum::<f64>() / all.len().max(1) as f64;
    println!(
        "{mode}: right {} of {} facts, log-probability {logprob:.3}, said {}, turn seen {}, instructions seen {}",
        words(share(|h| h.verdict.right)),
        all.len(),
        words(share(|h| h.said)),
        share(|h| h.seen).0,
        share(|h| h.instructed).0,
    );
    if let Some(full) = full {
        let differ = |is: fn(&Heard) -> bool| {
            let pairs = full.iter().zip(heard);
            let pairs = pairs.map(|(a, b)| (count(b, is) - count(a, is), b.len()));
            let pairs: Vec<(f64, usize)> = pairs.collect();
            let mean = pairs.iter().map(|p| p.0).sum::<f64>() / all.len().max(1) as f64;
            words((mean, stats::interval(&pairs, 1, stats::ratio)))
        };
        println!(
            "  against full: right {}, said {}",
            differ(|h| h.verdict.right),
            differ(|h| h.said)
        );
    }
}

fn count(heard: &[Heard], is: fn(&Heard) -> bool) -> f64 {
    heard.iter().filter(|h| is(h)).count() as f64
}

/// The short exchanges of a file of dialogues.
fn exchanges(file: &Path) -> Result<Vec<Exchange>, Failure> {
    let mut found = Vec::new();
    for line in std::fs::read_to_string(file)?.lines() {
        let dialogue: serde_json::Value = serde_json::from_str(line)?;
        for turn in dialogue["history"].as_array().into_iter().flatten() {
            if let (Some(user), Some(bot)) = (turn["user"].as_str(), turn["bot"].as_str())
                && user.len() + bot.len() <= FILLER_LETTERS
            {
                found.push((user.to_owned(), bot.to_owned()));
            }
        }
    }
    Ok(found)
}
