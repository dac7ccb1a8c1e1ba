//! What is written comes back: every metadata type, tensors, versions, alignment, split sets, and
//! getters whose errors name the key.

use haversack_gguf::{Gguf, GgufError, GgufWriter, Meta, Value, ValueType};
use haversack_kernels::format::WeightType;
use haversack_testing::models::Spec;
use std::fs;
use std::io::Write;
use std::path::Path;

/// Tensor `i` is filled with the byte `i + 1`.
fn numbered(
    w: &GgufWriter,
) -> impl FnMut(&haversack_gguf::write::Planned, &mut dyn Write) -> std::io::Result<()> + use<> {
    let names: Vec<String> = w.tensors().iter().map(|t| t.name.clone()).collect();
    move |t, out| {
        let i = names.iter().position(|n| *n == t.name).unwrap();
        out.write_all(&vec![i as u8 + 1; t.bytes as usize])
    }
}

fn write(w: &GgufWriter, path: &Path) {
    w.write_file(path, &mut numbered(w)).unwrap();
}

fn all_types() -> GgufWriter {
    let mut w = GgufWriter::new();
    w.set("u8", 200u8)
        .set("i8", -5i8)
        .set("u16", 60_000u16)
        .set("i16", -30_000i16)
        .set("u32", 4_000_000_000u32)
        .set("i32", -2_000_000_000i32)
        .set("f32", 1.5f32)
        .set("bool", true)
        .set("str", "größe")
        .set("u64", u64::MAX)
        .set("i64", i64::MIN)
        .set("f64", 2.5f64)
        .set("bytes", vec![0xffu8, 0xfe])
        .set("words", Meta::array(["a", "", "ccc"]))
        .set("numbers", Meta::array([1u8, 2, 255]))
        .set("signed", Meta::array([-1i32, 2]))
        .set("wide", Meta::array([1i64, -1]))
        .set("floats", Meta::array([0.5f32, f32::NAN]))
        .set("doubles", Meta::array([0.25f64]))
        .set("flags", Meta::array([true, false]))
        .set("none", Meta::Array(ValueType::Str, vec![]))
        .set(
            "nested",
            Meta::array([Meta::array([1u8]), Meta::Array(ValueType::Str, vec![])]),
        );
    w.tensor("a", WeightType::F32, &[3]).unwrap();
    w.tensor("b", WeightType::Q4_K, &[256, 2]).unwrap();
    w.tensor("c", WeightType::F16, &[2, 3, 4, 5]).unwrap();
    w.tensor("d", WeightType::Q8_0, &[32, 1, 2]).unwrap();
    w
}

#[test]
fn every_type_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    for (version, align) in [(3, 32), (2, 32), (3, 64), (3, 8), (3, 65536)] {
        let path = dir.path().join("m.gguf");
        let mut w = all_types();
        w.version(version);
        if align != 32 {
            w.align(align);
        }
        write(&w, &path);
        let g = Gguf::open(&path).unwrap();
        assert_eq!(g.version(), version);
        assert_eq!(g.alignment(), u64::from(align));
        assert_eq!(g.parts(), 1);
        assert_eq!(g.file_bytes(), fs::metadata(&path).unwrap().len());

        assert_eq!(g.u32("u8").unwrap(), Some(200));
        assert!(matches!(g.value("i8"), Some(Value::I8(-5))));
        assert_eq!(g.u32("u16").unwrap(), Some(60_000));
        assert!(matches!(g.value("i16"), Some(Value::I16(-30_000))));
        assert_eq!(g.u32("u32").unwrap(), Some(4_000_000_000));
        assert!(matches!(g.value("i32"), Some(Value::I32(-2_000_000_000))));
        assert_eq!(g.u64("u64").unwrap(), Some(u64::MAX));
        assert!(matches!(g.value("i64"), Some(Value::I64(i64::MIN))));
        assert_eq!(g.f32("f32").unwrap(), Some(1.5));
        assert_eq!(g.f32("f64").unwrap(), Some(2.5));
        assert_eq!(g.bool("bool").unwrap(), Some(true));
        assert_eq!(g.str("str").unwrap(), Some("größe"));
        assert_eq!(g.u32("absent").unwrap(), None);
        assert_eq!(g.str("absent").unwrap(), None);
        assert!(g.array("absent").unwrap().is_none());

        let array = |key| g.array(key).unwrap().unwrap();
        let words: Vec<&[u8]> = array("words").strs().unwrap().collect();
        assert_eq!(words, [&b"a"[..], b"", b"ccc"]);
        assert_eq!(array("words").strs().unwrap().len(), 3);
        assert!(array("numbers").u32s().unwrap().eq([1, 2, 255]));
        assert!(array("numbers").i32s().unwrap().eq([1, 2, 255]));
        assert!(array("signed").i32s().unwrap().eq([-1, 2]));
        assert!(array("wide").i32s().unwrap().eq([1, -1]));
        let floats: Vec<f32> = array("floats").f32s().unwrap().collect();
        assert!(floats[0] == 0.5 && floats[1].is_nan());
        assert!(array("doubles").f32s().unwrap().eq([0.25]));
        assert!(array("flags").bools().unwrap().eq([true, false]));
        assert!(array("none").is_empty() && array("none").strs().unwrap().next().is_none());
        assert_eq!(array("nested").elem(), ValueType::Array);
        assert_eq!(array("nested").len(), 2);
        assert_eq!(g.metadata().len(), w_keys(align));
        assert_eq!(g.metadata().next().unwrap().0, "u8");

        assert_eq!(g.tensors().len(), 4);
        for (i, t) in g.tensors().iter().enumerate() {
            let bytes = g.bytes(t);
            assert_eq!(bytes.len() as u64, t.byte_len());
            assert!(bytes.iter().all(|&b| b == i as u8 + 1), "{}", t.name);
            assert_eq!(g.tensor(&t.name).unwrap().name, t.name);
        }
        assert!(g.tensor("e").is_none());
        let c = g.tensor("c").unwrap();
        assert_eq!((c.cols(), c.rows(), c.shape()), (2, 60, &[2, 3, 4, 5][..]));
        assert_eq!(g.tensor("b").unwrap().byte_len(), 288);
        assert_eq!(g.tensor("a").unwrap().rows(), 1);
    }
}

fn w_keys(align: u32) -> usize {
    if align == 32 { 22 } else { 23 }
}

#[test]
fn a_wrong_type_names_the_key_and_both_types() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    write(&all_types(), &path);
    let g = Gguf::open(&path).unwrap();
    fn said<T>(r: Result<T, GgufError>) -> String {
        r.err().expect("an error").to_string()
    }
    let cases = [
        (said(g.u32("str")), "str is of type string; accepted: u32"),
        (said(g.u32("f32")), "f32 is of type f32; accepted: u32"),
        (said(g.u32("bool")), "bool is of type bool; accepted: u32"),
        (said(g.u32("words")), "words is of type array of string"),
        (said(g.u32("i8")), "i8 is -5; accepted: 0 to 4294967295"),
        (
            said(g.u32("u64")),
            "u64 is 18446744073709551615; accepted: 0 to",
        ),
        (said(g.f32("u8")), "u8 is of type u8; accepted: f32"),
        (said(g.bool("u8")), "u8 is of type u8; accepted: bool"),
        (said(g.str("u8")), "u8 is of type u8; accepted: string"),
        (
            said(g.str("bytes")),
            "bytes is \"\\xff\\xfe\"; accepted: valid UTF-8",
        ),
        (
            said(g.array("str")),
            "str is of type string; accepted: array",
        ),
        (
            said(g.array("words").unwrap().unwrap().u32s()),
            "words is of type array of string",
        ),
        (
            said(g.array("flags").unwrap().unwrap().u32s()),
            "flags is of type array of bool",
        ),
        (
            said(g.array("numbers").unwrap().unwrap().strs()),
            "numbers is of type array of u8",
        ),
        (
            said(g.array("numbers").unwrap().unwrap().f32s()),
            "numbers is of type array of u8",
        ),
        (
            said(g.array("wide").unwrap().unwrap().u32s()),
            "item 1 of wide is -1; accepted: 0 to",
        ),
        (
            said(g.array("nested").unwrap().unwrap().u32s()),
            "nested is of type array of array",
        ),
        (
            said(g.array("nested").unwrap().unwrap().strs()),
            "nested is of type array of array",
        ),
    ];
    for (said, want) in cases {
        assert!(said.contains(want), "{said:?} should say {want:?}");
        assert!(said.starts_with(path.to_str().unwrap()), "{said}");
        assert_eq!(said.lines().count(), 1);
    }
}

/// Some programs pad a file, some publish vocabularies alone.
#[test]
fn odd_but_sound_files_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let w = all_types();
    let mut bytes = w.to_bytes(&mut numbered(&w)).unwrap();
    bytes.extend([7; 1000]);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(Gguf::open(&path).unwrap().tensors().len(), 4);

    let mut w = GgufWriter::new();
    w.set("general.architecture", "llama");
    write(&w, &path);
    let g = Gguf::open(&path).unwrap();
    assert!(g.tensors().is_empty());
    assert_eq!(g.str("general.architecture").unwrap(), Some("llama"));
    write(&GgufWriter::new(), &path);
    assert_eq!(Gguf::open(&path).unwrap().metadata().len(), 0);
    // Without the padding that only tensors would need.
    fs::write(&path, &fs::read(&path).unwrap()[..24]).unwrap();
    assert!(Gguf::open(&path).is_ok());
}

#[test]
fn a_split_set_opens_by_any_part() {
    let dir = tempfile::tempdir().unwrap();
    let spec = Spec::named("llama").unwrap();
    let whole_path = dir.path().join("whole.gguf");
    spec.write_file(&whole_path).unwrap();
    let whole = Gguf::open(&whole_path).unwrap();
    let parts = spec.write_split(&dir.path().join("set"), 3).unwrap();
    assert_eq!(parts[1], dir.path().join("set-00002-of-00003.gguf"));
    for path in &parts {
        let g = Gguf::open(path).unwrap();
        assert_eq!(g.parts(), 3);
        assert!(g.part_paths().eq(parts.iter().map(|p| p.as_path())));
        assert_eq!(g.path(), parts[0]);
        assert_eq!(g.str("general.architecture").unwrap(), Some("llama"));
        assert_eq!(g.tensors().len(), whole.tensors().len());
        for t in whole.tensors() {
            let ours = g.tensor(&t.name).unwrap();
            assert_eq!(ours.shape(), t.shape());
            assert_eq!(g.bytes(ours), whole.bytes(t), "{}", t.name);
        }
        let bytes: u64 = parts.iter().map(|p| fs::metadata(p).unwrap().len()).sum();
        assert_eq!(g.file_bytes(), bytes);
    }
}

#[test]
fn a_split_set_that_does_not_fit_together_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |path: &Path, want: &str| {
        let said = Gguf::open(path).expect_err(want).to_string();
        assert!(said.contains(want), "{said:?} should say {want:?}");
    };
    let part = |no: u16, count: u16, total: i32, tensor: &str| {
        let mut w = GgufWriter::new();
        w.set("split.no", no)
            .set("split.count", count)
            .set("split.tensors.count", total)
            .tensor(tensor, WeightType::F32, &[8])
            .unwrap();
        w
    };
    let named = |n: u32| dir.path().join(format!("s-0000{n}-of-00002.gguf"));
    write(&part(0, 2, 2, "a"), &named(1));
    refused(&named(1), "s-00002-of-00002.gguf: cannot be opened");

    write(&part(1, 2, 2, "b"), &named(2));
    assert_eq!(Gguf::open(named(2)).unwrap().tensors().len(), 2);

    write(&part(1, 2, 2, "a"), &named(2));
    refused(&named(1), "tensor a appears twice");
    write(&part(1, 3, 2, "b"), &named(2));
    refused(&named(1), "00002.gguf: split.count is 3; accepted: 2");
    write(&part(0, 2, 2, "b"), &named(2));
    refused(&named(1), "split.no is 0; accepted: 1");
    write(&part(1, 2, 3, "b"), &named(2));
    refused(&named(1), "split.tensors.count is 3; accepted: 2");
    write(&part(0, 2, 3, "a"), &named(1));
    refused(&named(1), "split.tensors.count is 3; accepted: 2, as many");
    write(&part(0, 2, -1, "a"), &named(1));
    refused(&named(1), "split.tensors.count is -1; accepted: 0 to");
    write(&all_types(), &named(2));
    write(&part(0, 2, 2, "a"), &named(1));
    refused(&named(1), "split.count is absent; accepted: 2");
    fs::write(named(2), b"GGUF").unwrap();
    refused(
        &named(1),
        "s-00002-of-00002.gguf: the version needs 4 bytes",
    );

    // A part under another name has no siblings we could name.
    let other = dir.path().join("other.gguf");
    write(&part(0, 2, 2, "a"), &other);
    refused(&other, "must be called NAME-00001-of-00002.gguf");
    write(&part(5, 2, 2, "a"), &other);
    refused(&other, "split.no is 5; accepted: 0 to 1");
    write(&part(0, 50_000, 2, "a"), &other);
    refused(&other, "split.count is 50000; accepted: at most 1000");
    let mut w = part(0, 2, 2, "a");
    w.set("split.count", "two");
    write(&w, &other);
    refused(&other, "split.count is of type string");
    // One of one is a whole model, whatever it is called.
    write(&part(0, 1, 1, "a"), &other);
    assert_eq!(Gguf::open(&other).unwrap().parts(), 1);
}

#[test]
fn the_writer_refuses_what_could_not_be_read() {
    let mut w = GgufWriter::new();
    assert!(w.tensor("t", WeightType::Q4_K, &[255]).is_err());
    assert!(w.tensor("t", WeightType::F32, &[]).is_err());
    assert!(w.tensor("t", WeightType::F32, &[1 << 40, 1 << 40]).is_err());
    w.tensor("t", WeightType::F32, &[2]).unwrap();
    let short = w.to_bytes(&mut |_, out| out.write_all(&[0; 7]));
    assert!(
        short
            .unwrap_err()
            .to_string()
            .contains("7 bytes written, 8")
    );
    w.set("mixed", Meta::Array(ValueType::U8, vec![Meta::U32(1)]));
    assert!(w.to_bytes(&mut numbered(&w)).is_err());
}
