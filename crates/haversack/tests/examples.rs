//! Every example runs on a tiny model and prints something.

mod common;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The example's program, which `cargo test` builds unless it was told to build one test alone.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join("examples").join(name);
    if !path.exists() {
        let mut cargo = Command::new(env!("CARGO"));
        let built = cargo.args(["build", "--quiet", "-p", "haversack", "--example", name]);
        assert!(built.status().unwrap().success(), "{name}");
    }
    path
}

/// What the example prints, given a model, more arguments and an input.
fn run(name: &str, more: &[&str], input: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let model = common::model(dir.path());
    let mut command = Command::new(program(name));
    command.arg(&model).args(more).current_dir(dir.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{name}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn chat() {
    let printed = run("chat", &[], "Hello.\nAnd again.\n");
    assert_eq!(printed.matches("tokens in").count(), 2, "{printed}");
}

#[test]
fn conversations() {
    let printed = run("conversations", &["sessions"], "");
    for name in ["anna, turn 1", "ben, turn 1", "chris, turn 1"] {
        assert!(printed.contains(name), "{printed}");
    }
}

#[test]
fn structured() {
    let printed = run("structured", &[], "");
    let mut lines = printed.lines().rev();
    assert!(["yes", "no"].contains(&lines.next().unwrap()), "{printed}");
    assert!(printed.starts_with('{'), "{printed}");
}

#[test]
fn custom_policy() {
    let printed = run("custom_policy", &[], "");
    let kept = printed.lines().last().unwrap();
    let numbers: Vec<u64> = kept
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    assert!(numbers[1] < numbers[0], "{printed}");
    assert!(printed.contains("leave"), "{printed}");
}

#[test]
fn memory() {
    let printed = run("memory", &[], "");
    assert!(printed.contains("before the first message"), "{printed}");
    assert!(printed.contains("under pressure"), "{printed}");
}
