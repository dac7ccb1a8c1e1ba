//! Plans made from a probe: they keep their promises, and the probe is made once.

use crate::common;

use common::load_with;
use haversack_engine::kv_quality::probe::{self, Depth, Probe};
use haversack_engine::runtime::adaptive::{self, AdaptiveOptions, AllotmentTarget};
use haversack_engine::runtime::bounds::BoundsError;
use haversack_engine::{
    KvOptions, LoadOptions, Model, Policy, Repack, Retention, Runtime, RuntimeError,
    RuntimeOptions, runtime::plan,
};
use haversack_testing::models::Spec;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

const CONTEXT: usize = 1024;

fn tiny(dir: &Path, name: &str) -> (Arc<Model>, Vec<u32>) {
    let path = dir.join(format!("{name}.gguf"));
    let spec = Spec {
        context: CONTEXT as u32,
        ..Spec::named(name).unwrap()
    };
    spec.write_file(&path).unwrap();
    let load = LoadOptions {
        repack: Repack::Off,
        ..LoadOptions::default()
    };
    (load_with(&path, &load), spec.ids(CONTEXT + 300))
}

fn options(dir: &Path, budget_bytes: Option<usize>, kv_bytes: Option<u64>) -> RuntimeOptions {
    RuntimeOptions {
        threads: 1,
        budget_bytes,
        cache_dir: Some(dir.to_owned()),
        retention: Retention {
            policy: Policy::Adaptive,
            adaptive: AdaptiveOptions {
                kv_bytes,
                ..AdaptiveOptions::default()
            },
            ..Retention::default()
        },
        ..RuntimeOptions::default()
    }
}

/// Blocks stay within their bytes, everything within the budget, at every token and past the context.
#[test]
fn a_plan_keeps_to_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["llama", "gemma3"] {
        let (model, tokens) = tiny(dir.path(), name);
        let full = plan::full_bytes(model.config(), CONTEXT);
        for share in [2, 4, 6] {
            // Windows as short as these are mostly recent.
            if name == "gemma3" && share > 2 {
                continue;
            }
            let options = options(dir.path(), None, Some(full / share));
            let mut runtime = Runtime::new(model.clone(), &options).unwrap();
            let id = runtime.open().unwrap();
            let mut most = 0;
            for part in tokens.chunks(50) {
                let go_on = &mut |_| ControlFlow::Continue(());
                runtime.feed(id, part, go_on).unwrap();
                most = most.max(runtime.stats(id).unwrap().bytes as u64);
            }
            assert!(most <= full / share, "{name} 1/{share}: {most}");
            // Steps are large where layers are few.
            assert!(most >= full / share / 2, "{name} 1/{share}: {most}");
            let rows = &runtime.kv().rows;
            assert!(share < 6 || !rows.is_empty(), "rows leave");
            for (&layer, &rows) in rows {
                assert!(runtime.store().layer_rows(id, layer).unwrap() <= rows + 32);
            }
        }
    }
}

#[test]
fn a_budget_is_never_exceeded_and_too_small_a_one_says_what_would_do() {
    let dir = tempfile::tempdir().unwrap();
    let (model, tokens) = tiny(dir.path(), "llama");
    // Nor is it exceeded by a probe; where one was saved, a small budget is enough.
    let refused = Runtime::new(model.clone(), &options(dir.path(), Some(50_000), None)).err();
    let Some(RuntimeError::Probe { needed, budget }) = refused else {
        panic!("{refused:?}");
    };
    assert!(needed > budget && budget == 50_000);
    Runtime::new(model.clone(), &options(dir.path(), Some(needed), None)).unwrap();
    let error = Runtime::new(model.clone(), &options(dir.path(), Some(50_000), None)).err();
    let Some(RuntimeError::Bounds(BoundsError::Budget { min_bytes, .. })) = error else {
        panic!("{error:?}");
    };
    for budget in [min_bytes, min_bytes + 100_000] {
        let options = options(dir.path(), Some(budget), None);
        let mut runtime =
            Runtime::new(model.clone(), &options).unwrap_or_else(|e| panic!("{budget}: {e}"));
        let id = runtime.open().unwrap();
        for part in tokens.chunks(300) {
            let go_on = &mut |_| ControlFlow::Continue(());
            runtime.feed(id, part, go_on).unwrap();
        }
        for &token in &tokens[..100] {
            runtime.decode(id, token).unwrap();
        }
        assert!(runtime.ledger().peak <= budget);
    }
}

/// The same plan and the same words whatever the portions and threads.
#[test]
fn nothing_depends_on_portions_or_threads() {
    let dir = tempfile::tempdir().unwrap();
    let (model, tokens) = tiny(dir.path(), "llama");
    let full = plan::full_bytes(model.config(), CONTEXT);
    let mut seen: Option<(Vec<f32>, haversack_engine::KvOptions)> = None;
    for (threads, chunk) in [(1, 512), (2, 64), (1, 7)] {
        // Each with a probe of its own.
        let own = dir.path().join(format!("{threads}-{chunk}"));
        let options = RuntimeOptions {
            threads,
            chunk: Some(chunk),
            ..options(&own, None, Some(full / 6))
        };
        let mut runtime = Runtime::new(model.clone(), &options).unwrap();
        let id = runtime.open().unwrap();
        let go_on = &mut |_| ControlFlow::Continue(());
        let logits = runtime.feed(id, &tokens, go_on).unwrap().unwrap().to_vec();
        let found = (logits, runtime.kv().clone());
        match &seen {
            None => seen = Some(found),
            Some(seen) => assert!(*seen == found, "{threads} threads, chunks of {chunk}"),
        }
    }
}

/// Kept in a file; one that does not check out is made again; stopping keeps nothing.
#[test]
fn a_probe_is_made_once() {
    let dir = tempfile::tempdir().unwrap();
    let (model, _) = tiny(dir.path(), "llama");
    let mut layers = 0;
    let mut measure = |flow: ControlFlow<()>| {
        layers = 0;
        let tell = &mut |done| {
            layers = done;
            flow
        };
        let probe = probe::load_or_measure(&model, 1, Depth::Scaled, Some(dir.path()), tell);
        (probe.unwrap(), layers)
    };
    let kept = || probe::is_saved(&model, dir.path(), Depth::Scaled);
    assert_eq!(measure(ControlFlow::Break(())), (None, 1));
    assert!(!kept());
    let (first, told) = measure(ControlFlow::Continue(()));
    assert_eq!(told, model.config().layers.len());
    assert!(kept() && !probe::is_saved(&model, dir.path(), Depth::Full));
    let (again, told) = measure(ControlFlow::Continue(()));
    assert_eq!((&again, told), (&first, 0));
    let file = probe::file(&model, dir.path(), Depth::Scaled);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    assert!(!kept());
    let (again, told) = measure(ControlFlow::Continue(()));
    assert_eq!((again, told), (first, model.config().layers.len()));
}

/// More bits hurt less, and so do more rows.
#[test]
fn damages_are_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (model, _) = tiny(dir.path(), "llama");
    let go_on = &mut |_| ControlFlow::Continue(());
    let probe = probe::load_or_measure(&model, 2, Depth::Local, None, go_on).unwrap();
    for curves in probe.unwrap().curves {
        for curve in [curves.k, curves.v] {
            assert!(curve.is_sorted_by(|a, b| a > b), "{curve:?}");
            assert_eq!(curve[curve.len() - 1], 0.0);
        }
        assert!(curves.rows[5] > curves.rows[0], "{:?}", curves.rows);
    }
    let text = adaptive::describe(
        &adaptive::with_probe(
            model.config(),
            &options(dir.path(), None, None),
            &probe::load_or_measure(&model, 2, Depth::Local, None, go_on)
                .unwrap()
                .unwrap(),
        )
        .unwrap()
        .kv,
        CONTEXT,
    );
    assert!(text.starts_with("layer"), "{text}");
}

/// A long context has more recent rows, a small share fewer; a number that the options name is taken. And the guard
/// predicts with the slope and offset of the probe.
#[test]
fn recent_rows_follow_the_context() {
    let dir = tempfile::tempdir().unwrap();
    let (model, _) = tiny(dir.path(), "llama");
    let config = model.config();
    let go_on = &mut |_| ControlFlow::Continue(());
    let probe = probe::load_or_measure(&model, 2, Depth::Local, None, go_on);
    let probe = probe.unwrap().unwrap();
    let recent = |tokens: usize, share: f64, named: usize| {
        let usual = KvOptions {
            recent: named,
            ..KvOptions::default()
        };
        let ask = AllotmentTarget {
            bytes: (plan::full_bytes(config, tokens) as f64 * share) as u64,
            tokens: tokens as u64,
            zones: usual.zones(),
            anchors: 32,
            row_weight: 1.0,
        };
        let kv = adaptive::plan(config, &probe.curves, &usual, &ask).unwrap();
        kv.recent
    };
    let usual = KvOptions::RECENT;
    assert_eq!(recent(2048, 0.5, usual), 64);
    assert_eq!(recent(4096, 0.125, usual), 128);
    assert_eq!(recent(8192, 0.25, usual), 256);
    assert_eq!(recent(8192, 0.0625, usual), 128);
    assert_eq!(recent(8192, 0.25, 96), 96);

    let asked = options(dir.path(), None, None);
    let planned = adaptive::with_probe(
        config,
        &asked,
        &Probe {
            slope: 0.8,
            offset: -1.5,
            ..probe
        },
    );
    let guard = planned.unwrap().guard;
    assert_eq!((guard.slope, guard.offset), (f64::from(0.8f32), -1.5));
    assert_eq!(guard.bound, asked.guard.bound);
}
