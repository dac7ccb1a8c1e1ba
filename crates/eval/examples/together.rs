//! Requests that share every pass over the weights: how much longer several take than one, and how even their tokens come
//! while the device gets hot and cool again.
//! `cargo run --release -p haversack-eval --example together -- MODEL.gguf [ROUNDS] [THREADS]`

use haversack_conversations::scheduler::{
    Request, RequestEvent, RequestId, Scheduler, SchedulerOptions,
};
use haversack_engine::device::Thermal;
use haversack_engine::runtime::GenerateOptions;
use haversack_engine::sample::SampleOptions;
use haversack_engine::{Model, Retention, Runtime, RuntimeOptions};
use haversack_eval::dice::Dice;
use haversack_eval::stats::{Spread, median};
use haversack_memory::Reading;
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PROMPT: usize = 16;
const TOKENS: usize = 200;
const COMPANY: [usize; 5] = [1, 2, 3, 4, 8];
/// In the heat.
const GUESTS: usize = 4;
/// Steps between two readings of the device.
const STEPS: usize = 40;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let Some(path) = args.next() else {
        return Err("usage: together MODEL.gguf [ROUNDS] [THREADS]".into());
    };
    let rounds: usize = args.next().map_or(Ok(5), |n| n.parse())?;
    let threads: usize = args.next().map_or(Ok(2), |n| n.parse())?;
    let model = haversack_eval::load(Path::new(&path))?;
    at_once(&model, rounds, threads)?;
    in_the_heat(&model, threads)
}

fn desk(model: &Arc<Model>, threads: usize) -> Result<Scheduler, Box<dyn Error>> {
    let options = RuntimeOptions {
        threads,
        retention: Retention::full(),
        cache_dir: Some(haversack_eval::folder()),
        ..RuntimeOptions::default()
    };
    let runtime = Runtime::new(model.clone(), &options)?;
    Ok(Scheduler::new(runtime, SchedulerOptions::default()))
}

/// The `n`th: a prompt without meaning, and so many tokens behind it.
fn request(model: &Model, n: usize, tokens: usize) -> Request {
    let mut dice = Dice::new(n as u64, &[]);
    let vocabulary = model.config().vocab;
    let prompt = (0..PROMPT).map(|_| dice.below(vocabulary) as u32).collect();
    Request {
        sample: SampleOptions {
            temperature: 0.0,
            ..SampleOptions::default()
        },
        options: GenerateOptions {
            tokens_max: Some(tokens),
            ignore_end: true,
            ..GenerateOptions::default()
        },
        ..Request::completion(prompt)
    }
}

/// So many of them at once, from the first submission to the last token.
fn time(desk: &mut Scheduler, model: &Model, count: usize) -> Result<f64, Box<dyn Error>> {
    let began = Instant::now();
    for n in 0..count {
        desk.submit(request(model, n, TOKENS))?;
    }
    while !desk.is_idle() {
        desk.step(began.elapsed(), &mut |_, _| ControlFlow::Continue(()))?;
    }
    Ok(began.elapsed().as_secs_f64())
}

fn at_once(model: &Arc<Model>, rounds: usize, threads: usize) -> Result<(), Box<dyn Error>> {
    let mut desk = desk(model, threads)?;
    time(&mut desk, model, 1)?;
    let mut times: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for round in 0..rounds {
        for count in COMPANY {
            eprint!("\rround {} of {rounds}: {count} at once ", round + 1);
            let took = time(&mut desk, model, count)?;
            times.entry(count).or_default().push(took);
        }
    }
    eprintln!();
    println!("{TOKENS} tokens behind {PROMPT}, {threads} threads, medians of {rounds} rounds");
    println!("at once   all done after   times one   tokens/s   times one");
    let one = times[&1].clone();
    for (count, took) in &times {
        // Within a round, so that a busy minute slows both.
        let ratios: Vec<f64> = took.iter().zip(&one).map(|(t, one)| t / one).collect();
        let ratio = median(&ratios).unwrap_or_default();
        let seconds = median(took).unwrap_or_default();
        let speed = (count * TOKENS) as f64 / seconds;
        let gain = *count as f64 / ratio;
        println!("{count:7} {seconds:14.2} s {ratio:11.2} {speed:10.1} {gain:11.2}");
    }
    Ok(())
}

/// Down the ladder and up again while all talk: gaps between tokens by rung, and whether any token is another.
fn in_the_heat(model: &Arc<Model>, threads: usize) -> Result<(), Box<dyn Error>> {
    use Thermal::{Critical, Fair, Nominal, Serious};
    let states = [
        Nominal, Nominal, Fair, Fair, Serious, Serious, Serious, Critical, Critical, Serious,
        Serious, Fair, Fair, Fair, Nominal, Nominal,
    ];
    let tokens = STEPS * states.len();
    let mut said = Vec::new();
    let mut gaps: BTreeMap<u8, Vec<f64>> = BTreeMap::new();
    for is_hot in [false, true] {
        let mut desk = desk(model, threads)?;
        let mut answers: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
        for n in 0..GUESTS {
            answers.insert(desk.submit(request(model, n, tokens))?, Vec::new());
        }
        let mut last: HashMap<RequestId, (Instant, u8)> = HashMap::new();
        let (began, mut step) = (Instant::now(), 0);
        while !desk.is_idle() {
            let rung = desk.throttle_level();
            desk.step(began.elapsed(), &mut |ticket, news| {
                if let RequestEvent::Token { sampled, .. } = news {
                    answers.entry(ticket).or_default().push(sampled.id);
                    let now = Instant::now();
                    let before = last.insert(ticket, (now, rung));
                    // Between two tokens on the same rung.
                    if let Some((then, _)) = before.filter(|(_, on)| is_hot && *on == rung) {
                        let gap = (now - then).as_secs_f64();
                        gaps.entry(rung).or_default().push(gap);
                    }
                }
                ControlFlow::Continue(())
            })?;
            step += 1;
            if is_hot && step % STEPS == 0 {
                let state = states.get(step / STEPS).copied().unwrap_or(Nominal);
                // On a clock on which each reading comes a minute after the last.
                let now = Duration::from_secs(60 * (step / STEPS) as u64);
                for change in desk.observe(Some(state), &Reading::default(), now) {
                    eprintln!("{change}");
                }
            }
        }
        said.push(answers.into_values().collect::<Vec<_>>());
    }
    let same = said[0] == said[1];
    println!("{GUESTS} at once while it gets hot: tokens the same as without heat: {same}");
    println!("rung   gaps   median ms   95th percentile   ratio");
    for (rung, gaps) in gaps {
        let Some(spread) = Spread::of(gaps) else {
            continue;
        };
        let (middle, late) = (spread.median(), spread.percentile(95));
        println!(
            "{rung:4} {:6} {:11.1} {:17.1} {:7.2}",
            spread.count(),
            middle * 1e3,
            late * 1e3,
            late / middle
        );
    }
    match same {
        true => Ok(()),
        false => Err("heat changed a token".into()),
    }
}
