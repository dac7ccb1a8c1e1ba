//! Small operations: every backend gives the scalar bits, and those are near the f64 ideal.

use haversack_kernels::cpu::{Backend, BackendKind};
use haversack_kernels::ops::{self, Pairing, RopeSpec, exp, lanes, rope};

/// Lengths around the lanes: none, partial, whole, whole and partial, a model's.
const LENGTHS: [usize; 9] = [0, 1, 15, 16, 17, 31, 48, 64, 577];

/// Relative errors of the activations: an exponential, a division and three products.
const ACTIVATION_ERROR_MAX: f64 = 5e-7;

fn backends() -> Vec<Backend> {
    static PRINTED: std::sync::Once = std::sync::Once::new();
    PRINTED.call_once(|| {
        for kind in BackendKind::ALL
            .into_iter()
            .filter(|k| Backend::new(*k).is_none())
        {
            println!("not run here: backend {}", kind.name());
        }
    });
    Backend::available().collect()
}

/// Values of both signs over several magnitudes.
fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..n)
        .map(|_| {
            let x = (next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
            x * [1e-3, 1.0, 4.0, 30.0][(next() % 4) as usize]
        })
        .collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// One line per operation: a name, and what it makes of a row and a second one.
type Op = (&'static str, fn(Backend, &[f32], &[f32]) -> Vec<f32>);
const OPS: [Op; 16] = [
    ("sum", |t, x, _| vec![ops::sum(t, x)]),
    ("dot_self", |t, x, _| vec![ops::dot_self(t, x)]),
    ("dot", |t, x, y| vec![ops::dot(t, x, y)]),
    ("max", |t, x, _| vec![ops::max(t, x)]),
    ("add_assign", |t, x, y| {
        changed(x, |x| ops::add_assign(t, x, y))
    }),
    ("scale", |t, x, _| changed(x, |x| ops::scale(t, x, 0.3))),
    ("rms_norm", |t, x, y| {
        let mut out = vec![0.0; x.len()];
        ops::rms_norm(t, x, y, 1e-5, &mut out);
        out
    }),
    ("layer_norm_assign", |t, x, y| {
        changed(x, |x| {
            ops::layer_norm_assign(t, x, y, &noise(y.len(), 9), 1e-12)
        })
    }),
    ("gelu_exact", |t, x, _| {
        changed(x, |x| ops::gelu_exact(t, x))
    }),
    ("product", |t, x, y| {
        // As many rows as fit, at strides that are not their lengths.
        let (k, cols) = (5, x.len() / 32 * 16);
        let rows = if cols == 0 { 0 } else { y.len() / (k + 2) };
        let m: Vec<f32> = x.iter().cycle().take(k * (cols + 3)).copied().collect();
        let mut out = vec![7.0; rows * (cols + 1)];
        let (m, y) = (rows_of(&m, cols + 3), rows_of(y, k + 2));
        ops::product(t, y, m, rows, k, cols, &mut out, cols + 1);
        out
    }),
    ("silu_mul", |t, x, y| changed(x, |x| ops::silu_mul(t, x, y))),
    ("gelu_mul", |t, x, y| changed(x, |x| ops::gelu_mul(t, x, y))),
    ("exp_row", |t, x, _| changed(x, |x| exp::exp_row(t, x))),
    ("exp_sub_sum", |t, x, _| {
        let mut sum = 0.0;
        let mut out = changed(x, |x| sum = exp::exp_sub_sum(t, x, 30.0));
        out.push(sum);
        out
    }),
    ("softmax", |t, x, _| changed(x, |x| ops::softmax(t, x))),
    ("rotate", |t, x, _| {
        let mut out = Vec::new();
        for pairing in [Pairing::Interleaved, Pairing::Halves] {
            for dims in [x.len() / 2 * 2, x.len() / 4 * 2] {
                let spec = RopeSpec::plain(dims, pairing, 10_000.0);
                let mut angles = vec![0.0; spec.angles_len()];
                spec.angles(1234, &mut angles);
                out.extend(changed(x, |x| ops::rotate(t, x, &angles, &spec)));
            }
        }
        out
    }),
];

fn rows_of(data: &[f32], stride: usize) -> ops::StridedRows<'_> {
    ops::StridedRows { data, stride }
}

fn changed(x: &[f32], f: impl FnOnce(&mut [f32])) -> Vec<f32> {
    let mut x = x.to_vec();
    f(&mut x);
    x
}

#[test]
fn every_backend_gives_the_scalar_bits() {
    for (name, op) in OPS {
        for len in LENGTHS {
            for seed in 1..5 {
                let (x, y) = (noise(len, seed), noise(len, seed + 100));
                let expected = op(Backend::SCALAR, &x, &y);
                for backend in backends() {
                    let got = op(backend, &x, &y);
                    assert_eq!(
                        bits(&got),
                        bits(&expected),
                        "{name} {} {len}",
                        backend.name()
                    );
                }
            }
        }
    }
}

/// The order of a sum is a definition, not an accident: written out once more, element by element.
#[test]
fn the_tree_is_the_documented_one() {
    let x = noise(100, 7);
    let mut l = [0.0f32; 16];
    for (i, x) in x.iter().enumerate() {
        l[i % 16] += x;
    }
    let e: Vec<f32> = (0..8).map(|i| l[i] + l[i + 8]).collect();
    let f: Vec<f32> = (0..4).map(|i| e[i] + e[i + 4]).collect();
    let expected = (f[0] + f[2]) + (f[1] + f[3]);
    assert_eq!(lanes::fold(l).to_bits(), expected.to_bits());
    assert_eq!(ops::sum(Backend::SCALAR, &x).to_bits(), expected.to_bits());
}

/// Every f32 between the limits, in steps that are no power of two, and every one near them.
#[test]
fn exp_is_within_its_bound() {
    let check = |x: f32, worst: &mut f64| {
        let ideal = f64::from(x).exp();
        let ulp = f64::from(f32::from_bits((ideal as f32).to_bits() + 1)) - f64::from(ideal as f32);
        let error = (f64::from(exp::exp(x)) - ideal).abs() / ulp;
        *worst = worst.max(error);
        assert!(
            error <= exp::ERROR_MAX_ULP,
            "exp({x}) is off by {error} ulp"
        );
    };
    let mut worst = 0.0;
    for (from, to) in [(0.0f32, exp::HIGHEST), (-0.0, exp::LOWEST)] {
        for b in (from.to_bits()..=to.to_bits()).step_by(1009) {
            check(f32::from_bits(b), &mut worst);
        }
        for b in to.to_bits() - 1000..=to.to_bits() {
            check(f32::from_bits(b), &mut worst);
        }
    }
    println!("exp: worst {worst} ulp");
}

/// All of them, three billion: run by hand after a change of the polynomial.
#[test]
#[ignore = "a minute on a fast core"]
fn exp_is_within_its_bound_everywhere() {
    let mut worst = 0.0f64;
    for (from, to) in [(0.0f32, exp::HIGHEST), (-0.0, exp::LOWEST)] {
        let mut at = from.to_bits();
        while at < to.to_bits() {
            let n = (to.to_bits() - at).min(1 << 16);
            let x: Vec<f32> = (at..=at + n).map(f32::from_bits).collect();
            let y = changed(&x, |x| exp::exp_row(Backend::best(), x));
            for (x, y) in x.iter().zip(&y) {
                let ideal = f64::from(*x).exp();
                let near = (ideal as f32).to_bits();
                let ulp = f64::from(f32::from_bits(near + 1)) - f64::from(f32::from_bits(near));
                worst = worst.max((f64::from(*y) - ideal).abs() / ulp);
            }
            at += n;
        }
    }
    println!("exp: worst {worst} ulp");
    assert!(worst <= exp::ERROR_MAX_ULP);
}

#[test]
fn exp_at_its_limits() {
    let cases = [
        (0.0, 1.0),
        (-0.0, 1.0),
        (f32::NEG_INFINITY, 0.0),
        (f32::MIN, 0.0),
        (-87.34, 0.0),
        (-104.0, 0.0),
        (88.4, f32::INFINITY),
        (f32::MAX, f32::INFINITY),
        (f32::INFINITY, f32::INFINITY),
    ];
    for backend in backends() {
        for (x, y) in cases {
            let got = changed(&[x], |x| exp::exp_row(backend, x))[0];
            assert_eq!(
                got.to_bits(),
                f32::to_bits(y),
                "exp({x}) on {}",
                backend.name()
            );
        }
        // Never subnormal, and not a number stays visible.
        assert!(changed(&[exp::LOWEST], |x| exp::exp_row(backend, x))[0].is_normal());
        assert!(changed(&[f32::NAN], |x| exp::exp_row(backend, x))[0].is_nan());
    }
}

#[test]
fn activations_are_near_the_ideal() {
    let x: Vec<f32> = (-2000..2000).map(|i| i as f32 / 100.0).collect();
    let up = vec![1.5; x.len()];
    let silu = changed(&x, |x| ops::silu_mul(Backend::best(), x, &up));
    let gelu = changed(&x, |x| ops::gelu_mul(Backend::best(), x, &up));
    for (i, g) in x.iter().map(|x| f64::from(*x)).enumerate() {
        let ideal = g / (1.0 + (-g).exp()) * 1.5;
        assert!((f64::from(silu[i]) - ideal).abs() <= ACTIVATION_ERROR_MAX * ideal.abs());
        // The tanh form cancels in f64 below -5; the sigmoid it equals does not.
        let u = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g * g * g);
        let ideal = g / (1.0 + (-2.0 * u).exp()) * 1.5;
        // e^(-2u) multiplies the relative error of its exponent by the exponent.
        let bound = ACTIVATION_ERROR_MAX * (1.0 + 2.0 * u.abs()) * ideal.abs();
        assert!(
            (f64::from(gelu[i]) - ideal).abs() <= bound + 1e-37,
            "gelu({g})"
        );
        if g.abs() < 4.0 {
            let tanh = 0.5 * g * (1.0 + u.tanh()) * 1.5;
            assert!((f64::from(gelu[i]) - tanh).abs() <= 2e-6);
        }
    }
}

/// Against the integral of the bell in f64: no error function is in the standard library, and none
/// is needed.
#[test]
fn the_exact_gelu_is_near_the_ideal() {
    const STEP: f64 = 1.0 / 1024.0;
    let bell = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    // From far left, by Simpson's rule over each step.
    let mut below = 0.0;
    for i in -12 * 1024..=8 * 1024 {
        let x = f64::from(i) * STEP;
        if x >= -8.0 {
            let ideal = x * below;
            let got = f64::from(changed(&[x as f32], |x| ops::gelu_exact(Backend::best(), x))[0]);
            // The square in the exponent is rounded before it is raised.
            let bound = ACTIVATION_ERROR_MAX * (1.0 + x * x / 2.0) * ideal.abs();
            assert!(
                (got - ideal).abs() <= bound,
                "gelu({x}) is {got}, not {ideal}"
            );
        }
        below += STEP / 6.0 * (bell(x) + 4.0 * bell(x + STEP / 2.0) + bell(x + STEP));
    }
    for backend in backends() {
        let x = [0.0, 100.0, -100.0, f32::INFINITY, f32::NAN];
        let y = changed(&x, |x| ops::gelu_exact(backend, x));
        assert_eq!(y[..3], [0.0, 100.0, 0.0]);
        // What is not finite stays visible.
        assert!(!y[3].is_finite() && y[4].is_nan());
    }
}

#[test]
fn layer_norm_is_near_the_ideal() {
    let (x, weight, bias) = (noise(384, 3), noise(384, 4), noise(384, 5));
    let out = changed(&x, |x| {
        ops::layer_norm_assign(Backend::best(), x, &weight, &bias, 1e-12)
    });
    let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let mean = wide.iter().sum::<f64>() / 384.0;
    let variance = wide.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 384.0;
    for i in 0..384 {
        let (weight, bias) = (f64::from(weight[i]), f64::from(bias[i]));
        let by = weight / (variance + 1e-12).sqrt();
        let ideal = (wide[i] - mean) * by + bias;
        // Taking the mean out cancels: the error is one of what was there before.
        let bound = 1e-6 * ((wide[i].abs() + mean.abs()) * by.abs() + bias.abs());
        assert!((f64::from(out[i]) - ideal).abs() <= bound, "{i}");
    }
}

/// The sum runs along `k`, fused, from zero, and rows do not know of each other.
#[test]
fn a_small_product_is_the_documented_one() {
    let (x, m) = (noise(13 * 40, 6), noise(40 * 32, 7));
    let product = |x: &[f32], rows: usize| {
        let mut out = vec![0.0; rows * 32];
        let (x, m) = (rows_of(x, 40), rows_of(&m, 32));
        ops::product(Backend::best(), x, m, rows, 40, 32, &mut out, 32);
        out
    };
    let all = product(&x, 13);
    for row in 0..13 {
        let alone = product(&x[row * 40..][..40], 1);
        assert_eq!(bits(&alone), bits(&all[row * 32..][..32]), "row {row}");
        for col in 0..32 {
            let sum = (0..40).fold(0.0f32, |sum, i| {
                x[row * 40 + i].mul_add(m[i * 32 + col], sum)
            });
            assert_eq!(alone[col].to_bits(), sum.to_bits());
        }
    }
}

#[test]
fn rms_norm_is_near_the_ideal() {
    let (x, weight) = (noise(576, 3), noise(576, 4));
    let mut out = vec![0.0; 576];
    ops::rms_norm(Backend::best(), &x, &weight, 1e-5, &mut out);
    let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 576.0;
    for i in 0..576 {
        let ideal = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(weight[i]);
        assert!((f64::from(out[i]) - ideal).abs() <= 5e-7 * ideal.abs());
    }
}

/// A row of zeros stays zeros, and a tiny one is not blown up: that is what eps is for.
#[test]
fn rms_norm_of_next_to_nothing() {
    for backend in backends() {
        for (x, y) in [(0.0, 0.0), (1e-6, 1e-3)] {
            let mut out = [7.0; 20];
            ops::rms_norm(backend, &[x; 20], &[1.0; 20], 1e-6, &mut out);
            assert!(out.iter().all(|out| (out - y).abs() <= 1e-9), "{out:?}");
        }
    }
}

#[test]
fn softmax_sums_to_one_and_survives_nothing() {
    for backend in backends() {
        let p = changed(&noise(1000, 5), |x| ops::softmax(backend, x));
        let total: f64 = p.iter().map(|p| f64::from(*p)).sum();
        assert!((total - 1.0).abs() < 1e-5);
        let blind = changed(&[f32::NEG_INFINITY; 20], |x| ops::softmax(backend, x));
        assert!(blind.iter().all(|p| *p == 0.0));
    }
}

/// Two words by which a pair can be found, so that a rotation of the wrong two values shows.
#[test]
fn pairings_turn_the_right_values() {
    for (pairing, partner) in [(Pairing::Interleaved, 1), (Pairing::Halves, 4)] {
        let spec = RopeSpec {
            dims: 8,
            pairing,
            freqs: vec![1.0, 0.1, 0.01, 0.001],
            magnitude: 1.0,
        };
        let mut angles = vec![0.0; 8];
        spec.angles(3, &mut angles);
        let mut head = vec![0.0; 10];
        head[0] = 1.0;
        head[9] = 7.0;
        ops::rotate(Backend::best(), &mut head, &angles, &spec);
        assert_eq!(head[0], 3f64.cos() as f32);
        assert_eq!(head[partner], 3f64.sin() as f32);
        // Beyond the rotated values nothing moves.
        assert_eq!(head[9], 7.0);
        assert_eq!(head.iter().filter(|x| **x != 0.0).count(), 3);
    }
}

/// All values at once, against the rotation in f64.
#[test]
fn rotation_is_near_the_ideal() {
    for backend in backends() {
        for (pairing, apart, step) in [(Pairing::Interleaved, 1, 2), (Pairing::Halves, 32, 1)] {
            let spec = RopeSpec::plain(64, pairing, 10_000.0);
            let mut angles = vec![0.0; 64];
            spec.angles(77, &mut angles);
            let x: Vec<f32> = noise(64, 9).iter().map(|x| x / 30.0).collect();
            let got = changed(&x, |x| ops::rotate(backend, x, &angles, &spec));
            for pair in 0..32 {
                let (i, j) = (pair * step, pair * step + apart);
                let (a, b) = (f64::from(x[i]), f64::from(x[j]));
                let (sin, cos) = (77.0 * 10_000f64.powf(-(pair as f64) / 32.0)).sin_cos();
                assert!((f64::from(got[i]) - (a * cos - b * sin)).abs() <= 2e-7);
                assert!((f64::from(got[j]) - (a * sin + b * cos)).abs() <= 2e-7);
            }
        }
    }
}

/// Angles repeat after a whole turn, however far out: a frequency of 2 pi / 1000 at one million
/// tokens is back where it began.
#[test]
fn a_million_tokens_out_angles_are_exact() {
    let spec = RopeSpec {
        dims: 4,
        pairing: rope::Pairing::Halves,
        freqs: vec![2.0 * std::f64::consts::PI / 1000.0, 1.0],
        magnitude: 0.5,
    };
    let (mut near, mut far) = (vec![0.0; 4], vec![0.0; 4]);
    spec.angles(123, &mut near);
    spec.angles(1_000_123, &mut far);
    for i in 0..2 {
        assert!(
            (near[i] - far[i]).abs() <= f32::EPSILON / 8.0,
            "{near:?} {far:?}"
        );
    }
    // cos and sin of one million radians, to more digits than f32 holds.
    spec.angles(1_000_000, &mut far);
    assert_eq!(far[2], (0.5 * 0.936_752_127_533_158_3_f64) as f32);
    assert_eq!(far[3], (0.5 * -0.349_993_502_171_292_94_f64) as f32);
}

#[test]
fn fixed_point_rounds_to_nearest() {
    let unit = 2f32.powi(-40);
    for (x, n) in [
        (0.0, 0),
        (unit, 1),
        (0.5 * unit, 0),
        (1.5 * unit, 2),
        (2.5 * unit, 2),
        (1.0, 1 << 40),
        (2.0, 1 << 41),
    ] {
        assert_eq!(lanes::to_fixed(x), n);
    }
}
