//! Files that lie. Each case is a sound file changed in one way, and what the refusal must say; none
//! may panic, hang or take memory that the file does not have.

use haversack_gguf::{Gguf, GgufWriter, Meta, ValueType};
use haversack_kernels::format::WeightType;
use std::fs;
use std::path::Path;

/// A small sound file whose parts can be found again: `"k"` is the only key, `"t"` and `"v"` the
/// tensors.
///
/// ```text
///  0 magic  4 version  8 tensor_count  16 kv_count
/// 24 key length  32 'k'  33 type  37 value: 8 bytes
/// 45 name length 53 't'  54 n_dims  58 dim0  66 dim1  74 type  78 offset
/// 86 name length 94 'v'  95 n_dims  99 dim0 107 dim1 115 type 119 offset  127
/// ```
fn sound() -> Vec<u8> {
    let mut w = GgufWriter::new();
    w.set("k", 1u64);
    w.tensor("t", WeightType::F32, &[8, 4]).unwrap();
    w.tensor("v", WeightType::Q8_0, &[32, 2]).unwrap();
    w.to_bytes(&mut |t, out| out.write_all(&vec![1; t.bytes as usize]))
        .unwrap()
}

const TENSOR_COUNT: usize = 8;
const KV_COUNT: usize = 16;
const KEY: usize = 24;
const KIND: usize = 33;
const VALUE: usize = 37;
const NAME: usize = 45;
const DIMS: usize = 54;
const TYPE: usize = 74;
const OFFSET: usize = 78;
const OFFSET_2: usize = 119;
const DATA: usize = 128;

fn open(bytes: &[u8], dir: &Path) -> Result<Gguf, String> {
    let path = dir.join("bad.gguf");
    fs::write(&path, bytes).unwrap();
    Gguf::open(&path).map_err(|e| {
        let said = e.to_string();
        assert_eq!(said.lines().count(), 1, "{said:?}");
        assert!(said.len() < 1000 && !said.contains('\u{1b}'), "{said:?}");
        said.strip_prefix(path.to_str().unwrap())
            .expect("the file's name")
            .to_string()
    })
}

fn put(mut bytes: Vec<u8>, at: usize, new: &[u8]) -> Vec<u8> {
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

fn splice(mut bytes: Vec<u8>, at: usize, old_len: usize, new: &[u8]) -> Vec<u8> {
    bytes.splice(at..at + old_len, new.iter().copied());
    bytes
}

/// A key with this type and these bytes in place of `k`'s.
fn with_value(kind: u32, value: &[u8]) -> Vec<u8> {
    let bytes = put(sound(), KIND, &kind.to_le_bytes());
    splice(bytes, VALUE, 8, value)
}

fn array(elem: u32, count: u64, items: &[u8]) -> Vec<u8> {
    let mut value = elem.to_le_bytes().to_vec();
    value.extend(count.to_le_bytes());
    value.extend(items);
    with_value(9, &value)
}

#[test]
fn every_lie_is_named() {
    let u64s = u64::to_le_bytes;
    let u32s = u32::to_le_bytes;
    let dims = |a: u64, b: u64| put(put(sound(), DIMS + 4, &u64s(a)), DIMS + 12, &u64s(b));
    let cut = |n: usize| sound()[..n].to_vec();
    let mut deep = Vec::new();
    for _ in 0..100_000 {
        deep.extend(u32s(9));
        deep.extend(u64s(1));
    }
    let nested = |inner: &[u8]| {
        let mut v = u32s(9).to_vec();
        v.extend(u64s(1));
        v.extend(inner);
        with_value(9, &v)
    };
    let mut inner_huge = u32s(0).to_vec();
    inner_huge.extend(u64s(u64::MAX));
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", vec![], "not a GGUF file: it is empty"),
        ("one byte", b"G".to_vec(), "begins with \"G\" instead"),
        ("magic alone", cut(4), "the version needs 4 bytes"),
        (
            "half a version",
            cut(6),
            "the version needs 4 bytes, the file has 2",
        ),
        ("html", b"  <!DOCTYPE html>".to_vec(), "HTML page"),
        (
            "lfs",
            b"version https://git-lfs.github.com/spec/v1".to_vec(),
            "git-lfs pointer",
        ),
        ("zip", b"PK\x03\x04".to_vec(), "zip archive"),
        ("gzip", b"\x1f\x8b\x08".to_vec(), "gzip"),
        ("json", b"{\"a\":1}".to_vec(), "JSON"),
        (
            "safetensors",
            b"\x10\0\0\0\0\0\0\0{\"a\":1}".to_vec(),
            "safetensors",
        ),
        ("old", b"tjgg....".to_vec(), "older GGML format"),
        (
            "terminal",
            b"\x1b[31m".to_vec(),
            "begins with \"\\u{1b}[31\"",
        ),
        ("swapped", b"FUGG".to_vec(), "byte-swapped"),
        (
            "version 0",
            put(sound(), 4, &u32s(0)),
            "GGUF version 0; accepted: 2 and 3",
        ),
        (
            "version 1",
            put(sound(), 4, &u32s(1)),
            "version 1 (obsolete",
        ),
        ("version 4", put(sound(), 4, &u32s(4)), "GGUF version 4;"),
        (
            "big-endian",
            put(sound(), 4, &u32s(3 << 24)),
            "GGUF version 3 in big-endian",
        ),
        (
            "tensor count",
            put(sound(), TENSOR_COUNT, &u64s(1 << 32)),
            "tensor_count is 4294967296; accepted: at most",
        ),
        (
            "tensor count max",
            put(sound(), TENSOR_COUNT, &u64s(u64::MAX)),
            "tensor_count is 18446744073709551615",
        ),
        // Times the least size of an entry, this wraps to a small number.
        (
            "tensor count wraps",
            put(sound(), TENSOR_COUNT, &u64s(u64::MAX / 33 + 1)),
            "tensor_count is",
        ),
        (
            "kv count",
            put(sound(), KV_COUNT, &u64s(1 << 63)),
            "kv_count is 9223372036854775808",
        ),
        (
            "kv count wraps",
            put(sound(), KV_COUNT, &u64s(u64::MAX / 14 + 1)),
            "kv_count is",
        ),
        (
            "key length 0",
            put(sound(), KEY, &u64s(0)),
            "the length of key 0 is 0; accepted: 1 to 65535",
        ),
        (
            "key length",
            put(sound(), KEY, &u64s(65_535)),
            "key 0 needs 65535 bytes",
        ),
        (
            "key length max",
            put(sound(), KEY, &u64s(u64::MAX)),
            "the length of key 0 is",
        ),
        (
            "key not text",
            put(sound(), KEY + 8, b"\xff"),
            "key 0 is \"\\xff\"; accepted: valid UTF-8",
        ),
        (
            "key speaks",
            splice(put(sound(), KIND, &u32s(99)), KEY + 8, 1, b"\x1b"),
            "the type of \\u{1b} is 99",
        ),
        (
            "value type",
            put(sound(), KIND, &u32s(13)),
            "the type of k is 13; accepted: 0 to 12",
        ),
        (
            "string length",
            with_value(8, &u64s(1 << 62)),
            "k needs 4611686018427387904 bytes",
        ),
        (
            "string length max",
            with_value(8, &u64s(u64::MAX)),
            "k needs 18446744073709551615 bytes",
        ),
        (
            "bool",
            with_value(7, &[2]),
            "k is 2; accepted: a bool of 0 or 1",
        ),
        (
            "bool in array",
            array(7, 2, &[1, 9]),
            "an item of k is 9; accepted: a bool",
        ),
        ("array type", array(13, 1, &[0]), "the item type of k is 13"),
        (
            "array count",
            array(0, u64::MAX, &[]),
            "the item count of k is 18446744073709551615",
        ),
        (
            "array count wraps",
            array(10, 1 << 61, &[]),
            "the item count of k is 2305843009213693952",
        ),
        (
            "array of strings",
            array(8, 1 << 40, &[]),
            "the item count of k is 1099511627776",
        ),
        (
            "string in array",
            array(8, 2, &[u64s(0), u64s(1 << 50)].concat()),
            "item 1 of k needs 1125899906842624",
        ),
        (
            "nested deep",
            with_value(9, &deep),
            "k is an array nested deeper; accepted: at most 4",
        ),
        (
            "nested count",
            nested(&inner_huge),
            "the item count of k is 18446744073709551615",
        ),
        (
            "name length 0",
            put(sound(), NAME, &u64s(0)),
            "the length of the name of tensor 0 is 0; accepted: 1 to 64",
        ),
        (
            "name length",
            put(sound(), NAME, &u64s(65)),
            "the length of the name of tensor 0 is 65",
        ),
        (
            "name not text",
            put(sound(), NAME + 8, b"\x80"),
            "the name of tensor 0 is \"\\x80\"",
        ),
        (
            "name twice",
            put(sound(), NAME + 8, b"v"),
            "tensor v appears twice",
        ),
        (
            "no dims",
            put(sound(), DIMS, &u32s(0)),
            "n_dims of tensor t is 0; accepted: 1 to 4",
        ),
        (
            "five dims",
            put(sound(), DIMS, &u32s(5)),
            "n_dims of tensor t is 5",
        ),
        ("dim 0", dims(0, 4), "dimension 0 of tensor t is 0"),
        ("dim 1 0", dims(8, 0), "dimension 1 of tensor t is 0"),
        (
            "dim negative",
            dims(8, 1 << 63),
            "dimension 1 of tensor t is 9223372036854775808",
        ),
        (
            "product wraps",
            dims(1 << 32, 1 << 32),
            "the shape of tensor t is [4294967296, 4294967296]",
        ),
        (
            "bytes wrap",
            dims(1 << 62, 1),
            "the shape of tensor t is [4611686018427387904, 1]",
        ),
        (
            "bytes too many",
            dims((1 << 62) - 1, 1),
            "tensor t takes 18446744073709551612 bytes",
        ),
        (
            "rows too many",
            dims(8, 1 << 42),
            "tensor t takes 140737488355328 bytes from offset 0",
        ),
        ("one row too many", dims(8, 5), "tensors t and v overlap"),
        (
            "type known",
            put(sound(), TYPE, &u32s(16)),
            "tensor t has type IQ2_XXS (16); accepted: F32, F16",
        ),
        (
            "type removed",
            put(sound(), TYPE, &u32s(4)),
            "tensor t has type Q4_2, removed from the format (4)",
        ),
        (
            "type unknown",
            put(sound(), TYPE, &u32s(u32::MAX)),
            "tensor t has type unknown (4294967295)",
        ),
        (
            "type of other blocks",
            put(sound(), TYPE, &u32s(8)),
            "the row length of tensor t is 8; accepted: a multiple of 32 for Q8_0",
        ),
        (
            "offset odd",
            put(sound(), OFFSET, &u64s(1)),
            "the offset of tensor t is 1; accepted: a multiple of the alignment 32",
        ),
        (
            "offset beyond",
            put(sound(), OFFSET, &u64s(1 << 40)),
            "tensor t takes 128 bytes from offset 1099511627776 of the tensor data",
        ),
        (
            "offset wraps",
            put(sound(), OFFSET, &u64s(u64::MAX - 31)),
            "tensor t takes 128 bytes from offset 18446744073709551584",
        ),
        (
            "overlap",
            put(sound(), OFFSET_2, &u64s(96)),
            "tensors t and v overlap",
        ),
        ("same place", put(sound(), OFFSET_2, &u64s(0)), "overlap"),
        (
            "no data",
            cut(DATA),
            "tensor t takes 128 bytes from offset 0 of the tensor data, which has 0",
        ),
        (
            "last byte",
            cut(DATA + 128 + 67),
            "tensor v takes 68 bytes from offset 128 of the tensor data, which has 195",
        ),
    ];
    let dir = tempfile::tempdir().unwrap();
    assert!(open(&sound(), dir.path()).is_ok());
    for (name, bytes, want) in cases {
        let said = open(&bytes, dir.path()).map(drop).expect_err(name);
        assert!(said.contains(want), "{name}: {said:?} should say {want:?}");
    }
}

#[test]
fn alignment_follows_the_format() {
    let dir = tempfile::tempdir().unwrap();
    let with = |value: Meta| {
        let mut w = GgufWriter::new();
        w.set("general.alignment", value);
        w.to_bytes(&mut |_, _| Ok(())).unwrap()
    };
    for good in [Meta::U32(8), Meta::U16(64), Meta::I64(65536), Meta::U8(128)] {
        open(&with(good.clone()), dir.path()).unwrap_or_else(|e| panic!("{good:?}: {e}"));
    }
    for (bad, want) in [
        (
            Meta::U32(0),
            "general.alignment is 0; accepted: a power of two from 8 to 65536",
        ),
        (Meta::U32(4), "general.alignment is 4;"),
        (Meta::U32(48), "general.alignment is 48;"),
        (Meta::U32(1 << 17), "general.alignment is 131072;"),
        (
            Meta::U64(u64::MAX),
            "general.alignment is 18446744073709551615;",
        ),
        (Meta::I32(-32), "general.alignment is -32;"),
        (Meta::F32(32.0), "general.alignment is of type f32"),
        (Meta::Bool(true), "general.alignment is of type bool"),
        (
            Meta::array([32u32]),
            "general.alignment is of type array of u32",
        ),
    ] {
        let said = open(&with(bad), dir.path()).map(drop).unwrap_err();
        assert!(said.contains(want), "{said:?} should say {want:?}");
    }
}

/// 70000 keys are 70000 keys: the bound on entries holds even when the file is long enough, and
/// finding a duplicate among many takes no time worth noting.
#[test]
fn crowds_are_bounded_and_sorted_out() {
    let dir = tempfile::tempdir().unwrap();
    let keys = |count: usize, duplicate: bool| {
        let mut bytes = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        bytes.extend((count as u64).to_le_bytes());
        for i in 0..count {
            let i = if duplicate && i == count - 1 { 0 } else { i };
            let key = format!("key.{i}");
            bytes.extend((key.len() as u64).to_le_bytes());
            bytes.extend(key.as_bytes());
            bytes.extend(ValueType::U8.id().to_le_bytes());
            bytes.push(1);
        }
        bytes
    };
    assert!(open(&keys(60_000, false), dir.path()).is_ok());
    let said = open(&keys(60_000, true), dir.path()).map(drop).unwrap_err();
    assert!(said.contains("key key.0 appears twice"), "{said}");
    let said = open(&keys(70_000, false), dir.path())
        .map(drop)
        .unwrap_err();
    assert!(
        said.contains("kv_count is 70000; accepted: at most 65536"),
        "{said}"
    );
}

/// Holes cost nothing on disk: a small download may unfold to gigabytes of zeros, all of them empty
/// strings or false. Walking those took three seconds before there was a bound.
#[test]
fn a_table_of_gigabytes_is_not_walked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sparse.gguf");
    for (elem, count) in [
        (ValueType::Str, 100_000_000u64),
        (ValueType::Bool, 800_000_000),
    ] {
        let mut head = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
        head.extend(1u64.to_le_bytes());
        head.push(b'k');
        head.extend(ValueType::Array.id().to_le_bytes());
        head.extend(elem.id().to_le_bytes());
        head.extend(count.to_le_bytes());
        fs::write(&path, &head).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(800_000_000 + head.len() as u64).unwrap();
        let said = Gguf::open(&path).unwrap_err().to_string();
        assert!(
            said.contains("accepted: the first 134217728 bytes"),
            "{said}"
        );
    }
}

#[test]
fn nested_arrays_are_walked_to_their_end() {
    let dir = tempfile::tempdir().unwrap();
    let leaf = Meta::array(["a", "bc"]);
    let mut w = GgufWriter::new();
    let two = Meta::array([
        leaf.clone(),
        Meta::Array(ValueType::Bool, vec![]),
        leaf.clone(),
    ]);
    let three = Meta::array([two.clone(), Meta::array([leaf])]);
    w.set("deep", three).set("after", 7u32);
    let g = open(&w.to_bytes(&mut |_, _| Ok(())).unwrap(), dir.path()).unwrap();
    assert_eq!(g.u32("after").unwrap(), Some(7));
    assert_eq!(g.array("deep").unwrap().unwrap().len(), 2);
}

#[test]
fn paths_that_are_no_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let said = Gguf::open(dir.path()).unwrap_err().to_string();
    assert!(
        said.contains("cannot be opened: it is a directory"),
        "{said}"
    );
    let said = Gguf::open(dir.path().join("a\nb")).unwrap_err().to_string();
    assert!(said.contains("a\\nb: cannot be opened"), "{said}");
    assert_eq!(said.lines().count(), 1);
}
