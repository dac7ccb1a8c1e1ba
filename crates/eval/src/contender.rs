//! Contenders: who is compared, and with which options that is run.
//!
//! [`Setup::of`] is the one place where a policy, a codec, a share of bytes and a context become options of
//! a runtime. A share is a share of the block bytes that the same context takes in f16.

use haversack_cache::policy::rows::RowPolicy;
use haversack_engine::kv_quality::probe::Probe;
use haversack_engine::model::Config;
use haversack_engine::runtime::adaptive::{self, AdaptiveOptions, AllotmentTarget};
use haversack_engine::runtime::bounds::Bounds;
use haversack_engine::runtime::options::Guarding;
use haversack_engine::runtime::plan::{self, ShareFit, ShareTooSmall};
use haversack_engine::{Codec, GuardParams, KvForm, KvOptions, Policy, Positions, Retention};

/// Policies that can be compared on a text. Turns are not among them: a text has none.
pub const POLICIES: [Policy; 6] = [
    Policy::Full,
    Policy::Window,
    Policy::Tiers,
    Policy::Heavy,
    Policy::Snap,
    Policy::Adaptive,
];

/// Variants that have a name without a file: [`RetentionShape`] says what they are.
pub const VARIANTS: [(&str, Policy, RetentionShape); 3] = [
    ("tiers-written", Policy::Tiers, RetentionShape::Unbounded),
    ("tiers-demoted", Policy::Tiers, RetentionShape::Demoted),
    ("adaptive-recall", Policy::Adaptive, RetentionShape::Usual),
];

/// What a variant does with its share of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetentionShape {
    /// Keeps to it.
    #[default]
    Usual,
    /// Has none: rows leave by thresholds alone.
    Unbounded,
    /// Has none, and lets no row leave: what the rule would let go of is stored in four bits, and the rest in f16. By
    /// layers, because a block has one form: deep layers lose hardly a row, the others nearly all but the last 128.
    Demoted,
}

/// A policy with its parameters, under a name of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    pub name: String,
    pub policy: Policy,
    /// First tokens that never leave.
    pub anchors: usize,
    pub positions: Positions,
    /// How rows are chosen; `None` = as the policy usually does.
    pub params: Option<RowPolicy>,
    pub shape: RetentionShape,
    pub wishes: AdaptiveOptions,
    /// Policies of others are compared as they were published: without a guard.
    pub guard: Guarding,
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
            params: None,
            shape: RetentionShape::Usual,
            wishes: AdaptiveOptions::default(),
            guard: match policy {
                Policy::Adaptive => Guarding::On,
                _ => Guarding::Off,
            },
            sinks: KvOptions::SINKS,
            recent: KvOptions::RECENT,
        }
    }

    /// The policy of this name, as it comes.
    pub fn named(name: &str) -> Option<Variant> {
        let policy = POLICIES.into_iter().find(|policy| policy.name() == name);
        let variant = VARIANTS.into_iter().find(|(known, ..)| *known == name);
        let variant = variant.map(|(name, policy, shape)| Variant {
            name: name.to_owned(),
            shape,
            wishes: AdaptiveOptions {
                recall: name == "adaptive-recall",
                ..AdaptiveOptions::default()
            },
            ..Variant::new(policy)
        });
        policy.map(Variant::new).or(variant)
    }

    /// Every name that [`Variant::named`] knows.
    pub fn names() -> Vec<&'static str> {
        let policies = POLICIES.iter().map(|policy| policy.name());
        policies.chain(VARIANTS.map(|(name, ..)| name)).collect()
    }

    /// Whether it chooses codecs itself.
    pub fn has_own_codecs(&self) -> bool {
        self.policy == Policy::Adaptive || self.shape == RetentionShape::Demoted
    }

    /// Whether it is run once for each share: what keeps everything has only the bytes it takes.
    pub fn has_shares(&self) -> bool {
        self.policy != Policy::Full && self.shape == RetentionShape::Usual
    }

    /// Its sinks and recent tokens, the rest as in `usual`.
    fn kv(&self, usual: KvOptions) -> KvOptions {
        KvOptions {
            sinks: self.sinks,
            recent: self.recent,
            ..usual
        }
    }

    fn retention(&self, window: Option<usize>) -> Retention {
        Retention {
            policy: self.policy,
            anchors: Some(self.anchors),
            window,
            positions: self.positions,
            params: self.params,
            guard: self.guard,
            ..Retention::default()
        }
    }

    /// Rows that its window has at least, where `recent` are kept nearly exact.
    fn window_least(&self, recent: usize) -> usize {
        match self.policy {
            policy if policy.chooses() => recent.next_multiple_of(BLOCK) + Bounds::CHOICE,
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
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    pub kv: KvOptions,
    pub retention: Retention,
    pub guard: GuardParams,
}

impl Setup {
    /// Everything in f16: what the others are held against.
    pub fn reference() -> Setup {
        Setup::full(KvOptions::plain(KvForm::F16))
    }

    /// Every row stays.
    fn full(kv: KvOptions) -> Setup {
        Setup {
            kv,
            retention: Retention::full(),
            guard: GuardParams::default(),
        }
    }

    /// Block bytes that it takes at the end of `context` tokens, as planned.
    pub fn bytes(&self, config: &Config, context: usize) -> u64 {
        let (kept, kv) = (&self.retention, &self.kv);
        match (kept.anchors, kept.window) {
            (Some(anchors), Some(window)) => {
                plan::window_bytes(config, kv, kept.policy, anchors, window, context)
            }
            _ => plan::blocks_bytes(config, kv, context),
        }
    }

    /// Deep layers in f16, the others in four bits but for the last 128 tokens.
    fn demoted(config: &Config, variant: &Variant) -> Setup {
        let layers = config.layers.len();
        let deep = layers - layers / 3..layers;
        Setup::full(KvOptions {
            sinks: variant.sinks,
            recent: 128,
            near: Codec::F16,
            layers: deep.map(|layer| (layer, KvForm::F16)).collect(),
            ..KvOptions::new(KvForm::both(Codec::Int4.form()))
        })
    }

    /// Bits and rows of every layer as the probe says.
    fn adaptive(
        config: &Config,
        variant: &Variant,
        probe: &Probe,
        share: f64,
        context: usize,
    ) -> Result<Setup, ShareTooSmall> {
        let full = plan::full_bytes(config, context) as f64;
        let usual = variant.kv(KvOptions::default());
        let ask = AllotmentTarget {
            bytes: (full * share) as u64,
            tokens: context as u64,
            zones: usual.zones(),
            anchors: variant.anchors as u64,
            row_weight: variant.wishes.row_weight(context),
        };
        let kv =
            adaptive::plan(config, &probe.curves, &usual, &ask).map_err(|error| ShareTooSmall {
                share,
                min: error.minimum_bytes() as f64 / full,
            })?;
        Ok(Setup {
            kv,
            retention: Retention {
                adaptive: variant.wishes,
                ..variant.retention(None)
            },
            guard: probe.guard(GuardParams::default()),
        })
    }

    /// What this policy does with this codec in `share` of the f16 bytes of `context` tokens. Where the
    /// codec alone is within the share, every row stays.
    pub fn of(
        config: &Config,
        variant: &Variant,
        coding: &Coding,
        probe: Option<&Probe>,
        share: Option<f64>,
        context: usize,
    ) -> Result<Setup, ShareTooSmall> {
        match (variant.policy, variant.shape, share.zip(probe)) {
            (_, RetentionShape::Demoted, _) => return Ok(Setup::demoted(config, variant)),
            (Policy::Adaptive, _, Some((share, probe))) => {
                return Setup::adaptive(config, variant, probe, share, context);
            }
            _ => {}
        }
        let is_float = |form: KvForm| form.k.codec.is_float() && form.v.codec.is_float();
        let kv = match is_float(coding.form) {
            true => KvOptions::plain(coding.form),
            false => variant.kv(KvOptions::new(coding.form)),
        };
        let mut setup = Setup::full(kv);
        let anchors = variant.anchors;
        if variant.shape == RetentionShape::Unbounded {
            let window = context.saturating_sub(anchors + BLOCK) / BLOCK * BLOCK;
            setup.retention = Retention {
                positions: Positions::Auto,
                ..variant.retention(Some(window))
            };
            return Ok(setup);
        }
        let (Some(share), true) = (share, variant.has_shares()) else {
            return Ok(setup);
        };
        let (policy, least) = (variant.policy, variant.window_least(setup.kv.recent));
        match plan::within_share(config, &setup.kv, policy, anchors, least, context, share)? {
            ShareFit::Everything => {}
            ShareFit::Window(window) => setup.retention = variant.retention(Some(window)),
        }
        Ok(setup)
    }
}
