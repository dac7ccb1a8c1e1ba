//! What sessions, the prefix cache and the ceiling promise, at the size that people reach: thousands of tokens, hundreds of
//! turns, real models. Part of the long form (`.ci/long endurance`): minutes each. Figures are printed; times are not judged.

use crate::common;

use common::group::Group;
use common::server::{Server, content};
use common::{Ended, PATIENCE, Sandbox, model, smollm2, text};
use haversack_testing::quota::is_long;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// One of these at a time: two would measure each other. `None` outside the long form.
fn alone() -> Option<impl Drop> {
    static ALONE: Mutex<()> = Mutex::new(());
    if !is_long() {
        println!("SKIPPED: part of the long form");
        return None;
    }
    Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A model that answers well, with room for long conversations.
fn qwen() -> Option<PathBuf> {
    model("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf")
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn assistant(text: &str) -> Value {
    json!({ "role": "assistant", "content": text })
}

fn quantile(times: &mut [f64], share: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    let last = times.len().saturating_sub(1);
    let index = (last as f64 * share).round() as usize;
    times.get(index).copied().unwrap_or_default()
}

/// Sentences that differ, `count` of them.
fn chronicle(from: usize, count: usize) -> String {
    const WHO: [&str; 7] = [
        "the miller",
        "the ferryman",
        "a baker from the upper town",
        "the schoolmaster",
        "two brothers",
        "the widow Hansen",
        "a pedlar",
    ];
    const DID: [&str; 6] = [
        "repaired the roof of the barn",
        "sold a cart of apples",
        "counted the sheep on the common",
        "wrote a letter to the council",
        "found the gate open in the morning",
        "brought salt and lamp oil",
    ];
    const HOW: [&str; 5] = [
        "before the rain came",
        "although it was a holiday",
        "for the third time that year",
        "without telling the others",
        "and went home over the bridge",
    ];
    let sentence = |i: usize| {
        let (who, did, how) = (WHO[i % 7], DID[i / 7 % 6], HOW[i / 3 % 5]);
        format!("On day {} {who} {did} {how}. ", i + 1)
    };
    (from..from + count).map(sentence).collect()
}

/// A chat over pipes, answer by answer.
struct Chat {
    child: Child,
    stdin: ChildStdin,
    answered: Arc<AtomicUsize>,
}

impl Chat {
    /// `command` is a chat with `--stats`, which says a line after each answer.
    fn start(mut command: Command) -> Chat {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let answered = Arc::new(AtomicUsize::new(0));
        let (mut stdout, counted) = (child.stdout.take().unwrap(), answered.clone());
        std::thread::spawn(move || stdout.read_to_end(&mut Vec::new()));
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if line.contains(" turns: ") {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                if line.starts_with("error") {
                    println!("{line}");
                }
            }
        });
        Chat {
            stdin: child.stdin.take().unwrap(),
            child,
            answered,
        }
    }

    fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    fn ask(&mut self, question: &str) {
        let before = self.answered();
        writeln!(self.stdin, "{question}").unwrap();
        let began = Instant::now();
        while self.answered() == before {
            assert!(began.elapsed() < PATIENCE, "no answer to {question}");
            assert!(self.child.try_wait().unwrap().is_none(), "the chat ended");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Exits with 0; the number of answers.
    fn end(self) -> usize {
        let Chat {
            mut child,
            stdin,
            answered,
        } = self;
        drop(stdin);
        assert!(child.wait().unwrap().success());
        answered.load(Ordering::Relaxed)
    }
}

/// A terminal chat and a server with ten sessions in one memory group, whose limit falls to what is anonymous then and half of
/// the weights: what is anonymous then and all weights fit it soon, neither is killed, no turn that was acknowledged is lost,
/// and capacity comes back with the limit.
#[test]
fn a_chat_and_ten_sessions_follow_their_group() {
    let Some(_alone) = alone() else { return };
    let Some(model) = smollm2() else { return };
    let Some(group) = Group::new("follow") else {
        println!("SKIPPED: no memory group can be made here");
        return;
    };
    let sandbox = Sandbox::alone();
    let first = sandbox.run(&["run", text(&model), "--raw", "--prompt", "a", "-n", "1"]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let roomy = 420 * MIB;
    assert!(group.set_limit(roomy));
    let serve = ["serve", text(&model), "--addr", "127.0.0.1:0", "--json"];
    let command = group.inside(&sandbox.command(&serve));
    let server = Server::spawn(sandbox.same_home(), command);
    let (_, memory) = server.get("/v1/memory");
    let memory: Value = serde_json::from_str(&memory).unwrap();
    let weights = memory["weights_bytes"].as_u64().unwrap();
    let words = ["chat", text(&model), "--session", "talk", "--stats"];
    let words = [&words[..], &["--temperature", "0", "-n", "24"]].concat();
    let mut chat = Chat::start(group.inside(&sandbox.command(&words)));

    let name = |i: usize| format!("s{i}");
    let say = |i: usize, text: &str| {
        let body = json!({
            "session_id": name(i),
            "messages": [user(text)],
            "max_tokens": 12,
            "temperature": 0,
        });
        server.post("/v1/chat/completions", &body)
    };
    let mut told = [0_usize; 10];
    for round in 0..6 {
        for (i, told) in told.iter_mut().enumerate() {
            let (status, answer) = say(i, &chronicle(1000 * i + 20 * round, 14));
            assert_eq!(status, 200, "{answer}");
            *told += 1;
        }
        chat.ask(&chronicle(20_000 + 20 * round, 14));
    }
    let capacity = |i: usize| {
        let (_, view) = server.get(&format!("/v1/sessions/{}", name(i)));
        let view: Value = serde_json::from_str(&view).unwrap();
        let number = |name: &str| view[name].as_u64().unwrap();
        (number("capacity"), number("turns_said"))
    };
    let before: Vec<_> = (0..10).map(capacity).collect();

    // Questions go on all the while.
    let (stop, short) = (&AtomicBool::new(false), &AtomicUsize::new(0));
    let (say, chat_ref) = (&say, &mut chat);
    let (told, fitted) = std::thread::scope(|scope| {
        let asking = scope.spawn(move || {
            let mut told = told;
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return told;
                }
                let (status, answer) = say(n % 10, &format!("What came after day {n}?"));
                match status {
                    200 => told[n % 10] += 1,
                    429 | 503 => {
                        short.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(200));
                    }
                    _ => panic!("{status} {answer}"),
                }
            }
            told
        });
        let talking = scope.spawn(move || {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                chat_ref.ask(&format!("What came after day {n}?"));
            }
        });
        std::thread::sleep(Duration::from_secs(3));
        let anonymous = group.anonymous_bytes();
        let limit = anonymous + weights / 2;
        let faults = group.major_faults();
        let lowered = Instant::now();
        let is_lowered = || group.set_limit(limit);
        while !is_lowered() {
            assert!(lowered.elapsed() < PATIENCE, "a limit of {limit}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let set = lowered.elapsed();
        let mut fitted = None;
        while lowered.elapsed() < Duration::from_secs(12) {
            let fits = group.anonymous_bytes() + weights <= limit;
            fitted = match (fits, fitted) {
                (true, None) => Some(lowered.elapsed()),
                (false, _) => None,
                (true, fitted) => fitted,
            };
            std::thread::sleep(Duration::from_millis(20));
        }
        let settled = group.major_faults();
        println!(
            "{:.1} MiB anonymous, {:.1} of weights, a limit of {:.1} (set after {:.2} s): {:.1} anonymous after {:.2} s; {} major faults in {:.0} s",
            anonymous as f64 / MIB as f64,
            weights as f64 / MIB as f64,
            limit as f64 / MIB as f64,
            set.as_secs_f64(),
            group.anonymous_bytes() as f64 / MIB as f64,
            fitted.map_or(f64::NAN, |time| time.as_secs_f64()),
            settled - faults,
            lowered.elapsed().as_secs_f64(),
        );
        std::thread::sleep(Duration::from_secs(5));
        println!(
            "{} major faults in the 5 s after that",
            group.major_faults() - settled
        );
        let lowest: Vec<_> = (0..10).map(|i| capacity(i).0).collect();
        println!("capacities {before:?}, then {lowest:?}");
        assert!(group.set_limit(roomy));
        std::thread::sleep(Duration::from_secs(15));
        stop.store(true, Ordering::Relaxed);
        talking.join().unwrap();
        (asking.join().unwrap(), fitted)
    });
    assert!(fitted.is_some(), "the group is too full");
    println!("{} requests found no room", short.load(Ordering::Relaxed));
    for (i, told) in told.into_iter().enumerate() {
        let (status, answer) = say(i, "And in the end?");
        assert_eq!(status, 200, "{answer}");
        let (now, said) = capacity(i);
        assert_eq!(said as usize, told + 1, "turns of session {i}");
        assert_eq!(now, before[i].0, "capacity of session {i}");
    }
    server.stop();
    let answers = chat.end();
    let exported = sandbox.run(&["session", "export", "talk", "--json"]).json();
    let turns = exported["turns"].as_array().unwrap().len();
    assert_eq!(turns, answers, "turns of the chat");
}

/// A conversation of ten thousand tokens, sent whole with twenty different last messages: from the second on at least 99 % is
/// cached, and the answers are those of a server that keeps nothing.
#[test]
fn a_long_conversation_is_read_once() {
    let Some(_alone) = alone() else { return };
    let Some(model) = qwen() else { return };
    let start = |flags: &[&str]| Server::start_with(Sandbox::shared(), &model, flags);
    let server = start(&["--memory", "600M"]);
    let mut history = vec![
        json!({ "role": "system", "content": "You know the chronicle of a village and answer in one sentence." }),
    ];
    for i in 0..45 {
        history.push(user(&format!(
            "Chronicle, part {i}: {}",
            chronicle(10 * i, 10)
        )));
        history.push(assistant(&format!("Part {i} is noted.")));
    }
    let ask = |server: &Server, i: usize| {
        let question = format!("What happened on day {}?", 7 + 20 * i);
        let messages = [&history[..], &[user(&question)]].concat();
        let body = json!({ "messages": messages, "max_tokens": 24, "temperature": 0 });
        let began = Instant::now();
        let (status, answer) = server.post_slowly("/v1/chat/completions", &body);
        assert_eq!(status, 200, "{answer}");
        let usage = &answer["usage"];
        let prompt = usage["prompt_tokens"].as_u64().unwrap();
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        let took = began.elapsed().as_secs_f64();
        (content(&answer), prompt, cached.unwrap(), took)
    };
    let mut answers = Vec::new();
    for i in 0..20 {
        let (said, prompt, cached, took) = ask(&server, i);
        if i < 3 || i == 19 {
            println!("{i}: {cached} of {prompt} tokens cached, {took:.2} s: {said}");
        }
        assert!(prompt > 10_000, "{prompt}");
        assert!(
            i == 0 || cached as f64 >= 0.99 * prompt as f64,
            "{i}: {cached} of {prompt}"
        );
        answers.push(said);
    }
    server.stop();
    let fresh = start(&["--memory", "600M", "--reuse", "0"]);
    for i in [3, 19] {
        let (said, _, cached, took) = ask(&fresh, i);
        println!("{i} read anew: {took:.1} s");
        assert_eq!((said, cached), (answers[i].clone(), 0));
    }
    fresh.stop();
}

/// A history of 300 turns is imported in about the time that one prompt of the same tokens takes.
#[test]
fn a_history_is_imported_like_a_prompt() {
    let Some(_alone) = alone() else { return };
    let flags = ["--memory", "300M", "--reuse", "0"];
    let Some(server) = Server::start_in(Sandbox::alone(), &flags) else {
        return;
    };
    let mut ratios = Vec::new();
    for round in 0..5 {
        let mut messages = Vec::new();
        for i in 0..300 {
            messages.push(user(&format!("What of day {i} in year {round}?")));
            messages.push(assistant("It rained."));
        }
        messages.push(user("And then?"));
        let mut body = json!({ "messages": messages, "max_tokens": 1, "temperature": 0 });
        let mut times = [0.0; 2];
        // As a session first, or as one prompt.
        for k in 0..2 {
            let is_session = (k + round) % 2 == 0;
            if is_session {
                body["session_id"] = json!(format!("import-{round}"));
            } else {
                body.as_object_mut().unwrap().remove("session_id");
            }
            let began = Instant::now();
            let (status, answer) = server.post("/v1/chat/completions", &body);
            assert_eq!(status, 200, "{answer}");
            times[usize::from(is_session)] = began.elapsed().as_secs_f64();
            if round == 0 {
                println!("session {is_session}: {}", answer["usage"]);
            }
        }
        let [prompt, import] = times;
        println!(
            "300 turns: {import:.2} s imported, {prompt:.2} s as one prompt, {:.2} times",
            import / prompt
        );
        ratios.push(import / prompt);
    }
    println!("median {:.2}", quantile(&mut ratios, 0.5));
    server.stop();
}

/// An answer in a session is as long as was asked for.
#[test]
fn three_thousand_tokens_in_a_session() {
    let Some(_alone) = alone() else { return };
    let Some(server) = Server::start_in(Sandbox::alone(), &["--memory", "200M"]) else {
        return;
    };
    let body = json!({
        "session_id": "long",
        "messages": [user("Tell me the story of the village, and do not stop.")],
        "max_tokens": 3000,
        "temperature": 0,
        "logit_bias": { "2": -100, "0": -100 },
        // A model that may not end its answer repeats itself.
        "stop_repetition": false,
    });
    let (status, answer) = server.post("/v1/chat/completions", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 3000);
    server.stop();
}

/// A thousand facts told to a session over two hundred turns, while another client reads an answer: none is refused, and the
/// stream is condensed again and again beside the answers. Printed are the gaps between the tokens of the session's own answers,
/// beside which only condensing is read, of the other client's, beside which facts and questions are read too, and of answers
/// with nothing beside them.
#[test]
fn a_thousand_facts() {
    let Some(_alone) = alone() else { return };
    let Some(server) = Server::start_in(Sandbox::alone(), &["--memory", "300M"]) else {
        return;
    };
    let made = json!({ "id": "facts", "persistent": "You know the harbour." });
    let (status, made) = server.post("/v1/sessions", &made);
    assert_eq!(status, 201, "{made}");
    let server = &server;
    let stop = &AtomicBool::new(false);
    let (others, own, condensed) = std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            let mut gaps = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                gaps.extend(gaps_of_an_answer(server, "/v1/completions", &counting(400)));
            }
            gaps
        });
        let (mut condensed, mut last, mut own) = (0, Value::Null, Vec::new());
        for turn in 0..200 {
            for i in 0..5 {
                let number = turn * 5 + i;
                let text = format!("Berth {number} belongs to captain {}.", number * 17 % 1009);
                let body = json!({ "text": text });
                let (status, told) = server.post("/v1/sessions/facts/facts", &body);
                assert_eq!(status, 201, "fact {number}: {told}");
            }
            let body = json!({
                "session_id": "facts",
                "messages": [user(&format!("Who lies at berth {}?", turn * 5))],
                "max_tokens": 24,
                "temperature": 0,
                "logit_bias": { "2": -100, "0": -100 },
                "stop_repetition": false,
                "stream": true,
            });
            own.extend(gaps_of_an_answer(server, "/v1/chat/completions", &body));
            let (_, view) = server.get("/v1/sessions/facts");
            let view: Value = serde_json::from_str(&view).unwrap();
            if !view["condensed"].is_null() && view["condensed"] != last {
                condensed += 1;
                last = view["condensed"].clone();
            }
        }
        stop.store(true, Ordering::Relaxed);
        println!("condensed {condensed} times, at last: {last}");
        (reading.join().unwrap(), own, condensed)
    });
    // Ends the condensing that the last facts have begun.
    let (status, _, deleted) = server.raw(&Server::request("DELETE", "/v1/sessions/facts", "", ""));
    assert_eq!(status, 200, "{deleted}");
    server.wait_until_idle();
    let quiet = (0..10).flat_map(|_| gaps_of_an_answer(server, "/v1/completions", &counting(400)));
    print_gaps("the session's own answers", own);
    print_gaps("the other client's answers", others);
    print_gaps("answers with nothing beside them", quiet.collect());
    assert!(condensed >= 10, "condensed {condensed} times");
}

fn print_gaps(whose: &str, mut gaps: Vec<f64>) {
    let median = quantile(&mut gaps, 0.5);
    let [p90, p99, p999, longest] =
        [0.9, 0.99, 0.999, 1.0].map(|share| quantile(&mut gaps, share) / median);
    println!(
        "{whose}: of {} gaps {:.2} ms in the median; the 90th percentile is {p90:.2} times as long, the 99th {p99:.2}, the 99.9th {p999:.2}, the longest {longest:.2}",
        gaps.len(),
        median * 1e3,
    );
}

/// What a model answers for so many tokens.
fn counting(tokens: usize) -> Value {
    json!({
        "prompt": "Count the ships in the harbour:",
        "max_tokens": tokens,
        "temperature": 0,
        "logit_bias": { "2": -100, "0": -100 },
        // A model that may not end its answer repeats itself.
        "stop_repetition": false,
        "stream": true,
    })
}

/// Seconds between the tokens of a streamed answer.
fn gaps_of_an_answer(server: &Server, path: &str, body: &Value) -> Vec<f64> {
    let mut stream = server.connect();
    let request = Server::request("POST", path, "", &body.to_string());
    stream.write_all(&request).unwrap();
    let (mut gaps, mut last) = (Vec::new(), None::<Instant>);
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let status = lines.next().unwrap_or_default();
    assert!(status.contains(" 200 "), "{status}");
    for line in lines {
        // The first chunk of a chat says who speaks, before the prompt is read.
        let is_token = line.contains("\"text\"") || line.contains("\"content\"");
        if !is_token || line.contains("\"content\":\"\"") {
            continue;
        }
        let now = Instant::now();
        gaps.extend(last.map(|last| (now - last).as_secs_f64()));
        last = Some(now);
    }
    gaps
}

/// Ten processes go on with ten sessions that begin alike: the rows of the opening are in memory once.
#[test]
fn ten_processes_share_an_opening() {
    let Some(_alone) = alone() else { return };
    let Some(model) = smollm2() else { return };
    let sandbox = Sandbox::alone();
    let system = chronicle(0, 24);
    let start = |i: usize| {
        let name = format!("p{i}");
        let mut words = vec!["chat", text(&model), "--session", &name, "--stats"];
        words.extend(["--memory", "24M", "--temperature", "0", "-n", "4"]);
        words.extend(["--system", &system]);
        Chat::start(sandbox.command(&words))
    };
    // Begun, ended, and gone on with.
    for i in 0..10 {
        let mut chat = start(i);
        chat.ask("Hello.");
        chat.end();
    }
    let mut chats: Vec<Chat> = (0..10).map(start).collect();
    chats.iter_mut().for_each(|chat| chat.ask("And then?"));
    let shares: Vec<[u64; 3]> = chats.iter().map(|c| prefix_shares(c.child.id())).collect();
    let sum = |k: usize| shares.iter().map(|share| share[k]).sum::<u64>();
    let one = shares.iter().map(|share| share[0]).max().unwrap();
    println!(
        "KiB of the opening's file: {} resident in each, {} together by share (Pss), {} private",
        one >> 10,
        sum(1) >> 10,
        sum(2) >> 10
    );
    assert!(one > 0 && sum(2) == 0);
    assert!(sum(1) * 100 <= one * 105, "{} of {one}", sum(1));
    for chat in chats {
        chat.end();
    }
}

/// Rss, Pss and private bytes of the prefix files that a process has mapped.
fn prefix_shares(pid: u32) -> [u64; 3] {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut sums, mut is_ours) = ([0; 3], false);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if !first.ends_with(':') {
            is_ours = line.ends_with(".prefix");
            continue;
        }
        let number = words.next().and_then(|word| word.parse::<u64>().ok());
        let kib = number.unwrap_or(0) << 10;
        match first {
            "Rss:" if is_ours => sums[0] += kib,
            "Pss:" if is_ours => sums[1] += kib,
            "Private_Dirty:" | "Private_Clean:" if is_ours => sums[2] += kib,
            _ => {}
        }
    }
    sums
}

/// What the document says in single places, how it is asked for, and a word of the answer.
const PLANTED: [(&str, &str, &str); 3] = [
    (
        "The lighthouse keeper Ottilie Brandt has a tame heron whose name is Marlow.",
        "What is the name of the tame heron of the lighthouse keeper?",
        "Marlow",
    ),
    (
        "The church bell was cast in the town of Greifswald and weighs 940 pounds.",
        "In which town was the church bell cast?",
        "Greifswald",
    ),
    (
        "Doctor Quist ordered a microscope made of brass from the city of Jena.",
        "From which city did Doctor Quist order his brass microscope?",
        "Jena",
    ),
];

/// A document of twenty thousand tokens pasted into a chat, in a budget that holds it and in one that does not: questions about
/// it are answered from it, also after one about something else, and the small budget says what left memory.
#[test]
fn a_long_document_in_a_session() {
    long_document("400M");
}

#[test]
fn a_long_document_in_a_small_budget() {
    long_document("48M");
}

/// Twenty thousand tokens are pasted, and asked about.
fn long_document(memory: &str) {
    let Some(_alone) = alone() else { return };
    let Some(model) = qwen() else { return };
    let Some(sandbox) = Sandbox::with_encoder() else {
        return;
    };
    let mut document = String::new();
    for (i, (told, ..)) in PLANTED.iter().enumerate() {
        document += &chronicle(300 * i, [80, 300, 300][i]);
        document += told;
        document.push(' ');
    }
    document += &chronicle(2000, 280);
    let tokens = sandbox.write("document.txt", &document);
    let tokens = sandbox.run(&[
        "tokenize",
        text(&model),
        "--text-file",
        text(&tokens),
        "--json",
    ]);
    let tokens = tokens.json()["ids"].as_array().map_or(0, Vec::len);
    println!("{tokens} tokens");
    assert!(tokens >= 20_000, "{tokens}");
    let chat = |input: &str| talk(&sandbox, &model, memory, input);
    let began = Instant::now();
    let pasted = format!("\"\"\"\nRead this chronicle.\n{document}\n\"\"\"\n");
    let read = chat(&pasted);
    assert_eq!(read.code, Some(0), "{}", read.stderr);
    println!(
        "{memory}: read in {:.0} s: {}\n{}",
        began.elapsed().as_secs_f64(),
        read.stdout.trim(),
        read.stderr.trim()
    );
    if memory == "48M" {
        assert!(read.stderr.contains("on disk only"), "{}", read.stderr);
    }
    let questions = PLANTED
        .iter()
        .map(|(_, question, word)| (*question, std::slice::from_ref(word)));
    let other = [("What is seven times eight?", &["56", "fifty-six"][..])].into_iter();
    let again = [(
        "What is the lighthouse keeper's heron called?",
        &["Marlow"][..],
    )]
    .into_iter();
    let mut wrong = Vec::new();
    for (question, words) in questions.chain(other).chain(again) {
        let began = Instant::now();
        let said = chat(&format!("{question}\n"));
        let context = said.stderr.lines().find(|line| line.contains("context:"));
        println!(
            "{memory}: {question} {} ({:.1} s; {})",
            said.stdout.trim(),
            began.elapsed().as_secs_f64(),
            context.unwrap_or_default()
        );
        if !words.iter().any(|word| said.stdout.contains(word)) {
            wrong.push(question);
        }
    }
    assert!(wrong.is_empty(), "{memory}: {wrong:?}");
}

fn talk(sandbox: &Sandbox, model: &Path, memory: &str, input: &str) -> Ended {
    let session = format!("document-{memory}");
    let mut words = vec!["chat", text(model), "--session", &session, "--explain"];
    words.extend(["--memory", memory, "--temperature", "0", "-n", "60"]);
    sandbox.run_with(&words, input)
}
