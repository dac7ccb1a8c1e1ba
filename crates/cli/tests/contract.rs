//! The JSON of every command, on the tiny model: what tests outside this repository read.
//!
//! Each test names the fields the contract promises; more may be there.

use crate::common;

use common::{Sandbox, ended, smollm2, text};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// The model and a data directory of this test's own.
fn ready() -> Option<(Sandbox, PathBuf)> {
    let model = smollm2()?;
    Some((Sandbox::new(), model))
}

/// The model and a data directory that has its packed weights.
fn shared() -> Option<(Sandbox, PathBuf)> {
    let model = smollm2()?;
    Some((Sandbox::shared(), model))
}

/// Runs with `--json` on the model and returns the document.
fn json(sandbox: &Sandbox, model: &Path, arguments: &[&str]) -> Value {
    let mut all = vec![arguments[0], text(model)];
    all.extend(&arguments[1..]);
    all.push("--json");
    sandbox.run(&all).json()
}

/// Every dotted path is there and not null.
fn has(document: &Value, paths: &[&str]) {
    for path in paths {
        let mut at = document;
        for name in path.split('.') {
            at = &at[name];
        }
        assert!(!at.is_null(), "{path} is not in {document}");
    }
}

fn ids(value: &Value) -> Vec<u64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap())
        .collect()
}

#[test]
fn run_holds_what_is_promised() {
    let Some((sandbox, model)) = ready() else {
        return;
    };
    let arguments = [
        "run",
        "--prompt",
        "What is gravity?",
        "-n",
        "8",
        "--memory",
        "64M",
    ];
    let document = json(&sandbox, &model, &arguments);
    has(
        &document,
        &[
            "text",
            "token_ids",
            "finish_reason",
            "usage.prompt_tokens",
            "usage.completion_tokens",
            "usage.cached_tokens",
            "timing.load_ms",
            "timing.prefill_ms",
            "timing.decode_ms",
            "timing.prefill_tokens_per_second",
            "timing.decode_tokens_per_second",
            "kv.codec",
            "kv.policy",
            "kv.bytes_live",
            "kv.bytes_peak",
            "kv.bytes_budget",
            "kv.bits_effective",
            "kv.tokens_seen",
            "kv.rows_live",
            "kv.rows_peak",
            "kv.rows_evicted",
            "context.kept",
            "context.evicted",
            "context.spilled",
            "context.cached",
            "context.recomputed",
            "context.limit",
            "context.window",
            "context.anchors",
            "context.changes",
        ],
    );
    #[cfg(target_os = "linux")]
    has(
        &document,
        &[
            "memory.private_bytes",
            "memory.baseline_bytes",
            "memory.pss_bytes",
        ],
    );
    assert_eq!(document["finish_reason"], "length");
    assert_eq!(document["usage"]["completion_tokens"], 8);
    assert_eq!(ids(&document["token_ids"]).len(), 8);
    assert_eq!(document["kv"]["bytes_budget"], 64 << 20);
    // The last token is sampled and not read.
    let prompt = document["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(document["kv"]["tokens_seen"], prompt + 7);
    assert_eq!(document["kv"]["rows_live"], prompt + 7);
    assert!(
        sandbox.home().join("packed").exists(),
        "--repack auto keeps a packed copy"
    );
}

#[test]
fn run_streams_the_same_text_that_json_holds() {
    let Some((sandbox, model)) = ready() else {
        return;
    };
    let arguments = [
        "run",
        "--prompt",
        "Say hello in three languages.",
        "-n",
        "12",
        "--repack",
        "off",
        // Nothing is measured for these, and so nothing saved.
        "--kv",
        "f16",
    ];
    let document = json(&sandbox, &model, &arguments);
    let mut plain = vec!["run", text(&model)];
    plain.extend(&arguments[1..]);
    let streamed = sandbox.run(&plain);
    assert_eq!(streamed.code, Some(0));
    assert_eq!(
        streamed.stdout,
        format!("{}\n", document["text"].as_str().unwrap())
    );
    assert!(!sandbox.home().exists(), "--repack off writes nothing");
}

/// The seed decides, and only the seed.
#[test]
fn run_is_reproducible() {
    let Some((sandbox, model)) = shared() else {
        return;
    };
    let with_seed = |seed: &str, threads: &str| {
        let arguments = [
            "run",
            "--raw",
            "--prompt",
            "Once",
            "-n",
            "12",
            "--temperature",
            "1.5",
            "--seed",
            seed,
            "--threads",
            threads,
        ];
        ids(&json(&sandbox, &model, &arguments)["token_ids"])
    };
    let first = with_seed("7", "1");
    assert_eq!(first, with_seed("7", "2"));
    assert_ne!(first, with_seed("8", "2"));
}

#[test]
fn run_ends_as_it_says() {
    let Some((sandbox, model)) = shared() else {
        return;
    };
    let run = |arguments: &[&str]| {
        let mut all = vec!["run"];
        all.extend(arguments);
        json(&sandbox, &model, &all)
    };
    // The ending token is part of the ids and not of the text.
    let stopped = run(&["--prompt", "Say only: yes", "-n", "200"]);
    if stopped["finish_reason"] == "stop" {
        assert_eq!(ids(&stopped["token_ids"]).last(), Some(&2));
        assert!(!stopped["text"].as_str().unwrap().contains("<|im_end|>"));
    }
    let at_stop = run(&[
        "--raw",
        "--prompt",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,",
        "-n",
        "60",
        "--stop",
        "14",
    ]);
    assert_eq!(at_stop["finish_reason"], "stop");
    assert!(!at_stop["text"].as_str().unwrap().contains("14"));
    let full = run(&[
        "--raw",
        "--prompt",
        "one two",
        "--context",
        "16",
        "--ignore-eos",
    ]);
    assert_eq!(full["finish_reason"], "length");
    assert_eq!(full["kv"]["tokens_seen"], 16);
    // With everything kept a budget is a limit too, not an error.
    let budget = run(&[
        "--raw",
        "--prompt",
        "one two",
        "-n",
        "500",
        "--ignore-eos",
        "--memory",
        "4M",
        "--policy",
        "full",
    ]);
    assert_eq!(budget["finish_reason"], "length");
    assert_eq!(budget["kv"]["tokens_seen"], budget["context"]["limit"]);
    assert!(budget["kv"]["tokens_seen"].as_u64() < Some(500));
    assert!(budget["kv"]["bytes_peak"].as_u64() <= budget["kv"]["bytes_budget"].as_u64());
}

#[test]
fn prompts_that_cannot_run() {
    let Some((sandbox, model)) = ready() else {
        return;
    };
    let run = |arguments: &[&str]| {
        let mut all = vec!["run", text(&model), "--repack", "off", "--kv", "f16"];
        all.extend(arguments);
        sandbox.run(&all)
    };
    let long = sandbox.write("long.txt", "word ".repeat(9000));
    let ended = run(&["--raw", "--prompt-file", text(&long), "--policy", "full"]);
    assert!(ended.error(1).contains("at most 8192"), "{}", ended.stderr);
    let latin = sandbox.write("latin.txt", b"caf\xe9");
    let ended = run(&["--prompt-file", text(&latin)]);
    assert!(
        ended.error(1).contains("latin.txt is not UTF-8: byte 3"),
        "{}",
        ended.stderr
    );
    let ended = run(&["--prompt-file", text(&sandbox.path("missing.txt"))]);
    assert!(ended.error(1).contains("missing.txt"), "{}", ended.stderr);
    let ended = run(&["--ids", "5,49152"]);
    assert!(ended.error(2).contains("49152"), "{}", ended.stderr);
    assert!(run(&["--prompt", ""]).error(2).contains("empty"));
    assert!(
        run(&["--prompt", "x", "--logit-bias", "49152=1"])
            .error(2)
            .contains("--logit-bias")
    );
    assert!(
        run(&["--prompt", "x", "--memory", "1K"])
            .error(2)
            .contains("--memory")
    );
}

/// Text that looks like a special token is text, in every command, unless `--special` says otherwise.
#[test]
fn what_a_user_types_stays_text() {
    let Some((sandbox, model)) = shared() else {
        return;
    };
    let count = |arguments: &[&str]| {
        json(&sandbox, &model, arguments)["usage"]["prompt_tokens"]
            .as_u64()
            .unwrap()
    };
    let run = |prompt: &str, special: bool| {
        let mut arguments = vec!["run", "--prompt", prompt, "-n", "1"];
        if special {
            arguments.push("--special");
        }
        count(&arguments)
    };
    let plain = run("a", false);
    assert_eq!(run("a<|im_end|>", true), plain + 1);
    assert!(run("a<|im_end|>", false) > plain + 3);
}

#[test]
fn score_holds_what_is_promised() {
    let Some((sandbox, model)) = shared() else {
        return;
    };
    let file = sandbox.write("text.txt", "The quick brown fox jumps over the lazy dog.");
    let arguments = ["score", "--text-file", text(&file), "--activations", "f32"];
    let document = json(&sandbox, &model, &arguments);
    let tokens = document["tokens"].as_array().unwrap();
    assert!(tokens.len() > 5);
    let first = tokens[0].as_object().unwrap();
    assert_eq!(first.keys().collect::<Vec<_>>(), ["id", "piece"]);
    let mut sum = 0.0;
    for token in &tokens[1..] {
        has(token, &["id", "piece", "logprob"]);
        let top = token["top"].as_array().unwrap();
        assert_eq!(top.len(), 5);
        let probabilities: Vec<f64> = top
            .iter()
            .map(|entry| entry["logprob"].as_f64().unwrap())
            .collect();
        assert!(probabilities.windows(2).all(|pair| pair[0] >= pair[1]));
        let own = token["logprob"].as_f64().unwrap();
        assert!(own <= probabilities[0] + 1e-9);
        sum += own;
    }
    let mean = document["nll_mean"].as_f64().unwrap();
    assert!((mean + sum / (tokens.len() - 1) as f64).abs() < 1e-9);

    // The same ids given as they stand give the same numbers.
    let list: Vec<String> = tokens.iter().map(|token| token["id"].to_string()).collect();
    let list = list.join(",");
    let again = json(
        &sandbox,
        &model,
        &["score", "--ids", &list, "--activations", "f32"],
    );
    assert_eq!(again, document);
}

#[test]
fn tokens_there_and_back() {
    let Some((sandbox, model)) = ready() else {
        return;
    };
    for content in [
        "Hello, world 2024!",
        "naïve café — ☃ 日本語 \u{1f600}",
        "a<|im_end|>b",
        "  two  spaces\n\n\tand tab",
    ] {
        let file = sandbox.write("text.txt", content);
        let document = json(&sandbox, &model, &["tokenize", "--text-file", text(&file)]);
        let list: Vec<String> = ids(&document["ids"]).iter().map(u64::to_string).collect();
        let back = json(&sandbox, &model, &["detokenize", "--ids", &list.join(",")]);
        assert_eq!(back["text"], content);
    }
    let special = json(
        &sandbox,
        &model,
        &["tokenize", "--text", "<|im_end|>", "--special"],
    );
    assert_eq!(ids(&special["ids"]), [2]);
}

#[test]
fn inspect_verify_and_doctor_answer() {
    let Some((sandbox, model)) = ready() else {
        return;
    };
    let document = json(&sandbox, &model, &["inspect"]);
    assert_eq!(document["architecture"], "llama");
    assert_eq!(document["context_length"], 8192);
    assert_eq!(document["parameters"], 134_515_008);
    has(
        &document,
        &[
            "metadata",
            "tensors",
            "types",
            "file_bytes",
            "weights_bytes",
        ],
    );

    let document = json(&sandbox, &model, &["verify"]);
    assert_eq!(document["ok"], true);
    assert_eq!(document["files"][0]["catalogue"], true);
    let damaged = sandbox.path("smollm2-135m-instruct-q4_1.gguf");
    let mut bytes = fs::read(&model).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&damaged, bytes).unwrap();
    let ended = sandbox.run(&["verify", text(&damaged)]);
    assert!(ended.error(1).contains("sha256"));
    let ended = sandbox.run(&["verify", text(&damaged), "--json"]);
    assert_eq!(ended.code, Some(1));
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(document["ok"], false);

    let document = sandbox.run(&["doctor", "--json"]).json();
    has(
        &document,
        &[
            "cpu.tables",
            "cpu.used",
            "cpu.cores",
            "storage.home",
            "memory.locked_limit_bytes",
            "haversack.version",
        ],
    );
    assert!(!sandbox.home().exists(), "looking changes nothing");
}

/// A model in the data directory is found without a network, by name and alias.
#[test]
fn a_fetched_model_is_found_by_name() {
    let Some((sandbox, model)) = ready() else {
        return;
    };
    let models = sandbox.home().join("models");
    fs::create_dir_all(&models).unwrap();
    fs::copy(&model, models.join("smollm2-135m-instruct-q4_1.gguf")).unwrap();
    for name in ["tiny", "smollm2", "SmolLM2-135M-Instruct"] {
        let arguments = ["tokenize", name, "--text", "hello", "--json"];
        assert_eq!(ids(&sandbox.run(&arguments).json()["ids"]), [28120]);
    }
    let document = sandbox.run(&["pull", "tiny", "--json"]).json();
    has(&document, &["name", "path", "sha256", "bytes", "default"]);
    assert_eq!(document["bytes"], 98_362_432);
}

#[test]
fn bench_rows() {
    let Some((sandbox, model)) = shared() else {
        return;
    };
    let arguments = ["bench", "--only", "decode_d0,batch_2", "--repeat", "1"];
    let csv = sandbox.path("record.csv");
    let mut all = arguments.to_vec();
    all.extend(["--csv", text(&csv)]);
    let document = json(&sandbox, &model, &all);
    let rows = document["rows"].as_array().unwrap();
    let names: Vec<&str> = rows
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["decode_d0", "batch_2"]);
    for row in rows {
        assert!(row["value"].as_f64().unwrap() > 0.0);
        assert_eq!(row["unit"], "tokens/s");
        assert!(row["against"].is_null() && row["ratio"].is_null());
    }
    has(
        &document,
        &[
            "roofline.read_bandwidth_gbs",
            "roofline.weight_bytes_per_token",
            "roofline.fraction",
        ],
    );
    let record = fs::read_to_string(&csv).unwrap();
    assert_eq!(record.lines().count(), 3);
    assert!(record.starts_with("name,value,unit,against,ratio,"));
    assert!(
        !record.contains(text(sandbox.directory.path())),
        "no path of this machine"
    );

    let ended = sandbox.run(&["bench", text(&model), "--only", "speed"]);
    assert!(ended.error(2).contains("prefill_512"));
    let ended = sandbox.run(&["bench", text(&model), "--against", "/nowhere/llama-bench"]);
    assert!(ended.error(1).contains("/nowhere/llama-bench"));
}

/// The other program, played by a script.
#[cfg(unix)]
#[test]
fn bench_against_another() {
    use std::os::unix::fs::PermissionsExt;
    let Some((sandbox, model)) = shared() else {
        return;
    };
    let script = "#!/bin/sh\necho \"$@\" >> \"$0.log\"\necho '[{\"flash_attn\":0,\"avg_ts\":0.5},{\"flash_attn\":1,\"avg_ts\":0.25}]'\n";
    let program = sandbox.write("llama-bench", script);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let arguments = [
        "bench",
        "--only",
        "decode_d0",
        "--repeat",
        "2",
        "--threads",
        "1",
        "--against",
        text(&program),
    ];
    let document = json(&sandbox, &model, &arguments);
    let row = &document["rows"][0];
    assert_eq!(row["against"], 0.5, "the better attention path");
    let ratio = row["ratio"].as_f64().unwrap();
    assert!((ratio - row["value"].as_f64().unwrap() / 0.5).abs() < 1e-6);
    let calls = fs::read_to_string(sandbox.path("llama-bench.log")).unwrap();
    assert_eq!(calls.lines().count(), 2, "{calls}");
    for words in ["-t 1", "-ctk f16", "-fa off,on", "-d 0"] {
        assert!(calls.contains(words), "{calls}");
    }
}

#[test]
fn a_configuration_file_sets_defaults() {
    let Some((sandbox, model)) = shared() else {
        return;
    };
    let config = sandbox.write(
        "config.toml",
        "memory = \"32M\"\nrepack = \"auto\"\ntemperature = 0.5\nseed = 3\n",
    );
    let run = |extra: &[&str]| {
        let mut arguments = vec![
            "run",
            "--raw",
            "--prompt",
            "x",
            "-n",
            "2",
            "--config",
            text(&config),
        ];
        arguments.extend(extra);
        json(&sandbox, &model, &arguments)["kv"]["bytes_budget"].as_u64()
    };
    assert_eq!(run(&[]), Some(32 << 20));
    assert_eq!(
        run(&["--memory", "16M"]),
        Some(16 << 20),
        "the command line wins"
    );
    // Keys that a command has no flag for are for others.
    json(&sandbox, &model, &["inspect", "--config", text(&config)]);
}

#[test]
fn closing_the_pipe_ends_a_run() {
    let Some((sandbox, model)) = shared() else {
        return;
    };
    let mut child = sandbox
        .command(&[
            "run",
            text(&model),
            "--raw",
            "--prompt",
            "Once",
            "-n",
            "100000",
            "--ignore-eos",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    use std::io::Read;
    let mut byte = [0];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut byte)
        .unwrap();
    drop(child.stdout.take());
    let ended = ended(child.wait_with_output().unwrap());
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
}

/// Ctrl-C ends a run with what there is.
#[cfg(unix)]
#[test]
fn an_interrupted_run_is_cancelled() {
    let Some((sandbox, model)) = shared() else {
        return;
    };
    let mut child = sandbox
        .command(&[
            "run",
            text(&model),
            "--raw",
            "--prompt",
            "Once",
            "-n",
            "100000",
            "--ignore-eos",
            "--json",
            "--log",
            "trace",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The trace of a few steps says that it runs; what follows is drained.
    use std::io::{BufRead, BufReader};
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    for _ in 0..5 {
        lines.next().unwrap().unwrap();
    }
    let drain = std::thread::spawn(move || lines.map_while(Result::ok).count());
    let pid = child.id().to_string();
    std::process::Command::new("kill")
        .args(["-INT", &pid])
        .status()
        .unwrap();
    let ended = ended(child.wait_with_output().unwrap());
    drain.join().unwrap();
    assert_eq!(ended.json()["finish_reason"], "cancelled");
}

/// `--kv-memory` changes where the pages come from and nothing that is said; the report is the kernel's.
#[cfg(target_os = "linux")]
#[test]
fn pages_of_keys_and_values_by_kind() {
    let Some((sandbox, model)) = shared() else {
        return;
    };
    let run = |kind: &str| {
        let prompt = ["--raw", "--prompt", "Once upon a time", "-n", "24"];
        let arguments = [
            &["run", text(&model), "--json", "--kv-memory", kind],
            &prompt[..],
        ];
        let ended = sandbox.run(&arguments.concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let mut found = ended.json();
        let pages = found["memory"]["kv_memory"].take();
        assert_eq!(pages["backing"], kind);
        assert!(pages["resident_bytes"].as_u64().unwrap() > 0, "{pages}");
        (found["token_ids"].take(), pages)
    };
    let (tokens, private) = run("private");
    assert!(
        private["merged"].is_null() && private["paths"].as_array().unwrap().is_empty(),
        "{private}"
    );
    let (same, mergeable) = run("mergeable");
    assert_eq!(tokens, same);
    // The kernel says whether it merged anything, or why not.
    let merged = mergeable["merged"].as_str().unwrap();
    let words = ["active for", "no effect so far", "not possible"];
    assert!(words.iter().any(|w| merged.starts_with(w)), "{merged}");
    let (same, memfd) = run("memfd");
    assert_eq!(tokens, same);
    let paths = memfd["paths"].as_array().unwrap();
    let is_fd = |path: &Value| path.as_str().is_some_and(|p| p.starts_with("/proc/"));
    assert!(!paths.is_empty() && paths.iter().all(is_fd), "{memfd}");
}
