//! This machine: its cores, its memory, and how fast it reads that, which is what decoding is limited by.

use haversack::kernels::cpu::Backend;
use haversack::kernels::ops::dot;
use haversack::memory::Reading;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

const PASSES: usize = 12;
/// Between passes: what else runs for a moment does not slow all of them.
const PAUSE: Duration = Duration::from_millis(15);

/// One for each core.
pub fn threads_of_machine() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get())
}

/// RAM that this process can have at most.
pub fn ram_bytes() -> u64 {
    let reading = Reading::now();
    let limit = reading.cgroup.and_then(|group| group.limit_bytes);
    let all = reading.mem_total_bytes.into_iter().chain(limit);
    all.min().unwrap_or(0)
}

/// Bytes per second that `threads` read together, the best of several passes. A product of two halves reads both with the
/// widest loads of this CPU, in every build profile. (Comparing them is as fast with glibc, a third of that with musl.)
pub fn read_bandwidth(threads: usize, bytes: usize) -> f64 {
    let backend = Backend::best();
    let half = bytes / threads / 2 / size_of::<f32>();
    let barrier = Barrier::new(threads);
    // Each thread notes when it began and ended; a watcher on a busy machine would come too late.
    let read = || {
        let (left, right) = (vec![1.0_f32; half], vec![1.0_f32; half]);
        let mut passes = Vec::with_capacity(PASSES);
        for _ in 0..PASSES {
            barrier.wait();
            let began = Instant::now();
            black_box(dot(backend, black_box(&left), black_box(&right)));
            passes.push((began, Instant::now()));
            thread::sleep(PAUSE);
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
        Some(
            (half * 2 * size_of::<f32>() * threads) as f64
                / ended.duration_since(began).as_secs_f64(),
        )
    };
    (0..PASSES).filter_map(speed).fold(0.0, f64::max)
}
