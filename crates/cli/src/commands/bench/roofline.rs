//! How close decoding comes to the memory: every token reads every weight once, so the bandwidth
//! divided by the bytes of the weights is the upper limit of tokens per second.

use crate::machine::read_bandwidth;
use serde_json::{Value as Json, json};

/// The buffer is as large as the weights, so that it meets the same caches, within these bounds.
const BUFFER_MIN: u64 = 64 << 20;
const BUFFER_MAX: u64 = 1 << 30;

pub struct Roofline {
    pub read_bandwidth_gbs: f64,
    pub weight_bytes_per_token: u64,
    pub fraction: Option<f64>,
    pub against_fraction: Option<f64>,
}

/// Measures the bandwidth and compares it with decoding, if that was measured.
pub fn measure(
    threads: usize,
    weight_bytes: u64,
    ours: Option<f64>,
    theirs: Option<f64>,
) -> Roofline {
    let buffer = weight_bytes.clamp(BUFFER_MIN, BUFFER_MAX);
    let bandwidth = read_bandwidth(threads, buffer as usize);
    let fraction = |speed: f64| speed * weight_bytes as f64 / bandwidth;
    Roofline {
        read_bandwidth_gbs: bandwidth / 1e9,
        weight_bytes_per_token: weight_bytes,
        fraction: ours.map(fraction),
        against_fraction: theirs.map(fraction),
    }
}

impl Roofline {
    pub fn line(&self) -> String {
        let percent =
            |fraction: Option<f64>| fraction.map_or("-".into(), |f| format!("{:.0} %", f * 100.0));
        format!(
            "roofline       {:.1} GB/s read, {:.1} MB of weights a token: decode_d0 reaches {} (theirs {})",
            self.read_bandwidth_gbs,
            self.weight_bytes_per_token as f64 / 1e6,
            percent(self.fraction),
            percent(self.against_fraction)
        )
    }

    pub fn json(&self) -> Json {
        json!({
            "read_bandwidth_gbs": self.read_bandwidth_gbs,
            "weight_bytes_per_token": self.weight_bytes_per_token,
            "fraction": self.fraction,
            "against_fraction": self.against_fraction,
        })
    }
}
