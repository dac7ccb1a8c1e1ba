//! Evicting single rows, compared with a sequence of the same tokens that keeps everything.

use crate::common;

use common::*;
use haversack_cache::policy::count::{AttentionCounting, AttentionMemory};
use haversack_cache::{
    Annotation, CacheError, Codec, KvRow, LayerShape, SequenceId, StatsFormat, Store, StoreOptions,
    Zones,
};
use haversack_kernels::attention::{KvView, MassStatistic};
use haversack_kernels::format::kv::slots::copy_slot;
use std::collections::BTreeSet;

const ANCHORS: u64 = 40;

fn options(near: Codec, far: Codec) -> StoreOptions {
    let layer = codec_layer(2, 20, near, far);
    let sliding = LayerShape {
        window: Some(64),
        ..layer
    };
    StoreOptions {
        layers: vec![layer, sliding, layer],
        zones: Zones {
            sinks: 4,
            recent: 64,
        },
        row_stats: Some(StatsFormat::ATTENTION),
        ..StoreOptions::default()
    }
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| i * 7 + 3).collect()
}

/// A slot's bytes, wherever it stands: copied to the front of an empty block.
fn slot_bytes(store: &Store, id: SequenceId, layer: usize, entry: usize, slot: usize) -> Vec<u8> {
    let view = store.view(id, layer).unwrap();
    // Seen from afar.
    let block = view.block(entry, u64::MAX / 64);
    let bytes = [block.k.bytes, block.v.bytes].concat();
    let shape = store.layers()[layer].far_shape();
    let mut alone = vec![0; bytes.len()];
    copy_slot(shape, &bytes, slot, &mut alone, 0);
    alone
}

/// Everything that is left of a layer: each row is the row of its position, to the byte.
fn check(store: &Store, id: SequenceId, whole: (&Store, SequenceId), gone: &BTreeSet<u64>) {
    let position = store.position(id).unwrap();
    for layer in [0, 2] {
        let mut rows = Vec::new();
        store.evictable_rows(id, layer, ANCHORS, &mut rows).unwrap();
        let view = store.view(id, layer).unwrap();
        let entries = view.entries();
        let mut seen: BTreeSet<u64> = BTreeSet::new();
        let (first, last) = match (rows.first(), rows.last()) {
            (Some(a), Some(b)) => (a.entry as usize, b.entry as usize),
            _ => (0, 0),
        };
        for row in &rows {
            assert!(seen.insert(row.position), "twice");
            let (entry, slot) = ((row.position / 32) as usize, (row.position % 32) as usize);
            let found = slot_bytes(store, id, layer, row.entry as usize, row.slot.into());
            assert!(
                found == slot_bytes(whole.0, whole.1, layer, entry, slot),
                "{row:?}"
            );
        }
        for (i, entry) in entries.iter().enumerate() {
            if rows.is_empty() || i < first || i > last {
                seen.extend(entry.positions());
            } else if i < last {
                assert!(entry.rows == 32 || i + 1 == last || entries[i + 1].rows > 0);
            }
        }
        let left: BTreeSet<u64> = (0..position).filter(|p| !gone.contains(p)).collect();
        assert!(seen == left, "layer {layer}");
        assert_eq!(
            view.entries().iter().map(|e| e.rows).sum::<u32>() as usize,
            left.len()
        );
    }
    for pool in store.pool_stats() {
        assert_eq!(pool.live + pool.free, pool.total);
    }
}

#[test]
fn remaining_rows_keep_their_bytes() {
    for (near, far) in [
        (Codec::Int8, Codec::Int4),
        (Codec::Int8, Codec::Int3),
        (Codec::F16, Codec::F16),
    ] {
        let mut whole = Store::new(options(near, far)).unwrap();
        let mut store = Store::new(options(near, far)).unwrap();
        let (all, id) = (whole.open().unwrap(), store.open().unwrap());
        let tokens = tokens(900);
        let mut gone = BTreeSet::new();
        let (mut fed, mut dice) = (0, 12345u64);
        let mut fork = None;
        while fed < tokens.len() {
            let to = (fed + 32).min(tokens.len());
            feed(&mut whole, all, &tokens[fed..to]).unwrap();
            feed(&mut store, id, &tokens[fed..to]).unwrap();
            fed = to;
            let mut left = BTreeSet::new();
            for layer in [0, 2] {
                let mut rows: Vec<KvRow> = Vec::new();
                store.evictable_rows(id, layer, ANCHORS, &mut rows).unwrap();
                // The same positions in both layers, whatever the order of their rows.
                rows.sort_by_key(|row| row.position);
                let mut throw = dice;
                rows.retain(|_| {
                    throw = throw
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    (throw >> 60) < 2
                });
                left = rows.iter().map(|row| row.position).collect();
                assert_eq!(store.evict_rows(id, layer, ANCHORS, &rows), Ok(rows.len()));
            }
            dice = dice.wrapping_add(977);
            gone.extend(left);
            check(&store, id, (&whole, all), &gone);
            if fed == 512 {
                fork = Some((store.fork(id).unwrap(), gone.clone()));
            }
        }
        assert!(gone.len() > 300, "{}", gone.len());
        // A fork has what it had, although the blocks it shared were filled up with other rows.
        let (fork, then) = fork.unwrap();
        feed(&mut store, fork, &tokens[512..]).unwrap();
        check(&store, fork, (&whole, all), &then);
        for position in [1, 512, 899] {
            assert!(matches!(
                store.truncate(id, position),
                Err(CacheError::NotRestorable { .. })
            ));
        }
        store.truncate(id, 0).unwrap();
        store.close(fork).unwrap();
        store.close(id).unwrap();
        assert_eq!(store.ledger().kv_live, 0);
    }
}

#[test]
fn only_evictable_rows_are_evicted() {
    let mut store = Store::new(options(Codec::Int8, Codec::Int4)).unwrap();
    let id = store.open().unwrap();
    feed(&mut store, id, &tokens(256)).unwrap();
    let mut rows = Vec::new();
    store.evictable_rows(id, 0, ANCHORS, &mut rows).unwrap();
    // The anchors' blocks stay whole; blocks 5, 6 and 7 are recent or about to be far.
    let positions: Vec<u64> = rows.iter().map(|row| row.position).collect();
    assert_eq!(positions, (64..160).collect::<Vec<_>>());
    let live = store.ledger();
    for (entry, slot) in [(0, 0), (1, 31), (5, 0), (99, 0), (2, 32), (2, 255)] {
        let row = KvRow {
            entry,
            slot,
            ..rows[0]
        };
        let error = store
            .evict_rows(id, 0, ANCHORS, &[rows[3], row])
            .unwrap_err();
        assert!(
            matches!(error, CacheError::NotEvictable { layer: 0, .. }),
            "{error}"
        );
        assert_eq!(store.ledger(), live);
    }
    let twice = [rows[0], rows[0]];
    assert!(store.evict_rows(id, 0, ANCHORS, &twice).is_err());
    // The sliding layer has nothing to give.
    store.evictable_rows(id, 1, ANCHORS, &mut rows).unwrap();
    assert!(rows.is_empty());
    // All of them at once.
    store.evictable_rows(id, 0, ANCHORS, &mut rows).unwrap();
    assert_eq!(store.evict_rows(id, 0, ANCHORS, &rows), Ok(96));
    store.evictable_rows(id, 0, ANCHORS, &mut rows).unwrap();
    assert!(rows.is_empty());
    feed(&mut store, id, &tokens(300)[256..]).unwrap();
}

#[test]
fn mass_and_norms_follow_their_rows() {
    let squares = AttentionCounting::always(MassStatistic::Squares);
    let mut store = Store::new(StoreOptions {
        row_stats: Some(StatsFormat::of(&squares)),
        ..options(Codec::Int8, Codec::Int4)
    })
    .unwrap();
    let id = store.open().unwrap();
    feed(&mut store, id, &tokens(320)).unwrap();
    let blocks = store.view(id, 0).unwrap().blocks();
    // Two heads: each position gets three times its number.
    let mass: Vec<u64> = (0..2 * blocks * 32)
        .map(|i| ((i % (blocks * 32)) * (1 + i / (blocks * 32))) as u64)
        .collect();
    store
        .record_attention(id, 0, &squares, 0..320, &mass)
        .unwrap();
    let mut rows = Vec::new();
    store.evictable_rows(id, 0, ANCHORS, &mut rows).unwrap();
    let norms: Vec<f32> = rows.iter().map(|row| row.norm_sq).collect();
    assert!(norms.iter().any(|n| *n != norms[0]));
    let leave: Vec<KvRow> = rows.iter().step_by(3).copied().collect();
    let first = rows[0].position;
    store.evict_rows(id, 0, ANCHORS, &leave).unwrap();
    store.evictable_rows(id, 0, ANCHORS, &mut rows).unwrap();
    for row in &rows {
        assert_eq!(u64::from(row.mass), 3 * row.position);
        assert_eq!(row.norm_sq, norms[(row.position - first) as usize]);
    }
    // Counters saturate.
    let most = vec![u64::MAX; mass.len()];
    store
        .record_attention(id, 0, &squares, 320..324, &most)
        .unwrap();
    store.evictable_rows(id, 0, ANCHORS, &mut rows).unwrap();
    // 24 bits beside the norm.
    assert!(rows.iter().all(|row| row.mass == (1 << 24) - 1));
}

/// A made-up attention of the query at `position` to a row, in whole units of the counters, and how it
/// counts.
fn attention(position: u64, row: u64, head: u64) -> u64 {
    let mixed = (position * 31 + row * 17 + head * 7).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 40) % 40_000
}

/// Feeds tokens in chunks and records the attention of each query.
fn watched(counting: &AttentionCounting, tokens: u64, portion: u64) -> (Store, SequenceId) {
    let mut store = Store::new(options(Codec::Int8, Codec::Int4)).unwrap();
    let id = store.open().unwrap();
    let all: Vec<u32> = (0..tokens as u32).collect();
    let mut from = 0;
    while from < tokens {
        let to = (from + portion).min(from / 32 * 32 + 32).min(tokens);
        feed(&mut store, id, &all[from as usize..to as usize]).unwrap();
        let slots = store.view(id, 0).unwrap().blocks() as u64 * 32;
        let mass: Vec<u64> = (0..2 * slots)
            .map(|i| {
                let (head, row) = (i / slots, i % slots);
                let counted = (from..to).filter(|p| (p + 1) % counting.every == 0);
                let counted = counted.filter(|p| row / 32 < p / 32);
                let of = |p: u64| match counting.count {
                    MassStatistic::Weighted(weights) => {
                        (attention(p, row, head) * u64::from(weights[p as usize % 32])) >> 15
                    }
                    _ => attention(p, row, head),
                };
                match counting.count {
                    MassStatistic::Max => counted.map(of).max().unwrap_or(0),
                    _ => counted.map(of).sum(),
                }
            })
            .collect();
        store
            .record_attention(id, 0, counting, from..to, &mass)
            .unwrap();
        from = to;
    }
    (store, id)
}

fn masses(store: &Store, id: SequenceId) -> Vec<(u64, u32)> {
    let mut rows = Vec::new();
    store.evictable_rows(id, 0, ANCHORS, &mut rows).unwrap();
    rows.iter().map(|row| (row.position, row.mass)).collect()
}

/// I = α a + (1 − α) I for each query, as written, in f64; however tokens were portioned.
#[test]
fn a_moving_average_is_exact() {
    for memory in [
        AttentionMemory::Alpha(0.3),
        AttentionMemory::Alpha(0.02),
        AttentionMemory::HalfLife(32.0),
        AttentionMemory::HalfLife(300.0),
    ] {
        let counting = memory.counting();
        let kept = match memory {
            AttentionMemory::Alpha(alpha) => 1.0 - f64::from(alpha),
            AttentionMemory::HalfLife(queries) => 0.5f64.powf(1.0 / f64::from(queries)),
        };
        let (store, id) = watched(&counting, 640, 32);
        let rows = masses(&store, id);
        assert!(rows.len() > 400);
        let MassStatistic::Weighted(weights) = counting.count else {
            unreachable!()
        };
        for &(row, mass) in &rows {
            let mut average = 0.0;
            for p in (row / 32 * 32 + 32)..640 {
                let counts = (p + 1) % counting.every == 0;
                let a = attention(p, row, 0) + attention(p, row, 1);
                let a = if counts { a as f64 } else { 0.0 };
                average = (1.0 - kept) * a + kept * average;
            }
            // In units of the newest weight.
            let ideal = average / (1.0 - kept) * f64::from(weights[31]) / 32768.0;
            let error = (f64::from(mass) - ideal).abs();
            // A unit for each query that counts, until it is forgotten, and the rounding of weights.
            let most = ideal * 0.01 + 2.0 * 64.0_f64.max(2.0 / (1.0 - kept));
            assert!(error < most, "{memory:?} {row}: {mass} {ideal}");
        }
        for portion in [1, 5, 31] {
            let (other, its) = watched(&counting, 640, portion);
            assert!(masses(&other, its) == rows, "{memory:?} by {portion}");
            assert_eq!(
                other.layer_view(its, 0, ANCHORS).unwrap().full_mass,
                store.layer_view(id, 0, ANCHORS).unwrap().full_mass
            );
        }
    }
}

#[test]
fn last_block_counting_counts_the_last_block() {
    let (store, id) = watched(&AttentionCounting::LAST_BLOCK, 640, 7);
    for (row, mass) in masses(&store, id) {
        let last = (608..640).map(|p| attention(p, row, 0) + attention(p, row, 1));
        assert_eq!(u64::from(mass), last.sum::<u64>());
    }
    let (store, id) = watched(&AttentionCounting::always(MassStatistic::Max), 640, 7);
    for (row, mass) in masses(&store, id) {
        let seen = (row / 32 * 32 + 32..640).filter(|p| (p + 1) % 4 == 0);
        let most = seen.map(|p| attention(p, row, 0).max(attention(p, row, 1)));
        assert_eq!(u64::from(mass), most.max().unwrap_or(0));
    }
}

/// Attention that is the same for all rows but the sinks is the uniform share, whatever the sinks got.
#[test]
fn shares_leave_the_sinks_out() {
    for counting in [
        AttentionMemory::Alpha(0.3).counting(),
        AttentionMemory::HalfLife(64.0).counting(),
        AttentionCounting::always(MassStatistic::Sum),
    ] {
        let mut store = Store::new(options(Codec::Int8, Codec::Int4)).unwrap();
        let id = store.open().unwrap();
        for from in (0..640u64).step_by(32) {
            feed(
                &mut store,
                id,
                &tokens(640)[from as usize..from as usize + 32],
            )
            .unwrap();
            let rows = from + 32;
            let slots = store.view(id, 0).unwrap().blocks() as u64 * 32;
            let whole = counting.count.whole(from, 32, counting.every);
            // Half to four sinks, half to the others.
            let of = |row: u64| match row {
                _ if row / 32 >= from / 32 => 0,
                0..4 => whole / 8,
                _ => whole / 2 / (rows - 4),
            };
            let mass: Vec<u64> = (0..2 * slots).map(|i| of(i % slots)).collect();
            store
                .record_attention(id, 0, &counting, from..rows, &mass)
                .unwrap();
        }
        let view = store.layer_view(id, 0, ANCHORS).unwrap();
        assert_eq!(
            (view.rows, view.non_sink_rows, view.position),
            (640, 636, 640)
        );
        assert_eq!(view.evictable, 64..544);
        let mut rows = Vec::new();
        store.evictable_rows(id, 0, ANCHORS, &mut rows).unwrap();
        if counting.decay.is_some() {
            for row in &rows[..64] {
                let share = view.relative(row.mass, view.non_sink_rows);
                assert!((share - 1.0).abs() < 0.2, "{counting:?} {share}");
            }
        }
    }
}

#[test]
fn steps_across_a_border_are_refused() {
    let counting = AttentionMemory::default().counting();
    let (mut store, id) = watched(&counting, 640, 32);
    let before = masses(&store, id);
    let error = store
        .record_attention(id, 0, &counting, 650..680, &[])
        .unwrap_err();
    assert_eq!(error, CacheError::Unaligned { from: 650, to: 679 });
    assert!(error.to_string().contains("650 to 679"));
    assert_eq!(masses(&store, id), before);
    // Long after, nothing is left.
    store
        .record_attention(id, 0, &counting, u64::MAX - 31..u64::MAX, &[])
        .unwrap();
    assert!(masses(&store, id).iter().all(|(_, mass)| *mass == 0));
}

#[test]
fn protected_rows_stay() {
    let mut store = Store::new(StoreOptions {
        budget_bytes: Some(4 << 20),
        ..options(Codec::Int8, Codec::Int4)
    })
    .unwrap();
    let id = store.open().unwrap();
    feed(&mut store, id, &tokens(256)).unwrap();
    let before = store.ledger();
    store.annotate(id, 100..200, true).unwrap();
    store.annotate(id, 120..130, false).unwrap();
    let noted = store.ledger();
    assert!(noted.tables > before.tables && noted.peak >= noted.total());
    let mut rows = Vec::new();
    store.evictable_rows(id, 0, ANCHORS, &mut rows).unwrap();
    for row in &rows {
        let stays = (100..200).contains(&row.position) && !(120..130).contains(&row.position);
        assert_eq!(row.protected, stays, "{row:?}");
    }
    let (stay, leave): (Vec<KvRow>, Vec<KvRow>) = rows.iter().partition(|row| row.protected);
    for row in &stay {
        let said = KvRow {
            protected: false,
            ..*row
        };
        let error = store
            .evict_rows(id, 0, ANCHORS, &[leave[0], said])
            .unwrap_err();
        let position = row.position;
        assert_eq!(error, CacheError::NotEvictable { layer: 0, position });
    }
    assert_eq!(store.evict_rows(id, 0, ANCHORS, &leave), Ok(leave.len()));
    // Flags follow their rows.
    store.evictable_rows(id, 0, ANCHORS, &mut rows).unwrap();
    assert!(rows.len() == stay.len() && rows.iter().all(|row| row.protected));
    // A fork has its own.
    let fork = store.fork(id).unwrap();
    assert_eq!(store.annotations(fork), store.annotations(id));
    store.annotate(fork, 0..300, false).unwrap();
    assert_eq!(store.annotations(fork).unwrap().len(), 1);
    let spans = store.annotations(id).unwrap();
    assert_eq!(spans.len(), 3);
    let last = Annotation {
        start: 130,
        end: 200,
        protected: true,
    };
    assert_eq!(spans[2], last);
    feed(&mut store, fork, &tokens(300)[256..]).unwrap();
    store.truncate(fork, 295).unwrap();
    assert_eq!(store.annotations(fork).unwrap()[0].end, 295);
    for (start, end) in [(5, 5), (9, 5)] {
        let error = store.annotate(id, start..end, true).unwrap_err();
        assert_eq!(error, CacheError::BadSpan { start, end });
    }
    store.close(fork).unwrap();
    store.close(id).unwrap();
}

/// Annotations are limited in number and by the budget.
#[test]
fn annotations_are_bounded() {
    let mut store = Store::new(options(Codec::Int8, Codec::Int4)).unwrap();
    let id = store.open().unwrap();
    let mut made = 0;
    let error = loop {
        match store.annotate(id, 2 * made..2 * made + 1, false) {
            Ok(()) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(made, 4095);
    assert!(matches!(error, CacheError::TooMany { .. }), "{error}");
    store.truncate(id, 0).unwrap();
    let total = store.ledger().total();
    store.set_budget(Some(total)).unwrap();
    let second = store.open();
    assert!(second.is_err(), "no room at all");
    let mut tight = Store::new(options(Codec::Int8, Codec::Int4)).unwrap();
    let id = tight.open().unwrap();
    let total = tight.ledger().total();
    tight.set_budget(Some(total + 100)).unwrap();
    let error = tight.annotate(id, 0..5, true).unwrap_err();
    assert!(matches!(error, CacheError::CannotFit(_)), "{error}");
    assert!(tight.annotations(id).unwrap().is_empty());
    assert_eq!(tight.ledger().total(), total);
}

/// Evicts three whole blocks at the front of a table that a fork shares: the remaining rows move into blocks that have
/// lost all of their own, and those are copied first like any other.
#[test]
fn whole_blocks_of_a_shared_table_are_evicted() {
    let mut whole = Store::new(options(Codec::Int8, Codec::Int4)).unwrap();
    let mut store = Store::new(options(Codec::Int8, Codec::Int4)).unwrap();
    let (all, id) = (whole.open().unwrap(), store.open().unwrap());
    feed(&mut whole, all, &tokens(512)).unwrap();
    feed(&mut store, id, &tokens(512)).unwrap();
    let fork = store.fork(id).unwrap();
    let gone: BTreeSet<u64> = (64..165).collect();
    for layer in [0, 2] {
        let mut rows = Vec::new();
        store.evictable_rows(id, layer, ANCHORS, &mut rows).unwrap();
        rows.retain(|row| gone.contains(&row.position));
        assert_eq!(store.evict_rows(id, layer, ANCHORS, &rows), Ok(101));
    }
    check(&store, id, (&whole, all), &gone);
    check(&store, fork, (&whole, all), &BTreeSet::new());
}

/// Rows are copied out and written back changed; a fork keeps its own.
#[test]
fn rows_are_copied_and_replaced() {
    for (near, far) in [(Codec::Int8, Codec::Int4), (Codec::F16, Codec::F16)] {
        let mut store = Store::new(options(near, far)).unwrap();
        let id = store.open().unwrap();
        feed(&mut store, id, &tokens(400)).unwrap();
        let mut rows = Vec::new();
        store.evictable_rows(id, 0, ANCHORS, &mut rows).unwrap();
        let rows: Vec<KvRow> = rows.into_iter().step_by(5).collect();
        let shape = store.layers()[0].final_shape();
        let mut blocks = vec![0; rows.len().div_ceil(32) * shape.block_bytes()];
        store.copy_rows(id, 0, &rows, &mut blocks).unwrap();
        let before: Vec<Vec<u8>> = rows
            .iter()
            .map(|row| slot_bytes(&store, id, 0, row.entry as usize, row.slot.into()))
            .collect();
        let alone = |blocks: &[u8], i: usize| {
            let mut alone = vec![0; shape.block_bytes()];
            let block = &blocks[i / 32 * shape.block_bytes()..][..shape.block_bytes()];
            copy_slot(shape, block, i % 32, &mut alone, 0);
            alone
        };
        for (i, before) in before.iter().enumerate() {
            assert!(alone(&blocks, i) == *before);
        }
        let fork = store.fork(id).unwrap();
        let turned: Vec<KvRow> = rows.iter().rev().copied().collect();
        store.replace_rows(id, 0, &turned, &blocks).unwrap();
        let mut after = blocks.clone();
        store.copy_rows(id, 0, &turned, &mut after).unwrap();
        assert!((0..rows.len()).all(|i| alone(&after, i) == before[i]));
        store.copy_rows(fork, 0, &rows, &mut after).unwrap();
        assert!((0..rows.len()).all(|i| alone(&after, i) == before[i]));
        // What is not there, or has no room, is refused.
        let recent = KvRow {
            entry: 12,
            ..rows[0]
        };
        let nowhere = KvRow {
            entry: 99,
            ..rows[0]
        };
        for row in [
            nowhere,
            KvRow {
                slot: 99,
                ..rows[0]
            },
            recent,
        ] {
            let found = store.copy_rows(id, 0, &[row], &mut after);
            let is_near = row.entry == 12 && !store.layers()[0].zoned();
            assert_eq!(found.is_ok(), is_near, "{row:?}");
            assert_eq!(store.replace_rows(id, 0, &[row], &after).is_ok(), is_near);
        }
        assert!(store.copy_rows(id, 0, &rows, &mut after[1..]).is_err());
        store.close(id).unwrap();
        store.close(fork).unwrap();
        assert_eq!(store.ledger().kv_live, 0);
    }
}
