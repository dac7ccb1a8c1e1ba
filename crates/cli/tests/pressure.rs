//! A real memory group: a run stays inside it, the window follows its limit, and what was decided can
//! be replayed.

use crate::common;

use common::{PATIENCE, Sandbox, smollm2, text};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
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

/// A group of our own, version 1; gone with the value.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Option<Group> {
        let name = format!("haversack-{name}-{}", std::process::id());
        let path = Path::new("/sys/fs/cgroup/memory").join(name);
        fs::create_dir(&path).ok()?;
        let group = Group(path);
        group.set_limit(1 << 40).then_some(group)
    }

    fn set_limit(&self, bytes: u64) -> bool {
        fs::write(self.0.join("memory.limit_in_bytes"), bytes.to_string()).is_ok()
    }

    fn anonymous_bytes(&self) -> u64 {
        let stat = fs::read_to_string(self.0.join("memory.stat")).unwrap();
        let line = stat
            .lines()
            .find_map(|line| line.strip_prefix("total_rss "));
        line.unwrap().parse().unwrap()
    }
}

/// The program in a group.
fn inside(group: &Group, sandbox: &Sandbox) -> Command {
    let program = sandbox.command(&[]);
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg("echo $$ > \"$0/cgroup.procs\" && exec \"$@\"")
        .arg(&group.0)
        .arg(program.get_program())
        .env("HAVERSACK_HOME", sandbox.home())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended may hold it for a moment.
        for _ in 0..50 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            sleep(Duration::from_millis(100));
        }
    }
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

/// Where everything in f16 ends at two thousand tokens, a plan keeps half as many again, all of them rows.
#[test]
fn a_plan_lives_where_everything_in_f16_dies() {
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
        "--memory",
        "24M",
        "--context",
        "4096",
    ];
    // Packs the weights and probes the model, outside the group.
    let mut first = vec!["run", text(&model), "--raw", "--prompt", "a", "-n", "1"];
    first.extend(adaptive);
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
        (out.status, json)
    };
    let exact = ["--policy", "full", "--kv", "f16"];
    let tokens = |json: &Option<Value>| json.as_ref().unwrap()["kv"]["tokens_seen"].clone();
    let (status, json) = run(70, &exact);
    assert!(
        status.success() && tokens(&json).as_u64() > Some(1024),
        "{json:?}"
    );
    let (status, _) = run(150, &exact);
    assert_eq!(status.signal(), Some(9), "everything in f16 must not fit");
    let (status, json) = run(210, &adaptive);
    assert!(status.success(), "{status}");
    let kv = &json.unwrap()["kv"];
    println!("{kv}");
    assert!(kv["rows_live"].as_u64() >= Some(3072), "{kv}");
}
