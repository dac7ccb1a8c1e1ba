//! `compare` on a small random model: its rows, its files, going on after an interruption, and what it
//! refuses. Figures of a random model say nothing; that they are there, and the same again, does.

use crate::common;

use common::{Sandbox, text};
use haversack_testing::models::Spec;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

struct Bench {
    sandbox: Sandbox,
    model: PathBuf,
    text: PathBuf,
}

const WORDS: [&str; 12] = [
    "the", "old", "river", "Anna", "went", "home", "with", "a", "lantern", "and", "said", "nothing",
];

impl Bench {
    fn new() -> Bench {
        let sandbox = Sandbox::new();
        let model = sandbox.path("tiny.gguf");
        let spec = Spec {
            context: 1024,
            ..Spec::named("llama").unwrap()
        };
        spec.write_file(&model).unwrap();
        let words: Vec<&str> = (0..3000)
            .map(|i: usize| WORDS[(i * i + i / 7) % 12])
            .collect();
        let text = sandbox.write("text.txt", words.join(" "));
        Bench {
            sandbox,
            model,
            text,
        }
    }

    fn run(&self, arguments: &str) -> common::Ended {
        let mut words: Vec<&str> = arguments.split_whitespace().collect();
        words.splice(
            0..0,
            [
                "compare",
                text(&self.model),
                "--text-file",
                text(&self.text),
            ],
        );
        self.sandbox.run(&words)
    }

    fn json(&self, arguments: &str) -> Value {
        self.run(&format!("{arguments} --json")).json()
    }
}

const ALL: &str = "--contexts 512 --shares 0.75,0.5 --policies full,window,heavy --codecs f16,int4 --chunks 2 --tasks kl,needles,lookups,recall,arithmetic,answers --needles 2 --answers 3";

/// Columns of the contract.
const CONTRACT: [&str; 12] = [
    "policy",
    "codec",
    "bytes_fraction",
    "bits_effective",
    "context",
    "text",
    "kl_mean",
    "kl_p99",
    "top1_agreement",
    "perplexity",
    "needle_logprob",
    "ms_per_token",
];

/// What may differ from run to run.
const TIMES: [&str; 2] = ["ms_per_token", "overhead"];

/// Rows of a CSV without quotes, by column.
fn csv(path: &Path) -> Vec<BTreeMap<String, String>> {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned));
    let names: Vec<String> = lines.next().unwrap().collect();
    lines
        .map(|cells| {
            let cells: Vec<String> = cells.collect();
            assert_eq!(cells.len(), names.len());
            names.iter().cloned().zip(cells).collect()
        })
        .collect()
}

fn without_times(path: &Path) -> Vec<BTreeMap<String, String>> {
    let mut rows = csv(path);
    for row in &mut rows {
        row.retain(|name, _| !TIMES.contains(&name.as_str()));
    }
    rows
}

/// Every row has every figure, the files say the same, bytes are within their shares, and a second run
/// after a kill gives the same report.
#[test]
fn a_report_and_the_same_again() {
    let bench = Bench::new();
    let out = bench.sandbox.path("out");
    let arguments = format!("{ALL} --out {}", text(&out));
    let document = bench.json(&arguments);
    let rows = document["rows"].as_array().unwrap();
    // full f16 and int4; two policies, two codecs, two shares.
    assert_eq!(rows.len(), 2 + 2 * 2 * 2, "{document}");
    for row in rows {
        for column in CONTRACT {
            assert!(!row[column].is_null(), "{column} of {row}");
        }
        let number = |column: &str| row[column].as_f64().unwrap();
        if let Some(share) = row["share"].as_f64() {
            assert!(number("bytes_fraction") <= share, "{row}");
        }
        assert!(number("kl_mean_low") <= number("kl_mean"));
        assert!(number("kl_mean") <= number("kl_mean_high"));
        assert!(number("kl_mean") <= number("kl_p99"));
        for task in ["needle", "lookup", "recall", "arithmetic"] {
            let logprob = number(&format!("{task}_logprob"));
            assert!(logprob <= 0.0 && logprob.is_finite());
            let accuracy = number(&format!("{task}_accuracy"));
            assert!((0.0..=1.0).contains(&accuracy));
        }
        assert!((0.0..=1.0).contains(&number("answers_bleu")));
        assert!(number("answers_nll_ratio") > 0.0);
    }
    let reference = &rows[0];
    assert_eq!(reference["policy"], "full");
    assert_eq!(reference["codec"], "f16");
    for (column, value) in [
        ("bytes_fraction", 1.0),
        ("kl_mean", 0.0),
        ("top1_agreement", 1.0),
        ("answers_same", 1.0),
        ("answers_nll_ratio", 1.0),
    ] {
        assert_eq!(reference[column].as_f64(), Some(value), "{column}");
    }
    assert!(
        rows[1..]
            .iter()
            .all(|row| row["kl_mean"].as_f64() > Some(0.0))
    );
    // Weights of this model are floats: nothing is rounded.
    assert_eq!(reference["kl_floor_int8"].as_f64(), Some(0.0));

    let path = out.join("report.csv");
    let table = csv(&path);
    assert_eq!(table.len(), rows.len());
    for (line, row) in table.iter().zip(rows) {
        assert_eq!(line.len(), row.as_object().unwrap().len());
        for (name, cell) in line {
            // Read by the same reader, which may be wrong in the last digit.
            let read = || -> Value {
                serde_json::from_str(cell).unwrap_or_else(|_| panic!("{name}: {cell}"))
            };
            match &row[name] {
                Value::Null => assert_eq!(cell, "", "{name}"),
                Value::String(text) => assert_eq!(cell, text, "{name}"),
                value => assert_eq!(*value, read(), "{name}"),
            }
        }
    }
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    balanced(&page);
    for word in ["<script", "http:", "https:", "NaN", "inf"] {
        assert!(!page.contains(word), "{word}");
    }
    assert!(page.matches("class=\"heat\"").count() == rows.len());

    // Killed in the middle of a line.
    let whole = without_times(&path);
    let state = out.join("state.jsonl");
    let lines = fs::read(&state).unwrap();
    fs::write(&state, &lines[..lines.len() * 2 / 5]).unwrap();
    fs::remove_file(&path).unwrap();
    bench.json(&arguments);
    let again = without_times(&path);
    assert_eq!(again.len(), whole.len());
    for (again, row) in again.iter().zip(&whole) {
        for (column, cell) in row {
            let who = format!("{column} of {} {}", row["policy"], row["codec"]);
            assert_eq!(&again[column], cell, "{who}");
        }
    }
    let results = |bytes: &[u8]| bytes.iter().filter(|&&b| b == b'\n').count();
    assert_eq!(results(&fs::read(&state).unwrap()), results(&lines));

    // All done: nothing is computed, times are those of then.
    let (before, page) = (csv(&path), fs::read(out.join("report.html")).unwrap());
    bench.json(&arguments);
    assert_eq!(csv(&path), before);
    assert_eq!(fs::read(out.join("report.html")).unwrap(), page);

    // Another seed, other settings: refused in one line.
    for (more, what) in [
        ("--seed 1", "another seed"),
        ("--score-from 0.6", "other settings"),
    ] {
        let ended = bench.run(&format!("{arguments} {more}"));
        assert!(ended.error(2).contains(what), "{}", ended.stderr);
    }
    // Another contender is added to what is there.
    let more = bench.json(&arguments.replace("0.75,0.5", "0.75,0.5,0.625"));
    assert_eq!(more["rows"].as_array().unwrap().len(), 2 + 2 * 2 * 3);
}

/// Tags of a page close in order, so that it is XML too.
fn balanced(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    let page = page.strip_prefix("<!DOCTYPE html>").unwrap();
    for part in page.split('<').skip(1) {
        let (tag, rest) = part.split_once('>').unwrap_or_else(|| panic!("{part}"));
        assert!(
            !rest.contains('>') || open.last() == Some(&"style"),
            "{part}"
        );
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{part}");
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap());
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

/// Threads change times and nothing else.
#[test]
fn the_same_with_any_number_of_threads() {
    let bench = Bench::new();
    let rows = |threads: usize| {
        let out = bench.sandbox.path(&format!("threads-{threads}"));
        let arguments =
            "--contexts 256 --shares 0.75 --policies window --codecs int4,f16 --needles 1";
        bench.json(&format!(
            "{arguments} --threads {threads} --out {}",
            text(&out)
        ));
        without_times(&out.join("report.csv"))
    };
    assert_eq!(rows(1), rows(2));
}

/// Policies under names of their own, and a text that is made up.
#[test]
fn a_policy_file_and_no_text() {
    let bench = Bench::new();
    let file = bench.sandbox.write(
        "policies.toml",
        "[few]\npolicy = 'window'\nanchors = 32\n[many]\npolicy = 'window'\nanchors = 96\n",
    );
    let document = bench
        .sandbox
        .run(&[
            "compare",
            text(&bench.model),
            "--policy-file",
            text(&file),
            "--policies",
            "few,many",
            "--shares",
            "0.5",
            "--codecs",
            "f16",
            "--contexts",
            "512",
            "--tasks",
            "kl",
            "--json",
        ])
        .json();
    let rows = document["rows"].as_array().unwrap();
    let names: Vec<&str> = rows
        .iter()
        .map(|row| row["policy"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["full", "few", "many"]);
    assert_ne!(rows[1]["kl_mean"], rows[2]["kl_mean"]);
    assert!(rows.iter().all(|row| row["text"] == "made-up"));
    assert!(rows.iter().all(|row| row["needle_logprob"].is_null()));
}

#[test]
fn questions_alone_have_bytes_too() {
    let bench = Bench::new();
    let arguments =
        "--contexts 512 --shares 0.5 --policies window --codecs f16 --tasks recall --needles 1";
    let document = bench.json(arguments);
    let rows = document["rows"].as_array().unwrap();
    assert_eq!(rows[0]["bytes_fraction"].as_f64(), Some(1.0));
    assert!(rows[1]["bytes_fraction"].as_f64() <= Some(0.5));
    assert!(rows.iter().all(|row| row["kl_mean"].is_null()));
    assert!(rows.iter().all(|row| row["recall_logprob"].is_f64()));
}

/// A share that one policy can meet leaves the others out, with a note; a share that none can is refused with
/// one that works.
#[test]
fn shares_that_are_too_small() {
    let bench = Bench::new();
    let arguments = "--contexts 512 --policies window,heavy --codecs f16 --tasks kl";
    let document = bench.json(&format!("{arguments} --shares 0.25"));
    let left_out = document["left_out"].as_array().unwrap();
    assert_eq!(left_out.len(), 1, "{left_out:?}");
    assert_eq!(left_out[0]["policy"], "heavy");
    assert!(left_out[0]["share_least"].as_f64() > Some(0.25));
    assert_eq!(document["rows"].as_array().unwrap().len(), 2);

    let ended = bench.run(&format!("{arguments} --shares 0.01"));
    let line = ended.error(2);
    let (_, least) = line
        .rsplit_once("at least ")
        .unwrap_or_else(|| panic!("{line}"));
    let document = bench.json(&format!("{arguments} --shares {least}"));
    assert_eq!(document["rows"].as_array().unwrap().len(), 2);
}

#[test]
fn what_cannot_be_compared() {
    let bench = Bench::new();
    let empty = bench.sandbox.write("empty.txt", "\n\n");
    let broken = bench.sandbox.write("broken.jsonl", "{\"x\": 1}\n");
    let short = bench.sandbox.write("short.txt", "too short");
    let policies = bench.sandbox.write("policies.toml", "[heavy]\ntheta = 1\n");
    for (arguments, words) in [
        ("--shares 0", "accepted: numbers above 0"),
        ("--shares -0.5", "accepted: numbers above 0"),
        ("--shares 1.5", "up to 1"),
        ("--shares nan", "accepted: numbers above 0"),
        ("--shares 0.5,", "accepted: numbers above 0"),
        (
            "--policies other",
            "accepted: full, window, tiers, heavy, snap, adaptive, tiers-written",
        ),
        (
            "--policies auto",
            "accepted: full, window, tiers, heavy, snap, adaptive, tiers-written",
        ),
        ("--policies window,", "accepted"),
        ("--codecs int6", "accepted: f32, f16"),
        ("--codecs f16,,int4", "accepted: f32, f16"),
        ("--contexts 64", "accepted: a whole number in 128..="),
        ("--contexts 2048", "accepted: at most 1024"),
        ("--chunks 0", "accepted: a whole number in 1..="),
        ("--chunks 100", "accepted: --chunks of at most"),
        ("--offset 10000000", "less than one window"),
        ("--score-from 1", "not including, 1"),
        (
            "--tasks sleep",
            "accepted: kl, needles, lookups, recall, arithmetic, answers",
        ),
        ("--needles 0", "accepted: a whole number in 1..="),
        (
            "--answers 501 --tasks answers",
            "accepted: a whole number in 1..=500",
        ),
        ("--activations f64", "int8"),
        (
            &format!("--instructions {} --tasks answers", text(&empty)),
            "has 0 instructions",
        ),
        (
            &format!("--instructions {} --tasks answers", text(&broken)),
            "line 1",
        ),
        (&format!("--text-file {}", text(&short)), "short.txt has"),
        (
            &format!("--policy-file {}", text(&policies)),
            "'heavy.theta'; accepted",
        ),
        ("--policy-file nowhere.toml", "cannot read --policy-file"),
        ("--text-file - --text-file -", "can be given once"),
    ] {
        let ended = bench.run(arguments);
        let line = ended.error(2);
        assert!(line.contains(words), "{arguments}: {line}");
    }
    let ended = bench.run("--text-file nowhere.txt");
    assert!(ended.error(1).contains("nowhere.txt"));
}
