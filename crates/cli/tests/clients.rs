//! Programs that people have, against the program that is served. They come from package indexes, so this is not run by
//! itself:
//!
//! ```sh
//! cargo test -p haversack-cli --test clients -- --ignored
//! ```

mod common;

use common::server::Server;
use common::{Sandbox, text};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A Python with the packages, kept between runs. Whatever pip is set to use is used.
fn python(packages: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
    let python = folder.join("bin/python");
    let run = |command: &mut Command| {
        let done = command.output().unwrap();
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{told}");
    };
    if !python.exists() {
        run(Command::new("python3").args(["-m", "venv", text(&folder)]));
    }
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet"])
        .args(packages));
    python
}

#[test]
#[ignore = "fetches the Python package `openai` with pip"]
fn the_official_python_client() {
    let python = python(&["openai>=1.60", "pydantic>=2"]);
    let sandbox = Sandbox::new();
    let secret = "a-key-for-tests-0123456789";
    let key = sandbox.write("key", secret);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let flags = ["--memory", "200M", "--batch", "2", "--queue", "2"];
    let flags = [&flags[..], &["--api-key-file", text(&key)]].concat();
    let Some(home) = Sandbox::with_encoder() else {
        return;
    };
    let Some(server) = Server::start_in(home, &flags) else {
        return;
    };
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/openai_suite.py");
    let done = Command::new(python)
        .args([text(&suite), &format!("http://{}", server.address), secret])
        .env_remove("OPENAI_API_KEY")
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&done.stdout));
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{told}");
}
