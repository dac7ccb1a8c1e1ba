//! A byte ceiling that holds, for ever: on a small random model, through the program.

use crate::common;

use common::{Sandbox, text};
use haversack::engine::{LoadOptions, Model, Repack};
use haversack::text::chat::{EncodedChat, Speaker, encode_chat_with_borders};
use haversack::text::template::{Message, RenderOptions};
use haversack_testing::models::Spec;
use serde_json::{Value, json};
use std::io::Read;
use std::path::PathBuf;
use std::process::Stdio;

const CODECS: [&str; 7] = ["f16", "int8", "int5", "int4", "int4-plain", "int3", "int2"];

/// A model of three layers and 512 tokens of context, and the program to run it.
struct Bench {
    sandbox: Sandbox,
    model: PathBuf,
}

impl Bench {
    fn new(name: &str) -> Bench {
        let sandbox = Sandbox::new();
        let model = sandbox.path("tiny.gguf");
        Spec::named(name).unwrap().write_file(&model).unwrap();
        Bench { sandbox, model }
    }

    /// The same with a context of 2048 tokens.
    fn long() -> Bench {
        let bench = Bench::new("llama");
        let spec = Spec {
            context: 2048,
            ..Spec::named("llama").unwrap()
        };
        spec.write_file(&bench.model).unwrap();
        bench
    }

    fn run(&self, arguments: &str) -> common::Ended {
        let mut words: Vec<&str> = arguments.split(' ').collect();
        words.insert(1, text(&self.model));
        self.sandbox.run(&words)
    }

    fn json(&self, arguments: &str) -> Value {
        self.run(&format!("{arguments} --json")).json()
    }

    /// `count` ids, for `--ids`.
    fn ids(&self, count: usize) -> String {
        let ids = Spec::named("llama").unwrap().ids(count);
        let words: Vec<String> = ids.iter().map(u32::to_string).collect();
        words.join(",")
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// The minimum that a refusal names.
fn least(line: &str) -> u64 {
    let (_, rest) = line
        .rsplit_once("at least ")
        .unwrap_or_else(|| panic!("{line}"));
    rest.trim().parse().unwrap_or_else(|_| panic!("{line}"))
}

/// The spans of these messages in the prompt that the program makes of them.
fn messages(bench: &Bench, said: &[(&str, &str)]) -> EncodedChat {
    let load = LoadOptions {
        repack: Repack::Off,
        ..LoadOptions::default()
    };
    let model = Model::load(&bench.model, &load, &mut |_, _| ()).unwrap();
    let chat: Vec<Message> = said
        .iter()
        .map(|(role, text)| Message::new(*role, *text))
        .collect();
    let options = RenderOptions::to_answer(std::time::Duration::ZERO);
    encode_chat_with_borders(model.template(), model.tokenizer(), &chat, &options).unwrap()
}

/// The first and the last position that leaves a layer, from plans in words.
fn evictions(stderr: &str) -> Vec<(u64, u64)> {
    let plans = stderr
        .lines()
        .filter(|line| line.starts_with("at position"));
    let layers = plans.flat_map(|line| line.split(" positions ").skip(1));
    let of_layer = |words: &str| {
        let words = words
            .split(' ')
            .map(|word| word.trim_end_matches(&[',', ';'][..]));
        let is_list = |word: &&str| {
            word.parse::<u64>().is_ok() || matches!(*word, "to" | "and" | "more" | "up")
        };
        let numbers = words
            .take_while(is_list)
            .filter_map(|word| word.parse().ok());
        let numbers: Vec<u64> = numbers.collect();
        (numbers[0], numbers[numbers.len() - 1])
    };
    layers.map(of_layer).collect()
}

/// A system message of more tokens than anchors: under policies that choose rows none of its own leave, in `run` as in a
/// session.
#[test]
fn a_system_message_stays() {
    let bench = Bench::long();
    let system = "the cat sat on the mat ".repeat(6);
    let prompt = "a dog ran in the garden of the man and sang ".repeat(16);
    let chat = messages(&bench, &[("system", &system), ("user", &prompt)]);
    let [opening, said] = &chat.messages[..] else {
        panic!("{:?}", chat.messages);
    };
    let opening = opening.content.end as u64;
    assert!((48..104).contains(&opening), "{opening}");
    assert!(said.content.len() > 300, "{said:?}");
    for policy in ["heavy", "tiers", "snap", "turns"] {
        let ended = bench.sandbox.run(&[
            "run",
            text(&bench.model),
            "--system",
            &system,
            "--prompt",
            &prompt,
            "--policy",
            policy,
            "--anchors",
            "8",
            "--window",
            "320",
            "-n",
            "64",
            "--ignore-eos",
            "--explain",
        ]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let evicted = evictions(&ended.stderr);
        assert!(!evicted.is_empty(), "{policy}: {}", ended.stderr);
        let first = evicted.iter().map(|(first, _)| *first).min().unwrap();
        assert!(
            first >= opening,
            "{policy}: {first} leaves of the first {opening}"
        );
    }
}

/// A conversation that is not saved: whole turns leave, from the first token of a question to the last of its answer.
#[test]
fn whole_turns_leave_a_conversation() {
    let bench = Bench::long();
    let system = "the cat sat on the mat and the dog ran";
    let asked: Vec<String> = (1..7)
        .map(|i| format!("{} and {i}", "a man sang of the rain ".repeat(3 + i % 3)))
        .collect();
    let input = asked.join("\n") + "\n/quit\n";
    let flags = [
        "--policy",
        "turns",
        "--anchors",
        "8",
        "--window",
        "256",
        "-n",
        "8",
        "--explain",
        "--no-save",
        "--system",
        system,
        "--temperature",
        "0",
    ];
    let arguments: Vec<&str> = ["chat", text(&bench.model)]
        .into_iter()
        .chain(flags)
        .collect();
    let ended = bench.sandbox.run_with(&arguments, &input);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let answers: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(answers.len(), asked.len(), "{}", ended.stdout);
    let mut said = vec![("system", system)];
    for (question, answer) in asked.iter().zip(&answers) {
        said.extend([("user", &question[..]), ("assistant", answer.trim_end())]);
    }
    let chat = messages(&bench, &said);
    let users = chat.messages.iter().filter(|m| m.speaker == Speaker::User);
    let starts: Vec<u64> = users.map(|m| m.start as u64).collect();
    let evicted = evictions(&ended.stderr);
    assert!(!evicted.is_empty(), "{}", ended.stderr);
    for (first, last) in evicted {
        assert!(
            starts.contains(&first),
            "{first} begins no turn: {starts:?}"
        );
        assert!(
            starts.contains(&(last + 1)),
            "{last} ends no turn: {starts:?}"
        );
    }
}

/// `bench` leaves no row out for lack of memory, and says so before it measures any. Rows beyond the context do not exist.
#[test]
fn bench_refuses_rows_that_do_not_fit() {
    let bench = Bench::new("llama");
    let ended = bench.run("bench --only decode_d0,batch_8 --memory 2M --threads 1 --repeat 1");
    let line = ended.error(1);
    assert!(
        line.contains("batch_8 needs ") && line.contains("--memory allows"),
        "{line}"
    );
    assert!(
        ended.stdout.is_empty() && !ended.stderr.contains("1/1"),
        "{}",
        ended.stderr
    );
    let rows = bench.json("bench --only decode_d0,decode_d2048 --memory 2M --threads 1 --repeat 1");
    assert_eq!(rows["rows"][0]["name"], "decode_d0");
    assert_eq!(rows["skipped"], json!(["decode_d2048"]));
}

/// The first use of `--policy adaptive` measures the model within `--memory`, or refuses with what that takes. What was
/// saved is used in any budget that the rows fit.
#[test]
fn a_probe_is_measured_within_the_budget_or_refused() {
    let bench = Bench::long();
    let run = "run --raw --prompt Once -n 4 --ignore-eos --policy adaptive --threads 1";
    let ended = bench.run(&format!("{run} --memory 2M"));
    let line = ended.error(2);
    assert!(
        line.contains("measuring how sensitive each layer is"),
        "{line}"
    );
    let needed: u64 = least(line.split(',').nth(3).unwrap());
    let refused = bench.run(&format!("{run} --memory {}", needed / 4));
    assert_eq!(least(refused.error(2).split(',').nth(3).unwrap()), needed);
    assert_eq!(
        bench.json(&format!("{run} --memory {needed}"))["finish_reason"],
        "length"
    );
    assert_eq!(
        bench.json(&format!("{run} --memory 2M"))["finish_reason"],
        "length"
    );
}

const WINDOW: &str = "--policy window --anchors 64 --window 128";

/// Six contexts' worth of tokens in the least budget that is accepted.
#[test]
fn endless_in_the_least_budget() {
    let bench = Bench::new("llama");
    for kv in ["int4", "int8", "f16"] {
        let run = format!("run --raw --prompt Once --ignore-eos --kv {kv} {WINDOW}");
        // One block first, then anchors and window.
        let refused = |budget: u64| {
            let ended = bench.run(&format!("{run} -n 1 --memory {budget}"));
            least(ended.error(2))
        };
        let budget = refused(refused(1));
        let document = bench.json(&format!("{run} -n 3000 --memory {budget}"));
        assert_eq!(document["finish_reason"], "length");
        assert_eq!(document["usage"]["completion_tokens"], 3000);
        let (kv, context) = (&document["kv"], &document["context"]);
        assert_eq!(kv["policy"], "window");
        assert_eq!(number(&kv["bytes_budget"]), budget);
        assert!(number(&kv["bytes_peak"]) <= budget, "{kv} {budget}");
        assert!(number(&kv["rows_peak"]) <= 64 + 128 + 32, "{kv}");
        assert!(number(&kv["rows_live"]) <= number(&kv["rows_peak"]));
        let seen = number(&kv["tokens_seen"]);
        assert_eq!(seen, number(&document["usage"]["prompt_tokens"]) + 2999);
        assert_eq!(number(&kv["rows_evicted"]) + number(&kv["rows_live"]), seen);
        assert_eq!(context["kept"], kv["rows_live"]);
        assert_eq!(context["evicted"], kv["rows_evicted"]);
        assert_eq!(
            (&context["anchors"], &context["limit"]),
            (&json!(64), &json!(224))
        );

        assert_eq!(refused(budget - 1), budget);
    }
}

/// Evicted rows have a price in the report, unless the guard is off.
#[test]
fn chosen_rows_leave_a_debt() {
    let bench = Bench::new("llama");
    let run = format!(
        "run --ids {} -n 3 --policy heavy --anchors 32 --window 256",
        bench.ids(700)
    );
    let document = bench.json(&run);
    let debt = document["kv"]["quality_debt"].as_f64().unwrap();
    assert!(debt > 0.0 && debt.is_finite(), "{debt}");
    let ended = bench.run(&format!("{run} --explain"));
    assert!(ended.stderr.contains("quality debt "), "{}", ended.stderr);
    let unguarded = bench.json(&format!("{run} --guard off"));
    assert!(unguarded["kv"]["quality_debt"].is_null());
    let side = |document: &Value| number(&document["kv"]["ledger"]["side_bytes"]);
    assert!(side(&unguarded) < side(&document));
}

/// `tiers` evicts nothing before 70 % of the budget is in use, or what its policy file says instead.
#[test]
fn tiers_wait_for_their_trigger() {
    let bench = Bench::new("llama");
    let run = format!("run --ids {} -n 2 --explain", bench.ids(400));
    let evicts = |arguments: &str| {
        let ended = bench.run(&format!("{run} {arguments}"));
        let line = |line: &&str| line.starts_with("at position") && line.contains(" rows go");
        ended.stderr.lines().filter(line).count()
    };
    let full = bench.json(&format!("{run} --policy full --memory 64M"));
    let peak = number(&full["kv"]["bytes_peak"]);
    assert_eq!(evicts(&format!("--policy tiers --memory {}", 2 * peak)), 0);
    let tight = |budget: u64| evicts(&format!("--policy tiers --memory {budget}")) > 0;
    assert!((4..20).any(|i| tight(peak * i / 16)));
    let early = "policy = 'tiers'\ntrigger = 0.05\n";
    let early = bench.sandbox.write("early.toml", early);
    let early = format!("--policy-file {} --memory {}", text(&early), 2 * peak);
    assert!(evicts(&early) > 0);
}

/// Changes of the window are told, and told again they give the same tokens.
#[test]
fn a_plan_of_the_window_is_replayed() {
    let bench = Bench::new("llama");
    let run = format!("run --raw --prompt Once --ignore-eos -n 900 {WINDOW} --window-plan");
    let first = bench.json(&format!("{run} 256:64,640:128"));
    let changes = first["context"]["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 2, "{changes:?}");
    let told: Vec<String> = changes
        .iter()
        .map(|change| format!("{}:{}", change["position"], change["window"]))
        .collect();
    assert!(changes.iter().all(|change| change["reason"].is_string()));
    let again = bench.json(&format!("{run} {}", told.join(",")));
    assert_eq!(first["token_ids"], again["token_ids"]);
    assert_eq!(first["context"]["changes"], again["context"]["changes"]);
    // Another plan is another conversation.
    let other = bench.json(&format!("{run} 256:32,640:128"));
    assert_ne!(first["token_ids"], other["token_ids"]);
}

/// A prompt longer than the context streams through a bounded policy, and is refused by the other.
#[test]
fn a_prompt_longer_than_the_context() {
    let bench = Bench::new("llama");
    let ids = bench.ids(1300);
    let document = bench.json(&format!("run --ids {ids} -n 3"));
    assert_eq!(number(&document["kv"]["tokens_seen"]), 1302);
    assert!(number(&document["kv"]["rows_evicted"]) >= 1302 - 512);
    assert!(number(&document["kv"]["rows_peak"]) <= 512);
    let ended = bench.run(&format!("run --ids {ids} -n 3 --policy full"));
    let line = ended.error(1);
    assert!(
        line.contains("1300") && line.contains("at most 512"),
        "{line}"
    );
    let ended = bench.run(&format!("run --ids {ids} -n 3 --explain --stats"));
    assert!(ended.stderr.contains("evicted "), "{}", ended.stderr);
    assert!(ended.stderr.contains("kv int4  "), "{}", ended.stderr);
}

/// What the planner says is what the ledger shows, for every codec and shape.
#[test]
fn planned_is_held() {
    for name in ["llama", "gemma3", "qwen3"] {
        let bench = Bench::new(name);
        for tokens in [1usize, 32, 97, 300] {
            let plan = bench.json(&format!("plan --ram 1G --context {tokens}"));
            for codec in CODECS {
                let run = format!(
                    "run --ids {} -n 1 --policy full --kv {codec} --repack off",
                    bench.ids(tokens)
                );
                let document = bench.json(&run);
                assert_eq!(
                    document["kv"]["bytes_live"], plan["blocks_bytes"][codec],
                    "{name}, {tokens} tokens, {codec}"
                );
                assert_eq!(document["kv"]["codec"], codec);
            }
        }
        let plain = bench.json("plan --ram 1G --context 300 --sinks 0 --recent 0 --group 32");
        let run = format!(
            "run --ids {} -n 1 --kv int4 --sinks 0 --recent 0 --group 32 --repack off",
            bench.ids(300)
        );
        assert_eq!(
            bench.json(&run)["kv"]["bytes_live"],
            plain["blocks_bytes"]["int4"]
        );
    }
}

#[test]
fn budgets_that_hold_nothing() {
    let bench = Bench::new("llama");
    let line = |flags: &str| {
        bench
            .run(&format!("run --prompt x -n 1 {flags}"))
            .error(2)
            .to_owned()
    };
    let one = line("--memory 1");
    assert!(one.contains("--memory") && least(&one) > 10_000, "{one}");
    // What it names is enough.
    bench.json(&format!("run --prompt x -n 1 --memory {}", least(&one)));
    for flags in ["--anchors 500 --window 500", "--window 512"] {
        let line = line(flags);
        assert!(
            line.contains("--window") && line.contains("at most 480"),
            "{line}"
        );
    }
    let line = line("--anchors 511");
    assert!(
        line.contains("--anchors") && line.contains("at most"),
        "{line}"
    );

    // A ceiling above RAM is only a ceiling.
    let ended = bench.run("run --prompt x -n 1 --memory 1000000G --json");
    assert_eq!(ended.json()["kv"]["bytes_budget"], 1_000_000u64 << 30);
    assert!(ended.stderr.contains("--memory"), "{}", ended.stderr);
}

/// Single layers have their own codec, from a file only.
#[test]
fn layers_from_a_file() {
    let bench = Bench::new("llama");
    let run = format!("run --ids {} -n 1 --repack off --config", bench.ids(200));
    let config = |content: &str| {
        let path = bench.sandbox.write("layers.toml", content);
        bench.run(&format!("{run} {} --json", text(&path)))
    };
    let plain = config("kv = \"int4\"").json();
    let mixed = config("kv = \"int4\"\n[kv_layers]\n\"1\" = \"k=int8,v=int4\"").json();
    assert_eq!(mixed["kv"]["codec"], "int4+1");
    let more = number(&mixed["kv"]["bytes_live"]) - number(&plain["kv"]["bytes_live"]);
    // Seven blocks, four of them far: 32 slots of keys, 64 values of 4 bits more.
    assert_eq!(more, 4 * 32 * 64 / 2);
    let ended = config("[kv_layers]\n3 = \"int8\"");
    let line = ended.error(2);
    assert!(
        line.contains("kv_layers") && line.contains("0 to 2"),
        "{line}"
    );
}

#[test]
fn perplexity_holds_what_is_promised() {
    let bench = Bench::new("llama");
    let file = bench
        .sandbox
        .write("text.txt", "a b c d e f g h ".repeat(400));
    let perplexity = format!("perplexity --text-file {}", text(&file));
    let document = bench.json(&format!(
        "{perplexity} --context 256 --chunks 2 --score-from 0.25 --reference full --kv int4 --activations f32"
    ));
    let positive = |value: &Value| {
        let number = value.as_f64().unwrap_or_else(|| panic!("{value}"));
        assert!(number > 0.0 && number.is_finite(), "{value}");
        number
    };
    for name in ["perplexity", "nll_mean", "kl_mean", "kl_p99"] {
        positive(&document[name]);
    }
    assert!(positive(&document["kl_mean"]) <= positive(&document["kl_p99"]));
    assert!(positive(&document["top1_agreement"]) <= 1.0);
    // The weights are f32, which int8 activations do not touch.
    assert_eq!(document["kl_floor_int8"], 0.0);
    assert_eq!(document["tokens_scored"], 2 * 192);
    assert_eq!(document["chunks"].as_array().unwrap().len(), 2);
    positive(&document["chunks"][1]["kl_mean"]);
    let kv = &document["kv"];
    assert_eq!(
        (&kv["codec"], &kv["policy"]),
        (&json!("int4"), &json!("full"))
    );
    assert_eq!(kv["rows_live"], 255);
    assert!(
        (4.0..9.0).contains(&positive(&kv["bits_effective"])),
        "{kv}"
    );

    // f16 is its own reference, and without f32 activations there is no floor to speak of.
    let same = bench.json(&format!(
        "{perplexity} --context 128 --chunks 1 --reference full"
    ));
    assert_eq!(same["kv"]["codec"], "f16");
    assert_eq!(same["kl_mean"], 0.0);
    assert_eq!(same["top1_agreement"], 1.0);
    assert!(same["kl_floor_int8"].is_null());
    // A window from its beginning is what score computes.
    let window = bench.json(&format!(
        "{perplexity} --context 128 --chunks 1 --score-from 0"
    ));
    assert!(window["kl_mean"].is_null());
    let ids = bench.json(&format!("tokenize --text-file {}", text(&file)));
    let ids: Vec<String> = ids["ids"].as_array().unwrap()[..128]
        .iter()
        .map(Value::to_string)
        .collect();
    let score = bench.json(&format!("score --ids {}", ids.join(",")));
    assert_eq!(window["tokens_scored"], 127);
    let difference = window["nll_mean"].as_f64().unwrap() - score["nll_mean"].as_f64().unwrap();
    assert!(difference.abs() < 1e-9, "{difference}");

    let ended = bench.run(&format!("{perplexity} --context 512 --offset 3000000"));
    assert!(ended.error(2).contains("the text has 0 tokens"));
}

#[test]
fn perplexity_of_a_stream() {
    let bench = Bench::new("llama");
    let file = bench
        .sandbox
        .write("text.txt", "a b c d e f g h ".repeat(400));
    let stream = format!(
        "perplexity --text-file {} --mode stream --tokens 1500 --segment 500 {WINDOW}",
        text(&file)
    );
    let document = bench.json(&format!("{stream} --reference recompute"));
    let segments = document["segments"].as_array().unwrap();
    let places: Vec<(u64, u64)> = segments
        .iter()
        .map(|segment| (number(&segment["from"]), number(&segment["to"])))
        .collect();
    assert_eq!(places, [(0, 500), (500, 1000), (1000, 1500)]);
    for segment in segments {
        let (found, again) = (&segment["perplexity"], &segment["reference_perplexity"]);
        assert!(found.as_f64().unwrap() > 1.0 && again.as_f64().unwrap() > 1.0);
    }
    assert_eq!(document["tokens_scored"], 1499);
    assert_eq!(document["kv"]["codec"], "f16");
    assert!(number(&document["kv"]["rows_evicted"]) > 1000);
    assert!(number(&document["kv"]["rows_peak"]) <= 64 + 128 + 32);
    // Until something leaves, the stream is the text itself.
    let short = stream.replace("1500", "190");
    let whole = bench.json(&short.replace(WINDOW, "--policy full"));
    assert_eq!(bench.json(&short)["nll_mean"], whole["nll_mean"]);
    let ended = bench.run(&format!(
        "{} --reference recompute",
        short.replace(WINDOW, "--policy full")
    ));
    assert!(ended.error(2).contains("--policy window"));
}

/// Who names a window and no number of tokens gets an answer without end; by default a model that does
/// not find its end is stopped after a context.
#[test]
fn a_window_goes_on_for_as_long_as_the_model_does() {
    let bench = Bench::new("llama");
    let line = "run --raw --prompt x --ignore-eos --repack off";
    let answer = bench.json(line);
    assert_eq!(answer["usage"]["completion_tokens"], 512);
    assert_eq!(answer["finish_reason"], "length");
    let long = bench.json(&format!("{line} --policy window -n 2000"));
    let length = long["text"].as_str().unwrap().len();

    let mut words: Vec<&str> = line.split(' ').collect();
    words.insert(1, text(&bench.model));
    words.extend(["--policy", "window"]);
    let mut command = bench.sandbox.command(&words);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut found = vec![0; length];
    let read = child.stdout.take().unwrap().read_exact(&mut found);
    child.kill().unwrap();
    child.wait().unwrap();
    read.expect("four contexts of tokens and more");
}
