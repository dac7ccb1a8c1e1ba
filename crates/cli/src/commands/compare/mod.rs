//! `compare`: which policy and codec keeps most of the model in the same bytes.
//!
//! This file turns arguments into a [`Contest`] for each context and hands results out; [`run`] reads and
//! judges, [`state`] remembers, [`rows`] makes figures of results, [`html`] draws them. Nothing in a report but
//! milliseconds depends on when, where or in how many runs it was made.

mod contest;
mod html;
mod policies;
mod rows;
mod run;
mod state;
mod svg;

use crate::args::{self, CompareTask, ComputeArgs};
use crate::engine::{self, Habits, LoadedModel};
use crate::error::usage;
use crate::input::Text;
use crate::out;
use anyhow::{Context, Result};
use contest::{Contest, LeftOut, contests};
use haversack::engine::Policy;
use haversack::engine::kv_quality::probe::{Depth, Probe};
use haversack::memory::bytes::human;
use haversack::text::tokenizer::EncodeOptions;
use haversack_eval::contender::Coding;
use haversack_eval::task::Task;
use haversack_eval::{choice, instructions, story};
use serde_json::{Value as Json, json};
use state::{State, digest};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// What all contenders are asked.
struct Exam {
    texts: Vec<Reading>,
    chunks: usize,
    score_from: f64,
    has_kl: bool,
    tasks: Vec<Task>,
    /// Prompts of each task.
    cases: usize,
    instructions: Vec<String>,
    seed: u64,
}

/// A text to read.
struct Reading {
    name: String,
    text: String,
    /// From `--offset` on.
    ids: Vec<u32>,
}

impl Reading {
    /// The window of this number, with what the model wants at its beginning.
    fn window(&self, opening: &[u32], length: usize, number: usize) -> Vec<u32> {
        let body = length.saturating_sub(opening.len());
        let from = number * body;
        [opening, &self.ids[from..from + body]].concat()
    }
}

pub fn compare(args: &args::CompareArgs, as_json: bool) -> Result<()> {
    let variants = policies::variants(&args.policies, args.policy_file.as_deref())?;
    let codings = codings(args);
    let texts = texts(args)?;
    let instructions = match args.tasks.contains(&CompareTask::Answers) {
        true => told(args)?,
        false => Vec::new(),
    };
    if let Some(folder) = &args.out {
        let cannot = || format!("cannot write to --out {}", folder.display());
        fs::create_dir_all(folder).with_context(cannot)?;
    }
    let compute = ComputeArgs {
        threads: args.threads,
        activations: Some(args.activations),
        ..ComputeArgs::default()
    };
    let mut engine = engine::load(args.model.as_deref(), &compute, Habits::JUDGE)?;
    engine.note_budget_on_terminal();
    let contexts = contexts(args, &engine)?;
    let exam = exam(args, &engine, texts, instructions, &contexts)?;
    let options = engine::runtime_options(&compute, Habits::JUDGE)?;
    let mut probes: Vec<(Depth, Probe)> = Vec::new();
    for variant in variants.iter().filter(|v| v.policy == Policy::Adaptive) {
        let depth = variant.wishes.depth;
        if !probes.iter().any(|(known, _)| *known == depth) {
            probes.push((depth, engine::probe(&engine.model, &options, depth)?));
        }
    }
    let (config, shares) = (engine.model.config(), &args.shares);
    let contest = |&c: &usize| contests(config, &variants, &codings, &probes, shares, c);
    let found: Vec<Contest> = contexts.iter().map(contest).collect::<Result<_>>()?;
    let mut state = match &args.out {
        Some(folder) => State::open(&folder.join("state.jsonl"), &header(args, &engine, &exam))?,
        None => State::default(),
    };
    run::run(&mut engine, &options, &exam, &found, &mut state).with_context(|| engine.name())?;

    let rows = rows::rows(engine.model.config(), &exam, &found, &state)?;
    let files = match &args.out {
        Some(folder) => {
            let about = about(args, &engine, &exam);
            Some(write(folder, &about, &exam, &found, &rows, &state)?)
        }
        None => None,
    };
    let left_out: Vec<&LeftOut> = found.iter().flat_map(|c| &c.left_out).collect();
    if as_json {
        return out::json(&json!({
            "model": engine.name(),
            "fingerprint": engine.model.fingerprint().to_hex().to_string(),
            "activations": args.activations.name(),
            "seed": args.seed,
            "chunks": args.chunks,
            "offset": args.offset,
            "score_from": args.score_from,
            "rows": out::list(&rows, rows::CompareRow::json),
            "left_out": out::list(left_out, LeftOut::json),
            "files": files,
        }));
    }
    for left in left_out {
        out::note(&left.line());
    }
    out::text(&rows::table(&rows))?;
    if let Some(csv) = files.as_ref().and_then(|files| files["csv"].as_str()) {
        out::note(&format!("{csv} and report.html beside it"));
    }
    Ok(())
}

fn codings(args: &args::CompareArgs) -> Vec<Coding> {
    let mut codings: Vec<Coding> = Vec::new();
    for (name, pair) in &args.codecs.0 {
        let (name, form) = (name.clone(), pair.form(None));
        if !codings.iter().any(|known| known.form == form) {
            codings.push(Coding { name, form });
        }
    }
    codings
}

/// Names and texts. Files are opened before any is read, and read before a model is fetched.
fn texts(args: &args::CompareArgs) -> Result<Vec<(String, String)>> {
    let files = &args.text_file;
    let is_stdin = |path: &&PathBuf| path.as_path() == Path::new("-");
    if files.iter().filter(is_stdin).count() > 1 {
        let what = "--text-file - can be given once; accepted: files beside it";
        return Err(usage(what));
    }
    let given = files.iter().map(|path| Text::given(None, Some(path)));
    let given = given.collect::<Result<Vec<Text>>>()?;
    let mut texts: Vec<(String, String)> = Vec::new();
    for (path, text) in files.iter().zip(given) {
        let alike = files.iter().filter(|f| file_name(f) == file_name(path));
        let is_alone = alike.count() == 1;
        let name = match file_name(path) {
            Some(name) if is_alone => name.into_owned(),
            _ => path.display().to_string(),
        };
        texts.push((name, text.read()?));
    }
    Ok(texts)
}

fn file_name(path: &Path) -> Option<Cow<'_, str>> {
    path.file_name().map(OsStr::to_string_lossy)
}

/// The instructions to answer.
fn told(args: &args::CompareArgs) -> Result<Vec<String>> {
    let Some(path) = &args.instructions else {
        return Ok(instructions::instructions(args.seed, args.answers));
    };
    let text = Text::given(None, Some(path))?.read()?;
    let name = path.display();
    let mut found = Vec::new();
    let lines = (1..).zip(text.lines());
    for (number, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = || {
            let accepted = "text, or JSON with instruction, prompt, question or turns";
            let what = format!("line {number} has no instruction; accepted: {accepted}");
            usage(format!("{name}: {what}"))
        };
        found.push(instruction(line).ok_or_else(wrong)?);
    }
    let count = found.len();
    if count < args.answers {
        let what = format!("{name} has {count} instructions; accepted: --answers of at most that");
        return Err(usage(what));
    }
    found.truncate(args.answers);
    Ok(found)
}

/// A line as it stands, or what a JSON object says under one of the usual names.
fn instruction(line: &str) -> Option<String> {
    if !line.trim_start().starts_with('{') {
        return Some(line.trim().to_owned());
    }
    let object: Json = serde_json::from_str(line).ok()?;
    let named = ["instruction", "prompt", "question"].iter();
    let mut named = named.filter_map(|name| object[*name].as_str());
    let told = named.next().or_else(|| object["turns"][0].as_str())?;
    (!told.trim().is_empty()).then(|| told.trim().to_owned())
}

/// Windows to compare in, each once.
fn contexts(args: &args::CompareArgs, engine: &LoadedModel) -> Result<Vec<usize>> {
    const USUAL: usize = 2048;
    let most = engine.model.config().context;
    let mut contexts = Vec::new();
    for &context in &args.contexts {
        if context > most {
            return Err(usage(format!(
                "--contexts {context} is more than the model was trained for; accepted: at most {most}"
            )));
        }
        if !contexts.contains(&context) {
            contexts.push(context);
        }
    }
    if contexts.is_empty() {
        contexts.push(USUAL.min(most));
    }
    // What everything is compared with keeps all of it.
    let longest = contexts.iter().copied().max().unwrap_or(0);
    if let Some(room) = engine.room().filter(|&room| room < longest) {
        return Err(anyhow::anyhow!(
            "--contexts {longest}: the full cache in f16 needs {}, and {} allows {}; accepted: at most {room}",
            human(engine.runtime.needs_bytes(longest) as u64),
            engine.limit_name(),
            human(engine.runtime.ledger().budget.unwrap_or(usize::MAX) as u64),
        ));
    }
    Ok(contexts)
}

fn exam(
    args: &args::CompareArgs,
    engine: &LoadedModel,
    given: Vec<(String, String)>,
    instructions: Vec<String>,
    contexts: &[usize],
) -> Result<Exam> {
    /// Letters of a token, and more than enough.
    const LETTERS: usize = 8;
    let tokenizer = engine.model.tokenizer();
    let longest = contexts.iter().copied().max().unwrap_or(0);
    let tokens = args.chunks.saturating_mul(longest);
    let tokens = tokens.saturating_add(args.offset);
    let given = match given.is_empty() {
        true => {
            let letters = tokens.saturating_mul(LETTERS).min(LETTERS << 20);
            vec![("made-up".to_owned(), story::text(args.seed, letters))]
        }
        false => given,
    };
    let opening = choice::opening(tokenizer);
    let mut texts = Vec::new();
    for (name, text) in given {
        let ids = tokenizer.encode(&text, EncodeOptions::default())?;
        let ids = ids.get(args.offset..).unwrap_or(&[]).to_vec();
        let body = longest.saturating_sub(opening.len()).max(1);
        let windows = ids.len() / body;
        if windows == 0 {
            return Err(usage(format!(
                "{name} has {} tokens from --offset on, less than one window; accepted: --contexts of at most that, or a longer text",
                ids.len()
            )));
        }
        if windows < args.chunks {
            return Err(usage(format!(
                "{name} has {windows} windows of {longest} tokens from --offset on; accepted: --chunks of at most that"
            )));
        }
        texts.push(Reading { name, text, ids });
    }
    let mut tasks: Vec<Task> = Vec::new();
    for job in &args.tasks {
        if let CompareTask::Questions(task) = job
            && !tasks.contains(task)
        {
            tasks.push(*task);
        }
    }
    Ok(Exam {
        texts,
        chunks: args.chunks,
        score_from: args.score_from,
        has_kl: args.tasks.contains(&CompareTask::Kl),
        tasks,
        cases: args.needles,
        instructions,
        seed: args.seed,
    })
}

/// What results of one file have in common.
fn header(args: &args::CompareArgs, engine: &LoadedModel, exam: &Exam) -> Json {
    let texts = exam.texts.iter();
    let texts = texts.map(|text| digest(&format!("{} {:?}", text.name, text.ids)));
    let texts: Vec<String> = texts.collect();
    // How many windows and cases there are is not part of it: more of them can be added.
    let settings = format!(
        "{} {} {texts:?} {} {} {:?}",
        env!("CARGO_PKG_VERSION"),
        args.activations.name(),
        args.offset,
        args.score_from,
        exam.instructions,
    );
    json!({
        "haversack_compare": 1,
        "settings": digest(&settings),
        "model": engine.model.fingerprint().to_hex().to_string(),
        "seed": args.seed,
    })
}

/// What a report says about itself.
fn about(
    args: &args::CompareArgs,
    engine: &LoadedModel,
    exam: &Exam,
) -> Vec<(&'static str, String)> {
    let texts: Vec<&str> = exam.texts.iter().map(|text| text.name.as_str()).collect();
    let model = file_name(&engine.path);
    let fingerprint = engine.model.fingerprint().to_hex();
    let windows = format!(
        "{} of each text from token {} on, scored from {} of each on",
        exam.chunks, args.offset, exam.score_from
    );
    let mut about = vec![
        ("model", model.unwrap_or_default().into_owned()),
        ("fingerprint", fingerprint[..16].to_owned()),
        ("texts", texts.join(", ")),
        ("windows", windows),
        ("activations", args.activations.name().to_owned()),
        ("seed", args.seed.to_string()),
    ];
    if !exam.tasks.is_empty() {
        about.push(("prompts of each task", exam.cases.to_string()));
    }
    if !exam.instructions.is_empty() {
        about.push(("instructions", exam.instructions.len().to_string()));
    }
    about
}

fn write(
    folder: &Path,
    about: &[(&'static str, String)],
    exam: &Exam,
    contests: &[Contest],
    rows: &[rows::CompareRow],
    state: &State,
) -> Result<Json> {
    let put = |name: &str, text: &str| -> Result<String> {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path.display().to_string())
    };
    Ok(json!({
        "csv": put("report.csv", &rows::csv(rows))?,
        "html": put("report.html", &html::page(about, exam, contests, rows, state))?,
        "state": folder.join("state.jsonl").display().to_string(),
    }))
}
