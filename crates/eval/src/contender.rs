//! Contenders: who is compared, and with which options that is run.
//!
//! [`Setup::of`] is the one place where a policy, a codec, a share of bytes and a context become options of
//! a runtime. A share is a share of the block bytes that the same context takes in f16.

use haversack::model::Config;
use haversack::plan::{self, ShareTooSmall, Within};
use haversack::run::bounds::Bounds;
use haversack::run::options::Score;
use haversack::{KvForm, KvOptions, Policy, Positions, Retention};

/// Policies that can be compared.
pub const POLICIES: [Policy; 3] = [Policy::Full, Policy::Window, Policy::Heavy];

/// A policy with its parameters, under a name of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    pub name: String,
    pub policy: Policy,
    /// First tokens that never leave.
    pub anchors: usize,
    pub positions: Positions,
    pub score: Score,
    /// First tokens kept as f16.
    pub sinks: usize,
    /// Last tokens kept nearly exact.
    pub recent: usize,
}

impl Variant {
    /// One block: fewer anchors would take the same bytes.
    pub const ANCHORS: usize = 32;

    pub fn new(policy: Policy) -> Variant {
        Variant {
            name: policy.name().to_owned(),
            policy,
            anchors: Variant::ANCHORS,
            positions: Positions::Auto,
            score: Score::default(),
            sinks: KvOptions::SINKS,
            recent: KvOptions::RECENT,
        }
    }

    /// The policy of this name, as it comes.
    pub fn named(name: &str) -> Option<Variant> {
        let policy = POLICIES.into_iter().find(|policy| policy.name() == name);
        policy.map(Variant::new)
    }

    /// Whether it is run once for each share: what keeps everything has only the bytes it takes.
    pub fn has_shares(&self) -> bool {
        self.policy != Policy::Full
    }

    /// Rows that its window has at least, where `recent` are kept nearly exact.
    fn window_least(&self, recent: usize) -> usize {
        match self.policy {
            Policy::Heavy => recent.next_multiple_of(BLOCK) + Bounds::CHOICE,
            _ => BLOCK,
        }
    }
}

/// Rows of a block, which leave together.
const BLOCK: usize = 32;

/// How keys and values are stored, by the name it is reported under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coding {
    pub name: String,
    pub form: KvForm,
}

/// Options of a runtime, as far as contenders differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    pub kv: KvOptions,
    pub retention: Retention,
}

impl Setup {
    /// Everything in f16: what the others are held against.
    pub fn reference() -> Setup {
        Setup {
            kv: KvOptions::plain(KvForm::F16),
            retention: Retention::full(),
        }
    }

    /// Block bytes that it takes at the end of `context` tokens, as planned.
    pub fn bytes(&self, config: &Config, context: usize) -> u64 {
        let Retention {
            anchors, window, ..
        } = &self.retention;
        match (anchors, window) {
            (Some(anchors), Some(window)) => {
                plan::window_bytes(config, &self.kv, *anchors, *window, context)
            }
            _ => plan::blocks_bytes(config, &self.kv, context),
        }
    }

    /// What this policy does with this codec in `share` of the f16 bytes of `context` tokens. Where the
    /// codec alone is within the share, every row stays.
    pub fn of(
        config: &Config,
        variant: &Variant,
        coding: &Coding,
        share: Option<f64>,
        context: usize,
    ) -> Result<Setup, ShareTooSmall> {
        let is_float = |form: KvForm| form.k.codec.is_float() && form.v.codec.is_float();
        let kv = match is_float(coding.form) {
            true => KvOptions::plain(coding.form),
            false => KvOptions {
                sinks: variant.sinks,
                recent: variant.recent,
                ..KvOptions::new(coding.form)
            },
        };
        let everything = Setup {
            kv,
            retention: Retention::full(),
        };
        // A policy that makes a plan of its own for each layer is given the bytes here, in
        // `plan::full_bytes` times the share, instead of a form and a window.
        let (Some(share), true) = (share, variant.has_shares()) else {
            return Ok(everything);
        };
        let (kv, anchors) = (&everything.kv, variant.anchors);
        let least = variant.window_least(kv.recent);
        match plan::within_share(config, kv, anchors, least, context, share)? {
            Within::Everything => Ok(everything),
            Within::Window(window) => Ok(Setup {
                retention: Retention {
                    policy: variant.policy,
                    anchors: Some(anchors),
                    window: Some(window),
                    positions: variant.positions,
                    score: variant.score,
                    ..Retention::default()
                },
                ..everything
            }),
        }
    }
}
