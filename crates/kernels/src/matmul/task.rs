//! What a backend computes on one thread.

use super::int8::Line;
use crate::format::WeightType;
use crate::format::packed::STRIP;

/// A run of strips against all activation rows: what a backend computes on one thread.
pub(super) struct Task<'a> {
    pub ty: WeightType,
    pub cols: usize,
    pub bytes: &'a [u8],
    /// Rows of the matrix in these strips; the last strip may have fewer than 16.
    pub rows: usize,
    pub x_rows: usize,
    pub x: &'a [f32],              // (x_rows, cols); not used if there are lines
    pub lines: Option<&'a [Line]>, // (x_rows, cols / 32)
    /// Where output (0, 0) goes; `(x_rows, rows)` places at `out_stride` are this task's alone.
    pub out: *mut f32,
    pub out_stride: usize,
}

impl Task<'_> {
    pub(super) fn strips(&self, strip_bytes: usize) -> std::slice::ChunksExact<'_, u8> {
        self.bytes.chunks_exact(strip_bytes)
    }

    /// Writes the sums of `R` activation rows from `x_row` on, for the rows that strip has.
    #[inline(always)]
    pub(super) fn write<const R: usize>(
        &self,
        strip: usize,
        x_row: usize,
        sums: &[[f32; STRIP]; R],
    ) {
        let n = (self.rows - strip * STRIP).min(STRIP);
        assert!(x_row + R <= self.x_rows);
        for (r, sums) in sums.iter().enumerate() {
            // SAFETY: row x_row + r and columns strip * 16 .. + n are inside the places that are
            // this task's alone.
            unsafe {
                let out = self.out.add((x_row + r) * self.out_stride + strip * STRIP);
                if n == STRIP {
                    out.cast::<[f32; STRIP]>().write_unaligned(*sums);
                } else {
                    write_first(sums, out, n);
                }
            }
        }
    }
}

/// Of the last strip. By itself: beside the store of a whole strip the compiler makes one call of both, which takes 3 % of a
/// prompt with glibc and 9 % with musl.
///
/// # Safety
///
/// - `out` is valid for writes of `n` values; `n` is at most 16.
#[cold]
#[inline(never)]
unsafe fn write_first(sums: &[f32; STRIP], out: *mut f32, n: usize) {
    // SAFETY: the caller's promises are passed on.
    unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), out, n) };
}
