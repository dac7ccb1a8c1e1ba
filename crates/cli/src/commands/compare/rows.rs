//! From results to figures: one row for each contender, context and text. CSV, JSON and the table of the report
//! are made of the same cells.

use super::Exam;
use super::contest::{Contender, Contest};
use super::run::{FLOOR, at_answer, at_case, at_kl};
use super::state::{State, as_number, as_numbers};
use anyhow::{Result, anyhow};
use haversack::engine::model::Config;
use haversack::engine::runtime::perplexity::KlTally;
use haversack::engine::runtime::plan;
use haversack_eval::bleu::{BleuCounts, ORDER};
use haversack_eval::stats::{self, Interval};
use haversack_eval::task::Task;
use serde_json::{Map, Value as Json, json};

/// Cells by column, in order. All rows of a report have the same columns.
pub struct CompareRow {
    cells: Vec<(String, Json)>,
}

impl CompareRow {
    pub fn json(&self) -> Json {
        Json::Object(self.cells.iter().cloned().collect::<Map<String, Json>>())
    }

    pub fn get(&self, column: &str) -> &Json {
        let cell = self.cells.iter().find(|(name, _)| name == column);
        cell.map_or(&Json::Null, |(_, value)| value)
    }

    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.cells.iter().map(|(name, _)| name.as_str())
    }

    pub fn number(&self, column: &str) -> Option<f64> {
        self.get(column).as_f64()
    }

    /// `heavy int4`
    pub fn series(&self) -> String {
        let word = |column: &str| self.get(column).as_str().unwrap_or("").to_owned();
        format!("{} {}", word("policy"), word("codec"))
    }

    fn put(&mut self, column: &str, value: Json) {
        self.cells.push((column.to_owned(), value));
    }

    /// A figure and its interval, under the same name.
    fn put_interval(&mut self, column: &str, value: Option<f64>, interval: Option<Interval>) {
        self.put(column, json!(value));
        self.put(&format!("{column}_low"), json!(interval.map(|i| i.low)));
        self.put(&format!("{column}_high"), json!(interval.map(|i| i.high)));
    }
}

pub fn rows(
    config: &Config,
    exam: &Exam,
    contests: &[Contest],
    state: &State,
) -> Result<Vec<CompareRow>> {
    let mut rows = Vec::new();
    for contest in contests {
        for (number, text) in exam.texts.iter().enumerate() {
            for contender in &contest.contenders {
                let mut row = CompareRow { cells: Vec::new() };
                row.put("policy", json!(contender.policy));
                row.put("codec", json!(contender.codec));
                row.put("share", json!(contender.share));
                row.put("context", json!(contest.context));
                row.put("text", json!(text.name));
                let source = Source {
                    config,
                    exam,
                    contest,
                    state,
                    text: number,
                };
                let filled = source.fill(&mut row, contender);
                let (series, context) = (row.series(), contest.context);
                filled.ok_or_else(|| {
                    anyhow!(
                        "the state of the comparison is incomplete at {series}, context {context}"
                    )
                })?;
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

/// Where the figures of a row come from.
struct Source<'a> {
    config: &'a Config,
    exam: &'a Exam,
    contest: &'a Contest,
    state: &'a State,
    text: usize,
}

/// Windows of a text together.
#[derive(Default)]
struct Windows {
    tally: KlTally,
    pieces: Vec<(f64, usize)>,
    bytes: u64,
    full_bytes: u64,
    held_bytes: u64,
    held_values: u64,
    rows: u64,
    ms: Vec<f64>,
    overhead: Vec<f64>,
}

impl Source<'_> {
    /// `None` where a result is missing.
    fn fill(&self, row: &mut CompareRow, contender: &Contender) -> Option<()> {
        let entrant = self.contest.setups.get(contender.setup)?;
        let context = self.contest.context;
        let windows = match self.exam.has_kl {
            true => Some(self.collect(&entrant.key)?),
            false => None,
        };
        // Where nothing was measured, the plan is what would have been.
        let planned = || entrant.setup.bytes(self.config, context);
        let bytes = windows.as_ref().map_or_else(planned, |w| w.bytes);
        let planned = || plan::full_bytes(self.config, context);
        let full = windows.as_ref().map_or_else(planned, |w| w.full_bytes);
        row.put("bytes", json!(bytes));
        row.put("bytes_fraction", json!(bytes as f64 / full.max(1) as f64));
        self.measured(row, windows.as_ref());
        for task in Task::ALL {
            self.questions(row, task, &entrant.key)?;
        }
        self.answers(row, &entrant.key)
    }

    fn measured(&self, row: &mut CompareRow, windows: Option<&Windows>) {
        let tally = windows.map(|windows| &windows.tally);
        let bits = |w: &Windows| w.held_bytes as f64 * 8.0 / w.held_values.max(1) as f64;
        row.put("bits_effective", json!(windows.map(bits)));
        row.put("rows_kept", json!(windows.map(|w| w.rows)));
        row.put("tokens_scored", json!(tally.map(|tally| tally.tokens)));
        let interval = |w: &Windows| stats::interval(&w.pieces, self.exam.seed, stats::ratio);
        let mean = tally.and_then(KlTally::kl_mean);
        row.put_interval("kl_mean", mean, windows.and_then(interval));
        row.put("kl_p99", json!(tally.and_then(KlTally::kl_p99)));
        let top1 = tally.and_then(KlTally::top1_agreement);
        row.put("top1_agreement", json!(top1));
        row.put("perplexity", json!(tally.map(KlTally::perplexity)));
        let floor = windows.and_then(|_| self.collect(FLOOR)?.tally.kl_mean());
        row.put("kl_floor_int8", json!(floor));
        let ms = windows.and_then(|w| stats::median(&w.ms));
        row.put("ms_per_token", json!(ms));
        let overhead = windows.and_then(|w| stats::median(&w.overhead));
        row.put("overhead", json!(overhead));
    }

    fn collect(&self, key: &str) -> Option<Windows> {
        let reference = &self.contest.setups.first()?.key;
        let mut windows = Windows::default();
        for chunk in 0..self.exam.chunks {
            let at = |key: &str| at_kl(self.contest.context, self.text, chunk, key);
            let result = self.state.get(&at(key))?;
            let tally = KlTally {
                tokens: usize::try_from(result["tokens"].as_u64()?).ok()?,
                nll: as_number(&result["nll"])?,
                kl: as_numbers(&result["kl"])?,
                top1: usize::try_from(result["top1"].as_u64()?).ok()?,
            };
            windows.pieces.extend(stats::pieces(&tally.kl));
            windows.tally.add(&tally);
            let bytes = result["bytes"].as_u64()?;
            let full = self.state.get(&at(reference))?["bytes"].as_u64()?;
            windows.bytes = windows.bytes.max(bytes);
            windows.full_bytes = windows.full_bytes.max(full);
            windows.held_bytes += bytes;
            windows.held_values += result["values"].as_u64()?;
            windows.rows = windows.rows.max(result["rows"].as_u64()?);
            let (ms, full_ms) = (as_number(&result["ms"]), as_number(&result["full_ms"]));
            windows.ms.extend(ms);
            let overhead = ms.zip(full_ms).map(|(ms, full)| ms / full);
            windows.overhead.extend(overhead);
        }
        Some(windows)
    }

    fn questions(&self, row: &mut CompareRow, task: Task, key: &str) -> Option<()> {
        let cases = match self.exam.tasks.contains(&task) {
            true => self.exam.cases,
            false => 0,
        };
        // (case): the sum over its questions, and how many there are.
        let (mut logprobs, mut right) = (Vec::new(), Vec::new());
        for case in 0..cases {
            let at = at_case(task, self.contest.context, self.text, case, key);
            let result = self.state.get(&at)?;
            let found = result["logprobs"].as_array()?.iter();
            let found: Vec<f64> = found.map(as_number).collect::<Option<_>>()?;
            logprobs.push((found.iter().sum::<f64>(), found.len()));
            let hits = result["right"].as_array()?.iter();
            let hits = hits.filter(|hit| hit.as_bool() == Some(true)).count();
            right.push((hits as f64, found.len()));
        }
        for (figure, units) in [("logprob", &logprobs), ("accuracy", &right)] {
            let column = format!("{}_{figure}", task.column());
            let all: Vec<&(f64, usize)> = units.iter().collect();
            let mean = (!all.is_empty()).then(|| stats::ratio(&all));
            let interval = stats::interval(units, self.exam.seed, stats::ratio);
            row.put_interval(&column, mean, interval);
        }
        Some(())
    }

    fn answers(&self, row: &mut CompareRow, key: &str) -> Option<()> {
        let reference = &self.contest.setups.first()?.key;
        let mut answers: Vec<Answer> = Vec::new();
        for number in 0..self.exam.instructions.len() {
            let at = |key: &str| at_answer(self.contest.context, number, key);
            let own = self.state.get(&at(reference))?;
            let made = self.state.get(&at(key))?;
            answers.push(Answer::of(made, own)?);
        }
        let all: Vec<&Answer> = answers.iter().collect();
        let seed = self.exam.seed;
        let figure = |of: fn(&[&Answer]) -> f64| (!all.is_empty()).then(|| of(&all));
        let interval = |of: fn(&[&Answer]) -> f64| stats::interval(&answers, seed, of);
        row.put_interval("answers_bleu", figure(bleu), interval(bleu));
        let alike: Vec<f64> = answers.iter().map(|a| a.alike as f64).collect();
        row.put("answers_alike_tokens", json!(stats::median(&alike)));
        let same = |all: &[&Answer]| {
            let same = all.iter().filter(|a| a.is_same).count();
            same as f64 / all.len() as f64
        };
        row.put("answers_same", json!(figure(same)));
        row.put("answers_nll", json!(figure(made_nll)));
        row.put("answers_nll_full", json!(figure(full_nll)));
        row.put_interval("answers_nll_ratio", figure(nll_ratio), interval(nll_ratio));
        Some(())
    }
}

/// An answer beside the one of the full cache.
struct Answer {
    counts: BleuCounts,
    alike: u64,
    is_same: bool,
    /// As the full cache judges it, over its tokens.
    nll: f64,
    tokens: usize,
    own_nll: f64,
    own_tokens: usize,
}

impl Answer {
    fn of(made: &Json, own: &Json) -> Option<Answer> {
        let own_tokens = own["tokens"].as_array()?;
        let tokens = made["tokens"].as_array()?;
        let counts = match made.get("bleu") {
            Some(told) => counts(told)?,
            // The reference beside itself.
            None => BleuCounts::of(own["text"].as_str()?, own["text"].as_str()?),
        };
        Some(Answer {
            counts,
            alike: made["alike"].as_u64().unwrap_or(own_tokens.len() as u64),
            is_same: tokens == own_tokens,
            nll: as_number(&made["nll"])?,
            tokens: tokens.len(),
            own_nll: as_number(&own["nll"])?,
            own_tokens: own_tokens.len(),
        })
    }
}

fn counts(told: &Json) -> Option<BleuCounts> {
    let four = |list: &Json| -> Option<[u64; ORDER]> {
        let list = list.as_array()?.iter().map(Json::as_u64);
        list.collect::<Option<Vec<u64>>>()?.try_into().ok()
    };
    Some(BleuCounts {
        matched: four(&told[0])?,
        all: four(&told[1])?,
        words: told[2][0].as_u64()?,
        reference_words: told[2][1].as_u64()?,
    })
}

fn bleu(answers: &[&Answer]) -> f64 {
    let mut sum = BleuCounts::default();
    answers.iter().for_each(|answer| sum.add(&answer.counts));
    sum.bleu()
}

fn nll(answers: &[&Answer], of: fn(&Answer) -> (f64, usize)) -> f64 {
    let units: Vec<(f64, usize)> = answers.iter().map(|answer| of(answer)).collect();
    stats::ratio(&units.iter().collect::<Vec<_>>())
}

fn made_nll(answers: &[&Answer]) -> f64 {
    nll(answers, |a| (a.nll, a.tokens))
}

fn full_nll(answers: &[&Answer]) -> f64 {
    nll(answers, |a| (a.own_nll, a.own_tokens))
}

/// How much worse the full cache finds the answers than its own: 1 is as good.
fn nll_ratio(answers: &[&Answer]) -> f64 {
    made_nll(answers) / full_nll(answers)
}

/// One line for each row, after a line of names.
pub fn csv(rows: &[CompareRow]) -> String {
    let mut text = String::new();
    let mut line = |cells: Vec<String>| {
        text.push_str(&cells.join(","));
        text.push('\n');
    };
    if let Some(first) = rows.first() {
        line(first.cells.iter().map(|(name, _)| name.clone()).collect());
    }
    for row in rows {
        line(row.cells.iter().map(|(_, value)| cell(value)).collect());
    }
    text
}

fn cell(value: &Json) -> String {
    match value {
        Json::Null => String::new(),
        Json::String(text) if text.contains([',', '"', '\n', '\r']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Json::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// What people want to see first.
const SHOWN: [(&str, &str, usize); 13] = [
    ("policy", "policy", 0),
    ("codec", "codec", 0),
    ("share", "share", 4),
    ("context", "context", 0),
    ("text", "text", 0),
    ("bytes_fraction", "bytes", 4),
    ("bits_effective", "bits", 2),
    ("kl_mean", "kl", 6),
    ("kl_p99", "p99", 4),
    ("top1_agreement", "top-1", 4),
    ("perplexity", "perplexity", 3),
    ("needle_logprob", "needles", 3),
    ("overhead", "time", 2),
];

/// For a terminal.
pub fn table(rows: &[CompareRow]) -> String {
    let mut lines: Vec<Vec<String>> = vec![SHOWN.iter().map(|s| s.1.to_owned()).collect()];
    for row in rows {
        let cell = |(column, _, digits): &(&str, &str, usize)| match row.get(column) {
            Json::Null => "-".to_owned(),
            Json::String(text) => text.clone(),
            value => match value.as_f64() {
                Some(number) => format!("{number:.digits$}"),
                None => value.to_string(),
            },
        };
        lines.push(SHOWN.iter().map(cell).collect());
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..SHOWN.len()).map(|c| width(c).unwrap_or(0)).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths).enumerate();
        let cells: Vec<String> = cells
            .map(|(i, (cell, &width))| match SHOWN[i].0 {
                "policy" | "codec" | "text" => format!("{cell:width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}
