//! Nothing asks the heap for memory on the path of a token.
//!
//! Everything a step works in was reserved before, and lists are used again. Once a sequence has its
//! shape (the window is full, rows have left) decoding takes nothing from the heap any more, on one
//! thread and on two; at the places where rows leave, the policy's snapshot and plan are all.

mod common;

use common::load;
use haversack_engine::{
    Codec, KvForm, KvOptions, Policy, Repack, Retention, Runtime, RuntimeOptions,
};
use haversack_testing::heap::{CountingAllocator, allocations};
use haversack_testing::models::Spec;
use std::ops::ControlFlow;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator;

/// The snapshot's list and the plan's. A snapshot of layers that keep different blocks grows once.
const LEAVING_MAX: u64 = 3;

#[test]
fn decoding_takes_nothing_from_the_heap() {
    let dir = tempfile::tempdir().unwrap();
    for variant in ["llama", "gemma3"] {
        let path = dir.path().join(variant);
        let spec = Spec::named(variant).unwrap();
        spec.write_file(&path).unwrap();
        let model = load(&path, Repack::Off);
        let tokens = spec.ids(500);
        for (threads, codec) in [(1, Codec::Int4), (2, Codec::Int4), (2, Codec::F16)] {
            let options = RuntimeOptions {
                threads,
                kv: KvOptions::new(KvForm::both(codec.form())),
                retention: Retention {
                    policy: Policy::Window,
                    anchors: Some(40),
                    window: Some(96),
                    ..Retention::default()
                },
                ..RuntimeOptions::default()
            };
            let mut rt = Runtime::new(model.clone(), &options).unwrap();
            let id = rt.open().unwrap();
            let mut go_on = |_| ControlFlow::Continue(());
            rt.feed(id, &tokens[..300], &mut go_on).unwrap();
            for &token in &tokens[300..400] {
                rt.decode(id, token).unwrap();
            }
            let (mut quiet, mut leaving) = (0, 0);
            for &token in &tokens[400..500] {
                let rows = rt.stats(id).unwrap().rows;
                let before = allocations();
                rt.decode(id, token).unwrap();
                let taken = allocations() - before;
                if rt.stats(id).unwrap().rows > rows {
                    assert_eq!(taken, 0, "{variant}, {codec}, {threads} threads");
                    quiet += 1;
                } else {
                    assert!(taken <= LEAVING_MAX, "{variant}, {codec}: {taken}");
                    leaving += 1;
                }
            }
            assert!(quiet > 90 && leaving > 1, "{quiet} {leaving}");
        }
    }
}
