//! The store in small stories: steps, forks, budgets, zones, windows and eviction.

use crate::common;

use common::*;
use haversack_cache::policy::window::{WindowParams, plan};
use haversack_cache::{
    Account, CacheError, Codec, KvForm, LayerShape, PositionMode, SequenceGrowth, Store,
    StoreOptions, Zones,
};
use haversack_kernels::attention::KvView;
use haversack_kernels::format::kv::error_feedback::ErrorFeedback;

const SHAPE: LayerShape = LayerShape::plain(2, 16, KvForm::F16);

fn store_of(layers: Vec<LayerShape>, zones: Zones, budget_bytes: Option<usize>) -> Store {
    Store::new(StoreOptions {
        layers,
        zones,
        budget_bytes,
        ..StoreOptions::default()
    })
    .unwrap()
}

fn store() -> Store {
    store_of(vec![SHAPE; 2], Zones::default(), None)
}

fn model(tokens: &[u32]) -> Model {
    let mut model = Model::default();
    model.feed(tokens);
    model
}

fn count(n: u32) -> Vec<u32> {
    (1..=n).collect()
}

fn grow(store: &Store, id: haversack_cache::SequenceId, tokens: usize) -> SequenceGrowth {
    let position = store.stats(id).unwrap().position;
    SequenceGrowth {
        id,
        position,
        tokens,
    }
}

#[test]
fn a_layer_that_does_not_grow_is_named_and_undone() {
    let mut store = store();
    let id = store.open().unwrap();
    feed(&mut store, id, &[1, 2, 3]).unwrap();
    let before = store.ledger();
    let mut step = store.begin(&[grow(&store, id, 1)]).unwrap();
    write(&mut store, &mut step, id, 0, &[4]).unwrap();
    let error = store.commit(step).unwrap_err();
    assert_eq!(
        error,
        CacheError::Growth {
            layer: 1,
            expected: 1,
            found: 0
        }
    );
    check(&store, id, &model(&[1, 2, 3]));
    assert_eq!(store.ledger(), before);
}

/// The bug others shipped: a step that appends the whole sequence instead of the new token.
#[test]
fn double_accumulation_is_refused() {
    let mut store = store();
    let id = store.open().unwrap();
    feed(&mut store, id, &[1, 2, 3]).unwrap();
    let mut step = store.begin(&[grow(&store, id, 1)]).unwrap();
    let error = write(&mut store, &mut step, id, 0, &[1, 2, 3, 4]).unwrap_err();
    assert!(
        matches!(
            error,
            CacheError::Shape {
                layer: 0,
                rows: 1,
                ..
            }
        ),
        "{error}"
    );
    write(&mut store, &mut step, id, 0, &[4]).unwrap();
    let error = write(&mut store, &mut step, id, 0, &[4]).unwrap_err();
    assert_eq!(
        error,
        CacheError::Growth {
            layer: 0,
            expected: 1,
            found: 2
        }
    );
    store.rollback(step);
    check(&store, id, &model(&[1, 2, 3]));
}

#[test]
fn options_that_cannot_be_are_refused() {
    let refused = |options: StoreOptions| Store::new(options).err().unwrap();
    let base = || StoreOptions {
        layers: vec![SHAPE; 2],
        ..StoreOptions::default()
    };
    let huge = LayerShape::plain(usize::MAX, 64, KvForm::F16);
    let error = refused(StoreOptions {
        layers: vec![SHAPE, huge],
        ..base()
    });
    let head_dim = 64;
    assert_eq!(error, CacheError::Form { layer: 1, head_dim });
    let error = refused(StoreOptions {
        means: vec![None, Some(vec![0.0; 31])],
        ..base()
    });
    let (expected, found) = (32, 31);
    let layer = 1;
    assert_eq!(
        error,
        CacheError::Mean {
            layer,
            expected,
            found
        }
    );
    for carry in [
        ErrorFeedback::new(SHAPE.head_dim, &[]),
        ErrorFeedback::new(1, &[1.0; SHAPE.kv_heads]),
    ] {
        let error = refused(StoreOptions {
            error_feedback: vec![None, Some(carry)],
            ..base()
        });
        assert_eq!(error, CacheError::ErrorFeedback { layer });
    }
    let error = refused(StoreOptions {
        zones: Zones {
            sinks: 33,
            recent: 0,
        },
        ..base()
    });
    assert!(matches!(error, CacheError::TooMany { max: 32, .. }));
    let mut tiny = Store::new(StoreOptions {
        budget_bytes: Some(0),
        ..base()
    })
    .unwrap();
    let error = tiny.open().unwrap_err();
    assert!(matches!(error, CacheError::CannotFit(_)), "{error}");
    let staged = StoreOptions {
        layers: vec![codec_layer(1, 64, Codec::Int8, Codec::Int4)],
        budget_bytes: Some(1),
        ..base()
    };
    assert!(matches!(refused(staged), CacheError::CannotFit(_)));
}

/// The bug others shipped: positions that restart at 0.
#[test]
fn a_wrong_position_is_refused() {
    let mut store = store();
    let id = store.open().unwrap();
    feed(&mut store, id, &[1, 2, 3]).unwrap();
    let wrong = SequenceGrowth {
        id,
        position: 0,
        tokens: 1,
    };
    let error = store.begin(&[wrong]).err().unwrap();
    assert_eq!(
        error,
        CacheError::Position {
            expected: 3,
            found: 0
        }
    );
}

#[test]
fn the_budget_is_checked_before_anything_is_taken() {
    let block = SHAPE.near_shape().block_bytes();
    let mut store = store();
    let (a, b) = (store.open().unwrap(), store.open().unwrap());
    feed(&mut store, a, &[1; 64]).unwrap();
    feed(&mut store, b, &[2; 32]).unwrap();
    // Less than the two blocks that the next token of b takes, one per layer.
    let held = store.ledger().total();
    store.set_budget(Some(held + 2 * block - 1)).unwrap();
    let before = store.ledger();
    let error = feed(&mut store, b, &[3]).unwrap_err();
    let CacheError::CannotFit(short) = error else {
        panic!("{error}")
    };
    assert_eq!(short.short_by, 1);
    assert_eq!(store.ledger(), before);
    check(&store, a, &model(&[1; 64]));
    check(&store, b, &model(&[2; 32]));
    store.close(a).unwrap();
    feed(&mut store, b, &[3]).unwrap();
    check(&store, b, &model(&[&[2; 32][..], &[3]].concat()));
}

#[test]
fn other_accounts_share_the_budget() {
    let mut store = store();
    let id = store.open().unwrap();
    feed(&mut store, id, &[1]).unwrap();
    let held = store.ledger().total();
    assert_eq!(store.set_budget(Some(held - 1)).unwrap_err().short_by, 1);
    store.set_budget(Some(held + 100)).unwrap();
    store.charge(Account::Scratch, 60).unwrap();
    store.charge(Account::Side, 40).unwrap();
    assert_eq!(store.charge(Account::Side, 41).unwrap_err().short_by, 1);
    store.charge(Account::Scratch, 10).unwrap();
    store.charge(Account::Side, 90).unwrap();
    assert_eq!(store.ledger().total(), held + 100);
}

#[test]
fn a_fork_never_writes_into_the_other() {
    let mut store = store();
    let a = store.open().unwrap();
    feed(&mut store, a, &[1; 40]).unwrap();
    let b = store.fork(a).unwrap();
    let shared = store.ledger().kv_live;
    feed(&mut store, b, &[2]).unwrap();
    feed(&mut store, a, &[3]).unwrap();
    check(&store, a, &model(&[&[1; 40][..], &[3]].concat()));
    check(&store, b, &model(&[&[1; 40][..], &[2]].concat()));
    assert_eq!(
        store.ledger().kv_live,
        shared + 2 * SHAPE.near_shape().block_bytes(),
        "one private tail per layer"
    );
}

/// Blocks change form when they leave the recent zone; inside a step both forms are there, so that
/// early queries of a chunk see what single steps would have seen.
#[test]
fn a_chunk_shows_each_query_block_what_it_would_see_alone() {
    let zoned = codec_layer(2, 8, Codec::F32, Codec::F16);
    let zones = Zones {
        sinks: 0,
        recent: 64,
    };
    let mut store = store_of(vec![zoned; 2], zones, None);
    let id = store.open().unwrap();
    feed(&mut store, id, &count(70)).unwrap();
    check(&store, id, &model(&count(70)));
    let mut step = store.begin(&[grow(&store, id, 200)]).unwrap();
    let tokens: Vec<u32> = (71..=270).collect();
    write(&mut store, &mut step, id, 0, &tokens).unwrap();
    let view = store.view(id, 0).unwrap();
    assert_eq!(view.blocks(), 9);
    for query in 2..9u64 {
        for block in 0..=query {
            let shown = view.block(block as usize, query);
            let form = if query - block <= 2 {
                zoned.near
            } else {
                zoned.far
            };
            assert_eq!(shown.k.form, form.k, "block {block} from {query}");
        }
    }
    let unsettled = write(&mut store, &mut step, id, 1, &tokens).unwrap_err();
    assert_eq!(unsettled, CacheError::Unsettled { layer: 0 });
    let promised = store.ledger();
    store.settle(&mut step, 0);
    assert_eq!(store.ledger().total(), promised.total(), "back to the step");
    assert!(store.ledger().kv_live < promised.kv_live);
    write(&mut store, &mut step, id, 1, &tokens).unwrap();
    store.settle(&mut step, 1);
    store.commit(step).unwrap();
    check(&store, id, &model(&count(270)));
}

#[test]
fn a_rolled_back_chunk_restores_near_forms() {
    let zones = Zones {
        sinks: 0,
        recent: 32,
    };
    let layer = codec_layer(1, 8, Codec::F32, Codec::F16);
    let mut store = store_of(vec![layer; 2], zones, None);
    let a = store.open().unwrap();
    feed(&mut store, a, &count(50)).unwrap();
    let b = store.fork(a).unwrap();
    let before = store.ledger();
    for settle in [false, true] {
        let mut step = store
            .begin(&[grow(&store, a, 100), grow(&store, b, 7)])
            .unwrap();
        write(&mut store, &mut step, a, 0, &count(100)).unwrap();
        write(&mut store, &mut step, b, 0, &count(7)).unwrap();
        if settle {
            store.settle(&mut step, 0);
        }
        store.rollback(step);
        check(&store, a, &model(&count(50)));
        check(&store, b, &model(&count(50)));
        let after = store.ledger();
        assert_eq!((after.kv_live, after.kv_promised), (before.kv_live, 0));
    }
}

#[test]
fn a_sliding_layer_keeps_its_window() {
    let sliding = LayerShape {
        window: Some(40),
        ..SHAPE
    };
    let mut store = store_of(vec![SHAPE, sliding], Zones::default(), None);
    let id = store.open().unwrap();
    let mut twin = Model::default();
    for n in [10, 100, 1, 1, 33, 200] {
        feed(&mut store, id, &vec![n; n as usize]).unwrap();
        twin.feed(&vec![n; n as usize]);
        check(&store, id, &twin);
    }
    assert_eq!(store.view(id, 1).unwrap().blocks(), 2);
    let oldest = store.oldest_restorable(id).unwrap();
    let gone = store.truncate(id, oldest - 1).unwrap_err();
    assert_eq!(
        gone,
        CacheError::NotRestorable {
            asked: oldest - 1,
            oldest
        }
    );
    store.truncate(id, oldest).unwrap();
    twin.tokens.truncate(oldest as usize);
    check(&store, id, &twin);
}

#[test]
fn a_far_block_cannot_become_near_again() {
    let zones = Zones {
        sinks: 0,
        recent: 32,
    };
    let layer = codec_layer(1, 8, Codec::F32, Codec::F16);
    let mut store = store_of(vec![layer], zones, None);
    let id = store.open().unwrap();
    feed(&mut store, id, &count(64)).unwrap();
    store.truncate(id, 3).unwrap();
    check(&store, id, &model(&count(3)));
    feed(&mut store, id, &(4..=97).collect::<Vec<_>>()).unwrap();
    store.truncate(id, 97).unwrap();
    let gone = store.truncate(id, 96).unwrap_err();
    assert_eq!(
        gone,
        CacheError::NotRestorable {
            asked: 96,
            oldest: 97
        }
    );
    check(&store, id, &model(&count(97)));
    store.truncate(id, 0).unwrap();
    assert_eq!(store.ledger().kv_live, 0);
}

#[test]
fn eviction_leaves_anchors_and_window_and_closes_the_gap() {
    let mut store = store();
    let id = store.open().unwrap();
    let mut twin = Model::default();
    let params = WindowParams {
        anchors: 40,
        window: 64,
    };
    for at in 0..20u32 {
        feed(&mut store, id, &[at; 32]).unwrap();
        twin.feed(&[at; 32]);
        let plan = plan(&store.snapshot(id).unwrap(), &params);
        let applied = store.apply(id, &plan).unwrap();
        for gap in &plan.drop {
            twin.gone[gap.start as usize..gap.end as usize].fill(true);
        }
        check(&store, id, &twin);
        let stats = store.stats(id).unwrap();
        assert_eq!(stats.bytes as u64, plan.bytes_after);
        assert_eq!(stats.rows as u64, plan.rows_after);
        assert_eq!(
            plan.bytes_before - plan.bytes_after,
            applied.bytes_freed as u64
        );
        assert!(stats.rows <= 40 + 64 + 31, "{plan}");
    }
    assert_eq!(store.shifts(id), [20 * 32 - 64 - 40, 0]);
    let view = store.view(id, 0).unwrap();
    let segments: Vec<_> = (0..view.blocks())
        .map(|i| view.block(i, 19).segment)
        .collect();
    assert_eq!(segments, [0, 0, 1, 1]);
    store.set_positions(id, PositionMode::Original).unwrap();
    assert_eq!(store.shifts(id), [0]);
    let view = store.view(id, 0).unwrap();
    assert!((0..view.blocks()).all(|i| view.block(i, 19).segment == 0));
    // Cut back to where nothing was evicted since, and into the anchors.
    feed(&mut store, id, &[7; 5]).unwrap();
    store.truncate(id, 640).unwrap();
    check(&store, id, &twin);
    assert!(matches!(
        store.truncate(id, 639),
        Err(CacheError::NotRestorable { oldest: 640, .. })
    ));
    store.truncate(id, 38).unwrap();
    assert_eq!(store.shifts(id), [0]);
    feed(&mut store, id, &[9; 10]).unwrap();
    let mut short = model(&twin.tokens[..38]);
    short.feed(&[9; 10]);
    check(&store, id, &short);
}

#[test]
fn plans_that_leave_holes_or_are_old_are_refused() {
    let mut store = store();
    let id = store.open().unwrap();
    feed(&mut store, id, &count(96)).unwrap();
    let plan = plan(
        &store.snapshot(id).unwrap(),
        &WindowParams {
            anchors: 0,
            window: 32,
        },
    );
    assert_eq!((plan.drop[0].clone(), plan.drop.len()), (0..64, 1));
    let before = store.ledger();
    let bad: [&[(u64, u64)]; 5] = [
        &[(0, 63)],
        &[(0, 128)],
        &[(32, 32)],
        &[(32, 64), (0, 32)],
        &[(0, 64), (32, 96)],
    ];
    for drop in bad {
        let bad = haversack_cache::policy::EvictionPlan {
            drop: drop.iter().map(|&(from, to)| from..to).collect(),
            ..plan.clone()
        };
        let error = store.apply(id, &bad).unwrap_err();
        assert!(matches!(error, CacheError::BadPlan { .. }), "{error}");
    }
    feed(&mut store, id, &[97]).unwrap();
    let stale = store.apply(id, &plan).unwrap_err();
    assert!(matches!(stale, CacheError::StalePlan { .. }), "{stale}");
    store.truncate(id, 96).unwrap();
    assert_eq!(store.ledger().kv_live, before.kv_live);
    check(&store, id, &model(&count(96)));
    store.apply(id, &plan).unwrap();
    assert_eq!(store.shifts(id), [0], "nothing is left before the gap");
}
