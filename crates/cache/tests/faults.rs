//! Every arena call of a whole life fails once.
//!
//! The life: open, prefill in chunks, fork, decode, evict, compact, cut back, close. For each N the
//! Nth call (a slab to add, pages to give back) is refused. What was asked then either happens all the
//! same or ends in a typed error that has changed nothing, and asking again works. Afterwards the
//! same store lives the same life once more without a fault.

use crate::common;

use common::*;
use haversack_cache::policy::window::{WindowParams, plan};
use haversack_cache::{
    CacheError, Codec, KvForm, LayerShape, SequenceId, Store, StoreOptions, Zones,
};
use haversack_testing::ArenaFaults;

struct Life {
    store: Store,
    coder: Coder,
    twins: Vec<(SequenceId, Model)>,
    errors: usize,
}

impl Life {
    fn new(options: StoreOptions) -> Life {
        Life {
            coder: Coder::new(&options),
            store: Store::new(options).unwrap(),
            twins: Vec::new(),
            errors: 0,
        }
    }

    /// Does it; or it has failed by name, nothing has changed, and the second try does it.
    fn insist<T>(&mut self, act: impl Fn(&mut Store) -> Result<T, CacheError>) -> T {
        let before = self.store.ledger();
        match act(&mut self.store) {
            Ok(done) => done,
            Err(CacheError::OutOfMemory { .. }) => {
                self.errors += 1;
                let after = self.store.ledger();
                assert_eq!((after.kv_live, after.kv_promised), (before.kv_live, 0));
                self.check();
                act(&mut self.store).unwrap()
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn check(&mut self) {
        for census in self.store.pool_stats() {
            assert_eq!(census.free + census.live, census.total);
            assert_eq!(census.promised, 0);
        }
        for (id, model) in &self.twins {
            check_with(&self.store, &mut self.coder, *id, model);
        }
    }

    fn feed(&mut self, i: usize, tokens: &[u32]) {
        let id = self.twins[i].0;
        self.insist(|store| feed(store, id, tokens));
        self.twins[i].1.feed(tokens);
        self.check();
    }

    fn evict(&mut self, i: usize, params: WindowParams) {
        let id = self.twins[i].0;
        let plan = plan(&self.store.snapshot(id).unwrap(), &params);
        self.insist(|store| store.apply(id, &plan));
        self.twins[i].1.evict(&params);
        self.check();
    }

    fn live(&mut self) {
        let id = self.insist(Store::open);
        self.twins.push((id, Model::default()));
        let tokens: Vec<u32> = (0..300).collect();
        for chunk in tokens[..256].chunks(100) {
            self.feed(0, chunk);
        }
        let fork = self.insist(|store| store.fork(id));
        let model = self.twins[0].1.clone();
        self.twins.push((fork, model));
        for chunk in tokens[256..].chunks(4) {
            self.feed(0, chunk);
        }
        let params = WindowParams {
            anchors: 40,
            window: 64,
        };
        self.evict(1, params);
        self.feed(1, &tokens[..64]);
        self.evict(1, params);
        self.feed(0, &tokens[..20]);
        self.evict(0, params);
        self.insist(|store| store.compact_below(25));
        self.check();
        self.insist(|store| store.compact_below(100));
        self.check();
        let back = self.store.oldest_restorable(id).unwrap();
        self.insist(|store| store.truncate(id, back));
        self.twins[0].1.truncate(back as usize);
        self.check();
        self.feed(0, &tokens[..50]);
        for (id, _) in std::mem::take(&mut self.twins) {
            self.insist(|store| store.close(id));
            self.check();
        }
        assert_eq!(self.store.ledger().kv_live, 0);
        let touched = self
            .store
            .pool_stats()
            .iter()
            .map(|c| c.slabs_touched)
            .sum();
        assert_eq!(0usize, touched, "every page went back");
    }
}

fn sweep(layers: Vec<LayerShape>, zones: Zones) {
    let mut refused = 0;
    for n in 1.. {
        let faults = ArenaFaults::fail_nth(n);
        let mut life = Life::new(StoreOptions {
            layers: layers.clone(),
            zones,
            slab_io: Some(faults.io()),
            // A page or more each, so that releasing has something to give.
            slab_bytes: Some(4 << 10),
            ..StoreOptions::default()
        });
        life.live();
        refused += life.errors;
        if !faults.struck() {
            assert!(n > 20, "only {n} calls: the life is too quiet");
            assert!(refused > 5, "only {refused} calls were slabs to add");
            return;
        }
        let errors = life.errors;
        life.live();
        assert_eq!(life.errors, errors, "one fault only");
    }
}

#[test]
fn every_arena_call_fails_once_with_zones() {
    let zones = Zones {
        sinks: 4,
        recent: 32,
    };
    let layer = codec_layer(2, 16, Codec::Int8, Codec::Int4);
    let sliding = LayerShape {
        window: Some(70),
        ..layer
    };
    sweep(vec![layer, sliding], zones);
}

#[test]
fn every_arena_call_fails_once_with_floats() {
    let layer = LayerShape::plain(2, 16, KvForm::F16);
    sweep(vec![layer; 2], Zones::default());
}
