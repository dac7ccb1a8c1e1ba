//! `chat` in a real terminal: a pseudo-terminal that `script` (util-linux) opens. Where it is missing, the tests say so.

#![cfg(target_os = "linux")]

use crate::common;

use common::{PATIENCE, Sandbox, smollm2, text};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// What a person would see who types each line after its text has appeared. `None`, said loudly, without `script`.
fn seen(
    sandbox: &Sandbox,
    arguments: &[&str],
    environment: &[(&str, &str)],
    typed: &[(&str, &str)],
) -> Option<String> {
    let is_here = Command::new("script").arg("--version").output();
    if !is_here.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: script is not here; Debian has it in bsdutils, others in util-linux");
        return None;
    }
    let inner = sandbox.command(arguments);
    let words = std::iter::once(inner.get_program()).chain(inner.get_args());
    let words = words.map(|word| format!("'{}'", word.to_str().unwrap()));
    let line = words.collect::<Vec<String>>().join(" ");
    let mut command = Command::new("script");
    command
        .args(["-qec", &line, "/dev/null"])
        .env_remove("NO_COLOR")
        .env("TERM", "xterm")
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.envs(environment.iter().copied());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let (send, pieces) = channel();
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(read @ 1..) = stdout.read(&mut piece)
            && send.send(piece[..read].to_vec()).is_ok()
        {}
    });
    let (mut bytes, began) = (Vec::new(), Instant::now());
    let (mut typed, mut last) = (typed.iter().peekable(), None);
    loop {
        let is_now = |(after, _): &&(&str, &str)| String::from_utf8_lossy(&bytes).contains(after);
        if let Some((_, line)) = typed.next_if(is_now) {
            last = Some(line);
            let _ = stdin.write_all(line.as_bytes());
        }
        match pieces.recv_timeout(Duration::from_secs(4)) {
            Ok(piece) => bytes.extend_from_slice(&piece),
            Err(RecvTimeoutError::Disconnected) => break,
            // A line that is typed between two uses of the line editor is lost: a person types it again.
            Err(RecvTimeoutError::Timeout) => {
                if began.elapsed() > PATIENCE {
                    let _ = child.kill();
                    panic!("not over: {}", String::from_utf8_lossy(&bytes));
                }
                let again = last.map_or(&b""[..], |line| line.as_bytes());
                let _ = stdin.write_all(again);
            }
        }
    }
    let shown = String::from_utf8_lossy(&bytes).into_owned();
    assert!(child.wait().unwrap().success(), "{shown}");
    Some(shown)
}

/// Three lines explain a first chat, once, and never in a pipe; before it the encoder is offered.
#[test]
fn a_first_chat_is_explained_once() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/tiny.gguf");
    let words = |sandbox: &Sandbox, flags: &[&str], typed: &[(&str, &str)]| {
        let chat = [
            "chat",
            text(&model),
            "-n",
            "4",
            "--threads",
            "1",
            "--repack",
            "off",
        ];
        seen(sandbox, &[&chat[..], flags].concat(), &[], typed)
    };
    let quit = [("> ", "/quit\n")];
    let offered = [("[y/N]", "\n"), ("> ", "/quit\n")];
    let explained = |shown: &str| shown.contains("This chat is saved after every answer.");
    let sandbox = Sandbox::new();
    let Some(shown) = words(&sandbox, &["--no-save"], &quit) else {
        return;
    };
    assert!(!explained(&shown), "nothing is saved: {shown}");
    let shown = words(&sandbox, &[], &offered).unwrap();
    assert!(shown.contains("sentence encoder (87."), "{shown}");
    let lines: Vec<&str> = shown.lines().collect();
    let at = lines
        .iter()
        .position(|line| explained(line))
        .unwrap_or_else(|| panic!("{shown}"));
    assert!(
        lines[at].contains("haversack chat --session chat-1"),
        "{shown}"
    );
    assert!(
        lines[at + 1].contains("/help") && lines[at + 2].contains("Ctrl-C"),
        "{shown}"
    );
    // Nothing can be downloaded here, and the chat begins all the same.
    let yes = [("[y/N]", "y\n"), ("> ", "/quit\n")];
    let offline = Sandbox::new();
    let without = words(&offline, &[], &yes).unwrap();
    assert!(
        without.contains("no sentence encoder: ") && explained(&without),
        "{without}"
    );
    let later = words(&offline, &[], &quit).unwrap();
    assert!(later.contains("/help for help"), "{later}");
    let left = words(&Sandbox::new(), &["--no-encoder"], &quit).unwrap();
    assert!(!left.contains("encoder") && explained(&left), "{left}");
    let again = words(&sandbox, &[], &quit).unwrap();
    assert!(
        !explained(&again) && again.contains("/help for help"),
        "{again}"
    );

    let sandbox = Sandbox::new();
    let flags = ["chat", text(&model), "--session", "anna", "--repack", "off"];
    let piped = sandbox.run(&flags);
    assert!(
        piped.code == Some(0) && !explained(&piped.stderr),
        "{}",
        piped.stderr
    );
}

/// The same answer in a pipe, drawn in a terminal, and plain in a terminal.
#[test]
fn an_answer_is_drawn_in_a_terminal_only() {
    let Some(model) = smollm2() else { return };
    let sandbox = Sandbox::alone();
    let question = "Write a Python function that adds two numbers.\n";
    let flags = [
        "chat",
        text(&model),
        "-n",
        "48",
        "--temperature",
        "0",
        "--no-save",
        "--stats",
    ];
    let typed = [("/help for help", question), ("tokens at", "/quit\n")];
    let Some(drawn) = seen(&sandbox, &flags, &[], &typed) else {
        return;
    };
    let piped = sandbox.run_with(&flags, question).stdout;
    assert!(piped.contains("```python\n"), "{piped}");
    assert!(drawn.contains("\x1b[2mpython\x1b[0m\r\n  def "), "{drawn}");
    assert!(!drawn.contains("```"), "{drawn}");
    let in_terminal = piped.replace('\n', "\r\n");
    let plain = [&flags[..], &["--plain"]].concat();
    for (flags, environment) in [
        (&flags[..], [("NO_COLOR", "1")]),
        (&flags[..], [("TERM", "dumb")]),
        (&plain[..], [("LC_ALL", "C")]),
    ] {
        let shown = seen(&sandbox, flags, &environment, &typed).unwrap();
        assert!(shown.contains(&in_terminal), "{environment:?}: {shown}");
    }
}

/// What lasts in what a user says is remembered while a session in a terminal waits, and the chat says so; with the flag, and in a pipe,
/// it is not.
#[test]
fn a_session_in_a_terminal_remembers_what_lasts() {
    let Some(model) = smollm2() else { return };
    let sandbox = Sandbox::alone();
    let said = "I work as a nurse in Ghent.\n";
    let chat = |name: &'static str, more: &[&'static str]| {
        let chat = [
            "chat",
            text(&model),
            "-n",
            "4",
            "--no-encoder",
            "--session",
            name,
        ];
        [&chat[..], more].concat()
    };
    let typed = [
        ("/help for help", said),
        (
            "remembered: I work as a nurse in Ghent. (fact 1;",
            "/fact\n",
        ),
        ("  (turn 0)", "/quit\n"),
    ];
    let Some(shown) = seen(&sandbox, &chat("anna", &[]), &[], &typed) else {
        return;
    };
    let listed = "   1  The user said: I work as a nurse in Ghent.  (turn 0)";
    assert!(shown.contains(listed), "{shown}");
    // Saved with the session.
    let piped = sandbox.run_with(&chat("anna", &[]), "/fact\n");
    assert!(piped.stdout.contains(listed), "{}", piped.stdout);
    let off = [
        ("/help for help", said),
        ("(stopped", "/fact\n"),
        ("> ", "/quit\n"),
    ];
    let shown = seen(&sandbox, &chat("ben", &["--no-auto-facts"]), &[], &off).unwrap();
    assert!(!shown.contains("remembered"), "{shown}");
    let piped = sandbox.run_with(&chat("carl", &[]), &format!("{said}Hello.\n/fact\n"));
    assert!(!piped.stdout.contains("The user said"), "{}", piped.stdout);
}
