//! Files, copies, exports and searches in a chat, and the pages of a first day. Over pipes: a wrong command ends the chat
//! with one line, and nothing was changed.

use crate::common;

use common::{Ended, Sandbox, given, text};
use std::fs;
use std::path::{Path, PathBuf};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/tiny.gguf")
}

/// Where `~` and paths without a folder lead to the sandbox.
fn talk(sandbox: &Sandbox, flags: &[&str], input: &str) -> Ended {
    let model = tiny();
    let mut words = vec!["chat", text(&model), "-n", "4", "--temperature", "0"];
    words.extend(["--threads", "1", "--repack", "off"]);
    words.extend(flags);
    let mut command = sandbox.command(&words);
    command
        .current_dir(sandbox.directory.path())
        .env("HOME", sandbox.directory.path());
    // A chat that ended at an error reads no more.
    given(&mut command, input).0
}

fn said(sandbox: &Sandbox, flags: &[&str], input: &str) -> Ended {
    let ended = talk(sandbox, flags, input);
    assert_eq!(ended.code, Some(0), "{input}: {}", ended.stderr);
    ended
}

/// The error at which a chat ended, below what it said when it began.
fn refused(ended: &Ended, code: i32) -> &str {
    assert_eq!(ended.code, Some(code), "{}", ended.stderr);
    let mut lines = ended.stderr.lines().rev();
    let last = lines.next().unwrap_or_default();
    assert!(last.starts_with("error: "), "{}", ended.stderr);
    assert!(
        !lines.any(|line| line.starts_with("error: ")),
        "{}",
        ended.stderr
    );
    last
}

#[test]
fn a_file_goes_with_a_message() {
    let sandbox = Sandbox::new();
    sandbox.write("my notes.txt", "The shop opens at nine.\n");
    let typed =
        "\"\"\"\nFile my notes.txt:\n\n```txt\nThe shop opens at nine.\n```\n\nWhen?\n\"\"\"\n";
    let expected = said(&sandbox, &[], &format!("{typed}/export typed.md\n"));
    let page = fs::read_to_string(sandbox.path("typed.md")).unwrap();
    assert!(
        page.contains("```txt\nThe shop opens at nine.\n```\n\nWhen?\n\n**Assistant**"),
        "{page}"
    );
    for input in [
        "/file \"my notes.txt\" When?\n",
        "/file my notes.txt\nWhen?\n",
        "/file '~/my notes.txt'\nWhen?\n",
        "/file my notes.txt\n/file my notes.txt\n/clear\n/file ~/my notes.txt\nWhen?\n",
    ] {
        let found = said(&sandbox, &[], &format!("{input}/export! found.md\n"));
        assert_eq!(found.stdout, expected.stdout, "{input}");
        let found = fs::read_to_string(sandbox.path("found.md")).unwrap();
        assert_eq!(found, page, "{input}");
    }
    let listed = said(&sandbox, &[], "/file my notes.txt\n/file\n");
    assert!(
        listed.stdout.contains("24 bytes  my notes.txt"),
        "{}",
        listed.stdout
    );
    assert!(
        listed
            .stderr
            .contains("my notes.txt goes with the next message")
    );
}

#[test]
fn files_that_are_no_text() {
    let sandbox = Sandbox::new();
    sandbox.write("binary", b"a\0b");
    sandbox.write("latin", b"caf\xe9");
    sandbox.write("empty", b" \n");
    sandbox.write("long", vec![b'a'; (1 << 20) + 1]);
    sandbox.write("half", vec![b'a'; (1 << 19) + 1]);
    for (input, code, parts) in [
        (
            "/file missing.txt Why?",
            1,
            &["missing.txt", "No such file"][..],
        ),
        ("/file .", 1, &["a directory"]),
        ("/file /dev/zero", 1, &["/dev/zero is not a file"]),
        ("/file binary", 1, &["binary is a binary file", "UTF-8"]),
        ("/file latin", 1, &["latin is not UTF-8 text: byte 3"]),
        ("/file empty", 1, &["empty is empty"]),
        (
            "/file long",
            1,
            &["long has 1048577 bytes; accepted: at most 1048576"],
        ),
        ("/file", 2, &["/file PATH [QUESTION]"]),
    ] {
        let ended = talk(&sandbox, &[], &format!("{input}\nnever asked\n"));
        let line = refused(&ended, code);
        assert_eq!(ended.stdout, "", "{input}");
        for part in parts {
            assert!(line.contains(part), "{input}: {line}");
        }
    }
    let ended = talk(&sandbox, &[], "/file half\n/file half\n");
    assert!(ended.stderr.contains("half has 524289 bytes, files attached before it 524289; accepted: at most 1048576 together"), "{}", ended.stderr);
}

#[test]
fn an_answer_is_copied_and_no_file_overwritten() {
    let sandbox = Sandbox::new();
    let ended = said(&sandbox, &[], "Hello\n/copy answer.txt\n");
    let copied = fs::read_to_string(sandbox.path("answer.txt")).unwrap();
    assert_eq!(copied.trim_end(), ended.stdout.trim_end());
    assert!(
        ended.stderr.contains("saved answer.txt, "),
        "{}",
        ended.stderr
    );
    sandbox.write("mine", "mine");
    for (input, code, part) in [
        ("/copy none", 2, "there is no answer yet"),
        ("Hello\n/copy", 2, "/copy FILE saves the last answer"),
        (
            "Hello\n/copy mine",
            1,
            "mine exists; /copy! FILE replaces it",
        ),
        (
            "Hello\n/export mine",
            1,
            "mine exists; /export! FILE replaces it",
        ),
        ("Hello\n/export", 2, "/export FILE"),
        ("Hello\n/copy none code", 2, "no code block"),
        ("Hello\n/copy! mine 7", 2, "no code block"),
        ("Hello\n/copy nowhere/x", 1, "cannot write nowhere/x"),
        ("Hello\n/copy! .", 1, ". is not a file"),
    ] {
        let ended = talk(&sandbox, &[], &format!("{input}\n"));
        let last = refused(&ended, code);
        assert!(last.contains(part), "{input}: {last}");
        assert_eq!(
            fs::read_to_string(sandbox.path("mine")).unwrap(),
            "mine",
            "{input}"
        );
        assert!(!sandbox.path("none").exists(), "{input}");
    }
    said(&sandbox, &[], "Hello\n/copy! mine\n/copy! new\n");
    for name in ["mine", "new"] {
        assert_eq!(fs::read_to_string(sandbox.path(name)).unwrap(), copied);
    }
    let files = fs::read_dir(sandbox.directory.path()).unwrap().count();
    assert_eq!(files, 3, "nothing half written is left");
}

#[test]
fn a_chat_exports_what_the_command_does() {
    let sandbox = Sandbox::new();
    let flags = ["--session", "anna", "--system", "You know."];
    said(
        &sandbox,
        &flags,
        "Hello\n/fact The shop opens at ten.\n/state room: garden\nAnd now?\n",
    );
    let ended = said(
        &sandbox,
        &["--session", "anna"],
        "/export anna.md\n/copy last.txt\n",
    );
    let page = fs::read_to_string(sandbox.path("anna.md")).unwrap();
    let model = tiny();
    let exported = sandbox.run(&["session", "export", "anna", text(&model)]);
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    assert_eq!(page, exported.stdout, "{}", ended.stderr);
    for part in [
        "# Session anna\n",
        "You know.",
        "Hello",
        "opens at ten",
        "room: garden",
    ] {
        assert!(page.contains(part), "{page}");
    }
    let last = fs::read_to_string(sandbox.path("last.txt")).unwrap();
    assert!(page.trim_end().ends_with(last.trim_end()), "{page}");
    let exported = sandbox.run(&[
        "session",
        "export",
        "anna",
        text(&model),
        "-o",
        text(&sandbox.path("anna.md")),
    ]);
    assert!(exported.error(1).contains("anna.md exists; "));
    said(
        &sandbox,
        &["--system", "You are brief."],
        "Hello\n/export unsaved.md\n",
    );
    let page = fs::read_to_string(sandbox.path("unsaved.md")).unwrap();
    assert!(
        page.starts_with("# Chat with ")
            && page.contains("\n## Fact 0\n\nYou are brief.\n\n## Turn 1\n\n**User**\n\nHello\n"),
        "{page}"
    );
}

#[test]
fn words_are_found_in_saved_sessions() {
    let sandbox = Sandbox::new();
    let model = tiny();
    for (name, fact) in [
        ("old", "Miso is a CAT."),
        ("new", "My cat Miso sleeps."),
        ("other", "A dog."),
    ] {
        said(
            &sandbox,
            &["--session", name],
            &format!("/fact {fact}\nWhere is the Garden?\n"),
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let search = |words: &[&str]| {
        let all = [&["session", "search", "--model", text(&model)], words].concat();
        let ended = sandbox.run(&all);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended
    };
    let names = |ended: &Ended| {
        let words = ended
            .stdout
            .lines()
            .map(|line| line.split(' ').next().unwrap().to_owned());
        words.collect::<Vec<String>>()
    };
    let found = search(&["cat", "miso"]);
    assert_eq!(names(&found), ["new", "old"], "{}", found.stdout);
    assert!(
        found.stdout.contains("fact 1: My cat Miso sleeps.\n"),
        "{}",
        found.stdout
    );
    // Words of different texts, in any case; the newest text is shown.
    let found = search(&["DOG", "gArDeN"]);
    assert_eq!(names(&found), ["other"]);
    assert!(
        found.stdout.contains("turn 0: Where is the Garden?"),
        "{}",
        found.stdout
    );
    assert_eq!(
        names(&search(&["cat miso"])),
        ["new"],
        "words in quotes stand together"
    );
    let none = search(&["cat", "zebra"]);
    assert_eq!(
        (&none.stdout[..], &none.stderr[..]),
        ("", "no session has: cat zebra\n")
    );
    let document = search(&["miso", "--json"]).json();
    assert_eq!(document["words"][0], "miso");
    assert_eq!(document["sessions"][0]["name"], "new");
    assert_eq!(document["sessions"][0]["kind"], "fact");
    assert!(
        document["sessions"][0]["saved_ms"].as_u64() > document["sessions"][1]["saved_ms"].as_u64()
    );
    // The same in a chat, saved or not.
    for flags in [&["--session", "fourth"][..], &[]] {
        let ended = said(&sandbox, flags, "/search miso  Cat\n");
        assert_eq!(names(&ended), ["new", "old"], "{}", ended.stdout);
    }
    assert!(refused(&talk(&sandbox, &[], "/search\n"), 2).contains("nothing to search for"));

    // A damaged file is named, and the others are searched.
    let path = sandbox.home().join("sessions/new.session");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 16;
    fs::write(&path, bytes).unwrap();
    let found = search(&["miso"]);
    assert_eq!(names(&found), ["old"]);
    assert!(
        found.stderr.contains("session new was not searched: "),
        "{}",
        found.stderr
    );
    let document = search(&["miso", "--json"]).json();
    assert_eq!(document["skipped"][0]["name"], "new");
    assert_eq!(document["sessions"].as_array().unwrap().len(), 1);
    sandbox.run(&["session", "search"]).error(2);
    sandbox
        .run(&["session", "search", " ", "--model", text(&model)])
        .error(2);
}

#[test]
fn without_a_command_there_is_a_page_to_begin_with() {
    let sandbox = Sandbox::new();
    let page = sandbox.run(&[]);
    assert_eq!((page.code, &page.stderr[..]), (Some(0), ""));
    for part in [
        "haversack chat ",
        "haversack run --prompt ",
        "haversack doctor ",
        "haversack --help",
    ] {
        assert!(page.stdout.contains(part), "{}", page.stdout);
    }
    assert!(page.stdout.lines().count() <= 8, "{}", page.stdout);
    let ended = sandbox.run(&["doctor"]);
    let (_, next) = ended.stdout.split_once("\nnext\n").unwrap();
    assert!((1..=3).contains(&next.lines().count()), "{next}");
    assert!(
        next.contains("no model yet: haversack chat downloads one"),
        "{next}"
    );
    assert!(!sandbox.home().exists(), "looking changes nothing");
}
