//! How keys and values are stored: a form for each layer, and zones of tokens that are stored more exactly.

use super::config::{Config, LayerConfig};
use haversack_cache::policy::adaptive::form_name;
use haversack_cache::{LayerShape, Zones};
use haversack_kernels::format::kv::{Codec, Form, KvForm};
use std::collections::BTreeMap;

/// How keys and values are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvOptions {
    /// The form of every layer that has none of its own in `layers`.
    pub form: KvForm,
    pub layers: BTreeMap<usize, KvForm>,
    /// Rows that single layers keep at most beside those of a step, where rows are evicted one by one.
    pub rows: BTreeMap<usize, usize>,
    /// First tokens kept as f16.
    pub sinks: usize,
    /// Last tokens kept in `near`, beside the current block. 0 with `sinks` 0 means everything in
    /// `form`.
    pub recent: usize,
    /// Codec of the recent tokens: int8 or f16.
    pub near: Codec,
    /// Subtract the mean key before coding, where the codec gains by it and the model is small enough to be
    /// measured.
    pub centre: bool,
}

impl Default for KvOptions {
    fn default() -> KvOptions {
        KvOptions::new(KvForm::both(Codec::Int4.form()))
    }
}

/// With more layers of their own form than this, the name says `mixed`.
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

    /// What each layer of a model stores.
    pub fn shapes(&self, config: &Config) -> Vec<LayerShape> {
        let layers = config.layers.iter().enumerate();
        layers.map(|(i, layer)| self.layer(i, layer)).collect()
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
