//! The arguments: a contract that tests outside this repository call.
//!
//! Whatever can be refused without a model is refused here, in one line that names the flag and what it accepts. [`cache`]
//! holds the flags of the KV cache, [`values`] parses single values. An option that a configuration file may set too is an
//! `Option`: the command line wins, then the file, then the default.

mod cache;
mod compare;
mod values;

pub use cache::{
    CacheArgs, Kv, KvMemoryArg, KvPair, PositionsArg, ProbeArg, ProfileName, RecentKv, Switch,
    WeightsArg,
};
pub use compare::{CompareArgs, CompareTask};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use haversack::memory::bytes;
use haversack::session::relevance::Relevance;
use haversack::session::{FolderLimits, SessionSettings};
use haversack::text::tokenizer::EncodeOptions;
use std::path::PathBuf;
use std::str::FromStr;
pub use values::Ids;
use values::{
    CONTEXT_MAX, THREADS_MAX, TOKENS_MAX, above_zero, age, between, bias, count, fraction, group,
    peer_kv, relevance, share,
};

#[derive(Debug, Parser)]
#[command(
    name = "haversack",
    version,
    about = "Run language models from GGUF files inside a byte budget.",
    after_help = "MODEL is the path of a GGUF file or packed model, a catalogue name (see haversack models), or hf:OWNER/REPOSITORY[/FILE] of the model hub. Without it the default model is used, which is chosen for this device and downloaded on first use.",
    disable_help_subcommand = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    #[command(flatten, next_help_heading = "General")]
    pub global: GlobalArgs,
}

/// Flags of every command.
#[derive(Debug, Clone, Default, Args)]
pub struct GlobalArgs {
    /// Print one JSON document on stdout; progress goes to stderr
    #[arg(long, global = true)]
    pub json: bool,

    /// Log level on stderr [default: warn]
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log: Option<LogLevel>,

    /// TOML file with default values for flags, under the same names
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Download a model of the catalogue or of the model hub
    Pull(PullArgs),
    /// List models, which of them are here, and how they fit this device
    Models,
    /// Remove downloaded models
    Rm(RmArgs),
    /// Complete one prompt
    Run(Box<RunArgs>),
    /// Chat in the terminal
    Chat(Box<ChatArgs>),
    /// Print the log-probability of every token of a text
    Score(ScoreArgs),
    /// Convert text to token ids
    Tokenize(TokenizeArgs),
    /// Convert token ids to text
    Detokenize(DetokenizeArgs),
    /// Keep a model as one packed file instead of a GGUF file and its packed copy
    Pack(PackArgs),
    /// Write a packed model back as the GGUF file it was made of, bit for bit
    Unpack(PackArgs),
    /// Show what a model or session file contains
    Inspect(InspectArgs),
    /// Check model and session files for damage
    Verify(VerifyArgs),
    /// Show what this machine offers: CPU features, memory, models
    Doctor,
    /// Measure speed, alone or against llama-bench
    Bench(BenchArgs),
    /// Measure perplexity of a text, and what a cache setting costs
    Perplexity(Box<PerplexityArgs>),
    /// Compare cache policies and formats at equal memory
    Compare(Box<CompareArgs>),
    /// Show what fits a device with a given amount of memory
    Plan(PlanArgs),
    /// Serve the model over HTTP with an OpenAI-compatible API
    Serve(Box<ServeArgs>),
    /// List, export, search or delete saved sessions
    Session(SessionArgs),
    /// Print what completes commands and flags in a shell
    Completions(CompletionsArgs),
    /// Write the manual pages of all commands
    Man(ManArgs),
}

/// Flags of the commands that compute.
#[derive(Debug, Clone, Default, Args)]
pub struct ComputeArgs {
    /// Memory limit of the process beside its baseline and the weights, such as 1500M or 4GiB [default: from the device]
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, allow_hyphen_values = true)]
    pub memory: Option<u64>,

    /// Worker threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = count(1, THREADS_MAX), allow_hyphen_values = true)]
    pub threads: Option<usize>,

    /// Context length in tokens [default: what the model was trained for]
    #[arg(long, value_name = "N", value_parser = count(1, CONTEXT_MAX), allow_hyphen_values = true)]
    pub context: Option<usize>,

    /// Activation arithmetic: int8 is fast, f32 is exact [default: int8]
    #[arg(long, value_name = "KIND")]
    pub activations: Option<ActivationsArg>,

    /// Cache weights packed for this CPU in the data directory (auto), or write nothing there (off) [default: auto]
    #[arg(long, value_name = "MODE")]
    pub repack: Option<RepackArg>,

    /// How weights are kept in memory [default: auto]
    #[arg(long, value_name = "MODE")]
    pub weights: Option<WeightsArg>,

    /// Pages of keys and values [default: private]
    #[arg(long, value_name = "KIND")]
    pub kv_memory: Option<KvMemoryArg>,

    #[command(flatten, next_help_heading = "Cache")]
    pub cache: CacheArgs,
}

/// What sessions of `chat` and `serve` may hold.
#[derive(Debug, Clone, Default, Args)]
pub struct SessionSettingArgs {
    /// Which earlier turns an answer sees: all, threshold=0.6 or top-k=8 [default: the most similar, as many as fit]
    #[arg(long, value_name = "RULE", value_parser = relevance)]
    pub relevance: Option<Relevance>,

    /// Find earlier turns by their words alone: the sentence encoder is neither used nor offered
    #[arg(long)]
    pub no_encoder: bool,

    /// Put the date before what the user says, as part of the text, so that answers can tell when something was said
    #[arg(long)]
    pub dates: bool,

    /// Tokens of turns that a session keeps in memory [default: what budget and context have room for]
    #[arg(long, value_name = "N", value_parser = count(1, CONTEXT_MAX), allow_hyphen_values = true)]
    pub session_capacity: Option<usize>,

    /// Tokens of system message and facts before they are condensed [default: an eighth of that room, or 512]
    #[arg(long, value_name = "N", value_parser = count(1, CONTEXT_MAX), allow_hyphen_values = true)]
    pub session_persistent: Option<usize>,

    /// Largest session file, such as 256M [default: four contexts of keys and values, at least 256M]
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, allow_hyphen_values = true)]
    pub session_file_quota: Option<u64>,
}

impl SessionSettingArgs {
    /// With the longest answer that may be asked for.
    pub fn settings(&self, answer_max: Option<usize>) -> SessionSettings {
        SessionSettings {
            capacity: self.session_capacity,
            answer_max,
            persistent_max: self.session_persistent,
            relevance: self.relevance,
            quota_bytes: self.session_file_quota,
            dates: self.dates.then_some(true),
            ..SessionSettings::default()
        }
    }
}

/// Sampling flags of `run` and `chat`.
#[derive(Debug, Clone, Default, Args)]
pub struct SamplingArgs {
    /// Sampling temperature; 0 always takes the likeliest token [default: 0 for run; for chat the model's, else 0.7]
    #[arg(long, value_name = "T", value_parser = between::<0, 100>, allow_hyphen_values = true)]
    pub temperature: Option<f32>,

    /// Sample from the K likeliest tokens; 0 turns it off [default: 0 for run; for chat the model's, else 40]
    #[arg(long, value_name = "K", value_parser = count(0, TOKENS_MAX), allow_hyphen_values = true)]
    pub top_k: Option<usize>,

    /// Sample from the likeliest tokens that together reach this probability; 1 turns it off [default: 1 for run; for chat the model's, else 0.95]
    #[arg(long, value_name = "P", value_parser = share, allow_hyphen_values = true)]
    pub top_p: Option<f32>,

    /// Drop tokens below this fraction of the likeliest token's probability; 0 turns it off [default: 0 for run; for chat the model's, else 0.05]
    #[arg(long, value_name = "P", value_parser = between::<0, 1>, allow_hyphen_values = true)]
    pub min_p: Option<f32>,

    /// Sample from the tokens whose surprise is nearest to the expected one, up to this probability; 1 turns it off
    #[arg(long, value_name = "P", value_parser = share, allow_hyphen_values = true)]
    pub typical_p: Option<f32>,

    /// Drop tokens whose logit is more than N standard deviations below the largest; 0 turns it off
    #[arg(long, value_name = "N", value_parser = between::<0, 100>, allow_hyphen_values = true)]
    pub top_n_sigma: Option<f32>,

    /// How often all likely tokens but the least likely of them are dropped (XTC); 0 turns it off
    #[arg(long, value_name = "P", value_parser = between::<0, 1>, allow_hyphen_values = true)]
    pub xtc_probability: Option<f32>,

    /// Probability from which XTC takes a token for a likely one [default: 0.1]
    #[arg(long, value_name = "P", value_parser = between::<0, 1>, allow_hyphen_values = true)]
    pub xtc_threshold: Option<f32>,

    /// Divide the logits of tokens already seen; 1 turns it off
    #[arg(long, value_name = "X", value_parser = above_zero, allow_hyphen_values = true)]
    pub repetition_penalty: Option<f32>,

    /// Subtract from the logits of tokens already seen
    #[arg(long, value_name = "X", value_parser = between::<-100, 100>, allow_hyphen_values = true)]
    pub presence_penalty: Option<f32>,

    /// Subtract from the logits of tokens already seen, once per occurrence
    #[arg(long, value_name = "X", value_parser = between::<-100, 100>, allow_hyphen_values = true)]
    pub frequency_penalty: Option<f32>,

    /// Add BIAS to the logit of token ID: ID=BIAS (repeatable)
    #[arg(long, value_name = "ID=BIAS", value_parser = bias, allow_hyphen_values = true)]
    pub logit_bias: Vec<(u32, f32)>,

    /// Random seed; the same seed gives the same tokens [default: 0]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub seed: Option<u64>,

    #[command(flatten)]
    pub dry: DryArgs,
}

/// Flags of DRY, a sampler against repetitions.
#[derive(Debug, Clone, Default, Args)]
pub struct DryArgs {
    /// Lower the logit of a token that would continue a repetition by X * BASE^(length - allowed length) (DRY); 0 turns it off
    #[arg(long, value_name = "X", value_parser = between::<0, 100>, allow_hyphen_values = true)]
    pub dry_multiplier: Option<f32>,

    /// By how much DRY punishes each further token of a repetition [default: 1.75]
    #[arg(long, value_name = "BASE", value_parser = between::<1, 100>, allow_hyphen_values = true)]
    pub dry_base: Option<f32>,

    /// Shortest repetition in tokens that DRY punishes [default: 2]
    #[arg(long, value_name = "N", value_parser = count(1, 65536), allow_hyphen_values = true)]
    pub dry_allowed_length: Option<usize>,

    /// Text across which DRY sees no repetition, or none (repeatable) [default: a line break, :, ", *]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub dry_sequence_breaker: Vec<String>,

    /// Tokens that DRY looks back at [default: 4096]
    #[arg(long, value_name = "N", value_parser = count(0, 65536), allow_hyphen_values = true)]
    pub dry_penalty_last_n: Option<usize>,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell that reads it
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Folder to write into, which is made where it is missing
    pub folder: PathBuf,
}

#[derive(Debug, Args)]
pub struct PullArgs {
    /// Catalogue name, or hf:OWNER/REPOSITORY[/FILE.gguf][@REVISION] [default: the default model]
    pub name: Option<String>,

    /// Use it from now on where no model is named
    #[arg(long, conflicts_with = "list")]
    pub default: bool,

    /// List the catalogue instead of downloading, as haversack models does
    #[arg(long, conflicts_with = "name")]
    pub list: bool,

    /// Keep the model as one packed file instead of a GGUF file and its packed copy
    #[arg(long, conflicts_with = "list")]
    pub packed: bool,
}

#[derive(Debug, Args)]
pub struct RmArgs {
    /// Catalogue names, or hf:OWNER/REPOSITORY[/FILE.gguf]
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

#[derive(Debug, Args)]
pub struct PackArgs {
    /// Path of a model file, or a catalogue name
    pub model: String,

    /// File to write [default: beside the model, as .packed or .gguf]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Keep the file that was converted; without it, it is removed once the other one was compared with it
    #[arg(long)]
    pub keep: bool,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Path of a GGUF file, or a catalogue name
    pub model: Option<String>,

    #[command(flatten)]
    pub prompt: PromptArgs,

    /// Use the prompt as it is, without the model's chat template
    #[arg(long)]
    pub raw: bool,

    /// System message for the chat template
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["raw", "ids"])]
    pub system: Option<String>,

    #[command(flatten)]
    pub encoding: EncodingArgs,

    /// Maximum number of tokens to generate [default: until the model stops; with --policy full also at the end of the context]
    #[arg(short = 'n', long, value_name = "N", value_parser = count(1, TOKENS_MAX), allow_hyphen_values = true)]
    pub max_tokens: Option<usize>,

    /// Continue past the end-of-sequence token
    #[arg(long)]
    pub ignore_eos: bool,

    /// Stop when this text appears (repeatable)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,

    /// Stop when the text repeats itself over and over; not with --ignore-eos [default: off]
    #[arg(long, value_name = "SWITCH", allow_hyphen_values = true)]
    pub stop_repetition: Option<Switch>,

    /// Print speed and memory use on stderr afterwards
    #[arg(long)]
    pub stats: bool,

    /// Print on stderr what the cache kept, evicted and why
    #[arg(long)]
    pub explain: bool,

    #[command(flatten, next_help_heading = "Sampling")]
    pub sampling: SamplingArgs,

    #[command(flatten, next_help_heading = "Compute")]
    pub compute: ComputeArgs,
}

/// How text becomes token ids.
#[derive(Debug, Clone, Copy, Args)]
pub struct EncodingArgs {
    /// Parse special tokens such as <|im_end|> in the text
    #[arg(long)]
    pub special: bool,

    /// Do not add the beginning-of-sequence token
    #[arg(long)]
    pub no_bos: bool,
}

/// Exactly one of them.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct PromptArgs {
    /// Prompt text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,

    /// File with the prompt; - is stdin
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,

    /// Token ids, used as given: "1,2,3"
    #[arg(long, value_name = "IDS", value_parser = Ids::from_str, allow_hyphen_values = true)]
    pub ids: Option<Ids>,
}

#[derive(Debug, Args)]
pub struct ChatArgs {
    /// Path of a GGUF file, or a catalogue name
    pub model: Option<String>,

    /// System message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,

    /// Maximum number of tokens per answer [default: 1024, or a quarter of a saved session's capacity if that is less; without one, the model's context]
    #[arg(short = 'n', long, value_name = "N", value_parser = count(1, TOKENS_MAX), allow_hyphen_values = true)]
    pub max_tokens: Option<usize>,

    /// Stop an answer that repeats itself over and over [default: on]
    #[arg(long, value_name = "SWITCH", allow_hyphen_values = true)]
    pub stop_repetition: Option<Switch>,

    /// Print speed and memory use after every answer
    #[arg(long)]
    pub stats: bool,

    /// Print after every answer what the cache kept, evicted and why
    #[arg(long)]
    pub explain: bool,

    /// Continue the session NAME, or start it [default: a new session in a terminal, none in a pipe]
    #[arg(long, value_name = "NAME", conflicts_with = "no_save")]
    pub session: Option<String>,

    /// Save no session and no input history
    #[arg(long)]
    pub no_save: bool,

    /// Remember no facts that you did not tell with /fact [default: a session in a terminal remembers what you say of yourself]
    #[arg(long)]
    pub no_auto_facts: bool,

    /// Show answers as the model writes them, without bold, lists and code drawn
    #[arg(long)]
    pub plain: bool,

    #[command(flatten, next_help_heading = "Sessions")]
    pub sessions: SessionSettingArgs,

    #[command(flatten)]
    pub limits: SessionLimitArgs,

    #[command(flatten, next_help_heading = "Sampling")]
    pub sampling: SamplingArgs,

    #[command(flatten, next_help_heading = "Compute")]
    pub compute: ComputeArgs,
}

/// Exactly one of them.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct TextArgs {
    /// Text to read
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub text: Option<String>,

    /// File with the text; - is stdin
    #[arg(long, value_name = "FILE")]
    pub text_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ScoreArgs {
    /// Path of a GGUF file, or a catalogue name
    pub model: Option<String>,

    #[command(flatten)]
    pub text: TextOrIdsArgs,

    #[command(flatten)]
    pub encoding: EncodingArgs,

    #[command(flatten, next_help_heading = "Compute")]
    pub compute: ComputeArgs,
}

/// Exactly one of them.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct TextOrIdsArgs {
    /// Text to read
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub text: Option<String>,

    /// File with the text; - is stdin
    #[arg(long, value_name = "FILE")]
    pub text_file: Option<PathBuf>,

    /// Token ids, used as given: "1,2,3"
    #[arg(long, value_name = "IDS", value_parser = Ids::from_str, allow_hyphen_values = true)]
    pub ids: Option<Ids>,
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Path of a GGUF file, or a catalogue name
    pub model: Option<String>,

    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub addr: String,

    /// Port to listen on, in place of that of --addr
    #[arg(long, value_name = "N")]
    pub port: Option<u16>,

    /// File of API keys that clients must send, one NAME:KEY a line; each name has sessions of its own
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,

    /// Additional host name that clients may use for this server (repeatable)
    #[arg(long, value_name = "NAME")]
    pub host: Vec<String>,

    /// Maximum number of requests computed together [default: 8]
    #[arg(long, value_name = "N", value_parser = count(1, 64), allow_hyphen_values = true)]
    pub batch: Option<usize>,

    /// Maximum number of queued requests [default: 64]
    #[arg(long, value_name = "N", value_parser = count(0, 4096), allow_hyphen_values = true)]
    pub queue: Option<usize>,

    /// Finished requests kept in the prefix cache, evicted first when memory is needed [default: 16]
    #[arg(long, value_name = "N", value_parser = count(0, 256), allow_hyphen_values = true)]
    pub reuse: Option<usize>,

    /// Disable sessions
    #[arg(long)]
    pub no_sessions: bool,

    /// Maximum number of tokens per answer in a session [default: what the capacity has room for]
    #[arg(long, value_name = "N", value_parser = count(1, TOKENS_MAX), allow_hyphen_values = true)]
    pub session_answer: Option<usize>,

    /// Find lasting facts in what users say, for sessions that set nothing else, while nothing is answered
    #[arg(long)]
    pub auto_facts: bool,

    #[command(flatten, next_help_heading = "Sessions")]
    pub sessions: SessionSettingArgs,

    #[command(flatten)]
    pub limits: SessionLimitArgs,

    #[command(flatten, next_help_heading = "Compute")]
    pub compute: ComputeArgs,
}

/// Limits of all saved sessions together.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct SessionLimitArgs {
    /// Bytes of all session files together; the session saved longest ago is removed first [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, allow_hyphen_values = true)]
    pub session_quota: Option<u64>,

    /// Remove sessions that were not saved for this long, such as 12h or 90d [default: never]
    #[arg(long, value_name = "TIME", value_parser = age, allow_hyphen_values = true)]
    pub session_expiry: Option<u64>,
}

impl SessionLimitArgs {
    pub fn folder(self) -> FolderLimits {
        FolderLimits {
            bytes_max: self.session_quota,
            age_max_ms: self.session_expiry,
        }
    }
}

#[derive(Debug, Args)]
pub struct SessionArgs {
    #[command(subcommand)]
    pub command: SessionCommand,
}

#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// List the saved sessions, and those that a limit removed
    List,
    /// Print the facts and turns of a session, of a damaged one those before the damage
    Export(SessionExportArgs),
    /// Find sessions whose texts contain all words, the one saved last first
    Search(SessionSearchArgs),
    /// Delete sessions, damaged ones too
    Delete {
        /// Names of sessions
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub struct SessionExportArgs {
    /// Name of a session, or path of a session file
    #[arg(value_name = "NAME")]
    pub session: String,

    /// Path of the GGUF file it was made with, or a catalogue name
    pub model: Option<String>,

    /// Write to a new file instead of stdout
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct SessionSearchArgs {
    /// Words to find, in any case; one in quotes may hold blanks
    #[arg(required = true, value_name = "WORD")]
    pub words: Vec<String>,

    /// Path of the GGUF file the sessions were made with, or a catalogue name
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
}

#[derive(Debug, Args)]
pub struct TokenizeArgs {
    /// Path of a GGUF file, or a catalogue name
    pub model: Option<String>,

    #[command(flatten)]
    pub text: TextArgs,

    #[command(flatten)]
    pub encoding: EncodingArgs,
}

#[derive(Debug, Args)]
pub struct DetokenizeArgs {
    /// Path of a GGUF file, or a catalogue name
    pub model: Option<String>,

    /// Token ids: "1,2,3"
    #[arg(long, value_name = "IDS", value_parser = Ids::from_str, allow_hyphen_values = true)]
    pub ids: Ids,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Path of a GGUF file, or a catalogue name
    pub model: Option<String>,

    /// List every tensor instead of a table by type
    #[arg(long)]
    pub tensors: bool,
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Paths, or catalogue names
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<String>,

    /// Take models that were changed since they were first used as they are
    #[arg(long)]
    pub accept: bool,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Path of a GGUF file, or a catalogue name
    pub model: Option<String>,

    /// Measure only these rows, such as prefill_512,decode_d0
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<String>,

    /// Path of a llama-bench binary to measure in the same run, interleaved
    #[arg(long, value_name = "PATH")]
    pub against: Option<PathBuf>,

    /// KV cache type of the other program
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = peer_kv)]
    pub against_kv: String,

    /// Rounds per measurement; the median is reported
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count(1, 100), allow_hyphen_values = true)]
    pub repeat: usize,

    /// Append the rows to a CSV file, with CPU, compiler, command and commit
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    #[command(flatten, next_help_heading = "Compute")]
    pub compute: ComputeArgs,
}

#[derive(Debug, Args)]
pub struct PerplexityArgs {
    /// Path of a GGUF file, or a catalogue name
    pub model: Option<String>,

    #[command(flatten)]
    pub text: TextArgs,

    /// chunk: windows of --context tokens, each from an empty cache; stream: the whole text through one cache
    #[arg(long, value_name = "MODE", default_value = "chunk")]
    pub mode: Mode,

    /// Maximum number of windows [default: all of the text]
    #[arg(long, value_name = "N", value_parser = count(1, CONTEXT_MAX), allow_hyphen_values = true)]
    pub chunks: Option<usize>,

    /// Score the tokens of a window from this fraction on
    #[arg(long, value_name = "F", default_value_t = 0.5, value_parser = fraction, allow_hyphen_values = true)]
    pub score_from: f64,

    /// Compare with a full f16 cache (full), or with anchors and window computed anew (recompute; stream mode only)
    #[arg(long, value_name = "KIND")]
    pub reference: Option<Reference>,

    /// Tokens between two recomputations of the window, for --reference recompute
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = count(1, CONTEXT_MAX), allow_hyphen_values = true)]
    pub reference_stride: usize,

    /// Skip measuring what int8 activations alone cost
    #[arg(long)]
    pub no_floor: bool,

    /// Tokens per reported segment in stream mode
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = count(1, CONTEXT_MAX), allow_hyphen_values = true)]
    pub segment: usize,

    /// Tokens to skip at the start of the text
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count(0, TOKENS_MAX), allow_hyphen_values = true)]
    pub offset: usize,

    /// Maximum number of tokens of the text to use
    #[arg(long, value_name = "N", value_parser = count(2, TOKENS_MAX), allow_hyphen_values = true)]
    pub tokens: Option<usize>,

    #[command(flatten)]
    pub encoding: EncodingArgs,

    #[command(flatten, next_help_heading = "Compute")]
    pub compute: ComputeArgs,
}

#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Path of a GGUF file, or a catalogue name
    pub model: Option<String>,

    /// Memory of the device, such as 4G
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, allow_hyphen_values = true)]
    pub ram: u64,

    /// Tokens per session [default: 2048, or the model's context if that is less]
    #[arg(long, value_name = "N", value_parser = count(1, CONTEXT_MAX), allow_hyphen_values = true)]
    pub context: Option<usize>,

    /// Values per quantisation scale: 32 or 64 [default: set by the format]
    #[arg(long, value_name = "N", value_parser = group, allow_hyphen_values = true)]
    pub group: Option<usize>,

    /// First tokens stored as f16 [default: 4]
    #[arg(long, value_name = "N", value_parser = count(0, cache::SINKS_MAX), allow_hyphen_values = true)]
    pub sinks: Option<usize>,

    /// Most recent tokens stored at higher precision [default: 64]
    #[arg(long, value_name = "N", value_parser = count(0, cache::RECENT_MAX), allow_hyphen_values = true)]
    pub recent: Option<usize>,

    /// Worker threads of the device
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
pub enum ActivationsArg {
    #[default]
    Int8,
    F32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum RepackArg {
    #[default]
    Auto,
    Off,
}

impl ActivationsArg {
    pub fn name(self) -> &'static str {
        match self {
            ActivationsArg::Int8 => "int8",
            ActivationsArg::F32 => "f32",
        }
    }
}

impl EncodingArgs {
    pub fn options(self) -> EncodeOptions {
        EncodeOptions {
            add_special: !self.no_bos,
            parse_special: self.special,
        }
    }
}

impl Command {
    /// The cache flags of the commands that have them.
    pub fn cache_mut(&mut self) -> Option<&mut CacheArgs> {
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

/// clap's message on one line, without its usage text.
pub fn one_line(error: &clap::Error) -> String {
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let command = Cli::command();
        let names: Vec<&str> = command.get_subcommands().map(|c| c.get_name()).collect();
        let names = names.join(", ");
        return format!("error: no command given; accepted: {names} (see --help)");
    }
    let text = error.render().to_string();
    let text = text.replace("  tip:", "; tip:").replace("\n\n;", ";");
    let is_usage =
        |line: &&str| line.starts_with("Usage:") || line.starts_with("For more information");
    let head: Vec<&str> = text.lines().take_while(|line| !is_usage(line)).collect();
    crate::error::one_line(&head.join(" "))
}

#[cfg(test)]
mod tests;
