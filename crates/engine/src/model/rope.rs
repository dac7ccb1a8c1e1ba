//! Rotary frequencies of a model: base, scaling and per-pair factors as one list of frequencies.
//!
//! Every supported scaling (linear, llama3 factors, yarn, long/short factors) multiplies an angle by a
//! number that depends on the pair only. So all of them end here, as `freqs`, and nothing later
//! depends on which one it was.

use super::error::{LoadError, LoadResult};
use super::keys::{MetadataKeys, vector_bytes};
use haversack_gguf::Gguf;
use haversack_kernels::format::{WeightType, gguf::unpack_row};
use haversack_kernels::ops::rope::{Pairing, RopeSpec};
use std::f64::consts::TAU;

/// Yarn's ramp: pairs that turn more often than `FAST` within the trained context keep their
/// frequency, those that turn less often than `SLOW` are interpolated (the paper's values).
const YARN_FAST: f64 = 32.0;
const YARN_SLOW: f64 = 1.0;

/// Global rotation first, then that of windowed layers: with `local_base` and unscaled, or the same
/// where there is none.
pub(super) fn read(
    g: &Gguf,
    keys: &MetadataKeys<'_>,
    pairing: Pairing,
    dims: usize,
    (trained, context): (usize, usize),
    local_base: Option<f64>,
) -> LoadResult<Vec<RopeSpec>> {
    let base = keys.float_or("rope.freq_base", f32::MIN_POSITIVE, f32::MAX, 10_000.0)?;
    let base = f64::from(base);
    let original = keys.optional("rope.scaling.original_context_length", 1, u32::MAX as u64)?;
    let original = original.unwrap_or(trained);
    // `rope.scale_linear` is the older spelling.
    let factor = match keys.float("rope.scaling.factor", 0.0, 1e6)? {
        Some(factor) => factor,
        None => keys.float_or("rope.scale_linear", 0.0, 1e6, 1.0)?,
    };
    let factor = f64::from(factor);
    // Some converters write 0 for "no scaling".
    let factor = if factor == 0.0 { 1.0 } else { factor };
    let attn_factor = keys.float("rope.scaling.attn_factor", 0.0, 1e6)?;

    let mut freqs = frequencies(base, dims);
    let mut magnitude = attn_factor.filter(|&f| f > 0.0).unwrap_or(1.0);
    match keys.str("rope.scaling.type")? {
        Some("none") => {}
        None | Some("linear" | "longrope") => freqs.iter_mut().for_each(|f| *f /= factor),
        Some("yarn") => {
            let low = correction(dims, original, YARN_FAST, base).floor().max(0.0);
            let high = correction(dims, original, YARN_SLOW, base).ceil();
            let high = high.min(dims as f64 - 1.0);
            for (pair, f) in freqs.iter_mut().enumerate() {
                let keep = 1.0 - ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                *f *= keep + (1.0 - keep) / factor;
            }
            magnitude *= (1.0 + 0.1 * factor.max(1.0).ln()) as f32;
        }
        Some(other) => {
            let name: String = other.chars().take(32).collect();
            let what =
                format!("{name:?} is not supported; supported: none, linear, yarn, longrope");
            return Err(LoadError::field(keys.full("rope.scaling.type"), what));
        }
    }

    // Longer than the original context: the long factors, as the model's authors intend.
    let name = if context > original {
        "rope_factors_long.weight"
    } else {
        "rope_factors_short.weight"
    };
    for tensor in ["rope_freqs.weight", name] {
        if let Some(factors) = factors(g, tensor, dims / 2)? {
            for (f, factor) in freqs.iter_mut().zip(factors) {
                *f /= f64::from(factor);
            }
        }
    }

    let spec = |freqs, magnitude| RopeSpec {
        dims,
        pairing,
        freqs,
        magnitude,
    };
    let global = spec(freqs, magnitude);
    let local = match local_base {
        Some(base) => spec(frequencies(base, dims), 1.0),
        None => global.clone(),
    };
    Ok(vec![global, local])
}

fn frequencies(base: f64, dims: usize) -> Vec<f64> {
    let pairs = 0..dims / 2;
    pairs
        .map(|pair| base.powf(-2.0 * pair as f64 / dims as f64))
        .collect()
}

/// The pair that turns `rotations` times within `context` positions.
fn correction(dims: usize, context: usize, rotations: f64, base: f64) -> f64 {
    dims as f64 * (context as f64 / (rotations * TAU)).ln() / (2.0 * base.ln())
}

/// A vector of per-pair divisors.
fn factors(g: &Gguf, name: &str, pairs: usize) -> LoadResult<Option<Vec<f32>>> {
    let Some(t) = g.tensor(name) else {
        return Ok(None);
    };
    if t.ty != WeightType::F32 || t.cols() != pairs || t.rows() != 1 {
        let what = format!("must be {pairs} values of F32");
        return Err(LoadError::field(name, what));
    }
    let mut values = vec![0.0; pairs];
    unpack_row(t.ty, vector_bytes(g, t)?, &mut values);
    if let Some(bad) = values.iter().find(|v| !(v.is_finite() && **v > 0.0)) {
        let what = format!("holds {bad}; accepted: positive numbers");
        return Err(LoadError::field(name, what));
    }
    Ok(Some(values))
}
