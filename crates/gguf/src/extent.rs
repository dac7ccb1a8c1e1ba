//! The one type that does arithmetic on sizes from a file.
//!
//! An [`Extent`] is a run of bytes whose end is known to fit in 64 bits. Every constructor checks,
//! so code that holds one may add and compare freely; code that does not hold one has a bare `u64`
//! from the file, which may be anything. No other place in the loader multiplies, adds or rounds
//! such numbers.

/// `start .. start + len`, where the sum does not overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Extent {
    start: u64,
    len: u64,
}

impl Extent {
    pub fn new(start: u64, len: u64) -> Option<Extent> {
        start.checked_add(len)?;
        Some(Extent { start, len })
    }

    /// All bytes of a slice.
    pub fn of(bytes: &[u8]) -> Extent {
        Extent {
            start: 0,
            len: bytes.len() as u64,
        }
    }

    pub fn start(self) -> u64 {
        self.start
    }

    pub fn len(self) -> u64 {
        self.len
    }

    pub fn end(self) -> u64 {
        self.start + self.len
    }

    /// `len` bytes from `offset` *inside* this extent; `None` unless all of them are inside.
    pub fn within(self, offset: u64, len: u64) -> Option<Extent> {
        let inner = Extent::new(self.start.checked_add(offset)?, len)?;
        (inner.end() <= self.end()).then_some(inner)
    }

    /// From `offset` inside this extent to its end; empty when there is nothing behind `offset`.
    pub fn tail(self, offset: u64) -> Extent {
        let skipped = offset.min(self.len);
        Extent {
            start: self.start + skipped,
            len: self.len - skipped,
        }
    }

    pub fn overlaps(self, other: Extent) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// These bytes of `bytes`, if it is that long.
    pub fn slice(self, bytes: &[u8]) -> Option<&[u8]> {
        let start = usize::try_from(self.start).ok()?;
        let end = usize::try_from(self.end()).ok()?;
        bytes.get(start..end)
    }
}

/// `count` items of `item_bytes` each, or `None` past 64 bits.
pub fn bytes_of(count: u64, item_bytes: u64) -> Option<u64> {
    count.checked_mul(item_bytes)
}

/// The product of all dimensions, or `None` past 63 bits (other readers hold it in an `i64`).
pub fn product(dims: &[u64]) -> Option<u64> {
    dims.iter()
        .try_fold(1u64, |all, &d| all.checked_mul(d))
        .filter(|&n| n <= i64::MAX as u64)
}

/// The next multiple of `align`, a power of two, or `None` past 64 bits.
pub fn round_up(n: u64, align: u64) -> Option<u64> {
    let mask = align.checked_sub(1)?;
    Some(n.checked_add(mask)? & !mask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ends_that_do_not_fit_are_no_extents() {
        assert!(Extent::new(u64::MAX, 1).is_none());
        assert!(Extent::new(u64::MAX, 0).is_some());
        let whole = Extent::of(&[0; 100]);
        assert!(whole.within(100, 0).is_some());
        assert!(whole.within(99, 2).is_none());
        assert!(whole.within(u64::MAX, 2).is_none());
        assert!(whole.within(2, u64::MAX).is_none());
        assert_eq!(whole.tail(1000).len(), 0);
        assert_eq!(round_up(u64::MAX - 3, 32), None);
        assert_eq!(round_up(33, 32), Some(64));
        assert_eq!(round_up(5, 0), None);
        assert_eq!(product(&[1 << 32, 1 << 32]), None);
        assert_eq!(product(&[1 << 63]), None);
    }

    /// Values around every power of two, where wrapping shows.
    fn edgy() -> impl Strategy<Value = u64> {
        (0u32..64, -3i64..4).prop_map(|(bit, d)| (1u64 << bit).wrapping_add_signed(d))
    }

    proptest! {
        /// The twin is the same arithmetic in 128 bits.
        #[test]
        fn agrees_with_wider_arithmetic(base in 0u64..10_000, total in 0u64..10_000, offset in edgy(), len in edgy(), align in 0u32..17) {
            let outer = Extent::new(base, total).unwrap();
            let wide = base as u128 + offset as u128 + len as u128;
            let fits = wide <= (base + total) as u128;
            prop_assert_eq!(outer.within(offset, len).is_some(), fits);
            let align = 1u64 << align;
            let want = (offset as u128).div_ceil(align as u128) * align as u128;
            prop_assert_eq!(round_up(offset, align).map(u128::from), u64::try_from(want).ok().map(u128::from));
            let want = offset as u128 * len as u128;
            prop_assert_eq!(product(&[offset, len]).map(u128::from), (want <= i64::MAX as u128).then_some(want));
            prop_assert_eq!(bytes_of(offset, len), u64::try_from(want).ok());
        }
    }
}
