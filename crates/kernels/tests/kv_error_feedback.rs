//! Keys rounded with their queries in view: every backend writes the scalar bytes, a slot depends on itself
//! alone, nothing to carry changes nothing, and what queries see of the error shrinks.

use haversack_kernels::cpu::Backend;
use haversack_kernels::format::kv::code;
use haversack_kernels::format::kv::error_feedback::{self, ErrorFeedback, RIDGE, factors};
use haversack_kernels::format::kv::{BLOCK_SLOTS, Codec, Form, KvForm, KvShape};

const BOOKS: [Codec; 4] = [Codec::Int5, Codec::Int4, Codec::Int3, Codec::Int2];
/// Tiny, no power of two, SmolLM2, Phi-3, Llama, Gemma.
const HEADS: [usize; 6] = [16, 20, 64, 96, 128, 256];

/// A small generator of its own, so that a test's numbers never change under it.
struct Noise(u64);

impl Noise {
    fn unit(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as f64 + 0.5) / (1u64 << 31) as f64
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    fn rows(&mut self, values: usize) -> Vec<f32> {
        (0..values).map(|_| self.normal() as f32).collect()
    }
}

/// Queries that prefer a few directions: (query, dim).
fn queries(noise: &mut Noise, dim: usize) -> Vec<f64> {
    let favourites: Vec<f64> = (0..4 * dim).map(|_| noise.normal()).collect();
    let mut queries = Vec::new();
    for _ in 0..4 * dim {
        let by: [f64; 4] = std::array::from_fn(|_| noise.normal());
        queries.extend((0..dim).map(|d| {
            let liked: f64 = (0..4).map(|f| by[f] * favourites[f * dim + d]).sum();
            liked + 0.3 * noise.normal()
        }));
    }
    queries
}

fn moments(dim: usize, queries: &[f64]) -> Vec<f64> {
    let mut moments = vec![0.0; dim * dim];
    for q in queries.chunks_exact(dim) {
        for i in 0..dim {
            for j in 0..dim {
                moments[i * dim + j] += q[i] * q[j];
            }
        }
    }
    moments
}

fn shape(kv_heads: usize, head_dim: usize, codec: Codec) -> KvShape {
    KvShape {
        kv_heads,
        head_dim,
        form: KvForm::both(codec.form()),
    }
}

#[test]
fn every_backend_writes_the_same_bytes_and_a_slot_depends_on_itself_alone() {
    let mut noise = Noise(7);
    for dim in HEADS {
        let two: Vec<f64> = (0..2)
            .flat_map(|_| moments(dim, &queries(&mut noise, dim)))
            .collect();
        let carry = ErrorFeedback::new(dim, &two);
        for codec in BOOKS {
            let shape = shape(2, dim, codec);
            let mut rows = noise.rows(BLOCK_SLOTS * shape.row());
            rows[3] = f32::NAN;
            rows[shape.row() + 5] = f32::INFINITY;
            rows[2 * shape.row()..3 * shape.row()].fill(0.0);
            let mut scalar = vec![0xa5; shape.k_bytes()];
            error_feedback::write_k_rows(Backend::SCALAR, shape, &carry, &mut scalar, 0, &rows);
            for backend in Backend::available() {
                let mut block = vec![0x5a; shape.k_bytes()];
                error_feedback::write_k_rows(backend, shape, &carry, &mut block, 0, &rows);
                assert!(block == scalar, "{codec} {dim} {}", backend.kind().name());
                let mut alone = vec![0; shape.k_bytes()];
                for (slot, row) in rows.chunks_exact(shape.row()).enumerate().rev() {
                    error_feedback::write_k_rows(backend, shape, &carry, &mut alone, slot, row);
                }
                assert!(alone == scalar, "{codec} {dim} alone");
            }
        }
    }
}

#[test]
fn recoding_is_reading_and_writing() {
    let mut noise = Noise(11);
    for dim in [20, 64, 128] {
        let carry = ErrorFeedback::new(dim, &moments(dim, &queries(&mut noise, dim)));
        let near = Codec::Int8.form();
        let from = shape(1, dim, Codec::Int8);
        let rows = noise.rows(BLOCK_SLOTS * dim);
        let mut src = vec![0; from.k_bytes()];
        code::write_k_rows(Backend::SCALAR, from, &mut src, 0, &rows);
        // (dim, slot)
        let mut read = vec![0.0; dim * BLOCK_SLOTS];
        code::read_k_head(Backend::SCALAR, dim, near, &src, &mut read);
        let rows: Vec<f32> = (0..BLOCK_SLOTS * dim)
            .map(|i| read[i % dim * BLOCK_SLOTS + i / dim])
            .collect();
        for codec in BOOKS {
            let to = shape(1, dim, codec);
            let mut written = vec![0; to.k_bytes()];
            error_feedback::write_k_rows(Backend::SCALAR, to, &carry, &mut written, 0, &rows);
            for backend in Backend::available() {
                let mut recoded = vec![1; to.k_bytes()];
                let form = codec.form();
                error_feedback::recode_k_head(
                    backend,
                    dim,
                    near,
                    &src,
                    form,
                    carry.head(0),
                    &mut recoded,
                );
                assert!(recoded == written, "{codec} {dim}");
            }
        }
    }
}

#[test]
fn nothing_to_carry_changes_nothing() {
    let mut noise = Noise(3);
    for codec in BOOKS {
        for dim in HEADS {
            let shape = shape(1, dim, codec);
            let rows = noise.rows(BLOCK_SLOTS * dim);
            let mut one = vec![0.0; dim * dim];
            (0..dim).for_each(|i| one[i * dim + i] = 2.0);
            let carry = ErrorFeedback::new(dim, &one);
            let (mut with, mut without) = (vec![0; shape.k_bytes()], vec![0; shape.k_bytes()]);
            error_feedback::write_k_rows(Backend::best(), shape, &carry, &mut with, 0, &rows);
            code::write_k_rows(Backend::best(), shape, &mut without, 0, &rows);
            assert!(with == without, "{codec} {dim}");
        }
    }
}

/// Queries of the kind the moments were taken from, but others: the squared error of their scores is
/// far smaller, although that of the keys themselves is larger.
#[test]
fn queries_see_less_of_the_error() {
    for (codec, most) in [
        (Codec::Int5, 0.2),
        (Codec::Int4, 0.2),
        (Codec::Int3, 0.2),
        (Codec::Int2, 0.2),
    ] {
        let mut noise = Noise(5);
        let dim = 64;
        let all = queries(&mut noise, dim);
        let (seen, others) = all.split_at(all.len() / 2);
        let carry = ErrorFeedback::new(dim, &moments(dim, seen));
        let shape = shape(1, dim, codec);
        let rows = noise.rows(BLOCK_SLOTS * dim);
        let (mut with, mut without) = (vec![0; shape.k_bytes()], vec![0; shape.k_bytes()]);
        error_feedback::write_k_rows(Backend::best(), shape, &carry, &mut with, 0, &rows);
        code::write_k_rows(Backend::best(), shape, &mut without, 0, &rows);
        let error = |block: &[u8], form: Form| {
            let mut read = vec![0.0; dim * BLOCK_SLOTS];
            code::read_k_head(Backend::best(), dim, form, block, &mut read);
            let (mut keys, mut scores) = (0.0, 0.0);
            for slot in 0..BLOCK_SLOTS {
                let off: Vec<f64> = (0..dim)
                    .map(|d| f64::from(read[d * BLOCK_SLOTS + slot] - rows[slot * dim + d]))
                    .collect();
                keys += off.iter().map(|e| e * e).sum::<f64>();
                for q in others.chunks_exact(dim) {
                    let score: f64 = q.iter().zip(&off).map(|(q, e)| q * e).sum();
                    scores += score * score;
                }
            }
            (keys, scores)
        };
        let (keys, scores) = error(&with, codec.form());
        let (keys_plain, scores_plain) = error(&without, codec.form());
        let ratio = scores / scores_plain;
        println!("{codec}: scores {ratio:.3}, keys {:.3}", keys / keys_plain);
        assert!(ratio <= most, "{codec}: {ratio}");
        assert!(keys > keys_plain, "{codec}");
    }
}

/// Uᵀ U is the inverse: times the moments it is one.
#[test]
fn factors_of_an_inverse() {
    let dim = 5;
    let at = |i: usize, j: usize| 1.0 / (1.0 + i.abs_diff(j) as f64) + (i * j) as f64 * 0.1;
    let moments: Vec<f64> = (0..dim * dim).map(|n| at(n / dim, n % dim)).collect();
    let u = factors(dim, &moments).unwrap();
    let mean = (0..dim).map(|i| at(i, i)).sum::<f64>() / dim as f64;
    for i in 0..dim {
        for j in 0..dim {
            let inverse =
                |k: usize| -> f64 { (0..dim).map(|l| u[l * dim + i] * u[l * dim + k]).sum() };
            let raised = |k: usize| at(k, j) / mean + if k == j { RIDGE } else { 0.0 };
            let one: f64 = (0..dim).map(|k| inverse(k) * raised(k)).sum();
            assert!((one - f64::from(i == j)).abs() < 1e-9, "{i} {j}: {one}");
            assert!(i <= j || u[i * dim + j] == 0.0);
        }
    }
}

#[test]
fn invalid_moments_feed_nothing_back() {
    for moments in [vec![0.0; 16], vec![f64::NAN; 16], vec![-1.0; 16]] {
        let feedback = ErrorFeedback::new(4, &moments);
        assert_eq!(feedback.head(0).units, [0.0; 4]);
        assert_eq!(feedback.head(0).parts, [0; 6]);
        assert_eq!(feedback.bytes(), ErrorFeedback::bytes_for(1, 4));
    }
    assert_eq!(ErrorFeedback::new(4, &[]).kv_heads(), 0);
}
