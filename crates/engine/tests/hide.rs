//! Hidden rows, seen from the logits: as good as gone, back as they were, whatever the portions and threads.

use crate::common;

use common::{load, packed_dir};
use haversack_cache::SequenceId;
use haversack_engine::runtime::options::Positions;
use haversack_engine::step::{LogitRows, StepSpan};
use haversack_engine::{
    Codec, KvForm, KvOptions, Model, Policy, Repack, Retention, Runtime, RuntimeOptions,
};
use haversack_testing::models::Spec;
use std::ops::Range;
use std::sync::Arc;

/// A model with room for that many tokens.
fn tiny(variant: &str, tokens: usize) -> (tempfile::TempDir, Arc<Model>, Vec<u32>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    let mut spec = Spec::named(variant).unwrap();
    spec.context = spec.context.max(2048);
    spec.write_file(&path).unwrap();
    let model = load(&path, Repack::Off);
    (dir, model, spec.ids(tokens))
}

/// One form, and zones with sinks.
fn kinds() -> [KvOptions; 2] {
    [
        KvOptions::plain(KvForm::F16),
        KvOptions {
            recent: 32,
            ..KvOptions::new(KvForm::both(Codec::Int4.form()))
        },
    ]
}

fn runtime(
    model: &Arc<Model>,
    kv: &KvOptions,
    threads: usize,
    policy: Policy,
    positions: Positions,
) -> Runtime {
    let bounded = policy == Policy::Window;
    let options = RuntimeOptions {
        threads,
        kv: kv.clone(),
        retention: Retention {
            policy,
            positions,
            anchors: bounded.then_some(64),
            window: bounded.then_some(128),
            ..Retention::default()
        },
        // The mean keys are measured once.
        cache_dir: Some(packed_dir()),
        ..RuntimeOptions::default()
    };
    Runtime::new(model.clone(), &options).unwrap()
}

/// The logits of every token, as bits, computed `portion` tokens at a time.
fn read(rt: &mut Runtime, id: SequenceId, tokens: &[u32], portion: usize) -> Vec<u32> {
    let mut bits = Vec::new();
    for tokens in tokens.chunks(portion) {
        let span = StepSpan {
            sequence: id,
            position: rt.position(id).unwrap(),
            tokens,
            want: LogitRows::All,
        };
        let logits = rt.step(&[span]).unwrap();
        assert!(logits.iter().all(|x| x.is_finite()));
        bits.extend(logits.iter().map(|x| x.to_bits()));
    }
    bits
}

/// Positions that a sequence does not have any more.
fn gone(rt: &Runtime, id: SequenceId) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    let mut next = 0;
    let position = rt.position(id).unwrap();
    for kept in rt.store().kept_positions(id, 0).unwrap().chain([position]) {
        if kept > next {
            gaps.push(next..kept);
        }
        next = kept + 1;
    }
    gaps
}

/// Blocks that a plan evicts, and the same ones hidden while everything is kept: the same bits, wherever tokens
/// count as standing. Dropping them then changes no bit either, and gives their bytes back.
#[test]
fn hidden_blocks_are_as_good_as_evicted() {
    let (_dir, model, tokens) = tiny("llama", 480);
    for (kv, positions) in kinds()
        .iter()
        .flat_map(|kv| [Positions::Original, Positions::Compact].map(|p| (kv, p)))
    {
        let make = |policy| runtime(&model, kv, 1, policy, positions);
        let (mut bounded, mut full) = (make(Policy::Window), make(Policy::Full));
        let mut dropping = make(Policy::Full);
        let ids = [&mut bounded, &mut full, &mut dropping].map(|rt| rt.open().unwrap());
        for part in tokens.chunks(32) {
            let evicted = read(&mut bounded, ids[0], part, 32);
            // What left, left before the step: all of it was there then.
            let gaps = gone(&bounded, ids[0]);
            for (rt, id) in [(&mut full, ids[1]), (&mut dropping, ids[2])] {
                rt.hide(id, &gaps).unwrap();
                assert!(read(rt, id, part, 32) == evicted, "{positions:?} {gaps:?}");
            }
            dropping.drop_hidden(ids[2], 0..u64::MAX).unwrap();
        }
        assert!(!full.store().hidden(ids[1]).is_empty(), "rows left");
        let bytes = |rt: &Runtime, id| rt.stats(id).unwrap().bytes;
        assert_eq!(bytes(&bounded, ids[0]), bytes(&dropping, ids[2]));
        assert!(bytes(&dropping, ids[2]) < bytes(&full, ids[1]));
    }
}

/// Hidden, and shown again before the next token: as if nothing had been. Hidden still: something else.
#[test]
fn shown_rows_are_what_they_were() {
    for variant in ["llama", "gemma3"] {
        let (_dir, model, tokens) = tiny(variant, 340);
        let (before, after) = tokens.split_at(300);
        for kv in &kinds() {
            let mut rt = runtime(&model, kv, 1, Policy::Full, Positions::Auto);
            let id = rt.open().unwrap();
            read(&mut rt, id, before, 100);
            let forks = [(); 3].map(|()| rt.fork(id).unwrap());
            let some = [2..3, 40..130, 135..140, 150..290];
            rt.hide(forks[1], &some).unwrap();
            rt.hide(forks[2], &some).unwrap();
            rt.hide(forks[2], &[]).unwrap();
            let [never, hidden, shown] = forks.map(|id| read(&mut rt, id, after, 7));
            assert!(never == shown, "{variant}");
            assert!(never != hidden, "{variant}");
        }
    }
}

/// However the tokens after hiding are portioned, on one thread and on two: the same bits, in single tokens deep
/// enough for attention to be split.
#[test]
fn portions_and_threads_change_nothing() {
    let (_dir, model, tokens) = tiny("llama", 860);
    let (before, after) = tokens.split_at(800);
    let hidden = [0..2, 37..139, 150..155, 170..200, 256..590, 795..800];
    for (kv, positions) in kinds()
        .iter()
        .flat_map(|kv| [Positions::Original, Positions::Compact].map(|p| (kv, p)))
    {
        let mut expected = None;
        for threads in [1, 2] {
            let mut rt = runtime(&model, kv, threads, Policy::Full, positions);
            let id = rt.open().unwrap();
            read(&mut rt, id, before, 64);
            rt.hide(id, &hidden).unwrap();
            for portion in [60, 1, 7, 33] {
                let fork = rt.fork(id).unwrap();
                let bits = read(&mut rt, fork, after, portion);
                let expected = expected.get_or_insert_with(|| bits.clone());
                assert!(bits == *expected, "{positions:?} {threads} {portion}");
            }
        }
    }
}
