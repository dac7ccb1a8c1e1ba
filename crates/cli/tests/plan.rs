//! `plan`, from metadata alone: known figures of known shapes, and choices that hold together.

use crate::common;

use common::{Sandbox, ended, text};
use haversack::kernels::format::WeightType;
use haversack_testing::models::{Mix, Spec};
use serde_json::Value;
use std::cell::Cell;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

/// Writes what is told, and leaves holes where weights would be.
struct Holes<'a> {
    file: File,
    weights: &'a Cell<bool>,
}

impl Write for Holes<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.weights.get() {
            self.file.seek(SeekFrom::Current(bytes.len() as i64))?;
            return Ok(bytes.len());
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file of the full size that takes next to nothing on disk.
fn hollow(spec: &Spec, path: &Path) {
    let weights = Cell::new(false);
    let mut out = Holes {
        file: File::create(path).unwrap(),
        weights: &weights,
    };
    let zeros = vec![0; 1 << 20];
    let writer = spec.writer().unwrap();
    writer
        .write(&mut out, &mut |tensor, out| {
            if tensor.name == "rope_freqs.weight" {
                let ones = 1f32.to_le_bytes().repeat(tensor.bytes as usize / 4);
                return out.write_all(&ones);
            }
            weights.set(true);
            let mut left = tensor.bytes as usize;
            while left > 0 {
                let part = left.min(zeros.len());
                out.write_all(&zeros[..part])?;
                left -= part;
            }
            weights.set(false);
            Ok(())
        })
        .unwrap();
    let end = out.file.stream_position().unwrap();
    out.file.set_len(end).unwrap();
}

fn plan(sandbox: &Sandbox, model: &Path, flags: &str) -> Value {
    let mut words = vec!["plan", text(model), "--json"];
    words.extend(flags.split(' '));
    sandbox.run(&words).json()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

const CODECS: [&str; 7] = ["f16", "int8", "int5", "int4", "int4-plain", "int3", "int2"];

/// LLaMA-7B: 512 KiB a token in f16, and the figures that can be checked by hand.
#[test]
fn a_model_that_was_never_loaded() {
    let sandbox = Sandbox::new();
    let model = sandbox.path("7b.gguf");
    hollow(&Spec::preset_7b(Mix::Mostly(WeightType::Q4_0)), &model);
    let zones_off = "--ram 16G --context 2048 --sinks 0 --recent 0";
    let wide = plan(&sandbox, &model, zones_off);
    let narrow = plan(&sandbox, &model, &format!("{zones_off} --group 32"));
    let mebibytes = |document: &Value, codec: &str| number(&document["blocks_bytes"][codec]) >> 20;
    assert_eq!(number(&wide["kv_bytes_per_token"]["f16"]), 512 << 10);
    assert_eq!(mebibytes(&wide, "f16"), 1024);
    assert_eq!(mebibytes(&narrow, "int8"), 544);
    assert_eq!(mebibytes(&narrow, "int4-plain"), 288);
    assert_eq!(mebibytes(&wide, "int4"), 272);
    let few = plan(
        &sandbox,
        &model,
        "--ram 16G --context 576 --sinks 0 --recent 0 --group 32",
    );
    assert_eq!(mebibytes(&few, "int4-plain"), 81);

    // 3.5 GiB of weights and 2 GiB for an app: said, not refused.
    let small = plan(&sandbox, &model, "--ram 4G");
    assert_eq!(small["weights_fit"], false);
    assert_eq!(small["weights"]["mode"], "prefetch");
    let command = small["recommended"]["this_ram"]["command"]
        .as_str()
        .unwrap();
    assert!(command.contains("--weights prefetch"), "{command}");
    let large = plan(&sandbox, &model, "--ram 64G");
    assert_eq!(large["weights_fit"], true);
    assert!(!sandbox.home().exists(), "looking changes nothing");
}

#[test]
fn figures_and_choices_hold_together() {
    let sandbox = Sandbox::new();
    let model = sandbox.path("1b.gguf");
    hollow(&Spec::preset_1b(Mix::Q4KM), &model);
    for ram in [1u64, 1 << 20, 1 << 30, 4 << 30, 8 << 30, 64 << 30] {
        let document = plan(&sandbox, &model, &format!("--ram {ram}"));
        assert!(number(&document["scratch_bytes"]) > 0);
        let trained = number(&document["context_trained"]);
        assert_eq!(trained, 131_072);
        let of = |field: &str, codec: &str| number(&document[field][codec]);
        for pair in ["f16", "int8", "int5", "int4", "int3", "int2"].windows(2) {
            let (more, less) = (pair[0], pair[1]);
            assert!(of("kv_bytes_per_token", more) > of("kv_bytes_per_token", less));
            assert!(of("tokens_max", more) <= of("tokens_max", less));
            assert!(of("sessions", more) <= of("sessions", less));
        }
        let app = number(&document["app_bytes"]);
        assert!(app <= ram);
        for codec in CODECS {
            let tokens = of("tokens_max", codec);
            assert_eq!(of("context_max", codec), tokens.min(trained));
            assert!(tokens * of("kv_bytes_per_token", codec) <= app.max(1));
        }
        for case in [
            "phone_4gb",
            "phone_8gb",
            "quality",
            "many_users",
            "this_ram",
        ] {
            let choice = &document["recommended"][case];
            assert!(CODECS.contains(&choice["kv"].as_str().unwrap()), "{choice}");
            let bytes = number(&choice["memory_bytes"]);
            let command = choice["command"].as_str().unwrap();
            assert!(!choice["why"].as_str().unwrap().is_empty());
            assert!(
                bytes > 0 && command.starts_with("haversack chat "),
                "{command}"
            );
            assert!(command.contains("--memory"), "{command}");
        }
    }
}

/// What is recommended is accepted: a small model runs with every command that is printed.
#[test]
fn recommendations_run() {
    let sandbox = Sandbox::new();
    let model = sandbox.path("tiny model.gguf");
    Spec::named("llama").unwrap().write_file(&model).unwrap();
    let document = plan(&sandbox, &model, "--ram 2G --context 256 --threads 2");
    for (case, choice) in document["recommended"].as_object().unwrap() {
        let command = choice["command"].as_str().unwrap();
        let flags = command.split_once("gguf' ").unwrap().1;
        let mut words = vec![
            "run",
            text(&model),
            "--prompt",
            "x",
            "-n",
            "600",
            "--ignore-eos",
        ];
        words.extend(flags.split(' '));
        words.extend(["--json", "--repack", "off", "--threads", "2"]);
        let output = sandbox.command(&words).output().unwrap();
        let answer = ended(output).json();
        assert_eq!(answer["usage"]["completion_tokens"], 600, "{case}");
        let kv = &answer["kv"];
        assert!(
            number(&kv["bytes_peak"]) <= number(&choice["memory_bytes"]),
            "{case}: {kv}"
        );
        assert_eq!(kv["codec"], choice["kv"]);
    }
}

#[test]
fn a_table_for_people() {
    let sandbox = Sandbox::new();
    let model = sandbox.path("tiny.gguf");
    Spec::named("llama").unwrap().write_file(&model).unwrap();
    let page = sandbox.run(&["plan", text(&model), "--ram", "4G"]);
    assert_eq!((page.code, page.stderr.as_str()), (Some(0), ""));
    for word in [
        "int4-plain",
        "recommended",
        "a 4 GB phone",
        "assumed",
        "mapped",
    ] {
        assert!(page.stdout.contains(word), "{}", page.stdout);
    }
    let page = sandbox.run(&["plan", text(&model), "--ram", "1"]);
    assert_eq!(page.code, Some(0));
    assert!(page.stdout.contains("prefetch"), "{}", page.stdout);
}
