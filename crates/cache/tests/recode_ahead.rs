//! Recoding ahead: every token pays a little and none for all layers, and only the bytes show it.

use crate::common;

use common::*;
use haversack_cache::size::KeptTokens;
use haversack_cache::{
    CacheError, Codec, LayerShape, SequenceGrowth, SequenceId, Store, StoreOptions, Zones,
    kv_bytes, reserve_bytes,
};

const LAYERS: usize = 30;
const ZONES: Zones = Zones {
    sinks: 4,
    recent: 64,
};

fn layer() -> LayerShape {
    codec_layer(1, 16, Codec::Int8, Codec::Int4)
}

fn options() -> StoreOptions {
    StoreOptions {
        layers: vec![layer(); LAYERS],
        zones: ZONES,
        ..StoreOptions::default()
    }
}

fn tokens(n: usize) -> Vec<u32> {
    (1..=n as u32).collect()
}

/// Far forms of blocks that are still near.
fn ahead(store: &Store, id: SequenceId) -> usize {
    ahead_bytes(store, id) as usize / layer().far_shape().block_bytes()
}

fn grow(store: &Store, id: SequenceId, tokens: usize) -> SequenceGrowth {
    let position = store.position(id).unwrap();
    SequenceGrowth {
        id,
        position,
        tokens,
    }
}

/// A token at a time: each recodes two layers at most, all are recoded before the border, and the bytes that a step ends
/// with or asks for are at most those at a border, as if nothing were recoded ahead.
#[test]
fn every_token_pays_a_little() {
    let layers = vec![layer(); LAYERS];
    let mut store = Store::new(options()).unwrap();
    let mut coder = Coder::new(&options());
    let (id, all) = (store.open().unwrap(), tokens(300));
    let mut model = Model::default();
    let far = layer().far_shape().block_bytes() as u64;
    let (mut most, mut planned, mut before) = (0, 0, 0);
    for (position, &token) in all.iter().enumerate() {
        let at = position as u64;
        planned = planned.max(
            kv_bytes(&layers, ZONES, KeptTokens::All, at) + reserve_bytes(&layers, ZONES, at, 1),
        );
        let step = store.begin(&[grow(&store, id, 1)]).unwrap();
        let ledger = store.ledger();
        most = most.max((ledger.kv_live + ledger.kv_ahead + ledger.kv_promised) as u64);
        store.rollback(step);
        feed(&mut store, id, &[token]).unwrap();
        model.feed(&[token]);
        let now = ahead(&store, id);
        if position % 32 == 0 {
            assert!(now <= 1, "{now} at {position}: those before have left");
            assert!(before == LAYERS || position < 96, "{before} at {position}");
        } else {
            let more = now - before;
            assert!(more <= 2, "{more} layers at once at {position}");
        }
        before = now;
        let ledger = store.ledger();
        let seen = kv_bytes(&layers, ZONES, KeptTokens::All, at + 1);
        assert_eq!(ledger.kv_live as u64, seen, "at {position}");
        assert_eq!(ledger.kv_ahead as u64, now as u64 * far, "at {position}");
        check_with(&store, &mut coder, id, &model);
    }
    assert_eq!(most, planned);
}

/// Blocks that have a far form, over all layers.
fn coded(store: &Store, id: SequenceId) -> usize {
    let entries = |layer| store.view(id, layer).unwrap().entries().to_vec();
    let entries = (0..LAYERS).flat_map(entries);
    entries.filter(|e| e.far.is_some()).count()
}

/// However long the prompt was, no token after it recodes more than two layers.
#[test]
fn a_prompt_leaves_no_more_than_its_share() {
    for prompt in 64..=160 {
        let mut store = Store::new(options()).unwrap();
        let (id, mut model) = (store.open().unwrap(), Model::default());
        feed(&mut store, id, &tokens(prompt)).unwrap();
        model.feed(&tokens(prompt));
        for i in 1..=70 {
            let before = coded(&store, id);
            feed(&mut store, id, &[7]).unwrap();
            model.feed(&[7]);
            let more = coded(&store, id) - before;
            assert!(more <= 2, "{more} layers {i} tokens after {prompt}");
        }
        check(&store, id, &model);
    }
}

/// The same with a few tokens at a time, wherever the border falls.
#[test]
fn a_few_tokens_at_a_time_share_it_too() {
    for few in [2, 3, 5, 8, 13] {
        let mut store = Store::new(options()).unwrap();
        let (id, mut model) = (store.open().unwrap(), Model::default());
        feed(&mut store, id, &tokens(100)).unwrap();
        model.feed(&tokens(100));
        for _ in 0..40 {
            let before = coded(&store, id);
            feed(&mut store, id, &tokens(few)).unwrap();
            model.feed(&tokens(few));
            let more = coded(&store, id) - before;
            assert!(more <= 2 * few + 1, "{more} layers with {few}");
        }
        check(&store, id, &model);
    }
}

/// Without room in the budget nothing is recoded ahead, and no token is refused that was not refused before.
#[test]
fn a_tight_budget_is_not_spent_ahead() {
    let mut store = Store::new(options()).unwrap();
    let mut model = Model::default();
    let id = store.open().unwrap();
    feed(&mut store, id, &tokens(100)).unwrap();
    let made = ahead(&store, id);
    store.set_budget(Some(store.ledger().total())).unwrap();
    model.feed(&tokens(100));
    for token in 101..=128 {
        feed(&mut store, id, &[token]).unwrap();
        model.feed(&[token]);
        assert_eq!(ahead(&store, id), made);
    }
    check(&store, id, &model);
    let error = store.begin(&[grow(&store, id, 1)]).map(drop).unwrap_err();
    assert!(matches!(error, CacheError::CannotFit(_)), "{error}");
}

/// Forks share blocks recoded ahead, rollback keeps them, and a truncated sequence makes them again.
#[test]
fn blocks_recoded_ahead_are_shared_kept_and_made_again() {
    let mut store = Store::new(options()).unwrap();
    let mut coder = Coder::new(&options());
    let a = store.open().unwrap();
    let mut first = Model::default();
    feed(&mut store, a, &tokens(100)).unwrap();
    first.feed(&tokens(100));
    for token in 1..=12 {
        feed(&mut store, a, &[token]).unwrap();
        first.feed(&[token]);
    }
    let (made, live) = (ahead(&store, a), store.ledger().total());
    assert!(made >= 12, "{made}");
    let b = store.fork(a).unwrap();
    let mut second = first.clone();
    let blocks = |store: &Store| (store.ledger().kv_live, store.ledger().kv_ahead);
    let held = blocks(&store);
    assert_eq!(ahead(&store, b), made);
    assert!(store.ledger().total() - live < 20_000, "lists alone");

    let mut step = store.begin(&[grow(&store, a, 1)]).unwrap();
    for layer in 0..LAYERS {
        write(&mut store, &mut step, a, layer, &[5]).unwrap();
        store.settle(&mut step, layer);
    }
    store.rollback(step);
    assert_eq!((ahead(&store, a), blocks(&store)), (made, held));

    for token in 1..=70 {
        feed(&mut store, a, &[token]).unwrap();
        first.feed(&[token]);
    }
    assert_eq!(ahead(&store, b), made);
    check_with(&store, &mut coder, a, &first);
    // Into the block whose far form is there.
    assert_eq!(store.oldest_restorable(b).unwrap(), 97);
    store.truncate(b, 97).unwrap();
    second.tokens.truncate(97);
    assert_eq!(ahead(&store, b), 0);
    for token in 200..=290 {
        feed(&mut store, b, &[token]).unwrap();
        second.feed(&[token]);
        check_with(&store, &mut coder, b, &second);
    }
    store.close(a).unwrap();
    store.close(b).unwrap();
    assert_eq!(blocks(&store), (0, 0));
}
