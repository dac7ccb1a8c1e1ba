//! Defective tokenizer metadata: each file either is refused with one line that names the key, or
//! loads and then encodes hostile text within its vocabulary. Never a panic, never a hang.

use haversack_gguf::Gguf;
use haversack_text::tokenizer::{EncodeOptions, Tokenizer};
use std::collections::BTreeMap;
use std::path::Path;

use crate::tokenizer_common;

/// A metadata value as it lies in the file: type id and bytes.
#[derive(Clone)]
struct Item(u32, Vec<u8>);

fn uint(value: u32) -> Item {
    Item(4, value.to_le_bytes().to_vec())
}

fn int(value: i32) -> Item {
    Item(5, value.to_le_bytes().to_vec())
}

fn flag(value: bool) -> Item {
    Item(7, vec![u8::from(value)])
}

fn counted(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

fn text(value: &str) -> Item {
    Item(8, counted(value.as_bytes()))
}

fn array<T>(kind: u32, items: &[T], bytes: impl Fn(&T) -> Vec<u8>) -> Item {
    let mut out = kind.to_le_bytes().to_vec();
    out.extend((items.len() as u64).to_le_bytes());
    items.iter().for_each(|item| out.extend(bytes(item)));
    Item(9, out)
}

fn strs(items: &[Vec<u8>]) -> Item {
    array(8, items, |s| counted(s))
}

fn words(items: &[&str]) -> Item {
    array(8, items, |s| counted(s.as_bytes()))
}

fn ints(items: &[i32]) -> Item {
    array(5, items, |n| n.to_le_bytes().to_vec())
}

fn uints(items: &[u32]) -> Item {
    array(4, items, |n| n.to_le_bytes().to_vec())
}

fn floats(items: &[f32]) -> Item {
    array(6, items, |n| n.to_le_bytes().to_vec())
}

type Metadata = BTreeMap<String, Item>;

/// Metadata and an embedding of `rows` rows of four values.
fn write(path: &Path, metadata: &Metadata, rows: usize) {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend(1u64.to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, Item(kind, bytes)) in metadata {
        out.extend(counted(key.as_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend(bytes);
    }
    out.extend(counted(b"token_embd.weight"));
    out.extend(2u32.to_le_bytes());
    out.extend(4u64.to_le_bytes());
    out.extend((rows as u64).to_le_bytes());
    out.extend([0u8; 12]);
    out.resize(out.len().next_multiple_of(32), 0);
    out.resize(out.len() + rows * 16, 0);
    std::fs::write(path, out).unwrap();
}

struct Base {
    metadata: Metadata,
    tokens: Vec<Vec<u8>>,
}

impl Base {
    fn new(model: &str, tokens: Vec<Vec<u8>>, types: &[i32]) -> Base {
        let mut base = Base {
            metadata: Metadata::new(),
            tokens,
        };
        base.set("general.architecture", text("llama"));
        base.set("tokenizer.ggml.model", text(model));
        base.set("tokenizer.ggml.tokens", strs(&base.tokens));
        base.set("tokenizer.ggml.token_type", ints(types));
        base
    }

    fn set(&mut self, key: &str, item: Item) {
        self.metadata.insert(key.to_string(), item);
    }
}

/// 256 bytes, two merges, an end.
fn bpe() -> Base {
    let spelled = |b: u32| match b {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => b,
        0..=0x20 => 0x100 + b,
        0x7F..=0xA0 => 0x121 + b - 0x7F,
        _ => 0x143,
    };
    let mut tokens: Vec<Vec<u8>> = (0..256)
        .map(|b| char::from_u32(spelled(b)).unwrap().to_string().into_bytes())
        .collect();
    tokens.extend(["ab", "abab", "<|im_end|>"].map(|t| t.as_bytes().to_vec()));
    let mut types = vec![1; 258];
    types.push(3);
    let mut base = Base::new("gpt2", tokens, &types);
    base.set("tokenizer.ggml.pre", text("gpt-2"));
    base.set("tokenizer.ggml.merges", words(&["a b", "ab ab"]));
    base.set("tokenizer.ggml.bos_token_id", uint(258));
    base.set("tokenizer.ggml.eos_token_id", uint(258));
    base.set("tokenizer.ggml.add_bos_token", flag(true));
    base
}

fn spm() -> Base {
    let mut tokens = vec![b"<unk>".to_vec(), b"<s>".to_vec(), b"</s>".to_vec()];
    tokens.extend((0..256).map(|b| format!("<0x{b:02X}>").into_bytes()));
    tokens.extend(["▁", "a", "b", "ab", "▁ab", "s", "<s", "s>"].map(|t| t.as_bytes().to_vec()));
    let mut types = vec![2, 3, 3];
    types.extend([6; 256]);
    types.extend([1; 8]);
    let scores: Vec<f32> = (0..tokens.len()).map(|i| -(i as f32)).collect();
    let mut base = Base::new("llama", tokens, &types);
    base.set("tokenizer.ggml.scores", floats(&scores));
    base
}

/// Refused with the key in one line, or loaded and put to work.
fn outcome(path: &Path) -> Result<Tokenizer, String> {
    let loaded = Gguf::open(path).map_err(|e| e.to_string());
    let tokenizer = loaded.and_then(|g| Tokenizer::from_gguf(&g).map_err(|e| e.to_string()));
    let tokenizer = match tokenizer {
        Ok(tokenizer) => tokenizer,
        Err(error) => {
            assert!(!error.contains('\n') && error.len() < 2000, "{error}");
            return Err(error);
        }
    };
    let hostile = [
        "ab".repeat(1 << 15),
        " ".repeat(1 << 15),
        "</s><|im_end|><0x0A>é🙂\0 \n\r\n1'll".repeat(500),
    ];
    for text in hostile {
        for parse_special in [false, true] {
            let options = EncodeOptions {
                add_special: true,
                parse_special,
            };
            let ids = tokenizer.encode(&text, options).unwrap();
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.len()));
            tokenizer.decode(&ids).unwrap();
        }
    }
    for id in 0..tokenizer.len() as u32 + 2 {
        tokenizer.piece_bytes(id);
        tokenizer.is_end(id);
    }
    Ok(tokenizer)
}

fn check(name: &str, base: &Base, rows: usize) -> Result<Tokenizer, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(format!("{name}.gguf"));
    write(&path, &base.metadata, rows);
    outcome(&path)
}

/// A sound file to start from.
type Start = fn() -> Base;
/// Keys and their new values; none removes the key.
type Edits<'a> = Vec<(&'a str, Option<Item>)>;

const T: &str = "tokenizer.ggml.tokens";

#[test]
fn sound_files_load() {
    for base in [bpe(), spm()] {
        let tokenizer = check("sound", &base, base.tokens.len()).unwrap();
        let ids = tokenizer.encode("ab ab", EncodeOptions::default()).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), "ab ab");
    }
}

/// The pieces `<s` and `s>` lead merging straight to `<s>`; text must not get there.
#[test]
fn merging_never_makes_a_control_token() {
    let base = spm();
    let tokenizer = check("control", &base, base.tokens.len()).unwrap();
    let ids = tokenizer.encode("<s>", EncodeOptions::default()).unwrap();
    assert!(ids.iter().all(|&id| !tokenizer.is_control(id)), "{ids:?}");
    assert_eq!(tokenizer.decode(&ids).unwrap(), "<s>");
}

#[test]
fn refused_with_the_key() {
    let (tokens, types) = (T, "tokenizer.ggml.token_type");
    let (scores, merges) = ("tokenizer.ggml.scores", "tokenizer.ggml.merges");
    let model = "tokenizer.ggml.model";
    let (bpe_len, spm_len) = (bpe().tokens.len(), spm().tokens.len());
    let mut nan = vec![0.0; spm_len];
    nan[7] = f32::NAN;
    let bad_byte = |name: &str| {
        let mut list = spm().tokens;
        list[20] = name.as_bytes().to_vec();
        strs(&list)
    };
    let cases: Vec<(&str, Start, &str, Option<Item>)> = vec![
        ("no model", bpe, model, None),
        ("unknown model", bpe, model, Some(text("quux\u{1b}[31m\n"))),
        (
            "model of a megabyte",
            bpe,
            model,
            Some(text(&"q".repeat(1 << 20))),
        ),
        ("model is a number", bpe, model, Some(uint(1))),
        ("no tokens key", bpe, tokens, None),
        ("tokens are numbers", bpe, tokens, Some(uints(&[1, 2]))),
        ("tokens is a string", bpe, tokens, Some(text("a"))),
        ("tokens is empty", bpe, tokens, Some(strs(&[]))),
        (
            "one token too few",
            bpe,
            tokens,
            Some(strs(&bpe().tokens[1..])),
        ),
        ("types too short", bpe, types, Some(ints(&[1; 10]))),
        (
            "types too long",
            bpe,
            types,
            Some(ints(&vec![1; bpe_len + 1])),
        ),
        (
            "types are floats",
            bpe,
            types,
            Some(floats(&vec![1.0; bpe_len])),
        ),
        ("types is a number", bpe, types, Some(int(1))),
        ("no merges", bpe, merges, None),
        ("merges are numbers", bpe, merges, Some(ints(&[1, 2]))),
        ("merges is a string", bpe, merges, Some(text("a b"))),
        ("pre is a number", bpe, "tokenizer.ggml.pre", Some(uint(3))),
        (
            "negative eos",
            bpe,
            "tokenizer.ggml.eos_token_id",
            Some(int(-5)),
        ),
        (
            "eos is a string",
            bpe,
            "tokenizer.ggml.eos_token_id",
            Some(text("2")),
        ),
        (
            "eot is a list",
            bpe,
            "tokenizer.ggml.eot_token_id",
            Some(ints(&[2])),
        ),
        (
            "add_bos is a number",
            bpe,
            "tokenizer.ggml.add_bos_token",
            Some(uint(1)),
        ),
        ("no scores", spm, scores, None),
        ("scores too short", spm, scores, Some(floats(&[0.0; 10]))),
        ("scores are strings", spm, scores, Some(words(&["0"; 5]))),
        ("a score is NaN", spm, scores, Some(floats(&nan))),
        ("byte token ZZ", spm, tokens, Some(bad_byte("<0xZZ>"))),
        ("byte token -1", spm, tokens, Some(bad_byte("<0x-1>"))),
    ];
    for (name, base, key, item) in cases {
        let mut base = base();
        match item {
            Some(item) => base.set(key, item),
            None => drop(base.metadata.remove(key)),
        }
        let error = check("defect", &base, base.tokens.len()).err();
        let error = error.unwrap_or_else(|| panic!("{name}: loaded"));
        assert!(error.contains(key), "{name}: {error}");
    }
}

#[test]
fn tokens_and_rows_must_agree() {
    let base = bpe();
    for rows in [base.tokens.len() - 1, base.tokens.len() + 1] {
        let error = check("rows", &base, rows).err().unwrap();
        assert!(
            error.contains(T) && error.contains(&rows.to_string()),
            "{error}"
        );
    }
}

#[test]
fn odd_but_harmless() {
    let (types, merges) = ("tokenizer.ggml.token_type", "tokenizer.ggml.merges");
    let (len, spm_len) = (bpe().tokens.len(), spm().tokens.len());
    let all = |piece: &[u8]| strs(&vec![piece.to_vec(); len]);
    let long = |piece: Vec<u8>| {
        let mut list = bpe().tokens;
        list[258] = piece;
        strs(&list)
    };
    let cases: Vec<(&str, Start, Edits<'_>)> = vec![
        (
            "pre unknown",
            bpe,
            vec![("tokenizer.ggml.pre", Some(text("quux")))],
        ),
        ("no pre", bpe, vec![("tokenizer.ggml.pre", None)]),
        (
            "types of 99",
            bpe,
            vec![(types, Some(ints(&vec![99; len])))],
        ),
        (
            "types negative",
            bpe,
            vec![(types, Some(ints(&vec![-1; len])))],
        ),
        ("no types", bpe, vec![(types, None)]),
        ("all control", bpe, vec![(types, Some(ints(&vec![3; len])))]),
        (
            "all user-defined",
            bpe,
            vec![(types, Some(ints(&vec![4; len])))],
        ),
        ("all bytes", bpe, vec![(types, Some(ints(&vec![6; len])))]),
        ("all the same", bpe, vec![(T, Some(all(b"a")))]),
        ("all empty", bpe, vec![(T, Some(all(b"")))]),
        (
            "all empty, user-defined",
            bpe,
            vec![(T, Some(all(b""))), (types, Some(ints(&vec![4; len])))],
        ),
        ("not UTF-8", bpe, vec![(T, Some(all(b"\xff\xfe")))]),
        (
            "half a character, user-defined",
            bpe,
            vec![(T, Some(all(b"\xa9"))), (types, Some(ints(&vec![4; len])))],
        ),
        (
            "a token of 1 MiB",
            bpe,
            vec![(T, Some(long(vec![b'a'; 1 << 20])))],
        ),
        (
            "bos one past the end",
            bpe,
            vec![("tokenizer.ggml.bos_token_id", Some(uint(len as u32)))],
        ),
        (
            "eos 2^32-1",
            bpe,
            vec![("tokenizer.ggml.eos_token_id", Some(uint(u32::MAX)))],
        ),
        (
            "no eos but wanted",
            bpe,
            vec![
                ("tokenizer.ggml.eos_token_id", None),
                ("tokenizer.ggml.add_eos_token", Some(flag(true))),
            ],
        ),
        (
            "merge without space",
            bpe,
            vec![(merges, Some(words(&["ab", "a b"])))],
        ),
        (
            "empty merges",
            bpe,
            vec![(merges, Some(words(&["", " ", "  ", "a ", " a"])))],
        ),
        (
            "no merges in the list",
            bpe,
            vec![(merges, Some(words(&[])))],
        ),
        (
            "merges of unknown tokens",
            bpe,
            vec![(merges, Some(words(&["qq a", "a qq", "a c"])))],
        ),
        (
            "cyclic merges",
            bpe,
            vec![(merges, Some(words(&["a b", "ab a", "b ab", "aba b"])))],
        ),
        (
            "200,000 equal merges",
            bpe,
            vec![(merges, Some(words(&vec!["a b"; 200_000])))],
        ),
        (
            "merge to a control token",
            bpe,
            vec![(merges, Some(words(&["<|im_end| >", "a b"])))],
        ),
        (
            "equal scores",
            spm,
            vec![("tokenizer.ggml.scores", Some(floats(&vec![0.0; spm_len])))],
        ),
        (
            "endless scores",
            spm,
            vec![(
                "tokenizer.ggml.scores",
                Some(floats(&vec![f32::INFINITY; spm_len])),
            )],
        ),
        (
            "unk out of range",
            spm,
            vec![("tokenizer.ggml.unknown_token_id", Some(uint(4_000_000_000)))],
        ),
        (
            "no byte tokens",
            spm,
            vec![
                (T, Some(strs(&vec![b"x".to_vec(); spm_len]))),
                (types, None),
            ],
        ),
        (
            "space prefix off",
            spm,
            vec![("tokenizer.ggml.add_space_prefix", Some(flag(false)))],
        ),
        (
            "gemma",
            spm,
            vec![("tokenizer.ggml.model", Some(text("gemma")))],
        ),
    ];
    for (name, base, edits) in cases {
        let mut base = base();
        for (key, item) in edits {
            match item {
                Some(item) => base.set(key, item),
                None => drop(base.metadata.remove(key)),
            }
        }
        if let Err(error) = check("odd", &base, base.tokens.len()) {
            panic!("{name}: {error}");
        }
    }
}

/// A folder of hostile files with its `EXPECTED.tsv` (name, why, expected, stage), where one is
/// at hand.
#[test]
fn a_folder_of_hostile_files() {
    let Some(folder) = std::env::var_os("HAVERSACK_TEST_HOSTILE") else {
        tokenizer_common::skipped("HAVERSACK_TEST_HOSTILE names no folder");
        return;
    };
    let folder = Path::new(&folder);
    let table = std::fs::read_to_string(folder.join("EXPECTED.tsv")).unwrap();
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, _, expected, stage, ..] = fields[..] else {
            panic!("{line}")
        };
        let outcome = outcome(&folder.join(name)).err();
        match (expected, stage) {
            ("clean error", "tokenizer") => assert!(outcome.is_some(), "{name} loaded"),
            ("load ok", _) => assert!(outcome.is_none(), "{name}: {outcome:?}"),
            _ => {}
        }
        if stage == "tokenizer" {
            println!("{name}: {}", outcome.as_deref().unwrap_or("loads"));
        }
    }
}
