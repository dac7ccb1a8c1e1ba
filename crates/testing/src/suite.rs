//! The scripted suite of the bindings: one table of steps, one recorded transcript, a program in each language that prints it.
//!
//! A program is called with the model, the table, a folder for sessions and the number of the part: it carries the steps out and
//! prints a line for each. The step `kill` ends a part: the program sends itself SIGKILL, and the next part begins with the files
//! that it left. `bindings/suite/README.md` has the steps and the lines.

use crate::models::Spec;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Where the table and the transcript are.
pub fn folder() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().join("bindings/suite")
}

/// Writes the model of the suite into `dir`.
pub fn model(dir: &Path) -> PathBuf {
    let path = dir.join("tiny.gguf");
    let spec = Spec {
        context: 2048,
        ..Spec::named("llama").unwrap()
    };
    spec.write_file(&path).unwrap();
    path
}

/// Runs a program part by part and returns its lines.
///
/// # Panics
/// Where a part ends otherwise than it should.
pub fn run(dir: &Path, program: &mut dyn FnMut() -> Command) -> String {
    let table = folder().join("suite.json");
    let kills = fs::read_to_string(&table).unwrap();
    let kills = kills.matches(r#""do": "kill""#).count();
    let model = model(dir);
    let mut transcript = String::new();
    for part in 0..=kills {
        let mut command = program();
        command.arg(&model).arg(&table).arg(dir.join("sessions"));
        let output = command.arg(part.to_string()).output().unwrap();
        let Output { status, stderr, .. } = &output;
        let is_right = match part < kills {
            true => was_killed(&output),
            false => status.success(),
        };
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        let stderr = String::from_utf8_lossy(stderr);
        assert!(is_right, "part {part}: {status}\n{text}\n{stderr}");
        transcript += &text;
    }
    transcript
}

#[cfg(unix)]
fn was_killed(output: &Output) -> bool {
    use std::os::unix::process::ExitStatusExt;
    output.status.signal() == Some(9)
}

/// Elsewhere a process that is ended has a code of its own.
#[cfg(not(unix))]
fn was_killed(output: &Output) -> bool {
    !output.status.success()
}

/// Compares a transcript with the recorded one. With HAVERSACK_REWRITE_SUITE=1 it is recorded instead.
///
/// # Panics
/// Where a line differs.
pub fn check(transcript: &str) {
    let path = folder().join("expected.txt");
    if std::env::var_os("HAVERSACK_REWRITE_SUITE").is_some() {
        return fs::write(path, transcript).unwrap();
    }
    let expected = fs::read_to_string(path).unwrap();
    let (mut found, mut wanted) = (transcript.lines(), expected.lines());
    for line in 1.. {
        let (found, wanted) = (found.next(), wanted.next());
        assert_eq!(found, wanted, "line {line} of expected.txt");
        if found.is_none() {
            return;
        }
    }
}

/// Ends the process as `kill -9` does.
pub fn kill_self() -> ! {
    #[cfg(unix)]
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort();
}
