//! Any byte of a file may be anything. Every single-byte change and every truncation of a small file,
//! and some thousand random edits, either open, and then everything in them can be read, or are
//! refused; and nothing large is ever asked of the system on the way.
//!
//! Alone in its file, because it watches the address space of the whole process.

use haversack_gguf::{Gguf, GgufWriter, Meta, Value, ValueType};
use haversack_kernels::format::WeightType;
use haversack_testing::models::weights::Random;
use std::fs;
use std::path::Path;

fn sound() -> Vec<u8> {
    let mut w = GgufWriter::new();
    w.set("general.alignment", 32u32)
        .set("name", "x")
        .set("words", Meta::array(["ab", "", "c"]))
        .set("ids", Meta::array([1i32, 2]))
        .set("flags", Meta::array([true]))
        .set("halves", Meta::array([0.5f32]))
        .set("deep", Meta::array([Meta::array([1u8])]));
    w.tensor("a.weight", WeightType::F32, &[4, 2]).unwrap();
    w.tensor("b.weight", WeightType::Q4_0, &[32]).unwrap();
    w.to_bytes(&mut |t, out| out.write_all(&vec![3; t.bytes as usize]))
        .unwrap()
}

/// Opens, and if that works reads all there is. True if it opened.
fn survives(bytes: &[u8], path: &Path) -> bool {
    // Overwriting a file makes some file systems wait for the disk; a new one does not.
    let _ = fs::remove_file(path);
    fs::write(path, bytes).unwrap();
    let g = match Gguf::open(path) {
        Ok(g) => g,
        Err(e) => {
            assert_eq!(e.to_string().lines().count(), 1);
            return false;
        }
    };
    for (key, value) in g.metadata() {
        assert!(value.to_string().lines().count() <= 1);
        let _ = (g.u32(key), g.u64(key), g.f32(key), g.bool(key), g.str(key));
        if let Value::Array(a) = value {
            let len = a.len();
            assert!(a.strs().is_err() || a.strs().unwrap().count() == len);
            assert!(a.u32s().is_err() || a.u32s().unwrap().count() == len);
            assert!(a.i32s().is_err() || a.i32s().unwrap().count() == len);
            assert!(a.f32s().is_err() || a.f32s().unwrap().count() == len);
            assert!(a.bools().is_err() || a.bools().unwrap().count() == len);
            assert!(a.elem() == ValueType::Array || len <= bytes.len());
        }
    }
    for t in g.tensors() {
        let row = t.ty.row_bytes(t.cols()).unwrap();
        assert_eq!(g.bytes(t).len(), row * t.rows());
    }
    true
}

/// The most address space this process ever had.
fn address_space_peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmPeak:"));
    line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse().ok())
        .unwrap_or(0)
}

#[test]
fn no_bytes_panic_or_take_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f.gguf");
    let sound = sound();
    assert!(survives(&sound, &path));
    let before = address_space_peak_kib();

    let mut opened = 0;
    let mut tried = 0;
    let mut count = |ok: bool| {
        tried += 1;
        opened += u32::from(ok);
    };
    for i in 0..sound.len() {
        for new in [
            0,
            0xff,
            sound[i] ^ 1,
            sound[i] ^ 0x80,
            sound[i].wrapping_add(1),
        ] {
            let mut bytes = sound.clone();
            bytes[i] = new;
            count(survives(&bytes, &path));
        }
        count(survives(&sound[..i], &path));
    }
    // Numbers that wrap, where numbers are; runs copied, dropped and doubled.
    let mut random = Random::new(20_261_115);
    let edges = [
        0,
        1,
        7,
        8,
        9,
        0x7f,
        1 << 16,
        1 << 31,
        1 << 32,
        1 << 61,
        1 << 62,
        1 << 63,
        u64::MAX,
        u64::MAX - 31,
    ];
    for _ in 0..6000 {
        let mut bytes = sound.clone();
        for _ in 0..=random.bits() % 3 {
            let at = random.bits() as usize % bytes.len();
            let len = (random.bits() as usize % 24).min(bytes.len() - at);
            match random.bits() % 5 {
                0 | 1 => {
                    let edge = edges[random.bits() as usize % edges.len()];
                    let near = edge.wrapping_add(random.bits() % 3).to_le_bytes();
                    let len = (bytes.len() - at).min(8);
                    bytes[at..at + len].copy_from_slice(&near[..len]);
                }
                2 => drop(bytes.drain(at..at + len)),
                3 => {
                    let run = bytes[at..at + len].to_vec();
                    bytes.splice(at..at, run);
                }
                _ => bytes[at..at + len]
                    .iter_mut()
                    .for_each(|b| *b = random.bits() as u8),
            }
            if bytes.is_empty() {
                break;
            }
        }
        count(survives(&bytes, &path));
    }
    println!("{opened} of {tried} opened");
    // Both ways are taken: weights and names may be anything, counts may not.
    assert!(opened > tried / 20 && opened < tried, "{opened} of {tried}");
    let grown = address_space_peak_kib() - before;
    assert!(grown < 16 << 10, "{grown} KiB of address space");
}
