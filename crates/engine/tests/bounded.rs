//! A runtime that evicts rows: what it holds, and what it gives back.

use crate::common;

use common::load;
use haversack_cache::policy::heavy::{Heads, HeavyParams};
use haversack_cache::policy::rows::RowPolicy;
use haversack_cache::{Annotation, CacheError, SequenceId, StatsFormat};
use haversack_engine::runtime::options::Slabs;
use haversack_engine::runtime::plan::{self, ComputeSetting};
use haversack_engine::step::{LogitRows, StepSpan};
use haversack_engine::{
    Codec, KvForm, KvOptions, Model, Policy, Repack, Retention, Runtime, RuntimeOptions, StepError,
};
use haversack_memory::{Cgroup, Reading};
use haversack_testing::models::Spec;
use haversack_testing::quota::quota;
use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

fn tiny() -> (tempfile::TempDir, Arc<Model>, Vec<u32>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    let spec = Spec::named("llama").unwrap();
    spec.write_file(&path).unwrap();
    let model = load(&path, Repack::Off);
    (dir, model, spec.ids(600))
}

fn options(anchors: usize, window: usize) -> RuntimeOptions {
    RuntimeOptions {
        threads: 1,
        kv: KvOptions::plain(KvForm::F16),
        retention: Retention {
            policy: Policy::Window,
            anchors: Some(anchors),
            window: Some(window),
            ..Retention::default()
        },
        ..RuntimeOptions::default()
    }
}

fn feed(rt: &mut Runtime, id: SequenceId, tokens: &[u32]) -> Result<(), StepError> {
    rt.feed(id, tokens, &mut |_| ControlFlow::Continue(()))?;
    Ok(())
}

/// A device with so much room left.
fn room(bytes: u64) -> Reading {
    Reading {
        cgroup: Some(Cgroup {
            limit_bytes: Some(bytes),
            anon_bytes: Some(0),
            ..Cgroup::default()
        }),
        ..Reading::default()
    }
}

/// Blocks of a prompt lie layer after layer, so what a smaller window keeps is spread over all slabs.
/// The device wants pages back, not holes.
#[test]
fn a_window_that_shrinks_gives_whole_slabs_back() {
    let (_dir, model, tokens) = tiny();
    let options = RuntimeOptions {
        // Eight blocks.
        slabs: Slabs {
            bytes: Some(64 << 10),
            ..Slabs::default()
        },
        ..options(64, 384)
    };
    let mut rt = Runtime::new(model, &options).unwrap();
    let id = rt.open().unwrap();
    feed(&mut rt, id, &tokens).unwrap();
    let full = rt.store().pool_stats();
    rt.observe(&room(0), Duration::ZERO);
    let mut more = tokens.iter();
    while rt.window_changes(id).is_empty() {
        rt.decode(id, *more.next().unwrap()).unwrap();
    }
    for (full, pool) in full.iter().zip(rt.store().pool_stats()) {
        let whole = pool.live.div_ceil(pool.total / pool.slabs);
        assert!(full.slabs_touched > whole + 1, "{full:?}");
        assert!(pool.slabs_touched <= whole + 1, "{pool:?}");
    }
}

/// What is promised before is what is booked later: the mean keys once, and nothing above the sum.
#[test]
fn the_ledger_is_within_the_plan() {
    let (_dir, model, tokens) = tiny();
    let config = model.config();
    for kv in [
        KvOptions::default(),
        KvOptions::plain(KvForm::F16),
        KvOptions {
            layers: [(1, KvForm::F16)].into(),
            ..KvOptions::new(KvForm::both(Codec::Int3.form()))
        },
    ] {
        let options = RuntimeOptions {
            kv: kv.clone(),
            ..options(64, 128)
        };
        let mut rt = Runtime::new(model.clone(), &options).unwrap();
        assert_eq!(rt.ledger().side, plan::side_bytes(config, &kv));
        let id = rt.open().unwrap();
        for part in tokens.chunks(32) {
            feed(&mut rt, id, part).unwrap();
        }
        let setting = ComputeSetting {
            threads: rt.threads(),
            int8: true,
            chunk: 32,
            noting: None,
            guarded: false,
        };
        let needs = plan::needs(config, &kv, setting, 64 + 128 + 32);
        let ledger = rt.ledger();
        assert!(ledger.peak <= needs.total(), "{ledger:?} {needs:?}");
        assert!(ledger.tables <= needs.tables_bytes, "{ledger:?} {needs:?}");
        assert!(
            ledger.scratch <= needs.scratch_bytes,
            "{ledger:?} {needs:?}"
        );
    }
}

/// What others charge is on top of the store's own mean keys. A change was once added to the level that the ledger shows,
/// which has the mean keys in it already, so every charge and every release counted them once more.
#[test]
fn a_charge_beside_sequences_is_counted_once() {
    let (_dir, model, _) = tiny();
    let options = RuntimeOptions {
        kv: KvOptions::default(),
        ..options(64, 128)
    };
    let mut rt = Runtime::new(model, &options).unwrap();
    let before = rt.ledger().side;
    assert!(before > 0, "mean keys");
    for _ in 0..3 {
        rt.charge_side(1000).unwrap();
        rt.set_session_bytes(500).unwrap();
        assert_eq!(rt.ledger().side, before + 1500);
        rt.release_side(1000);
        assert_eq!(rt.ledger().side, before + 500);
        rt.set_session_bytes(0).unwrap();
        assert_eq!(rt.ledger().side, before);
    }
}

/// Rows that are chosen one by one: no more of them than asked for, however long it goes on, other ones than the
/// last, and everything that is remembered about them within the plan.
#[test]
fn chosen_rows_stay_within_their_number_and_the_plan() {
    let (_dir, model, tokens) = tiny();
    let config = model.config();
    let kv = KvOptions::default();
    let mut asked = RuntimeOptions {
        kv: kv.clone(),
        ..options(64, 256)
    };
    asked.retention.policy = Policy::Heavy;
    let mut rt = Runtime::new(model.clone(), &asked).unwrap();
    let id = rt.open().unwrap();
    for part in tokens
        .iter()
        .cycle()
        .take(1500)
        .collect::<Vec<_>>()
        .chunks(32)
    {
        let part: Vec<u32> = part.iter().map(|&&t| t).collect();
        feed(&mut rt, id, &part).unwrap();
        assert!(rt.stats(id).unwrap().rows <= 64 + 256 + 32);
    }
    let mut rows = Vec::new();
    rt.store().evictable_rows(id, 0, 64, &mut rows).unwrap();
    let oldest = rows.iter().map(|row| row.position).min().unwrap();
    let newest = rows.iter().map(|row| row.position).max().unwrap();
    assert!(
        oldest + 300 < newest,
        "{oldest} {newest}: more than a window lies between"
    );
    assert!(
        oldest + config.context as u64 > 1500,
        "none from before the context"
    );
    let setting = ComputeSetting {
        threads: rt.threads(),
        int8: true,
        chunk: 32,
        noting: Some(StatsFormat::ATTENTION),
        guarded: true,
    };
    let needs = plan::needs(config, &kv, setting, 64 + 256 + 32);
    let ledger = rt.ledger();
    assert!(ledger.peak <= needs.total(), "{ledger:?} {needs:?}");
    assert!(ledger.side <= needs.side_bytes, "{ledger:?} {needs:?}");

    asked.retention.window = Some(128);
    let error = Runtime::new(model.clone(), &asked).err().unwrap();
    assert!(error.to_string().ends_with("at least 256"), "{error}");
    asked.retention.window = Some(256);
    asked.budget_bytes = Some(needs.total());
    let mut rt = Runtime::new(model.clone(), &asked).unwrap();
    let id = rt.open().unwrap();
    feed(&mut rt, id, &tokens).unwrap();
}

/// Positions of a layer behind its first block and before its recent ones.
fn positions(rt: &Runtime, id: SequenceId, layer: usize) -> BTreeSet<u64> {
    let mut rows = Vec::new();
    rt.store().evictable_rows(id, layer, 0, &mut rows).unwrap();
    rows.iter().map(|row| row.position).collect()
}

/// What is annotated as protected stays, as far as a quarter of the rows goes: the opening beyond the trained context too,
/// and headers inside it. However much is protected, no layer has more rows than without.
#[test]
fn protected_rows_stay_within_the_limit_of_rows() {
    let (_dir, model, tokens) = tiny();
    let policies = [Policy::Heavy, Policy::Tiers, Policy::Snap, Policy::Turns];
    for (policy, opening) in policies.into_iter().flat_map(|p| [(p, 70), (p, 1400)]) {
        let mut asked = RuntimeOptions {
            kv: KvOptions::default(),
            ..options(32, 256)
        };
        asked.retention.policy = policy;
        let mut rt = Runtime::new(model.clone(), &asked).unwrap();
        let id = rt.open().unwrap();
        let protected = |range: Range<u64>| Annotation {
            start: range.start,
            end: range.end,
            protected: true,
        };
        let headers = (opening..2000).step_by(40).skip(1);
        let headers = headers.map(|at| protected(at..at + 5));
        let spans: Vec<Annotation> = [protected(0..opening)].into_iter().chain(headers).collect();
        rt.annotate(id, &spans).unwrap();
        let mut all = tokens.iter().copied().cycle();
        for fed in (32..1000).step_by(32) {
            let part: Vec<u32> = all.by_ref().take(32).collect();
            feed(&mut rt, id, &part).unwrap();
            let rows = rt.stats(id).unwrap().rows;
            assert!(rows <= 32 + 256 + 32, "{policy:?}: {rows} rows after {fed}");
            if !matches!(fed, 480 | 960) {
                continue;
            }
            for layer in 0..model.config().layers.len() {
                let held = positions(&rt, id, layer);
                // A quarter of 288 rows is 72, in whole blocks 64; beyond those the rest, until the context ends.
                let stays = match (opening, fed) {
                    (70, 480) => [32..70, 110..115, 150..155],
                    (70, _) => [32..64, 0..0, 0..0],
                    (_, 480) => [32..104, 0..0, 0..0],
                    _ => [32..96, 0..0, 0..0],
                };
                let missing = stays.into_iter().flatten().find(|p| !held.contains(p));
                assert_eq!(missing, None, "{policy:?}, {opening} after {fed}: {held:?}");
            }
        }
    }
}

/// Turns leave as a whole, all layers alike, and the rows of the turn under way only where no other is left.
#[test]
fn turns_leave_as_a_whole() {
    let (_dir, model, tokens) = tiny();
    let mut asked = options(32, 256);
    asked.retention.policy = Policy::Turns;
    let mut rt = Runtime::new(model.clone(), &asked).unwrap();
    let id = rt.open().unwrap();
    let ends = [45, 130, 190, 275, 301, 377, 460, 1 << 40];
    let span = |(&start, &end): (&u64, &u64)| Annotation {
        start,
        end,
        protected: start == 0,
    };
    let spans: Vec<Annotation> = [0].iter().chain(&ends).zip(&ends).map(span).collect();
    rt.annotate(id, &spans).unwrap();
    let mut left = BTreeSet::new();
    for (fed, part) in (32..).step_by(32).zip(tokens[..512].chunks(32)) {
        feed(&mut rt, id, part).unwrap();
        assert!(rt.stats(id).unwrap().rows <= 320);
        let held = positions(&rt, id, 0);
        let end = held.last().map_or(0, |last| last + 1);
        for layer in 1..model.config().layers.len() {
            assert_eq!(positions(&rt, id, layer), held);
        }
        for turn in spans.iter().filter(|turn| turn.end <= end) {
            let rows = (turn.start.max(32)..turn.end)
                .filter(|p| held.contains(p))
                .count() as u64;
            let all = turn.end - turn.start.max(32);
            assert!(rows == 0 || rows == all, "after {fed}: {rows} of {turn:?}");
            left.extend((rows == 0).then_some(turn.start));
        }
    }
    assert!(left.len() >= 2 && !left.contains(&0), "{left:?}");
}

/// A prompt begins in large portions, while there is room. What those computed in must not be missing at its end.
#[test]
fn a_long_prompt_fits_every_budget_that_fits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep.gguf");
    // Deep, so that all rows cost more than a portion.
    let spec = Spec {
        layers: 16,
        ..Spec::named("llama").unwrap()
    };
    spec.write_file(&path).unwrap();
    let (model, tokens) = (load(&path, Repack::Off), spec.ids(600));
    let config = model.config();
    let apart = RowPolicy::Heavy(HeavyParams {
        heads: Heads::Apart,
        ..HeavyParams::default()
    });
    for (policy, params) in [
        (Policy::Auto, None),
        (Policy::Window, None),
        (Policy::Heavy, None),
        (Policy::Heavy, Some(apart)),
        (Policy::Snap, None),
    ] {
        for &rows in quota(&[352, 512][..], &[352, 384, 448, 512]) {
            let mut options = options(0, 0);
            options.retention = Retention {
                policy,
                params,
                ..Retention::default()
            };
            let setting = ComputeSetting {
                chunk: 32,
                ..ComputeSetting::of(&options)
            };
            let needs = plan::needs(config, &options.kv, setting, rows);
            options.budget_bytes = Some(needs.total());
            options.chunk = Some(512);
            let mut rt = Runtime::new(model.clone(), &options).unwrap();
            let id = rt.open().unwrap();
            feed(&mut rt, id, &tokens).unwrap_or_else(|e| panic!("{policy:?} {rows}: {e}"));
            for &token in &tokens[..70] {
                rt.decode(id, token).unwrap();
            }
            assert!(rt.ledger().peak <= needs.total());
        }
    }
}

/// Two sequences at different places, one shortage: each changes where its own rows may leave, and each
/// can be replayed alone, in any portions. One that is opened later begins with what there is.
#[test]
fn every_sequence_has_its_own_window() {
    let (_dir, model, tokens) = tiny();
    let vocab = model.config().vocab;
    let asked = options(40, 160);
    let mut rt = Runtime::new(model.clone(), &asked).unwrap();
    // Past the window, and well inside it.
    let firsts = [300, 41];
    let ids = firsts.map(|first| {
        let id = rt.open().unwrap();
        feed(&mut rt, id, &tokens[..first]).unwrap();
        id
    });
    let mut found: [Vec<u32>; 2] = Default::default();
    for (i, room_bytes) in [0, 1 << 40].into_iter().enumerate() {
        rt.observe(&room(room_bytes), Duration::from_secs(20 * i as u64));
        for step in 100 * i..100 * (i + 1) {
            for (s, first) in firsts.into_iter().enumerate() {
                let logits = rt.decode(ids[s], tokens[first + step]).unwrap();
                found[s].extend(logits.iter().map(|l| l.to_bits()));
            }
        }
        if i == 0 {
            let late = rt.open().unwrap();
            feed(&mut rt, late, &tokens[..100]).unwrap();
            assert_eq!(rt.window(late), rt.window(ids[0]));
            assert_eq!(rt.window_changes(late).len(), 1);
            rt.close(late).unwrap();
            assert_eq!(rt.window_changes(late), []);
        }
    }
    assert_ne!(
        rt.window_changes(ids[0])[0].position,
        rt.window_changes(ids[1])[0].position
    );
    for (s, first) in firsts.into_iter().enumerate() {
        let changes = rt.window_changes(ids[s]);
        assert_eq!(changes.len(), 2, "{changes:?}");
        assert!(changes[0].window < 160 && changes[1].window == 160);
        assert_eq!(rt.window(ids[s]), Some(160));
        let replay: Vec<_> = changes.iter().map(|c| (c.position, c.window)).collect();
        for chunk in [None, Some(1), Some(7)] {
            let mut options = asked.clone();
            options.retention.replay = replay.clone();
            options.chunk = chunk;
            let mut rt = Runtime::new(model.clone(), &options).unwrap();
            let id = rt.open().unwrap();
            let logits = rt.all_logits(id, &tokens[..first + 200]).unwrap();
            let bits = logits[first * vocab..].iter().map(|l| l.to_bits());
            assert!(bits.eq(found[s].iter().copied()), "{first}, {chunk:?}");
        }
    }
}

/// A span that does not continue its sequence is refused by name, however far off it is.
#[test]
fn a_wrong_position_changes_nothing() {
    let (_dir, model, tokens) = tiny();
    let mut rt = Runtime::new(model, &options(40, 64)).unwrap();
    let id = rt.open().unwrap();
    feed(&mut rt, id, &tokens[..111]).unwrap();
    let before = (rt.ledger(), rt.stats(id).unwrap());
    for position in [0, 96, 110, 112, 128, u64::MAX] {
        let span = StepSpan {
            sequence: id,
            position,
            tokens: &tokens[..1],
            want: LogitRows::Last,
        };
        let error = rt.step(&[span]).unwrap_err();
        let (expected, found) = (111, position);
        let wanted = StepError::Cache(CacheError::Position { expected, found });
        assert_eq!(error, wanted);
        assert_eq!((rt.ledger(), rt.stats(id).unwrap()), before);
    }
}
