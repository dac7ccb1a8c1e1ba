//! What a runtime may be told: threads, arithmetic, how keys and values are kept, and for how long.
//!
//! Plain data. Nothing here looks at a device or a model; [`super::bounds`] makes figures of it.

use crate::runtime::adaptive::AdaptiveOptions;
use haversack_cache::policy::adaptive::form_name;
pub use haversack_cache::policy::rows::RowPolicy;
use haversack_cache::{LayerShape, Noting, Zones};
use haversack_kernels::cpu::Table;
use haversack_kernels::format::kv::{Codec, Form, KvForm};
use haversack_memory::Faults;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use crate::kv_quality::guard::GuardParams;
use crate::model::LayerConfig;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activations {
    /// Rounded to 8 bits before each product: the fast path.
    Int8,
    /// Exact: quantised weights unpacked, f32 arithmetic.
    F32,
}

#[derive(Clone, Debug)]
pub struct RuntimeOptions {
    pub threads: usize,
    pub activations: Activations,
    /// Tokens per pass while reading a prompt; `None` = by the size of the model and the budget.
    pub chunk: Option<usize>,
    pub kv: KvOptions,
    pub retention: Retention,
    /// How the guard predicts and what it allows.
    pub guard: GuardParams,
    /// Let the window follow what this machine has left. Off, only [`super::Runtime::observe`] moves
    /// it: where readings come from elsewhere.
    pub follow_device: bool,
    /// Where measurements of a model are kept; `None` = nowhere.
    pub cache_dir: Option<PathBuf>,
    /// Ceiling for everything the runtime allocates: blocks, tables, scratch, side data.
    pub budget_bytes: Option<usize>,
    pub table: Table,
    #[doc(hidden)]
    pub slabs: Slabs,
}

/// What tests change about the arenas under the blocks.
#[doc(hidden)]
#[derive(Clone, Debug, Default)]
pub struct Slabs {
    /// `None` = as the store likes them.
    pub bytes: Option<usize>,
    /// Arena calls that fail.
    pub faults: Option<Faults>,
}

impl Default for RuntimeOptions {
    fn default() -> RuntimeOptions {
        RuntimeOptions {
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            activations: Activations::Int8,
            chunk: None,
            kv: KvOptions::default(),
            retention: Retention::default(),
            guard: GuardParams::default(),
            follow_device: false,
            cache_dir: None,
            budget_bytes: None,
            table: Table::best(),
            slabs: Slabs::default(),
        }
    }
}

/// How keys and values are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvOptions {
    /// Of every layer that has no entry below.
    pub form: KvForm,
    pub layers: BTreeMap<usize, KvForm>,
    /// Rows that single layers keep at most beside those of a step, where rows are chosen one by one.
    pub rows: BTreeMap<usize, usize>,
    /// First tokens kept as f16.
    pub sinks: usize,
    /// Last tokens kept in `near`, besides the current block. 0 with `sinks` 0 means everything in
    /// `form`.
    pub recent: usize,
    /// Codec of the recent tokens: int8 or f16.
    pub near: Codec,
    /// Take the mean from keys before they are coded, where the codec gains by it and the model is
    /// small enough to be measured.
    pub centre: bool,
}

impl Default for KvOptions {
    fn default() -> KvOptions {
        KvOptions::new(KvForm::both(Codec::Int4.form()))
    }
}

/// Layers with a form of their own that are still exceptions.
const MIXED_FROM: usize = 8;

impl KvOptions {
    pub const SINKS: usize = 4;
    pub const RECENT: usize = 64;

    /// With the usual zones.
    pub fn new(form: KvForm) -> KvOptions {
        KvOptions {
            form,
            layers: BTreeMap::new(),
            rows: BTreeMap::new(),
            sinks: KvOptions::SINKS,
            recent: KvOptions::RECENT,
            near: Codec::Int8,
            centre: true,
        }
    }

    /// Everything in one form.
    pub fn plain(form: KvForm) -> KvOptions {
        KvOptions {
            sinks: 0,
            recent: 0,
            ..KvOptions::new(form)
        }
    }

    /// What layer `index` stores.
    pub fn layer(&self, index: usize, config: &LayerConfig) -> LayerShape {
        let far = self.layers.get(&index).copied().unwrap_or(self.form);
        LayerShape {
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            near: KvForm {
                k: self.near_form(far.k),
                v: self.near_form(far.v),
            },
            far,
            window: config.window,
        }
    }

    /// Rows that layer `index` keeps at most.
    pub fn rows_max(&self, index: usize) -> usize {
        self.rows.get(&index).copied().unwrap_or(usize::MAX)
    }

    /// A form as good as `near`, or the far one where that is better already.
    fn near_form(&self, far: Form) -> Form {
        let is_near = far.codec.is_float() || far.codec == self.near;
        if self.recent == 0 || is_near {
            far
        } else {
            self.near.form()
        }
    }

    pub fn zones(&self) -> Zones {
        // Rows that are floats anyway need no second copy.
        let floats = |form: &KvForm| form.k.codec.is_float() && form.v.codec.is_float();
        let all_floats = floats(&self.form) && self.layers.values().all(floats);
        Zones {
            sinks: if all_floats { 0 } else { self.sinks },
            recent: self.recent,
        }
    }

    /// `int4`, or `k=int8,v=int4`, and how many layers differ; `mixed` where most do.
    pub fn name(&self) -> String {
        if self.layers.len() > MIXED_FROM {
            return "mixed".to_owned();
        }
        let name = form_name(self.form);
        match self.layers.len() {
            0 => name,
            n => format!("{name}+{n}"),
        }
    }
}

/// Which rows stay when the budget or the context ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Everything while there is room, then anchors and the longest window that fits.
    #[default]
    Auto,
    /// Everything; the context ends the answer.
    Full,
    /// The first tokens and the last ones.
    Window,
    /// The first tokens, the last ones, and of those between the ones that got most attention.
    Heavy,
    /// Three groups of layers, each with its own rule.
    Tiers,
    /// The last tokens, and those which the latest ones look at.
    Snap,
    /// Whole turns.
    Turns,
    /// As `Heavy`, with bits and rows for each layer as a probe of the model says.
    Adaptive,
    /// Nothing by itself: facts stay and turns come and go as a session says ([`haversack_conversations::session`]).
    Streams,
}

impl Policy {
    /// Rows leave one by one.
    pub fn chooses(self) -> bool {
        !matches!(
            self,
            Policy::Auto | Policy::Full | Policy::Window | Policy::Streams
        )
    }

    /// Those that can be asked for by name.
    pub const ALL: [Policy; 8] = [
        Policy::Auto,
        Policy::Full,
        Policy::Window,
        Policy::Tiers,
        Policy::Heavy,
        Policy::Snap,
        Policy::Turns,
        Policy::Adaptive,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Policy::Auto => "auto",
            Policy::Full => "full",
            Policy::Window => "window",
            Policy::Heavy => "heavy",
            Policy::Tiers => "tiers",
            Policy::Snap => "snap",
            Policy::Turns => "turns",
            Policy::Adaptive => "adaptive",
            Policy::Streams => "streams",
        }
    }
}

/// No policy has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such policy")]
pub struct UnknownPolicy;

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Policy, UnknownPolicy> {
        let mut all = Policy::ALL.into_iter();
        all.find(|policy| policy.name() == name)
            .ok_or(UnknownPolicy)
    }
}

/// How far apart tokens count as standing once those between them have left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Positions {
    /// What the policy does best with. For anchors and a window that is `Compact`, from the first
    /// row on that leaves: `docs/bounded-cache.md` has the figures.
    #[default]
    Auto,
    /// Gaps close.
    Compact,
    /// Where they were. Fails past the trained context.
    Original,
}

impl Positions {
    pub fn in_store(self) -> haversack_cache::Positions {
        match self {
            Positions::Auto | Positions::Compact => haversack_cache::Positions::Compact,
            Positions::Original => haversack_cache::Positions::Original,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guarding {
    #[default]
    On,
    Off,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Retention {
    pub policy: Policy,
    /// First tokens that never leave; `None` = [`Retention::ANCHORS`], or less in a small context.
    pub anchors: Option<usize>,
    /// Last tokens that stay; `None` = as many as fit.
    pub window: Option<usize>,
    pub positions: Positions,
    /// How rows are chosen; `None` = as the policy usually does.
    pub params: Option<RowPolicy>,
    /// What `Adaptive` aims at.
    pub adaptive: AdaptiveOptions,
    /// Put every plan that is applied into words, for [`super::Runtime::plans`].
    pub explain: bool,
    /// Whether a guard looks at rows before they leave, where a policy chooses them one by one.
    pub guard: Guarding,
    /// Changes of the window to make again, each at its position, instead of asking the device.
    pub replay: Vec<(u64, usize)>,
}

impl Retention {
    pub const ANCHORS: usize = 64;

    /// Whether a guard looks at rows before they leave. Turns leave as a whole or not at all.
    pub fn is_guarded(&self) -> bool {
        self.guard == Guarding::On && self.policy.chooses() && self.policy != Policy::Turns
    }

    /// How rows are chosen, if they are.
    pub fn rows(&self) -> Option<RowPolicy> {
        let usual = match self.policy {
            Policy::Auto | Policy::Full | Policy::Window | Policy::Streams => return None,
            Policy::Heavy | Policy::Adaptive => RowPolicy::Heavy(Default::default()),
            Policy::Tiers => RowPolicy::Tiers(Default::default()),
            Policy::Snap => RowPolicy::Snap(Default::default()),
            Policy::Turns => RowPolicy::Turns(Default::default()),
        };
        Some(self.params.unwrap_or(usual))
    }

    /// What is remembered of each row, where rows leave one by one.
    pub(crate) fn noting(&self) -> Option<Noting> {
        self.rows().as_ref().map(noting_by)
    }

    /// For sessions, which say themselves what leaves.
    pub fn managed() -> Retention {
        Retention {
            policy: Policy::Streams,
            ..Retention::default()
        }
    }

    /// As the policy does it.
    pub fn by(policy: Policy) -> Retention {
        Retention {
            policy,
            ..Retention::default()
        }
    }

    pub fn full() -> Retention {
        Retention {
            policy: Policy::Full,
            ..Retention::default()
        }
    }
}

/// What a policy wants remembered of each row.
pub(crate) fn noting_by(policy: &RowPolicy) -> Noting {
    let counting = policy.count();
    counting.map_or(Noting::ATTENTION, |counting| Noting::of(&counting))
}
