//! A real memory group: a run stays inside it, the window follows its limit, and what was decided can
//! be replayed.

use crate::common;

use common::group::{Group, RssWatch};
use common::{PATIENCE, Sandbox, smollm2, text};
use haversack_testing::quota::is_long;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const BUDGET_MIB: u64 = 24;
/// Weights that a token reads, and a little of the vocabulary.
const WEIGHTS_MIB: u64 = 100;
/// Tokens that are replayed past the first change: short of the whole run.
const REPLAYED_PAST: usize = 256;

/// The least time between two changes of the window.
const APART: Duration = Duration::from_millis(9500);

/// The program in a group.
fn inside(group: &Group, sandbox: &Sandbox) -> Command {
    group.inside(&sandbox.command(&[]))
}

const RUN: [&str; 12] = [
    "--raw",
    "--ignore-eos",
    "--policy",
    "window",
    "--anchors",
    "64",
    "--window",
    "512",
    "--memory",
    "24M",
    "--json",
    "--threads",
];

#[test]
fn a_run_stays_in_its_group_and_the_window_follows_the_limit() {
    let Some(model) = smollm2() else {
        return;
    };
    let Some(group) = Group::new("window") else {
        println!("SKIPPED: no memory group can be made here");
        return;
    };
    let sandbox = Sandbox::shared();
    // Packs the weights and measures the means, outside the group.
    let first = sandbox.run(&["run", text(&model), "--raw", "--prompt", "a", "-n", "1"]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);

    assert!(group.set_limit((BUDGET_MIB + 64 + WEIGHTS_MIB) * MIB));
    // The window is full before anything changes.
    let prompt = "Once upon a time ".repeat(160);
    let mut command = inside(&group, &sandbox);
    command
        .args(["run", text(&model), "--prompt", &prompt])
        .args(RUN)
        .args(["1", "-n", "1000000", "--log", "info"]);
    let mut child = command.spawn().unwrap();
    let (tell, changes) = mpsc::channel();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut all = String::new();
        for line in stderr.lines().map_while(Result::ok) {
            if line.contains("window ") && line.contains(" -> ") {
                let _ = tell.send((Instant::now(), line.clone()));
            }
            all += &line;
            all.push('\n');
        }
        all
    });

    sleep(Duration::from_secs(4));
    assert!(
        changes.try_recv().is_err(),
        "enough memory, and yet a change"
    );

    let low = group.anonymous_bytes() + (WEIGHTS_MIB + 4) * MIB;
    assert!(group.set_limit(low), "the limit cannot be lowered to {low}");
    let lowered = Instant::now();
    let (when, line) = changes.recv_timeout(PATIENCE).expect("the window shrinks");
    println!(
        "{:.1} s after lowering: {line}",
        (when - lowered).as_secs_f64()
    );
    assert!(line.contains("shrunk"), "{line}");

    // A steady limit: no second change within ten seconds of the first. That may have been heard late, but not have come
    // before the limit was lowered.
    let mut earliest = lowered + APART;
    while when.elapsed() < Duration::from_secs(12) {
        if let Ok((when, line)) = changes.recv_timeout(Duration::from_millis(200)) {
            assert!(when >= earliest, "{:?} too early: {line}", earliest - when);
            earliest += APART;
        }
    }

    assert!(group.set_limit((BUDGET_MIB + 300 + WEIGHTS_MIB) * MIB));
    let raised = Instant::now();
    let (when, line) = changes.recv_timeout(PATIENCE).expect("the window grows");
    println!(
        "{:.1} s after raising: {line}",
        (when - raised).as_secs_f64()
    );
    assert!(line.contains("grown"), "{line}");
    sleep(Duration::from_secs(1));

    let id = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &id])
            .status()
            .unwrap()
            .success()
    );
    let mut stdout = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut stdout)
        .unwrap();
    let status = child.wait().unwrap();
    let stderr = reader.join().unwrap();
    assert!(status.success(), "{status} {stderr}");
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["finish_reason"], "cancelled");
    assert!(json["kv"]["rows_peak"].as_u64().unwrap() <= 64 + 512 + 32);
    assert!(json["kv"]["bytes_peak"].as_u64().unwrap() <= BUDGET_MIB * MIB);
    let recorded = json["context"]["changes"].as_array().unwrap();
    assert!(recorded.len() >= 2, "{recorded:?}");

    // The same changes told beforehand, without a group: the same tokens.
    let plan: Vec<String> = recorded
        .iter()
        .map(|change| format!("{}:{}", change["position"], change["window"]))
        .collect();
    let tokens = json["token_ids"].as_array().unwrap();
    let number = |value: &Value| value.as_u64().unwrap() as usize;
    let prompt_tokens = number(&json["usage"]["prompt_tokens"]);
    let first = number(&recorded[0]["position"]).saturating_sub(prompt_tokens);
    let count = tokens.len().min(first + REPLAYED_PAST);
    let mut arguments = vec!["run", text(&model), "--prompt", &prompt];
    arguments.extend(RUN);
    let (plan, limit) = (plan.join(","), count.to_string());
    arguments.extend(["2", "-n", &limit, "--window-plan", &plan]);
    let replayed = sandbox.run(&arguments).json();
    let replayed = replayed["token_ids"].as_array().unwrap();
    assert_eq!(&tokens[..count], &replayed[..count], "changes {plan}");
}

/// Commands that judge a model keep what they were asked to keep, or refuse in one line: none is killed, none keeps less.
#[test]
fn commands_that_judge_refuse_what_does_not_fit() {
    let Some(model) = smollm2() else {
        return;
    };
    let Some(group) = Group::new("judge") else {
        println!("SKIPPED: no memory group can be made here");
        return;
    };
    let sandbox = Sandbox::shared();
    let first = sandbox.run(&["run", text(&model), "--raw", "--prompt", "a", "-n", "1"]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    assert!(group.set_limit(48 * MIB));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("years.txt");
    let told =
        (0..150).map(|year| format!("In year {year} the river rose, and the miller wrote. "));
    fs::write(&file, told.collect::<String>()).unwrap();
    for command in [
        "score MODEL --text-file FILE",
        "perplexity MODEL --text-file FILE --context 2048",
        "compare MODEL --text-file FILE --contexts 2048 --chunks 1 --policies window --codecs f16 --shares 0.5 --tasks kl",
        "bench MODEL --only decode_d0,decode_d8000",
    ] {
        let words = command.split(' ').map(|word| match word {
            "MODEL" => text(&model),
            "FILE" => text(&file),
            word => word,
        });
        let out = inside(&group, &sandbox).args(words).output().unwrap();
        let error = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(1), "{command}: {error}");
        let line = error.lines().last().unwrap_or_default();
        assert!(
            line.contains("the memory of this device allows"),
            "{command}: {error}"
        );
        assert!(line.contains("; accepted: "), "{command}: {error}");
        assert!(out.stdout.is_empty(), "{command}");
    }
}

/// Without `--memory` the budget is what the group has left: where everything in f16 ends at two thousand tokens, more are
/// refused before they are read, and the process is not killed. A plan keeps half as many again, all of them rows. Part of the
/// long form: probing the model takes a minute in this profile.
#[test]
fn a_plan_lives_where_everything_in_f16_is_refused() {
    if !is_long() {
        return;
    }
    let Some(model) = smollm2() else {
        return;
    };
    let Some(group) = Group::new("plan") else {
        println!("SKIPPED: no memory group can be made here");
        return;
    };
    let sandbox = Sandbox::shared();
    let adaptive = [
        "--policy",
        "adaptive",
        "--context",
        "4096",
        "--memory",
        "24M",
    ];
    // Packs the weights and probes the model, outside the group and with room for it.
    let mut first = vec!["run", text(&model), "--raw", "--prompt", "a", "-n", "1"];
    first.extend(&adaptive[..4]);
    let first = sandbox.run(&first);
    assert_eq!(first.code, Some(0), "{}", first.stderr);

    assert!(group.set_limit(48 * MIB));
    let folder = tempfile::tempdir().unwrap();
    let run = |years: usize, more: &[&str]| {
        let told = (0..years)
            .map(|year| format!("In year {year} the river rose, and the miller wrote it down. "));
        let file = folder.path().join("years.txt");
        fs::write(&file, told.collect::<String>()).unwrap();
        let mut command = inside(&group, &sandbox);
        command.args([
            "run",
            text(&model),
            "--raw",
            "--ignore-eos",
            "--json",
            "-n",
            "8",
        ]);
        let out = command.args(["--prompt-file", text(&file)]).args(more);
        let out = out.output().unwrap();
        let json: Option<Value> = serde_json::from_slice(&out.stdout).ok();
        (out.status, json, String::from_utf8(out.stderr).unwrap())
    };
    let exact = ["--policy", "full", "--kv", "f16"];
    let tokens = |json: &Option<Value>| json.as_ref().unwrap()["kv"]["tokens_seen"].clone();
    let (status, json, _) = run(70, &exact);
    assert!(
        status.success() && tokens(&json).as_u64() > Some(1024),
        "{json:?}"
    );
    let (status, _, error) = run(150, &exact);
    assert_eq!(
        status.code(),
        Some(1),
        "everything in f16 must not fit: {error}"
    );
    let words = ["the memory of this device", " needed, ", " there"];
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
    let (status, json, error) = run(210, &adaptive);
    assert!(status.success(), "{status} {error}");
    let kv = &json.unwrap()["kv"];
    println!("{kv}");
    assert!(kv["rows_live"].as_u64() >= Some(3072), "{kv}");
}

/// First use: the weights are packed and the keys measured, inside the budget like everything else, by the kernel's count.
#[test]
fn a_first_chat_stays_under_the_ceiling() {
    let Some(model) = smollm2() else {
        return;
    };
    let sandbox = Sandbox::new();
    let words = ["chat", text(&model), "--memory", "12M", "-n", "8"];
    let command = sandbox.command(&[&words[..], &["--session", "a"]].concat());
    let group = Group::new("first");
    let mut command = match &group {
        Some(group) => {
            // The largest baseline there may be, the weights, the budget and 64 MiB for pages of files.
            assert!(group.set_limit((24 + WEIGHTS_MIB + 12 + 64) * MIB));
            group.inside(&command)
        }
        None => command,
    };
    let command = command.stdin(Stdio::piped());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let watch = RssWatch::new(child.id());
    let stdin = child.stdin.take().unwrap();
    { stdin }
        .write_all(b"Name a color.\nAnd another.\n")
        .unwrap();
    let ended = common::ended(child.wait_with_output().unwrap());
    let (max, samples) = watch.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(sandbox.home().join("packed").exists());
    let baseline = ended.stderr.split("a baseline of ").nth(1).unwrap();
    let baseline: f64 = baseline.split(" MiB").next().unwrap().parse().unwrap();
    let max = max as f64 / MIB as f64;
    println!("RssAnon at most {max:.1} MiB in {samples} samples; baseline {baseline}");
    assert!(samples > 10 && baseline <= 24.0, "{samples} {baseline}");
    // The budget, and what the allocator has not given back yet.
    assert!(max <= baseline + 12.0 + 8.0, "{max} MiB");
}
