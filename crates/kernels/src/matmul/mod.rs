//! Matrix products of packed weights with one row or many.
//!
//! A matrix is cut into strips of 16 rows ([`crate::format::packed`]), a strip is one pass along
//! `k` with one output row per lane ([`kernel`]), and strips are shared out among the threads. The
//! arithmetic is defined per output, so the same bits come out of every table, for a row alone or
//! in a batch, on any number of threads, and from a packed matrix or one as it lies in the file.
//!
//! What this is not: a general matrix multiply. Weights are constant and packed once (or strip by
//! strip on the way, [`Layout::Gguf`]); activations are rows; the product is `x · Wᵀ`.

mod int8;
mod isa;
mod kernel;
mod scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use std::cell::RefCell;

pub use int8::Int8Rows;

use crate::Exec;
use crate::cpu::{Kind, Table};
use crate::format::WeightType;
use crate::format::packed::{ALIGN, STRIP, pack_strip, packed_bytes, strip_bytes};
use int8::Line;

/// A weight matrix: `rows` outputs of `cols` inputs each.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    pub ty: WeightType,
    pub rows: usize,
    pub cols: usize,
    pub layout: Layout,
    pub bytes: &'a [u8],
}

/// How a matrix lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Strips, as [`pack_strip`] makes them, one after the other.
    Packed,
    /// Rows as in the file; each strip is packed into a scratch of the thread on every use.
    Gguf,
}

/// The activations of a call, in f32 and, for the fast path, in int8.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    pub rows: usize,
    pub cols: usize,
    /// (rows, cols). May be empty if `int8` is given and no matrix of the call is of a float type.
    pub x: &'a [f32],
    /// The same rows in int8: then quantised weights use them. Float weights always use `x`.
    pub int8: Option<&'a Int8Rows>,
}

/// One matrix of a call and where its product goes.
pub struct Product<'a> {
    pub w: Matrix<'a>,
    /// (input.rows, w.rows)
    pub out: &'a mut [f32],
}

/// Weight bytes a thread takes at a time when few rows run through them. It goes on where it stopped,
/// so the memory stream does not end with a unit; what small units give is that no thread waits long
/// for the last one: SmolLM2's matrices for one row and for three take 7 and 8 % less than in units of
/// 128 KiB that any thread may take, 2 and 0 % less than in 8 KiB (two threads, medians).
const UNIT_BYTES: usize = 16 << 10;

/// From so many rows on arithmetic decides, not memory.
const MANY_ROWS: usize = 16;

/// Products that share a parallel region at most; more are done region by region.
const PRODUCTS_MAX: usize = 8;

/// Strips a thread takes at a time when many rows run through them, so that an activation row is
/// read, and a piece of an output row written, for more than 16 outputs at once …
const UNIT_STRIPS_MANY_ROWS: usize = 4;
/// … at least, and as many as this has bytes …
const UNIT_BYTES_MANY_ROWS: usize = 128 << 10;
/// … as long as they fit beside the activations in L2.
const UNIT_BYTES_MAX: usize = 512 << 10;

/// Computes all products of one input in one parallel region.
///
/// Shapes are the caller's to get right, and asserted: `w.cols == input.cols`, `w.bytes` of exactly
/// the size its type, shape and layout say, `out` of `input.rows * w.rows`, `cols` a multiple of
/// the type's block.
pub fn matmul(exec: Exec<'_>, input: Input<'_>, products: &mut [Product<'_>]) {
    for products in products.chunks_mut(PRODUCTS_MAX) {
        region(exec, input, products);
    }
}

fn region(exec: Exec<'_>, input: Input<'_>, products: &mut [Product<'_>]) {
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
            job.run(exec.table, input, unit - job.first_unit);
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
        input: Input<'_>,
        product: &mut Product<'a>,
        threads: usize,
        first_unit: usize,
    ) -> Job<'a> {
        let w = product.w;
        assert_eq!(w.cols, input.cols, "{} columns against input", w.ty);
        assert_eq!(product.out.len(), input.rows * w.rows);
        let row_bytes = w.ty.row_bytes(w.cols);
        assert!(row_bytes.is_some(), "{} of {} columns", w.ty, w.cols);
        let bytes = match w.layout {
            Layout::Packed => packed_bytes(w.ty, w.rows, w.cols),
            Layout::Gguf => row_bytes.unwrap_or(0) * w.rows,
        };
        assert_eq!(w.bytes.len(), bytes, "{} {} x {}", w.ty, w.rows, w.cols);
        match input.int8 {
            Some(int8) if !w.ty.is_float() => {
                assert_eq!((int8.rows(), int8.cols()), (input.rows, input.cols));
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

    fn run(&self, table: Table, input: Input<'_>, unit: usize) {
        let first_row = unit * self.unit_strips * STRIP;
        let rows = (self.w.rows - first_row).min(self.unit_strips * STRIP);
        match self.w.layout {
            Layout::Packed => {
                let at = unit * self.unit_strips * self.strip_bytes;
                let bytes = &self.w.bytes[at..][..rows.div_ceil(STRIP) * self.strip_bytes];
                self.strips(table, input, bytes, first_row, rows);
            }
            Layout::Gguf => SCRATCH.with_borrow_mut(|scratch| {
                let strip = bytes_of(scratch, self.strip_bytes);
                for row in (first_row..first_row + rows).step_by(STRIP) {
                    let n = (self.w.rows - row).min(STRIP);
                    let row_bytes = self.w.bytes.len() / self.w.rows;
                    let bytes = &self.w.bytes[row * row_bytes..][..n * row_bytes];
                    pack_strip(self.w.ty, self.w.cols, bytes, n, strip);
                    self.strips(table, input, strip, row, n);
                }
            }),
        }
    }

    /// Strips with `rows` rows from `first_row` on.
    fn strips(&self, table: Table, input: Input<'_>, bytes: &[u8], first_row: usize, rows: usize) {
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
        task.run(table);
    }
}

/// A run of strips against all activation rows: what a table computes on one thread.
struct Task<'a> {
    ty: WeightType,
    cols: usize,
    bytes: &'a [u8],
    /// Rows of the matrix in these strips; the last strip may have fewer than 16.
    rows: usize,
    x_rows: usize,
    x: &'a [f32],              // (x_rows, cols); not used if there are lines
    lines: Option<&'a [Line]>, // (x_rows, cols / 32)
    /// Where output (0, 0) goes; `(x_rows, rows)` places at `out_stride` are this task's alone.
    out: *mut f32,
    out_stride: usize,
}

impl Task<'_> {
    fn run(&self, table: Table) {
        match table.kind() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the table exists, so the CPU has its features.
            Kind::Avx512 | Kind::Avx512Vbmi => unsafe { avx512::strips(self) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Kind::Avx2 => unsafe { avx2::strips(self) },
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => neon::strips(self),
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Kind::NeonDot => unsafe { neon::strips_dot(self) },
            _ => scalar::strips(self),
        }
    }

    fn strips(&self, strip_bytes: usize) -> std::slice::ChunksExact<'_, u8> {
        self.bytes.chunks_exact(strip_bytes)
    }

    /// Writes the sums of `R` activation rows from `x_row` on, for the rows that strip has.
    #[inline(always)]
    fn write<const R: usize>(&self, strip: usize, x_row: usize, sums: &[[f32; STRIP]; R]) {
        let n = (self.rows - strip * STRIP).min(STRIP);
        assert!(x_row + R <= self.x_rows);
        for (r, sums) in sums.iter().enumerate() {
            // SAFETY: row x_row + r and columns strip * 16 .. + n are inside the places that are
            // this task's alone.
            unsafe {
                let out = self.out.add((x_row + r) * self.out_stride + strip * STRIP);
                std::ptr::copy_nonoverlapping(sums.as_ptr(), out, n);
            }
        }
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
    scratch[..lines].as_flattened_bytes()
}

trait AsBytes {
    fn as_flattened_bytes(&mut self) -> &mut [u8];
}

impl AsBytes for [Aligned] {
    fn as_flattened_bytes(&mut self) -> &mut [u8] {
        // SAFETY: Aligned is 64 plain bytes without padding.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr().cast(), size_of_val(self)) }
    }
}
