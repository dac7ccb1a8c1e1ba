//! The planner's figures, the ledger and the arena say the same number of bytes.

use crate::common;

use common::*;
use haversack_cache::policy::window::{WindowParams, plan};
use haversack_cache::size::KeptTokens;
use haversack_cache::{
    Codec, Form, KvForm, LayerShape, SequenceGrowth, Store, StoreOptions, Zones, kv_bytes,
    reserve_bytes,
};

const MIB: u64 = 1 << 20;

fn with(codec: Codec, group: usize) -> KvForm {
    KvForm::both(Form { codec, group })
}

/// Every codec alone (zones off), and behind an int8 near form.
fn recipes() -> Vec<(KvForm, KvForm, Zones)> {
    let zones = Zones {
        sinks: 4,
        recent: 64,
    };
    let near = KvForm::both(Codec::Int8.form());
    let mut recipes = Vec::new();
    for codec in Codec::ALL {
        let far = KvForm::both(codec.form());
        recipes.push((far, far, Zones::default()));
        if !codec.is_float() {
            recipes.push((near, far, zones));
        }
    }
    recipes
}

/// SmolLM2-135M: 30 layers of 3 KV heads of 64.
fn smol(near: KvForm, far: KvForm) -> Vec<LayerShape> {
    let layer = LayerShape::plain(3, 64, near);
    vec![LayerShape { far, ..layer }; 30]
}

/// Gemma-3-270M: 18 layers of one KV head of 256, all but every sixth with a window of 512.
fn gemma(near: KvForm, far: KvForm) -> Vec<LayerShape> {
    let layer = |i: usize| LayerShape {
        far,
        window: (i % 6 != 5).then_some(512),
        ..LayerShape::plain(1, 256, near)
    };
    (0..18).map(layer).collect()
}

fn store(layers: &[LayerShape], zones: Zones) -> Store {
    Store::new(StoreOptions {
        layers: layers.to_vec(),
        zones,
        ..StoreOptions::default()
    })
    .unwrap()
}

/// Blocks in the arena, counted one by one, in bytes.
fn arena_bytes(store: &Store) -> u64 {
    let census = store.pool_stats();
    census.iter().map(|c| (c.live * c.block_bytes) as u64).sum()
}

/// Feeds zeros: bytes do not depend on what is stored.
fn feed_any(store: &mut Store, grow: SequenceGrowth) {
    let mut step = store.begin(&[grow]).unwrap();
    for layer in 0..store.layers().len() {
        let rows = vec![0.0; grow.tokens * store.layers()[layer].width()];
        let written = store.write(exec(), &mut step, grow.id, layer, &rows, &rows);
        written.unwrap();
        store.settle(&mut step, layer);
    }
    store.commit(step).unwrap();
    store.recode_ahead(exec(), grow.id, grow.tokens).unwrap();
}

fn planned_is_live(layers: &[LayerShape], zones: Zones) {
    let mut store = store(layers, zones);
    let id = store.open().unwrap();
    let mut position = 0u64;
    for tokens in [1usize, 31, 1, 100, 200, 500, 32, 7] {
        let live = store.ledger().kv_live as u64;
        let grow = SequenceGrowth {
            id,
            position,
            tokens,
        };
        let step = store.begin(&[grow]).unwrap();
        let ledger = store.ledger();
        assert_eq!(ledger.kv_live as u64, live);
        store.rollback(step);
        let before = ahead_bytes(&store, id);
        feed_any(&mut store, grow);
        let ahead = ahead_bytes(&store, id);
        // What leaves may have its far form.
        let end = position + tokens as u64;
        let crosses = (end - 1) / 32 != position.saturating_sub(1) / 32;
        assert_eq!(
            ledger.kv_promised as u64 + if crosses { before } else { 0 },
            reserve_bytes(layers, zones, position, tokens),
            "{tokens} tokens at {position}"
        );
        position += tokens as u64;
        let planned = kv_bytes(layers, zones, KeptTokens::All, position);
        let ledger = store.ledger();
        assert_eq!(ledger.kv_live as u64, planned, "at {position}");
        assert_eq!(ledger.kv_ahead as u64, ahead, "at {position}");
        assert_eq!(arena_bytes(&store), planned + ahead);
    }
}

#[test]
fn smol_is_as_planned_in_every_codec() {
    for (near, far, zones) in recipes() {
        planned_is_live(&smol(near, far), zones);
    }
}

#[test]
fn gemma_is_as_planned_in_every_codec() {
    for (near, far, zones) in recipes() {
        planned_is_live(&gemma(near, far), zones);
    }
}

/// With anchors and a window the live bytes follow the plan at every position.
#[test]
fn a_window_is_as_planned() {
    for (near, far, zones) in recipes() {
        for layers in [&smol(near, far)[..2], &gemma(near, far)[4..6]] {
            for (anchors, window) in [(64, 512), (0, 100), (5, 33), (40, 16)] {
                let params = WindowParams { anchors, window };
                windows_as_planned(layers, zones, params);
            }
        }
    }
}

fn windows_as_planned(layers: &[LayerShape], zones: Zones, params: WindowParams) {
    let mut store = store(layers, zones);
    let id = store.open().unwrap();
    let mut end = 0;
    for position in (0..1000u64).step_by(8) {
        let tokens = 8;
        let grow = SequenceGrowth {
            id,
            position,
            tokens,
        };
        feed_any(&mut store, grow);
        end = position + tokens as u64;
        let plan = plan(&store.snapshot(id).unwrap(), &params);
        store.apply(id, &plan).unwrap();
        let planned = kv_bytes(layers, zones, KeptTokens::Window(params), end);
        assert_eq!(store.ledger().kv_live as u64, planned, "{params:?} {end}");
        assert_eq!(arena_bytes(&store), planned + ahead_bytes(&store, id));
    }
    assert!(end > params.anchors + params.window);
}

/// The figures of a 7B with 32 KV heads: reserved, never touched.
#[test]
fn a_7b_as_everyone_counts_it() {
    let off = Zones::default();
    for (form, mib) in [
        (KvForm::F16, 1024),
        (with(Codec::Int8, 32), 544),
        (with(Codec::Int4Plain, 32), 288),
        (with(Codec::Int4Plain, 64), 272),
    ] {
        let layers = vec![LayerShape::plain(32, 128, form); 32];
        assert_eq!(kv_bytes(&layers, off, KeptTokens::All, 2048), mib * MIB);
        let mut store = store(&layers, off);
        let id = store.open().unwrap();
        let step = store
            .begin(&[SequenceGrowth {
                id,
                position: 0,
                tokens: 2048,
            }])
            .unwrap();
        let ledger = store.ledger();
        assert_eq!(ledger.kv_promised as u64, mib * MIB);
        assert!(ledger.mapped as u64 >= mib * MIB);
        assert_eq!(resident_bytes(&store), Some(0), "no page was touched");
        store.rollback(step);
    }
    let layers = vec![LayerShape::plain(32, 128, with(Codec::Int4Plain, 32)); 32];
    assert_eq!(kv_bytes(&layers, off, KeptTokens::All, 576), 81 * MIB);
    let params = WindowParams {
        anchors: 64,
        window: 512,
    };
    let endless = kv_bytes(&layers, off, KeptTokens::Window(params), 320 * 32);
    assert_eq!(endless, 81 * MIB, "64 anchors and 512 tokens, however long");
}
