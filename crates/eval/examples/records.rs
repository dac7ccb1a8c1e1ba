//! A record of 2,000 tokens, answered inside of a batch by requests that may keep 512 rows of it, each in its own way:
//! `cargo run --release -p haversack-eval --example records -- MODEL.gguf [RECORDS] [LIMIT] [TOKENS] [WAYS]`
//!
//! All ways of one question are in one batch, with somebody else beside them who writes about something else. The first
//! questions are asked again alone: the tokens have to be the same. One more way has a batch of its own, because how rows are
//! stored belongs to all of a runtime: `adaptive` with the bytes that as many rows take in f16.

use haversack_conversations::scheduler::{
    LongPrompt, Request, RequestEvent, RequestId, RequestKind, RequestReport, RowLimit, Scheduler,
    SchedulerOptions,
};
use haversack_engine::kv_quality::probe::{self, Depth, Probe};
use haversack_engine::runtime::GenerateOptions;
use haversack_engine::runtime::adaptive::AdaptiveOptions;
use haversack_engine::runtime::plan;
use haversack_engine::sample::SampleOptions;
use haversack_engine::{Model, Policy, Retention, Runtime, RuntimeOptions};
use haversack_eval::records::{self, Record, THIRDS};
use haversack_eval::stats;
use std::collections::HashMap;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

const TOKENS: usize = 2000;
const LIMIT: usize = 512;
const RECORDS: usize = 32;
/// First tokens that stay, whoever else leaves: a block of them.
const ANCHORS: usize = 32;
/// Tokens that leave before the rest is read again.
const EVERY: usize = 256;
/// Of an answer.
const ANSWER: usize = 8;
/// Questions that are asked again alone.
const CHECKED: usize = 3;

fn main() -> Result<(), Failure> {
    let usage = "usage: records MODEL.gguf [RECORDS] [LIMIT] [TOKENS] [WAY,WAY…]";
    let mut args = std::env::args().skip(1);
    let model = args.next().ok_or(usage)?;
    let mut number = |usual: usize| args.next().map_or(Ok(usual), |n| n.parse::<usize>());
    let (count, limit, tokens) = (number(RECORDS)?, number(LIMIT)?, number(TOKENS)?);
    let wanted = args.next();
    let is_wanted = |way: &str| {
        wanted
            .as_ref()
            .is_none_or(|w| w.split(',').any(|w| w == way))
    };
    let model = haversack_eval::load(Path::new(&model))?;
    let record = |number| records::record(model.tokenizer(), tokens, 0, number);
    let all: Vec<Record> = (0..count).map(record).collect();

    let folder = haversack_eval::folder();
    let threads = RuntimeOptions::default().threads;
    let go_on = &mut |_| ControlFlow::Continue(());
    let probe = probe::load_or_measure(&model, threads, Depth::default(), Some(&folder), go_on)?;
    let probe = probe.ok_or("there is no probe")?;

    let ways = [
        ("full", LongPrompt::Refuse),
        ("truncate", LongPrompt::Truncate),
        ("window", LongPrompt::Window),
        ("again", LongPrompt::Reread { every: EVERY }),
        ("heavy", LongPrompt::Select(Policy::Heavy)),
        ("snap", LongPrompt::Select(Policy::Snap)),
        ("adaptive", LongPrompt::Select(Policy::Adaptive)),
    ];
    let ways = ways.into_iter().filter(|(name, _)| is_wanted(name));
    let ways: Vec<(&str, Option<RowLimit>)> = ways
        .map(|(name, when_longer)| {
            let max_rows = match when_longer {
                LongPrompt::Refuse => model.config().context,
                _ => limit,
            };
            let anchors = ANCHORS;
            let rows = RowLimit {
                max_rows,
                anchors,
                when_longer,
            };
            (name, Some(rows))
        })
        .collect();
    let usual = RuntimeOptions {
        retention: Retention::full(),
        cache_dir: Some(folder.clone()),
        ..RuntimeOptions::default()
    };
    let mut desk = desk(&model, &usual, &probe, ways.len() + 1)?;
    let mut results: Vec<(String, Vec<Answer>)> = Vec::new();
    let found = ask(&mut desk, &all, &ways)?;
    let differ = alone(&model, &usual, &probe, &all, &ways, &found)?;
    results.extend(ways.iter().map(|way| way.0.to_owned()).zip(found));

    if !is_wanted("planned") {
        print(&results, &all, limit, differ);
        return Ok(());
    }
    let kv_bytes = plan::full_bytes(model.config(), limit);
    let planned = RuntimeOptions {
        retention: Retention {
            policy: Policy::Adaptive,
            adaptive: AdaptiveOptions {
                kv_bytes: Some(kv_bytes),
                ..AdaptiveOptions::default()
            },
            ..Retention::default()
        },
        ..usual.clone()
    };
    let planned = at_length(&model, &planned, &probe, tokens + ANSWER)?;
    let mut desk = self::desk(&model, &planned, &probe, 2)?;
    let found = ask(&mut desk, &all, &[("planned", None)])?;
    results.extend(found.into_iter().map(|all| ("planned".to_owned(), all)));
    print(&results, &all, limit, differ);
    Ok(())
}

/// What became of one question.
struct Answer {
    right: bool,
    tokens: Vec<u32>,
    held: Box<RequestReport>,
}

/// A plan for so many tokens instead of the whole context.
fn at_length(
    model: &Arc<Model>,
    options: &RuntimeOptions,
    probe: &Probe,
    tokens: usize,
) -> Result<RuntimeOptions, Failure> {
    use haversack_engine::runtime::adaptive::{AllotmentTarget, plan};
    let retention = &options.retention;
    let ask = AllotmentTarget {
        bytes: retention.adaptive.kv_bytes.unwrap_or(u64::MAX),
        tokens: tokens as u64,
        zones: options.kv.zones(),
        anchors: ANCHORS as u64,
        row_weight: retention.adaptive.row_weight(tokens),
    };
    let kv = plan(model.config(), &probe.curves, &options.kv, &ask)?;
    let guard = probe.guard(options.guard);
    Ok(RuntimeOptions {
        kv,
        guard,
        ..options.clone()
    })
}

fn desk(
    model: &Arc<Model>,
    options: &RuntimeOptions,
    probe: &Probe,
    batch: usize,
) -> Result<Scheduler, Failure> {
    let mut runtime = Runtime::new(model.clone(), options)?;
    runtime.load_probe(probe);
    let options = SchedulerOptions {
        batch,
        ..SchedulerOptions::default()
    };
    Ok(Scheduler::new(runtime, options))
}

fn request(prompt: Vec<u32>, rows: Option<RowLimit>, tokens_max: usize) -> Request {
    Request {
        sample: SampleOptions {
            temperature: 0.0,
            ..SampleOptions::default()
        },
        options: GenerateOptions {
            tokens_max: Some(tokens_max),
            ..GenerateOptions::default()
        },
        ..Request::new(RequestKind::Completion { prompt, rows })
    }
}

/// (way)(question): every question, all ways of it in one batch, and somebody else beside them.
fn ask(
    desk: &mut Scheduler,
    all: &[Record],
    ways: &[(&str, Option<RowLimit>)],
) -> Result<Vec<Vec<Answer>>, Failure> {
    let mut answers: Vec<Vec<Answer>> = ways.iter().map(|_| Vec::new()).collect();
    let total: usize = all.iter().map(|record| record.questions.len()).sum();
    let (mut done, started) = (0, Instant::now());
    for (number, record) in all.iter().enumerate() {
        for question in &record.questions {
            // Somebody who goes on with another record, longer than the others need.
            let other = &all[(number + 1) % all.len()].prompt;
            let other = other[..other.len() / 4].to_vec();
            desk.submit(request(other, None, 64))?;
            let mut tickets = Vec::new();
            for &(_, rows) in ways {
                let prompt = record.asked(question);
                tickets.push(desk.submit(request(prompt, rows, ANSWER))?);
            }
            let mut said = finish(desk)?;
            for (way, ticket) in answers.iter_mut().zip(&tickets) {
                let (text, tokens, held) = said.remove(ticket).ok_or("no answer")?;
                let right = records::is_right(&text, &question.answer);
                way.push(Answer {
                    right,
                    tokens,
                    held,
                });
            }
            done += 1;
            bar(done, total, started);
        }
    }
    eprintln!();
    Ok(answers)
}

type Said = HashMap<RequestId, (String, Vec<u32>, Box<RequestReport>)>;

fn finish(desk: &mut Scheduler) -> Result<Said, Failure> {
    let (mut said, mut failed) = (HashMap::new(), None);
    while !desk.is_idle() {
        desk.step(Duration::ZERO, &mut |ticket, news| {
            match news {
                RequestEvent::Completed(completed, held) => {
                    said.insert(ticket, (completed.text, completed.tokens, held));
                }
                RequestEvent::Failed(why) => failed = Some(why),
                _ => {}
            }
            ControlFlow::Continue(())
        })?;
    }
    match failed {
        Some(why) => Err(why.into()),
        None => Ok(said),
    }
}

/// How many of the first answers are different where nobody else is there.
fn alone(
    model: &Arc<Model>,
    options: &RuntimeOptions,
    probe: &Probe,
    all: &[Record],
    ways: &[(&str, Option<RowLimit>)],
    found: &[Vec<Answer>],
) -> Result<(usize, usize), Failure> {
    let mut desk = desk(model, options, probe, 1)?;
    let questions = all
        .iter()
        .flat_map(|r| r.questions.iter().map(move |q| (r, q)));
    let (mut asked, mut differ) = (0, 0);
    for (i, (record, question)) in questions.take(CHECKED).enumerate() {
        for (&(name, rows), found) in ways.iter().zip(found) {
            let ticket = desk.submit(request(record.asked(question), rows, ANSWER))?;
            let said = finish(&mut desk)?;
            asked += 1;
            if said.get(&ticket).map(|said| &said.1) != Some(&found[i].tokens) {
                eprintln!("{name}: question {i} is answered differently alone");
                differ += 1;
            }
        }
    }
    Ok((asked, differ))
}

fn bar(done: usize, total: usize, started: Instant) {
    const WIDTH: usize = 32;
    let full = done * WIDTH / total.max(1);
    let left = started.elapsed().as_secs_f64() / done as f64 * (total - done) as f64;
    eprint!(
        "\r[{}{}] {done}/{total}, {left:.0} s left ",
        "#".repeat(full),
        " ".repeat(WIDTH - full)
    );
    let _ = std::io::stderr().flush();
}

fn print(
    results: &[(String, Vec<Answer>)],
    all: &[Record],
    limit: usize,
    (asked, differ): (usize, usize),
) {
    let tokens: usize = all.iter().map(|record| record.prompt.len()).sum();
    let questions = results.first().map_or(0, |(_, answers)| answers.len());
    println!(
        "{} records of {} tokens in the mean, {questions} questions, limit {limit}",
        all.len(),
        tokens / all.len().max(1)
    );
    println!("{asked} answers asked for again alone: {differ} differ");
    println!("| way | rows, fullest layer | right | 95 % | first third | second | last |");
    println!("|---|---|---|---|---|---|---|");
    for (name, answers) in results {
        let units: Vec<(f64, usize)> = answers
            .iter()
            .map(|a| (f64::from(u8::from(a.right)), 1))
            .collect();
        let share = |units: &[&(f64, usize)]| 100.0 * stats::ratio(units);
        let whole = share(&units.iter().collect::<Vec<_>>());
        let interval = stats::interval(&units, 7, share);
        let interval =
            interval.map_or_else(String::new, |i| format!("{:.0} to {:.0}", i.low, i.high));
        let third = |part: usize| {
            let own = units.iter().skip(part).step_by(THIRDS);
            format!("{:.0}", share(&own.collect::<Vec<_>>()))
        };
        let rows = answers.iter().map(|a| a.held.usage.rows).max().unwrap_or(0);
        println!(
            "| {name} | {rows} | {whole:.1} % | {interval} | {} | {} | {} |",
            third(0),
            third(1),
            third(2)
        );
    }
}
