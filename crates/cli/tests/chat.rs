//! `chat` over pipes: what a script, or a person without a terminal, sees.

use crate::common;

use common::{Ended, Sandbox, ended, smollm2, text};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};

fn start(sandbox: &Sandbox, model: &Path, arguments: &[&str]) -> Child {
    let mut all = vec!["chat", text(model), "--temperature", "0"];
    all.extend(arguments);
    sandbox
        .command(&all)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn talk(sandbox: &Sandbox, model: &Path, arguments: &[&str], input: &str) -> Ended {
    let mut all = vec!["chat", text(model), "--temperature", "0"];
    all.extend(arguments);
    sandbox.run_with(&all, input)
}

#[test]
fn a_conversation_with_all_commands() {
    let Some(model) = smollm2() else { return };
    let sandbox = Sandbox::new();
    let input = "/help\nHi there\n/stats\n/frob\n/system Be brief.\nAnd\\\nnow?\n/clear\n\"\"\"\nOne\nTwo\n\"\"\"\n\n/quit\nnever read\n";
    let ended = talk(
        &sandbox,
        &model,
        &["-n", "6", "--stats", "--repack", "off", "--kv", "f16"],
        input,
    );
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("/system TEXT"), "{}", ended.stdout);
    assert!(
        ended.stderr.contains("no command /frob"),
        "{}",
        ended.stderr
    );
    let stats: Vec<&str> = ended
        .stderr
        .lines()
        .filter(|line| line.contains("tokens at"))
        .collect();
    assert_eq!(stats.len(), 3, "three answers: {}", ended.stderr);
    assert!(stats[0].contains("(0 reused)"), "{}", stats[0]);
    assert!(!sandbox.home().exists(), "a pipe leaves no history");
}

/// The second question costs its own tokens only: the conversation before it has been read.
#[test]
fn a_conversation_is_read_once() {
    let Some(model) = smollm2() else { return };
    let sandbox = Sandbox::shared();
    let ended = talk(
        &sandbox,
        &model,
        &["-n", "8", "--explain"],
        "Count to three.\nNow to five.\n",
    );
    let lines: Vec<&str> = ended
        .stderr
        .lines()
        .filter(|line| line.starts_with("context:"))
        .collect();
    assert_eq!(lines.len(), 2, "{}", ended.stderr);
    let number = |line: &str, name: &str| -> u64 {
        let after = line.split_once(&format!("{name} ")).unwrap().1;
        after.split([',', ' ']).next().unwrap().parse().unwrap()
    };
    assert_eq!(number(lines[0], "cached"), 0);
    let before = number(lines[0], "kept");
    assert!(number(lines[1], "cached") + 2 >= before, "{lines:?}");
    assert!(number(lines[1], "computed") < 40, "{lines:?}");
}

#[test]
fn a_full_context_is_said_and_can_be_cleared() {
    let Some(model) = smollm2() else { return };
    let sandbox = Sandbox::shared();
    let input = "Tell me a long story.\nGo on.\n/clear\nHi\n";
    let ended = talk(
        &sandbox,
        &model,
        &["--context", "64", "--policy", "full"],
        input,
    );
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("the context of 64 tokens is full"),
        "{}",
        ended.stderr
    );
    assert!(
        ended.stderr.contains("the context has 64; /clear"),
        "{}",
        ended.stderr
    );
}

/// Under a bounded policy a conversation has no end: what is old leaves.
#[test]
fn a_bounded_conversation_is_never_full() {
    let Some(model) = smollm2() else { return };
    let sandbox = Sandbox::shared();
    let input = "Tell me a long story.\nGo on.\nAnd then?\n";
    let arguments = ["--context", "128", "-n", "60", "--explain", "--stats"];
    let ended = talk(&sandbox, &model, &arguments, input);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!ended.stderr.contains("full"), "{}", ended.stderr);
    let last = ended
        .stderr
        .lines()
        .rfind(|line| line.starts_with("context:"))
        .unwrap();
    assert!(!last.contains("evicted 0"), "{last}");
    assert!(ended.stderr.contains("kv int4  "), "{}", ended.stderr);
    assert!(ended.stderr.contains("scratch"), "{}", ended.stderr);
    assert!(
        ended.stderr.is_ascii(),
        "no terminal, no boxes: {}",
        ended.stderr
    );
}

/// What was said and taken back leaves no trace: the state that is gone is computed anew.
#[test]
fn a_cleared_conversation_answers_like_a_new_one() {
    let Some(model) = smollm2() else { return };
    let sandbox = Sandbox::shared();
    let question = "What is the capital of France?\n";
    let answers = |input: &str| {
        let ended = talk(&sandbox, &model, &["-n", "12"], input);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stdout
    };
    let fresh = answers(question);
    let long = format!("{}\n", "Remember the word apple. ".repeat(40));
    let after = answers(&format!("{long}/clear\n{question}"));
    assert!(after.ends_with(&fresh), "{after:?} {fresh:?}");
}

/// `--profile auto` looks at the first message: code is kept as `--profile code` keeps it.
#[test]
fn the_first_message_chooses_the_profile() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/tiny.gguf");
    let sandbox = Sandbox::new();
    let code = "fn main() { let x = 1; return x; } ".repeat(12);
    let evicted = |profile: &str| {
        let mut flags = vec!["-n", "4", "--explain", "--memory", "1500K"];
        flags.extend(["--policy", "tiers", "--profile", profile]);
        let ended = talk(&sandbox, &model, &flags, &format!("/stats\n{code}\n"));
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let lines = ended
            .stderr
            .lines()
            .filter(|line| line.contains(" rows go"));
        lines.map(str::to_owned).collect::<Vec<String>>()
    };
    let expected = evicted("code");
    assert!(!expected.is_empty());
    assert_eq!(evicted("auto"), expected);
    assert_ne!(evicted("conservative"), expected);
}

#[test]
fn input_that_is_not_text() {
    let Some(model) = smollm2() else { return };
    let sandbox = Sandbox::shared();
    let mut child = start(&sandbox, &model, &["-n", "4"]);
    child.stdin.take().unwrap().write_all(b"caf\xe9\n").unwrap();
    assert!(
        ended(child.wait_with_output().unwrap())
            .error(1)
            .contains("UTF-8")
    );
    let ended = sandbox.run(&["chat", text(&model), "--json"]);
    assert!(ended.error(2).contains("--json"));
}

/// Ctrl-C stops the answer and not the program: the next question is answered.
#[cfg(unix)]
#[test]
fn an_interrupt_stops_the_answer_only() {
    let Some(model) = smollm2() else { return };
    let sandbox = Sandbox::shared();
    let mut child = start(&sandbox, &model, &["--log", "trace", "--stats"]);
    let mut stdin = child.stdin.take().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut stdout = child.stdout.take().unwrap();
    let answers = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    stdin
        .write_all(b"Write a very long story about the sea and everything in it.\n")
        .unwrap();
    for _ in 0..8 {
        stderr.next().unwrap().unwrap();
    }
    let pid = child.id().to_string();
    std::process::Command::new("kill")
        .args(["-INT", &pid])
        .status()
        .unwrap();
    let stopped = stderr.find(|line| line.as_ref().is_ok_and(|line| line == "(stopped)"));
    assert!(stopped.is_some(), "the answer went on");
    stdin.write_all(b"/quit\n").unwrap();
    drop(stdin);
    stderr.for_each(drop);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!answers.join().unwrap().unwrap().is_empty());
}

/// Another program cuts the model short between two answers: one line names the file, where the system used to end the
/// process without a word.
#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
#[test]
fn a_model_that_is_made_shorter_is_named() {
    let sandbox = Sandbox::new();
    let model = sandbox.path("tiny.gguf");
    let spec = haversack_testing::models::Spec::named("llama").unwrap();
    spec.write_file(&model).unwrap();
    let mut child = start(
        &sandbox,
        &model,
        &["-n", "4", "--repack", "off", "--no-save"],
    );
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdin.write_all(b"one\n").unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&model);
    file.unwrap().set_len(4096).unwrap();
    // It may end before it reads this.
    let _ = stdin.write_all(b"two\nthree\n");
    drop(stdin);
    drop(stdout);
    let ended = ended(child.wait_with_output().unwrap());
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let last = ended.stderr.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("error: ") && last.contains("tiny.gguf: it was made shorter"),
        "{last}"
    );
}

#[test]
fn a_session_goes_on_in_another_process() {
    let Some(model) = smollm2() else { return };
    let sandbox = Sandbox::alone();
    let try_say = |input: &str| {
        let flags = ["--session", "anna", "-n", "6"];
        talk(&sandbox, &model, &flags, input)
    };
    let say = |input: &str| {
        let ended = try_say(input);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended
    };
    say(
        "My name is Nora.\n/fact The shop opens at nine.\n/fact 1 The shop opens at ten.\n\
         /state room: kitchen\n/state room: garden\n/state page: 7\n",
    );
    // A person may try something else; a pipe cannot.
    for (bad, why) in [
        ("/state nothing", "/state NAME: TEXT"),
        ("/state nothing:", "there is no state nothing"),
        ("/forget 9", "no fact 9"),
        ("/pin 9", "no turn 9"),
        ("/pin", "/pin NUMBER"),
        ("/exclude 2", "turn 2 is a state"),
        ("/open missing", "missing"),
    ] {
        let ended = try_say(&format!("{bad}\n"));
        assert_eq!(ended.code, Some(2), "{bad}: {}", ended.stderr);
        assert!(ended.stderr.contains(why), "{bad}: {}", ended.stderr);
    }
    let second = say(
        "/turns\n/fact\n/state\n/state page:\n/state\n/context\nAnd who am I?\n/context\n/fork ben\n/sessions\n",
    );
    let lines: Vec<&str> = second.stdout.lines().map(str::trim).collect();
    let position = |line: &str| {
        let found = lines.iter().position(|l| l.ends_with(line));
        found.unwrap_or_else(|| panic!("no {line:?} in {}", second.stdout))
    };
    // A turn without its markers, then what holds, then what holds now.
    assert!(lines[position("My name is Nora.")].contains("visible"));
    let fact = position("2  The shop opens at ten.");
    assert!(!second.stdout.contains("nine") && !second.stdout.contains("kitchen"));
    let states: Vec<usize> = (fact..lines.len())
        .filter(|&i| lines[i] == "room: garden" || lines[i] == "page: 7")
        .collect();
    assert_eq!(
        states.len(),
        3,
        "listed twice, once without the page: {}",
        second.stdout
    );
    assert!(second.stdout.contains("ben") && second.stdout.contains("anna"));
    let turns = say("/pin 0\n/turns\n/exclude 0\n/turns\n/exclude 0\n/turns\n/recall 0\n");
    let places: Vec<&str> = turns.stdout.lines().map(str::trim).collect();
    let first = places
        .iter()
        .filter(|line| line.ends_with("My name is Nora."));
    let first: Vec<&str> = first
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    assert_eq!(first, ["pinned", "excluded", "hidden"], "{}", turns.stdout);
    let third = say("/open ben\n/turns\n/new\n");
    assert!(third.stdout.contains("And who am I?"), "{}", third.stdout);
    // Each says how to go on with it, but for the one that `/new` began and nothing was said in: it is gone.
    assert!(
        second
            .stderr
            .contains("continue with: haversack chat --session ben")
    );
    assert!(!third.stderr.contains("continue with"), "{}", third.stderr);
    let last = say("/sessions\n");
    assert!(!last.stdout.contains("chat-1"), "{}", last.stdout);
}
