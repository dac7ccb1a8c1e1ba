//! What a model will take, before it is loaded: the figures that the ledger shows later, from the file's metadata.

use crate::error::Error;
use haversack_engine::model::Config;
use haversack_engine::runtime::plan::{self, ComputeSetting};
use haversack_engine::{LoadError, RuntimeOptions};
use haversack_gguf::Gguf;
use std::path::Path;

/// Tokens of a plan are counted in portions of this many: a prompt is read in such portions at least.
const PORTION: usize = 32;

/// What a model takes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights, which are mapped from the file: beside the budget, and the system can reclaim their pages.
    pub weights_bytes: u64,
    /// Tokens of context: as asked for, or what the model was trained for.
    pub context: usize,
    /// Keys and values of one token.
    pub token_bytes: usize,
    /// What one conversation of the whole context takes of the budget.
    pub context_bytes: usize,
    /// Tokens of one conversation that the budget holds; `None` without one. May be more than the context.
    pub tokens_max: Option<usize>,
}

impl MemoryPlan {
    pub(crate) fn new(
        path: &Path,
        context: Option<usize>,
        options: &RuntimeOptions,
        budget: Option<u64>,
    ) -> Result<MemoryPlan, Error> {
        let gguf = Gguf::open(path).map_err(LoadError::from)?;
        let config = Config::read(&gguf, context)?;
        let sizes = gguf.tensors().iter().map(|tensor| tensor.byte_len());
        let (kv, setting) = (&options.kv, ComputeSetting::of(options));
        let context = context.map_or(config.context_trained, |n| n.min(config.context_trained));
        let slots = context.next_multiple_of(PORTION);
        let budget = budget.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(MemoryPlan {
            weights_bytes: sizes.fold(0, u64::saturating_add),
            context,
            token_bytes: plan::bytes_per_token(&config, kv),
            context_bytes: plan::needs(&config, kv, setting, slots).total(),
            tokens_max: budget.map(|bytes| plan::slots_max(&config, kv, setting, bytes)),
        })
    }
}
