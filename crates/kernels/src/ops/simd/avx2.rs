//! Sixteen lanes in two AVX registers, with FMA and F16C.

use super::Simd;
use std::arch::x86_64::*;

/// Proof of AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// - The CPU has AVX2, FMA and F16C.
    #[inline(always)]
    pub(crate) unsafe fn assume() -> Self {
        Avx2(())
    }
}

/// An intrinsic that needs nothing but its instruction.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: a token is proof of the instructions; loads and stores are of whole arrays
        // behind references.
        unsafe { $e }
    };
}

/// The last three steps of the tree, from eight lanes on.
///
/// # Safety
/// - The CPU has AVX.
#[inline(always)]
pub(crate) unsafe fn sum_eight(v: __m256) -> f32 {
    op!({
        let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    })
}

/// # Safety
/// - The CPU has AVX.
#[inline(always)]
pub(crate) unsafe fn max_eight(v: __m256) -> f32 {
    op!({
        let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
    })
}

type Pair = (__m256, __m256);

impl Simd for Avx2 {
    type V = Pair;
    // 6 x 1 x 2 accumulator registers, 2 loaded and a broadcast, of 16.
    const ROWS: usize = 6;
    const COLS: usize = 1;

    #[inline(always)]
    fn splat(self, x: f32) -> Pair {
        op!((_mm256_set1_ps(x), _mm256_set1_ps(x)))
    }
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> Pair {
        op!((
            _mm256_loadu_ps(x.as_ptr()),
            _mm256_loadu_ps(x.as_ptr().add(8))
        ))
    }
    #[inline(always)]
    fn store(self, v: Pair, to: &mut [f32; 16]) {
        op!({
            _mm256_storeu_ps(to.as_mut_ptr(), v.0);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), v.1);
        })
    }
    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        op!((_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        op!((_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        op!((_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn div(self, a: Pair, b: Pair) -> Pair {
        op!((_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn fma(self, a: Pair, b: Pair, c: Pair) -> Pair {
        op!((
            _mm256_fmadd_ps(a.0, b.0, c.0),
            _mm256_fmadd_ps(a.1, b.1, c.1)
        ))
    }
    #[inline(always)]
    fn max(self, a: Pair, b: Pair) -> Pair {
        op!((_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn if_less(self, a: Pair, b: Pair, yes: Pair, no: Pair) -> Pair {
        op!((
            _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0)),
            _mm256_blendv_ps(no.1, yes.1, _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1)),
        ))
    }
    #[inline(always)]
    fn power_of_two(self, t: Pair) -> Pair {
        op!({
            let bias = _mm256_set1_epi32(127 << 23);
            let a = _mm256_slli_epi32::<23>(_mm256_castps_si256(t.0));
            let b = _mm256_slli_epi32::<23>(_mm256_castps_si256(t.1));
            (
                _mm256_castsi256_ps(_mm256_add_epi32(a, bias)),
                _mm256_castsi256_ps(_mm256_add_epi32(b, bias)),
            )
        })
    }
    #[inline(always)]
    fn load_half(self, x: &[u8; 32]) -> Pair {
        op!((
            _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().add(16).cast())),
        ))
    }
    #[inline(always)]
    fn store_half(self, v: Pair, to: &mut [u8; 32]) {
        op!({
            let p: *mut __m128i = to.as_mut_ptr().cast();
            _mm_storeu_si128(p, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.0));
            _mm_storeu_si128(p.add(1), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.1));
        })
    }
    #[inline(always)]
    fn sum(self, v: Pair) -> f32 {
        op!(sum_eight(_mm256_add_ps(v.0, v.1)))
    }
    #[inline(always)]
    fn max_lane(self, v: Pair) -> f32 {
        op!(max_eight(_mm256_max_ps(v.0, v.1)))
    }
    #[inline(always)]
    fn add_fixed(self, v: Pair, to: &mut [u64; 16]) {
        op!({
            // No conversion to 64-bit integers here: adding 2^52 leaves the rounded integer in the
            // low bits of a double.
            let unit = _mm256_set1_ps(super::super::lanes::FIXED_ONE);
            let magic = _mm256_set1_pd(super::super::lanes::FIXED_MAGIC);
            let (a, b) = (_mm256_mul_ps(v.0, unit), _mm256_mul_ps(v.1, unit));
            let quarters = [
                _mm256_castps256_ps128(a),
                _mm256_extractf128_ps::<1>(a),
                _mm256_castps256_ps128(b),
                _mm256_extractf128_ps::<1>(b),
            ];
            let mut p: *mut __m256i = to.as_mut_ptr().cast();
            for quarter in quarters {
                let n = _mm256_add_pd(_mm256_cvtps_pd(quarter), magic);
                let n = _mm256_xor_si256(_mm256_castpd_si256(n), _mm256_castpd_si256(magic));
                _mm256_storeu_si256(p, _mm256_add_epi64(_mm256_loadu_si256(p), n));
                p = p.add(1);
            }
        })
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        op!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
    }
    #[inline(always)]
    fn swap_lanes<const H: usize>(self, v: Pair) -> Pair {
        op!(match H {
            1 => (
                _mm256_permute_ps::<0b10_11_00_01>(v.0),
                _mm256_permute_ps::<0b10_11_00_01>(v.1),
            ),
            2 => (
                _mm256_permute_ps::<0b01_00_11_10>(v.0),
                _mm256_permute_ps::<0b01_00_11_10>(v.1),
            ),
            4 => (
                _mm256_permute2f128_ps::<1>(v.0, v.0),
                _mm256_permute2f128_ps::<1>(v.1, v.1),
            ),
            _ => (v.1, v.0),
        })
    }

    // Whole numbers.

    type I = (__m256i, __m256i);

    #[inline(always)]
    fn whole(self, v: Pair) -> Self::I {
        op!((_mm256_cvtps_epi32(v.0), _mm256_cvtps_epi32(v.1)))
    }
    #[inline(always)]
    fn add_whole(self, a: Self::I, b: Self::I) -> Self::I {
        op!((_mm256_add_epi32(a.0, b.0), _mm256_add_epi32(a.1, b.1)))
    }
    #[inline(always)]
    fn store_whole(self, a: Self::I, to: &mut [i32; 16]) {
        op!({
            let p: *mut __m256i = to.as_mut_ptr().cast();
            _mm256_storeu_si256(p, a.0);
            _mm256_storeu_si256(p.add(1), a.1);
        })
    }

    // `vpmaddwd` multiplies i16 and adds neighbours: levels are widened, rows are i16, wide and
    // narrow ones alike, and every lane's sum is in two halves until the end.

    type Book = __m128i;
    /// Four lanes each.
    type Fours = [__m256i; 4];
    type WideFour = __m256i;
    type NarrowFour = __m256i;
    type Wide = [__m256i; 4];
    type Narrow = [__m256i; 4];

    // 2 x 4 accumulators, 4 vectors of levels and a broadcast, of 16 registers.
    const WIDE_ROWS: usize = 2;
    const NARROW_ROWS: usize = 2;
    // 1 x 4 or 1 x 2 x 4 accumulators, and twice the levels.
    const FUSED_WIDE: usize = 1;
    const FUSED_NARROW: usize = 1;
    const CHAINS: usize = 0;

    #[inline(always)]
    fn book(self, levels: &[i8; 16]) -> __m128i {
        op!(_mm_loadu_si128(levels.as_ptr().cast()))
    }
    #[inline(always)]
    fn fours(self, x: &[u8; 64]) -> [__m256i; 4] {
        op!({
            let p: *const __m128i = x.as_ptr().cast();
            [
                _mm256_cvtepi8_epi16(_mm_loadu_si128(p)),
                _mm256_cvtepi8_epi16(_mm_loadu_si128(p.add(1))),
                _mm256_cvtepi8_epi16(_mm_loadu_si128(p.add(2))),
                _mm256_cvtepi8_epi16(_mm_loadu_si128(p.add(3))),
            ]
        })
    }
    #[inline(always)]
    fn nibbles(self, book: __m128i, x: &[u8; 64]) -> ([__m256i; 4], [__m256i; 4]) {
        op!({
            let p: *const __m128i = x.as_ptr().cast();
            let mask = _mm_set1_epi8(15);
            let (mut low, mut high) = ([_mm256_setzero_si256(); 4], [_mm256_setzero_si256(); 4]);
            for i in 0..4 {
                let x = _mm_loadu_si128(p.add(i));
                let a = _mm_shuffle_epi8(book, _mm_and_si128(x, mask));
                let b = _mm_shuffle_epi8(book, _mm_and_si128(_mm_srli_epi16::<4>(x), mask));
                (low[i], high[i]) = (_mm256_cvtepi8_epi16(a), _mm256_cvtepi8_epi16(b));
            }
            (low, high)
        })
    }
    #[inline(always)]
    fn look_up(self, levels: &[i8; 32], codes: &mut [u8; 64]) {
        op!({
            let table: *const __m128i = levels.as_ptr().cast();
            let low = _mm256_broadcastsi128_si256(_mm_loadu_si128(table));
            let high = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(1)));
            let p: *mut __m256i = codes.as_mut_ptr().cast();
            for i in 0..2 {
                let x = _mm256_loadu_si256(p.add(i));
                // Bit 4 of a code becomes the top bit, which chooses.
                let which = _mm256_slli_epi16::<3>(x);
                let (a, b) = (_mm256_shuffle_epi8(low, x), _mm256_shuffle_epi8(high, x));
                _mm256_storeu_si256(p.add(i), _mm256_blendv_epi8(a, b, which));
            }
        })
    }

    #[inline(always)]
    unsafe fn put_wide(self, x: Self::I, row: *mut u8, _: usize, at: usize) {
        op!({
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(x.0, x.1));
            _mm256_storeu_si256(row.add(2 * at).cast(), packed);
        })
    }
    #[inline(always)]
    unsafe fn put_narrow(self, x: Self::I, row: *mut u8, len: usize, at: usize) {
        // SAFETY: the caller's promise is the same.
        unsafe { self.put_wide(x, row, len, at) }
    }
    #[inline(always)]
    unsafe fn wide_four(self, row: *const u8, _: usize, at: usize) -> __m256i {
        op!(_mm256_set1_epi64x(
            row.add(8 * at).cast::<i64>().read_unaligned()
        ))
    }
    #[inline(always)]
    unsafe fn narrow_four(self, row: *const u8, len: usize, at: usize) -> __m256i {
        // SAFETY: the caller's promise is the same.
        unsafe { self.wide_four(row, len, at) }
    }

    #[inline(always)]
    fn wide_zero(self) -> [__m256i; 4] {
        op!([_mm256_setzero_si256(); 4])
    }
    #[inline(always)]
    fn narrow_zero(self) -> [__m256i; 4] {
        self.wide_zero()
    }
    #[inline(always)]
    fn wide_dot(self, mut acc: [__m256i; 4], levels: [__m256i; 4], by: __m256i) -> [__m256i; 4] {
        for i in 0..4 {
            acc[i] = op!(_mm256_add_epi32(acc[i], _mm256_madd_epi16(levels[i], by)));
        }
        acc
    }
    #[inline(always)]
    fn narrow_dot(self, acc: [__m256i; 4], levels: [__m256i; 4], by: __m256i) -> [__m256i; 4] {
        self.wide_dot(acc, levels, by)
    }
    #[inline(always)]
    fn wide_join(self, mut a: [__m256i; 4], b: [__m256i; 4]) -> [__m256i; 4] {
        for i in 0..4 {
            a[i] = op!(_mm256_add_epi32(a[i], b[i]));
        }
        a
    }
    #[inline(always)]
    fn narrow_join(self, a: [__m256i; 4], b: [__m256i; 4]) -> [__m256i; 4] {
        self.wide_join(a, b)
    }
    #[inline(always)]
    fn wide_end(self, acc: [__m256i; 4], _: i32) -> Pair {
        op!({
            // Halves of a lane are neighbours; adding them leaves the quarters crossed.
            let a = _mm256_hadd_epi32(acc[0], acc[1]);
            let b = _mm256_hadd_epi32(acc[2], acc[3]);
            (
                _mm256_cvtepi32_ps(_mm256_permute4x64_epi64::<0b11_01_10_00>(a)),
                _mm256_cvtepi32_ps(_mm256_permute4x64_epi64::<0b11_01_10_00>(b)),
            )
        })
    }
    #[inline(always)]
    fn narrow_end(self, acc: [__m256i; 4], total: i32) -> Pair {
        self.wide_end(acc, total)
    }
}
