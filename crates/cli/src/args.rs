//! The arguments: a contract that tests outside this repository call.
//!
//! Everything that can be refused without a model is refused here, in one line that names the flag
//! and what it accepts. Values that belong to a later version (`--kv int4`, `--policy window`) are
//! known by name, so that the refusal can say so. Options that a configuration file may also set are
//! `Option`s: the command line wins, then the file, then the default.

use crate::bytes;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Debug, Parser)]
#[command(
    name = "haversack",
    version,
    about = "Run language models from GGUF files inside a byte budget.",
    after_help = "MODEL is a path to a GGUF file or a name from the catalogue; without it the default model is used, and fetched the first time.",
    disable_help_subcommand = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    #[command(flatten)]
    pub global: Global,
}

/// Flags of every command.
#[derive(Debug, Clone, Default, Args)]
pub struct Global {
    /// One JSON document on stdout; progress stays on stderr
    #[arg(long, global = true)]
    pub json: bool,

    /// Lines on stderr: error, warn, info, debug or trace
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log: Option<LogLevel>,

    /// A TOML file with defaults for the flags, under the same names
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Fetch a catalogue model, with resume and sha256
    Pull(Pull),
    /// Complete one prompt
    Run(Box<Run>),
    /// Hold a conversation
    Chat(Box<Chat>),
    /// Log-probabilities of a given text
    Score(Score),
    /// Text to token ids
    Tokenize(Tokenize),
    /// Token ids to text
    Detokenize(Detokenize),
    /// What is in a model file
    Inspect(Inspect),
    /// Check model files
    Verify(Verify),
    /// What this device offers
    Doctor,
    /// Measure speed, alone or against llama-bench
    Bench(Bench),
}

/// Flags of the commands that compute.
#[derive(Debug, Clone, Default, Args)]
pub struct Compute {
    /// Ceiling for KV blocks, tables and scratch, such as 1500M or 4GiB
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, allow_hyphen_values = true)]
    pub memory: Option<u64>,

    /// Worker threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = count(1, THREADS_MAX), allow_hyphen_values = true)]
    pub threads: Option<usize>,

    /// Tokens a session may hold [default: the model's, at most what --memory allows]
    #[arg(long, value_name = "N", value_parser = count(1, CONTEXT_MAX), allow_hyphen_values = true)]
    pub context: Option<usize>,

    /// How keys and values are stored: f16 or auto
    #[arg(long, value_name = "CODEC")]
    pub kv: Option<Kv>,

    /// What is kept when the budget ends: full or auto
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<Policy>,

    /// Arithmetic: int8 is the fast path, f32 the exact one
    #[arg(long, value_name = "KIND")]
    pub activations: Option<Activations>,

    /// Keep a cache file of weights packed for this CPU (auto), or pack on the fly (off)
    #[arg(long, value_name = "MODE")]
    pub repack: Option<Repack>,
}

pub const THREADS_MAX: u64 = 256;
/// Longer than any trained context; positions stay exact in f64 far beyond it.
pub const CONTEXT_MAX: u64 = 1 << 24;
/// A completion this long outlives its context; the number only has to be an honest one.
pub const TOKENS_MAX: u64 = (1 << 31) - 1;

/// A whole number in a range; whatever else it is, the error says the range.
fn count(min: u64, max: u64) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync {
    move |text| {
        let number = text.parse::<u64>().ok().filter(|n| (min..=max).contains(n));
        number
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| format!("accepted: a whole number in {min}..={max}"))
    }
}

/// Sampling flags of `run` and `chat`.
#[derive(Debug, Clone, Default, Args)]
pub struct Sampling {
    /// 0 takes the likeliest token [default: 0 for run, 0.7 for chat]
    #[arg(long, value_name = "T", value_parser = between::<0, 100>, allow_hyphen_values = true)]
    pub temperature: Option<f32>,

    /// Only the K likeliest; 0 is off
    #[arg(long, value_name = "K", value_parser = count(0, TOKENS_MAX), allow_hyphen_values = true)]
    pub top_k: Option<usize>,

    /// Only the likeliest that together have this probability; 1 is off
    #[arg(long, value_name = "P", value_parser = share, allow_hyphen_values = true)]
    pub top_p: Option<f32>,

    /// Only those with this share of the likeliest one's probability; 0 is off
    #[arg(long, value_name = "P", value_parser = between::<0, 1>, allow_hyphen_values = true)]
    pub min_p: Option<f32>,

    /// Divides the logits of tokens seen; 1 is off
    #[arg(long, value_name = "X", value_parser = above_zero, allow_hyphen_values = true)]
    pub repetition_penalty: Option<f32>,

    /// Taken from the logits of tokens seen
    #[arg(long, value_name = "X", value_parser = between::<-100, 100>, allow_hyphen_values = true)]
    pub presence_penalty: Option<f32>,

    /// Taken from the logits of tokens seen, once for each time
    #[arg(long, value_name = "X", value_parser = between::<-100, 100>, allow_hyphen_values = true)]
    pub frequency_penalty: Option<f32>,

    /// Added to one token's logit: ID=BIAS (repeatable)
    #[arg(long, value_name = "ID=BIAS", value_parser = bias, allow_hyphen_values = true)]
    pub logit_bias: Vec<(u32, f32)>,

    /// Same seed, same tokens [default: 0]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub seed: Option<u64>,
}

#[derive(Debug, Args)]
pub struct Pull {
    /// A catalogue name [default: the default model]
    pub name: Option<String>,

    /// List the catalogue instead of fetching
    #[arg(long, conflicts_with = "name")]
    pub list: bool,
}

#[derive(Debug, Args)]
pub struct Run {
    /// A path or a catalogue name
    pub model: Option<String>,

    #[command(flatten)]
    pub prompt: Prompt,

    /// The prompt as it stands, without the model's chat template
    #[arg(long)]
    pub raw: bool,

    /// A system message for the chat template
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["raw", "ids"])]
    pub system: Option<String>,

    /// Parse special-token text such as <|im_end|> in the prompt
    #[arg(long)]
    pub special: bool,

    /// Do not put the beginning-of-sequence token first
    #[arg(long)]
    pub no_bos: bool,

    /// Tokens to generate at most [default: until the model stops or the context is full]
    #[arg(short = 'n', long, value_name = "N", value_parser = count(1, TOKENS_MAX), allow_hyphen_values = true)]
    pub max_tokens: Option<usize>,

    /// Go on after the end-of-sequence token
    #[arg(long)]
    pub ignore_eos: bool,

    /// End when this text appears (repeatable)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,

    /// Say on stderr what became of the context
    #[arg(long)]
    pub explain: bool,

    #[command(flatten)]
    pub sampling: Sampling,

    #[command(flatten)]
    pub compute: Compute,
}

/// Exactly one of them.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Prompt {
    /// The prompt
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,

    /// A file with the prompt; - is stdin
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,

    /// Token ids, taken as they stand: "1,2,3"
    #[arg(long, value_name = "IDS", value_parser = Ids::from_str, allow_hyphen_values = true)]
    pub ids: Option<Ids>,
}

#[derive(Debug, Args)]
pub struct Chat {
    /// A path or a catalogue name
    pub model: Option<String>,

    /// The system message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,

    /// Tokens of one answer at most
    #[arg(short = 'n', long, value_name = "N", value_parser = count(1, TOKENS_MAX), allow_hyphen_values = true)]
    pub max_tokens: Option<usize>,

    /// Numbers after every answer
    #[arg(long)]
    pub stats: bool,

    /// Say after every answer what became of the context
    #[arg(long)]
    pub explain: bool,

    /// Leave no line history on disk
    #[arg(long)]
    pub no_save: bool,

    #[command(flatten)]
    pub sampling: Sampling,

    #[command(flatten)]
    pub compute: Compute,
}

/// Exactly one of them.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Text {
    /// The text itself
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub text: Option<String>,

    /// A file with the text; - is stdin
    #[arg(long, value_name = "FILE")]
    pub text_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Score {
    /// A path or a catalogue name
    pub model: Option<String>,

    #[command(flatten)]
    pub text: TextOrIds,

    /// Parse special-token text such as <|im_end|>
    #[arg(long)]
    pub special: bool,

    /// Do not put the beginning-of-sequence token first
    #[arg(long)]
    pub no_bos: bool,

    #[command(flatten)]
    pub compute: Compute,
}

/// Exactly one of them.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct TextOrIds {
    /// The text itself
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub text: Option<String>,

    /// A file with the text; - is stdin
    #[arg(long, value_name = "FILE")]
    pub text_file: Option<PathBuf>,

    /// Token ids, taken as they stand: "1,2,3"
    #[arg(long, value_name = "IDS", value_parser = Ids::from_str, allow_hyphen_values = true)]
    pub ids: Option<Ids>,
}

#[derive(Debug, Args)]
pub struct Tokenize {
    /// A path or a catalogue name
    pub model: Option<String>,

    #[command(flatten)]
    pub text: Text,

    /// Parse special-token text such as <|im_end|>
    #[arg(long)]
    pub special: bool,

    /// Do not put the beginning-of-sequence token first
    #[arg(long)]
    pub no_bos: bool,
}

#[derive(Debug, Args)]
pub struct Detokenize {
    /// A path or a catalogue name
    pub model: Option<String>,

    /// Token ids: "1,2,3"
    #[arg(long, value_name = "IDS", value_parser = Ids::from_str, allow_hyphen_values = true)]
    pub ids: Ids,
}

#[derive(Debug, Args)]
pub struct Inspect {
    /// A path or a catalogue name
    pub model: Option<String>,

    /// Every tensor, not only a table by type
    #[arg(long)]
    pub tensors: bool,
}

#[derive(Debug, Args)]
pub struct Verify {
    /// Paths or catalogue names
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Bench {
    /// A path or a catalogue name
    pub model: Option<String>,

    /// Only these rows, such as prefill_512,decode_d0
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<String>,

    /// A llama-bench binary to measure beside, interleaved
    #[arg(long, value_name = "PATH")]
    pub against: Option<PathBuf>,

    /// KV type of the other program
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = peer_kv)]
    pub against_kv: String,

    /// Rounds of each measurement; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count(1, 100), allow_hyphen_values = true)]
    pub repeat: usize,

    /// Append the rows to a CSV file, with CPU, compiler, command and commit
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    #[command(flatten)]
    pub compute: Compute,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Activations {
    #[default]
    Int8,
    F32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Repack {
    #[default]
    Auto,
    Off,
}

/// The codec of keys and values. `auto` is f16 until there is a better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kv {
    #[default]
    Auto,
    F16,
    /// As computed: for judging the other forms.
    F32,
}

impl FromStr for Kv {
    type Err = String;

    fn from_str(text: &str) -> Result<Kv, String> {
        const LATER: [&str; 6] = ["int8", "int5", "int4", "int4-plain", "int3", "int2"];
        match text {
            "auto" => Ok(Kv::Auto),
            "f16" => Ok(Kv::F16),
            "f32" => Ok(Kv::F32),
            _ if LATER.contains(&text) || text.starts_with("k=") || text.starts_with("v=") => {
                Err("not in this version yet; available now: f16, f32, auto (which is f16)".into())
            }
            _ => Err("accepted: f16, f32, auto".into()),
        }
    }
}

/// What is kept when the budget or the context ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    #[default]
    Auto,
    Full,
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Policy, String> {
        match text {
            "auto" => Ok(Policy::Auto),
            "full" => Ok(Policy::Full),
            "window" | "tiers" | "heavy" | "snap" | "turns" | "adaptive" => {
                Err("not in this version yet; available now: full, auto (which is full)".into())
            }
            _ => Err("accepted: auto, full".into()),
        }
    }
}

/// A list of token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids(pub Vec<u32>);

impl FromStr for Ids {
    type Err = String;

    fn from_str(text: &str) -> Result<Ids, String> {
        let ids: Result<Vec<u32>, String> = text
            .split([',', ' ', '\n', '\t'])
            .filter(|word| !word.is_empty())
            .map(|word| {
                word.parse()
                    .map_err(|_| format!("'{word}' is not a token id; accepted: whole numbers from 0 on, such as \"1,2,3\""))
            })
            .collect();
        match ids?.as_slice() {
            [] => Err("no token ids; accepted: whole numbers from 0 on, such as \"1,2,3\"".into()),
            ids => Ok(Ids(ids.to_vec())),
        }
    }
}

fn between<const MIN: i32, const MAX: i32>(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value >= MIN as f32 && value <= MAX as f32 => Ok(value),
        _ => Err(format!("accepted: a number from {MIN} to {MAX}")),
    }
}

fn above_zero(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if (0.01..=100.0).contains(&value) => Ok(value),
        _ => Err("accepted: a number from 0.01 to 100".into()),
    }
}

fn share(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value > 0.0 && value <= 1.0 => Ok(value),
        _ => Err("accepted: a number above 0, up to 1".into()),
    }
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    const ACCEPTED: &str = "accepted: ID=BIAS with a token id and a number from -100 to 100";
    let (id, bias) = text.split_once('=').ok_or(ACCEPTED)?;
    let id = id.parse().map_err(|_| ACCEPTED)?;
    let bias = between::<-100, 100>(bias).map_err(|_| ACCEPTED)?;
    Ok((id, bias))
}

fn peer_kv(text: &str) -> Result<String, String> {
    const TYPES: [&str; 9] = [
        "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl",
    ];
    if TYPES.contains(&text) {
        Ok(text.into())
    } else {
        Err(format!("accepted: {}", TYPES.join(", ")))
    }
}

/// clap's message on one line, without its usage text.
pub fn one_line(error: &clap::Error) -> String {
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let names: Vec<_> = Cli::command()
            .get_subcommands()
            .map(|c| c.get_name().to_string())
            .collect();
        return format!(
            "error: no command given; accepted: {} (see --help)",
            names.join(", ")
        );
    }
    let text = error.render().to_string();
    let text = text.replace("  tip:", "; tip:").replace("\n\n;", ";");
    let head: Vec<&str> = text
        .lines()
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .collect();
    crate::error::one_line(&head.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    fn refusal(line: &str) -> String {
        let words = std::iter::once("haversack").chain(line.split(' '));
        match Cli::try_parse_from(words) {
            Ok(_) => panic!("accepted: {line}"),
            Err(error) => one_line(&error),
        }
    }

    #[test]
    fn refusals_name_the_flag_and_what_it_accepts() {
        for (line, names) in [
            ("run --prompt x -n 0", vec!["max-tokens", "1..=2147483647"]),
            (
                "run --prompt x -n -5",
                vec!["max-tokens", "-5", "1..=2147483647"],
            ),
            (
                "run --prompt x -n 99999999999999999999",
                vec!["max-tokens", "1..=2147483647"],
            ),
            ("run --prompt x --threads 0", vec!["--threads", "1..=256"]),
            ("run --prompt x --memory 4GB", vec!["--memory", "4GiB"]),
            ("run --prompt x --memory -4G", vec!["--memory", "4GiB"]),
            (
                "run --prompt x --kv int4",
                vec!["--kv", "f16, f32, auto", "not in this version"],
            ),
            (
                "run --prompt x --kv k=int8,v=int4",
                vec!["--kv", "not in this version"],
            ),
            ("run --prompt x --kv seven", vec!["--kv", "f16, f32, auto"]),
            (
                "run --prompt x --policy window",
                vec!["--policy", "full", "not in this version"],
            ),
            (
                "run --prompt x --temperature nan",
                vec!["--temperature", "0 to 100"],
            ),
            (
                "run --prompt x --temperature -1",
                vec!["--temperature", "0 to 100"],
            ),
            (
                "run --prompt x --top-p 1.5",
                vec!["--top-p", "above 0, up to 1"],
            ),
            ("run --prompt x --seed -1", vec!["--seed"]),
            ("run --prompt x --context 0", vec!["--context", "1..="]),
            (
                "run --prompt x --activations f64",
                vec!["--activations", "int8, f32"],
            ),
            ("run --prompt x --ids 1", vec!["--prompt", "--ids"]),
            ("run", vec!["--prompt", "--ids"]),
            (
                "detokenize --ids 1,x",
                vec!["--ids", "'x' is not a token id"],
            ),
            ("detokenize --ids ,", vec!["--ids", "no token ids"]),
            (
                "detokenize --ids -1",
                vec!["--ids", "'-1' is not a token id"],
            ),
            ("score", vec!["--text-file"]),
            ("verify", vec!["FILE"]),
            ("frobnicate", vec!["frobnicate"]),
            ("run --prompt x --window 5", vec!["'--window'"]),
        ] {
            let text = refusal(line);
            assert!(text.starts_with("error: "), "{line}: {text}");
            assert!(!text.contains('\n'));
            for name in names {
                assert!(text.contains(name), "{line}: {text}");
            }
        }
    }

    #[test]
    fn what_the_contract_writes_is_accepted() {
        for line in [
            "pull",
            "pull smollm2",
            "run --prompt hello -n 5 --json",
            "run --json model.gguf --prompt-file f --raw --special --no-bos --ignore-eos --stop x --stop y",
            "run m --ids 1,2 --temperature 0.5 --top-k 40 --top-p 0.9 --min-p 0.05 --seed 7 --kv auto --policy full",
            "run m --ids 1,2 --memory 1500M --threads 2 --context 2048 --activations f32 --repack off --log trace",
            "chat m --stats --explain --no-save",
            "score m --text-file f --special --no-bos",
            "score --ids 1,2",
            "tokenize m --text-file f",
            "detokenize m --ids 1,2",
            "inspect f",
            "verify a b",
            "doctor --json",
            "bench m --only prefill_512,decode_d0 --against p --against-kv f16",
            "run --prompt x --presence-penalty -1 --logit-bias 3=-100",
        ] {
            let words = std::iter::once("haversack").chain(line.split(' '));
            if let Err(error) = Cli::try_parse_from(words) {
                panic!("{line}: {error}");
            }
        }
    }
}
