//! Hidden rows: attention sees exactly the positions of a plain list, whatever was appended, hidden, shown, dropped,
//! evicted, truncated or forked before.

#![expect(clippy::single_range_in_vec_init, reason = "lists of one range")]

use crate::common;

use common::{codec_layer, feed, write};
use haversack_cache::policy::EvictionPlan;
use haversack_cache::{
    CacheError, Codec, KvForm, LayerShape, PositionMode, SequenceGrowth, SequenceId, StatsFormat,
    Store, StoreOptions, TokenRun, TokenState, Zone, ZoneBytes, Zones,
};
use haversack_kernels::attention::KvView;
use std::ops::Range;

/// A layer of one form, one of two, one with a window of its own.
fn options() -> StoreOptions {
    let plain = LayerShape::plain(1, 8, KvForm::F16);
    StoreOptions {
        layers: vec![
            plain,
            codec_layer(1, 8, Codec::Int8, Codec::Int4Plain),
            LayerShape {
                window: Some(100),
                ..plain
            },
        ],
        zones: Zones {
            recent: 40,
            sinks: 3,
        },
        slab_bytes: Some(4096),
        ..StoreOptions::default()
    }
}

/// Reference model: the state of each position.
#[derive(Clone, Default)]
struct Twin {
    compact: bool,
    /// (position)
    hidden: Vec<bool>,
    gone: Vec<bool>,
}

impl Twin {
    fn position(&self) -> usize {
        self.hidden.len()
    }

    fn seen(&self, position: usize) -> bool {
        !self.hidden[position] && !self.gone[position]
    }

    fn append(&mut self, tokens: usize) {
        let len = self.position() + tokens;
        self.hidden.resize(len, false);
        self.gone.resize(len, false);
    }

    fn truncate(&mut self, position: usize) {
        self.hidden.truncate(position);
        self.gone.truncate(position);
    }

    fn hide(&mut self, ranges: &[Range<u64>]) {
        for (position, hidden) in self.hidden.iter_mut().enumerate() {
            *hidden = ranges.iter().any(|r| r.contains(&(position as u64)));
        }
    }

    /// Blocks of which all that is there is hidden and in the range, before the last ones. Rows that left.
    fn drop_hidden(&mut self, range: &Range<u64>, recent_blocks: usize) -> usize {
        let last = self.position().saturating_sub(1) / 32;
        let mut rows = 0;
        for block in 0..last.saturating_sub(recent_blocks) {
            let there = (32 * block..32 * block + 32).filter(|&p| !self.gone[p]);
            let there: Vec<usize> = there.collect();
            let leaves = |&p: &usize| self.hidden[p] && range.contains(&(p as u64));
            if there.iter().all(leaves) {
                rows += there.len();
                there.iter().for_each(|&p| self.gone[p] = true);
            }
        }
        rows
    }

    /// How far back the query stands for each row: by all gaps behind it that no block has rows on both sides of.
    fn shifts(&self) -> Vec<u64> {
        let mut shifts = vec![0; self.position()];
        let (mut shift, mut behind) = (0, self.position());
        for row in (0..self.position()).rev().filter(|&p| self.seen(p)) {
            if row / 32 != behind / 32 {
                shift += (behind - row - 1) as u64;
            }
            shifts[row] = if self.compact { shift } else { 0 };
            behind = row;
        }
        shifts
    }
}

/// What the next query sees of a layer: positions, and how far back it stands for each.
fn attended(store: &Store, id: SequenceId, layer: usize) -> Vec<(usize, u64)> {
    let view = store.view(id, layer).unwrap();
    let position = store.position(id).unwrap();
    let window = store.layers()[layer].window;
    let mut seen = Vec::new();
    let mut next = 0;
    for i in 0..view.spans() {
        let span = view.span(i);
        assert!(span.start >= next && (1..=8).contains(&span.len()));
        next = span.end;
        let shown = |i: usize| view.entries()[i].is_shown();
        assert!(shown(span.start) && shown(span.end - 1), "spans are shown");
        for i in span {
            let block = view.block(i, position / 32);
            for slot in (0..block.rows).filter(|slot| block.hidden >> slot & 1 == 0) {
                let at = block.first_position + slot as u64;
                if window.is_none_or(|w| at + w > position) {
                    seen.push((at as usize, store.shifts(id)[block.segment]));
                }
            }
        }
    }
    seen
}

fn check(store: &Store, id: SequenceId, twin: &Twin) {
    let position = twin.position();
    assert_eq!(store.position(id).unwrap(), position as u64);
    let shifts = twin.shifts();
    for (layer, shape) in store.layers().iter().enumerate() {
        let in_window = |p: usize| shape.window.is_none_or(|w| p as u64 + w > position as u64);
        let seen = (0..position).filter(|&p| twin.seen(p) && in_window(p));
        let expected: Vec<(usize, u64)> = seen.map(|p| (p, shifts[p])).collect();
        assert_eq!(attended(store, id, layer), expected, "layer {layer}");
    }
    let hidden = store.hidden(id);
    let in_hidden = |p: usize| hidden.iter().any(|r| r.contains(&(p as u64)));
    assert!((0..position).all(|p| in_hidden(p) == twin.hidden[p]));
}

/// What is shown of each token is what is true of it.
fn check_runs(store: &Store, id: SequenceId, twin: &Twin) {
    let position = twin.position();
    let last = position.saturating_sub(1) as u64 / 32;
    let zones = store.zones();
    for (layer, shape) in store.layers().iter().enumerate() {
        let runs = store.token_runs(id, layer).unwrap();
        assert!(runs.windows(2).all(|two| two[0].state != two[1].state));
        let one = |run: &TokenRun| vec![run.state; run.tokens as usize];
        let spots: Vec<TokenState> = runs.iter().flat_map(one).collect();
        assert_eq!(spots.len(), position, "layer {layer}");
        for (p, spot) in spots.into_iter().enumerate() {
            let in_window = shape.window.is_none_or(|w| p as u64 + w > position as u64);
            let is_recent = shape.zoned() && p as u64 / 32 + zones.recent_blocks() >= last;
            let held = match is_recent {
                _ if p < zones.sinks && shape.sink_bytes(zones) > 0 => Zone::Sinks,
                true => Zone::Recent,
                false => Zone::Rest,
            };
            let fits = match spot {
                TokenState::Held(zone) => twin.seen(p) && zone == held,
                TokenState::Hidden => twin.hidden[p] && !twin.gone[p],
                TokenState::Passed => !in_window,
                TokenState::Missing => twin.gone[p],
            };
            assert!(fits, "layer {layer}, token {p} of {position}: {spot:?}");
            assert!(!twin.seen(p) || !in_window || matches!(spot, TokenState::Held(_)));
        }
    }
}

/// Every byte of blocks is in one zone.
fn check_zones(store: &Store) {
    let (zones, ledger) = (store.zone_bytes(), store.ledger());
    let sum = |of: fn(&ZoneBytes) -> usize| zones.iter().map(of).sum::<usize>();
    assert_eq!(sum(|z| z.bytes), ledger.kv_live);
    assert_eq!(sum(|z| z.file_bytes), ledger.kv_file);
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1);
        ((self.0 >> 33) % n.max(1) as u64) as usize
    }

    /// Some ranges below `end`; some touch.
    fn ranges(&mut self, end: usize) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        let most = [8, 50, 200][self.below(3)];
        let mut at = self.below(2) * self.below(most);
        while at < end && ranges.len() < 12 {
            let stop = (at + 1 + self.below(most)).min(end);
            ranges.push(at as u64..stop as u64);
            at = stop + self.below(most);
        }
        ranges
    }

    fn range(&mut self, end: usize) -> Range<u64> {
        let (a, b) = (self.below(end + 1), self.below(end + 40));
        a.min(b) as u64..a.max(b) as u64
    }
}

#[test]
fn attended_positions_are_those_of_a_list() {
    converse(options(), 24_000);
    // Whatever is still there can be cut back to.
    let layers = vec![LayerShape::plain(1, 8, KvForm::F16)];
    converse(
        StoreOptions {
            layers,
            ..options()
        },
        12_000,
    );
}

/// Random steps of a few sequences, each checked.
fn converse(options: StoreOptions, steps: usize) {
    let mut store = Store::new(options).unwrap();
    let empty = store.ledger().tables;
    let recent_blocks = store.zones().recent_blocks() as usize;
    let mut random = Random(7);
    let mut all: Vec<(SequenceId, Twin)> = Vec::new();
    // What was done, and had an effect.
    let mut done = [0; 8];
    for step in 0..steps {
        if all.is_empty() {
            let twin = Twin {
                compact: step % 2 == 0,
                ..Twin::default()
            };
            let id = store.open().unwrap();
            let to = match twin.compact {
                true => PositionMode::Compact,
                false => PositionMode::Original,
            };
            store.set_positions(id, to).unwrap();
            all.push((id, twin));
        }
        let (i, count) = (random.below(all.len()), all.len());
        let (id, twin) = &mut all[i];
        let (id, position) = (*id, twin.position());
        match random.below(20) {
            0..7 => {
                let tokens: Vec<u32> = vec![step as u32; 1 + random.below(24)];
                feed(&mut store, id, &tokens).unwrap();
                twin.append(tokens.len());
                done[0] += 1;
            }
            7 => roll_back(&mut store, id, 1 + random.below(70)),
            8..12 => {
                let ranges = random.ranges(position);
                store.hide(id, &ranges).unwrap();
                twin.hide(&ranges);
                done[1] += usize::from(!ranges.is_empty());
            }
            12 => {
                store.hide(id, &[]).unwrap();
                done[2] += usize::from(twin.hidden.iter().any(|h| *h));
                twin.hide(&[]);
            }
            13..16 => {
                let range = random.range(position);
                let applied = store.drop_hidden(id, range.clone()).unwrap();
                let rows = twin.drop_hidden(&range, recent_blocks);
                assert_eq!(applied.rows, rows);
                done[3] += usize::from(rows > 0);
            }
            16 => {
                let mut gap = random.range(position);
                gap.end = gap.end / 32 * 32;
                let snapshot = store.snapshot(id).unwrap();
                let plan = EvictionPlan::without(&snapshot, gap.clone());
                if plan.drop.iter().all(|gap| gap.end <= position as u64) {
                    let rows = store.apply(id, &plan).unwrap().rows;
                    for p in plan.drop.iter().cloned().flatten() {
                        twin.gone[p as usize] = true;
                    }
                    done[4] += usize::from(rows > 0);
                }
            }
            17 => {
                let oldest = store.oldest_restorable(id).unwrap() as usize;
                let to = match random.below(3) {
                    0 => random.below(position + 1),
                    _ => oldest + random.below(position - oldest + 1),
                };
                match store.truncate(id, to as u64) {
                    Ok(()) => {
                        twin.truncate(to);
                        done[5] += usize::from(to < position);
                    }
                    Err(CacheError::NotRestorable { .. }) => assert!(to < oldest),
                    Err(error) => panic!("{error}"),
                }
            }
            18 if count < 4 => {
                let (id, twin) = (store.fork(id).unwrap(), twin.clone());
                all.push((id, twin));
                done[6] += 1;
            }
            19 if position > 500 => {
                store.close(id).unwrap();
                all.swap_remove(i);
                done[7] += 1;
                continue;
            }
            _ => {
                store.compact_below(25).unwrap();
            }
        }
        let (id, twin) = &all[i];
        check(&store, *id, twin);
        if step % 16 == 0 {
            all.iter().for_each(|(id, twin)| check(&store, *id, twin));
            all.iter()
                .for_each(|(id, twin)| check_runs(&store, *id, twin));
            check_zones(&store);
        }
    }
    assert!(done.iter().all(|&n| n > 50), "{done:?}");
    for (id, _) in all {
        store.close(id).unwrap();
        assert!(store.hidden(id).is_empty());
    }
    assert_eq!(store.ledger().kv_live, 0);
    // Lists of pools and slots of sequences stay; nothing that a sequence had.
    let left = store.ledger().tables;
    assert!(left < empty + 64 * 1024, "{left} of {empty}");
}

/// A step that does not happen, and hidden rows that it found.
fn roll_back(store: &mut Store, id: SequenceId, tokens: usize) {
    let position = store.position(id).unwrap();
    let mut step = store
        .begin(&[SequenceGrowth {
            id,
            position,
            tokens,
        }])
        .unwrap();
    let busy = |result| assert!(matches!(result, Err(CacheError::Busy { .. })));
    busy(store.hide(id, &[]));
    busy(store.drop_hidden(id, 0..position).map(|_| ()));
    for layer in 0..store.layers().len().min(2) {
        write(store, &mut step, id, layer, &vec![5; tokens]).unwrap();
        store.settle(&mut step, layer);
    }
    store.rollback(step);
}

/// What is refused changes nothing, and says why.
#[test]
fn refused_lists_change_nothing() {
    let mut store = Store::new(options()).unwrap();
    let id = store.open().unwrap();
    feed(&mut store, id, &[1; 100]).unwrap();
    store.hide(id, &[10..70, 70..71]).unwrap();
    let before: Vec<_> = (0..3).map(|layer| attended(&store, id, layer)).collect();
    // Empty, backwards, out of order, overlapping, beyond the end.
    let backwards = Range { start: 9, end: 8 };
    let bad: [&[Range<u64>]; 6] = [
        &[5..5],
        &[backwards],
        &[50..60, 20..30],
        &[20..30, 29..31],
        &[99..101],
        &[100..u64::MAX],
    ];
    for bad in bad {
        let error = store.hide(id, bad).unwrap_err();
        let last = bad.last().unwrap();
        let expected = CacheError::BadHidden {
            start: last.start,
            end: last.end,
            position: 100,
        };
        assert_eq!(error, expected);
        assert_eq!(store.hidden(id), [10..70, 70..71]);
        let after: Vec<_> = (0..3).map(|layer| attended(&store, id, layer)).collect();
        assert_eq!(before, after);
    }
    store.hide(id, &[0..100]).unwrap();
    assert!(attended(&store, id, 0).is_empty());
    store.close(id).unwrap();
    assert!(matches!(
        store.hide(id, &[]),
        Err(CacheError::Closed { .. })
    ));

    let mut noted = Store::new(StoreOptions {
        row_stats: Some(StatsFormat::ATTENTION),
        ..options()
    })
    .unwrap();
    let id = noted.open().unwrap();
    feed(&mut noted, id, &[1; 100]).unwrap();
    assert_eq!(noted.hide(id, &[]), Ok(()));
    let error = noted.hide(id, &[1..2]).unwrap_err();
    assert_eq!(error, CacheError::HasRowStats { index: 0 });
}

/// Room for the list is within the budget, and is there before anything changes.
#[test]
fn lists_stay_within_the_budget() {
    let mut store = Store::new(options()).unwrap();
    let id = store.open().unwrap();
    feed(&mut store, id, &[1; 1000]).unwrap();
    store.hide(id, &[3..4, 8..9]).unwrap();
    let total = store.ledger().total();
    store.set_budget(Some(total + 1000)).unwrap();
    let many: Vec<Range<u64>> = (0..500).map(|i| 2 * i..2 * i + 1).collect();
    let refused = store.hide(id, &many).unwrap_err();
    assert!(matches!(refused, CacheError::CannotFit(_)), "{refused}");
    assert_eq!(store.hidden(id), [3..4, 8..9]);
    assert_eq!(store.ledger().total(), total);
    store.hide(id, &many[..20]).unwrap();
    assert_eq!(attended(&store, id, 0).len(), 980);
    assert!(store.ledger().total() > total);
    // A copy has its own.
    let fork = {
        store.set_budget(None).unwrap();
        store.fork(id).unwrap()
    };
    store.hide(id, &[]).unwrap();
    assert_eq!(store.hidden(fork), &many[..20]);
    assert_eq!(attended(&store, fork, 0).len(), 980);
    assert_eq!(attended(&store, id, 0).len(), 1000);
    let runs = |store: &Store| store.view(id, 0).unwrap().spans();
    assert_eq!(runs(&store), 4);
    store.hide(id, &[0..1000]).unwrap();
    assert_eq!(runs(&store), 0);
    store.hide(id, &[]).unwrap();
    assert_eq!(runs(&store), 4);
}

/// Dropped blocks give their memory back, the exact copy of the first rows too; borders stay, and so does what is
/// recent; then the sequence can still be cut back to where nothing is missing.
#[test]
fn dropped_rows_give_memory_back() {
    let mut store = Store::new(options()).unwrap();
    let id = store.open().unwrap();
    feed(&mut store, id, &[1; 320]).unwrap();
    let before = store.stats(id).unwrap();
    store.hide(id, &[0..70, 90..319]).unwrap();
    assert_eq!(store.stats(id).unwrap(), before);
    let oldest = store.oldest_restorable(id).unwrap();
    assert!(store.view(id, 1).unwrap().sink_block().is_some());
    // All but the block of 64 and the last three.
    let applied = store.drop_hidden(id, 0..u64::MAX).unwrap();
    assert_eq!(applied.rows, 64 + 96 + 32);
    let after = store.stats(id).unwrap();
    assert_eq!(before.bytes - after.bytes, applied.bytes_freed);
    assert_eq!(after.rows, 128);
    let view = store.view(id, 1).unwrap();
    let first: Vec<u64> = view.entries().iter().map(|e| e.first_position).collect();
    assert_eq!((first, view.sink_block()), (vec![64, 224, 256, 288], None));
    // Nothing more to drop.
    assert_eq!(store.drop_hidden(id, 0..320).unwrap().rows, 0);
    assert_eq!(store.shifts(id), [229, 0]);
    store.hide(id, &[]).unwrap();
    assert_eq!(store.shifts(id), [128, 0]);
    let seen: Vec<usize> = attended(&store, id, 0).iter().map(|s| s.0).collect();
    assert_eq!(seen, (64..96).chain(224..320).collect::<Vec<_>>());
    assert_eq!(store.oldest_restorable(id).unwrap(), oldest);
    store.truncate(id, 300).unwrap();
    feed(&mut store, id, &[2; 10]).unwrap();
}
