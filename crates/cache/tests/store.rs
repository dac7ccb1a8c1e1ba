//! The store against a dumb twin: every sequence as a plain list of rows.

use haversack_cache::{CacheError, LayerShape, SequenceId, Store, StoreOptions};
use haversack_kernels::attention::{BLOCK_SLOTS, KvView, Precision};
use haversack_kernels::cpu::Table;
use proptest::prelude::*;

const LAYERS: usize = 2;
const SHAPE: LayerShape = LayerShape {
    kv_heads: 2,
    head_dim: 16,
    precision: Precision::F16,
};

fn store(budget_bytes: Option<usize>) -> Store {
    Store::new(StoreOptions {
        layers: vec![SHAPE; LAYERS],
        budget_bytes,
        kernels: Table::best(),
    })
}

/// A row whose values say which token and layer it is; exact in f16.
fn row(token: u32, layer: usize) -> Vec<f32> {
    (0..SHAPE.width())
        .map(|i| ((token * 7 + layer as u32 * 3 + i as u32) % 2048) as f32)
        .collect()
}

fn feed(store: &mut Store, id: SequenceId, tokens: &[u32]) -> Result<(), CacheError> {
    let position = store.stats(id)?.position;
    let mut step = store.begin(&[(id, position, tokens.len())])?;
    for layer in 0..LAYERS {
        let rows: Vec<f32> = tokens.iter().flat_map(|&t| row(t, layer)).collect();
        store.write(&mut step, id, layer, &rows, &rows)?;
    }
    store.commit(step)
}

/// Reads every row of a layer back, from V, which is stored row by row.
fn rows_of(store: &Store, id: SequenceId, layer: usize) -> Vec<Vec<f32>> {
    let view = store.view(id, layer).unwrap();
    let mut rows = Vec::new();
    for b in 0..view.blocks() {
        let block = view.block(b);
        assert_eq!(block.first_position, (b * BLOCK_SLOTS) as u64);
        for slot in 0..block.rows {
            let mut values = Vec::new();
            for head in 0..SHAPE.kv_heads {
                for dim in 0..SHAPE.head_dim {
                    let at = ((head * BLOCK_SLOTS + slot) * SHAPE.head_dim + dim) * 2;
                    let v = half::f16::from_le_bytes([block.v[at], block.v[at + 1]]);
                    let at = ((head * SHAPE.head_dim + dim) * BLOCK_SLOTS + slot) * 2;
                    let k = half::f16::from_le_bytes([block.k[at], block.k[at + 1]]);
                    assert_eq!(k, v, "the same row was written to both");
                    values.push(v.to_f32());
                }
            }
            rows.push(values);
        }
    }
    rows
}

fn assert_holds(store: &Store, id: SequenceId, tokens: &[u32]) {
    let stats = store.stats(id).unwrap();
    assert_eq!(
        (stats.position, stats.rows),
        (tokens.len() as u64, tokens.len())
    );
    for layer in 0..LAYERS {
        let expected: Vec<_> = tokens.iter().map(|&t| row(t, layer)).collect();
        assert_eq!(rows_of(store, id, layer), expected, "layer {layer}");
    }
}

#[derive(Clone, Debug)]
enum Op {
    Open,
    Feed(usize, Vec<u32>),
    Fork(usize),
    Truncate(usize, usize),
    Close(usize),
    Abandon(usize, usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => Just(Op::Open),
        6 => (0..8usize, prop::collection::vec(0..100_000u32, 1..80)).prop_map(|(s, t)| Op::Feed(s, t)),
        2 => (0..8usize).prop_map(Op::Fork),
        2 => (0..8usize, 0..120usize).prop_map(|(s, n)| Op::Truncate(s, n)),
        1 => (0..8usize).prop_map(Op::Close),
        1 => (0..8usize, 1..70usize).prop_map(|(s, n)| Op::Abandon(s, n)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Forks, cuts and abandoned steps in any order: each sequence holds exactly what it was fed,
    /// and in the end no block is lost.
    #[test]
    fn every_sequence_holds_what_it_was_fed(ops in prop::collection::vec(op(), 1..60)) {
        let mut store = store(None);
        let mut twin: Vec<(SequenceId, Vec<u32>)> = Vec::new();
        for op in ops {
            let pick = |i: usize| (!twin.is_empty()).then(|| i % twin.len().max(1));
            match op {
                Op::Open => twin.push((store.open(), Vec::new())),
                Op::Feed(i, tokens) => if let Some(i) = pick(i) {
                    feed(&mut store, twin[i].0, &tokens).unwrap();
                    twin[i].1.extend(tokens);
                },
                Op::Fork(i) => if let Some(i) = pick(i) {
                    let fork = store.fork(twin[i].0).unwrap();
                    let tokens = twin[i].1.clone();
                    twin.push((fork, tokens));
                },
                Op::Truncate(i, n) => if let Some(i) = pick(i) {
                    let n = n.min(twin[i].1.len());
                    store.truncate(twin[i].0, n as u64).unwrap();
                    twin[i].1.truncate(n);
                },
                Op::Close(i) => if let Some(i) = pick(i) {
                    let (id, _) = twin.remove(i);
                    store.close(id).unwrap();
                    prop_assert!(store.stats(id).is_err(), "a closed id is an error");
                },
                Op::Abandon(i, n) => if let Some(i) = pick(i) {
                    let (id, tokens) = &twin[i];
                    let mut step = store.begin(&[(*id, tokens.len() as u64, n)]).unwrap();
                    let rows = vec![9.0; n * SHAPE.width()];
                    store.write(&mut step, *id, 0, &rows, &rows).unwrap();
                    store.rollback(step);
                },
            }
            for (id, tokens) in &twin {
                assert_holds(&store, *id, tokens);
            }
        }
        for (id, _) in twin {
            store.close(id).unwrap();
        }
        prop_assert_eq!(store.bytes_live(), 0);
    }
}

#[test]
fn a_layer_that_does_not_grow_is_named_and_undone() {
    let mut store = store(None);
    let id = store.open();
    feed(&mut store, id, &[1, 2, 3]).unwrap();
    let mut step = store.begin(&[(id, 3, 1)]).unwrap();
    store
        .write(&mut step, id, 0, &row(4, 0), &row(4, 0))
        .unwrap();
    let error = store.commit(step).unwrap_err();
    assert_eq!(
        error,
        CacheError::Growth {
            layer: 1,
            expected: 1,
            found: 0
        }
    );
    assert_holds(&store, id, &[1, 2, 3]);
}

/// The bug others shipped: a step that appends the whole sequence instead of the new token.
#[test]
fn double_accumulation_is_refused() {
    let mut store = store(None);
    let id = store.open();
    feed(&mut store, id, &[1, 2, 3]).unwrap();
    let mut step = store.begin(&[(id, 3, 1)]).unwrap();
    let whole: Vec<f32> = [1, 2, 3, 4].iter().flat_map(|&t| row(t, 0)).collect();
    let error = store.write(&mut step, id, 0, &whole, &whole).unwrap_err();
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
    store
        .write(&mut step, id, 0, &row(4, 0), &row(4, 0))
        .unwrap();
    let error = store
        .write(&mut step, id, 0, &row(4, 0), &row(4, 0))
        .unwrap_err();
    assert_eq!(
        error,
        CacheError::Growth {
            layer: 0,
            expected: 1,
            found: 2
        }
    );
    store.rollback(step);
    assert_holds(&store, id, &[1, 2, 3]);
}

/// The bug others shipped: positions that restart at 0.
#[test]
fn a_wrong_position_is_refused() {
    let mut store = store(None);
    let id = store.open();
    feed(&mut store, id, &[1, 2, 3]).unwrap();
    let error = store.begin(&[(id, 0, 1)]).err().unwrap();
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
    let block = SHAPE.block_bytes();
    let mut store = store(Some(3 * LAYERS * block));
    let (a, b) = (store.open(), store.open());
    feed(&mut store, a, &[1; 64]).unwrap();
    feed(&mut store, b, &[2; 32]).unwrap();
    let error = feed(&mut store, b, &[3]).unwrap_err();
    let CacheError::CannotFit(short) = error else {
        panic!("{error}")
    };
    assert_eq!(short.short_by, LAYERS * block);
    assert_holds(&store, a, &[1; 64]);
    assert_holds(&store, b, &[2; 32]);
    store.close(a).unwrap();
    feed(&mut store, b, &[3]).unwrap();
}

#[test]
fn a_fork_never_writes_into_the_other() {
    let mut store = store(None);
    let a = store.open();
    feed(&mut store, a, &[1; 40]).unwrap();
    let b = store.fork(a).unwrap();
    let shared = store.bytes_live();
    feed(&mut store, b, &[2]).unwrap();
    feed(&mut store, a, &[3]).unwrap();
    assert_holds(&store, a, &[&[1; 40][..], &[3]].concat());
    assert_holds(&store, b, &[&[1; 40][..], &[2]].concat());
    assert_eq!(
        store.bytes_live(),
        shared + LAYERS * SHAPE.block_bytes(),
        "one private tail per layer"
    );
}
