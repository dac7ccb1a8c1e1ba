//! Models by name: the catalogue, models of the hub, the default model, downloads that break, and removing what was fetched.

use crate::common;
use common::hub::{COMMIT, FakeHub, Fault};
use common::{Ended, Sandbox, ended, text};
use std::fs;
use std::path::{Path, PathBuf};

const NAME: &str = "hf:owner/repo/tiny.gguf";

fn tiny() -> Vec<u8> {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded");
    fs::read(recorded.join("tiny.gguf")).unwrap()
}

fn with_hub(sandbox: &Sandbox, hub: &FakeHub, arguments: &[&str]) -> Ended {
    let mut command = sandbox.command(arguments);
    command.env("HAVERSACK_HUB", &hub.address);
    ended(command.output().unwrap())
}

/// The files of a home, but for the note of how the content of a model was when it was used.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(files(&path)),
            path if path.ends_with("known-models") => {}
            path => found.push(path),
        }
    }
    found.sort();
    found
}

/// It fails with one last line that has these words, and the models folder is as if nothing had been tried.
fn fails_and_leaves_nothing(sandbox: &Sandbox, ended: &Ended, words: &[&str]) {
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(1), ""),
        "{}",
        ended.stderr
    );
    let errors: Vec<&str> = ended
        .stderr
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    let [line] = errors[..] else {
        panic!("{}", ended.stderr)
    };
    assert_eq!(
        ended.stderr.lines().last(),
        Some(line),
        "the error is the last line"
    );
    for word in words {
        assert!(line.contains(word), "{word}: {line}");
    }
    assert_eq!(files(&sandbox.home()), Vec::<PathBuf>::new());
    assert!(!sandbox.home().join("models").exists() && !sandbox.home().join("tmp").exists());
}

#[test]
fn a_model_of_the_hub_is_fetched_run_listed_and_removed() {
    let hub = FakeHub::new(&[
        ("README.md", b"#"),
        ("tiny.gguf", &tiny()),
        ("mmproj-f16.gguf", b"x"),
    ]);
    let sandbox = Sandbox::new();
    let path = sandbox.home().join("models/owner/repo/tiny.gguf");

    let document = with_hub(&sandbox, &hub, &["pull", "hf:owner/repo", "--json"]).json();
    assert_eq!(document["name"], NAME);
    assert_eq!(document["licence"], "mit");
    assert_eq!(document["path"], text(&path));
    assert_eq!(document["sha256"], common::hub::sha256(&tiny()));
    assert_eq!(document["default"], false);
    let paths: Vec<String> = hub.seen().into_iter().map(|seen| seen.path).collect();
    let resolved = format!("/owner/repo/resolve/{COMMIT}/tiny.gguf");
    assert_eq!(paths.last(), Some(&resolved), "{paths:?}");

    // From now on without the hub, by either name.
    let run = ["--raw", "--prompt", "the cat", "-n", "2", "--json"];
    for name in [NAME, "hf:owner/repo"] {
        let arguments = [&["run", name][..], &run].concat();
        let document = sandbox.run(&arguments).json();
        assert_eq!(document["usage"]["completion_tokens"], 2);
        assert_eq!(document["model"], "tiny");
    }
    let listed = sandbox.run(&["models", "--json"]).json();
    let rows = listed["models"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == NAME).unwrap();
    assert_eq!(
        (&row["here"], &row["bytes"]),
        (&"yes".into(), &tiny().len().into())
    );
    assert!(sandbox.run(&["models"]).stdout.contains(NAME));

    assert!(sandbox.home().join("packed").exists());
    let removed = sandbox.run(&["rm", "hf:owner/repo", "--json"]).json();
    let removed = &removed["removed"][0];
    assert_eq!(removed["name"], "hf:owner/repo");
    assert!(
        removed["bytes"].as_u64().unwrap() > tiny().len() as u64,
        "its packed copy, too"
    );
    assert_eq!(files(&sandbox.home()), Vec::<PathBuf>::new());
    let again = sandbox.run(&["rm", NAME]);
    assert!(again.error(1).contains("is not here"));
}

#[test]
fn all_parts_of_a_split_model_are_fetched() {
    let parts = [
        ("m-Q4_K_M-00001-of-00002.gguf", &b"one"[..]),
        ("m-Q4_K_M-00002-of-00002.gguf", b"two"),
    ];
    let hub = FakeHub::new(&parts);
    let sandbox = Sandbox::new();
    let document = with_hub(&sandbox, &hub, &["pull", "hf:owner/repo", "--json"]).json();
    assert_eq!(document["files"].as_array().unwrap().len(), 2);
    let folder = sandbox.home().join("models/owner/repo");
    for (name, bytes) in parts {
        assert_eq!(fs::read(folder.join(name)).unwrap(), bytes);
    }
    assert_eq!(sandbox.run(&["rm", "hf:owner/repo"]).code, Some(0));
    assert_eq!(files(&sandbox.home()), Vec::<PathBuf>::new());
}

#[test]
fn a_broken_download_goes_on_where_it_stopped() {
    let hub = FakeHub::new(&[("tiny.gguf", &tiny())]).redirecting();
    let sandbox = Sandbox::new();
    // A connection that breaks and a busy hub are nothing that the user sees but as time.
    hub.fail(&[
        Fault::CutAfter(1000),
        Fault::Status("503 Service Unavailable"),
        Fault::Status("429 Too Many Requests"),
    ]);
    let ended = with_hub(&sandbox, &hub, &["pull", NAME]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(
        fs::read(sandbox.home().join("models/owner/repo/tiny.gguf")).unwrap(),
        tiny()
    );
    let ranges = hub.seen().into_iter().filter_map(|seen| seen.range);
    assert!(ranges.into_iter().all(|range| range == "bytes=1000-"));

    // A line that only breaks: what came is kept, said so, and built upon.
    let sandbox = Sandbox::new();
    hub.fail(&[
        Fault::CutAfter(1000),
        Fault::CutAfter(0),
        Fault::CutAfter(0),
        Fault::CutAfter(0),
        Fault::CutAfter(0),
    ]);
    let ended = with_hub(&sandbox, &hub, &["pull", NAME]);
    assert_eq!(ended.code, Some(1));
    let line = ended.stderr.lines().last().unwrap();
    assert!(
        line.contains("at byte 1000 of") && line.contains("1000 B are kept"),
        "{line}"
    );
    let part = sandbox.home().join("models/owner/repo/tiny.gguf.part");
    assert_eq!(files(&sandbox.home()), [part]);
    hub.seen();
    assert_eq!(with_hub(&sandbox, &hub, &["pull", NAME]).code, Some(0));
    assert!(
        hub.seen()
            .iter()
            .any(|seen| seen.range.as_deref() == Some("bytes=1000-"))
    );

    // Or removed.
    let sandbox = Sandbox::new();
    hub.fail(&[Fault::CutAfter(1000); 6]);
    with_hub(&sandbox, &hub, &["pull", NAME]);
    assert_eq!(sandbox.run(&["rm", NAME]).code, Some(0));
    assert_eq!(files(&sandbox.home()), Vec::<PathBuf>::new());
}

#[test]
fn what_a_hub_refuses_is_one_line_and_leaves_nothing() {
    let hub = FakeHub::new(&[("tiny.gguf", &tiny())]);
    let sandbox = Sandbox::new();
    let pull = |hub: &FakeHub| with_hub(&sandbox, hub, &["pull", NAME]);
    for (status, words) in [
        ("401 Unauthorized", ["401", "HF_TOKEN"]),
        ("403 Forbidden", ["403", "licence"]),
        ("404 Not Found", ["404 Not Found", "hf:owner/repo"]),
        ("429 Too Many Requests", ["429", "hf:owner/repo"]),
        ("500 Internal Server Error", ["500", "hf:owner/repo"]),
    ] {
        hub.answer_all_with(Some(status));
        fails_and_leaves_nothing(&sandbox, &pull(&hub), &words);
        hub.answer_all_with(None);
        hub.fail(&[Fault::Status(status); 5]);
        fails_and_leaves_nothing(&sandbox, &pull(&hub), &[words[0], "tiny.gguf"]);
    }
    hub.fail(&[Fault::WrongBytes]);
    fails_and_leaves_nothing(&sandbox, &pull(&hub), &["sha256 is", "instead of"]);
    hub.fail(&[Fault::WrongSize]);
    fails_and_leaves_nothing(&sandbox, &pull(&hub), &["bytes instead of"]);
    hub.fail(&[Fault::CutAfter(0); 5]);
    fails_and_leaves_nothing(&sandbox, &pull(&hub), &["at byte 0 of"]);
    hub.fail(&[]);

    let other = |name: &str| with_hub(&sandbox, &hub, &["pull", name]);
    let words = ["it has no file other.gguf: tiny.gguf"];
    fails_and_leaves_nothing(&sandbox, &other("hf:owner/repo/other.gguf"), &words);
    fails_and_leaves_nothing(
        &sandbox,
        &other("hf:owner/nothing"),
        &["hf:owner/nothing", "404"],
    );
    hub.state_architecture("mamba");
    fails_and_leaves_nothing(&sandbox, &pull(&hub), &["mamba", "not supported", "qwen3"]);
    hub.state_architecture("llama");
    hub.state_no_sha256();
    fails_and_leaves_nothing(&sandbox, &pull(&hub), &["no sha256 for tiny.gguf"]);

    let ended = sandbox.run(&["pull", NAME]);
    fails_and_leaves_nothing(&sandbox, &ended, &["hf:owner/repo", "refused"]);
    for bad in [
        "hf:",
        "hf:owner",
        "hf:../repo",
        "hf:owner/repo/../../x.gguf",
        "hf:owner/repo/x.bin",
    ] {
        for command in ["pull", "rm"] {
            assert!(
                sandbox
                    .run(&[command, bad])
                    .error(2)
                    .contains("hf:OWNER/REPOSITORY"),
                "{bad}"
            );
        }
    }
}

/// The token is for the hub, not for the hosts that its redirects lead to.
#[test]
fn a_token_goes_to_the_hub_only() {
    let hub = FakeHub::new(&[("tiny.gguf", &tiny())]).redirecting();
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["pull", NAME, "--json"]);
    command
        .env("HAVERSACK_HUB", &hub.address)
        .env("HF_TOKEN", "hf_secret");
    let ended = ended(command.output().unwrap());
    ended.json();
    let all = hub.seen();
    let tokens: Vec<Option<&str>> = all
        .iter()
        .map(|seen| seen.authorization.as_deref())
        .collect();
    let token = Some("Bearer hf_secret");
    assert_eq!(tokens, [token, token, token, None], "{all:?}");
    assert!(!ended.stderr.contains("hf_secret") && !ended.stdout.contains("hf_secret"));
}

#[test]
fn an_unknown_name_suggests_the_nearest() {
    let sandbox = Sandbox::new();
    for (name, near) in [
        ("qwen3-1.7", "did you mean qwen3-1.7b?"),
        ("tinny", "did you mean tiny?"),
        ("phi4", "phi4-mini"),
    ] {
        let ended = sandbox.run(&["pull", name]);
        assert!(ended.error(2).contains(near), "{}", ended.stderr);
        for command in [&["run", name, "--prompt", "x"][..], &["rm", name]] {
            let ended = sandbox.run(command);
            assert!(ended.error(1).contains(near), "{}", ended.stderr);
        }
    }
    assert!(!sandbox.home().exists());
}

#[test]
fn a_model_of_another_architecture_says_so() {
    let sandbox = Sandbox::new();
    for command in [
        &["pull", "gemma-2-2b-it"][..],
        &["run", "gemma2-2b", "--prompt", "x"],
    ] {
        let ended = sandbox.run(command);
        let line = ended.error(1);
        assert!(
            line.contains("gemma2 model") && line.contains("supported: llama"),
            "{line}"
        );
    }
    let listed = sandbox.run(&["models"]).stdout;
    let line = listed
        .lines()
        .find(|line| line.starts_with("gemma-2-2b-it"))
        .unwrap();
    assert!(line.contains("no gemma2 yet"), "{line}");
}

#[test]
fn the_catalogue_with_what_fits() {
    let sandbox = Sandbox::new();
    // The choice depends on how busy the machine is.
    fs::create_dir(sandbox.home()).unwrap();
    let note = sandbox.home().join("default-model.toml");
    fs::write(
        &note,
        "model = \"smollm2-135m-instruct\"\nwhy = \"a test\"\n",
    )
    .unwrap();
    let document = sandbox.run(&["models", "--json"]).json();
    let rows = document["models"].as_array().unwrap();
    for name in [
        "qwen3-0.6b",
        "qwen3-4b",
        "gemma-3-1b-it",
        "llama-3.2-3b-instruct",
        "smollm2-360m-instruct",
        "phi-4-mini-instruct",
    ] {
        let row = rows.iter().find(|row| row["name"] == name).unwrap();
        assert!(
            ["fits", "tight", "too large"].contains(&row["fit"].as_str().unwrap()),
            "{row}"
        );
        assert!(row["needs_bytes"].as_u64() > row["bytes"].as_u64(), "{row}");
        assert_eq!(row["here"], "-");
    }
    let defaults = rows.iter().filter(|row| row["default"] == true);
    let defaults: Vec<_> = defaults.map(|row| &row["name"]).collect();
    assert_eq!(defaults, [&document["default"]["model"]]);
    assert!(!document["default"]["why"].as_str().unwrap().is_empty());
    assert_eq!(
        sandbox.run(&["pull", "--list", "--json"]).json()["models"],
        document["models"]
    );
    assert_eq!(files(&sandbox.home()), [note], "looking changes nothing");
}

#[test]
fn the_default_model_is_named_remembered_and_changed() {
    let hub = FakeHub::new(&[("tiny.gguf", &tiny())]);
    let sandbox = Sandbox::new();
    let tokenize = ["tokenize", "--text", "the cat", "--json"];

    // Nothing can be fetched: the choice is explained and not remembered.
    let failed = sandbox.run(&tokenize);
    assert_eq!(failed.code, Some(1));
    let first = failed.stderr.lines().next().unwrap();
    for word in [
        "using ",
        "haversack models lists others",
        "haversack pull NAME --default",
    ] {
        assert!(first.contains(word), "{first}");
    }
    let last = failed.stderr.lines().last().unwrap();
    let is_smallest = first.contains("smollm2-135m-instruct");
    assert!(
        is_smallest || last.contains("haversack pull tiny --default"),
        "{last}"
    );
    assert_eq!(files(&sandbox.home()), Vec::<PathBuf>::new());

    let pulled = with_hub(&sandbox, &hub, &["pull", NAME, "--default", "--json"]).json();
    assert_eq!(pulled["default"], true);
    sandbox.run(&tokenize).json();
    assert_eq!(sandbox.run(&tokenize).stderr, "", "explained once");
    let run = sandbox.run(&["run", "--raw", "--prompt", "the cat", "-n", "1", "--json"]);
    assert_eq!(run.json()["model"], "tiny");
    assert_eq!(
        sandbox.run(&["models", "--json"]).json()["default"]["model"],
        NAME
    );
    assert_eq!(
        sandbox.run(&["doctor", "--json"]).json()["storage"]["default_model"],
        NAME
    );
    assert!(sandbox.run(&[]).stdout.contains(NAME));

    // A damaged note is as none; a removed model is no default any more.
    let note = sandbox.home().join("default-model.toml");
    let kept = fs::read(&note).unwrap();
    fs::write(&note, "nonsense").unwrap();
    assert!(sandbox.run(&tokenize).stderr.starts_with("using "));
    fs::write(&note, kept).unwrap();
    sandbox.run(&["rm", NAME]);
    assert_eq!(files(&sandbox.home()), Vec::<PathBuf>::new());
}

/// A file system of 1 MiB: refused before the first byte where the size is known to be too large, else when it is full.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_one_line_and_leaves_nothing() {
    let hub = FakeHub::new(&[("tiny.gguf", &vec![3; 2 << 20])]);
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.home()).unwrap();
    let mount = |arguments: &[&str]| {
        let status = std::process::Command::new(arguments[0])
            .args(&arguments[1..])
            .status();
        status.is_ok_and(|status| status.success())
    };
    let home = sandbox.home();
    if !mount(&[
        "mount",
        "-t",
        "tmpfs",
        "-o",
        "size=1m",
        "tmpfs",
        text(&home),
    ]) {
        println!("SKIPPED: no file system can be mounted here");
        return;
    }
    let known = with_hub(&sandbox, &hub, &["pull", NAME]);
    let result = std::panic::catch_unwind(|| {
        fails_and_leaves_nothing(&sandbox, &known, &["disk full", "2.0 MiB", "free"]);
    });
    assert!(mount(&["umount", text(&home)]));
    result.unwrap();
}
