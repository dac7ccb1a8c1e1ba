//! Files that are not an encoder, or not quite: each is refused in one line that says why, and none
//! costs more memory than its header.

use crate::encoder_common;

use encoder_common::{PIECES, Shape, VOCAB, write_sparse};
use haversack_engine::encoder::safetensors::SafeTensorsHeader;
use haversack_engine::encoder::{Encoder, EncoderError, EncoderOptions};
use std::path::Path;

const QUERY: &str = "encoder.layer.3.attention.self.query.weight";

fn refusal(dir: &Path) -> String {
    match Encoder::open(dir, &EncoderOptions::default()) {
        Ok(_) => panic!("it was opened"),
        Err(e) => {
            let line = e.to_string();
            assert_eq!(line.lines().count(), 1, "{line}");
            assert!(line.len() < 400, "{line}");
            line
        }
    }
}

/// What opening says of a header in front of `data` bytes of zeros.
fn of_header(header: &str, data: u64) -> String {
    let dir = tempfile::tempdir().unwrap();
    write_sparse(dir.path(), header.len() as u64, header.as_bytes(), data);
    refusal(dir.path())
}

#[track_caller]
fn expect(line: &str, words: &[&str]) {
    for word in words {
        assert!(line.contains(word), "{line:?} does not say {word:?}");
    }
}

/// The ground the cases stand on: the same file with nothing wrong is opened, and its zeros have no
/// direction.
#[test]
fn the_right_shape_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let (header, data) = Shape::default().header();
    write_sparse(dir.path(), header.len() as u64, header.as_bytes(), data);
    let encoder = Encoder::open(dir.path(), &EncoderOptions::default()).unwrap();
    let e = encoder.embed("one two").unwrap_err();
    assert!(matches!(e, EncoderError::NoDirection), "{e}");

    // Spaces behind the header, as writers pad it.
    let padded = format!("{header}       ");
    write_sparse(dir.path(), padded.len() as u64, padded.as_bytes(), data);
    assert!(Encoder::open(dir.path(), &EncoderOptions::default()).is_ok());
}

#[test]
fn lengths_that_cannot_be() {
    let (header, data) = Shape::default().header();
    let dir = tempfile::tempdir().unwrap();
    for (length, words) in [
        (u64::MAX, ["18446744073709551615", "1048576"]),
        (1 << 40, ["1099511627776", "1048576"]),
        ((1 << 20) + 1, ["1048577", "1048576"]),
        (0, ["should have {", "byte 0"]),
        (7, ["inside a string", "model.safetensors"]),
    ] {
        write_sparse(dir.path(), length, header.as_bytes(), data);
        expect(&refusal(dir.path()), &words);
    }
    // Longer than the file.
    write_sparse(dir.path(), 90_000, header.as_bytes(), 0);
    expect(&refusal(dir.path()), &["90000", "the file has"]);
    for len in 0..8 {
        std::fs::write(dir.path().join("model.safetensors"), vec![0; len]).unwrap();
        expect(&refusal(dir.path()), &["too few"]);
    }
}

#[test]
fn truncated_and_padded_data() {
    let (header, data) = Shape::default().header();
    for less in [1, 4, 1 << 20, data] {
        expect(&of_header(&header, data - less), &["not within the"]);
    }
    expect(&of_header(&header, data + 5), &["5 bytes at the end"]);
}

#[test]
fn tensors_that_are_not_what_they_should_be() {
    type Case = (fn(&mut Shape), &'static [&'static str]);
    let cases: [Case; 7] = [
        (|s| drop(s.tensors.remove(QUERY)), &[QUERY, "is missing"]),
        (
            |s| s.tensors.get_mut(QUERY).unwrap().0 = "F16".into(),
            &[QUERY, "F16", "F32 is needed"],
        ),
        (
            |s| s.tensors.get_mut(QUERY).unwrap().0 = "I32".into(),
            &[QUERY, "I32", "F32 is needed"],
        ),
        (
            |s| s.tensors.get_mut(QUERY).unwrap().1 = vec![384, 768],
            &[QUERY, "[384, 768]", "[384, 384]"],
        ),
        (
            |s| s.tensors.get_mut(QUERY).unwrap().1 = vec![384 * 384],
            &[QUERY, "[147456]"],
        ),
        (
            |s| {
                s.tensors
                    .get_mut("embeddings.word_embeddings.weight")
                    .unwrap()
                    .1 = vec![9, 385]
            },
            &["word_embeddings", "[9, 385]", "[any, 384]"],
        ),
        (
            |s| {
                s.tensors
                    .get_mut("embeddings.word_embeddings.weight")
                    .unwrap()
                    .1 = vec![8, 384]
            },
            &["vocab.txt", "9 pieces", "for 8"],
        ),
    ];
    for (change, words) in cases {
        let mut shape = Shape::default();
        change(&mut shape);
        let (header, data) = shape.header();
        expect(&of_header(&header, data), words);
    }
}

/// Small headers, each wrong in one way, in front of eight bytes.
#[test]
fn extents_and_grammar() {
    let tensor = |name: &str, dtype: &str, shape: &str, offsets: &str| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
    };
    let a = tensor("a", "F32", "[1]", "[0,4]");
    let one = |item: String| format!("{{{item}}}");
    let two = |item: String| format!("{{{a},{item}}}");
    let b = |offsets: &str| tensor("b", "F32", "[1]", offsets);
    let cases = [
        (two(b("[2,6]")), "b overlaps"),
        (two(b("[0,4]")), "overlaps"),
        (two(tensor("b", "F32", "[0]", "[2,2]")), "overlaps"),
        (two(b("[8,4]")), "bytes 8 to 4"),
        (two(b("[8,12]")), "bytes 8 to 12"),
        (two(b("[4,18446744073709551615]")), "not within"),
        (two(b("[4,99999999999999999999]")), "too large"),
        (two(b("[4]")), "two data_offsets"),
        (two(b("[4,8,9]")), "more than 2 numbers"),
        (two(b("[-4,8]")), "whole number"),
        (two(b("[4.0,8]")), "should have ]"),
        (
            two(tensor("b", "F32", "[2]", "[4,8]")),
            "does not fill 4 bytes",
        ),
        (
            two(tensor("b", "F32", "[4294967296,4294967296]", "[4,8]")),
            "does not fill",
        ),
        (
            two(tensor("b", "F32", "[1,1,1,1,1]", "[4,8]")),
            "more than 4 numbers",
        ),
        (
            two(tensor("b", "Q4_0", "[1]", "[4,8]")),
            "Q4_0 is not known",
        ),
        (two(tensor("a", "F32", "[1]", "[4,8]")), "a is there twice"),
        (
            one(tensor("b", "F32", "[1]", "[4,8]")),
            "4 bytes before tensor b",
        ),
        (one(a.clone()), "4 bytes at the end"),
        (two(r#""b":{}"#.into()), "are needed"),
        (
            two(r#""b":{"dtype":"F32","dtype":"F32"}"#.into()),
            "dtype is there twice",
        ),
        (two(r#""b":{"size":4}"#.into()), "unknown field size"),
        (two(r#""b":[]"#.into()), "should have {"),
        (two(r#""__metadata__":{"a":{}}"#.into()), "should have \""),
        (two("\"b\n\":{}".into()), "control"),
        (two(String::new()), "should have \""),
        (format!("{{{a}}} x"), "the end of the header"),
        ("[".repeat(1000), "should have {"),
        ("{".repeat(1000), "should have \""),
        (r#"{"a\"#.into(), "inside a string"),
        ("{}".into(), "8 bytes at the end"),
    ];
    for (header, words) in cases {
        expect(&of_header(&header, 8), &[words]);
    }
    let many: Vec<String> = (0..5000)
        .map(|i| tensor(&i.to_string(), "F32", "[0]", "[0,0]"))
        .collect();
    expect(
        &of_header(&one(many.join(",")), 8),
        &["more than 4096 tensors"],
    );
    let long = tensor(&"n".repeat(100_000), "F32", "[3]", "[0,8]");
    expect(&of_header(&one(long), 8), &["does not fill"]);
    let dir = tempfile::tempdir().unwrap();
    write_sparse(dir.path(), 2, b"{\xff", 8);
    expect(&refusal(dir.path()), &["not UTF-8"]);
}

/// Every byte of a small header changed to every kind of byte: never a panic, and what is accepted
/// keeps its promises.
#[test]
fn changed_bytes_never_panic() {
    let header = concat!(
        r#"{"__metadata__":{"k":"v\"é"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"#,
        r#""b":{"dtype":"F16","shape":[2,1],"data_offsets":[4,8]}}"#
    );
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&[0; 8]);
    assert!(SafeTensorsHeader::parse(&file).is_ok());
    let (mut accepted, end) = (0, file.len());
    for at in 0..8 + header.len() {
        for byte in *b"\0 \"\\{}[],:019-aF\x7f\x80\xc3\xff" {
            let mut bad = file.clone();
            bad[at] = byte;
            if let Ok(header) = SafeTensorsHeader::parse(&bad) {
                accepted += 1;
                for name in ["a", "b"] {
                    let inside = |t: &haversack_engine::encoder::safetensors::SafeTensor<'_>| {
                        t.start <= t.end && t.end <= end
                    };
                    assert!(header.get(name).is_none_or(inside));
                }
            }
        }
        assert!(SafeTensorsHeader::parse(&file[..at]).is_err());
    }
    println!("{accepted} changes were accepted");
}

#[test]
fn files_that_are_not_there_or_not_files() {
    let dir = tempfile::tempdir().unwrap();
    expect(&refusal(dir.path()), &["model.safetensors", "No such file"]);
    std::fs::create_dir(dir.path().join("model.safetensors")).unwrap();
    expect(&refusal(dir.path()), &["it is a directory"]);
    std::fs::remove_dir(dir.path().join("model.safetensors")).unwrap();
    let (header, data) = Shape::default().header();
    write_sparse(dir.path(), header.len() as u64, header.as_bytes(), data);
    let vocab = dir.path().join("vocab.txt");
    for (text, words) in [
        (String::new(), "no piece [UNK]"),
        (VOCAB.replace("[SEP]", "[EOS]"), "no piece [SEP]"),
        (format!("{VOCAB}five\n"), "10 pieces"),
        (VOCAB.replace('\n', " "), "no piece [UNK]"),
    ] {
        std::fs::write(&vocab, text).unwrap();
        expect(&refusal(dir.path()), &["vocab.txt", words]);
    }
    std::fs::remove_file(&vocab).unwrap();
    expect(&refusal(dir.path()), &["vocab.txt", "No such file"]);
    assert_eq!(VOCAB.lines().count(), PIECES);
}
