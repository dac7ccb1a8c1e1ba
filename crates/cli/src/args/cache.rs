//! Flags of the KV cache: its format, what it keeps, and where the weights live.
//!
//! Parsing only: the library checks the values against a model and a budget.

use super::values::{CONTEXT_MAX, count, group};
use clap::{Args, ValueEnum};
use haversack::cache::policy::profile::Profile;
use haversack::engine::{Codec, Form, KvForm, Policy};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

/// First tokens that may have an exact copy: those of one block.
pub const SINKS_MAX: u64 = 32;
/// More recent tokens than this would be a second cache, not a zone of one.
pub const RECENT_MAX: u64 = 4096;

#[derive(Debug, Clone, Default, Args)]
pub struct CacheArgs {
    /// KV cache format: f32, f16, int8, int5, int4, int4-plain, int3, int2 or auto; k=int8,v=int4 sets keys and values apart [default: int4; f16 for score and perplexity]
    #[arg(long, value_name = "CODEC", allow_hyphen_values = true)]
    pub kv: Option<Kv>,

    /// Values per quantisation scale: 32 or 64 [default: 64; 32 for int4-plain]
    #[arg(long, value_name = "N", value_parser = group, allow_hyphen_values = true)]
    pub group: Option<usize>,

    /// What the cache keeps when memory or context runs out: auto, full, window, tiers, heavy, snap, turns or adaptive [default: auto; full for score, perplexity and bench]
    #[arg(long, value_name = "POLICY", value_parser = policy, allow_hyphen_values = true)]
    pub policy: Option<Policy>,

    /// TOML file that names a policy and sets its parameters
    #[arg(long, value_name = "FILE", conflicts_with = "policy")]
    pub policy_file: Option<PathBuf>,

    /// Parameter set for --policy tiers: auto, chat, code, summarize, long-form or conservative [default: chat]
    #[arg(long, value_name = "NAME", value_parser = profile, allow_hyphen_values = true)]
    pub profile: Option<ProfileName>,

    /// How long to probe the model for --policy adaptive; done once per model [default: short]
    #[arg(long, value_name = "KIND")]
    pub probe: Option<ProbeArg>,

    /// With --policy adaptive: keep more tokens at fewer bits, so that early facts can be asked for later
    #[arg(long)]
    pub recall: bool,

    /// First tokens that are never evicted [default: 64, or less in a small context]
    #[arg(long, value_name = "N", value_parser = count(0, CONTEXT_MAX), allow_hyphen_values = true)]
    pub anchors: Option<usize>,

    /// Most recent tokens to keep [default: as many as fit]
    #[arg(long, value_name = "N", value_parser = count(1, CONTEXT_MAX), allow_hyphen_values = true)]
    pub window: Option<usize>,

    /// First tokens stored as f16 [default: 4]
    #[arg(long, value_name = "N", value_parser = count(0, SINKS_MAX), allow_hyphen_values = true)]
    pub sinks: Option<usize>,

    /// Most recent tokens stored at higher precision [default: 64]
    #[arg(long, value_name = "N", value_parser = count(0, RECENT_MAX), allow_hyphen_values = true)]
    pub recent: Option<usize>,

    /// Format of the most recent tokens [default: int8]
    #[arg(long, value_name = "CODEC")]
    pub recent_kv: Option<RecentKv>,

    /// Position ids after an eviction: close the gap or keep the original ones [default: auto]
    #[arg(long, value_name = "KIND")]
    pub positions: Option<PositionsArg>,

    /// Quality guard: estimate the damage before evicting tokens (heavy and adaptive only) [default: on]
    #[arg(long, value_name = "SWITCH")]
    pub guard: Option<Switch>,

    /// Do not subtract the mean key before quantising
    #[arg(long)]
    pub no_centre: bool,

    /// Replay window changes: POSITION:WINDOW,… as reported in `context.changes`
    #[arg(long, value_name = "PLAN", hide = true, allow_hyphen_values = true)]
    pub window_plan: Option<WindowPlan>,

    /// Codecs of single layers: `[kv_layers]` of a configuration file.
    #[arg(skip)]
    pub kv_layers: BTreeMap<usize, KvPair>,
}

/// The codec of keys and the codec of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvPair {
    pub k: Codec,
    pub v: Codec,
}

impl CacheArgs {
    /// Nothing here says which rows stay, so sessions can.
    pub fn is_of_turns(&self) -> bool {
        let bounded = self.anchors.is_some() || self.window.is_some() || self.window_plan.is_some();
        let of_turns = matches!(self.policy, None | Some(Policy::Auto | Policy::Turns));
        of_turns && !bounded && self.policy_file.is_none()
    }
}

impl KvPair {
    pub const fn both(codec: Codec) -> KvPair {
        KvPair { k: codec, v: codec }
    }

    /// With a group for both, or each codec's usual one.
    pub fn form(self, group: Option<usize>) -> KvForm {
        let form = |codec: Codec| Form {
            codec,
            group: group.unwrap_or(codec.default_group()),
        };
        let (k, v) = (form(self.k), form(self.v));
        KvForm { k, v }
    }
}

impl FromStr for KvPair {
    type Err = String;

    /// `int4`, or `k=int8,v=int4` in either order.
    fn from_str(text: &str) -> Result<KvPair, String> {
        let codec = |name: &str| name.parse::<Codec>().map_err(|_| accepted());
        if !text.contains('=') {
            return codec(text).map(KvPair::both);
        }
        let (mut k, mut v) = (None, None);
        for part in text.split(',') {
            let (side, name) = part.split_once('=').ok_or_else(accepted)?;
            let slot = match side {
                "k" => &mut k,
                "v" => &mut v,
                _ => return Err(accepted()),
            };
            if slot.replace(codec(name)?).is_some() {
                return Err(format!("{side} is there twice; {}", accepted()));
            }
        }
        match (k, v) {
            (Some(k), Some(v)) => Ok(KvPair { k, v }),
            (None, _) => Err(format!("k is missing; {}", accepted())),
            (_, None) => Err(format!("v is missing; {}", accepted())),
        }
    }
}

fn accepted() -> String {
    let names = Codec::ALL.map(Codec::name).join(", ");
    format!("accepted: {names}, or two of them as k=int8,v=int4")
}

/// `auto` is the command's own default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kv {
    #[default]
    Auto,
    Named(KvPair),
}

impl FromStr for Kv {
    type Err = String;

    fn from_str(text: &str) -> Result<Kv, String> {
        if text == "auto" {
            return Ok(Kv::Auto);
        }
        let pair = text.parse().map(Kv::Named);
        pair.map_err(|what| format!("{what}, or auto"))
    }
}

/// A policy by its name.
fn policy(name: &str) -> Result<Policy, String> {
    name.parse().map_err(|_| {
        let names = Policy::ALL.map(Policy::name).join(", ");
        format!("accepted: {names}")
    })
}

/// `auto` looks at the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileName {
    Auto,
    Named(Profile),
}

fn profile(name: &str) -> Result<ProfileName, String> {
    if name == "auto" {
        return Ok(ProfileName::Auto);
    }
    let profile = Profile::from_name(name).map(ProfileName::Named);
    profile.ok_or_else(|| {
        let names = Profile::ALL.map(Profile::name).join(", ");
        format!("accepted: auto, {names}")
    })
}

/// How thoroughly a model is probed for `--policy adaptive`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ProbeArg {
    /// About half a minute: two measurements per layer
    #[default]
    Short,
    /// About two minutes: ten measurements per layer
    Deep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum RecentKv {
    #[default]
    Int8,
    F16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum PositionsArg {
    /// The same as compact
    #[default]
    Auto,
    /// Close the gap: the remaining tokens become neighbours
    Compact,
    /// Keep the position each token had
    Original,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum WeightsArg {
    /// Chosen by the memory of this machine
    #[default]
    Auto,
    /// Memory-mapped; pages are read on first use
    Mapped,
    /// Memory-mapped; the next layer is prefetched while one is computed
    Prefetch,
    /// Locked in memory while the program runs
    Locked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum KvMemoryArg {
    /// Memory of this process alone
    #[default]
    Private,
    /// Pages that the kernel may merge with equal ones (KSM, where it runs)
    Mergeable,
    /// A file in memory that other programs of this user can map
    Memfd,
}

/// Windows from positions on, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowPlan(pub Vec<(u64, usize)>);

impl FromStr for WindowPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<WindowPlan, String> {
        const ACCEPTED: &str =
            "accepted: POSITION:WINDOW pairs in order of position, such as 4096:256,8192:512";
        let window = count(1, CONTEXT_MAX);
        let mut changes: Vec<(u64, usize)> = Vec::new();
        for part in text.split(',') {
            let pair = part.split_once(':');
            let pair = pair.map(|(at, size)| (at.parse::<u64>(), window(size)));
            let Some((Ok(at), Ok(size))) = pair else {
                return Err(format!("'{part}' is no change of the window; {ACCEPTED}"));
            };
            if changes.last().is_some_and(|(last, _)| *last >= at) {
                return Err(format!("position {at} is out of order; {ACCEPTED}"));
            }
            changes.push((at, size));
        }
        Ok(WindowPlan(changes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codecs_of_keys_and_values() {
        let pair = |k, v| Ok(Kv::Named(KvPair { k, v }));
        assert_eq!("auto".parse(), Ok(Kv::Auto));
        assert_eq!(
            "int4-plain".parse(),
            pair(Codec::Int4Plain, Codec::Int4Plain)
        );
        assert_eq!("k=int8,v=int4".parse(), pair(Codec::Int8, Codec::Int4));
        assert_eq!("v=int4,k=int8".parse(), pair(Codec::Int8, Codec::Int4));
        for text in [
            "",
            "INT4",
            "Int4",
            "int6",
            "q4_0",
            "k=",
            "k=int4",
            "v=int4",
            "k=int4,",
            "k=int4,k=int4",
            "v=int4,v=int8,k=f16",
            "k=int4;v=int4",
            "k=int4,v=",
            "k=auto,v=int4",
            "k=int4, v=int4",
            "K=int4,V=int4",
            " int4",
            "int4,int8",
            "=int4",
            "k==int4,v=int4",
        ] {
            let error = text.parse::<Kv>().unwrap_err();
            for name in Codec::ALL.map(Codec::name) {
                assert!(error.contains(name), "{text}: {error}");
            }
        }
    }

    #[test]
    fn groups_of_a_pair() {
        let form = KvPair {
            k: Codec::Int4Plain,
            v: Codec::Int4,
        };
        let groups = |group| {
            let KvForm { k, v } = form.form(group);
            (k.group, v.group)
        };
        assert_eq!(groups(None), (32, 64));
        assert_eq!(groups(Some(32)), (32, 32));
    }

    #[test]
    fn plans_of_the_window() {
        let plan = "4096:256,8192:512".parse();
        assert_eq!(plan, Ok(WindowPlan(vec![(4096, 256), (8192, 512)])));
        for text in [
            "",
            "5",
            "5:",
            ":5",
            "5:0",
            "5:-1",
            "64:5,64:6",
            "64:5,32:6",
            "64:5,",
        ] {
            assert!(text.parse::<WindowPlan>().is_err(), "{text}");
        }
    }
}
