//! `verify` and `inspect` of session files: whole, damaged, none at all.

use crate::common;

use common::{Sandbox, text};
use haversack::engine::runtime::GenerateOptions;
use haversack::engine::sample::{SampleOptions, Sampler};
use haversack::engine::{LoadOptions, Model, Retention, Runtime, RuntimeOptions};
use haversack::session::{SessionOptions, Sessions};
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
        dir: Some(sandbox.path("sessions")),
        persistent_max: 100,
        capacity: 300,
        answer_max: 4,
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
