//! Programs that people have, against the program that is served. They come from package indexes, so this is not run by
//! itself:
//!
//! ```sh
//! cargo test -p haversack-cli --test clients -- --ignored
//! ```

mod common;

use common::server::Server;
use common::{Sandbox, model, text};
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

const SECRET: &str = "a-key-for-tests-0123456789";

/// A server with four places and a key, if there are models.
fn server() -> Option<(Sandbox, Server)> {
    let sandbox = Sandbox::new();
    let key = sandbox.write("key", SECRET);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let flags = ["--memory", "200M", "--batch", "2", "--queue", "2"];
    let flags = [&flags[..], &["--api-key-file", text(&key)]].concat();
    let server = Server::start_in(Sandbox::with_encoder()?, &flags)?;
    Some((sandbox, server))
}

/// Runs a suite against a server: it ends well if everything held.
fn holds(suite: &mut Command) {
    let Some((_sandbox, server)) = server() else {
        return;
    };
    let done = suite
        .args([&format!("http://{}", server.address), SECRET])
        .env_remove("OPENAI_API_KEY")
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&done.stdout));
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{told}");
}

fn suites() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
}

#[test]
#[ignore = "fetches the Python package `openai` with pip"]
fn the_official_python_client() {
    let python = python(&["openai>=1.60", "pydantic>=2"]);
    holds(Command::new(python).arg(suites().join("openai_suite.py")));
}

#[test]
#[ignore = "fetches the crate `async-openai`, and builds it"]
fn the_client_of_rust() {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients-rust");
    let mut cargo = Command::new(env!("CARGO"));
    let manifest = suites().join("rust/Cargo.toml");
    cargo.args(["build", "--quiet", "--manifest-path", text(&manifest)]);
    cargo.args(["--target-dir", text(&built)]);
    let done = cargo.output().unwrap();
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{told}");
    holds(&mut Command::new(built.join("debug/openai-suite")));
}

/// Tools and schemas of the command line `llm` with the default model, which calls tools; the tiny one does not. What it says is
/// printed.
#[test]
#[ignore = "fetches the Python package `llm` with pip"]
fn the_llm_command_line() {
    let Some(model) = model("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf") else {
        return;
    };
    let python = python(&["llm>=0.26"]);
    let server = Server::start_with(Sandbox::shared(), &model, &[]);
    let sandbox = Sandbox::new();
    let address = server.address;
    sandbox.write(
        "extra-openai-models.yaml",
        format!(
            "- model_id: haversack\n  model_name: haversack\n  api_base: http://{address}/v1\n  \
             supports_tools: true\n  supports_schema: true\n"
        ),
    );
    let folder = sandbox.path("");
    let llm = |words: &[&str]| {
        let usual: &[&str] = &["-m", "llm", "-m", "haversack", "-o", "temperature", "0"];
        let words = [usual, words].concat();
        let done = Command::new(&python)
            .args(&words)
            .env("LLM_USER_PATH", &folder)
            .env_remove("OPENAI_API_KEY")
            .output()
            .unwrap();
        let (said, told) = (
            String::from_utf8_lossy(&done.stdout).into_owned(),
            String::from_utf8_lossy(&done.stderr).into_owned(),
        );
        println!("llm {}\n{told}{said}", words[2..].join(" "));
        assert!(done.status.success(), "{told}");
        (said, told)
    };
    let ways: [&[&str]; 2] = [&[], &["--no-stream"]];
    for way in ways {
        let tool = ["-T", "llm_time", "--td"];
        let (said, told) = llm(&[way, &tool, &["What time is it?"]].concat());
        assert_eq!(told.matches("Tool call: llm_time({})").count(), 1, "{told}");
        assert!(said.chars().any(|c| c.is_ascii_digit()), "{said}");
        let (said, told) = llm(&[way, &tool, &["What is the capital of France?"]].concat());
        assert!(
            said.contains("Paris") && !told.contains("Tool call"),
            "{told}{said}"
        );
        let schema = ["--schema", "name, age int, city", "invent a person"];
        let (said, _) = llm(&[way, &schema].concat());
        let person: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert!(
            person["name"].is_string() && person["city"].is_string(),
            "{said}"
        );
        assert!(
            person["age"].is_i64() && person.as_object().unwrap().len() == 3,
            "{said}"
        );
    }
}
