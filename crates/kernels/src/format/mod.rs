//! Byte layouts: weights in a GGUF file ([`gguf`]) and packed for the matrix product ([`packed`]); keys
//! and values in a block ([`kv`]).

pub mod gguf;
pub(crate) mod half;
pub mod kv;
pub mod packed;

/// The tensor types we read, by their GGUF names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
pub enum WeightType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
}

use WeightType::*;

impl WeightType {
    pub const ALL: [WeightType; 15] = [
        F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS,
    ];

    /// `(type id in the file, values per block, bytes per block, name)`.
    const fn facts(self) -> (u32, usize, usize, &'static str) {
        match self {
            F32 => (0, 1, 4, "F32"),
            F16 => (1, 1, 2, "F16"),
            Q4_0 => (2, 32, 18, "Q4_0"),
            Q4_1 => (3, 32, 20, "Q4_1"),
            Q5_0 => (6, 32, 22, "Q5_0"),
            Q5_1 => (7, 32, 24, "Q5_1"),
            Q8_0 => (8, 32, 34, "Q8_0"),
            Q2_K => (10, 256, 84, "Q2_K"),
            Q3_K => (11, 256, 110, "Q3_K"),
            Q4_K => (12, 256, 144, "Q4_K"),
            Q5_K => (13, 256, 176, "Q5_K"),
            Q6_K => (14, 256, 210, "Q6_K"),
            IQ4_NL => (20, 32, 18, "IQ4_NL"),
            IQ4_XS => (23, 256, 136, "IQ4_XS"),
            BF16 => (30, 1, 2, "BF16"),
        }
    }

    pub fn from_id(id: u32) -> Option<WeightType> {
        WeightType::ALL.into_iter().find(|t| t.id() == id)
    }

    pub const fn id(self) -> u32 {
        self.facts().0
    }

    /// Values per block: a row's length is a multiple of it.
    pub const fn block_len(self) -> usize {
        self.facts().1
    }

    pub const fn block_bytes(self) -> usize {
        self.facts().2
    }

    pub const fn name(self) -> &'static str {
        self.facts().3
    }

    /// Unquantised: the product runs in f32 whatever the activations are.
    pub const fn is_float(self) -> bool {
        matches!(self, F32 | F16 | BF16)
    }

    /// Bytes of one row of `cols` values in the file, or `None` when `cols` is not whole blocks or
    /// the product does not fit.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl std::fmt::Display for WeightType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
