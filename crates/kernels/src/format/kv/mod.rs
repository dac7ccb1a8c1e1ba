//! Keys and values in a block: the codec, how many values share a scale, the basis.
//!
//! A block is thirty-two slots of one layer. For each KV head, keys first and then values:
//!
//! ```text
//! block   k: (kv_head) { planes  scales }     v: (kv_head) { planes  scales }
//!
//! plane of b bits, `per = 8 / b` values to a byte
//!   k     (line j, slot, i < 4)     byte: dimensions 4*(per*j + f) + i at bit b*f
//!   v     (slot / 4, j, slot % 4)   byte: dimensions n*f + j at bit b*f, n = bytes of a slot
//! scales  (group, slot)             f16, group by group along the head
//! ```
//!
//! An instruction adds up four products at once: of dimensions for keys, of slots for values. Every byte
//! of a plane belongs to one slot, so a slot can be written alone and no group spans tokens. A code wider than its first plane has its high bits in a second one: 5 = 4 + 1 and
//! 3 = 2 + 1. `f16` and `f32` are one plane of unsplit numbers, `k: (dim, slot)`, `v: (slot, dim)`,
//! and have no scales.
//!
//! A value is `level[code] * scale`, where levels are integers that fit a byte. This file knows sizes and
//! names; [`levels`] has the levels, [`code`] encodes and decodes rows, [`error_feedback`] encodes keys
//! with their queries in view.

pub mod code;
mod encode;
pub mod error_feedback;
mod float;
pub mod levels;
mod plane;
pub mod slots;

pub use crate::ops::rotation::Rotation;

use std::str::FromStr;

/// Slots of a block.
pub const BLOCK_SLOTS: usize = 32;

/// Values that may share a scale.
pub const GROUP_MAX: usize = 256;

/// Keys and values lie differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    K,
    V,
}

/// How a number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Unrounded: the reference that other forms are measured against.
    F32,
    F16,
    /// Uniform, -127 to 127, `scale = absmax / 127`.
    Int8,
    /// Thirty-two levels for a normal distribution.
    Int5,
    /// Sixteen levels for a normal distribution.
    Int4,
    /// Textbook int4: uniform, -8 to 7, `scale = absmax / 7`, no mean removed and no rotation.
    Int4Plain,
    /// Eight levels for a normal distribution.
    Int3,
    /// Four levels for a normal distribution.
    Int2,
}

use Codec::*;

impl Codec {
    pub const ALL: [Codec; 8] = [F32, F16, Int8, Int5, Int4, Int4Plain, Int3, Int2];

    pub const fn name(self) -> &'static str {
        match self {
            F32 => "f32",
            F16 => "f16",
            Int8 => "int8",
            Int5 => "int5",
            Int4 => "int4",
            Int4Plain => "int4-plain",
            Int3 => "int3",
            Int2 => "int2",
        }
    }

    /// Bits of each plane; their sum is the bits of one value without scales.
    pub const fn planes(self) -> &'static [usize] {
        match self {
            F32 => &[32],
            F16 => &[16],
            Int8 => &[8],
            Int5 => &[4, 1],
            Int4 | Int4Plain => &[4],
            Int3 => &[2, 1],
            Int2 => &[2],
        }
    }

    /// A floating-point codec, without scales and without basis.
    pub const fn is_float(self) -> bool {
        matches!(self, F32 | F16)
    }

    /// Values that share a scale by default.
    pub const fn default_group(self) -> usize {
        match self {
            Int4Plain => 32,
            _ => 64,
        }
    }

    /// With its default group.
    pub const fn form(self) -> Form {
        Form {
            codec: self,
            group: self.default_group(),
        }
    }
}

impl std::fmt::Display for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// No codec has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownCodec;

impl FromStr for Codec {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Codec, UnknownCodec> {
        Codec::ALL
            .into_iter()
            .find(|codec| codec.name() == name)
            .ok_or(UnknownCodec)
    }
}

/// A codec and how many values share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    pub codec: Codec,
    /// Unused for floats. A head whose size is no multiple of it ends in a smaller group.
    pub group: usize,
}

impl Form {
    pub const F16: Form = F16.form();
    pub const F32: Form = F32.form();

    /// Whether heads of this size can be stored in this form: groups start at whole bytes of every plane and
    /// are of no more than [`GROUP_MAX`] values.
    pub const fn fits(self, head_dim: usize) -> bool {
        let used = if self.group < head_dim {
            self.group
        } else {
            head_dim
        };
        let whole_bytes = self.group.is_multiple_of(8) || self.group >= head_dim;
        self.codec.is_float() || (self.group > 0 && used <= GROUP_MAX && whole_bytes)
    }

    /// Scales of one slot and head.
    pub const fn groups(self, head_dim: usize) -> usize {
        if self.codec.is_float() {
            0
        } else {
            head_dim.div_ceil(self.group)
        }
    }

    /// Bytes of one slot in plane `i`: whole quads, where values are codes.
    pub const fn plane_bytes(self, i: usize, head_dim: usize) -> usize {
        let bits = self.codec.planes()[i];
        if self.codec.is_float() {
            head_dim * bits / 8
        } else {
            4 * head_dim.div_ceil(4 * (8 / bits))
        }
    }

    /// Bytes of one slot of one head: all planes and scales.
    pub const fn slot_bytes(self, head_dim: usize) -> usize {
        let mut bytes = 2 * self.groups(head_dim);
        let mut i = 0;
        while i < self.codec.planes().len() {
            bytes += self.plane_bytes(i, head_dim);
            i += 1;
        }
        bytes
    }

    /// Bytes of one head of a block.
    pub const fn head_bytes(self, head_dim: usize) -> usize {
        BLOCK_SLOTS * self.slot_bytes(head_dim)
    }
}

/// Keys and values may be stored differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvForm {
    pub k: Form,
    pub v: Form,
}

impl KvForm {
    pub const F16: KvForm = KvForm::both(Form::F16);
    pub const F32: KvForm = KvForm::both(Form::F32);

    pub const fn both(form: Form) -> KvForm {
        KvForm { k: form, v: form }
    }

    pub(crate) fn of(self, side: Side) -> Form {
        match side {
            Side::K => self.k,
            Side::V => self.v,
        }
    }
}

/// What a block of one layer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvShape {
    pub kv_heads: usize,
    pub head_dim: usize,
    pub form: KvForm,
}

impl KvShape {
    /// Values of one slot's keys (as many as its values): `(kv_head, dim)`.
    pub const fn row(self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Bytes of a block's keys.
    pub const fn k_bytes(self) -> usize {
        self.kv_heads * self.form.k.head_bytes(self.head_dim)
    }

    /// Bytes of a block's values.
    pub const fn v_bytes(self) -> usize {
        self.kv_heads * self.form.v.head_bytes(self.head_dim)
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        self.k_bytes() + self.v_bytes()
    }
}

/// The basis of a layer's keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Basis {
    pub k: Rotation,
    pub v: Rotation,
}

impl Basis {
    /// The basis that the codecs of a form need.
    pub const fn of(form: KvForm) -> Basis {
        Basis {
            k: match form.k.codec {
                F32 | F16 => Rotation::None,
                Int4Plain => Rotation::Eights,
                _ => Rotation::Hadamard,
            },
            v: match form.v.codec {
                F32 | F16 => Rotation::None,
                Int4Plain => Rotation::Pairs,
                _ => Rotation::Hadamard,
            },
        }
    }
}
