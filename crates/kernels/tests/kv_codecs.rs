//! Codecs of keys and values: every backend writes the scalar bytes, a slot depends on itself alone,
//! errors stay within named bounds, and the bytes lie where the layout says.

use half::f16;
use haversack_kernels::cpu::{Backend, BackendKind};
use haversack_kernels::format::kv::code::*;
use haversack_kernels::format::kv::{
    BLOCK_SLOTS, Codec, Form, KvForm, KvShape, Rotation, UnknownCodec, levels,
};
use haversack_kernels::ops;

/// Tiny, no power of two, SmolLM2, Phi-2, Phi-3, Llama, Gemma.
const HEADS: [usize; 7] = [16, 20, 64, 80, 96, 128, 256];
const GROUPS: [usize; 2] = [32, 64];

/// f16 has eleven bits: rounding a scale moves it by this much of itself.
const HALF_ERROR: f64 = 1.0 / 2048.0;
/// Half a step of the smallest f16: what a tiny scale may be moved by.
const HALF_TINY: f64 = 1.0 / (1u64 << 25) as f64;

fn backends() -> Vec<Backend> {
    static PRINTED: std::sync::Once = std::sync::Once::new();
    PRINTED.call_once(|| {
        for kind in BackendKind::ALL
            .into_iter()
            .filter(|k| Backend::new(*k).is_none())
        {
            println!("not run here: backend {}", kind.name());
        }
    });
    Backend::available().collect()
}

/// A small generator of its own, so that a test's numbers never change under it.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In 0..1, never 0.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f32 {
        let (radius, angle) = ((-2.0 * self.unit().ln()).sqrt(), self.unit());
        (radius * (std::f64::consts::TAU * angle).cos()) as f32
    }

    fn laplace(&mut self) -> f32 {
        let (x, sign) = (-self.unit().ln(), self.next() % 2 == 1);
        (if sign { x } else { -x }) as f32
    }

    /// Rows whose heads differ in size and shape.
    fn rows(&mut self, slots: usize, row: usize) -> Vec<f32> {
        (0..slots)
            .flat_map(|slot| {
                let size = [1.0, 0.01, 30.0, 1e-3][slot % 4];
                let heavy = slot % 3 == 0;
                (0..row)
                    .map(|_| size * if heavy { self.laplace() } else { self.normal() })
                    .collect::<Vec<f32>>()
            })
            .collect()
    }
}

fn forms() -> impl Iterator<Item = Form> {
    Codec::ALL
        .into_iter()
        .flat_map(|codec| GROUPS.map(|group| Form { codec, group }))
}

fn shape(kv_heads: usize, head_dim: usize, form: Form) -> KvShape {
    KvShape {
        kv_heads,
        head_dim,
        form: KvForm::both(form),
    }
}

/// The two sides, written and read the same way.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    K,
    V,
}
const SIDES: [Side; 2] = [Side::K, Side::V];

fn write(side: Side, backend: Backend, shape: KvShape, to: &mut [u8], slot: usize, rows: &[f32]) {
    match side {
        Side::K => write_k_rows(backend, shape, to, slot, rows),
        Side::V => write_v_rows(backend, shape, to, slot, rows),
    }
}

/// A block over arbitrary old bytes.
fn written(side: Side, backend: Backend, shape: KvShape, rows: &[f32]) -> Vec<u8> {
    let mut block = vec![0xa5; shape.k_bytes()];
    write(side, backend, shape, &mut block, 0, rows);
    block
}

/// One head as (slot, dim), for either side.
fn read(side: Side, backend: Backend, head_dim: usize, form: Form, head: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; head_dim * BLOCK_SLOTS];
    match side {
        Side::V => {
            read_v_head(backend, head_dim, form, head, &mut out);
            out
        }
        Side::K => {
            read_k_head(backend, head_dim, form, head, &mut out);
            (0..out.len())
                .map(|i| out[i % head_dim * BLOCK_SLOTS + i / head_dim])
                .collect()
        }
    }
}

fn recode(side: Side, backend: Backend, dim: usize, from: Form, src: &[u8], to: Form) -> Vec<u8> {
    let mut dst = vec![0x5a; to.head_bytes(dim)];
    match side {
        Side::K => recode_k_head(backend, dim, from, src, to, &mut dst),
        Side::V => recode_v_head(backend, dim, from, src, to, &mut dst),
    }
    dst
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn backends_write_and_read_the_same_bytes() {
    for dim in HEADS {
        for form in forms() {
            let shape = shape(2, dim, form);
            let rows = Noise(dim as u64).rows(BLOCK_SLOTS, shape.row());
            for side in SIDES {
                let want = written(side, Backend::SCALAR, shape, &rows);
                let head = &want[form.head_bytes(dim)..];
                let numbers = read(side, Backend::SCALAR, dim, form, head);
                for backend in backends() {
                    let name = backend.name();
                    let got = written(side, backend, shape, &rows);
                    assert!(got == want, "{name} {side:?} {dim} {form:?}");
                    let got = read(side, backend, dim, form, head);
                    assert_eq!(bits(&got), bits(&numbers), "{name} {side:?} {dim} {form:?}");
                }
            }
        }
    }
}

#[test]
fn a_slot_depends_on_its_row_alone() {
    for dim in HEADS {
        for form in forms() {
            let shape = shape(2, dim, form);
            let rows = Noise(99 + dim as u64).rows(BLOCK_SLOTS, shape.row());
            for side in SIDES {
                let backend = Backend::best();
                let want = written(side, backend, shape, &rows);
                // In odd pieces, last first, over other old bytes.
                let mut got = vec![0x3c; want.len()];
                for ends in [0, 1, 7, 8, 9, 16, 17, 19, 20, 31, 32].windows(2).rev() {
                    let range = ends[0] * shape.row()..ends[1] * shape.row();
                    write(side, backend, shape, &mut got, ends[0], &rows[range]);
                }
                assert!(got == want, "{side:?} {dim} {form:?}");
            }
        }
    }
}

#[test]
fn recoding_is_reading_and_writing_again() {
    let mut pairs = Vec::new();
    for from in forms() {
        pairs.extend(forms().map(|to| (from, to)));
    }
    for dim in [20, 64, 80, 256] {
        for (i, &(from, to)) in pairs.iter().enumerate() {
            // All pairs of codecs on one size, some on each other.
            if dim != 64 && i % 5 != dim % 5 {
                continue;
            }
            let rows = Noise(i as u64).rows(BLOCK_SLOTS, dim);
            for side in SIDES {
                let src = written(side, Backend::best(), shape(1, dim, from), &rows);
                let numbers = read(side, Backend::best(), dim, from, &src);
                let want = written(side, Backend::SCALAR, shape(1, dim, to), &numbers);
                for backend in backends() {
                    let got = recode(side, backend, dim, from, &src, to);
                    assert!(
                        got == want,
                        "{} {side:?} {dim} {from:?} {to:?}",
                        backend.name()
                    );
                }
            }
        }
    }
}

#[test]
fn recoding_garbage_is_harmless_and_the_same_everywhere() {
    let mut noise = Noise(5);
    for dim in [20, 64] {
        for from in forms() {
            let src: Vec<u8> = (0..from.head_bytes(dim))
                .map(|_| noise.next() as u8)
                .collect();
            for to in forms().filter(|to| !to.codec.is_float()) {
                for side in SIDES {
                    let want = recode(side, Backend::SCALAR, dim, from, &src, to);
                    for backend in backends() {
                        let got = recode(side, backend, dim, from, &src, to);
                        assert!(got == want, "{} {side:?} {from:?} {to:?}", backend.name());
                    }
                    let finite = read(side, Backend::best(), dim, to, &want);
                    assert!(finite.iter().all(|x| x.is_finite()), "{from:?} {to:?}");
                }
            }
        }
    }
}

/// How far one value may be from what was written, in a group of the given absmax.
fn error_max(codec: Codec, x: f64, absmax: f64) -> f64 {
    match codec {
        Codec::F32 => 0.0,
        Codec::F16 => x.abs() * HALF_ERROR + HALF_TINY,
        // Half a step of the rounded scale; in tiny groups the greatest codes are clamped as well.
        Codec::Int8 => absmax / 127.0 * (0.5 + HALF_ERROR) * 1.001 + 128.0 * HALF_TINY,
        Codec::Int4Plain => absmax / 7.0 * (0.5 + HALF_ERROR) * 1.001 + 8.0 * HALF_TINY,
        // Nearest of the levels, whatever the scale: no value is further off than the greatest value.
        _ => absmax,
    }
}

/// Mean squared error of normal values as a part of their mean square, groups of 64: the Lloyd-Max
/// distortion of each count of levels is 0.00250, 0.00950, 0.0345 and 0.1175, and a scale and a way up
/// fitted to each group do better. Three percent on what was measured.
fn distortion_max(codec: Codec) -> f64 {
    1.03 * match codec {
        Codec::F32 => 0.0,
        Codec::F16 => 4.31e-8,
        Codec::Int8 => 3.53e-5,
        Codec::Int5 => 0.00160,
        Codec::Int4 => 0.00645,
        Codec::Int4Plain => 0.0116,
        Codec::Int3 => 0.0273,
        Codec::Int2 => 0.1056,
    }
}

#[test]
fn errors_are_bounded() {
    for dim in HEADS {
        for form in forms() {
            let rows = Noise(7 * dim as u64).rows(BLOCK_SLOTS, dim);
            for side in SIDES {
                let block = written(side, Backend::best(), shape(1, dim, form), &rows);
                let got = read(side, Backend::best(), dim, form, &block);
                for (x, got) in rows.chunks(dim).zip(got.chunks(dim)) {
                    for (x, got) in x.chunks(form.group).zip(got.chunks(form.group)) {
                        let absmax = x.iter().fold(0.0f64, |m, x| m.max(f64::from(x.abs())));
                        for (x, got) in x.iter().zip(got) {
                            let (x, got) = (f64::from(*x), f64::from(*got));
                            let bound = error_max(form.codec, x, absmax);
                            assert!((x - got).abs() <= bound, "{form:?}: {x} became {got}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn normal_values_keep_their_distortion() {
    let mut noise = Noise(1);
    let dim = 64;
    let rows: Vec<Vec<f32>> = (0..32)
        .map(|_| (0..dim * BLOCK_SLOTS).map(|_| noise.normal()).collect())
        .collect();
    for codec in Codec::ALL {
        let form = Form { codec, group: 64 };
        for side in SIDES {
            let (mut error, mut power) = (0.0, 0.0);
            for rows in &rows {
                let block = written(side, Backend::best(), shape(1, dim, form), rows);
                let got = read(side, Backend::best(), dim, form, &block);
                for (x, got) in rows.iter().zip(got) {
                    error += f64::from(x - got).powi(2);
                    power += f64::from(*x).powi(2);
                }
            }
            println!("{codec} {side:?}: distortion {:.3e}", error / power);
            assert!(error / power <= distortion_max(codec), "{codec} {side:?}");
        }
    }
}

/// The codes are the levels nearest under the stored scale: checked in f64, value by value.
#[test]
fn codebook_codes_are_nearest() {
    for codec in [Codec::Int5, Codec::Int4, Codec::Int3, Codec::Int2] {
        for dim in [20, 64] {
            let form = Form { codec, group: 64 };
            let rows = Noise(3).rows(BLOCK_SLOTS, dim);
            let block = written(Side::V, Backend::best(), shape(1, dim, form), &rows);
            let got = read(Side::V, Backend::best(), dim, form, &block);
            let scales = &block[form.head_bytes(dim) - 2 * BLOCK_SLOTS..];
            for (i, (x, got)) in rows.iter().zip(got).enumerate() {
                let at = i / dim * 2;
                let scale = f16::from_le_bytes([scales[at], scales[at + 1]]).to_f64();
                let levels = levels::of(codec).iter();
                let nearest = levels
                    .map(|level| (f64::from(*level) * scale - f64::from(*x)).abs())
                    .fold(f64::INFINITY, f64::min);
                assert_eq!((f64::from(got) - f64::from(*x)).abs(), nearest, "{codec}");
            }
        }
    }
}

/// What is written of `-x` is the mirror image of what is written of `x`, and a codebook's way up
/// is chosen about evenly: neither sign is the better one.
#[test]
fn minus_is_the_mirror_image() {
    let dim = 64;
    let rows: Vec<f32> = Noise(37).rows(BLOCK_SLOTS, dim);
    let minus: Vec<f32> = rows.iter().map(|x| -x).collect();
    for codec in [Codec::Int5, Codec::Int4, Codec::Int3, Codec::Int2] {
        for (form, side) in GROUPS.into_iter().flat_map(|group| {
            let form = Form { codec, group };
            SIDES.map(|side| (form, side))
        }) {
            let shape = shape(1, dim, form);
            for backend in backends() {
                let block = written(side, backend, shape, &rows);
                let mirror = written(side, backend, shape, &minus);
                let scales = block.len() - 2 * BLOCK_SLOTS * (dim / form.group);
                assert!(block[..scales] == mirror[..scales], "{codec}: other codes");
                let (of_block, _) = block[scales..].as_chunks::<2>();
                let (of_mirror, _) = mirror[scales..].as_chunks::<2>();
                let mut below = 0;
                for (scale, mirror) in of_block.iter().zip(of_mirror) {
                    let scale = f16::from_le_bytes(*scale);
                    assert_eq!(scale, -f16::from_le_bytes(*mirror), "{codec}");
                    below += usize::from(scale < f16::ZERO);
                }
                let part = below as f64 / of_block.len() as f64;
                assert!((0.25..0.75).contains(&part), "{codec}: {part} are negative");
            }
        }
    }
}

/// The textbook, literally: codes and scales of groups of 32. Ties round to even.
fn textbook_codes(x: &[f32]) -> (Vec<u8>, Vec<[u8; 2]>) {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for group in x.chunks(32) {
        let absmax = group.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let scale = f16::from_f32(absmax / 7.0);
        for x in group {
            let code = if scale == f16::ZERO {
                0.0
            } else {
                (x / scale.to_f32()).round_ties_even().clamp(-8.0, 7.0)
            };
            codes.push(code as i8 as u8 & 15);
        }
        scales.push(scale.to_le_bytes());
    }
    (codes, scales)
}

/// One slot's keys: two to a byte, even elements low.
fn textbook_keys(x: &[f32]) -> (Vec<u8>, Vec<[u8; 2]>) {
    let (codes, scales) = textbook_codes(x);
    (codes.chunks(2).map(|c| c[0] | c[1] << 4).collect(), scales)
}

/// One slot's values: two to a byte, even elements low; evens have groups and odds have groups.
fn textbook_values(x: &[f32]) -> (Vec<u8>, Vec<[u8; 2]>) {
    let parted: Vec<f32> = x
        .iter()
        .step_by(2)
        .chain(x.iter().skip(1).step_by(2))
        .copied()
        .collect();
    let (codes, scales) = textbook_codes(&parted);
    let (even, odd) = codes.split_at(x.len() / 2);
    (
        even.iter().zip(odd).map(|(e, o)| e | o << 4).collect(),
        scales,
    )
}

#[test]
fn int4_plain_is_the_textbook() {
    // Elsewhere some pair of neighbours is in two bytes.
    for dim in HEADS.into_iter().filter(|dim| dim.is_multiple_of(8)) {
        let form = Codec::Int4Plain.form();
        let shape = shape(1, dim, form);
        let mut rows = Noise(11).rows(BLOCK_SLOTS, dim);
        rows[..dim.min(32)].fill(0.0);
        // A tie: 3.5 steps.
        (rows[2 * dim], rows[2 * dim + 1]) = (7000.0, 3500.0);
        let turned = |turn: Rotation| {
            let mut rows = rows.clone();
            for row in rows.chunks_mut(dim) {
                ops::rotate_head(Backend::best(), turn, row);
            }
            rows
        };
        let k = written(Side::K, Backend::best(), shape, &turned(Rotation::Eights));
        let v = written(Side::V, Backend::best(), shape, &turned(Rotation::Pairs));
        let scales_at = |group: usize, slot: usize| {
            let first = dim / 2 * BLOCK_SLOTS + 2 * (group * BLOCK_SLOTS + slot);
            first..first + 2
        };
        for (slot, x) in rows.chunks(dim).enumerate() {
            let (bytes, scales) = textbook_keys(x);
            for (pair, byte) in bytes.iter().enumerate() {
                let at = (pair / 4 * BLOCK_SLOTS + slot) * 4 + pair % 4;
                assert_eq!(k[at], *byte, "key {slot} {pair}");
            }
            for (group, scale) in scales.iter().enumerate() {
                assert_eq!(k[scales_at(group, slot)], *scale, "key {slot} {group}");
            }
            // Groups of values are groups of what is stored: evens first.
            let (bytes, scales) = textbook_values(x);
            for (pair, byte) in bytes.iter().enumerate() {
                let at = (slot / 4 * (dim / 2) + pair) * 4 + slot % 4;
                assert_eq!(v[at], *byte, "value {slot} {pair}");
            }
            for (group, scale) in scales.iter().enumerate() {
                assert_eq!(v[scales_at(group, slot)], *scale, "value {slot} {group}");
            }
        }
    }
}

/// A signaling not-a-number.
const SIGNALING: f32 = f32::from_bits(0x7fa0_0001);

/// Row `i` of these is written to slot `i`, ordinary rows around them.
fn odd_rows(dim: usize) -> Vec<Vec<f32>> {
    let noise = Noise(13).rows(4, dim);
    let row = |i: usize| noise[i * dim..(i + 1) * dim].to_vec();
    let with = |x: f32| {
        let mut row = row(0);
        row[dim / 2] = x;
        row
    };
    let scaled = |by: f32| row(0).iter().map(|x| x * by).collect::<Vec<f32>>();
    vec![
        vec![0.0; dim],
        vec![-0.0; dim],
        scaled(1e-6),
        scaled(1e-9),
        scaled(1e-30),
        vec![f32::MIN_POSITIVE / 4.0; dim],
        scaled(1e5),
        scaled(1e30),
        vec![f32::MAX; dim],
        vec![f32::MIN; dim],
        with(f32::NAN),
        with(f32::INFINITY),
        with(f32::NEG_INFINITY),
        vec![f32::NAN; dim],
        vec![f32::INFINITY; dim],
        with(3e38),
        // The kind that arithmetic may answer differently.
        with(SIGNALING),
        vec![SIGNALING; dim],
        row(1),
    ]
}

/// Zeros stay zeros, tiny groups go to numbers no further off than f16's smallest step says,
/// what is too great or no number becomes finite, and the slots beside it do not notice.
#[test]
fn odd_numbers() {
    for dim in [20, 64, 80] {
        let odd = odd_rows(dim);
        let ordinary = Noise(17).rows(BLOCK_SLOTS, dim);
        let mut rows = ordinary.clone();
        for (slot, x) in odd.iter().enumerate() {
            rows[slot * dim..][..dim].copy_from_slice(x);
        }
        for form in forms().filter(|form| !form.codec.is_float()) {
            for side in SIDES {
                let shape = shape(1, dim, form);
                let want = written(side, Backend::SCALAR, shape, &rows);
                for backend in backends() {
                    let got = written(side, backend, shape, &rows);
                    assert!(got == want, "{} {side:?} {form:?}", backend.name());
                }
                let calm = written(side, Backend::best(), shape, &ordinary);
                let calm = read(side, Backend::best(), dim, form, &calm);
                let got = read(side, Backend::best(), dim, form, &want);
                assert_eq!(
                    bits(&got[odd.len() * dim..]),
                    bits(&calm[odd.len() * dim..])
                );
                for (slot, got) in got.chunks(dim).enumerate() {
                    assert!(got.iter().all(|x| x.is_finite()), "{form:?} slot {slot}");
                }
                for (slot, x) in odd[..6].iter().enumerate() {
                    for (x, got) in x.iter().zip(&got[slot * dim..]) {
                        // Half a step of the scale, times the greatest level, and the error that a
                        // good scale leaves.
                        let bound = 127.0 * HALF_TINY + f64::from(x.abs());
                        assert!(f64::from((x - got).abs()) <= bound, "{form:?} slot {slot}");
                    }
                }
                let zeros = &got[..2 * dim];
                assert!(zeros.iter().all(|x| *x == 0.0), "{form:?}");
                // A scale of a codebook may be negative: it ends where its mirror image does.
                let (top, bottom) = match form.codec {
                    Codec::Int4Plain => (7.0, -8.0),
                    _ => (127.0, -127.0),
                };
                for (slot, level) in [(8, top), (9, bottom), (14, top)] {
                    let most = level * f16::MAX.to_f32();
                    let clamped = &got[slot * dim..][..dim];
                    assert!(
                        clamped.iter().all(|x| *x == most),
                        "{form:?} {slot}: {clamped:?}"
                    );
                }
                for slot in [13, 17] {
                    let nothing = &got[slot * dim..][..dim];
                    assert!(nothing.iter().all(|x| *x == 0.0), "{form:?} {slot}");
                }
                let hole = got[10 * dim + dim / 2];
                let mut filled = odd[10].clone();
                filled[dim / 2] = 0.0;
                let filled = written(side, Backend::best(), shape, &filled);
                let filled = read(side, Backend::best(), dim, form, &filled)[dim / 2];
                assert_eq!(
                    hole.to_bits(),
                    filled.to_bits(),
                    "{form:?}: not a number is zero"
                );
            }
        }
    }
}

/// The drawing of `format::kv`, byte by byte: a head of ten, where no plane is whole, two heads.
#[test]
fn bytes_lie_where_the_drawing_says() {
    let dim = 10;
    let rows = Noise(23).rows(BLOCK_SLOTS, 2 * dim);
    for form in forms() {
        let shape = shape(2, dim, form);
        let (k, v) = (
            written(Side::K, Backend::best(), shape, &rows),
            written(Side::V, Backend::best(), shape, &rows),
        );
        let head_bytes = form.head_bytes(dim);
        assert_eq!(k.len(), 2 * head_bytes);
        for (head, slot) in (0..2).flat_map(|h| (0..BLOCK_SLOTS).map(move |s| (h, s))) {
            let x = &rows[(slot * 2 + head) * dim..][..dim];
            let (k, v) = (&k[head * head_bytes..], &v[head * head_bytes..]);
            for d in 0..dim {
                if form.codec == Codec::F32 {
                    assert_eq!(k[(d * 32 + slot) * 4..][..4], x[d].to_le_bytes());
                    assert_eq!(v[(slot * dim + d) * 4..][..4], x[d].to_le_bytes());
                    continue;
                }
                if form.codec == Codec::F16 {
                    let half = f16::from_f32(x[d]).to_le_bytes();
                    assert_eq!(k[(d * 32 + slot) * 2..][..2], half);
                    assert_eq!(v[(slot * dim + d) * 2..][..2], half);
                    continue;
                }
                let (mut at, mut shift, mut code_k, mut code_v) = (0, 0, 0, 0);
                for bits in form.codec.planes() {
                    let (per, mask) = (8 / bits, (1 << bits) - 1);
                    let n = 4 * dim.div_ceil(4 * per);
                    let (line, field) = (d / 4 / per, d / 4 % per);
                    let byte = u32::from(k[at + (line * 32 + slot) * 4 + d % 4]);
                    code_k |= ((byte >> (bits * field)) & mask) << shift;
                    let byte = u32::from(v[at + (slot / 4 * n + d % n) * 4 + slot % 4]);
                    code_v |= ((byte >> (bits * (d / n))) & mask) << shift;
                    at += 32 * n;
                    shift += bits;
                }
                assert_eq!(code_k, code_v, "{form:?} slot {slot} dimension {d}");
                assert_eq!(k[at..at + 64], v[at..at + 64], "the same scales");
                assert_eq!(at + 64, head_bytes, "one group, and nothing behind it");
                let scale = f16::from_le_bytes([k[at + 2 * slot], k[at + 2 * slot + 1]]).to_f32();
                let level = match form.codec {
                    Codec::Int8 => code_k as u8 as i8,
                    codec => levels::of(codec)[code_k as usize],
                };
                let value = f32::from(level) * scale;
                for side in SIDES {
                    let bytes = if side == Side::K { k } else { v };
                    let got = read(side, Backend::best(), dim, form, &bytes[..head_bytes]);
                    assert_eq!(got[slot * dim + d], value, "{form:?} {side:?}");
                }
            }
        }
    }
}

/// Bits without a dimension are zero, whatever was there.
#[test]
fn padding_is_zero() {
    let (dim, form) = (
        10,
        Form {
            codec: Codec::Int3,
            group: 64,
        },
    );
    let block = written(
        Side::K,
        Backend::best(),
        shape(1, dim, form),
        &vec![1.0; 32 * dim],
    );
    // One line of four fields, of which the third has two dimensions and the fourth none; then one of
    // eight, likewise.
    for four in block[..32 * 4].chunks(4) {
        assert!(four.iter().all(|byte| byte >> 6 == 0));
        assert!(four[2..].iter().all(|byte| byte >> 4 == 0));
    }
    for four in block[32 * 4..32 * 8].chunks(4) {
        assert!(four.iter().all(|byte| byte >> 3 == 0));
        assert!(four[2..].iter().all(|byte| byte >> 2 == 0));
    }
    let block = written(
        Side::V,
        Backend::best(),
        shape(1, dim, form),
        &vec![1.0; 32 * dim],
    );
    // Byte j holds dimensions j, 4 + j, 8 + j.
    for (i, byte) in block[..32 * 4].iter().enumerate() {
        let j = i / 4 % 4;
        assert!(byte >> if j < 2 { 6 } else { 4 } == 0);
    }
    // A head of ten takes twelve bytes of eight bits.
    let form = Codec::Int8.form();
    for side in SIDES {
        let block = written(
            side,
            Backend::best(),
            shape(1, dim, form),
            &vec![1.0; 32 * dim],
        );
        let zeros = block[..32 * 12].iter().filter(|byte| **byte == 0).count();
        assert_eq!(zeros, 32 * 2, "{side:?}");
    }
}

#[test]
fn sinks_are_rows_of_f16() {
    let (heads, dim, slots) = (3, 20, 4);
    let rows = Noise(29).rows(slots, heads * dim);
    for backend in backends() {
        let mut sinks = vec![0xee; sink_bytes(heads, dim, slots)];
        for (slot, row) in rows.chunks(heads * dim).enumerate().rev() {
            write_sink_row(backend, dim, slots, slot, row, &mut sinks);
        }
        for (slot, row) in rows.chunks(heads * dim).enumerate() {
            for (i, x) in row.iter().enumerate() {
                let half = f16::from_f32(*x);
                let at = 2 * ((i / dim * slots + slot) * dim + i % dim);
                assert_eq!(sinks[at..at + 2], half.to_le_bytes(), "{}", backend.name());
            }
        }
    }
}

/// Groups that are the whole head, or larger than the usual: the tile takes fewer slots.
#[test]
fn unusual_groups() {
    for (dim, group) in [
        (20, 20),
        (80, 80),
        (256, 128),
        (256, 256),
        (600, 256),
        (96, 8),
        (512, 64),
    ] {
        for codec in [Codec::Int8, Codec::Int5, Codec::Int4, Codec::Int3] {
            let form = Form { codec, group };
            assert!(form.fits(dim));
            let rows = Noise(31).rows(BLOCK_SLOTS, dim);
            let near = Codec::Int8.form();
            for side in SIDES {
                let src = written(side, Backend::best(), shape(1, dim, near), &rows);
                let numbers = read(side, Backend::SCALAR, dim, near, &src);
                let want = written(side, Backend::SCALAR, shape(1, dim, form), &numbers);
                for backend in backends() {
                    let got = recode(side, backend, dim, near, &src, form);
                    assert!(got == want, "{} {side:?} {dim} {form:?}", backend.name());
                }
            }
        }
    }
    for (dim, group) in [(64, 0), (64, 20), (512, 512)] {
        let form = Form {
            codec: Codec::Int4,
            group,
        };
        assert!(!form.fits(dim), "{dim} {group}");
    }
}

/// Squared error of a group under a scale, each value at its nearest level.
fn group_error(x: &[f32], levels: &[i8], scale: f64) -> f64 {
    let off = |x: f64| {
        let nearest = levels
            .iter()
            .map(|level| (x - f64::from(*level) * scale).abs());
        nearest.fold(f64::INFINITY, f64::min)
    };
    x.iter().map(|x| off(f64::from(*x)).powi(2)).sum()
}

/// The Lloyd-Max levels of a normal distribution: the best symmetric books.
const LLOYD5: [i8; 32] = [
    -127, -105, -90, -79, -70, -61, -54, -47, -41, -35, -29, -24, -18, -13, -8, -3, //
    3, 8, 13, 18, 24, 29, 35, 41, 47, 54, 61, 70, 79, 90, 105, 127,
];
const LLOYD4: [i8; 16] = [
    -127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127,
];
const LLOYD3: [i8; 8] = [-127, -79, -45, -14, 14, 45, 79, 127];
const LLOYD2: [i8; 4] = [-127, -38, 38, 127];

/// Prints what `docs/how-it-works/kv-blocks.md` says about scales: the error the encoder leaves, between the least
/// that a symmetric book would and the least that its own does, over very many scales.
#[test]
#[ignore = "prints figures; takes a while"]
fn scale_search() {
    let dim = 256;
    type Source = (&'static str, fn(&mut Noise) -> f32);
    let sources: [Source; 2] = [("normal", Noise::normal), ("laplace", Noise::laplace)];
    println!("codec  group  values   symmetric   encoder   the best");
    for (codec, symmetric) in [
        (Codec::Int5, &LLOYD5[..]),
        (Codec::Int4, &LLOYD4),
        (Codec::Int3, &LLOYD3),
        (Codec::Int2, &LLOYD2),
    ] {
        let groups = [32, 64, 128, 256].into_iter();
        for (group, (name, source)) in groups.flat_map(|g| sources.map(|s| (g, s))) {
            let (mut noise, form) = (Noise(41), Form { codec, group });
            let (mut power, mut plain, mut ours, mut best) = (0.0, 0.0, 0.0, 0.0);
            for _ in 0..8 {
                let rows: Vec<f32> = (0..dim * BLOCK_SLOTS).map(|_| source(&mut noise)).collect();
                let block = written(Side::V, Backend::best(), shape(1, dim, form), &rows);
                let got = read(Side::V, Backend::best(), dim, form, &block);
                for (x, got) in rows.chunks(group).zip(got.chunks(group)) {
                    let most = x.iter().fold(0.0f64, |m, x| m.max(f64::from(x.abs())));
                    let least = |book: &[i8], sign: f64| {
                        (0..200)
                            .map(|i| sign * most / 127.0 * (0.2 + 0.006 * f64::from(i)))
                            .map(|scale| f16::from_f64(scale).to_f64())
                            .map(|scale| group_error(x, book, scale))
                            .fold(f64::INFINITY, f64::min)
                    };
                    power += x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
                    plain += least(symmetric, 1.0);
                    let book = levels::of(codec);
                    best += least(book, 1.0).min(least(book, -1.0));
                    let off = x.iter().zip(got).map(|(x, got)| f64::from(x - got).powi(2));
                    ours += off.sum::<f64>();
                }
            }
            let [plain, ours, best] = [plain, ours, best].map(|e| e / power);
            println!("{codec}  {group:>5}  {name:<8} {plain:>9.5} {ours:>9.5} {best:>10.5}");
            assert!(ours <= 1.07 * best, "{codec} {group} {name}");
            assert!(group > 64 || ours <= plain, "{codec} {group} {name}");
        }
    }
}

#[test]
fn bits_of_known_forms() {
    let bits = |codec: Codec, group, dim| {
        let form = Form { codec, group };
        form.slot_bytes(dim) as f64 * 8.0 / dim as f64
    };
    assert_eq!(bits(Codec::F16, 64, 64), 16.0);
    assert_eq!(bits(Codec::Int8, 64, 64), 8.25);
    assert_eq!(bits(Codec::Int8, 32, 128), 8.5);
    assert_eq!(bits(Codec::Int5, 64, 64), 5.25);
    assert_eq!(bits(Codec::Int4, 64, 128), 4.25);
    assert_eq!(bits(Codec::Int4Plain, 32, 128), 4.5);
    assert_eq!(bits(Codec::Int3, 64, 64), 3.25);
    assert_eq!(bits(Codec::Int2, 64, 64), 2.25);
    assert_eq!(bits(Codec::Int4, 64, 16), 5.0, "a small head is one group");
    assert_eq!(bits(Codec::Int4, 64, 80), 4.4, "64 and 16");
}

#[test]
fn names_are_exact() {
    for codec in Codec::ALL {
        assert_eq!(codec.name().parse(), Ok(codec));
    }
    for name in ["", "INT4", "int4 ", "q4_0", "int6"] {
        assert_eq!(name.parse::<Codec>(), Err(UnknownCodec));
    }
}
