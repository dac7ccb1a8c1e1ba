//! Two vectors as one.

use super::isa::{Isa, op};

/// Two vectors as one of twice the lanes: the low lanes and the high ones.
#[derive(Clone, Copy)]
pub(crate) struct Pair<S>(pub(crate) S);

/// The operation on the low and on the high lanes.
macro_rules! both {
    ($self:ident.$f:ident($($v:ident),*)) => {
        [$self.0.$f($($v[0]),*), $self.0.$f($($v[1]),*)]
    };
}

impl<S: Isa> Isa for Pair<S> {
    const LANES: usize = 2 * S::LANES;
    type F = [S::F; 2];
    type I = [S::I; 2];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [self.0.splat(x); 2]
    }
    #[inline(always)]
    fn neg(self, a: Self::F) -> Self::F {
        both!(self.neg(a))
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        both!(self.add(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        both!(self.sub(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        both!(self.mul(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        both!(self.div(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        both!(self.fma(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        both!(self.max(a, b))
    }
    #[inline(always)]
    fn if_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        both!(self.if_less(a, b, yes, no))
    }
    #[inline(always)]
    fn power_of_two(self, t: Self::F) -> Self::F {
        both!(self.power_of_two(t))
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
    fn splat_i32(self, x: i32) -> Self::I {
        [self.0.splat_i32(x); 2]
    }
    #[inline(always)]
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I {
        both!(self.add_i32(a, b))
    }
    #[inline(always)]
    fn to_i32(self, v: Self::F) -> Self::I {
        both!(self.to_i32(v))
    }
    #[inline(always)]
    fn to_f32(self, a: Self::I) -> Self::F {
        both!(self.to_f32(a))
    }

    #[inline(always)]
    unsafe fn load_f32(self, p: *const f32) -> Self::F {
        op!([self.0.load_f32(p), self.0.load_f32(p.add(S::LANES))])
    }
    #[inline(always)]
    unsafe fn store_f32(self, v: Self::F, p: *mut f32) {
        op!({
            self.0.store_f32(v[0], p);
            self.0.store_f32(v[1], p.add(S::LANES));
        })
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> Self::F {
        op!([self.0.load_f16(p), self.0.load_f16(p.add(2 * S::LANES))])
    }
    #[inline(always)]
    unsafe fn store_f16(self, v: Self::F, p: *mut u8) {
        op!({
            self.0.store_f16(v[0], p);
            self.0.store_f16(v[1], p.add(2 * S::LANES));
        })
    }
    #[inline(always)]
    unsafe fn store_i32(self, a: Self::I, p: *mut i32) {
        op!({
            self.0.store_i32(a[0], p);
            self.0.store_i32(a[1], p.add(S::LANES));
        })
    }
    #[inline(always)]
    unsafe fn add_fixed(self, v: Self::F, p: *mut u64) {
        op!({
            self.0.add_fixed(v[0], p);
            self.0.add_fixed(v[1], p.add(S::LANES));
        })
    }

    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        self.0.prefetch(p);
    }
}
