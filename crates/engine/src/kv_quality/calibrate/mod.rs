//! Statistics of a model's keys and queries, measured once on a short built-in text.
//!
//! *Means*: most of a key's energy is one constant vector for each layer and head. Subtracted before
//! rotation and coding, it leaves the codes to what differs between tokens. *Moments*: queries prefer some
//! directions by far, and an error of a key matters as much as queries point along it; their second
//! moments tell the encoder where an error does least harm ([`ErrorFeedback`]).
//!
//! Both are measured before RoPE, where they do not depend on the position, and used as averages over the
//! positions of a context after RoPE ([`KeyStats::mean`], [`KeyStats::error_feedback`]).
//!
//! Deterministic: the same model gives the same numbers on every machine and thread count. Saved in a
//! small file named by the model's fingerprint; a damaged file is measured again.

use super::exact_runner;
use super::measurement_file;
use crate::model::Model;
use crate::model::{Config, LayerConfig};
use crate::step::runner::{LayerCapture, StepMode};
use crate::step::sequence::SequenceState;
use crate::step::{LogitRows, StepSpan};
use haversack_cache::{CacheResult, LayerShape, StoreOptions};
use haversack_kernels::cpu::Backend;
use haversack_kernels::format::kv::Rotation;
use haversack_kernels::format::kv::error_feedback::ErrorFeedback;
use haversack_kernels::ops::rope::{Pairing, RopeSpec};
use haversack_kernels::ops::rotation::rotate_head;
use haversack_text::tokenizer::EncodeOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TEXT: &str = include_str!("text.txt");

/// The first tokens of a built-in text.
pub(crate) fn tokens_of(model: &Model, text: &str, tokens: usize) -> Vec<u32> {
    let encode = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let mut ids = model.tokenizer().encode(text, encode).unwrap_or_default();
    ids.truncate(tokens.min(model.config().context));
    ids
}

/// First tokens of the text that are not counted: their keys are unlike all others.
const SKIP: usize = 4;

/// Tokens times bytes of weights that are measured without being asked for: about two seconds on two
/// cores of a small machine.
const WORK_MAX: u64 = 150 << 30;
/// With fewer tokens a mean is too noisy.
const TOKENS_MIN: usize = 128;
const TOKENS_MAX: usize = 1536;

/// Tokens of a step: their keys and queries are all in memory at once. A multiple of [`MOMENT_STEP`].
const PORTION: usize = 64;
/// One token in this many counts for the moments: they are many numbers, and queries are many too.
const MOMENT_STEP: usize = 4;

/// Statistics of keys and queries before RoPE.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyStats {
    /// (layer)(kv_head, dim)
    means: Vec<Vec<f32>>,
    /// (layer)(kv_head, i, j >= i): products of the values of all queries that meet a KV head.
    moments: Vec<Vec<f32>>,
}

/// How many tokens a model can be measured with unasked; `None` = too few to be worth it.
pub fn tokens_affordable(weights_bytes: u64) -> Option<usize> {
    let tokens = usize::try_from(WORK_MAX / weights_bytes.max(1)).unwrap_or(usize::MAX);
    (tokens >= TOKENS_MIN).then_some(tokens.min(TOKENS_MAX))
}

/// The file of a model's statistics.
pub fn file(model: &Model, dir: &Path) -> PathBuf {
    measurement_file::path(model, dir, "keys")
}

impl KeyStats {
    /// Reads the built-in text with keys and values in f16 and adds up keys, and products of queries. Layer after layer, so
    /// that only the stream of the text and the keys and values of one layer are in memory: 5 MB of SmolLM2, not 40.
    fn measure(
        model: &Arc<Model>,
        threads: usize,
        tokens: usize,
        arenas: &StoreOptions,
    ) -> CacheResult<KeyStats> {
        let ids = tokens_of(model, TEXT, tokens);
        let config = model.config();
        let mut stats = KeyStats {
            means: Vec::new(),
            moments: Vec::new(),
        };
        // (token, dim)
        let mut stream = vec![0.0; ids.len() * config.dim];
        for (layer, c) in config.layers.iter().enumerate() {
            let mut runner = exact_runner(model, layer..layer + 1, threads, true, arenas)?;
            let sequence = runner.open(None, SequenceState::default())?;
            let mut sums = vec![0.0; c.kv_heads * c.head_dim];
            let mut products = vec![0.0; c.kv_heads * half_square(c.head_dim)];
            let portion = runner.chunk_for(None).min(PORTION);
            let portions = ids
                .chunks(portion)
                .zip(stream.chunks_mut(portion * config.dim));
            let mut position = 0;
            for (tokens, stream) in portions {
                let span = StepSpan::new(sequence, position as u64, tokens, LogitRows::Nothing);
                let skip = SKIP.saturating_sub(position);
                let mut take = |captured: LayerCapture| {
                    let (keys, queries) = (&captured.keys, &captured.queries);
                    for row in keys.chunks_exact(sums.len()).skip(skip) {
                        let sums = sums.iter_mut().zip(row);
                        sums.for_each(|(s, k): (&mut f64, &f32)| *s += f64::from(*k));
                    }
                    let rows = queries.chunks_exact(c.heads * c.head_dim).enumerate();
                    for (_, row) in rows.skip(skip).filter(|(r, _)| r % MOMENT_STEP == 0) {
                        add_products(c, row, &mut products);
                    }
                };
                let take = &mut take;
                let mode = StepMode::Layer {
                    layer,
                    stream,
                    take,
                };
                runner.step(&[span], mode)?;
                position += tokens.len();
            }
            let count = position.saturating_sub(SKIP).max(1) as f64;
            let mean = |sum: Vec<f64>| sum.iter().map(|s| (s / count) as f32).collect();
            stats.means.push(mean(sums));
            stats.moments.push(mean(products));
        }
        Ok(stats)
    }

    /// Reads the statistics from the file in `dir`, or measures them and writes it. A file that cannot be read or written
    /// is no error.
    pub fn load_or_measure(
        model: &Arc<Model>,
        threads: usize,
        tokens: usize,
        dir: Option<&Path>,
        arenas: &StoreOptions,
    ) -> CacheResult<KeyStats> {
        let path = dir.map(|dir| file(model, dir));
        if let Some(path) = &path
            && let Some(stats) = KeyStats::read(path, model.config())
        {
            return Ok(stats);
        }
        let stats = KeyStats::measure(model, threads, tokens, arenas)?;
        let values = stats.means.iter().chain(&stats.moments).flatten();
        measurement_file::save(path.as_deref(), "key statistics", MAGIC, values.copied());
        Ok(stats)
    }

    fn read(path: &Path, config: &Config) -> Option<KeyStats> {
        let layers = config.layers.iter();
        let widths: Vec<usize> = layers.clone().map(|c| c.kv_heads * c.head_dim).collect();
        let products = layers.map(|c| c.kv_heads * half_square(c.head_dim));
        let products: Vec<usize> = products.collect();
        let count = widths.iter().chain(&products).sum();
        let mut numbers = measurement_file::read(path, MAGIC, count)?.into_iter();
        let mut lists = |sizes: &[usize]| -> Vec<Vec<f32>> {
            let lists = sizes.iter().map(|&n| numbers.by_ref().take(n).collect());
            lists.collect()
        };
        let (means, moments) = (lists(&widths), lists(&products));
        Some(KeyStats { means, moments })
    }

    /// What is subtracted from every roped key of a layer: the mean over `positions` positions of the
    /// roped mean.
    pub fn mean(&self, config: &Config, layer: usize, positions: u64) -> Vec<f32> {
        let c = &config.layers[layer];
        let spec = &config.ropes[c.rope];
        let turns = spec.freqs.iter().map(|&freq| mean_turn(freq, positions));
        let turns: Vec<(f64, f64)> = turns.collect();
        let mut mean = self.means[layer].clone();
        for head in mean.chunks_exact_mut(c.head_dim) {
            turn_by(head, spec, &turns);
        }
        mean
    }

    /// How rounding errors of a layer's keys are fed back, in the basis of the blocks.
    pub fn error_feedback(
        &self,
        config: &Config,
        layer: usize,
        positions: u64,
        basis: Rotation,
    ) -> ErrorFeedback {
        let c = &config.layers[layer];
        let dim = c.head_dim;
        let mut moments = Vec::with_capacity(c.kv_heads * dim * dim);
        for packed in self.moments[layer].chunks_exact(half_square(dim)) {
            let mut square = unpacked(dim, packed);
            over_positions(&mut square, dim, &config.ropes[c.rope], positions);
            // M becomes T M Tᵀ: rows, and columns as rows.
            for _ in 0..2 {
                for row in square.chunks_exact_mut(dim) {
                    rotate_head(Backend::best(), basis, row);
                }
                transpose(&mut square, dim);
            }
            moments.extend(square.iter().map(|&x| f64::from(x)));
        }
        ErrorFeedback::new(dim, &moments)
    }

    /// What the codec of a layer uses: the mean to subtract from its keys, and how their rounding errors are fed back.
    pub(crate) fn for_layer(
        &self,
        config: &Config,
        layer: usize,
        shape: &LayerShape,
    ) -> (Option<Vec<f32>>, Option<ErrorFeedback>) {
        let positions = config.context as u64;
        let basis = shape.basis().k;
        let mean = (basis == Rotation::Hadamard).then(|| self.mean(config, layer, positions));
        let feedback = uses_error_feedback(shape)
            .then(|| self.error_feedback(config, layer, positions, basis));
        (mean, feedback)
    }
}

/// Whether rounding the keys of a layer looks at its queries.
pub(crate) fn uses_error_feedback(layer: &LayerShape) -> bool {
    layer.basis().k == Rotation::Hadamard && ErrorFeedback::fits(layer.far.k, layer.head_dim)
}

const MAGIC: &[u8] = b"haversack keys 1\n";

/// Numbers on and above the diagonal.
fn half_square(dim: usize) -> usize {
    dim * (dim + 1) / 2
}

/// Adds the products of every query head in a row to those of its KV head.
fn add_products(c: &LayerConfig, row: &[f32], products: &mut [f64]) {
    let group = c.heads / c.kv_heads;
    let heads = row.chunks_exact(c.head_dim).enumerate();
    for (head, q) in heads {
        let at = head / group * half_square(c.head_dim);
        let mut to = &mut products[at..at + half_square(c.head_dim)];
        for (i, &x) in q.iter().enumerate() {
            let (line, rest) = to.split_at_mut(q.len() - i);
            for (to, &y) in line.iter_mut().zip(&q[i..]) {
                *to += f64::from(x) * f64::from(y);
            }
            to = rest;
        }
    }
}

fn unpacked(dim: usize, packed: &[f32]) -> Vec<f32> {
    let mut square = vec![0.0; dim * dim];
    let mut values = packed.iter();
    for i in 0..dim {
        for (j, &value) in (i..dim).zip(&mut values) {
            square[i * dim + j] = value;
            square[j * dim + i] = value;
        }
    }
    square
}

fn transpose(square: &mut [f32], dim: usize) {
    for i in 0..dim {
        for j in 0..i {
            square.swap(i * dim + j, j * dim + i);
        }
    }
}

/// Moments of vectors become those of the same vectors roped to every position alike.
///
/// Two pairs as complex numbers `a` and `b`: what is left of `a b̄` turns by the difference of their
/// angles, what is left of `a b` by the sum. A value that is not roped turns with its partner alone.
fn over_positions(square: &mut [f32], dim: usize, spec: &RopeSpec, positions: u64) {
    let pairs = spec.dims / 2;
    let place = |pair: usize| places(spec, pair);
    let magnitude = f64::from(spec.magnitude);
    for a in 0..pairs {
        let (ax, ay) = place(a);
        for b in a..pairs {
            let (bx, by) = place(b);
            let at = |i: usize, j: usize| f64::from(square[i * dim + j]);
            let (xx, yy, xy, yx) = (at(ax, bx), at(ay, by), at(ax, by), at(ay, bx));
            let apart = mean_turn(spec.freqs[a] - spec.freqs[b], positions);
            let both = mean_turn(spec.freqs[a] + spec.freqs[b], positions);
            let apart = times((xx + yy, yx - xy), apart);
            let both = times((xx - yy, xy + yx), both);
            let by_two = 0.5 * magnitude * magnitude;
            for (i, j, value) in [
                (ax, bx, apart.0 + both.0),
                (ay, by, apart.0 - both.0),
                (ax, by, both.1 - apart.1),
                (ay, bx, both.1 + apart.1),
            ] {
                square[i * dim + j] = (by_two * value) as f32;
                square[j * dim + i] = (by_two * value) as f32;
            }
        }
        let turned = mean_turn(spec.freqs[a], positions);
        for other in spec.dims..dim {
            let pair = (
                f64::from(square[ax * dim + other]),
                f64::from(square[ay * dim + other]),
            );
            let (x, y) = times(pair, turned);
            for (i, value) in [(ax, x), (ay, y)] {
                square[i * dim + other] = (magnitude * value) as f32;
                square[other * dim + i] = (magnitude * value) as f32;
            }
        }
    }
}

fn times(a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

/// Where the two values of a pair stand in a head.
fn places(spec: &RopeSpec, pair: usize) -> (usize, usize) {
    match spec.pairing {
        Pairing::Interleaved => (2 * pair, 2 * pair + 1),
        Pairing::Halves => (pair, pair + spec.dims / 2),
    }
}

/// The mean of `e^(i angle p)` over `p = 0 .. n`: how much of a pair is left, and where it points.
fn mean_turn(angle: f64, n: u64) -> (f64, f64) {
    let half = 0.5 * angle;
    let n = n.max(1) as f64;
    // Whole turns and none are the same; a geometric series otherwise.
    let size = match half.sin() {
        sin if sin.abs() < 1e-12 => 1.0,
        sin => (n * half).sin() / (n * sin),
    };
    let (sin, cos) = ((n - 1.0) * half).sin_cos();
    (size * cos, size * sin)
}

fn turn_by(head: &mut [f32], spec: &RopeSpec, turns: &[(f64, f64)]) {
    let magnitude = f64::from(spec.magnitude);
    for (pair, &by) in turns.iter().enumerate() {
        let (a, b) = places(spec, pair);
        let (x, y) = times((f64::from(head[a]), f64::from(head[b])), by);
        head[a] = (x * magnitude) as f32;
        head[b] = (y * magnitude) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIM: usize = 12;

    fn spec(pairing: Pairing) -> RopeSpec {
        RopeSpec {
            magnitude: 1.25,
            ..RopeSpec::plain(8, pairing, 50.0)
        }
    }

    fn head(seed: usize) -> Vec<f32> {
        (0..DIM)
            .map(|d| ((seed * 31 + d * 17) % 23) as f32 / 11.0 - 1.0)
            .collect()
    }

    fn roped(spec: &RopeSpec, position: u64, head: &[f32]) -> Vec<f64> {
        let mut head: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
        for (pair, freq) in spec.freqs.iter().enumerate() {
            let (a, b) = places(spec, pair);
            let (sin, cos) = (position as f64 * freq).sin_cos();
            let (x, y) = times((head[a], head[b]), (cos, sin));
            head[a] = x * f64::from(spec.magnitude);
            head[b] = y * f64::from(spec.magnitude);
        }
        head
    }

    /// Against roping to every position and adding up.
    #[test]
    fn averages_over_positions_are_those_of_every_position() {
        let heads: Vec<Vec<f32>> = (0..5).map(head).collect();
        for pairing in [Pairing::Interleaved, Pairing::Halves] {
            let spec = spec(pairing);
            for n in [1, 7, 100] {
                let mut square = vec![0.0f32; DIM * DIM];
                let mut expected = vec![0.0f64; DIM * DIM];
                let mut mean = vec![0.0f64; DIM];
                for x in &heads {
                    for (i, j) in (0..DIM * DIM).map(|n| (n / DIM, n % DIM)) {
                        square[i * DIM + j] += x[i] * x[j];
                    }
                    for p in 0..n {
                        let x = roped(&spec, p, x);
                        for (i, j) in (0..DIM * DIM).map(|n| (n / DIM, n % DIM)) {
                            expected[i * DIM + j] += x[i] * x[j] / n as f64;
                        }
                    }
                }
                for p in 0..n {
                    let roped = roped(&spec, p, &heads[0]);
                    mean.iter_mut()
                        .zip(roped)
                        .for_each(|(m, x)| *m += x / n as f64);
                }
                over_positions(&mut square, DIM, &spec, n);
                for (found, expected) in square.iter().zip(&expected) {
                    assert!(
                        (f64::from(*found) - expected).abs() < 1e-5,
                        "{pairing:?} {n}"
                    );
                }
                let mut head = heads[0].clone();
                let turns: Vec<_> = spec.freqs.iter().map(|&f| mean_turn(f, n)).collect();
                turn_by(&mut head, &spec, &turns);
                for (found, expected) in head.iter().zip(&mean) {
                    assert!(
                        (f64::from(*found) - expected).abs() < 1e-6,
                        "{pairing:?} {n}"
                    );
                }
            }
        }
    }

    #[test]
    fn products_are_of_the_queries_that_meet_a_head() {
        let c = LayerConfig {
            heads: 4,
            kv_heads: 2,
            head_dim: 2,
            ffn: 0,
            rope: 0,
            window: None,
            score_scale: 1.0,
        };
        let mut products = vec![0.0; 2 * half_square(2)];
        add_products(&c, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], &mut products);
        assert_eq!(products, [10.0, 14.0, 20.0, 74.0, 86.0, 100.0]);
        let packed: Vec<f32> = products[..3].iter().map(|&x| x as f32).collect();
        assert_eq!(unpacked(2, &packed), [10.0, 14.0, 14.0, 20.0]);
    }
}
