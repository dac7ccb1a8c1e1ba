//! The sentence encoder against its references, and against itself.
//!
//! `fixtures/encoder/README.md` says where the references come from. What needs the real files says
//! so when there are none; that a result depends on neither threads nor table is shown on a made-up
//! model too, so it is never skipped.

mod common;

use common::real_model;
use haversack_engine::encoder::{
    Encoder, EncoderOptions, StoredEmbedding, TOKENS_MAX, WEIGHTS_FILE, similarity,
};
use haversack_kernels::cpu::Backend;
use serde_json::Value;
use std::path::{Path, PathBuf};

mod encoder_common;
use encoder_common::{Shape, write_model};

/// Against the reference in f64. Products of 1536 terms in f32 over six layers leave 2e-7 of a value
/// that is about 0.05.
const VALUE_ERROR_MAX: f64 = 2e-6;
const COSINE_ERROR_MAX: f64 = 2e-6;

fn fixture(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

fn real() -> Option<PathBuf> {
    let weights = real_model(&format!("all-minilm-l6-v2/{WEIGHTS_FILE}"))?;
    Some(weights.parent()?.to_path_buf())
}

fn open(dir: &Path, options: &EncoderOptions) -> Encoder {
    Encoder::open(dir, options).unwrap_or_else(|e| panic!("{e}"))
}

fn ids(list: &Value) -> Vec<u32> {
    let list = list.as_array().unwrap();
    list.iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn pieces_are_those_of_the_reference() {
    let Some(dir) = real() else { return };
    let encoder = open(&dir, &EncoderOptions::default());
    for row in fixture("encoder/words.json").as_array().unwrap() {
        let repeat = row["repeat"].as_u64().unwrap() as usize;
        let text = row["text"].as_str().unwrap().repeat(repeat);
        assert_eq!(encoder.tokens(&text), ids(&row["ids"]), "{}", row["name"]);
    }
    let texts = fixture("../../../text/tests/fixtures/tokenizer/texts.json");
    let nasty = fixture("encoder/nasty.json");
    let (texts, nasty) = (texts.as_array().unwrap(), nasty.as_array().unwrap());
    assert_eq!(texts.len(), nasty.len());
    // Null: the text has characters that the reference's tables are too old for.
    for (text, expected) in texts.iter().zip(nasty).filter(|(_, ids)| !ids.is_null()) {
        let text = text.as_str().unwrap();
        assert_eq!(encoder.tokens(text), ids(expected), "{text:?}");
    }
}

#[test]
fn embeddings_are_near_the_reference() {
    let Some(dir) = real() else { return };
    let encoder = open(&dir, &EncoderOptions::default());
    let reference = fixture("encoder/embeddings.json");
    let (mut worst, mut embeddings) = (0.0f64, Vec::new());
    for row in reference["texts"].as_array().unwrap() {
        let text = row["text"].as_str().unwrap();
        assert_eq!(encoder.tokens(text).len() as u64, row["tokens"]);
        let embedding = encoder.embed(text).unwrap();
        for (x, ideal) in embedding
            .values()
            .iter()
            .zip(row["first"].as_array().unwrap())
        {
            let error = (f64::from(*x) - ideal.as_f64().unwrap()).abs();
            worst = worst.max(error);
            assert!(error <= VALUE_ERROR_MAX, "{text:.40}: {x} is not {ideal}");
        }
        embeddings.push(embedding);
    }
    println!("values: worst {worst:e}");
    let mut worst_stored = 0.0f32;
    for row in reference["pairs"].as_array().unwrap() {
        let of = |key: &str| &embeddings[row[key].as_u64().unwrap() as usize];
        let (a, b, ideal) = (of("a"), of("b"), row["cosine"].as_f64().unwrap());
        let exact = similarity(a, b);
        assert!(
            (f64::from(exact) - ideal).abs() <= COSINE_ERROR_MAX,
            "{row}: {exact}"
        );
        let stored = StoredEmbedding::from_bytes(&a.store().to_bytes()).unwrap();
        let got = stored.similarity(&b.store());
        worst_stored = worst_stored.max((got - exact).abs());
        // The bound for any two is half a step times the square root of 384; texts stay far below it.
        assert!((got - exact).abs() <= 0.003, "{row}: {got}");
    }
    println!("similarities of stored embeddings: worst {worst_stored:e}");
}

/// Texts of lengths around tiles, units and the cut.
fn texts() -> Vec<String> {
    [0, 15, 11, 1, 9, 10, 13, 14, 30, 120, 253, 254, 400]
        .map(|n| "one two, three ".repeat(n / 3) + &"four ".repeat(n % 3))
        .to_vec()
}

fn all_options() -> Vec<EncoderOptions> {
    let threads = [1, 2, 3, 7];
    let mut all: Vec<_> = threads
        .map(|threads| EncoderOptions {
            threads,
            ..Default::default()
        })
        .to_vec();
    all.extend(Backend::available().map(|backend| EncoderOptions {
        threads: 2,
        backend,
    }));
    all
}

fn bits(encoder: &Encoder, text: &str) -> Vec<u32> {
    let embedding = encoder.embed(text).unwrap_or_else(|e| panic!("{e}"));
    embedding.values().iter().map(|x| x.to_bits()).collect()
}

#[test]
fn threads_and_tables_change_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), &Shape::default(), 1);
    let alone = open(dir.path(), &EncoderOptions::default());
    let texts = texts();
    let expected: Vec<_> = texts.iter().map(|text| bits(&alone, text)).collect();
    assert_ne!(expected[0], expected[1]);
    for options in all_options() {
        let encoder = open(dir.path(), &options);
        // The scalar table is slow: a few short texts are enough for it.
        let few = if options.backend == Backend::SCALAR {
            3
        } else {
            texts.len()
        };
        for (text, expected) in texts.iter().zip(&expected).take(few) {
            let n = encoder.tokens(text).len();
            assert_eq!(&bits(&encoder, text), expected, "{n} tokens, {options:?}");
        }
    }
}

/// One encoder, several threads: they wait for each other and get what they would get alone.
#[test]
fn an_encoder_may_be_shared() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), &Shape::default(), 2);
    let options = EncoderOptions {
        threads: 2,
        ..Default::default()
    };
    let encoder = open(dir.path(), &options);
    let expected = [bits(&encoder, "one"), bits(&encoder, "two two")];
    std::thread::scope(|scope| {
        for i in 0..6 {
            let (encoder, expected) = (&encoder, &expected);
            scope.spawn(move || {
                let text = ["one", "two two"][i % 2];
                assert_eq!(bits(encoder, text), expected[i % 2]);
            });
        }
    });
}

#[test]
fn what_it_takes_is_stated() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), &Shape::default(), 3);
    let encoder = open(dir.path(), &EncoderOptions::default());
    // (token, 2 x 384 + 1536) floats, and a strip of 16 rows of 1536.
    assert_eq!(
        encoder.scratch_bytes(),
        TOKENS_MAX * 2304 * 4 + 16 * 1536 * 4
    );
    assert!(encoder.heap_bytes() < 200 << 10);
}

/// What this thread has run for, where the system says so: other programs do not count.
fn cpu_ms() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok());
    ns.unwrap_or(f64::NAN) / 1e6
}

/// `cargo test --release --test encoder measure -- --ignored --nocapture`
#[test]
#[ignore = "prints times, asserts nothing"]
fn measure() {
    let Some(dir) = real() else { return };
    let private =
        || haversack_memory::usage::ProcessUsage::now().map_or(0, |usage| usage.private_bytes);
    let before = private();
    for threads in [1, 2] {
        let options = EncoderOptions {
            threads,
            ..Default::default()
        };
        let start = std::time::Instant::now();
        let encoder = open(&dir, &options);
        println!(
            "{threads} threads: opened in {:?}; {} bytes on the heap, {} of scratch",
            start.elapsed(),
            encoder.heap_bytes(),
            encoder.scratch_bytes()
        );
        println!(
            "  private: {} bytes more after opening",
            private().saturating_sub(before)
        );
        for words in [6, 18, 62, 126, 300] {
            let text = "cat ".repeat(words);
            let cpu = cpu_ms();
            let mut times: Vec<f64> = (0..30)
                .map(|_| {
                    let start = std::time::Instant::now();
                    encoder.embed(&text).unwrap();
                    start.elapsed().as_secs_f64() * 1e3
                })
                .collect();
            times.sort_by(f64::total_cmp);
            println!(
                "  {:3} tokens: median {:.2} ms, least {:.2} ms, {:.2} ms of this thread's CPU time; private {} bytes more",
                encoder.tokens(&text).len(),
                times[15],
                times[0],
                (cpu_ms() - cpu) / times.len() as f64,
                private().saturating_sub(before)
            );
        }
    }
}
