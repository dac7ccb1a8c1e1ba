//! The file formats against an independent reader: for every type, blocks of pseudo-random bytes
//! (so scales are anything, NaN and infinity included) unpack to the bits that the public `gguf`
//! Python package gives. `matmul_fixtures/make.py` made the values.

use haversack_kernels::format::WeightType;
use haversack_kernels::format::gguf::unpack_row;

const VALUES: usize = 512;

/// The byte hash of `make.py`.
fn hashed(seed: u32, n: usize) -> Vec<u8> {
    (1..=n as u64)
        .map(|i| {
            let mut i = i + u64::from(seed) * 1_000_003;
            i ^= i >> 15;
            i = (i * 0x2C1B_3C6D) & 0xFFFF_FFFF;
            i ^= i >> 12;
            i = (i * 0x297A_2D39) & 0xFFFF_FFFF;
            (i >> 24) as u8
        })
        .collect()
}

fn same(a: f32, bits: u32) -> bool {
    a.to_bits() == bits || a.is_nan() && f32::from_bits(bits).is_nan()
}

#[test]
fn blocks_unpack_to_the_reference_bits() {
    let expected = include_bytes!("matmul_fixtures/unpacked.bin");
    let mut expected = expected.as_chunks::<4>().0.chunks_exact(VALUES);
    for ty in WeightType::ALL.into_iter().filter(|ty| !ty.is_float()) {
        let bytes = hashed(ty.id(), ty.row_bytes(VALUES).unwrap());
        let mut out = vec![0.0; VALUES];
        unpack_row(ty, &bytes, &mut out);
        for (k, (o, e)) in out.iter().zip(expected.next().unwrap()).enumerate() {
            let bits = u32::from_le_bytes(*e);
            assert!(
                same(*o, bits),
                "{ty} value {k}: {o:e} for {:e}",
                f32::from_bits(bits)
            );
        }
    }
    assert!(expected.next().is_none());
}

#[test]
fn float_rows_unpack_as_they_are() {
    let mut out = [0.0; 3];
    unpack_row(
        WeightType::F32,
        &[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0, 0, 0, 0x80, 0x7f],
        &mut out,
    );
    assert_eq!(out, [1.0, -2.0, f32::INFINITY]);
    unpack_row(WeightType::F16, &[0, 0x3c, 1, 0, 0, 0xfc], &mut out);
    assert_eq!(out, [1.0, 5.960_464_5e-8, f32::NEG_INFINITY]);
    unpack_row(
        WeightType::BF16,
        &[0x80, 0x3f, 0, 0xc0, 0x80, 0x7f],
        &mut out,
    );
    assert_eq!(out, [1.0, -2.0, f32::INFINITY]);
}
