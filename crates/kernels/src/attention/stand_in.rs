//! Stands in for the codec's own tables and turns until they are there.
use crate::cpu::Table;
use crate::format::kv::{Codec, Turn};

pub fn levels(codec: Codec) -> &'static [i8] {
    match codec {
        Codec::Int5 => &[
            -127, -102, -87, -76, -66, -58, -51, -44, -38, -32, -27, -22, -17, -12, -7, -2, 2, 7,
            12, 17, 22, 27, 32, 38, 44, 51, 58, 66, 76, 87, 102, 127,
        ],
        Codec::Int4 => &[
            -127, -96, -75, -58, -44, -30, -18, -6, 6, 18, 30, 44, 58, 75, 96, 127,
        ],
        Codec::Int4Plain => &[0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1],
        Codec::Int3 => &[-127, -79, -45, -14, 14, 45, 79, 127],
        Codec::Int2 => &[-127, -38, 38, 127],
        _ => &[],
    }
}

pub fn turn(_: Table, _: Turn, _: &mut [f32]) {}
pub fn turn_back(_: Table, _: Turn, _: &mut [f32]) {}
