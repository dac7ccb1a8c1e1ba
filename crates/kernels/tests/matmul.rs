//! The matrix product's promises, stamped over every backend of this CPU and every weight type:
//!
//! - the bits of the scalar reference, for any number of rows, from either layout, on any thread count;
//! - a row of a batch is that row alone;
//! - close to the exact sum in f64, by a bound that follows from the arithmetic.

use half::{bf16, f16};
use haversack_kernels::Exec;
use haversack_kernels::cpu::{Backend, BackendKind};
use haversack_kernels::format::WeightType::{self, *};
use haversack_kernels::format::gguf::unpack_row;
use haversack_kernels::format::packed::{STRIP, pack_strip, packed_bytes, strip_bytes};
use haversack_kernels::matmul::{
    Int8Rows, MatmulInput, Matrix, MatrixLayout, MatrixProduct, matmul,
};
use haversack_kernels::threads::ThreadPool;

/// xorshift, so that a failure repeats.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Uniform in -1..1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Where the f16 scales of a block lie.
fn scale_places(ty: WeightType) -> &'static [usize] {
    match ty {
        F32 | F16 | BF16 => &[],
        Q4_0 | Q5_0 | Q8_0 | IQ4_NL | IQ4_XS => &[0],
        Q4_1 | Q5_1 | Q4_K | Q5_K => &[0, 2],
        Q2_K => &[80, 82],
        Q3_K => &[108],
        Q6_K => &[208],
    }
}

/// Rows as a file would hold them: random codes, sane scales.
fn random_weights(ty: WeightType, rows: usize, cols: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes: Vec<u8> = match ty {
        F32 => (0..rows * cols)
            .flat_map(|_| random.unit().to_le_bytes())
            .collect(),
        F16 => (0..rows * cols)
            .flat_map(|_| f16::from_f32(random.unit()).to_le_bytes())
            .collect(),
        BF16 => (0..rows * cols)
            .flat_map(|_| bf16::from_f32(random.unit()).to_le_bytes())
            .collect(),
        _ => (0..rows * ty.row_bytes(cols).unwrap())
            .map(|_| (random.next() >> 32) as u8)
            .collect(),
    };
    if !ty.is_float() {
        for block in bytes.chunks_exact_mut(ty.block_bytes()) {
            for at in scale_places(ty) {
                let scale = f16::from_f32(random.unit() * 0.02).to_le_bytes();
                block[*at..at + 2].copy_from_slice(&scale);
            }
        }
    }
    bytes
}

fn pack(ty: WeightType, rows: usize, cols: usize, bytes: &[u8]) -> Vec<u8> {
    let row_bytes = ty.row_bytes(cols).unwrap();
    let mut out = vec![0xA5; packed_bytes(ty, rows, cols)];
    for (i, strip) in out.chunks_exact_mut(strip_bytes(ty, cols)).enumerate() {
        let n = (rows - i * STRIP).min(STRIP);
        pack_strip(
            ty,
            cols,
            &bytes[i * STRIP * row_bytes..][..n * row_bytes],
            n,
            strip,
        );
    }
    out
}

/// A matrix in both layouts and activations for it.
struct Case {
    ty: WeightType,
    rows: usize,
    cols: usize,
    file: Vec<u8>,
    packed: Vec<u8>,
    x: Vec<f32>, // (x_rows, cols)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Path {
    Int8,
    F32,
}

impl Case {
    fn new(ty: WeightType, rows: usize, cols: usize, x_rows: usize) -> Case {
        let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ (ty.id() as u64) << 40 ^ cols as u64);
        let file = random_weights(ty, rows, cols, &mut random);
        let mut x: Vec<f32> = (0..x_rows * cols).map(|_| random.unit() * 4.0).collect();
        // A group of zeros and one outlier, as real activations have.
        x[..cols.min(32)].fill(0.0);
        x[cols - 1] = 80.0;
        Case {
            packed: pack(ty, rows, cols, &file),
            ty,
            rows,
            cols,
            file,
            x,
        }
    }

    fn matrix(&self, layout: MatrixLayout) -> Matrix<'_> {
        Matrix {
            ty: self.ty,
            rows: self.rows,
            cols: self.cols,
            layout,
            bytes: match layout {
                MatrixLayout::Packed => &self.packed,
                MatrixLayout::Gguf => &self.file,
            },
        }
    }

    /// Rows `first..first + n` of the activations through the matrix.
    fn run(
        &self,
        backend: Backend,
        threads: &ThreadPool,
        layout: MatrixLayout,
        path: Path,
        first: usize,
        n: usize,
    ) -> Vec<f32> {
        let x = &self.x[first * self.cols..(first + n) * self.cols];
        let mut int8 = Int8Rows::default();
        if path == Path::Int8 {
            let pool = &ThreadPool::new(1);
            int8.quantise(Exec { backend, pool }, x, n, self.cols);
        }
        let mut out = vec![f32::NAN; n * self.rows];
        matmul(
            Exec {
                backend,
                pool: threads,
            },
            MatmulInput {
                rows: n,
                cols: self.cols,
                x,
                int8: (path == Path::Int8).then_some(&int8),
            },
            &mut [MatrixProduct {
                w: self.matrix(layout),
                out: &mut out,
            }],
        );
        out
    }

    fn paths(&self) -> &'static [Path] {
        // Float weights know one path; odd columns cannot be asked for in int8.
        if self.ty.is_float() {
            &[Path::F32]
        } else {
            &[Path::Int8, Path::F32]
        }
    }
}

/// Activation rows: alone, every block size of the kernels, and rests of each.
const X_ROWS: [usize; 6] = [1, 2, 5, 8, 13, 33];

/// Small matrices for every number of activation rows, and one with many strips and a rest for a
/// few. The tests also run under an emulator: a matrix more costs minutes there.
fn shapes(ty: WeightType) -> Vec<(usize, usize, &'static [usize])> {
    let small: &[usize] = match ty.block_len() {
        1 => &[1, 67],
        32 => &[32, 96],
        _ => &[256, 512],
    };
    let mut shapes: Vec<_> = small.iter().map(|cols| (5, *cols, &X_ROWS[..])).collect();
    shapes.push((300, small[1], &[1, 13]));
    shapes
}

fn assert_bits(a: &[f32], b: &[f32], what: impl std::fmt::Display) {
    assert_eq!(a.len(), b.len());
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!(
            a.to_bits() == b.to_bits(),
            "{what}: output {i} is {a:e}, not {b:e}"
        );
    }
}

fn print_missing_tables() {
    for kind in BackendKind::ALL {
        if Backend::new(kind).is_none() {
            println!("not exercised on this CPU: {}", kind.name());
        }
    }
}

#[test]
fn every_backend_gives_the_scalar_bits() {
    print_missing_tables();
    let pool = ThreadPool::new(1);
    for ty in WeightType::ALL {
        for (rows, cols, x_rows) in shapes(ty) {
            let most = x_rows[x_rows.len() - 1];
            let case = Case::new(ty, rows, cols, most);
            for &path in case.paths() {
                let scalar = case.run(Backend::SCALAR, &pool, MatrixLayout::Packed, path, 0, most);
                assert!(scalar.iter().all(|v| v.is_finite()));
                for backend in Backend::available() {
                    for &n in x_rows {
                        for layout in [MatrixLayout::Packed, MatrixLayout::Gguf] {
                            let out = case.run(backend, &pool, layout, path, 0, n);
                            assert_bits(
                                &out,
                                &scalar[..n * rows],
                                format_args!(
                                    "{} {ty} {path:?} {layout:?} {rows} x {cols}, {n} rows",
                                    backend.name()
                                ),
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_of_a_batch_is_that_row_alone() {
    let pool = ThreadPool::new(1);
    for backend in Backend::available() {
        for ty in WeightType::ALL {
            let (rows, cols) = (17, ty.block_len().max(64));
            let case = Case::new(ty, rows, cols, 15);
            for &path in case.paths() {
                let batch = case.run(backend, &pool, MatrixLayout::Packed, path, 0, 15);
                for row in 0..15 {
                    let alone = case.run(backend, &pool, MatrixLayout::Packed, path, row, 1);
                    let what = format_args!("{} {ty} {path:?} row {row}", backend.name());
                    assert_bits(&alone, &batch[row * rows..][..rows], what);
                }
            }
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let (one, two, five) = (ThreadPool::new(1), ThreadPool::new(2), ThreadPool::new(5));
    for backend in Backend::available() {
        for ty in WeightType::ALL {
            let case = Case::new(ty, 200, ty.block_len().max(32), 3);
            for &path in case.paths() {
                for layout in [MatrixLayout::Packed, MatrixLayout::Gguf] {
                    let alone = case.run(backend, &one, layout, path, 0, 3);
                    for pool in [&two, &five] {
                        let out = case.run(backend, pool, layout, path, 0, 3);
                        assert_bits(
                            &out,
                            &alone,
                            format_args!("{} {ty} {path:?}", backend.name()),
                        );
                    }
                }
            }
        }
    }
}

/// Several matrices, of different types, shapes and layouts, in one region give what each gives
/// alone; more than share a region, too.
#[test]
fn products_of_one_call_are_independent() {
    let pool = ThreadPool::new(2);
    let cols = 256;
    let cases: Vec<Case> = [Q4_1, F16, Q6_K, Q8_0, Q4_K, Q4_0, IQ4_XS, Q5_1, F32, Q2_K]
        .into_iter()
        .enumerate()
        .map(|(i, ty)| Case::new(ty, 1 + 17 * i, cols, 3))
        .collect();
    let x = &cases[0].x;
    for backend in Backend::available() {
        let mut int8 = Int8Rows::default();
        int8.quantise(
            Exec {
                backend,
                pool: &pool,
            },
            x,
            3,
            cols,
        );
        let input = MatmulInput {
            rows: 3,
            cols,
            x,
            int8: Some(&int8),
        };
        let exec = Exec {
            backend,
            pool: &pool,
        };
        let layout = |i: usize| [MatrixLayout::Packed, MatrixLayout::Gguf][i % 2];
        let empty =
            || -> Vec<Vec<f32>> { cases.iter().map(|c| vec![f32::NAN; 3 * c.rows]).collect() };
        let (mut together, mut alone) = (empty(), empty());
        let mut products: Vec<MatrixProduct<'_>> = cases
            .iter()
            .zip(&mut together)
            .enumerate()
            .map(|(i, (case, out))| MatrixProduct {
                w: case.matrix(layout(i)),
                out,
            })
            .collect();
        matmul(exec, input, &mut products);
        for (i, (case, out)) in cases.iter().zip(&mut alone).enumerate() {
            let w = case.matrix(layout(i));
            matmul(exec, input, &mut [MatrixProduct { w, out }]);
        }
        for (a, b) in together.iter().zip(&alone) {
            assert!(a.iter().all(|v| v.is_finite()));
            assert_bits(a, b, backend.name());
        }
    }
}

/// f32 path: weights are exact up to the roundings of unpacking (none here: the ideal unpacks the
/// same f32), so the error is that of a sum of `n` fused steps in f32: n u Σ|w x|, of which a
/// quarter is in one chain. `u` = 2^-24.
const F32_UNITS_PER_TERM: f64 = 1.0;

/// int8 path: an activation is off by half a step, absmax / 254, and by its roundings (f32 scale
/// and inverse: a few u of absmax, folded into 1 %); the rest is f32 sums as above.
const INT8_HALF_STEP: f64 = 1.01 / 254.0;

#[test]
fn close_to_the_exact_sum() {
    let pool = ThreadPool::new(1);
    let u = 2f64.powi(-24);
    for ty in WeightType::ALL {
        let (rows, cols, n) = (20, if ty.is_float() { 515 } else { 768 }, 2);
        let case = Case::new(ty, rows, cols, n);
        let row_bytes = ty.row_bytes(cols).unwrap();
        for backend in Backend::available() {
            for &path in case.paths() {
                let out = case.run(backend, &pool, MatrixLayout::Packed, path, 0, n);
                let mut w = vec![0.0; cols];
                for j in 0..rows {
                    unpack_row(ty, &case.file[j * row_bytes..][..row_bytes], &mut w);
                    for i in 0..n {
                        let x = &case.x[i * cols..][..cols];
                        let (mut exact, mut size, mut steps) = (0.0, 0.0, 0.0);
                        for k in 0..cols {
                            exact += f64::from(w[k]) * f64::from(x[k]);
                            size += (f64::from(w[k]) * f64::from(x[k])).abs();
                            let group = &x[k / 32 * 32..(k / 32 * 32 + 32).min(cols)];
                            let absmax = group.iter().fold(0f32, |m, v| m.max(v.abs()));
                            steps += f64::from(w[k]).abs() * f64::from(absmax);
                        }
                        let bound = match path {
                            Path::F32 => F32_UNITS_PER_TERM * cols as f64 * u * size,
                            // Scale and minimum are multiplied apart, so rounding errors follow
                            // the size of these terms, up to 16 times that of their difference.
                            Path::Int8 => INT8_HALF_STEP * steps + 64.0 * cols as f64 * u * size,
                        };
                        let error = (f64::from(out[i * rows + j]) - exact).abs();
                        assert!(
                            error <= bound,
                            "{} {ty} {path:?}: error {error:e}, bound {bound:e}",
                            backend.name()
                        );
                    }
                }
            }
        }
    }
}

/// Rounding to int8 is the same in every backend, for odd values too.
#[test]
fn int8_rounding_is_the_same_everywhere() {
    let mut random = Random(7);
    let mut x: Vec<f32> = (0..32 * 40)
        .map(|i| random.unit() * 10f32.powi(i / 32 - 20))
        .collect();
    x.extend([0.0; 32]);
    x.extend([-0.0; 32]);
    x.extend([f32::from_bits(1); 32]);
    x.extend([f32::MAX; 32]);
    // Half steps: 127 is the largest, so the rest are codes themselves.
    x.extend((0..32).map(|i| if i == 0 { 127.0 } else { i as f32 - 16.5 }));
    let mut scalar = Int8Rows::default();
    let pool = &ThreadPool::new(2);
    let backend = Backend::SCALAR;
    scalar.quantise(Exec { backend, pool }, &x, 1, x.len());
    for backend in Backend::available() {
        let mut other = Int8Rows::default();
        other.quantise(Exec { backend, pool }, &x, 1, x.len());
        assert_eq!(
            format!("{scalar:?}"),
            format!("{other:?}"),
            "{}",
            backend.name()
        );
    }
}

/// A NaN or an infinity in the activations is seen in the output, not lost in the rounding.
#[test]
fn broken_activations_stay_visible() {
    let pool = ThreadPool::new(1);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for ty in WeightType::ALL {
            let mut case = Case::new(ty, 17, 256, 1);
            case.x[40] = bad;
            for backend in Backend::available() {
                for &path in case.paths() {
                    let out = case.run(backend, &pool, MatrixLayout::Packed, path, 0, 1);
                    assert!(
                        out.iter().all(|v| !v.is_finite()),
                        "{} {ty}",
                        backend.name()
                    );
                }
            }
        }
    }
}
