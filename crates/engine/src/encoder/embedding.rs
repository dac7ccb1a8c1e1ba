//! The direction of a text, and the small form of it that turns keep.
//!
//! ```text
//! Embedding   384 × f32, length 1                                  1536 bytes
//! Stored      f32 scale, little-endian, 384 × i8                    388 bytes
//! ```
//!
//! A stored value is within half a step of the value, and a step is the greatest value's 127th part:
//! 0.0013 for a sentence, whose greatest value is about 0.16, and 0.0032 for an empty text. The
//! similarities of the reference texts move by 0.0018 at most; tests hold them below 0.003. Half floats would be ten times as exact in twice the bytes, and no threshold of
//! relevance needs that.

use haversack_kernels::cpu::Backend;
use haversack_kernels::ops;

/// Values of an embedding.
pub const DIMENSIONS: usize = 384;

/// Bytes of a stored embedding.
pub const STORED_BYTES: usize = 4 + DIMENSIONS;

/// How far from 1 the length of a stored embedding may be: rounding moves it by some 0.0002.
const LENGTH_SLACK: f32 = 0.02;

/// A direction of length 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embedding([f32; DIMENSIONS]);

impl Embedding {
    /// Scales `x` to length 1; `None` where it has no direction: it is zero, or holds a number that is not finite.
    pub fn of(mut x: [f32; DIMENSIONS]) -> Option<Embedding> {
        let backend = Backend::best();
        let length = ops::dot_self(backend, &x).sqrt();
        if !length.is_finite() || length < f32::MIN_POSITIVE {
            return None;
        }
        for x in &mut x {
            *x /= length;
        }
        Some(Embedding(x))
    }

    pub fn values(&self) -> &[f32; DIMENSIONS] {
        &self.0
    }

    /// The small form.
    pub fn store(&self) -> StoredEmbedding {
        let greatest = self.0.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let scale = greatest / 127.0;
        // Length 1: some value is at least 0.05, and the quotient is within 127.
        let codes = self.0.map(|x| (x / scale).round_ties_even() as i8);
        StoredEmbedding::new(scale, codes)
    }
}

/// The cosine of the angle between two texts: 1 for the same direction, about 0 for unrelated ones.
/// The same bits on every machine.
pub fn similarity(a: &Embedding, b: &Embedding) -> f32 {
    ops::dot(Backend::best(), &a.0, &b.0)
}

/// An embedding in 388 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoredEmbedding {
    scale: f32,
    codes: [i8; DIMENSIONS],
    /// Of the codes.
    length: f32,
}

/// Why bytes are not a stored embedding.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum StoredError {
    #[error("a stored embedding has {STORED_BYTES} bytes, not {0}")]
    Bytes(usize),
    #[error("a stored embedding has the length {0}, not 1")]
    Length(f32),
}

impl StoredEmbedding {
    fn new(scale: f32, codes: [i8; DIMENSIONS]) -> StoredEmbedding {
        let length = (dot(&codes, &codes) as f32).sqrt();
        StoredEmbedding {
            scale,
            codes,
            length,
        }
    }

    pub fn to_bytes(&self) -> [u8; STORED_BYTES] {
        let mut bytes = [0; STORED_BYTES];
        bytes[..4].copy_from_slice(&self.scale.to_le_bytes());
        for (byte, code) in bytes[4..].iter_mut().zip(self.codes) {
            *byte = code.to_le_bytes()[0];
        }
        bytes
    }

    /// Refuses bytes that [`StoredEmbedding::to_bytes`] does not write.
    pub fn from_bytes(bytes: &[u8]) -> Result<StoredEmbedding, StoredError> {
        let Ok(bytes) = <&[u8; STORED_BYTES]>::try_from(bytes) else {
            return Err(StoredError::Bytes(bytes.len()));
        };
        let [a, b, c, d, codes @ ..] = bytes;
        let codes = codes.map(|byte| i8::from_le_bytes([byte]));
        let stored = StoredEmbedding::new(f32::from_le_bytes([*a, *b, *c, *d]), codes);
        let length = stored.scale * stored.length;
        // Written so that NaN is refused.
        if (length - 1.0).abs() <= LENGTH_SLACK {
            return Ok(stored);
        }
        Err(StoredError::Length(length))
    }

    /// [`similarity`] of two stored embeddings; exact but for their rounding.
    pub fn similarity(&self, other: &StoredEmbedding) -> f32 {
        dot(&self.codes, &other.codes) as f32 / (self.length * other.length)
    }

    /// The values that the codes stand for.
    pub fn values(&self) -> [f32; DIMENSIONS] {
        self.codes.map(|code| f32::from(code) * self.scale)
    }
}

/// At most 384 × 128², which an i32 and an f32 hold exactly.
fn dot(a: &[i8; DIMENSIONS], b: &[i8; DIMENSIONS]) -> i32 {
    let pairs = a.iter().zip(b);
    pairs.map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(step: f32) -> Embedding {
        Embedding::of(std::array::from_fn(|i| (i as f32 * step).sin())).unwrap()
    }

    #[test]
    fn a_direction_has_length_one() {
        let a = wave(0.1);
        assert!((similarity(&a, &a) - 1.0).abs() < 1e-6);
        for x in [0.0, f32::NAN, f32::INFINITY, 1e-30] {
            assert_eq!(Embedding::of([x; DIMENSIONS]), None, "{x}");
        }
    }

    #[test]
    fn stored_is_nearly_the_same() {
        for (a, b) in [
            (wave(0.1), wave(0.11)),
            (wave(0.5), wave(2.0)),
            (wave(1.3), wave(1.3)),
        ] {
            let (x, y) = (a.store(), b.store());
            assert_eq!(StoredEmbedding::from_bytes(&x.to_bytes()), Ok(x));
            let exact = similarity(&a, &b);
            let got = x.similarity(&y);
            assert!((got - exact).abs() <= 0.003, "{got} {exact}");
        }
    }

    #[test]
    fn foreign_bytes_are_refused() {
        let good = wave(0.3).store().to_bytes();
        for len in [0, 4, STORED_BYTES - 1] {
            assert_eq!(
                StoredEmbedding::from_bytes(&good[..len]),
                Err(StoredError::Bytes(len))
            );
        }
        for scale in [0.0, -1.0, 1.0, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE] {
            let mut bad = good;
            bad[..4].copy_from_slice(&f32::to_le_bytes(scale));
            assert!(StoredEmbedding::from_bytes(&bad).is_err(), "{scale}");
        }
        assert!(StoredEmbedding::from_bytes(&[0; STORED_BYTES]).is_err());
    }
}
