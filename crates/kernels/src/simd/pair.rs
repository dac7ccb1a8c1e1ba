//! Two vectors as one.

use super::isa::{Isa, ops};

/// Two vectors as one of twice the lanes: the low lanes and the high ones.
#[derive(Clone, Copy)]
pub(crate) struct Pair<S>(pub(crate) S);

/// The same operation on the low and on the high lanes.
macro_rules! both {
    ($(fn $f:ident($($v:ident: $t:ident),*) -> $out:ident;)*) => { $(
        #[inline(always)]
        fn $f(self, $($v: Self::$t),*) -> Self::$out {
            [self.0.$f($($v[0]),*), self.0.$f($($v[1]),*)]
        }
    )* };
}

impl<S: Isa> Isa for Pair<S> {
    const LANES: usize = 2 * S::LANES;
    type F = [S::F; 2];
    type I = [S::I; 2];

    both! {
        fn neg(a: F) -> F;
        fn add(a: F, b: F) -> F;
        fn sub(a: F, b: F) -> F;
        fn mul(a: F, b: F) -> F;
        fn div(a: F, b: F) -> F;
        fn fma(a: F, b: F, c: F) -> F;
        fn max(a: F, b: F) -> F;
        fn if_less(a: F, b: F, yes: F, no: F) -> F;
        fn power_of_two(t: F) -> F;
        fn add_i32(a: I, b: I) -> I;
        fn to_i32(v: F) -> I;
        fn to_f32(a: I) -> F;
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [self.0.splat(x); 2]
    }
    #[inline(always)]
    fn splat_i32(self, x: i32) -> Self::I {
        [self.0.splat_i32(x); 2]
    }
    #[inline(always)]
    fn swap_lanes<const H: usize>(self, v: Self::F) -> Self::F {
        if H == S::LANES {
            [v[1], v[0]]
        } else {
            [self.0.swap_lanes::<H>(v[0]), self.0.swap_lanes::<H>(v[1])]
        }
    }
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        self.0.sum(self.0.add(v[0], v[1]))
    }
    #[inline(always)]
    fn max_lane(self, v: Self::F) -> f32 {
        self.0.max_lane(self.0.max(v[0], v[1]))
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        self.0.prefetch(p);
    }

    ops! {
        unsafe fn load_f32(self, p: *const f32) -> Self::F =
            [self.0.load_f32(p), self.0.load_f32(p.add(S::LANES))];
        unsafe fn store_f32(self, v: Self::F, p: *mut f32) = {
            self.0.store_f32(v[0], p);
            self.0.store_f32(v[1], p.add(S::LANES));
        };
        unsafe fn load_f16(self, p: *const u8) -> Self::F =
            [self.0.load_f16(p), self.0.load_f16(p.add(2 * S::LANES))];
        unsafe fn store_f16(self, v: Self::F, p: *mut u8) = {
            self.0.store_f16(v[0], p);
            self.0.store_f16(v[1], p.add(2 * S::LANES));
        };
        unsafe fn store_i32(self, a: Self::I, p: *mut i32) = {
            self.0.store_i32(a[0], p);
            self.0.store_i32(a[1], p.add(S::LANES));
        };
        unsafe fn add_fixed(self, v: Self::F, p: *mut u64) = {
            self.0.add_fixed(v[0], p);
            self.0.add_fixed(v[1], p.add(S::LANES));
        };
    }
}
