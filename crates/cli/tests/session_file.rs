//! `verify`, `inspect`, `session export` and `session delete` of session files: whole, damaged, none at all.

use crate::common;

use common::{Sandbox, text};
use haversack::engine::runtime::GenerateOptions;
use haversack::engine::sample::{SampleOptions, Sampler};
use haversack::engine::{LoadOptions, Model, Retention, Runtime, RuntimeOptions};
use haversack::session::{SessionOptions, SessionSettings, Sessions};
use haversack_testing::models::Spec;
use serde_json::Value;
use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// A session of three turns and two facts, of which one took the place of another.
fn session(sandbox: &Sandbox) -> PathBuf {
    let model = sandbox.path("tiny.gguf");
    Spec::named("llama").unwrap().write_file(&model).unwrap();
    let model = Model::load(&model, &LoadOptions::default(), &mut |_, _| ()).unwrap();
    let options = RuntimeOptions {
        retention: Retention::managed(),
        threads: 1,
        ..RuntimeOptions::default()
    };
    let mut runtime = Runtime::new(model, &options).unwrap();
    let options = SessionOptions {
        settings: SessionSettings {
            persistent_max: Some(100),
            answer_max: Some(4),
            ..SessionSettings::default()
        },
        dir: Some(sandbox.path("sessions")),
        tenant: "a\tb".into(),
        ..SessionOptions::default()
    };
    let mut sessions = Sessions::new(&runtime, options).unwrap();
    let id = sessions
        .create(&mut runtime, "anna", "You know.", 1)
        .unwrap();
    for text in ["one", "two", "three"] {
        let mut sampler = Sampler::new(SampleOptions::default()).unwrap();
        let options = GenerateOptions::default();
        let go_on =
            &mut |_: haversack::engine::runtime::GenerateEvent<'_>| ControlFlow::Continue(());
        let said = sessions.say(&mut runtime, id, text, 2, &mut sampler, &options, go_on);
        assert_eq!(said.unwrap().context.unsaved, None);
    }
    let fact = sessions
        .add_fact(&mut runtime, id, "It is nine.", 3)
        .unwrap();
    let said = sessions.supersede(&mut runtime, id, fact, "It is ten.", 4);
    said.unwrap();
    sandbox.path("sessions").join("anna.session")
}

#[test]
fn a_whole_file() {
    let sandbox = Sandbox::new();
    let path = session(&sandbox);
    let ended = sandbox.run(&["verify", text(&path)]);
    assert_eq!((ended.code, &ended.stderr[..]), (Some(0), ""));
    let line = ended.stdout.trim_end();
    assert!(!line.contains('\n'), "{line}");
    for part in [
        ": good, 3 turns, 3 facts, 1 change, ",
        ", 6 states, ",
        " in 6 commits, model ",
        ", kv ",
        ", tokenizer ",
        "tenant a\\tb, session anna",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let document = sandbox.run(&["verify", text(&path), "--json"]).json();
    assert_eq!(document["ok"], true);
    assert_eq!(document["files"][0]["identity"]["session"], "anna");

    let document = sandbox.run(&["inspect", text(&path), "--json"]).json();
    assert_eq!(document["format"], "session");
    assert_eq!(document["turns"]["told"], 3);
    assert_eq!(document["turns"]["in_memory"]["turns"], 3);
    assert_eq!(document["facts"], 2);
    assert_eq!(document["time_ms"], 4);
    assert_eq!(document["bytes"], fs::metadata(&path).unwrap().len());
    assert_eq!(document["records"][0]["kind"], "turn");
    let page = sandbox.run(&["inspect", text(&path)]).stdout;
    for part in [
        "session          anna\n",
        "turns            3 told\n",
        "facts            2, ",
    ] {
        assert!(page.contains(part), "{page}");
    }
    // By its first bytes, whatever it is called.
    let other = sandbox.path("anything.bin");
    fs::copy(&path, &other).unwrap();
    assert_eq!(sandbox.run(&["verify", text(&other)]).code, Some(0));
    assert!(!sandbox.home().exists(), "looking changes nothing");
}

#[test]
fn damaged_files() {
    let sandbox = Sandbox::new();
    let path = session(&sandbox);
    let bytes = fs::read(&path).unwrap();
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 4;
    let mut foreign = bytes.clone();
    foreign[0] ^= 1;
    let cases: [(&str, &[u8], &str); 4] = [
        ("flipped.session", &flipped, "it is damaged: "),
        (
            "cut.session",
            &bytes[..bytes.len() - 1],
            "it is truncated: ",
        ),
        ("foreign.session", &foreign, "it is not a journal"),
        ("empty.session", b"", "it is empty, not a journal"),
    ];
    for (name, content, expected) in cases {
        let file = sandbox.write(name, content);
        for command in ["verify", "inspect"] {
            let ended = sandbox.run(&[command, text(&file)]);
            let line = ended.error(1);
            assert!(line.contains(name) && line.contains(expected), "{line}");
        }
        let ended = sandbox.run(&["verify", text(&file), text(&path), "--json"]);
        assert_eq!(ended.code, Some(1));
        let document: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(document["files"][0]["ok"], false);
        assert_eq!(document["files"][1]["ok"], true);
    }
    let folder = sandbox.path("folder.session");
    fs::create_dir(&folder).unwrap();
    let ended = sandbox.run(&["verify", text(&folder)]);
    assert!(ended.error(1).contains("a directory"));
    let ended = sandbox.run(&["inspect", text(&sandbox.path("nowhere.session"))]);
    ended.error(1);
}

/// The session under its name in the data directory, with one byte changed at a share of its length.
fn damaged_at(sandbox: &Sandbox, whole: &[u8], percent: usize) -> PathBuf {
    let path = sandbox.home().join("sessions").join("anna.session");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut bytes = whole.to_vec();
    let at = (bytes.len() * percent / 100).min(bytes.len() - 1);
    bytes[at] ^= 16;
    fs::write(&path, bytes).unwrap();
    path
}

/// Whatever is damaged, everything said before it can be saved in words, and the file can be deleted. An earlier build
/// could neither read nor delete it.
#[test]
fn a_damaged_session_is_exported_and_deleted() {
    let sandbox = Sandbox::new();
    let path = session(&sandbox);
    let whole = fs::read(&path).unwrap();
    let model = sandbox.path("tiny.gguf");
    let export = |flags: &[&str]| {
        let words = [&["session", "export", "anna", text(&model)], flags].concat();
        sandbox.run(&words)
    };
    let ended = sandbox.run(&["session", "export", text(&path), text(&model)]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        ended
            .stdout
            .starts_with("# Session anna\n\n## Fact 0\n\nYou know.\n")
    );
    for part in [
        "\n\n**User**\n\none\n\n**Assistant**\n\n",
        "## Turn 2\n",
        "It is ten.",
    ] {
        assert!(ended.stdout.contains(part), "{part}: {}", ended.stdout);
    }
    assert!(!ended.stdout.contains("nine") && !ended.stderr.contains("damage"));

    let mut turns_before = 0;
    for percent in [0, 30, 60, 99] {
        damaged_at(&sandbox, &whole, percent);
        let document = export(&["--json"]).json();
        let damage = document["damage"].as_str().unwrap_or_default();
        let expected = if percent == 0 {
            "not a journal"
        } else {
            "damaged"
        };
        assert!(damage.contains(expected), "{percent} %: {document:#}");
        let turns = document["turns"].as_array().unwrap();
        if percent == 0 {
            // The head alone: everything else is whole.
            assert_eq!(turns.len(), 3);
        } else {
            assert!(turns.len() >= turns_before, "{percent} %");
            turns_before = turns.len();
        }
        for (turn, said) in turns.iter().zip(["one", "two", "three"]) {
            assert_eq!(turn["question"], said);
        }
        let page = export(&[]);
        assert_eq!(page.code, Some(0), "{}", page.stderr);
        assert!(page.stderr.contains("damage") && page.stdout.contains("damage"));
    }
    assert!(turns_before > 0);
    // Without the model the ids are left.
    let other = sandbox.path("other.gguf");
    let spec = Spec::named("qwen2").unwrap();
    Spec { seed: 77, ..spec }.write_file(&other).unwrap();
    let output = sandbox.path("saved.json");
    let flags = [
        "session",
        "export",
        "anna",
        text(&other),
        "--json",
        "-o",
        text(&output),
    ];
    let ended = sandbox.run(&flags);
    if ended.code == Some(0) && ended.stderr.contains("token ids only") {
        let saved: Value = serde_json::from_slice(&fs::read(&output).unwrap()).unwrap();
        assert_eq!(saved["turns"][0]["question"], Value::Null);
        assert!(
            saved["turns"][0]["question_tokens"]
                .as_array()
                .unwrap()
                .len()
                > 1
        );
    }
    // What is there is not written over.
    fs::write(&output, "mine").unwrap();
    assert!(
        export(&["-o", text(&output)])
            .error(1)
            .contains("saved.json")
    );

    let path = damaged_at(&sandbox, &whole, 50);
    let held = fs::File::open(&path).unwrap();
    held.lock().unwrap();
    let refused = sandbox.run(&["session", "delete", "anna"]);
    assert!(refused.error(1).contains("it is open elsewhere"));
    drop(held);
    let listed = sandbox.run(&["session", "list", "--json"]).json();
    assert_eq!(listed["sessions"][0]["name"], "anna");
    let ended = sandbox.run(&["session", "delete", "anna"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!path.exists());
    let ended = sandbox.run(&["session", "delete", "anna"]);
    assert!(ended.error(1).contains("there is no session anna"));
    sandbox.run(&["session", "delete", "../x"]).error(2);
    sandbox.run(&["session", "export", "anna"]).error(1);
}
