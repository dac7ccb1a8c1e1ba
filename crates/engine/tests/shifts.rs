//! Positions are metadata: a thousand evictions rewrite no key, and what a moved segment scores is what
//! keys rotated anew would score.

use haversack_cache::policy::window::{self, WindowParams};
use haversack_cache::{Codec, KvForm, LayerShape, SequenceGrowth, Store, StoreOptions, Zones};
use haversack_kernels::Exec;
use haversack_kernels::attention::KvView;
use haversack_kernels::cpu::Backend;
use haversack_kernels::format::kv::code::read_k_head;
use haversack_kernels::ops::rope::{Pairing, RopeSpec, rotate};
use haversack_kernels::threads::ThreadPool;

const DIM: usize = 64;
const ANCHORS: u64 = 64;
const WINDOW: u64 = 128;
const SHIFTS: usize = 1000;
/// Of the length of the query times that of the key.
const SCORE_ERROR_MAX: f64 = 1e-5;

struct Noise(u64);

impl Noise {
    fn value(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }
}

/// The bytes of the keys of all blocks that hold anchors, and the decoded rows of the first one.
fn anchors(store: &Store, id: haversack_cache::SequenceId, block: u64) -> (Vec<u8>, Vec<f32>) {
    let view = store.view(id, 0).unwrap();
    let mut bytes = Vec::new();
    let mut rows = vec![0.0; 32 * DIM];
    for i in 0..view.blocks() {
        let here = view.block(i, block);
        if here.first_position < ANCHORS {
            assert_eq!(here.segment, 0);
            bytes.extend_from_slice(here.k.bytes);
            if here.first_position == 0 {
                read_k_head(Backend::best(), DIM, here.k.form, here.k.bytes, &mut rows);
            }
        }
    }
    (bytes, rows)
}

/// `x` turned by `position`, in f64.
fn turned(spec: &RopeSpec, x: &[f32], position: f64) -> Vec<f64> {
    let mut y: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    for (i, freq) in spec.freqs.iter().enumerate() {
        let (sin, cos) = (position * freq).sin_cos();
        let (a, b) = (y[2 * i], y[2 * i + 1]);
        (y[2 * i], y[2 * i + 1]) = (a * cos - b * sin, a * sin + b * cos);
    }
    y
}

#[test]
fn a_thousand_shifts_rewrite_nothing_and_score_as_keys_rotated_anew() {
    let spec = RopeSpec::plain(DIM, Pairing::Interleaved, 100_000.0);
    for codec in [Codec::F16, Codec::Int8, Codec::Int4Plain] {
        let form = KvForm::both(codec.form());
        let layer = LayerShape::plain(1, DIM, form);
        let mut store = Store::new(StoreOptions {
            layers: vec![layer],
            zones: Zones {
                sinks: 0,
                recent: 0,
            },
            ..StoreOptions::default()
        })
        .unwrap();
        let pool = ThreadPool::new(1);
        let exec = Exec {
            backend: Backend::best(),
            pool: &pool,
        };
        let mut noise = Noise(7);
        let id = store.open().unwrap();
        let params = WindowParams {
            anchors: ANCHORS,
            window: WINDOW,
        };
        let (mut position, mut shifts, mut first) = (0u64, 0, None);
        while shifts < SHIFTS {
            let plan = window::plan(&store.snapshot(id).unwrap(), &params);
            if !plan.is_empty() {
                store.apply(id, &plan).unwrap();
                shifts += 1;
                let (bytes, rows) = anchors(&store, id, position / 32);
                let (before, _) = first.get_or_insert((bytes.clone(), rows.clone()));
                assert!(*before == bytes, "{codec}: shift {shifts} touched a key");
                let shift = store.shifts(id)[0];
                assert_eq!(shift, position - ANCHORS - WINDOW);

                // The query as the model rotates it for the moved segment, against keys that are
                // rotated anew in f64 to stand where they count as standing.
                let query = noise.values(DIM);
                let mut angles = vec![0.0; spec.angles_len()];
                spec.angles(position - shift, &mut angles);
                let mut moved = query.clone();
                rotate(Backend::best(), &mut moved, &angles, &spec);
                let ideal = turned(&spec, &query, position as f64);
                for slot in [0, 13, 31] {
                    let key: Vec<f32> = (0..DIM).map(|d| rows[d * 32 + slot]).collect();
                    let dot = |a: f64, (q, k): (f64, f64)| a + q * k;
                    let found = moved.iter().zip(&key);
                    let found = found
                        .map(|(q, k)| (f64::from(*q), f64::from(*k)))
                        .fold(0.0, dot);
                    if codec == Codec::F16 {
                        let anew = turned(&spec, &key, shift as f64);
                        let truth = ideal.iter().copied().zip(anew).fold(0.0, dot);
                        let length =
                            |x: &[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
                        let error = (found - truth).abs() / (length(&query) * length(&key));
                        assert!(error < SCORE_ERROR_MAX, "shift {shifts}: {error}");
                    }
                }
            }
            let mut step = store
                .begin(&[SequenceGrowth {
                    id,
                    position,
                    tokens: 32,
                }])
                .unwrap();
            let (mut k, v) = (noise.values(32 * DIM), noise.values(32 * DIM));
            for (i, key) in k.chunks_exact_mut(DIM).enumerate() {
                let mut angles = vec![0.0; spec.angles_len()];
                spec.angles(position + i as u64, &mut angles);
                rotate(Backend::best(), key, &angles, &spec);
            }
            store.write(exec, &mut step, id, 0, &k, &v).unwrap();
            store.settle(&mut step, 0);
            store.commit(step).unwrap();
            position += 32;
        }
        assert_eq!(position, ANCHORS + WINDOW + 32 * (SHIFTS as u64 + 1));
    }
}
