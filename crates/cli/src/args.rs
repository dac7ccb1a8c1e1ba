//! The arguments: a contract that tests outside this repository call.
//!
//! Everything that can be refused without a model is refused here, in one line that names the flag
//! and what it accepts. Values that belong to a later version (`--policy tiers`) are known by name, so
//! that the refusal can say so. [`cache`] holds the flags about keys and values. Options that a configuration file may also set are
//! `Option`s: the command line wins, then the file, then the default.

mod cache;
mod compare;

pub use cache::{Cache, Kv, KvPair, Positions, Probe, ProfileName, RecentKv, Switch, Weights};
pub use compare::{Compare, Job};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use haversack::memory::bytes;
use haversack::session::relevance::Relevance;
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
    /// How well a text is predicted, and what a cache costs of it
    Perplexity(Box<Perplexity>),
    /// Which policy and codec keeps most of the model in the same bytes
    Compare(Box<Compare>),
    /// What fits a device, and what to choose for it
    Plan(Plan),
    /// Answer over HTTP, for clients of the OpenAI API
    Serve(Box<Serve>),
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

    /// Tokens the model looks back at most [default: what it was trained for]
    #[arg(long, value_name = "N", value_parser = count(1, CONTEXT_MAX), allow_hyphen_values = true)]
    pub context: Option<usize>,

    /// Arithmetic: int8 is the fast path, f32 the exact one
    #[arg(long, value_name = "KIND")]
    pub activations: Option<Activations>,

    /// Keep weights packed for this CPU and mean keys in the data directory (auto), or write nothing there (off)
    #[arg(long, value_name = "MODE")]
    pub repack: Option<Repack>,

    /// How the weights are held in memory [default: auto]
    #[arg(long, value_name = "MODE")]
    pub weights: Option<Weights>,

    #[command(flatten)]
    pub cache: Cache,
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

    /// Tokens to generate at most [default: until the model stops; without --policy window no more than its context has]
    #[arg(short = 'n', long, value_name = "N", value_parser = count(1, TOKENS_MAX), allow_hyphen_values = true)]
    pub max_tokens: Option<usize>,

    /// Go on after the end-of-sequence token
    #[arg(long)]
    pub ignore_eos: bool,

    /// End when this text appears (repeatable)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,

    /// Numbers on stderr afterwards, with the ledger as a bar
    #[arg(long)]
    pub stats: bool,

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

    /// Tokens of one answer at most [default: as many as the model's context has]
    #[arg(short = 'n', long, value_name = "N", value_parser = count(1, TOKENS_MAX), allow_hyphen_values = true)]
    pub max_tokens: Option<usize>,

    /// Numbers after every answer
    #[arg(long)]
    pub stats: bool,

    /// Say after every answer what became of the context
    #[arg(long)]
    pub explain: bool,

    /// Go on with the session of this name, or begin it [default in a terminal: a new one; in a pipe: none]
    #[arg(long, value_name = "NAME", conflicts_with = "no_save")]
    pub session: Option<String>,

    /// Which turns of a session an answer sees: all, threshold=0.6, or top-k=8
    #[arg(long, value_name = "RULE", value_parser = relevance)]
    pub relevance: Option<Relevance>,

    /// Leave no session and no line history on disk
    #[arg(long)]
    pub no_save: bool,

    #[command(flatten)]
    pub sampling: Sampling,

    #[command(flatten)]
    pub compute: Compute,
}

/// `all`, `threshold=F` or `top-k=N`.
fn relevance(text: &str) -> Result<Relevance, String> {
    let found = match text.split_once('=') {
        None if text == "all" => Some(Relevance::All),
        None if text == "top-k" => Some(Relevance::default()),
        Some(("threshold", n)) => {
            let n = n.parse::<f32>().ok().filter(|n| (-1.0..=1.0).contains(n));
            n.map(Relevance::Threshold)
        }
        Some(("top-k", n)) => {
            let n = n.parse::<usize>().ok().filter(|n| (1..=1024).contains(n));
            n.map(|turns| Relevance::Top {
                turns,
                hysteresis: 0.05,
                least: -1.0,
            })
        }
        _ => None,
    };
    found.ok_or_else(|| {
        "accepted: all, threshold=F with F from -1 to 1, top-k=N with N from 1 to 1024".to_owned()
    })
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
pub struct Serve {
    /// A path or a catalogue name
    pub model: Option<String>,

    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub addr: String,

    /// A file whose first line everybody must know who asks for something
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,

    /// A name by which clients may call this server, beside localhost; may be given more than once
    #[arg(long, value_name = "NAME")]
    pub host: Vec<String>,

    /// Requests that are computed at once [default: 8]
    #[arg(long, value_name = "N", value_parser = count(1, 64), allow_hyphen_values = true)]
    pub batch: Option<usize>,

    /// Requests that may wait [default: 64]
    #[arg(long, value_name = "N", value_parser = count(0, 4096), allow_hyphen_values = true)]
    pub queue: Option<usize>,

    /// Prompts and answers that are kept while there is room, for requests that begin alike [default: 16]
    #[arg(long, value_name = "N", value_parser = count(0, 256), allow_hyphen_values = true)]
    pub reuse: Option<usize>,

    /// Keep no conversations
    #[arg(long)]
    pub no_sessions: bool,

    #[command(flatten)]
    pub compute: Compute,
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

#[derive(Debug, Args)]
pub struct Perplexity {
    /// A path or a catalogue name
    pub model: Option<String>,

    #[command(flatten)]
    pub text: Text,

    /// Windows of --context tokens, each from an empty sequence, or one endless stream
    #[arg(long, value_name = "MODE", default_value = "chunk")]
    pub mode: Mode,

    /// Windows at most [default: as many as the text has]
    #[arg(long, value_name = "N", value_parser = count(1, CONTEXT_MAX), allow_hyphen_values = true)]
    pub chunks: Option<usize>,

    /// Fraction of a window from which on tokens count
    #[arg(long, value_name = "F", default_value_t = 0.5, value_parser = fraction, allow_hyphen_values = true)]
    pub score_from: f64,

    /// Compare: with everything kept in f16 (full), or with anchors and window read again (recompute, stream only)
    #[arg(long, value_name = "KIND")]
    pub reference: Option<Reference>,

    /// Tokens between two readings of the window for --reference recompute
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = count(1, CONTEXT_MAX), allow_hyphen_values = true)]
    pub reference_stride: usize,

    /// Do not measure what int8 activations alone cost
    #[arg(long)]
    pub no_floor: bool,

    /// Tokens of a reported segment of a stream
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = count(1, CONTEXT_MAX), allow_hyphen_values = true)]
    pub segment: usize,

    /// Tokens of the text to leave out at its beginning
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count(0, TOKENS_MAX), allow_hyphen_values = true)]
    pub offset: usize,

    /// Tokens of the text to use at most
    #[arg(long, value_name = "N", value_parser = count(2, TOKENS_MAX), allow_hyphen_values = true)]
    pub tokens: Option<usize>,

    /// Parse special-token text such as <|im_end|>
    #[arg(long)]
    pub special: bool,

    /// Do not put the beginning-of-sequence token first
    #[arg(long)]
    pub no_bos: bool,

    #[command(flatten)]
    pub compute: Compute,
}

#[derive(Debug, Args)]
pub struct Plan {
    /// A path or a catalogue name
    pub model: Option<String>,

    /// Memory of the device, such as 4G
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, allow_hyphen_values = true)]
    pub ram: u64,

    /// Tokens of one session [default: 2048, or the model's context if that is less]
    #[arg(long, value_name = "N", value_parser = count(1, CONTEXT_MAX), allow_hyphen_values = true)]
    pub context: Option<usize>,

    /// Values that share a scale: 32 or 64 [default: as the codec has it]
    #[arg(long, value_name = "N", value_parser = cache::group, allow_hyphen_values = true)]
    pub group: Option<usize>,

    /// First tokens kept as f16 [default: 4]
    #[arg(long, value_name = "N", value_parser = count(0, cache::SINKS_MAX), allow_hyphen_values = true)]
    pub sinks: Option<usize>,

    /// Last tokens kept nearly exact [default: 64]
    #[arg(long, value_name = "N", value_parser = count(0, cache::RECENT_MAX), allow_hyphen_values = true)]
    pub recent: Option<usize>,

    /// Worker threads of that device
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = count(1, THREADS_MAX), allow_hyphen_values = true)]
    pub threads: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Mode {
    #[default]
    Chunk,
    Stream,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Reference {
    Full,
    Recompute,
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

/// A list of token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids(pub Vec<u32>);

impl Command {
    /// The flags about keys and values, of commands that have them.
    pub fn cache_mut(&mut self) -> Option<&mut Cache> {
        let compute = match self {
            Command::Run(args) => &mut args.compute,
            Command::Chat(args) => &mut args.compute,
            Command::Score(args) => &mut args.compute,
            Command::Bench(args) => &mut args.compute,
            Command::Perplexity(args) => &mut args.compute,
            Command::Serve(args) => &mut args.compute,
            _ => return None,
        };
        Some(&mut compute.cache)
    }
}

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

/// A place within a window: its beginning, but not its end.
fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..1.0).contains(&value) => Ok(value),
        _ => Err("accepted: a number from 0 up to, but not including, 1".into()),
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
mod tests;
