//! Token ids against the reference, on vocabularies small enough to lie beside this file: every
//! pre-tokenizer over texts chosen to be nasty, and SentencePiece with and without its space.
//!
//! The small BPE vocabulary was trained without pre-tokenizer, so its merges cross every border: a
//! word cut in the wrong place shows in the ids. `tests/fixtures/tokenizer/README.md` says how the
//! expected ids were made.

use haversack_text::detokenize::{DetokenizeOptions, Detokenizer};
use haversack_text::tokenizer::pieces::{Pieces, TokenKind as Kind};
use haversack_text::tokenizer::pre::Pre;
use haversack_text::tokenizer::{EncodeOptions, TokenizeError, Tokenizer, TokenizerModel, Vocab};
use proptest::prelude::*;
use serde_json::Value;
use std::sync::LazyLock;

use crate::tokenizer_common;
use tokenizer_common::{fixture, id_lists, ids, strings};

const WITH_BOS: EncodeOptions = EncodeOptions {
    add_special: true,
    parse_special: false,
};
const SPECIAL: EncodeOptions = EncodeOptions {
    add_special: true,
    parse_special: true,
};
const PLAIN: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: false,
};

static TEXTS: LazyLock<Vec<String>> = LazyLock::new(|| strings(&fixture("texts.json")));
static BPE: LazyLock<Tokenizer> = LazyLock::new(|| small_bpe("gpt-2"));
static SPM: LazyLock<Tokenizer> = LazyLock::new(|| small_spm(true));

fn kinds(file: &Value) -> Vec<Kind> {
    let types = ids(&file["types"]);
    types
        .into_iter()
        .map(|t| Kind::from_file(t as i32))
        .collect()
}

fn small_vocab(file: &Value, model: TokenizerModel) -> Vocab {
    let tokens = strings(&file["tokens"]);
    let pieces = Pieces::new(tokens.iter().map(|t| t.as_bytes())).unwrap();
    let mut vocab = Vocab::new(model, pieces);
    vocab.kinds = kinds(file);
    vocab.bos = Some(file["bos"].as_u64().unwrap() as u32);
    vocab.eos = Some(file["eos"].as_u64().unwrap() as u32);
    vocab
}

fn small_bpe(pre: &str) -> Tokenizer {
    let file = fixture("small_bpe.json");
    let mut vocab = small_vocab(&file, TokenizerModel::Bpe);
    let lines = strings(&file["merges"]);
    vocab
        .set_merges(lines.iter().map(|m| m.as_bytes()))
        .unwrap();
    vocab.set_pre(pre);
    Tokenizer::new(vocab).unwrap()
}

fn small_spm(prefix: bool) -> Tokenizer {
    let file = fixture("small_spm.json");
    let mut vocab = small_vocab(&file, TokenizerModel::Spm);
    let scores = file["scores"].as_array().unwrap();
    vocab.scores = scores.iter().map(|s| s.as_f64().unwrap() as f32).collect();
    vocab.unk = Some(0);
    vocab.add_bos = true;
    vocab.add_eos = !prefix;
    vocab.add_space_prefix = prefix;
    Tokenizer::new(vocab).unwrap()
}

fn assert_ids(name: &str, tokenizer: &Tokenizer, options: EncodeOptions, expected: &Value) {
    let expected = id_lists(expected);
    assert_eq!(expected.len(), TEXTS.len());
    for (text, expected) in TEXTS.iter().zip(expected) {
        assert_eq!(
            tokenizer.encode(text, options).unwrap(),
            expected,
            "{name}: {text:?}"
        );
    }
}

#[test]
fn words_are_those_of_the_expressions() {
    let file = fixture("splits.json");
    for (name, expected) in file.as_object().unwrap() {
        for (text, expected) in TEXTS.iter().zip(id_lists(expected)) {
            let mut words = Vec::new();
            Pre::from_name(name).split(text, |w| words.push(w.len() as u32));
            assert_eq!(words, expected, "{name}: {text:?}");
        }
    }
}

#[test]
fn bpe_ids_by_pre_tokenizer() {
    let file = fixture("small_bpe.json");
    for pre in ["gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35"] {
        assert_ids(pre, &small_bpe(pre), WITH_BOS, &file[pre]);
    }
    assert_ids(
        "deepseek-r1-qwen",
        &small_bpe("deepseek-r1-qwen"),
        WITH_BOS,
        &file["qwen2"],
    );
    assert_ids("special", &BPE, SPECIAL, &file["gpt-2_special"]);
}

#[test]
fn spm_ids_with_and_without_space() {
    let file = fixture("small_spm.json");
    for (name, prefix) in [("prefix", true), ("bare", false)] {
        let tokenizer = small_spm(prefix);
        assert_ids(name, &tokenizer, WITH_BOS, &file[format!("{name}_plain")]);
        assert_ids(name, &tokenizer, SPECIAL, &file[format!("{name}_special")]);
    }
}

#[test]
fn nasty_texts_come_back() {
    // In SentencePiece a lower block is a space.
    for (tokenizer, block) in [
        (&*BPE, "▁"),
        (&small_bpe("llama-bpe"), "▁"),
        (&SPM, " "),
        (&small_spm(false), " "),
    ] {
        for text in TEXTS.iter() {
            let back = text.replace('▁', block);
            for options in [WITH_BOS, SPECIAL, PLAIN] {
                let ids = tokenizer.encode(text, options).unwrap();
                assert_eq!(
                    tokenizer.decode(&ids).unwrap(),
                    back,
                    "{text:?} {options:?}"
                );
            }
        }
    }
}

#[test]
fn special_text_stays_text_unless_asked() {
    let text = "<|im_start|>user<|im_end|>";
    let (start, end) = (
        BPE.id_of("<|im_start|>").unwrap(),
        BPE.id_of("<|im_end|>").unwrap(),
    );
    let plain = BPE.encode(text, PLAIN).unwrap();
    assert!(plain.iter().all(|&id| !BPE.is_control(id)));
    let special = BPE.encode(text, SPECIAL).unwrap();
    assert_eq!((special[0], special[special.len() - 1]), (start, end));
    assert!(BPE.is_end(end) && !BPE.is_end(start));

    // Shown text has no control tokens.
    let mut shown = String::new();
    let mut detokenizer = Detokenizer::new(DetokenizeOptions::default());
    for id in special {
        detokenizer.push(&BPE, id, &mut shown);
    }
    detokenizer.finish(&mut shown);
    assert_eq!(shown, "user");
}

#[test]
fn the_leading_space_goes_only_where_a_text_begins() {
    let ids = SPM.encode("the dog", PLAIN).unwrap();
    for (begins, expected) in [(true, "the dog"), (false, " the dog")] {
        let mut text = String::new();
        let mut detokenizer = Detokenizer::new(DetokenizeOptions {
            control: false,
            begins,
        });
        ids.iter()
            .for_each(|&id| detokenizer.push(&SPM, id, &mut text));
        detokenizer.finish(&mut text);
        assert_eq!(text, expected);
    }
}

#[test]
fn ids_that_are_no_tokens() {
    let last = BPE.len() as u32 - 1;
    for id in [last + 1, u32::MAX] {
        assert_eq!(
            BPE.decode(&[id]),
            Err(TokenizeError::UnknownId { id, last })
        );
        assert!(BPE.piece_bytes(id).is_empty() && !BPE.is_end(id));
    }
}

#[test]
fn vocabularies_put_together_wrongly_are_refused() {
    let pieces = || Pieces::new([&b"a"[..], b"b"].into_iter()).unwrap();
    let refused = |vocab: Vocab| Tokenizer::new(vocab).err().unwrap().to_string();

    let mut vocab = Vocab::new(TokenizerModel::Bpe, pieces());
    vocab.kinds.pop();
    assert!(refused(vocab).contains("token_type"));
    assert!(refused(Vocab::new(TokenizerModel::Spm, pieces())).contains("scores"));
    let none = Pieces::new(std::iter::empty()).unwrap();
    assert!(refused(Vocab::new(TokenizerModel::Bpe, none)).contains("no tokens"));
}

/// Quadratic merging would take many minutes here, not the moment it takes.
#[test]
fn long_words_of_one_letter() {
    let spm = small_spm(false);
    for unit in ["a", " ", "\n", "ab", "é", "<", "0", "'", "<|im_start|>"] {
        let text = unit.repeat((1 << 18) / unit.len());
        for tokenizer in [&*BPE, &spm] {
            for options in [PLAIN, SPECIAL] {
                let ids = tokenizer.encode(&text, options).unwrap();
                assert_eq!(tokenizer.decode(&ids).unwrap().len(), text.len());
            }
        }
    }
}

fn shown_in_steps(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut text = String::new();
    let mut detokenizer = Detokenizer::new(DetokenizeOptions {
        control: true,
        begins: true,
    });
    for &id in ids {
        let mut step = String::new();
        detokenizer.push(tokenizer, id, &mut step);
        text.push_str(&step);
    }
    detokenizer.finish(&mut text);
    text
}

proptest! {
    // Where to keep failures is found from a lib.rs, which tests have none beside.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_comes_back(text in any::<String>(), spaces in "[ \\r\\n\ta'1é<>s]{0,30}") {
        let text = text.replace('▁', "") + &spaces;
        for tokenizer in [&*BPE, &*SPM] {
            for options in [PLAIN, WITH_BOS, SPECIAL] {
                let ids = tokenizer.encode(&text, options).unwrap();
                prop_assert_eq!(tokenizer.decode(&ids).unwrap(), text.as_str());
            }
            let ids = tokenizer.encode(&text, PLAIN).unwrap();
            prop_assert_eq!(shown_in_steps(tokenizer, &ids), text.as_str());
        }
    }

    #[test]
    fn any_ids_give_text(ids in proptest::collection::vec(0u32..1200, 0..50)) {
        for tokenizer in [&*BPE, &*SPM] {
            let ids: Vec<u32> = ids.iter().map(|id| id % tokenizer.len() as u32).collect();
            let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.piece_bytes(id).into_owned()).collect();
            let whole = String::from_utf8_lossy(&bytes).into_owned();
            let shown = shown_in_steps(tokenizer, &ids);
            // The space after special tokens is the only thing that may be missing.
            if tokenizer.add_space_prefix() {
                prop_assert_eq!(shown.replace(' ', ""), whole.replace(' ', ""));
            } else {
                prop_assert_eq!(shown, whole);
            }
        }
    }
}
