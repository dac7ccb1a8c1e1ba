//! The plain reference of attention, in f64 over the numbers as stored.

use super::kv::{Counted, Sequence, Side, value};
use haversack_kernels::attention::{BLOCK_SLOTS, KvView, MassStatistic};
use haversack_kernels::cpu::Backend;
use haversack_kernels::format::kv::{Codec, Form, Rotation};
use haversack_kernels::ops;

/// A head in another basis. Hadamard and its inverse are the same; the other is told by `back`.
pub fn turned(turn: Rotation, x: &[f64], back: bool) -> Vec<f64> {
    match turn {
        Rotation::None => x.to_vec(),
        Rotation::Eights => {
            let mut y = x.to_vec();
            for (y, x) in y.chunks_exact_mut(8).zip(x.chunks_exact(8)) {
                y.copy_from_slice(&turned(Rotation::Pairs, x, back));
            }
            y
        }
        Rotation::Pairs => {
            let half = x.len().div_ceil(2);
            let from = |i: usize| if i < half { 2 * i } else { 2 * (i - half) + 1 };
            let mut y = vec![0.0; x.len()];
            for i in 0..x.len() {
                if back {
                    y[from(i)] = x[i];
                } else {
                    y[i] = x[from(i)];
                }
            }
            y
        }
        Rotation::Hadamard => {
            let mut y = Vec::new();
            while y.len() < x.len() {
                let rest = &x[y.len()..];
                let n = 1 << rest.len().ilog2();
                for i in 0..n {
                    let signed = |(j, x): (usize, &f64)| {
                        if (i & j).count_ones() % 2 == 0 {
                            *x
                        } else {
                            -x
                        }
                    };
                    let sum: f64 = rest[..n].iter().enumerate().map(signed).sum();
                    y.push(sum / (n as f64).sqrt());
                }
            }
            y
        }
    }
}

/// One head of one slot, in the basis of the blocks.
fn row(form: Form, side: Side, bytes: &[u8], dim: usize, head: usize, slot: usize) -> Vec<f64> {
    let size = form.head_bytes(dim);
    let head = &bytes[head * size..][..size];
    (0..dim)
        .map(|d| value(side, form, dim, head, slot, d))
        .collect()
}

/// The output of the tokens from `from` on, and what their slots count of each of `counts`.
pub fn ideal(s: &Sequence, from: usize, counts: &[Counted]) -> (Vec<f64>, Vec<Vec<f64>>) {
    let (dim, group) = (s.head_dim, s.heads / s.kv_heads);
    let table = s.table(s.len);
    let all = table.blocks() * BLOCK_SLOTS;
    let mut out = vec![f64::NAN; s.q[0].len()];
    let mut mass = vec![vec![0.0; s.kv_heads * all]; counts.len()];
    // The rows as the last query block saw them; tokens ask in order.
    let mut rows = Vec::new();
    let mut of_block = None;
    for token in from..s.len {
        let position = s.first_position() + token as u64;
        if of_block != Some(position / 32) {
            of_block = Some(position / 32);
            rows = stored_rows(s, &table, position / 32);
        }
        for kv in 0..s.kv_heads {
            let mut mean = vec![0.0; all];
            for head in kv * group..(kv + 1) * group {
                let at = (token * s.heads + head) * dim;
                let mut p = vec![0.0; all];
                let mut total = 0.0;
                let queries: Vec<Query> = (s.q.iter())
                    .map(|q| Query::new(s, &q[at..at + dim], kv))
                    .collect();
                let seen = |far: u64| {
                    far <= position
                        && s.window.is_none_or(|w| far + w > position)
                        && !s.is_hidden(far)
                };
                for slot in &rows {
                    if slot.kv != kv || !seen(slot.position) {
                        continue;
                    }
                    let query = &queries[slot.segment];
                    let score = query.bias + dot(&query.ways[slot.way], &slot.k);
                    p[slot.index] = score.exp();
                    total += p[slot.index];
                }
                if total == 0.0 {
                    // It sees nothing, and gets zeros.
                    total = 1.0;
                }
                let mut weighted = vec![0.0; dim];
                for slot in rows.iter().filter(|slot| slot.kv == kv) {
                    if seen(slot.position) {
                        for (to, v) in weighted.iter_mut().zip(&slot.v) {
                            *to += p[slot.index] * v / total;
                        }
                    }
                }
                out[at..at + dim].copy_from_slice(&turned(s.basis.v, &weighted, true));
                for (mean, p) in mean.iter_mut().zip(&p) {
                    *mean += p / total / group as f64;
                }
            }
            for slot in rows.iter().filter(|slot| slot.kv == kv) {
                if slot.position / 32 != position / 32 {
                    let a = mean[slot.index];
                    for ((count, every), mass) in counts.iter().zip(&mut mass) {
                        if !(position + 1).is_multiple_of(*every) {
                            continue;
                        }
                        let to: &mut f64 = &mut mass[kv * all + slot.index];
                        let weight = |w: &[u16; 32]| f64::from(w[position as usize % 32]);
                        match count {
                            MassStatistic::Sum => *to += a,
                            MassStatistic::Squares => *to += a * a,
                            MassStatistic::Max => *to = to.max(a),
                            MassStatistic::Weighted(w) => *to += a * weight(w) / 32768.0,
                        }
                    }
                }
            }
        }
    }
    (out, mass)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// A query, turned and scaled, as keys meet it.
struct Query {
    /// As it is, in eight bits, in fifteen.
    ways: [Vec<f64>; 3],
    /// What the mean adds to every score.
    bias: f64,
}

impl Query {
    fn new(s: &Sequence, q: &[f32], kv: usize) -> Query {
        let wide: Vec<f64> = q.iter().map(|x| f64::from(*x)).collect();
        let mut exact = turned(s.basis.k, &wide, false);
        exact.iter_mut().for_each(|x| *x *= f64::from(s.scale()));
        // Rounded from the very numbers that attention rounds, or some would go the other way.
        let mut narrow = q.to_vec();
        ops::rotate_head(Backend::SCALAR, s.basis.k, &mut narrow);
        ops::scale(Backend::SCALAR, &mut narrow, s.scale());
        let greatest = narrow.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
        let rounded = |limit: f32| {
            let number = |x: &f32| f64::from((x * (limit / greatest)).round_ties_even());
            let unit = f64::from(greatest / limit);
            narrow.iter().map(|x| number(x) * unit).collect()
        };
        let mean = s.mean.as_ref().map(|mean| &mean[kv * q.len()..][..q.len()]);
        let bias = mean.map_or(0.0, |mean| {
            let mean: Vec<f64> = mean.iter().map(|x| f64::from(*x)).collect();
            dot(&exact, &mean)
        });
        Query {
            bias,
            ways: [exact, rounded(127.0), rounded(16256.0)],
        }
    }
}

/// One kept slot of one KV head.
struct Slot {
    kv: usize,
    /// In the table.
    index: usize,
    position: u64,
    segment: usize,
    /// How it meets a query: exact, narrow or wide.
    way: usize,
    k: Vec<f64>,
    v: Vec<f64>,
}

fn stored_rows(s: &Sequence, table: &dyn KvView, query_block: u64) -> Vec<Slot> {
    let dim = s.head_dim;
    let mut slots = Vec::new();
    for b in 0..table.blocks() {
        let block = table.block(b, query_block);
        for kv in 0..s.kv_heads {
            for slot in 0..block.rows {
                let (way, k, v) = match block.sinks {
                    Some(sinks) if slot < sinks.rows => {
                        let exact = |bytes: &[u8]| -> Vec<f64> {
                            let at = 2 * (kv * sinks.rows + slot) * dim;
                            bytes[at..at + 2 * dim]
                                .chunks(2)
                                .map(|h| half::f16::from_le_bytes([h[0], h[1]]).to_f64())
                                .collect()
                        };
                        (0, exact(sinks.k), exact(sinks.v))
                    }
                    _ => (
                        match block.k.form.codec {
                            Codec::F32 | Codec::F16 => 0,
                            Codec::Int8 => 2,
                            _ => 1,
                        },
                        row(block.k.form, Side::K, block.k.bytes, dim, kv, slot),
                        row(block.v.form, Side::V, block.v.bytes, dim, kv, slot),
                    ),
                };
                slots.push(Slot {
                    kv,
                    index: b * BLOCK_SLOTS + slot,
                    position: block.first_position + slot as u64,
                    segment: block.segment,
                    way,
                    k,
                    v,
                });
            }
        }
    }
    slots
}
