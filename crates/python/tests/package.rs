//! The Python package as it is installed: the compiled part in the folder of the sources. The scripted suite and the tests of
//! `bindings/python` run in it. Needs Python 3.9 or newer; without one each test says so.
#![cfg(unix)]

use haversack_testing::suite;
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> PathBuf {
    suite::folder().parent().unwrap().join("python")
}

/// A Python that is new enough; none is printed. HAVERSACK_PYTHON names one that has the package installed.
fn python() -> Option<Command> {
    let python = std::env::var("HAVERSACK_PYTHON").unwrap_or("python3".to_owned());
    let is_new = "import sys; sys.exit(sys.version_info < (3, 9))";
    let found = Command::new(&python).args(["-c", is_new]).status();
    if found.is_ok_and(|status| status.success()) {
        return Some(Command::new(python));
    }
    println!("SKIPPED: there is no Python 3.9");
    None
}

/// Puts the package together in `dir`, unless it is installed.
fn installed(dir: &Path) {
    if std::env::var_os("HAVERSACK_PYTHON").is_some() {
        return;
    }
    let package = dir.join("haversack");
    std::fs::create_dir(&package).unwrap();
    for entry in std::fs::read_dir(folder().join("haversack")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, package.join(path.file_name().unwrap())).unwrap();
        }
    }
    let test = std::env::current_exe().unwrap();
    let built = ["libhaversack_python.so", "libhaversack_python.dylib"];
    let mut built = built.iter().map(|name| test.parent().unwrap().join(name));
    let library = built.find(|path| path.exists()).unwrap();
    std::fs::copy(library, package.join("_native.abi3.so")).unwrap();
}

#[test]
fn the_suite_is_as_recorded() {
    let dir = tempfile::tempdir().unwrap();
    if python().is_none() {
        return;
    }
    installed(dir.path());
    let transcript = suite::run(dir.path(), &mut || {
        let mut command = python().unwrap();
        command.env("PYTHONPATH", dir.path());
        command.arg(folder().join("tests/suite.py"));
        command
    });
    suite::check(&transcript);
}

#[test]
fn the_package_is_tested_in_python() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut command) = python() else {
        return;
    };
    installed(dir.path());
    command.env("PYTHONPATH", dir.path());
    command.env("HAVERSACK_MODEL", suite::model(dir.path()));
    command
        .arg("-B")
        .arg(folder().join("tests/test_haversack.py"));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("\nOK"), "{said}");
}
