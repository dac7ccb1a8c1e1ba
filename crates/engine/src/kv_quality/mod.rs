//! What storing keys and values in fewer bits, or fewer of them, costs: statistics of the keys ([`calibrate`]), the damage
//! to each layer ([`probe`]), and the prediction for rows about to be evicted ([`guard`]).

pub mod calibrate;
pub mod guard;
mod measurement_file;
pub mod probe;

use crate::model::Model;
use crate::model::kv::KvOptions;
use crate::step::runner::ModelRunner;
use haversack_cache::{CacheResult, Store, StoreOptions};
use haversack_kernels::cpu::Backend;
use haversack_kernels::format::kv::KvForm;
use std::ops::Range;
use std::sync::Arc;

/// A runner that keeps everything of these layers in f16, to measure with. `arenas` says how blocks are allocated.
fn exact_runner(
    model: &Arc<Model>,
    layers: Range<usize>,
    threads: usize,
    int8: bool,
    arenas: &StoreOptions,
) -> CacheResult<ModelRunner> {
    let kv = KvOptions::plain(KvForm::F16);
    let store = Store::new(StoreOptions {
        layers: kv.shapes(model.config())[layers].to_vec(),
        zones: kv.zones(),
        ..arenas.clone()
    })?;
    let (model, threads, backend) = (model.clone(), threads.max(1), Backend::best());
    Ok(ModelRunner::new(model, store, threads, backend, int8))
}
