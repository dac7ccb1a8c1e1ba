//! A table of blocks for tests, and the dumb twin of attention in f64.

use haversack_kernels::attention::*;
use haversack_kernels::cpu::{Kind, Table};
use haversack_kernels::threads::Pool;
use haversack_kernels::{Exec, attention};

/// A small generator of its own, so that a test's numbers never change under it.
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -1..1.
    pub fn value(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }
}

/// One sequence: shape, queries, and keys and values of `len` tokens.
#[derive(Clone)]
pub struct Sequence {
    pub shape: KvShape,
    pub heads: usize,
    pub softcap: Option<f32>,
    pub window: Option<u64>,
    /// Position of token 0.
    pub first_position: u64,
    pub len: usize,
    /// (token, head, dim)
    pub q: Vec<f32>,
    /// (token, kv_head, dim)
    pub k: Vec<f32>,
    pub v: Vec<f32>,
}

impl Sequence {
    pub fn new(heads: usize, kv_heads: usize, head_dim: usize, len: usize, seed: u64) -> Sequence {
        let mut noise = Noise(seed);
        let shape = KvShape {
            kv_heads,
            head_dim,
            precision: Precision::F16,
        };
        Sequence {
            shape,
            heads,
            softcap: None,
            window: None,
            first_position: 0,
            len,
            // Six times: scores spread over several units, so that the softmax is not flat.
            q: noise
                .values(len * heads * head_dim)
                .iter()
                .map(|x| 6.0 * x)
                .collect(),
            k: noise.values(len * shape.row()),
            v: noise.values(len * shape.row()),
        }
    }

    pub fn scale(&self) -> f32 {
        1.0 / (self.shape.head_dim as f32).sqrt()
    }

    /// Blocks holding the first `len` tokens. What is not written yet is poison: bytes that are
    /// not numbers.
    pub fn table(&self, table: Table, len: usize) -> Blocks {
        let (shape, row) = (self.shape, self.shape.row());
        let mut blocks = Vec::new();
        for first in (0..len).step_by(BLOCK_SLOTS) {
            let rows = (len - first).min(BLOCK_SLOTS);
            let mut k = vec![0xff; shape.k_bytes()];
            let mut v = vec![0xff; shape.v_bytes()];
            let range = first * row..(first + rows) * row;
            write_k_rows(table, shape, &mut k, 0, &self.k[range.clone()]);
            write_v_rows(table, shape, &mut v, 0, &self.v[range]);
            blocks.push((k, v, rows, self.first_position + first as u64));
        }
        Blocks(blocks)
    }
}

/// (k, v, rows, first position)
pub struct Blocks(pub Vec<(Vec<u8>, Vec<u8>, usize, u64)>);

impl KvView for Blocks {
    fn blocks(&self) -> usize {
        self.0.len()
    }
    fn block(&self, i: usize) -> Block<'_> {
        let (k, v, rows, first_position) = &self.0[i];
        Block {
            k,
            v,
            rows: *rows,
            first_position: *first_position,
        }
    }
}

/// What a run leaves: outputs of all tokens, and the mass as (kv_head, slot) of the whole length.
#[derive(Clone, PartialEq)]
pub struct Outcome {
    pub out: Vec<f32>,
    pub sum: Vec<u64>,
    pub sum_sq: Vec<u64>,
}

impl Outcome {
    pub fn bits(&self) -> (Vec<u32>, &[u64], &[u64]) {
        let out = self.out.iter().map(|x| x.to_bits()).collect();
        (out, &self.sum, &self.sum_sq)
    }
}

/// Runs the last `len - from` tokens of each sequence in chunks, all sequences of a chunk in one
/// call.
pub fn run(
    table: Table,
    pool: &Pool,
    sequences: &[&Sequence],
    from: usize,
    chunk: usize,
    with_mass: bool,
) -> Vec<Outcome> {
    let mut scratch = Scratch::new(Need {
        threads: pool.threads(),
        jobs: sequences.len(),
        heads: 1,
        kv_heads: 1,
        head_dim: 1,
        slots: 1,
    });
    let mut outcomes = Vec::new();
    for s in sequences {
        scratch.reserve(Need {
            threads: pool.threads(),
            jobs: sequences.len(),
            heads: s.heads,
            kv_heads: s.shape.kv_heads,
            head_dim: s.shape.head_dim,
            slots: s.len,
        });
        let slots = s.shape.kv_heads * s.len.next_multiple_of(BLOCK_SLOTS);
        outcomes.push(Outcome {
            out: vec![f32::NAN; s.q.len()],
            sum: vec![0; slots],
            sum_sq: vec![0; slots],
        });
    }
    let bytes = scratch.bytes();
    let longest = sequences.iter().map(|s| s.len).max().unwrap_or(0);
    for start in (from..longest).step_by(chunk) {
        let mut parts = Vec::new();
        for (s, outcome) in sequences.iter().zip(&mut outcomes) {
            if start < s.len {
                let end = (start + chunk).min(s.len);
                let blocks = s.table(table, end);
                let slots = s.shape.kv_heads * blocks.0.len() * BLOCK_SLOTS;
                parts.push((
                    *s,
                    start,
                    end,
                    blocks,
                    vec![0; slots],
                    vec![0; slots],
                    outcome,
                ));
            }
        }
        let mut jobs = Vec::new();
        for (s, start, end, blocks, sum, sum_sq, outcome) in &mut parts {
            let row = s.heads * s.shape.head_dim;
            jobs.push(Attend {
                shape: s.shape,
                heads: s.heads,
                scale: s.scale(),
                softcap: s.softcap,
                window: s.window,
                q: &s.q[*start * row..*end * row],
                first_position: s.first_position + *start as u64,
                view: blocks,
                out: &mut outcome.out[*start * row..*end * row],
                mass: with_mass.then_some(Mass { sum, sum_sq }),
            });
        }
        attention::attend(Exec { table, pool }, &mut scratch, &mut jobs);
        drop(jobs);
        for (s, _, _, blocks, sum, sum_sq, outcome) in parts {
            let (here, all) = (blocks.0.len() * 32, s.len.next_multiple_of(32));
            for head in 0..s.shape.kv_heads {
                for slot in 0..here {
                    outcome.sum[head * all + slot] += sum[head * here + slot];
                    outcome.sum_sq[head * all + slot] += sum_sq[head * here + slot];
                }
            }
        }
    }
    assert_eq!(bytes, scratch.bytes(), "attend allocates nothing");
    outcomes
}

/// Attention in f64 over the keys and values as stored: (out, Σa, Σa²).
pub fn ideal(s: &Sequence, from: usize) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let dim = s.shape.head_dim;
    let group = s.heads / s.shape.kv_heads;
    let stored = |x: f32| match s.shape.precision {
        Precision::F16 => half::f16::from_f32(x).to_f64(),
        Precision::F32 => f64::from(x),
    };
    let all = s.len.next_multiple_of(32);
    let mut out = vec![f64::NAN; s.q.len()];
    let mut sum = vec![0.0; s.shape.kv_heads * all];
    let mut sum_sq = sum.clone();
    for token in from..s.len {
        let position = s.first_position + token as u64;
        for kv in 0..s.shape.kv_heads {
            let mut mean = vec![0.0; s.len];
            for head in kv * group..(kv + 1) * group {
                let at = (token * s.heads + head) * dim;
                let mut p = vec![0.0; s.len];
                let mut total = 0.0;
                for slot in 0..=token {
                    let far = s.first_position + slot as u64;
                    if s.window.is_some_and(|w| far + w <= position) {
                        continue;
                    }
                    let key = &s.k[(slot * s.shape.kv_heads + kv) * dim..][..dim];
                    let dot: f64 = s.q[at..at + dim]
                        .iter()
                        .zip(key)
                        .map(|(q, k)| f64::from(*q) * stored(*k))
                        .sum();
                    let mut score = dot * f64::from(s.scale());
                    if let Some(cap) = s.softcap {
                        score = f64::from(cap) * (score / f64::from(cap)).tanh();
                    }
                    p[slot] = score.exp();
                    total += p[slot];
                }
                for d in 0..dim {
                    let weighted: f64 = (0..=token)
                        .map(|slot| {
                            let v = s.v[(slot * s.shape.kv_heads + kv) * dim + d];
                            p[slot] * stored(v)
                        })
                        .sum();
                    out[at + d] = weighted / total;
                }
                for (mean, p) in mean.iter_mut().zip(&p) {
                    *mean += p / total / group as f64;
                }
            }
            for (slot, a) in mean.iter().enumerate() {
                let far = s.first_position + slot as u64;
                if far / 32 != position / 32 {
                    sum[kv * all + slot] += a;
                    sum_sq[kv * all + slot] += a * a;
                }
            }
        }
    }
    (out, sum, sum_sq)
}

/// The tables of this CPU; prints once what it cannot run.
pub fn tables() -> Vec<Table> {
    static PRINTED: std::sync::Once = std::sync::Once::new();
    PRINTED.call_once(|| {
        for kind in Kind::ALL.into_iter().filter(|k| Table::new(*k).is_none()) {
            println!("not run here: table {}", kind.name());
        }
    });
    Table::available().collect()
}
