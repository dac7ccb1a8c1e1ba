//! Flags of `compare`: which policies and formats, on which texts, by which tasks.
//!
//! Policy names are split here and checked later, because a policy file may add some.

use super::ActivationsArg;
use super::cache::KvPair;
use super::values::{CONTEXT_MAX, THREADS_MAX, TOKENS_MAX, count, fraction, value};
use clap::Args;
use haversack_eval::task::Task;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Path of a GGUF file, or a catalogue name
    pub model: Option<String>,

    /// File with the text to measure on; - is stdin (repeatable) [default: a generated text]
    #[arg(long, value_name = "FILE")]
    pub text_file: Vec<PathBuf>,

    /// Policies to compare: full, window, tiers, heavy, snap, adaptive, tiers-written, tiers-demoted, adaptive-recall, or names from --policy-file
    #[arg(long, value_name = "NAMES", default_value = "full,window,heavy", value_delimiter = ',', value_parser = name, allow_hyphen_values = true)]
    pub policies: Vec<String>,

    /// Cache sizes, as fractions of a full f16 cache
    #[arg(long, value_name = "SHARES", default_value = "0.5,0.25,0.125", value_delimiter = ',', value_parser = share, allow_hyphen_values = true)]
    pub shares: Vec<f64>,

    /// KV cache formats, such as f16,int4,k=int8,v=int4
    #[arg(
        long,
        value_name = "CODECS",
        default_value = "f16,int4",
        allow_hyphen_values = true
    )]
    pub codecs: Codecs,

    /// Tokens per window of text [default: 2048, or the model's context if that is less]
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', value_parser = count(CONTEXT_MIN, CONTEXT_MAX), allow_hyphen_values = true)]
    pub contexts: Vec<usize>,

    /// Windows per text
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count(1, CONTEXT_MAX), allow_hyphen_values = true)]
    pub chunks: usize,

    /// Tokens to skip at the start of each text
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count(0, TOKENS_MAX), allow_hyphen_values = true)]
    pub offset: usize,

    /// Score the tokens of a window from this fraction on
    #[arg(long, value_name = "F", default_value_t = 0.5, value_parser = fraction, allow_hyphen_values = true)]
    pub score_from: f64,

    /// Tasks: kl, needles, lookups, recall, arithmetic, answers
    #[arg(
        long,
        value_name = "NAMES",
        default_value = "kl,needles",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    pub tasks: Vec<CompareTask>,

    /// Prompts per question task; each has four questions
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = count(1, CASES_MAX), allow_hyphen_values = true)]
    pub needles: usize,

    /// Number of instructions for the task answers
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = count(1, ANSWERS_MAX), allow_hyphen_values = true)]
    pub answers: usize,

    /// File with instructions, one per line or JSON lines [default: generated; at most 500]
    #[arg(long, value_name = "FILE")]
    pub instructions: Option<PathBuf>,

    /// Random seed; the same seed gives the same cases and intervals
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_hyphen_values = true
    )]
    pub seed: u64,

    /// Folder for report.csv, report.html and the state that lets an interrupted run continue
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// TOML file that sets policy parameters and defines policies under new names
    #[arg(long, value_name = "FILE")]
    pub policy_file: Option<PathBuf>,

    /// Activation arithmetic: f32 is exact, int8 is what models usually run with
    #[arg(long, value_name = "KIND", default_value = "f32")]
    pub activations: ActivationsArg,

    /// Worker threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = count(1, THREADS_MAX), allow_hyphen_values = true)]
    pub threads: Option<usize>,
}

/// A shorter window has nothing to evict.
const CONTEXT_MIN: u64 = 128;
const CASES_MAX: u64 = 10_000;
const ANSWERS_MAX: u64 = 500;

fn name(text: &str) -> Result<String, String> {
    let accepted = "names of policies, such as full,window,heavy";
    value(text, |name: &String| !name.is_empty(), accepted)
}

fn share(text: &str) -> Result<f64, String> {
    let accepted = "numbers above 0, up to 1, such as 0.5,0.25";
    value(text, |n| *n > 0.0 && *n <= 1.0, accepted)
}

/// Codecs as they were named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Codecs(pub Vec<(String, KvPair)>);

impl FromStr for Codecs {
    type Err = String;

    /// A comma also stands inside of `k=int8,v=int4`.
    fn from_str(text: &str) -> Result<Codecs, String> {
        let mut names: Vec<String> = Vec::new();
        for part in text.split(',') {
            match names.last_mut() {
                Some(last) if last.matches('=').count() == 1 => {
                    last.push(',');
                    last.push_str(part);
                }
                _ => names.push(part.to_owned()),
            }
        }
        let pair = |name: String| name.parse().map(|pair| (name, pair));
        let pairs: Result<Vec<_>, _> = names.into_iter().map(pair).collect();
        pairs.map(Codecs)
    }
}

/// What a cache is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompareTask {
    Kl,
    Questions(Task),
    Answers,
}

impl FromStr for CompareTask {
    type Err = String;

    fn from_str(text: &str) -> Result<CompareTask, String> {
        let task = Task::ALL.into_iter().find(|task| task.name() == text);
        match (text, task) {
            ("kl", _) => Ok(CompareTask::Kl),
            ("answers", _) => Ok(CompareTask::Answers),
            (_, Some(task)) => Ok(CompareTask::Questions(task)),
            _ => {
                let names = Task::ALL.map(Task::name).join(", ");
                Err(format!("accepted: kl, {names}, answers"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack::engine::Codec;

    #[test]
    fn codecs_in_a_list() {
        let of = |text: &str| -> Result<Vec<String>, String> {
            text.parse::<Codecs>()
                .map(|codecs| codecs.0.into_iter().map(|(name, _)| name).collect())
        };
        let all = ["f16", "k=int8,v=int4", "int2", "v=f16,k=int3"];
        assert_eq!(of(&all.join(",")).unwrap(), all);
        let pair = "k=int8,v=int4".parse::<Codecs>().unwrap().0[0].1;
        assert_eq!((pair.k, pair.v), (Codec::Int8, Codec::Int4));
        for text in ["", "f16,", "f16,,int4", "int6", "k=int8", "k=int8,int4"] {
            assert!(of(text).unwrap_err().contains("accepted"), "{text}");
        }
    }

    #[test]
    fn shares_are_shares() {
        for text in ["0", "-0.5", "1.01", "nan", "inf", "", "half"] {
            assert!(share(text).is_err(), "{text}");
        }
        assert_eq!((share("1"), share("0.0625")), (Ok(1.0), Ok(0.0625)));
    }
}
