//! How close decoding comes to the memory: every token reads every weight once, so the bandwidth
//! divided by the bytes of the weights is the upper limit of tokens per second.

use serde_json::{Value as Json, json};
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

/// The buffer is as large as the weights, so that it meets the same caches, within these bounds.
const BUFFER_MIN: u64 = 64 << 20;
const BUFFER_MAX: u64 = 1 << 30;
const PASSES: usize = 7;

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

/// Bytes per second that `threads` read together, the best of several passes. Comparing two equal
/// halves is a read of both by the system's own fastest loop, in every build profile.
fn read_bandwidth(threads: usize, bytes: usize) -> f64 {
    let half = bytes / threads / 2;
    let barrier = Barrier::new(threads);
    // Each thread notes when it began and ended; a watcher on a busy machine would come too late.
    let read = || {
        let (left, right) = (vec![1_u8; half], vec![1_u8; half]);
        let mut passes = Vec::with_capacity(PASSES);
        for _ in 0..PASSES {
            barrier.wait();
            let began = Instant::now();
            black_box(black_box(&left) == black_box(&right));
            passes.push((began, Instant::now()));
        }
        passes
    };
    let threads_passes: Vec<Vec<(Instant, Instant)>> = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
        let joined = handles.into_iter().map(|handle| handle.join());
        joined.flatten().collect()
    });
    let speed = |pass: usize| {
        let times = || threads_passes.iter().filter_map(|passes| passes.get(pass));
        let began = times().map(|(began, _)| *began).min()?;
        let ended = times().map(|(_, ended)| *ended).max()?;
        Some((half * 2 * threads) as f64 / ended.duration_since(began).as_secs_f64())
    };
    (0..PASSES).filter_map(speed).fold(0.0, f64::max)
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
