//! Recorded layers, and the plan of every policy for them, in words.
//!
//! `plans/*.trace` are snapshots of a made-up attention stream, recorded once: a line for each layer, then its evictable
//! rows with the statistics of each way of counting. `plans/*.txt` are the plans. With `HAVERSACK_REWRITE_PLANS=1` the plans
//! are written anew, and traces that are missing are recorded; what changed is then for the reviewer to read.

use haversack_cache::policy::count::{AttentionCounting, AttentionMemory};
use haversack_cache::policy::explain::RowPlan;
use haversack_cache::policy::heavy::{HeavyParams, HeavyScore};
use haversack_cache::policy::profile::Profile;
use haversack_cache::policy::rows::{LayerView, RowPolicy};
use haversack_cache::policy::snap::SnapParams;
use haversack_cache::policy::turns::TurnsParams;
use haversack_cache::{Annotation, KvRow};
use haversack_kernels::attention::MassStatistic;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Ways of counting, in the order of a trace's columns.
fn countings() -> [AttentionCounting; 5] {
    [
        AttentionCounting::always(MassStatistic::Sum),
        AttentionCounting::always(MassStatistic::Squares),
        AttentionCounting::always(MassStatistic::Max),
        AttentionMemory::default().counting(),
        AttentionCounting::LAST_BLOCK,
    ]
}

/// Names, what they decide by, and rows a layer may have.
fn subjects() -> Vec<(&'static str, RowPolicy, usize)> {
    let heavy = |score| {
        RowPolicy::Heavy(HeavyParams {
            score,
            ..HeavyParams::default()
        })
    };
    let tiers = |profile: Profile| RowPolicy::Tiers(profile.params());
    vec![
        ("heavy, peak", heavy(HeavyScore::Peak), CAP),
        ("heavy, sum", heavy(HeavyScore::Sum), CAP),
        ("heavy, max", heavy(HeavyScore::Max), CAP),
        (
            "heavy, average",
            heavy(HeavyScore::Average(AttentionMemory::default())),
            CAP,
        ),
        ("tiers, no cap", tiers(Profile::Chat), usize::MAX),
        ("tiers", tiers(Profile::Chat), CAP),
        (
            "tiers, conservative",
            tiers(Profile::Conservative),
            usize::MAX,
        ),
        ("snap", RowPolicy::Snap(SnapParams::default()), CAP),
        ("turns", RowPolicy::Turns(TurnsParams::default()), CAP),
    ]
}

const CAP: usize = 320;

struct Trace {
    position: u64,
    oldest: u64,
    spans: Vec<Annotation>,
    layers: Vec<Layer>,
}

struct Layer {
    rows: usize,
    others: usize,
    /// (counting)
    wholes: [u64; 5],
    loose: Vec<Loose>,
}

struct Loose {
    position: u64,
    norm_sq: f32,
    /// (counting)
    masses: [u32; 5],
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans")
}

#[test]
fn recorded_layers_are_planned_as_before() {
    let rewrites = std::env::var_os("HAVERSACK_REWRITE_PLANS").is_some();
    for (name, seed, position, oldest) in [("talk", 1, 480, 0), ("aged", 2, 384, 96)] {
        let path = folder().join(name).with_extension("trace");
        if rewrites && !path.exists() {
            fs::create_dir_all(folder()).unwrap();
            fs::write(&path, written(&recorded(seed, position, oldest))).unwrap();
        }
        let trace = read(&fs::read_to_string(&path).unwrap());
        // What was read is what was written.
        assert_eq!(written(&trace), fs::read_to_string(&path).unwrap());
        let plans = plans(&trace);
        let path = path.with_extension("txt");
        if rewrites {
            fs::write(&path, &plans).unwrap();
        }
        let before = fs::read_to_string(&path).unwrap();
        assert!(
            plans == before,
            "{name}: plans differ; HAVERSACK_REWRITE_PLANS=1 writes them anew\n{plans}"
        );
    }
}

fn plans(trace: &Trace) -> String {
    let mut text = String::new();
    for (name, policy, most) in subjects() {
        let mut plan = RowPlan::new(trace.position);
        let mut all = String::new();
        for (i, layer) in trace.layers.iter().enumerate() {
            let column = countings().iter().position(|c| Some(*c) == policy.count());
            let mut rows: Vec<KvRow> = layer
                .loose
                .iter()
                .map(|loose| row(trace, loose, column))
                .collect();
            let first = layer.loose.first().map_or(0, |l| l.position);
            let view = LayerView {
                layer: i,
                layers: trace.layers.len(),
                position: trace.position,
                rows: layer.rows,
                max_rows: most,
                min_position: trace.oldest,
                budget_used: 1.0,
                evictable: first..(trace.position / 32 - 2) * 32,
                non_sink_rows: layer.others,
                full_mass: column.map_or(0, |column| layer.wholes[column]),
                annotations: &trace.spans,
            };
            let leave = policy.choose(&view, &mut rows);
            plan.add(&policy, &view, &rows[..leave]);
            let gone = plan.layers.last().filter(|plan| plan.layer == i);
            let _ = writeln!(all, "  {i}: {}", runs(gone.map_or(&[], |plan| &plan.leave)));
        }
        let _ = writeln!(text, "{name}\n{plan}\n{all}");
    }
    text
}

fn row(trace: &Trace, loose: &Loose, column: Option<usize>) -> KvRow {
    let position = loose.position;
    let mut spans = trace.spans.iter();
    KvRow {
        position,
        mass: column.map_or(0, |column| loose.masses[column]),
        norm_sq: loose.norm_sq,
        worth: 0.0,
        entry: 0,
        slot: 0,
        protected: spans.any(|s| s.protected && (s.start..s.end).contains(&position)),
    }
}

/// `64-80 90 95-99`
fn runs(positions: &[u64]) -> String {
    let mut text = String::new();
    for run in positions.chunk_by(|a, b| a + 1 == *b) {
        let space = if text.is_empty() { "" } else { " " };
        let _ = match run {
            [one] => write!(text, "{space}{one}"),
            [first, .., last] => write!(text, "{space}{first}-{last}"),
            [] => Ok(()),
        };
    }
    text
}

/// Three layers that have lost some rows, watched by queries that look at the sinks, at their neighbours, at a few rows
/// that matter, and a little at everything.
fn recorded(seed: u64, position: u64, oldest: u64) -> Trace {
    let mix = |a: u64, b: u64| {
        let x = (seed << 40 ^ a << 20 ^ b).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let x = (x ^ x >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x ^ x >> 32
    };
    let layer = |layer: u64| {
        let kept: Vec<u64> = (0..position)
            .filter(|p| *p < 64 || p + 96 > position || !mix(layer, *p).is_multiple_of(9))
            .collect();
        let countings = countings();
        let mut masses = vec![[0u64; 5]; kept.len()];
        let mut wholes = [0u64; 5];
        for query in 1..position {
            let look = |p: u64| match p {
                _ if p > query => 0.0,
                0..4 => 8.0,
                _ if query - p < 16 => 1.0,
                _ if mix(layer + 50, p).is_multiple_of(31) => 0.5,
                _ if mix(query, p + 1000 * layer).is_multiple_of(400) => 1.0,
                _ => 0.002 * (1 + mix(layer + 90, p) % 16) as f64,
            };
            let total: f64 = kept.iter().map(|p| look(*p)).sum();
            for (column, counting) in countings.iter().enumerate() {
                if query.is_multiple_of(32)
                    && let Some(decay) = counting.decay
                {
                    let decayed = |x: u64| ((u128::from(x) * u128::from(decay)) >> 32) as u64;
                    masses
                        .iter_mut()
                        .for_each(|m| m[column] = decayed(m[column]));
                    wholes[column] = decayed(wholes[column]);
                }
                let whole = counting.count.whole(query, 1, counting.every);
                wholes[column] += whole;
                for (mass, p) in masses.iter_mut().zip(&kept) {
                    if p / 32 < query / 32 {
                        let a = look(*p) / total;
                        let to = &mut mass[column];
                        match counting.count {
                            MassStatistic::Max => *to = (*to).max((a * whole as f64) as u64),
                            MassStatistic::Squares => *to += (a * a * whole as f64) as u64,
                            _ => *to += (a * whole as f64) as u64,
                        }
                    }
                }
            }
        }
        for (column, whole) in wholes.iter_mut().enumerate() {
            *whole -= masses[..4]
                .iter()
                .map(|m| m[column])
                .sum::<u64>()
                .min(*whole);
        }
        let end = (position / 32 - 2) * 32;
        let loose = kept
            .iter()
            .zip(&masses)
            .filter(|(p, _)| (64..end).contains(*p));
        let loose = loose.map(|(p, masses)| Loose {
            position: *p,
            norm_sq: (1 + mix(layer + 70, *p) % 8) as f32 / 4.0,
            masses: masses.map(|m| u32::try_from(m).unwrap_or(u32::MAX)),
        });
        Layer {
            rows: kept.len(),
            others: kept.len() - 4,
            wholes,
            loose: loose.collect(),
        }
    };
    let span = |start, end, protected| Annotation {
        start,
        end,
        protected,
    };
    Trace {
        position,
        oldest,
        spans: vec![
            span(0, 50, true),
            span(50, 110, false),
            span(110, 130, true),
            span(130, 170, false),
            span(170, 260, false),
            span(270, 600, false),
        ],
        layers: (0..3).map(layer).collect(),
    }
}

fn written(trace: &Trace) -> String {
    let mut text = format!("position {} oldest {}\n", trace.position, trace.oldest);
    for span in &trace.spans {
        let protected = u8::from(span.protected);
        let _ = writeln!(text, "span {} {} {protected}", span.start, span.end);
    }
    for layer in &trace.layers {
        let _ = writeln!(
            text,
            "layer {} {} {}",
            layer.rows,
            layer.others,
            list(&layer.wholes)
        );
        for loose in &layer.loose {
            let masses = list(&loose.masses);
            let _ = writeln!(text, "{} {} {masses}", loose.position, loose.norm_sq);
        }
    }
    text
}

fn list<T: ToString>(numbers: &[T]) -> String {
    let numbers: Vec<String> = numbers.iter().map(T::to_string).collect();
    numbers.join(" ")
}

fn read(text: &str) -> Trace {
    let mut trace = Trace {
        position: 0,
        oldest: 0,
        spans: Vec::new(),
        layers: Vec::new(),
    };
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| words[i].parse::<u64>().unwrap();
        match words[0] {
            "position" => (trace.position, trace.oldest) = (number(1), number(3)),
            "span" => trace.spans.push(Annotation {
                start: number(1),
                end: number(2),
                protected: number(3) == 1,
            }),
            "layer" => trace.layers.push(Layer {
                rows: number(1) as usize,
                others: number(2) as usize,
                wholes: std::array::from_fn(|i| number(3 + i)),
                loose: Vec::new(),
            }),
            _ => trace.layers.last_mut().unwrap().loose.push(Loose {
                position: number(0),
                norm_sq: words[1].parse().unwrap(),
                masses: std::array::from_fn(|i| number(2 + i) as u32),
            }),
        }
    }
    trace
}
