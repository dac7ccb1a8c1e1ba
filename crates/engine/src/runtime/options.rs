//! Options of a runtime: threads, arithmetic, how keys and values are stored, and for how long.
//!
//! Plain data; [`super::bounds`] computes limits from it. Only a budget that the caller left open is read from the device.

pub use haversack_cache::policy::rows::RowPolicy;

use crate::device::governor;
use crate::kv_quality::guard::GuardParams;
use crate::kv_quality::probe::Depth;
use crate::model::Model;
use crate::model::kv::KvOptions;
use haversack_cache::{PositionMode, StatsFormat};
use haversack_kernels::attention::BLOCK_SLOTS;
use haversack_kernels::cpu::Backend;
use haversack_memory::{Backing, Reading, SlabIo};
use std::path::PathBuf;
use std::str::FromStr;

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
    /// Tokens per step while reading a prompt; `None` = by the size of the model and the budget.
    pub chunk: Option<usize>,
    pub kv: KvOptions,
    pub retention: Retention,
    /// How the guard predicts and what it allows.
    pub guard: GuardParams,
    /// Let the window follow what this machine has left. Off, only [`super::Runtime::observe`] moves
    /// it.
    pub follow_device: bool,
    /// Where measurements of a model are saved; `None` = nowhere.
    pub cache_dir: Option<PathBuf>,
    /// Ceiling for everything the runtime allocates: blocks, tables, scratch, side data.
    pub budget_bytes: Option<usize>,
    /// The budget is what the device had room for, and follows it: see [`RuntimeOptions::with_device_budget`].
    pub budget_follows_device: bool,
    /// Where the pages of keys and values come from.
    pub kv_memory: Backing,
    pub backend: Backend,
    #[doc(hidden)]
    pub slabs: Slabs,
}

/// What tests change about the arenas under the blocks.
#[doc(hidden)]
#[derive(Clone, Debug, Default)]
pub struct Slabs {
    /// `None` = as the store likes them.
    pub bytes: Option<usize>,
    /// Their calls to the system; `None` = the real ones.
    pub io: Option<std::sync::Arc<dyn SlabIo>>,
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
            budget_follows_device: false,
            kv_memory: Backing::default(),
            backend: Backend::best(),
            slabs: Slabs::default(),
        }
    }
}

impl RuntimeOptions {
    /// The same with a budget: where none was named, what the device has room for beside the weights of `model`.
    pub fn with_device_budget(self, model: &Model) -> RuntimeOptions {
        if self.budget_bytes.is_some() {
            return self;
        }
        let weights_bytes = model.weights().bytes_per_token() as u64;
        let budget = governor::budget(&Reading::now(), weights_bytes, 0);
        log::info!("a budget of {} bytes: {}", budget.bytes, budget.bound);
        RuntimeOptions {
            budget_bytes: Some(budget.bytes),
            budget_follows_device: true,
            ..self
        }
    }
}

/// Which rows are kept when the budget or the context ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Everything while it fits, then anchors and the longest window that fits.
    #[default]
    Auto,
    /// Everything; the answer ends with the context.
    Full,
    /// The first tokens and the last ones (StreamingLLM).
    Window,
    /// The first tokens, the last ones, and of those between the ones that got most attention (H2O).
    Heavy,
    /// Three groups of layers, each with its own rule.
    Tiers,
    /// The last tokens, and those that the latest queries attend to (SnapKV).
    Snap,
    /// Whole turns.
    Turns,
    /// As `Heavy`, with bits and rows for each layer as a probe of the model says.
    Adaptive,
    /// Evicts nothing by itself: a session keeps facts and moves turns in and out.
    Streams,
}

impl Policy {
    /// Whether rows are evicted one by one.
    pub fn chooses(self) -> bool {
        !matches!(
            self,
            Policy::Auto | Policy::Full | Policy::Window | Policy::Streams
        )
    }

    /// Policies that can be asked for by name.
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

/// How far apart tokens count as standing once those between them are evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Positions {
    /// What the policy does best with. For anchors and a window that is `Compact`, from the first
    /// evicted row on: measured in `docs/how-it-works/bounded-cache.md`.
    #[default]
    Auto,
    /// Gaps close.
    Compact,
    /// Tokens stay where they were. Fails past the trained context.
    Original,
}

impl Positions {
    pub fn in_store(self) -> PositionMode {
        match self {
            Positions::Auto | Positions::Compact => PositionMode::Compact,
            Positions::Original => PositionMode::Original,
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
    /// First tokens that are never evicted; `None` = [`Retention::ANCHORS`], or less in a small context.
    pub anchors: Option<usize>,
    /// Last tokens that are kept; `None` = as many as fit.
    pub window: Option<usize>,
    pub positions: Positions,
    /// How rows are chosen; `None` = as the policy usually does.
    pub params: Option<RowPolicy>,
    /// What `Adaptive` aims at.
    pub adaptive: AdaptiveOptions,
    /// Describe every eviction in words, for [`super::Runtime::plans`].
    pub explain: bool,
    /// Whether a guard looks at rows before they are evicted, where a policy chooses them one by one.
    pub guard: Guarding,
    /// Changes of the window to replay, each at its position, instead of reading the device.
    pub replay: Vec<(u64, usize)>,
}

impl Retention {
    pub const ANCHORS: usize = 64;

    /// Anchors of policy `Adaptive`: one block.
    pub const ADAPTIVE_ANCHORS: usize = BLOCK_SLOTS;

    /// Whether a guard looks at rows before they are evicted. Turns are evicted as a whole or not at all.
    pub fn is_guarded(&self) -> bool {
        self.guard == Guarding::On && self.policy.chooses() && self.policy != Policy::Turns
    }

    /// How rows are chosen, where they are evicted one by one.
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

    /// What is kept of each row, where rows are evicted one by one.
    pub(crate) fn noting(&self) -> Option<StatsFormat> {
        self.rows().as_ref().map(noting_by)
    }

    /// For sessions, which decide themselves what to evict.
    pub fn managed() -> Retention {
        Retention::by(Policy::Streams)
    }

    /// The defaults of a policy.
    pub fn by(policy: Policy) -> Retention {
        Retention {
            policy,
            ..Retention::default()
        }
    }

    pub fn full() -> Retention {
        Retention::by(Policy::Full)
    }
}

/// What a policy needs to know of each row.
pub(crate) fn noting_by(policy: &RowPolicy) -> StatsFormat {
    let counting = policy.count();
    counting.map_or(StatsFormat::ATTENTION, |by| StatsFormat::of(&by))
}

/// What [`Policy::Adaptive`] aims at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdaptiveOptions {
    pub depth: Depth,
    /// Fewer bits and more rows, so that rows no query has asked for yet can still be found.
    pub recall: bool,
    /// Bytes of the blocks of one sequence; `None` = what the budget leaves, or a quarter of what f16 takes.
    pub kv_bytes: Option<u64>,
}
