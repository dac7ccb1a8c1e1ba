//! A share of bytes is a promise: the largest window that keeps it, everything where that fits, and a
//! refusal that names a share that works.

use haversack_engine::model::Config;
use haversack_engine::{
    Codec, KvForm, LoadOptions, Model, Policy, Repack, Retention, Runtime, RuntimeOptions,
    runtime::plan,
};
use haversack_eval::contender::{Coding, Setup, Variant};
use haversack_testing::models::Spec;
use std::path::Path;
use std::sync::Arc;

const BLOCK: usize = 32;
const CODECS: [Codec; 6] = [
    Codec::F16,
    Codec::Int8,
    Codec::Int5,
    Codec::Int4,
    Codec::Int3,
    Codec::Int2,
];

fn model(name: &str, context: u32) -> Arc<Model> {
    let spec = Spec::named(name).unwrap();
    let spec = Spec {
        context,
        // Wider than a small share's window.
        window: spec.window.map(|_| 300),
        ..spec
    };
    let file = format!("shares-{name}-{context}.gguf");
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    spec.write_file(&path).unwrap();
    let load = LoadOptions {
        repack: Repack::Off,
        ..LoadOptions::default()
    };
    Model::load(&path, &load, &mut |_, _| ()).unwrap()
}

fn coding(codec: Codec) -> Coding {
    Coding {
        name: codec.name().to_owned(),
        form: KvForm::both(codec.form()),
    }
}

fn setup(config: &Config, variant: &Variant, codec: Codec, share: f64, n: usize) -> Option<Setup> {
    Setup::of(config, variant, &coding(codec), None, Some(share), n).ok()
}

#[test]
fn the_largest_window_that_keeps_the_promise() {
    for name in ["llama", "gemma3"] {
        let model = model(name, 4096);
        let config = model.config();
        for n in [512, 1000, 2048] {
            let full = plan::full_bytes(config, n) as f64;
            for codec in CODECS {
                let variant = Variant::new(Policy::Window);
                let mut before = 0;
                for share in (1..=100).map(|percent| f64::from(percent) / 100.0) {
                    let Some(found) = setup(config, &variant, codec, share, n) else {
                        assert_eq!(before, 0, "what fits less fits more");
                        continue;
                    };
                    assert!(found.bytes(config, n) as f64 <= full * share);
                    let Retention {
                        window, anchors, ..
                    } = found.retention;
                    let Some(window) = window else {
                        before = usize::MAX;
                        continue;
                    };
                    assert!(window >= before, "a larger share keeps more");
                    before = window;
                    assert_eq!(window % BLOCK, 0);
                    let more = window + BLOCK;
                    let anchors = anchors.unwrap();
                    let bytes =
                        plan::window_bytes(config, &found.kv, Policy::Window, anchors, more, n);
                    let is_all = anchors + more + BLOCK > n;
                    assert!(bytes as f64 > full * share || is_all, "{codec} {share} {n}");
                }
                assert_eq!(before, usize::MAX, "everything is within everything");
            }
        }
    }
}

#[test]
fn a_refusal_names_a_share_that_works() {
    let model = model("llama", 4096);
    let config = model.config();
    for policy in [Policy::Window, Policy::Heavy] {
        for codec in CODECS {
            let variant = Variant::new(policy);
            let of = |share| Setup::of(config, &variant, &coding(codec), None, Some(share), 2048);
            let least = of(1e-6).unwrap_err().min;
            assert!(of(least + 1e-9).is_ok(), "{codec}");
            assert!(of(least - 1e-6).is_err(), "{codec}");
        }
    }
}

/// What is promised holds in the store, at every token from the middle on.
#[test]
fn blocks_stay_within_their_share() {
    for policy in [Policy::Window, Policy::Heavy] {
        let shares = [(Codec::F16, 0.5), (Codec::Int8, 0.4), (Codec::Int4, 0.25)];
        blocks_stay_within("llama", policy, &shares);
        // Layers with a window of their own hold most of it.
        let shares = [(Codec::F16, 0.85), (Codec::Int8, 0.5), (Codec::Int4, 0.3)];
        blocks_stay_within("gemma3", policy, &shares);
    }
    // Of those no row can be chosen to leave.
    let model = model("gemma3", 1024);
    let heavy = Variant::new(Policy::Heavy);
    assert!(setup(model.config(), &heavy, Codec::F16, 0.4, 1024).is_none());
}

fn blocks_stay_within(name: &str, policy: Policy, shares: &[(Codec, f64)]) {
    let model = model(name, 1024);
    let config = model.config();
    let (n, tokens) = (1024, Spec::named(name).unwrap().ids(1024));
    let full = plan::full_bytes(config, n) as f64;
    let global = config.layers.iter().position(|l| l.window.is_none());
    let layer = global.unwrap();
    for &(codec, share) in shares {
        let found = setup(config, &Variant::new(policy), codec, share, n).unwrap();
        assert!(
            found.retention.window.is_some(),
            "{policy:?} {codec} evicts"
        );
        let options = RuntimeOptions {
            threads: 1,
            kv: found.kv,
            retention: found.retention,
            ..RuntimeOptions::default()
        };
        let mut runtime = Runtime::new(model.clone(), &options).unwrap();
        let id = runtime.open().unwrap();
        for (at, &token) in tokens[..n - 1].iter().enumerate() {
            runtime.decode(id, token).unwrap();
            let bytes = runtime.stats(id).unwrap().bytes as f64;
            let used = bytes / full;
            assert!(
                used <= share || at < n / 2,
                "{name} {policy:?} {codec} {used} at {at}"
            );
        }
        let kept = runtime.store().kept_positions(id, layer).unwrap().count();
        assert_eq!(kept, runtime.store().layer_rows(id, layer).unwrap());
        let mut kept: Vec<u64> = runtime.store().kept_positions(id, layer).unwrap().collect();
        kept.sort_unstable();
        kept.dedup();
        assert_eq!(kept.len(), runtime.store().layer_rows(id, layer).unwrap());
        assert_eq!(kept[..32], (0..32).collect::<Vec<u64>>(), "anchors");
        assert_eq!(kept.last(), Some(&(n as u64 - 2)));
    }
}
