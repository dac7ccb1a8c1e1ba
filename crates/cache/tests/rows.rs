//! Properties of every row policy on random layers: the guarantees of `policy/rows.rs`.
//!
//! A new policy is one more line in `subjects` and a test that names it. Numbers are small, so that zones, caps and
//! thresholds meet often; a failure prints the seed of its layer.

use crate::common;

use common::{codec_layer, feed};
use haversack_cache::policy::count::{AttentionCounting, AttentionMemory};
use haversack_cache::policy::heavy::{HeavyParams, HeavyScore};
use haversack_cache::policy::profile::Profile;
use haversack_cache::policy::rows::{LayerView, RowPolicy};
use haversack_cache::policy::snap::SnapParams;
use haversack_cache::policy::tiers::{Deep, Middle, Shallow, TiersParams};
use haversack_cache::policy::turns::TurnsParams;
use haversack_cache::{Annotation, Codec, KvRow, StatsFormat, Store, StoreOptions, Zones};
use haversack_kernels::attention::{KvView, MassStatistic};
use std::collections::BTreeSet;
use std::ops::Range;

/// Of each policy.
const SNAPSHOTS: u64 = 100_000;

struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        dice.below(2);
        dice
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % n.max(1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[derive(Clone, Copy)]
enum Subject {
    Heavy,
    Tiers,
    Snap,
    Turns,
}

const SUBJECTS: [Subject; 4] = [
    Subject::Heavy,
    Subject::Tiers,
    Subject::Snap,
    Subject::Turns,
];

/// A policy of this kind with parameters that it accepts.
fn policy(subject: Subject, dice: &mut Dice, layers: usize) -> RowPolicy {
    let recent = dice.pick(&[0, 1, 16, 40, 128, u64::MAX]);
    let policy = match subject {
        Subject::Heavy => RowPolicy::Heavy(HeavyParams {
            score: dice.pick(&[
                HeavyScore::Sum,
                HeavyScore::Peak,
                HeavyScore::Max,
                HeavyScore::Average(AttentionMemory::Alpha(0.3)),
                HeavyScore::Average(AttentionMemory::HalfLife(32.0)),
            ]),
            recent,
            ..HeavyParams::default()
        }),
        Subject::Snap => RowPolicy::Snap(SnapParams {
            neighbours: dice.below(5),
            recent,
        }),
        Subject::Turns => RowPolicy::Turns(TurnsParams { recent }),
        Subject::Tiers if dice.one_in(4) => RowPolicy::Tiers(dice.pick(&Profile::ALL).params()),
        Subject::Tiers => {
            let first = dice.below(layers as u64 + 1) as usize;
            let second = first + dice.below((layers - first) as u64 + 1) as usize;
            let thetas = [0.0, 0.15, 0.5, 1.0, 1.3, 1000.0];
            RowPolicy::Tiers(TiersParams {
                memory: AttentionMemory::default(),
                trigger: dice.pick(&[0.0, 0.7, 1.0]),
                borders: dice.pick(&[None, Some([first, second])]),
                shallow: Shallow {
                    recent,
                    theta: dice.pick(&[None, Some(0.2), Some(1.2)]),
                },
                middle: Middle {
                    first: dice.below(100),
                    recent: dice.pick(&[0, 20, 128]),
                    part: dice.pick(&[[0.25, 0.75], [0.0, 1.0], [0.4, 0.5]]),
                    theta: dice.pick(&thetas),
                    batch: dice.pick(&[1, 4, 16]),
                },
                deep: Deep {
                    recent: dice.pick(&[0, 30, 256]),
                    theta: dice.pick(&thetas),
                    share_max: dice.pick(&[0.0, 0.1, 0.6, 1.0]),
                },
            })
        }
    };
    assert_eq!(policy.check(layers), Ok(()));
    policy
}

/// A layer and its evictable rows.
struct Snapshot {
    view: LayerView<'static>,
    spans: Vec<Annotation>,
    rows: Vec<KvRow>,
}

impl Snapshot {
    fn random(dice: &mut Dice) -> Snapshot {
        let position = dice.below(260);
        let start = dice.pick(&[0, 32, 64]);
        let loose = start..start.max(position.saturating_sub(dice.below(70)) / 32 * 32);
        let spans = random_spans(dice, position);
        let keep = dice.pick(&[1, 2, 4, 8]);
        let greatest = dice.pick(&[1, 4, 100, u64::from(u32::MAX)]);
        let mut rows = Vec::new();
        for position in loose.clone() {
            if !dice.one_in(keep) {
                continue;
            }
            rows.push(KvRow {
                position,
                mass: dice.below(greatest) as u32,
                norm_sq: dice.pick(&[1.0, 0.25, 3.0]),
                worth: 0.0,
                entry: (position / 32) as u32,
                slot: (position % 32) as u8,
                protected: is_protected(&spans, position),
            });
        }
        dice.shuffle(&mut rows);
        // Anchors and the recent tokens are not given.
        let others = start + (position - loose.end.min(position));
        let kept = rows.len() + others as usize;
        let layers = 1 + dice.below(6) as usize;
        let mass: u64 = rows.iter().map(|row| u64::from(row.mass)).sum();
        let view = LayerView {
            layer: dice.below(layers as u64) as usize,
            layers,
            position,
            rows: kept,
            max_rows: match dice.below(4) {
                0 => usize::MAX,
                1 => kept,
                _ => dice.below(kept as u64 + 5) as usize,
            },
            min_position: match dice.below(4) {
                0 => dice.below(position + 1),
                _ => 0,
            },
            budget_used: dice.pick(&[0.5, 0.9, 1.0]),
            evictable: loose,
            non_sink_rows: kept.saturating_sub(4),
            full_mass: (mass + dice.below(1000)) * dice.pick(&[0, 1, 2]),
            annotations: &[],
        };
        Snapshot { view, spans, rows }
    }
}

fn random_spans(dice: &mut Dice, position: u64) -> Vec<Annotation> {
    let mut spans = Vec::new();
    let mut at = dice.below(40);
    while at < position && !dice.one_in(8) {
        let end = at + 1 + dice.below(60);
        spans.push(Annotation {
            start: at,
            end,
            protected: dice.one_in(4),
        });
        at = end + dice.pick(&[0, 0, 1, 20]);
    }
    spans
}

fn span_at(spans: &[Annotation], position: u64) -> Option<&Annotation> {
    spans
        .iter()
        .find(|span| (span.start..span.end).contains(&position))
}

fn is_protected(spans: &[Annotation], position: u64) -> bool {
    span_at(spans, position).is_some_and(|span| span.protected)
}

fn chosen(policy: &RowPolicy, view: &LayerView<'_>, rows: &[KvRow]) -> (BTreeSet<u64>, Vec<KvRow>) {
    let mut rows = rows.to_vec();
    let leave = policy.choose(view, &mut rows);
    let left = rows[..leave].iter().map(|row| row.position).collect();
    (left, rows)
}

/// Whether a row may leave for the cap, as the rules say it: slow and obvious.
fn may_leave(policy: &RowPolicy, view: &LayerView<'_>, row: &KvRow) -> bool {
    let is_old = row.position.saturating_add(policy.recent(view)) < view.position;
    !row.protected && (is_old || row.position < view.min_position)
}

fn check(policy: &RowPolicy, view: &LayerView<'_>, rows: &[KvRow], dice: &mut Dice, what: &str) {
    let (left, after) = chosen(policy, view, rows);

    // The same rows as before, in another order.
    let place = |row: &KvRow| (row.position, row.mass, row.entry, row.slot, row.protected);
    let (mut before, mut then): (Vec<_>, Vec<_>) = (
        rows.iter().map(place).collect(),
        after.iter().map(place).collect(),
    );
    before.sort_unstable();
    then.sort_unstable();
    assert!(before == then, "{what}: rows were changed");

    let too_old = |row: &&KvRow| !row.protected && row.position < view.min_position;
    for row in rows {
        let leaves = left.contains(&row.position);
        assert!(!(leaves && row.protected), "{what}: protected {row:?}");
        assert!(
            !leaves || may_leave(policy, view, row),
            "{what}: recent {row:?}"
        );
        assert!(leaves || !too_old(&row), "{what}: too old {row:?}");
    }

    let met = view.rows - left.len() <= view.max_rows;
    let more = rows
        .iter()
        .any(|row| may_leave(policy, view, row) && !left.contains(&row.position));
    assert!(met || !more, "{what}: {} leave, more could", left.len());

    let excess = view.rows.saturating_sub(view.max_rows);
    let forced = rows.iter().filter(too_old).count();
    match policy {
        RowPolicy::Heavy(_) | RowPolicy::Snap(_) => {
            assert!(
                left.len() <= excess.max(forced),
                "{what}: more than asked for"
            );
        }
        RowPolicy::Turns(_) => halves(policy, view, rows, &left, what),
        RowPolicy::Tiers(_) => (),
    }

    let mut mixed = rows.to_vec();
    dice.shuffle(&mut mixed);
    assert!(
        chosen(policy, view, &mixed).0 == left,
        "{what}: order matters"
    );

    let stay: Vec<KvRow> = mixed
        .into_iter()
        .filter(|row| !left.contains(&row.position))
        .collect();
    let again = LayerView {
        rows: view.rows - left.len(),
        non_sink_rows: view.non_sink_rows.saturating_sub(left.len()),
        ..view.clone()
    };
    let (twice, _) = chosen(policy, &again, &stay);
    assert!(
        twice.is_empty(),
        "{what}: {} more the second time",
        twice.len()
    );
}

/// A turn leaves or stays, but for what is too old. Only where no whole turn stays that could leave, one may leave in part.
fn halves(
    policy: &RowPolicy,
    view: &LayerView<'_>,
    rows: &[KvRow],
    left: &BTreeSet<u64>,
    what: &str,
) {
    let (mut half, mut whole) = (None, None);
    for span in view.annotations {
        let of_span = || {
            rows.iter()
                .filter(|row| (span.start..span.end).contains(&row.position))
        };
        let leaving = of_span().filter(|row| left.contains(&row.position)).count();
        let too_old = of_span().filter(|row| row.position < view.min_position && !row.protected);
        let is_inside = view.evictable.start <= span.start && span.end <= view.evictable.end;
        let is_old = (span.end - 1).saturating_add(policy.recent(view)) < view.position;
        if leaving == too_old.count() {
            let may = is_inside && is_old && !span.protected && of_span().any(|row| !row.protected);
            whole = whole.or((leaving == 0 && may).then_some(span));
        } else if leaving < of_span().filter(|row| !row.protected).count() {
            half = half.or(Some(span));
        }
    }
    assert!(
        half.is_none() || whole.is_none(),
        "{what}: half of {half:?} before {whole:?}"
    );
}

fn properties(subject: Subject, seeds: Range<u64>) {
    let (mut left, mut capped) = (0u64, 0u64);
    for seed in seeds.clone() {
        let mut dice = Dice::new(seed);
        let Snapshot { view, spans, rows } = Snapshot::random(&mut dice);
        let policy = policy(subject, &mut dice, view.layers);
        let view = LayerView {
            annotations: &spans,
            ..view
        };
        let what = format!("seed {seed}, {policy:?}");
        check(&policy, &view, &rows, &mut dice, &what);
        let leave = chosen(&policy, &view, &rows).0.len();
        left += u64::from(leave > 0);
        capped += u64::from(view.rows - leave > view.max_rows);
    }
    // Neither idle nor hopeless.
    let all = seeds.end - seeds.start;
    assert!(left > all / 5 && left < all, "{left}");
    assert!(capped > all / 100 && capped < all / 2, "{capped}");
}

#[test]
fn heavy_keeps_the_rules() {
    properties(Subject::Heavy, 0..SNAPSHOTS);
}

#[test]
fn tiers_keep_the_rules() {
    properties(Subject::Tiers, 0..SNAPSHOTS);
}

#[test]
fn snap_keeps_the_rules() {
    properties(Subject::Snap, 0..SNAPSHOTS);
}

#[test]
fn turns_keep_the_rules() {
    properties(Subject::Turns, 0..SNAPSHOTS);
}

/// Numbers of a request go as far as their type does.
#[test]
fn the_greatest_numbers_are_answered() {
    let spans = [Annotation {
        start: 0,
        end: u64::MAX,
        protected: false,
    }];
    let mut dice = Dice::new(1);
    for subject in SUBJECTS {
        for _ in 0..500 {
            let policy = policy(subject, &mut dice, 3);
            let mut rows: Vec<KvRow> = Snapshot::random(&mut dice).rows;
            for row in &mut rows {
                row.position = u64::MAX - row.position - 1;
                row.mass = u32::MAX;
                row.norm_sq = f32::MAX;
            }
            let view = LayerView {
                layer: 2,
                layers: 3,
                position: u64::MAX,
                rows: usize::MAX,
                max_rows: dice.pick(&[0, 1, usize::MAX]),
                min_position: 0,
                budget_used: 1.0,
                evictable: 0..u64::MAX,
                non_sink_rows: usize::MAX,
                full_mass: dice.pick(&[0, 1, u64::MAX]),
                annotations: dice.pick(&[&[], &spans[..]]),
            };
            assert!(policy.choose(&view, &mut rows) <= rows.len());
        }
    }
}

const ANCHORS: u64 = 40;

/// Sequences of a store under row policies of every kind, one after the other: whatever they choose, anchors, protected
/// rows and the last block stay.
#[test]
fn anchors_outlive_ten_thousand_plans() {
    let layer = codec_layer(1, 16, Codec::Int8, Codec::Int4);
    let mut store = Store::new(StoreOptions {
        layers: vec![layer; 2],
        zones: Zones {
            sinks: 4,
            recent: 32,
        },
        row_stats: Some(StatsFormat::ATTENTION),
        ..StoreOptions::default()
    })
    .unwrap();
    let sums = AttentionCounting::always(MassStatistic::Sum);
    let mut dice = Dice::new(99);
    let (mut plans, mut left) = (0, 0);
    while plans < 10_000 {
        let id = store.open().unwrap();
        for _ in 0..25 {
            let fed = 1 + dice.below(32);
            let from = store.position(id).unwrap();
            let tokens: Vec<u32> = (from..from + fed).map(|t| t as u32).collect();
            feed(&mut store, id, &tokens).unwrap();
            let position = from + fed;
            if dice.one_in(6) {
                let start = dice.below(position);
                let span = start..start + 1 + dice.below(50);
                store.annotate(id, span, dice.one_in(3)).unwrap();
            }
            let subject = dice.pick(&SUBJECTS);
            let policy = policy(subject, &mut dice, 2);
            let most = dice.below(position + 40) as usize;
            let oldest = if dice.one_in(5) {
                dice.below(position)
            } else {
                0
            };
            for layer in 0..2 {
                let slots = store.view(id, layer).unwrap().blocks() as u64 * 32;
                let mass: Vec<u64> = (0..slots).map(|_| dice.below(1 << 20)).collect();
                store
                    .record_attention(id, layer, &sums, from..position, &mass)
                    .unwrap();
                let mut rows = Vec::new();
                store.evictable_rows(id, layer, ANCHORS, &mut rows).unwrap();
                let view = LayerView {
                    max_rows: most,
                    min_position: oldest,
                    ..store.layer_view(id, layer, ANCHORS).unwrap()
                };
                let leave = policy.choose(&view, &mut rows);
                let before = present(&store, id, layer);
                let (gone, _) = rows.split_at(leave);
                store.evict_rows(id, layer, ANCHORS, gone).unwrap();
                let after = present(&store, id, layer);
                let gone: BTreeSet<u64> = gone.iter().map(|row| row.position).collect();
                assert!(before.difference(&after).eq(&gone), "{policy:?}");
                let spans = store.annotations(id).unwrap();
                let stays = |p: &u64| {
                    *p < ANCHORS
                        || *p + 32 >= position
                        || before.contains(p) && is_protected(spans, *p)
                };
                assert!(
                    (0..position).filter(stays).all(|p| after.contains(&p)),
                    "{policy:?}"
                );
                left += leave;
            }
            plans += 1;
        }
        store.close(id).unwrap();
    }
    assert!(left > 100_000, "{left}");
    assert_eq!(store.ledger().kv_live, 0);
}

/// Positions that a layer has rows of.
fn present(store: &Store, id: haversack_cache::SequenceId, layer: usize) -> BTreeSet<u64> {
    let mut rows = Vec::new();
    store.evictable_rows(id, layer, ANCHORS, &mut rows).unwrap();
    let loose: BTreeSet<u32> = rows.iter().map(|row| row.entry).collect();
    let view = store.view(id, layer).unwrap();
    let firm = view.entries().iter().enumerate();
    let firm = firm.filter(|(i, _)| !loose.contains(&(*i as u32)));
    let mut all: BTreeSet<u64> = firm.flat_map(|(_, entry)| entry.positions()).collect();
    for row in rows {
        assert!(all.insert(row.position), "position {} twice", row.position);
    }
    all
}
