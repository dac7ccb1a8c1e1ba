//! Token ids of real models against the reference. Needs the model files; says so when there are
//! none (`HAVERSACK_TEST_MODELS` names a directory that has them).

use haversack_gguf::Gguf;
use haversack_text::tokenizer::{EncodeOptions, Tokenizer};

use crate::tokenizer_common;
use tokenizer_common::{fixture, id_lists, ids, model, strings};

const SMOLLM2: &str = "smollm2-135m-instruct-q4_1.gguf";
const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

fn load(file: &str) -> Option<Tokenizer> {
    let gguf = Gguf::open(model(file)?).unwrap();
    Some(Tokenizer::from_gguf(&gguf).unwrap())
}

fn golden(tokenizer: &Tokenizer, name: &str) {
    for row in fixture(name).as_array().unwrap() {
        let options = EncodeOptions {
            add_special: row["add_special"].as_bool().unwrap(),
            parse_special: row["parse_special"].as_bool().unwrap(),
        };
        let text = row["text"].as_str().unwrap();
        let mut ours = tokenizer.encode(text, options).unwrap();
        assert_eq!(tokenizer.decode(&ours).unwrap(), text, "{}", row["name"]);
        if let Some(most) = row["truncated_to"].as_u64() {
            ours.truncate(most as usize);
        }
        assert_eq!(ours, ids(&row["ids"]), "{}", row["name"]);
    }
}

fn nasty(tokenizer: &Tokenizer, name: &str) {
    let texts = strings(&fixture("texts.json"));
    let file = fixture("nasty.json");
    for (suffix, parse_special) in [("plain", false), ("special", true)] {
        let options = EncodeOptions {
            add_special: true,
            parse_special,
        };
        let expected = id_lists(&file[format!("{name}_{suffix}")]);
        assert_eq!(expected.len(), texts.len());
        for (text, expected) in texts.iter().zip(expected) {
            let ours = tokenizer.encode(text, options).unwrap();
            assert_eq!(ours, expected, "{name} {suffix}: {text:?}");
        }
    }
}

#[test]
fn smollm2() {
    let Some(tokenizer) = load(SMOLLM2) else {
        return;
    };
    golden(&tokenizer, "golden_smollm2.json");
    nasty(&tokenizer, "smollm2");
    assert_eq!(tokenizer.len(), 49152);
    // <|endoftext|> is no eos here, and ends a text all the same.
    assert_eq!(tokenizer.ends(), [0, 2]);
}

#[test]
fn gemma3() {
    let Some(tokenizer) = load(GEMMA3) else {
        return;
    };
    golden(&tokenizer, "golden_gemma3.json");
    nasty(&tokenizer, "gemma3");
    assert_eq!(tokenizer.len(), 262144);
    assert_eq!(tokenizer.ends(), [1, 106]);
    // HTML's tag, which other models end with.
    let tag = tokenizer.id_of("</s>").unwrap();
    assert!(!tokenizer.is_end(tag) && !tokenizer.is_control(tag));
}

/// `cargo test --release --test tokenizer_models measure -- --ignored --nocapture`
#[test]
#[ignore = "prints times, asserts nothing"]
fn measure() {
    for file in [SMOLLM2, GEMMA3] {
        let Some(path) = model(file) else { continue };
        let gguf = Gguf::open(path).unwrap();
        let start = std::time::Instant::now();
        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
        println!("{file}: built in {:?}", start.elapsed());
        let alice = fixture("golden_smollm2.json")
            .as_array()
            .unwrap()
            .last()
            .unwrap()["text"]
            .clone();
        let alice = alice.as_str().unwrap();
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        for unit in [
            alice,
            "a",
            "ab",
            " ",
            "\n",
            "<",
            "0",
            "é",
            "🙂",
            "<unused6241>",
            "<|im_end|>",
        ] {
            let text = unit.repeat((1 << 20) / unit.len());
            let start = std::time::Instant::now();
            let ids = tokenizer.encode(&text, options).unwrap();
            let shown: String = unit.chars().take(12).collect();
            println!(
                "  1 MiB of {shown:?}: {:?}, {} ids",
                start.elapsed(),
                ids.len()
            );
        }
    }
}
