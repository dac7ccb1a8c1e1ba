//! The other program: llama-bench, and llama-batched-bench beside it.

use super::work::{BATCH_PROMPT, BATCH_TOKENS, DECODE_TOKENS, Work, median};
use crate::error::one_line;
use anyhow::{Context, Result, anyhow, bail};
use haversack::gguf::Gguf;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub struct Peer {
    program: PathBuf,
    /// For several sequences at once; `None` where it is not installed.
    batched: Option<PathBuf>,
    model: PathBuf,
    threads: usize,
    kv: String,
}

/// Tokens per second by attention path.
type Speeds = BTreeMap<bool, f64>;

/// Measurements of both attention paths.
#[derive(Default)]
pub struct Samples(BTreeMap<bool, Vec<f64>>);

impl Samples {
    pub fn add(&mut self, speeds: &Speeds) {
        for (&flash, &speed) in speeds {
            self.0.entry(flash).or_default().push(speed);
        }
    }

    /// The median of the better path.
    pub fn best(&self) -> Option<f64> {
        let medians = self.0.values().map(|samples| median(samples));
        medians.max_by(f64::total_cmp)
    }
}

impl Peer {
    pub fn new(program: &Path, model: &Path, threads: usize, kv: &str) -> Result<Peer> {
        if !program.is_file() {
            bail!("--against {}: no such program", program.display());
        }
        if Gguf::open(model)?.packed().is_some() {
            let model = model.display();
            bail!("{model}: --against needs a GGUF file; haversack unpack --keep writes one");
        }
        let batched = program.with_file_name("llama-batched-bench");
        Ok(Peer {
            program: program.to_path_buf(),
            batched: batched.is_file().then_some(batched),
            model: model.to_path_buf(),
            threads,
            kv: kv.to_owned(),
        })
    }

    /// One measurement of each attention path; nothing where the program cannot do the work.
    pub fn run(&self, work: Work) -> Result<Speeds> {
        match (work, &self.batched) {
            (Work::Prefill(tokens), _) => self.bench(tokens, 0, 0),
            (Work::Decode { depth }, _) => self.bench(0, DECODE_TOKENS, depth),
            (Work::Batch(count), Some(program)) => self.batched(program, count),
            (Work::Batch(_), None) => Ok(Speeds::new()),
        }
    }

    /// Quantised values need the flash path.
    fn paths(&self) -> &'static [&'static str] {
        match self.kv.as_str() {
            "f32" | "f16" | "bf16" => &["off", "on"],
            _ => &["on"],
        }
    }

    fn bench(&self, prompt: usize, generate: usize, depth: usize) -> Result<Speeds> {
        let program = &self.program;
        let numbers = [("-p", prompt), ("-n", generate), ("-d", depth)];
        let paths = self.paths().join(",");
        let words = ["-r", "1", "-o", "json", "-fa", &paths];
        let text = self.output(program, &numbers, &words)?;
        parse_bench(&text).with_context(|| format!("{} answered something else", program.display()))
    }

    fn batched(&self, program: &Path, count: usize) -> Result<Speeds> {
        let mut speeds = Speeds::new();
        for path in self.paths() {
            let context = count * (BATCH_PROMPT + BATCH_TOKENS) + 64;
            let sizes = [("-npp", BATCH_PROMPT), ("-ntg", BATCH_TOKENS)];
            let numbers = [sizes, [("-npl", count), ("-c", context)]].concat();
            let words = ["-fa", path, "--output-format", "jsonl"];
            let text = self.output(program, &numbers, &words)?;
            let speed = parse_batched(&text)
                .with_context(|| format!("{} answered something else", program.display()))?;
            speeds.insert(*path == "on", speed);
        }
        Ok(speeds)
    }

    /// What the program says with these flags behind the usual ones.
    fn output(&self, program: &Path, numbers: &[(&str, usize)], words: &[&str]) -> Result<String> {
        let name = program.to_string_lossy();
        let mut command = Command::new(program);
        command.arg("-m").arg(&self.model);
        command.args(["-t", &self.threads.to_string()]);
        command.args(["-ctk", &self.kv, "-ctv", &self.kv]);
        for (flag, number) in numbers {
            command.args([flag, &number.to_string()[..]]);
        }
        let output = command.args(words).stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot run {name}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().rfind(|line| !line.trim().is_empty());
            let last = one_line(last.unwrap_or_default());
            bail!("{name} failed ({}): {last}", output.status);
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// A list with one object per attention path.
fn parse_bench(text: &str) -> Result<Speeds> {
    let list: Vec<Json> = serde_json::from_str(text)?;
    let mut speeds = Speeds::new();
    for row in &list {
        let speed = row["avg_ts"].as_f64().ok_or_else(|| anyhow!("no avg_ts"))?;
        speeds.insert(is_on(&row["flash_attn"]), speed);
    }
    anyhow::ensure!(!speeds.is_empty(), "no rows");
    Ok(speeds)
}

/// One object per line; other lines are chatter.
fn parse_batched(text: &str) -> Result<f64> {
    text.lines()
        .filter_map(|line| serde_json::from_str::<Json>(line.trim()).ok())
        .find_map(|row| row["speed_tg"].as_f64())
        .ok_or_else(|| anyhow!("no speed_tg"))
}

/// Versions differ in how they write it.
fn is_on(value: &Json) -> bool {
    value.as_bool() == Some(true) || value.as_i64() == Some(1) || value.as_str() == Some("on")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_other_program() {
        let text = r#"[{"flash_attn": 0, "avg_ts": 67.5, "n_gen": 0}, {"flash_attn": true, "avg_ts": 74.0}]"#;
        assert_eq!(
            parse_bench(text).unwrap(),
            Speeds::from([(false, 67.5), (true, 74.0)])
        );
        for bad in ["", "[]", "{}", "[{}]", "nonsense"] {
            assert!(parse_bench(bad).is_err(), "{bad}");
        }
        let lines = "loading\n{\"pl\": 2, \"speed_tg\": 56.85, \"speed\": 77.6}\n\n";
        assert_eq!(parse_batched(lines).unwrap(), 56.85);
        assert!(parse_batched("{}\n").is_err());
    }

    #[test]
    fn the_better_path_counts() {
        let mut samples = Samples::default();
        assert_eq!(samples.best(), None);
        for (off, on) in [(10.0, 1.0), (11.0, 50.0), (12.0, 2.0)] {
            samples.add(&Speeds::from([(false, off), (true, on)]));
        }
        assert_eq!(samples.best(), Some(11.0));
    }
}
