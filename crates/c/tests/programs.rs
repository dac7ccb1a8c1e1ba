//! C and C++ programs on the shared library: the scripted suite, hostile calls, the examples, the header on its own. Needs a C and
//! a C++ compiler; without them each test says so.
#![cfg(unix)]

use haversack_testing::suite;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const WARNINGS: [&str; 7] = [
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wshadow",
    "-Wconversion",
    "-Wundef",
    "-Werror",
];

fn folder() -> PathBuf {
    suite::folder().parent().unwrap().join("c")
}

/// The folder of the shared library: where this test is.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap().to_path_buf();
    assert!(
        folder.join("libhaversack_c.so").exists() || folder.join("libhaversack_c.dylib").exists(),
        "no shared library in {}",
        folder.display()
    );
    folder
}

/// The compiler of a source, and the standard it is compiled with; `None` is printed.
fn compiler(source: &str) -> Option<(&'static str, &'static str)> {
    let (compiler, standard) = match source.ends_with(".c") {
        true => ("cc", "-std=c11"),
        false => ("c++", "-std=c++17"),
    };
    let mut command = Command::new(compiler);
    command
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if command.status().is_ok() {
        return Some((compiler, standard));
    }
    println!("SKIPPED: there is no {compiler} for {source}");
    None
}

/// Compiles a source of `bindings/c`, or of another folder where it has one, with all warnings into a program.
fn compiled(dir: &Path, source: &str) -> Option<PathBuf> {
    let (compiler, standard) = compiler(source)?;
    let name = Path::new(source).file_name().unwrap();
    let program = dir.join(name.to_str().unwrap().replace('.', "-"));
    let mut command = Command::new(compiler);
    command
        .args([standard, "-O1", "-g", "-pthread"])
        .args(WARNINGS);
    // Such as a sanitizer.
    let flags = std::env::var("HAVERSACK_CFLAGS").unwrap_or_default();
    command.args(flags.split_whitespace());
    command.arg(folder().join(source)).arg("-I").arg(folder());
    command.arg("-L").arg(library()).arg("-lhaversack_c");
    command.arg(format!("-Wl,-rpath,{}", library().display()));
    let made = command.arg("-lm").arg("-o").arg(&program).status();
    assert!(made.unwrap().success(), "{source}");
    Some(program)
}

/// Runs a program, under another one such as valgrind where HAVERSACK_RUNNER has its command line.
fn command(program: &Path) -> Command {
    let runner = std::env::var("HAVERSACK_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace();
    match words.next() {
        None => Command::new(program),
        Some(runner) => {
            let mut command = Command::new(runner);
            command.args(words).arg(program);
            command
        }
    }
}

/// What a program prints, given arguments and an input; it has to end well.
fn printed(program: &Path, arguments: &[&str], input: &str) -> String {
    let mut command = command(program);
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {text}", program.display());
    text
}

#[test]
fn the_suite_is_as_recorded() {
    let dir = tempfile::tempdir().unwrap();
    if let Some(program) = compiled(dir.path(), "suite/suite.c") {
        suite::check(&suite::run(dir.path(), &mut || command(&program)));
    }
}

#[test]
fn hostile_calls_are_refused_and_nothing_leaks() {
    let dir = tempfile::tempdir().unwrap();
    if let Some(program) = compiled(dir.path(), "suite/hostile.c") {
        let model = suite::model(dir.path());
        let cycles = std::env::var("HAVERSACK_CYCLES").unwrap_or("200".to_owned());
        let said = printed(&program, &[model.to_str().unwrap(), &cycles], "");
        assert_eq!(said, "every wrong call was refused; nothing is left\n");
    }
}

#[test]
fn the_examples_talk() {
    let dir = tempfile::tempdir().unwrap();
    let model = suite::model(dir.path());
    let mut answers = Vec::new();
    for source in ["examples/chat.c", "examples/chat.cpp"] {
        let Some(program) = compiled(dir.path(), source) else {
            continue;
        };
        let sessions = dir.path().join(source.replace('/', "-"));
        let arguments = [model.to_str().unwrap(), sessions.to_str().unwrap()];
        let said = printed(&program, &arguments, "Hello.\nAnd again.\n");
        assert_eq!(said.matches(" tokens; saw ").count(), 2, "{said}");
        // Up to what only C++ prints.
        let end = said.rfind("disk only]").unwrap();
        answers.push(said[..end].to_owned());
        let wrong = command(&program).args(["absent.gguf", "sessions"]).output();
        let wrong = wrong.unwrap();
        let error = String::from_utf8_lossy(&wrong.stderr);
        assert!(
            error.contains("absent.gguf") && error.contains("(not_found)"),
            "{error}"
        );
        assert_eq!(wrong.status.code(), Some(1));
    }
    answers.dedup();
    assert!(answers.len() <= 1, "{answers:?}");
}

/// The first program of the guide, as it is there.
#[test]
fn the_program_of_the_guide_talks() {
    let dir = tempfile::tempdir().unwrap();
    let guide = folder().join("../../docs/guide/c.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let (_, program) = guide.split_once("```c\n").unwrap();
    let (program, _) = program.split_once("```\n").unwrap();
    let source = dir.path().join("first.c");
    std::fs::write(&source, program).unwrap();
    std::fs::rename(suite::model(dir.path()), dir.path().join("model.gguf")).unwrap();
    if let Some(program) = compiled(dir.path(), source.to_str().unwrap()) {
        let output = command(&program).current_dir(dir.path()).output().unwrap();
        assert!(
            output.status.success() && !output.stdout.is_empty(),
            "{output:?}"
        );
        assert!(dir.path().join("sessions/anna.session").exists());
    }
}

/// By itself, in both languages.
#[test]
fn the_headers_compile_with_all_warnings() {
    let dir = tempfile::tempdir().unwrap();
    for (source, header) in [
        ("alone.c", "haversack.h"),
        ("alone.cpp", "haversack.h"),
        ("classes.cpp", "haversack.hpp"),
    ] {
        let path = dir.path().join(source);
        std::fs::write(&path, format!("#include \"{header}\"\n")).unwrap();
        let Some((compiler, standard)) = compiler(source) else {
            continue;
        };
        let mut command = Command::new(compiler);
        command.arg(standard).args(WARNINGS).arg("-I").arg(folder());
        command.args(["-fsyntax-only"]).arg(&path);
        assert!(command.status().unwrap().success(), "{source}");
    }
}

/// The header is made by another program, which `.ci/bindings` runs; that every function is in it is seen here at once.
#[test]
fn the_header_has_every_function() {
    let header = std::fs::read_to_string(folder().join("haversack.h")).unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut functions = Vec::new();
    for entry in std::fs::read_dir(sources).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for (at, _) in text.match_indices("extern \"C\" fn ") {
            let name = text[at + 14..].split('(').next().unwrap();
            functions.push(name.to_owned());
        }
    }
    assert!(functions.len() > 40, "{functions:?}");
    for function in &functions {
        assert!(header.contains(&format!("{function}(")), "{function}");
    }
    let version = format!(
        "#define HAVERSACK_VERSION \"{}\"",
        env!("CARGO_PKG_VERSION")
    );
    assert!(header.contains(&version), "{version}");
}
