//! Matrix products of packed weights with one row or many.
//!
//! A matrix is cut into strips of 16 rows ([`crate::format::packed`]), a strip is one pass along
//! `k` with one output row per lane ([`kernel`]), and strips are shared out among the threads. The
//! arithmetic is defined per output, so the same bits come out of every backend, for a row alone or
//! in a batch, on any number of threads, and from a packed matrix or one as it lies in the file.
//!
//! This is no general matrix multiply. Weights are constant and packed once (or strip by
//! strip on the way, [`MatrixLayout::Gguf`]); activations are rows; the product is `x · Wᵀ`.

mod int8;
mod isa;
mod kernel;
mod scalar;
mod task;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use std::cell::RefCell;

pub use int8::Int8Rows;

use crate::Exec;
use crate::cpu::{Backend, BackendKind};
use crate::format::WeightType;
use crate::format::packed::{ALIGN, STRIP, pack_strip, packed_bytes, strip_bytes};
use task::Task;

/// A weight matrix: `rows` outputs of `cols` inputs each.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    pub ty: WeightType,
    pub rows: usize,
    pub cols: usize,
    pub layout: MatrixLayout,
    pub bytes: &'a [u8],
}

/// How a matrix lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixLayout {
    /// Strips, as [`pack_strip`] makes them, one after the other.
    Packed,
    /// Rows as in the file; each strip is packed into a scratch of the thread on every use.
    Gguf,
}

/// The activations of a call, in f32 and, for the fast path, in int8.
#[derive(Clone, Copy)]
pub struct MatmulInput<'a> {
    pub rows: usize,
    pub cols: usize,
    /// (rows, cols). May be empty if `int8` is given and no matrix of the call is of a float type.
    pub x: &'a [f32],
    /// The same rows in int8: then quantised weights use them. Float weights always use `x`.
    pub int8: Option<&'a Int8Rows>,
}

/// One matrix of a call and where its product goes.
pub struct MatrixProduct<'a> {
    pub w: Matrix<'a>,
    /// (input.rows, w.rows)
    pub out: &'a mut [f32],
}

/// Weight bytes a thread claims at a time for few activation rows. A thread continues where it stopped,
/// so the memory stream does not end with a unit; small units keep threads from waiting long for the
/// last one: SmolLM2's matrices for one row and for three take 7 and 8 % less than in units of
/// 128 KiB that any thread may take, 2 and 0 % less than in 8 KiB (two threads, medians).
const UNIT_BYTES: usize = 16 << 10;

/// Activation rows from which arithmetic limits the speed, not memory.
const MANY_ROWS: usize = 16;

/// Most products of one parallel region; a call with more runs several regions.
const PRODUCTS_MAX: usize = 8;

/// Strips a thread claims at a time for many activation rows, so that an activation row is
/// read, and a piece of an output row written, for more than 16 outputs at once …
const UNIT_STRIPS_MANY_ROWS: usize = 4;
/// … at least, and as many as this has bytes …
const UNIT_BYTES_MANY_ROWS: usize = 128 << 10;
/// … as long as they fit beside the activations in L2.
const UNIT_BYTES_MAX: usize = 512 << 10;

/// Computes all products of one input in one parallel region.
///
/// Panics unless the shapes are right: `w.cols == input.cols`, `w.bytes` of exactly
/// the size its type, shape and layout say, `out` of `input.rows * w.rows`, `cols` a multiple of
/// the type's block.
pub fn matmul(exec: Exec<'_>, input: MatmulInput<'_>, products: &mut [MatrixProduct<'_>]) {
    for products in products.chunks_mut(PRODUCTS_MAX) {
        region(exec, input, products);
    }
}

fn region(exec: Exec<'_>, input: MatmulInput<'_>, products: &mut [MatrixProduct<'_>]) {
    let mut jobs = [const { None }; PRODUCTS_MAX];
    let mut units = 0;
    for (job, product) in jobs.iter_mut().zip(products) {
        let new = Job::new(input, product, exec.pool.threads(), units);
        units = new.first_unit + new.units;
        *job = Some(new);
    }
    let jobs = &jobs;
    exec.pool.run_in_order(units, &|_, unit| {
        let job = jobs
            .iter()
            .flatten()
            .find(|job| unit < job.first_unit + job.units);
        if let Some(job) = job {
            job.run(exec.backend, input, unit - job.first_unit);
        }
    });
}

/// A product cut into units of `unit_strips` strips.
struct Job<'a> {
    w: Matrix<'a>,
    out: *mut f32, // (input.rows, w.rows)
    strip_bytes: usize,
    unit_strips: usize,
    first_unit: usize,
    units: usize,
}

// SAFETY: `out` is written through only by units, each to the columns of its own strips.
unsafe impl Sync for Job<'_> {}

impl<'a> Job<'a> {
    fn new(
        input: MatmulInput<'_>,
        product: &mut MatrixProduct<'a>,
        threads: usize,
        first_unit: usize,
    ) -> Job<'a> {
        let w = product.w;
        assert_eq!(w.cols, input.cols, "{} columns against input", w.ty);
        assert_eq!(product.out.len(), input.rows * w.rows);
        let row_bytes = w.ty.row_bytes(w.cols);
        assert!(row_bytes.is_some(), "{} of {} columns", w.ty, w.cols);
        let bytes = match w.layout {
            MatrixLayout::Packed => packed_bytes(w.ty, w.rows, w.cols),
            MatrixLayout::Gguf => row_bytes.unwrap_or(0) * w.rows,
        };
        assert_eq!(w.bytes.len(), bytes, "{} {} x {}", w.ty, w.rows, w.cols);
        match input.int8 {
            Some(int8) if !w.ty.is_float() => {
                assert_eq!((int8.rows, int8.cols), (input.rows, input.cols));
            }
            _ => assert_eq!(input.x.len(), input.rows * input.cols),
        }

        let strips = w.rows.div_ceil(STRIP);
        let strip_bytes = strip_bytes(w.ty, w.cols);
        let by_bytes = |bytes: usize| bytes / strip_bytes.max(1);
        let wanted = if input.rows < MANY_ROWS {
            by_bytes(UNIT_BYTES)
        } else {
            by_bytes(UNIT_BYTES_MANY_ROWS).max(by_bytes(UNIT_BYTES_MAX).min(UNIT_STRIPS_MANY_ROWS))
        };
        // At least two units for each thread, if there are as many strips.
        let fair = strips.div_ceil(2 * threads).max(1);
        let unit_strips = wanted.clamp(1, fair);
        let mut units = strips.div_ceil(unit_strips);
        if input.rows == 0 || input.cols == 0 {
            product.out.fill(0.0);
            units = 0;
        }
        Job {
            w,
            out: product.out.as_mut_ptr(),
            strip_bytes,
            unit_strips,
            first_unit,
            units,
        }
    }

    fn run(&self, backend: Backend, input: MatmulInput<'_>, unit: usize) {
        let first_row = unit * self.unit_strips * STRIP;
        let rows = (self.w.rows - first_row).min(self.unit_strips * STRIP);
        match self.w.layout {
            MatrixLayout::Packed => {
                let at = unit * self.unit_strips * self.strip_bytes;
                let bytes = &self.w.bytes[at..][..rows.div_ceil(STRIP) * self.strip_bytes];
                self.strips(backend, input, bytes, first_row, rows);
            }
            MatrixLayout::Gguf => SCRATCH.with_borrow_mut(|scratch| {
                let strip = bytes_of(scratch, self.strip_bytes);
                for row in (first_row..first_row + rows).step_by(STRIP) {
                    let n = (self.w.rows - row).min(STRIP);
                    let row_bytes = self.w.bytes.len() / self.w.rows;
                    let bytes = &self.w.bytes[row * row_bytes..][..n * row_bytes];
                    pack_strip(self.w.ty, self.w.cols, bytes, n, strip);
                    self.strips(backend, input, strip, row, n);
                }
            }),
        }
    }

    /// Strips with `rows` rows from `first_row` on.
    fn strips(
        &self,
        backend: Backend,
        input: MatmulInput<'_>,
        bytes: &[u8],
        first_row: usize,
        rows: usize,
    ) {
        let lines = input.int8.filter(|_| !self.w.ty.is_float());
        let task = Task {
            ty: self.w.ty,
            cols: self.w.cols,
            bytes,
            rows,
            x_rows: input.rows,
            x: input.x,
            lines: lines.map(Int8Rows::lines),
            // SAFETY: within `out`, whose (input.rows, w.rows) was asserted.
            out: unsafe { self.out.add(first_row) },
            out_stride: self.w.rows,
        };
        run(backend, &task);
    }
}

/// The task by the kernels of a backend.
fn run(backend: Backend, task: &Task<'_>) {
    match backend.kind() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the backend exists, so the CPU has its features.
        BackendKind::Avx512 | BackendKind::Avx512Vbmi => unsafe { avx512::strips(task) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        BackendKind::Avx2 => unsafe { avx2::strips(task) },
        #[cfg(target_arch = "aarch64")]
        BackendKind::Neon => neon::strips(task),
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        BackendKind::NeonDot => unsafe { neon::strips_dot(task) },
        _ => scalar::strips(task),
    }
}

/// A cache line, so that a strip packed on the way is aligned like a packed one.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Aligned([u8; ALIGN]);

thread_local! {
    /// Where this thread packs strips on the way. Grows to the largest strip and stays.
    static SCRATCH: RefCell<Vec<Aligned>> = const { RefCell::new(Vec::new()) };
}

/// The first `len` bytes of the scratch; `len` is a multiple of 64.
fn bytes_of(scratch: &mut Vec<Aligned>, len: usize) -> &mut [u8] {
    let lines = len / ALIGN;
    if scratch.len() < lines {
        scratch.resize(lines, Aligned([0; ALIGN]));
    }
    // SAFETY: an `Aligned` is 64 plain bytes without padding, and there are `len / 64` of them.
    unsafe { std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast(), lines * ALIGN) }
}
