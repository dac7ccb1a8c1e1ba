//! Packed matrices: packing loses nothing, and takes little more than the file.

use haversack_kernels::format::WeightType;
use haversack_kernels::format::gguf::unpack_row;
use haversack_kernels::format::packed::{pack_strip, strip_bytes, unpack_packed_row, unpack_strip};

/// A strip taken apart is the file's bytes again, and a row of it the same f32.
#[test]
fn packing_can_be_undone() {
    for ty in WeightType::ALL {
        for (n_rows, blocks) in [(16, 2), (5, 3), (1, 1)] {
            let cols = blocks * ty.block_len();
            let row_bytes = ty.row_bytes(cols).unwrap();
            for seed in 0..20u32 {
                let rows: Vec<u8> = (0..n_rows * row_bytes)
                    .map(|i| {
                        let i = i as u32 + 1 + seed * 100_003;
                        (i.wrapping_mul(2_654_435_761) >> 21) as u8
                    })
                    .collect();
                let mut strip = vec![0; strip_bytes(ty, cols)];
                pack_strip(ty, cols, &rows, n_rows, &mut strip);
                let mut back = vec![0xEE; rows.len()];
                unpack_strip(ty, cols, &strip, n_rows, &mut back);
                assert!(back == rows, "{ty}, {n_rows} rows of {cols}");
                for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
                    let (mut values, mut expected) = (vec![0.0f32; cols], vec![0.0f32; cols]);
                    unpack_packed_row(ty, &strip, r, &mut values);
                    unpack_row(ty, row, &mut expected);
                    let bits = |values: &[f32]| -> Vec<u32> {
                        values.iter().map(|value| value.to_bits()).collect()
                    };
                    assert!(bits(&values) == bits(&expected), "{ty} row {r}");
                }
            }
        }
    }
}

/// No bytes of a strip, packed by us or not, make reading it back panic.
#[test]
fn any_strip_can_be_taken_apart() {
    for ty in WeightType::ALL {
        let cols = 2 * ty.block_len();
        for byte in [0x00, 0x7f, 0x80, 0xff] {
            let strip = vec![byte; strip_bytes(ty, cols)];
            let mut rows = vec![0; 16 * ty.row_bytes(cols).unwrap()];
            unpack_strip(ty, cols, &strip, 16, &mut rows);
            unpack_packed_row(ty, &strip, 15, &mut vec![0.0; cols]);
        }
    }
}

/// What packing costs: nothing for float types, at most 6 % (Q3_K) elsewhere.
#[test]
fn packed_size_is_the_files() {
    for ty in WeightType::ALL {
        for cols in [256, 512, 576 / 64 * 256, 8192] {
            let file = 16 * ty.row_bytes(cols).unwrap();
            let packed = strip_bytes(ty, cols);
            assert!(
                packed >= file && packed * 100 <= file * 106,
                "{ty} {file} {packed}"
            );
        }
    }
}
