//! Running the built program the way a stranger would, with a data directory of its own.

#![allow(dead_code)]

pub mod browser;
pub mod group;
pub mod hub;
pub mod server;

use serde_json::Value;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// What must happen has happened by then, however busy the machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A private `$HAVERSACK_HOME` and no way to the network.
pub struct Sandbox {
    pub directory: tempfile::TempDir,
    home: PathBuf,
    program: PathBuf,
}

pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Sandbox {
    pub fn new() -> Sandbox {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().join("home");
        let program = PathBuf::from(env!("CARGO_BIN_EXE_haversack"));
        Sandbox {
            directory,
            home,
            program,
        }
    }

    /// With another build of the program.
    pub fn with_program(self, program: PathBuf) -> Sandbox {
        Sandbox { program, ..self }
    }

    /// With this data directory.
    pub fn at(home: &Path) -> Sandbox {
        Sandbox {
            home: home.to_owned(),
            ..Sandbox::new()
        }
    }

    /// With a data directory that tests share: weights are packed once for all of them.
    pub fn shared() -> Sandbox {
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("home");
        Sandbox {
            home,
            ..Sandbox::new()
        }
    }

    /// With a home of its own that shares what was packed, and nothing else.
    #[cfg(unix)]
    pub fn alone() -> Sandbox {
        let (sandbox, shared) = (Sandbox::new(), Sandbox::shared());
        std::fs::create_dir_all(sandbox.home()).unwrap();
        for folder in ["packed", "cache"] {
            let from = shared.home().join(folder);
            std::fs::create_dir_all(&from).unwrap();
            std::os::unix::fs::symlink(&from, sandbox.home().join(folder)).unwrap();
        }
        sandbox
    }

    #[cfg(not(unix))]
    pub fn alone() -> Sandbox {
        Sandbox::new()
    }

    /// The same with the encoder, if it was fetched.
    #[cfg(unix)]
    pub fn with_encoder() -> Option<Sandbox> {
        let encoder = model("all-minilm-l6-v2")?;
        let sandbox = Sandbox::alone();
        let models = sandbox.home().join("models");
        std::fs::create_dir_all(&models).unwrap();
        std::os::unix::fs::symlink(&encoder, models.join("all-minilm-l6-v2")).unwrap();
        Some(sandbox)
    }

    /// For another process in this home.
    pub fn same_home(&self) -> Sandbox {
        Sandbox {
            home: self.home(),
            ..Sandbox::new()
        }
    }

    pub fn home(&self) -> PathBuf {
        self.home.clone()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// The program with nothing to fetch from: the hub refuses, and pip knows no index.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env("HAVERSACK_HOME", self.home())
            .env("HAVERSACK_HUB", "http://127.0.0.1:1")
            .env("PIP_NO_INDEX", "1")
            .env_remove("PIP_FIND_LINKS")
            .env_remove("HF_TOKEN")
            .env("PIP_CONFIG_FILE", "/dev/null")
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ended {
        ended(self.command(arguments).output().unwrap())
    }

    /// With this on stdin, all of which is read.
    pub fn run_with(&self, arguments: &[&str], input: &str) -> Ended {
        let (ended, written) = given(&mut self.command(arguments), input);
        written.unwrap();
        ended
    }
}

/// Runs a command with this on stdin. Writing it fails where the program ends before it has read all.
pub fn given(command: &mut Command, input: &str) -> (Ended, io::Result<()>) {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let written = child.stdin.take().unwrap().write_all(input.as_bytes());
    (ended(child.wait_with_output().unwrap()), written)
}

/// A file of keys, which only its owner may read.
#[cfg(unix)]
pub fn private(sandbox: &Sandbox, lines: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let file = sandbox.write("keys", lines);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    file
}

pub fn ended(output: Output) -> Ended {
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Ended {
    /// Success, and exactly one JSON document.
    pub fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }

    /// The error line, the only one but for the budget of a chat, with this exit code; nothing on stdout.
    pub fn error(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        assert_eq!(self.stdout, "", "nothing belongs on stdout");
        let line = self.stderr.trim_end_matches('\n');
        let line = match line.split_once('\n') {
            Some((first, rest)) if first.starts_with("memory budget ") => rest,
            _ => line,
        };
        assert!(line.starts_with("error: "), "{line}");
        assert!(!line.contains('\n'), "more than one line: {line}");
        line
    }
}

/// SmolLM2, where a test run may find it: `$HAVERSACK_TEST_MODELS`, else the data directory of the
/// user. Tests that need it say so when it is not there, and pass.
pub fn smollm2() -> Option<PathBuf> {
    model("smollm2-135m-instruct-q4_1.gguf")
}

pub fn model(name: &str) -> Option<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let home = set("HOME").unwrap_or_default();
    let places = [
        set("HAVERSACK_TEST_MODELS"),
        set("HAVERSACK_HOME").map(|path| path.join("models")),
        set("XDG_DATA_HOME").map(|path| path.join("haversack/models")),
        set("LOCALAPPDATA").map(|path| path.join("haversack/models")),
        Some(home.join(".local/share/haversack/models")),
        Some(home.join("Library/Application Support/haversack/models")),
    ];
    let found = places
        .into_iter()
        .flatten()
        .map(|place| place.join(name))
        .find(|path| path.exists());
    if found.is_none() {
        println!("SKIPPED: {name} is not here; `haversack pull tiny` fetches it");
    }
    found
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
