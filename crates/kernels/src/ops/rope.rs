//! Rotary positions (RoPE): pairs of a head's values rotate by an angle that grows with the position.
//!
//! The model chooses the frequencies (linear, llama3 and yarn scaling, per-pair factors): here they come
//! ready, one per pair.
//!
//! An angle is `position * frequency` in f64: at a million tokens its error is 1e-10, far below
//! what the f32 cosine can show, so no position is worse than another.

use crate::simd::{Simd, simd_fn};

/// Which two values of a head make a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// `(0, 1), (2, 3), …`
    Interleaved,
    /// `(0, n/2), (1, n/2 + 1), …` for `n` rotated values
    Halves,
}

/// How one kind of layer rotates.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Values rotated at the front of a head, twice the number of pairs; the rest stay.
    pub dims: usize,
    pub pairing: Pairing,
    /// Per pair, already scaled.
    pub freqs: Vec<f64>,
    /// Yarn's attention factor: scales the rotated values. 1 elsewhere.
    pub magnitude: f32,
}

impl RopeSpec {
    /// The plain form: `base^(-2 i / dims)`.
    pub fn plain(dims: usize, pairing: Pairing, base: f64) -> RopeSpec {
        RopeSpec {
            dims,
            pairing,
            freqs: (0..dims / 2)
                .map(|i| base.powf(-2.0 * i as f64 / dims as f64))
                .collect(),
            magnitude: 1.0,
        }
    }

    /// Values [`RopeSpec::angles`] writes: a cosine and a sine per pair.
    pub fn angles_len(&self) -> usize {
        2 * self.freqs.len()
    }

    /// Cosine and sine of each pair at a position: `out = [cos 0, sin 0, cos 1, sin 1, …]`.
    pub fn angles(&self, position: u64, out: &mut [f32]) {
        assert_eq!(out.len(), self.angles_len());
        let (pairs, _) = out.as_chunks_mut::<2>();
        for (pair, freq) in pairs.iter_mut().zip(&self.freqs) {
            let (sin, cos) = (position as f64 * freq).sin_cos();
            let magnitude = f64::from(self.magnitude);
            *pair = [(cos * magnitude) as f32, (sin * magnitude) as f32];
        }
    }
}

/// Rotates one head in place by the angles of its position.
pub fn rotate(backend: crate::cpu::Backend, head: &mut [f32], angles: &[f32], spec: &RopeSpec) {
    assert_eq!(angles.len(), spec.dims);
    let head = &mut head[..spec.dims];
    match spec.pairing {
        Pairing::Interleaved => interleaved(backend, head, angles),
        Pairing::Halves => halves(backend, head, angles),
    }
}

/// `(a cos - b sin, a sin + b cos)`: one product rounded, the other fused.
#[inline(always)]
fn rotate_pair(a: f32, b: f32, angle: [f32; 2]) -> (f32, f32) {
    let [cos, sin] = angle;
    (a.mul_add(cos, -(b * sin)), a.mul_add(sin, b * cos))
}

simd_fn! {
    fn interleaved(head: &mut [f32], angles: &[f32]) = each_interleaved, simd_interleaved;
}

#[inline(always)]
fn each_interleaved(head: &mut [f32], angles: &[f32]) {
    let (pairs, _) = head.as_chunks_mut::<2>();
    let (angles, _) = angles.as_chunks::<2>();
    for (pair, angle) in pairs.iter_mut().zip(angles) {
        (pair[0], pair[1]) = rotate_pair(pair[0], pair[1], *angle);
    }
}

// No reduction, so the scalar loop compiled with the backend's instructions gives the same bits.
#[inline(always)]
fn simd_interleaved<S: Simd>(_: S, head: &mut [f32], angles: &[f32]) {
    each_interleaved(head, angles);
}

simd_fn! {
    fn halves(head: &mut [f32], angles: &[f32]) = each_halves, simd_halves;
}

#[inline(always)]
fn each_halves(head: &mut [f32], angles: &[f32]) {
    let (first, second) = head.split_at_mut(angles.len() / 2);
    let (angles, _) = angles.as_chunks::<2>();
    for ((a, b), angle) in first.iter_mut().zip(second).zip(angles) {
        (*a, *b) = rotate_pair(*a, *b, *angle);
    }
}

#[inline(always)]
fn simd_halves<S: Simd>(_: S, head: &mut [f32], angles: &[f32]) {
    each_halves(head, angles);
}
