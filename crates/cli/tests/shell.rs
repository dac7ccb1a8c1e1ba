//! What a shell and `man` get from the program.

use crate::common;

use common::Sandbox;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn every_shell_has_completions() {
    let sandbox = Sandbox::shared();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let run = sandbox.run(&["completions", shell]);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        for word in ["chat", "session-expiry", "api-key-file"] {
            assert!(run.stdout.contains(word), "{shell}: {word}");
        }
    }
    let run = sandbox.run(&["completions", "tcsh"]);
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("bash"), "{}", run.stderr);
}

/// What bash offers for a line that is being typed.
#[test]
fn bash_completes_commands_and_flags() {
    if Command::new("bash").arg("--version").output().is_err() {
        println!("SKIPPED: no bash here");
        return;
    }
    let script = Sandbox::shared().run(&["completions", "bash"]).stdout;
    let offered = |words: &str, last: usize| {
        let mut bash = Command::new("bash")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let ask = format!(
            "{script}\nCOMP_WORDS=({words}); COMP_CWORD={last}; \
             _haversack haversack \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{last}-1]}}\"; echo \"${{COMPREPLY[@]}}\"\n"
        );
        bash.stdin
            .take()
            .unwrap()
            .write_all(ask.as_bytes())
            .unwrap();
        String::from_utf8(bash.wait_with_output().unwrap().stdout).unwrap()
    };
    assert_eq!(offered("haversack ser", 1).trim(), "serve");
    assert_eq!(offered("haversack serve --api", 2).trim(), "--api-key-file");
}

#[test]
fn every_command_has_a_manual_page() {
    let sandbox = Sandbox::shared();
    let folder = sandbox.path("man/pages");
    let folder_text = folder.to_str().unwrap();
    assert_eq!(sandbox.run(&["man", folder_text]).code, Some(0));
    for name in ["haversack", "haversack-chat", "haversack-session-export"] {
        let page = fs::read_to_string(folder.join(format!("{name}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{name}");
    }
    let serve = fs::read_to_string(folder.join("haversack-serve.1")).unwrap();
    // roff writes a hyphen as \-.
    assert!(serve.contains(r"api\-key\-file"), "{serve}");

    let file = sandbox.path("a-file");
    fs::write(&file, "").unwrap();
    let run = sandbox.run(&["man", file.to_str().unwrap()]);
    assert_eq!(run.code, Some(1));
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    assert!(run.stderr.contains("a-file"), "{}", run.stderr);
}
