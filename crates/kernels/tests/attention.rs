//! Attention: every backend, chunking, batch and thread count gives the bits of the scalar backend on
//! one thread, and those are near the f64 ideal. Every property is asked of every case: floats with
//! and without windows and caps, and [`coded`] ones.

mod ideal;
mod kv;

use haversack_kernels::attention::*;
use haversack_kernels::cpu::Backend;
use haversack_kernels::format::kv::code::{write_k_rows, write_v_rows};
use haversack_kernels::format::kv::*;
use haversack_kernels::threads::ThreadPool;
use ideal::ideal;
use kv::*;

/// Distance from the f64 ideal for values in -1..1 and scores up to about ±12: two f32 sums of a
/// few hundred terms and an exponential.
const OUT_ERROR_MAX: f64 = 5e-6;
/// The same where weights of values are rounded: to a sixteen-thousandth of the greatest of a span,
/// times values of up to two, over a hundred slots. Four times what chance makes of that.
const CODED_ERROR_MAX: f64 = 6e-4;
/// Distance of a slot's summed mass per query.
const MASS_ERROR_MAX: f64 = 2e-6;

/// See [`every_machine_gives_these_bits`].
const GOLDEN_BITS: u64 = 13_748_164_686_229_758_956;

/// Heads, KV heads, head size: grouped, one to one, one for all; sizes with and without a partial
/// vector.
const SHAPES: [(usize, usize, usize); 9] = [
    (9, 3, 64),
    (4, 4, 16),
    (4, 1, 256),
    (5, 1, 80),
    (8, 2, 96),
    (2, 1, 128),
    (3, 3, 20),
    (14, 2, 64),
    (26, 1, 16),
];

fn floats(s: Sequence) -> Vec<(String, Sequence)> {
    let plain = s.clone();
    let mut window = s.clone();
    window.window = Some(37);
    let mut late = s;
    late.runs[0].first_position = 1_000_032;
    late.window = Some(64);
    let exact = plain.clone().forms(KvForm::F32, KvForm::F32, 0);
    let hidden = plain.clone().with_hidden();
    let mut less = plain.clone().with_hidden();
    less.window = Some(90);
    vec![
        ("plain".into(), plain),
        ("window".into(), window),
        ("late".into(), late),
        ("exact".into(), exact),
        ("hidden".into(), hidden),
        ("hidden, less".into(), less),
    ]
}

/// One case for each codec of the keys, with one of the values that `turn` chooses, so that eight
/// turns see every pair; and with every other property in some mixture: groups, sinks, segments and
/// gaps, mean, basis, window, hidden rows, and which blocks are near.
fn coded(s: &Sequence, turn: usize) -> Vec<(String, Sequence)> {
    let mut cases = Vec::new();
    for (i, k) in Codec::ALL.into_iter().enumerate() {
        let v = Codec::ALL[(i + turn) % Codec::ALL.len()];
        let mix = i + 3 * turn;
        let group = |nth: usize| if nth.is_multiple_of(2) { 32 } else { 64 };
        let form = |codec, group| Form { codec, group };
        let near = match mix % 5 {
            0 => KvForm::F16,
            1 => KvForm::both(form(Codec::Int8, 32)),
            _ => KvForm::both(form(Codec::Int8, 64)),
        };
        let far = KvForm {
            k: form(k, group(mix)),
            v: form(v, group(mix / 2)),
        };
        let s = s.clone().forms(near, far, (mix % 3) as u64);
        // Anchors that end inside a block, and a remounted piece in the middle.
        let mut s = match mix % 4 {
            0 => s,
            1 => s.behind(&[ANCHORS], 4096),
            2 => s.behind(&[ANCHORS, PIECE], 4096),
            _ => s.behind(&[PIECE], 2304),
        };
        if s.runs[0].first_position == 0 {
            s.sinks = mix % 5;
        }
        if mix.is_multiple_of(2) {
            s = s.with_mean();
        }
        s.basis = Basis::of(far);
        if mix % 6 == 5 {
            s.window = Some(50);
        }
        if mix % 3 == 1 {
            s = s.with_hidden();
        }
        let name = format!(
            "k {k}/{} v {v}/{} near {} within {} sinks {} runs {} mean {} hidden {}",
            far.k.group,
            far.v.group,
            near.k.codec,
            s.near_blocks,
            s.sinks,
            s.runs.len(),
            s.mean.is_some(),
            s.hidden.len(),
        );
        cases.push((name, s));
    }
    cases
}

const ANCHORS: Run = Run {
    first_position: 0,
    len: 40,
};
const PIECE: Run = Run {
    first_position: 2080,
    len: 50,
};

/// All cases of a shape.
fn cases(s: Sequence, turn: usize) -> Vec<(String, Sequence)> {
    let mut all = coded(&s, turn);
    all.extend(floats(s));
    all
}

#[test]
fn every_backend_gives_the_scalar_bits() {
    let one = ThreadPool::new(1);
    // In an emulator the last queries have to do: they see every block.
    let from = if is_emulated() { 67 } else { 0 };
    for (turn, (heads, kv_heads, dim)) in SHAPES.into_iter().enumerate() {
        for (name, s) in cases(Sequence::new(heads, kv_heads, dim, 75, 1), turn) {
            let count = Some(counted(turn));
            let expected = run(Backend::SCALAR, &one, &[&s], from, 75, count);
            let computed = &expected[0].out[from * heads * dim..];
            let finite = computed.iter().all(|x| x.is_finite());
            assert!(finite, "{name} {heads}/{kv_heads}/{dim}");
            for backend in backends() {
                let got = run(backend, &one, &[&s], from, 75, count);
                assert!(
                    got[0].bits() == expected[0].bits(),
                    "{} {name} {heads}/{kv_heads}/{dim}",
                    backend.name()
                );
            }
        }
    }
}

/// The same bits on every machine, not only on every backend of this one: the number was computed
/// once on x86 and holds for Arm. It changes only with the definition of attention.
#[test]
fn every_machine_gives_these_bits() {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let floats = floats(Sequence::new(6, 2, 80, 300, 99));
    let plain = ["plain", "window", "late"];
    for (_, s) in floats.iter().filter(|(name, _)| plain.contains(&&name[..])) {
        let counted = |count| {
            run(
                Backend::best(),
                &ThreadPool::new(2),
                &[s],
                0,
                50,
                Some((count, 1)),
            )
            .remove(0)
        };
        let (sums, squares) = (counted(MassStatistic::Sum), counted(MassStatistic::Squares));
        assert!(sums.bits().0 == squares.bits().0);
        let bits = sums.out.iter().map(|x| u64::from(x.to_bits()));
        for word in bits.chain(sums.mass).chain(squares.mass) {
            hash = (hash ^ word).wrapping_mul(0x100_0000_01b3);
        }
    }
    assert_eq!(hash, GOLDEN_BITS);
}

#[test]
fn near_the_ideal() {
    let pool = ThreadPool::new(2);
    for (turn, (heads, kv_heads, dim)) in few(&SHAPES).iter().copied().enumerate() {
        for (name, s) in cases(Sequence::new(heads, kv_heads, dim, 101, 2), turn) {
            let count = counted(turn);
            let (out, mass) = ideal(&s, 0, &[count]);
            let got = &run(Backend::best(), &pool, &[&s], 0, 101, Some(count))[0];
            let what = format!("{name} {heads}/{kv_heads}/{dim}");
            let worst = out
                .iter()
                .zip(&got.out)
                .map(|(a, b)| (a - f64::from(*b)).abs())
                .fold(0.0, f64::max);
            let floats = [s.near, s.far].iter().all(|form| form.v.codec.is_float());
            let most = if floats {
                OUT_ERROR_MAX
            } else {
                CODED_ERROR_MAX
            };
            assert!(worst <= most, "{what}: {worst}");
            let unit = 2f64.powi(-(count.0.bits() as i32));
            for (a, b) in mass[0].iter().zip(&got.mass) {
                let error = (a - *b as f64 * unit).abs();
                assert!(
                    error <= MASS_ERROR_MAX * 101.0,
                    "{what}: {count:?} {a}, {error}"
                );
            }
        }
    }
}

fn is_emulated() -> bool {
    std::env::var_os("HAVERSACK_EMULATED").is_some()
}

/// In an emulator the first shape has to do where shapes matter less than what is done with them.
fn few<T>(shapes: &[T]) -> &[T] {
    match is_emulated() {
        true => &shapes[..1],
        false => shapes,
    }
}

/// A token's output does not depend on how many tokens were computed with it. The tables of short
/// chunks hold poison where later tokens will be.
#[test]
fn chunking_changes_nothing() {
    let pools = [ThreadPool::new(1), ThreadPool::new(2)];
    let shapes = [(4, 1, 16), (9, 3, 64), (5, 1, 80), (2, 2, 128)];
    for (turn, (heads, kv_heads, dim)) in few(&shapes).iter().copied().enumerate() {
        for (name, s) in cases(Sequence::new(heads, kv_heads, dim, 140, 3), turn) {
            let count = Some(counted(turn));
            let expected = run(Backend::best(), &pools[0], &[&s], 0, 140, count);
            for pool in &pools {
                for chunk in [1, 7, 64, 140] {
                    let got = run(Backend::best(), pool, &[&s], 0, chunk, count);
                    assert!(
                        got[0].bits() == expected[0].bits(),
                        "{name} {heads}/{kv_heads}/{dim}, chunk {chunk}, {} threads",
                        pool.threads()
                    );
                }
            }
        }
    }
}

/// Deep enough for the split path (more than two spans), which only more than one thread takes.
#[test]
fn split_spans_give_the_bits_of_tiles() {
    let shapes = [(4, 1, 16), (9, 3, 64), (3, 1, 80), (2, 2, 128)];
    for (turn, (heads, kv_heads, dim)) in few(&shapes).iter().copied().enumerate() {
        for (name, mut s) in cases(Sequence::new(heads, kv_heads, dim, 1203, 4), turn) {
            if s.window.is_some() {
                s.window = Some(300);
            }
            let from = s.len - 3;
            let count = Some(counted(turn));
            let tiles = run(Backend::best(), &ThreadPool::new(1), &[&s], from, 3, count);
            for backend in [Backend::SCALAR, Backend::best()] {
                for threads in [1, 2, 5] {
                    let pool = ThreadPool::new(threads);
                    let got = run(backend, &pool, &[&s], from, 1, count);
                    assert!(
                        got[0].bits() == tiles[0].bits(),
                        "{name} {heads}/{kv_heads}/{dim}, {} on {threads} threads",
                        backend.name()
                    );
                    let without = run(backend, &pool, &[&s], from, 1, None);
                    assert!(without[0].bits().0 == tiles[0].bits().0);
                }
            }
        }
    }
}

#[test]
fn company_changes_nothing() {
    let sequences = [
        Sequence::new(9, 3, 64, 1070, 5),
        Sequence::new(9, 3, 64, 1100, 6),
        Sequence::new(4, 1, 80, 33, 7),
        Sequence::new(9, 3, 64, 64, 8),
        Sequence::new(2, 2, 16, 1, 9),
    ];
    let pool = ThreadPool::new(2);
    let one = ThreadPool::new(1);
    for chunk in [1, 40] {
        // From 0 for the short ones; the long ones would take a while token by token.
        for from in [0, 1060] {
            let some: Vec<&Sequence> = sequences
                .iter()
                .filter(|s| s.len > from && (from > 0 || s.len < 100))
                .collect();
            let together = run(
                Backend::best(),
                &pool,
                &some,
                from,
                chunk,
                Some((MassStatistic::Sum, 1)),
            );
            for (s, together) in some.iter().zip(&together) {
                let alone = &run(
                    Backend::best(),
                    &one,
                    &[s],
                    from,
                    chunk,
                    Some((MassStatistic::Sum, 1)),
                )[0];
                assert!(alone.bits() == together.bits());
            }
        }
    }
}

#[test]
fn mass_is_one_per_query_less_its_own_block() {
    const SUMS: Option<Counted> = Some((MassStatistic::Sum, 1));
    let s = Sequence::new(6, 2, 64, 130, 10);
    let all = &run(Backend::best(), &ThreadPool::new(1), &[&s], 0, 130, SUMS)[0];
    // Block 0's queries see nothing but their own block.
    let first = Sequence {
        len: 32,
        ..s.clone()
    };
    let first = Sequence {
        q: vec![s.q[0][..32 * 6 * 64].to_vec()],
        ..first
    };
    let none = &run(Backend::best(), &ThreadPool::new(1), &[&first], 0, 32, SUMS)[0];
    assert!(none.mass.iter().all(|m| *m == 0));

    // A query at the start of a block has one slot of its own: nearly all its mass counts. With a
    // window of one it sees itself alone, and nothing counts.
    let start = &run(Backend::best(), &ThreadPool::new(1), &[&s], 128, 1, SUMS)[0];
    let (_, ideal_sum) = ideal(&s, 128, &[(MassStatistic::Sum, 1)]);
    for head in 0..2 {
        let got: u64 = start.mass[head * 160..(head + 1) * 160].iter().sum();
        let want: f64 = ideal_sum[0][head * 160..(head + 1) * 160].iter().sum();
        assert!((got as f64 / 2f64.powi(MassStatistic::Sum.bits() as i32) - want).abs() < 1e-5);
        assert!(want > 1.9 && want < 2.0);
        let total: u64 = all.mass[head * 160..(head + 1) * 160].iter().sum();
        assert!(total > got);
    }
    let blind = Sequence {
        window: Some(1),
        ..s.clone()
    };
    let blind = &run(
        Backend::best(),
        &ThreadPool::new(1),
        &[&blind],
        0,
        130,
        SUMS,
    )[0];
    assert!(blind.mass.iter().all(|m| *m == 0));
}

/// What is counted is what a slot would have that got everything.
#[test]
fn the_whole_is_what_all_slots_get() {
    // One token in a block of its own: no other slot is left out.
    for (i, count) in COUNTS.into_iter().enumerate() {
        for every in [1, 4, 5, 32] {
            let by_one: u64 = (96..128u64).map(|p| count.whole(p, 1, every)).sum();
            if count != MassStatistic::Max {
                assert_eq!(by_one, count.whole(96, 32, every), "{count:?}");
            }
            let counted = (96..128u64).filter(|p| (p + 1) % every == 0).count() as u64;
            let most = counted << count.bits();
            assert!(by_one <= most && (i == 3 || by_one == most), "{count:?}");
        }
    }
    let even = MassStatistic::Weighted([MassStatistic::WEIGHT_ONE; 32]);
    assert_eq!(even.whole(7, 1000, 4), 250 << even.bits());
    assert_eq!(MassStatistic::Max.whole(7, 1000, 4), 1 << 30);
    assert_eq!(MassStatistic::Sum.whole(8, 3, 4), 0);
}

/// A query that is not a number is named by its position, whether it counts or not, and leaves the
/// counters as they are: everything else counts as if it had never been there.
#[test]
fn what_is_not_a_number_is_named_and_counts_nothing() {
    let shapes = [(6, 2, 64), (4, 1, 80)];
    for (turn, (heads, kv_heads, dim)) in few(&shapes).iter().copied().enumerate() {
        let cases = cases(Sequence::new(heads, kv_heads, dim, 900, 21), turn);
        for (i, (name, mut s)) in cases.into_iter().enumerate() {
            s.window = None;
            // Whether it counts or not.
            let every = [1, 32][i / 4 % 2];
            let (row, from, count) = (heads * dim, 896, Some((COUNTS[i % 4], every)));
            // Two tokens without those that are not numbers.
            let well = &run(Backend::SCALAR, &ThreadPool::new(1), &[&s], from, 1, count)[0];
            assert_eq!(well.bad, u64::MAX);
            let mut broken = s.clone();
            for q in &mut broken.q {
                q[898 * row + row - 1] = f32::NAN;
                q[899 * row] = f32::NAN;
            }
            // All at once, in tiles; token by token, in spans.
            let mut seen = None;
            for (threads, chunk) in [(1, 4), (2, 4), (2, 1)] {
                for backend in [Backend::SCALAR, Backend::best()] {
                    let got = run(
                        backend,
                        &ThreadPool::new(threads),
                        &[&broken],
                        from,
                        chunk,
                        count,
                    );
                    let first = s.first_position() + 898;
                    assert_eq!(got[0].bad, first, "{name} by {chunk}");
                    for (got, well) in got[0].mass.iter().zip(&well.mass) {
                        assert!(got <= well, "{name}: {got} {well}");
                    }
                    let mass = got[0].mass.clone();
                    assert_eq!(mass.iter().any(|m| *m > 0), every == 1, "{name}");
                    assert!(seen.get_or_insert_with(|| mass.clone()) == &mass, "{name}");
                }
            }
        }
    }
}

/// What hidden slots hold does not matter, and hidden whole blocks give the bits of a table without them:
/// in tiles and in spans, on every backend.
#[test]
fn hidden_rows_are_as_good_as_gone() {
    let shapes = [(4, 1, 16), (9, 3, 64), (3, 1, 80), (2, 2, 128)];
    for (turn, (heads, kv_heads, dim)) in few(&shapes).iter().copied().enumerate() {
        for (name, mut s) in cases(Sequence::new(heads, kv_heads, dim, 1003, 31), turn) {
            s.hidden.clear();
            let (from, count) = (s.len - 3, Some(counted(turn)));
            let hidden = s.clone().with_hidden();
            let spoiled = Sequence {
                spoiled: true,
                ..hidden.clone()
            };
            // Every third block of some, all of span two, and what a run has in it: the first block, say.
            let gone = |first: u64| first / 256 == 2 || first / 32 % 3 == s.seed % 3;
            let some = s.blocks_where(gone);
            let whole = Sequence {
                hidden: some.iter().map(|&first| first..first + 32).collect(),
                ..s.clone()
            };
            let without = Sequence {
                gone: some,
                ..s.clone()
            };
            for backend in backends() {
                for (threads, chunk) in [(1, 3), (2, 1)] {
                    let pool = ThreadPool::new(threads);
                    let run =
                        |s: &Sequence| run(backend, &pool, &[s], from, chunk, count).remove(0);
                    let what = format!(
                        "{} {name} {heads}/{kv_heads}/{dim} by {chunk}",
                        backend.name()
                    );
                    assert!(run(&hidden).bits() == run(&spoiled).bits(), "{what}");
                    let (whole, without) = (run(&whole), run(&without));
                    assert!(whole.bits().0 == without.bits().0, "{what}");
                    assert!(
                        whole.out[from * heads * dim..]
                            .iter()
                            .all(|x| x.is_finite())
                    );
                    let mass = |of: &Outcome| {
                        let counted = of.mass.iter().filter(|m| **m > 0);
                        counted.copied().collect::<Vec<u64>>()
                    };
                    assert_eq!(mass(&whole), mass(&without), "{what}");
                }
            }
        }
    }
}

/// With a window of one a token sees itself: the output is its own value, as stored.
#[test]
fn a_token_alone_returns_its_value() {
    let mut s = Sequence::new(4, 2, 64, 70, 11);
    s.window = Some(1);
    let got = &run(Backend::best(), &ThreadPool::new(2), &[&s], 0, 70, None)[0];
    assert!(got.sums.iter().all(|s| s.sum == 1.0 && s.max.is_finite()));
    for token in 0..70 {
        for head in 0..4 {
            for d in 0..64 {
                let v = s.v[(token * 2 + head / 2) * 64 + d];
                let out = got.out[(token * 4 + head) * 64 + d];
                assert_eq!(half::f16::from_f32(v).to_f32(), out);
            }
        }
    }
}

#[test]
fn a_query_that_sees_nothing_gets_zeros() {
    let mut s = Sequence::new(4, 2, 64, 5, 12);
    s.window = Some(0);
    let got = &run(
        Backend::best(),
        &ThreadPool::new(2),
        &[&s],
        0,
        5,
        Some((MassStatistic::Max, 1)),
    )[0];
    assert!(got.out.iter().all(|x| *x == 0.0));
    let nothing = |s: &SoftmaxSum| s.sum == 0.0 && s.max == f32::NEG_INFINITY;
    assert!(got.sums.iter().all(nothing));
}

/// Positions decide, not slots: a table whose first blocks were dropped gives the same as a window
/// that ends there.
#[test]
fn dropped_blocks_equal_a_window() {
    let s = Sequence::new(3, 1, 64, 641, 13);
    let pool = ThreadPool::new(1);
    let row = 3 * 64;
    let mut blocks = s.table(s.len);
    blocks.blocks.drain(..8);
    blocks.spans.remove(0);
    for span in &mut blocks.spans {
        *span = span.start - 8..span.end - 8;
    }
    let need = AttentionLimits {
        threads: 1,
        jobs: 1,
        heads: 3,
        kv_heads: 1,
        head_dim: 64,
        slots: 641,
    };
    let mut out = vec![0.0; row];
    let mut job = [AttentionJob {
        kv_heads: 1,
        head_dim: 64,
        heads: 3,
        basis: Basis::default(),
        mean: None,
        scale: s.scale(),
        window: None,
        q: &[&s.q[0][640 * row..]],
        first_position: 640,
        view: &blocks,
        out: &mut out,
        mass: None,
        sums: None,
    }];
    let exec = haversack_kernels::Exec {
        backend: Backend::best(),
        pool: &pool,
    };
    attend(exec, &mut AttentionScratch::new(need), &mut job);
    let mut window = s.clone();
    window.window = Some(641 - 256);
    let expected = &run(Backend::best(), &pool, &[&window], 640, 1, None)[0];
    assert_eq!(out, expected.out[640 * row..]);
}

#[test]
fn writing_one_slot_at_a_time_equals_writing_many() {
    for (_, kv_heads, dim) in SHAPES {
        let shape = KvShape {
            kv_heads,
            head_dim: dim,
            form: KvForm::F16,
        };
        let mut noise = Noise(14);
        let mut rows = noise.values(32 * shape.row());
        // Ties, subnormals of f16, overflow.
        let odd = [
            0.0,
            -0.0,
            1e9,
            -1e9,
            65520.0,
            1.0 + 2f32.powi(-11),
            3e-8,
            1e-5,
        ];
        rows[..8].copy_from_slice(&odd);
        let mut expected = (vec![0; shape.k_bytes()], vec![0; shape.v_bytes()]);
        write_k_rows(Backend::SCALAR, shape, &mut expected.0, 0, &rows);
        write_v_rows(Backend::SCALAR, shape, &mut expected.1, 0, &rows);
        for backend in backends() {
            for step in [1, 5, 32] {
                let mut k = vec![0xff; shape.k_bytes()];
                let mut v = vec![0xff; shape.v_bytes()];
                for (i, rows) in rows.chunks(step * shape.row()).enumerate() {
                    write_k_rows(backend, shape, &mut k, i * step, rows);
                    write_v_rows(backend, shape, &mut v, i * step, rows);
                }
                assert!((k, v) == expected, "{} by {step}", backend.name());
            }
        }
        // Saturated, not infinite.
        assert_eq!(expected.0[2 * 64..2 * 64 + 2], half::f16::MAX.to_le_bytes());
    }
}

#[test]
fn scratch_holds_what_it_says() {
    let need = AttentionLimits {
        threads: 2,
        jobs: 3,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        slots: 8000,
    };
    let bytes = AttentionScratch::bytes_for([need].into_iter());
    let mut scratch = AttentionScratch::new(need);
    assert_eq!(scratch.bytes(), bytes);
    scratch.reserve(AttentionLimits { slots: 100, ..need });
    assert_eq!(scratch.bytes(), bytes);
}
