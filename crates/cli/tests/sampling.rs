//! How answers are sampled where a request or a flag leaves values out, and answers that repeat themselves.

use crate::common;

use common::server::{Server, events};
use common::{Sandbox, text};
use haversack::gguf::write::{Meta, Planned};
use haversack::kernels::format::WeightType;
use haversack_testing::models::{Mix, Spec};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;

/// A name that the catalogue knows; it says temperature 0.2 and top-p 0.9 of it.
const KNOWN: &str = "smollm2-135m-instruct-q4_1.gguf";

/// A token that answers consist of where a bias wants it.
const TOKEN: u32 = 65;

/// A tiny model under this name, whose file recommends these values.
fn model(sandbox: &Sandbox, name: &str, metadata: &[(&str, f32)]) -> PathBuf {
    let spec = Spec {
        mix: Mix::All(WeightType::Q8_0),
        ..Spec::named("llama").unwrap()
    };
    let mut writer = spec.writer().unwrap();
    for (key, value) in metadata {
        writer.set(format!("general.sampling.{key}"), Meta::F32(*value));
    }
    let path = sandbox.path(name);
    let mut fill = |planned: &Planned, out: &mut dyn Write| spec.fill(planned, out);
    writer.write_file(&path, &mut fill).unwrap();
    path
}

fn serve(name: &str, metadata: &[(&str, f32)]) -> Server {
    let sandbox = Sandbox::new();
    let path = model(&sandbox, name, metadata);
    let flags = ["--threads", "1", "--memory", "64M", "--repack", "off"];
    Server::start_with(sandbox, &path, &flags)
}

/// Temperature and top-p of an answer to a request with these fields, as the server tells them.
fn told(server: &Server, fields: Value) -> (f64, f64) {
    let mut body = json!({ "input": "the cat", "max_output_tokens": 1 });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    let (status, answer) = server.post("/v1/responses", &body);
    assert_eq!(status, 200, "{answer}");
    let number = |name: &str| (answer[name].as_f64().unwrap() * 1000.0).round() / 1000.0;
    (number("temperature"), number("top_p"))
}

/// The request, then the file's metadata, then the catalogue, then what is built in.
#[test]
fn what_a_request_leaves_out_suits_the_model() {
    let unknown = serve("tiny.gguf", &[]);
    assert_eq!(told(&unknown, json!({})), (0.7, 0.95));
    let asked = json!({ "temperature": 1.5, "top_p": 0.25 });
    assert_eq!(told(&unknown, asked), (1.5, 0.25));
    assert_eq!(told(&unknown, json!({ "temperature": 0 })), (0.0, 1.0));
    let known = serve(KNOWN, &[]);
    assert_eq!(told(&known, json!({})), (0.2, 0.9));
    assert_eq!(told(&known, json!({ "top_p": 0.25 })), (0.2, 0.25));
    let metadata = serve(KNOWN, &[("temp", 0.5), ("min_p", -3.0)]);
    assert_eq!(told(&metadata, json!({})), (0.5, 0.9));
    assert_eq!(told(&metadata, json!({ "temperature": 1 })), (1.0, 0.9));
}

#[test]
fn a_request_that_sets_nothing_gets_what_one_that_sets_all_of_it_gets() {
    let server = serve("tiny.gguf", &[]);
    let answer = |path: &str, mut body: Value| {
        body["max_tokens"] = json!(24);
        body["seed"] = json!(5);
        let (status, answer) = server.post(path, &body);
        assert_eq!(status, 200, "{answer}");
        let choice = &answer["choices"][0];
        let text = choice.get("text").unwrap_or(&choice["message"]["content"]);
        text.as_str().unwrap().to_owned()
    };
    for (path, body) in [
        ("/v1/completions", json!({ "prompt": "the cat" })),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": "the cat" }] }),
        ),
    ] {
        let with = |fields: &[(&str, f64)]| {
            let mut body = body.clone();
            for (name, value) in fields {
                body[*name] = json!(value);
            }
            body
        };
        let nothing = answer(path, body.clone());
        let mut all = with(&[("temperature", 0.7), ("top_p", 0.95), ("min_p", 0.05)]);
        all["top_k"] = json!(40);
        assert_eq!(nothing, answer(path, all), "{path}");
        let mut before = with(&[("temperature", 1.0), ("top_p", 1.0), ("min_p", 0.0)]);
        before["top_k"] = json!(0);
        assert_ne!(nothing, answer(path, before), "{path}");
        // Exactly what is set: greedy, whatever the seed.
        let greedy = answer(path, with(&[("temperature", 0.0)]));
        assert_eq!(greedy, answer(path, with(&[("top_p", 0.0)])), "{path}");
        assert_ne!(nothing, greedy, "{path}");
    }
}

#[test]
fn sampler_fields_are_obeyed_and_checked() {
    let server = serve("tiny.gguf", &[]);
    let ask = |name: &str, value: Value| {
        let mut body =
            json!({ "prompt": "the cat", "max_tokens": 24, "seed": 5, "temperature": 2.0 });
        (body["top_k"], body["top_p"], body["min_p"]) = (json!(0), json!(1.0), json!(0.0));
        body[name] = value;
        let (status, answer) = server.post("/v1/completions", &body);
        (status, answer["choices"][0]["text"].clone(), answer)
    };
    let plain = ask("typical_p", json!(1.0)).1;
    for (name, off, on, wrong) in [
        ("typical_p", json!(1), json!(0.05), json!(0)),
        ("top_n_sigma", json!(0), json!(0.5), json!(-1)),
        ("xtc_probability", json!(0), json!(1), json!(1.5)),
        ("xtc_threshold", json!(0.1), json!(0.5), json!(7)),
        ("dry_multiplier", json!(0), json!(0), json!(-1)),
        ("dry_base", json!(1.75), json!(3), json!(0.5)),
        ("dry_allowed_length", json!(2), json!(9), json!(0)),
        ("dry_penalty_last_n", json!(-1), json!(9), json!(65_537)),
        (
            "dry_sequence_breakers",
            json!([]),
            json!(["x"]),
            json!([""]),
        ),
    ] {
        assert_eq!(ask(name, off).1, plain, "{name}");
        let (status, text, _) = ask(name, on);
        assert_eq!(status, 200, "{name}");
        let acts = ["typical_p", "top_n_sigma"].contains(&name);
        assert!(!acts || text != plain, "{name}");
        let (status, _, answer) = ask(name, wrong);
        assert_eq!(status, 400, "{name}: {answer}");
        assert!(answer.to_string().contains(name), "{name}: {answer}");
    }
}

/// DRY ends what a bias for one token would go on with.
#[test]
fn dry_breaks_a_loop() {
    let server = serve("tiny.gguf", &[]);
    let mut body =
        json!({ "prompt": "the cat", "max_tokens": 60, "temperature": 0, "logit_bias": {} });
    body["logit_bias"][TOKEN.to_string()] = json!(40);
    body["logprobs"] = json!(0);
    let tokens = |body: &Value| {
        let (status, answer) = server.post("/v1/completions", body);
        assert_eq!(status, 200, "{answer}");
        let tokens = answer["choices"][0]["logprobs"]["tokens"]
            .as_array()
            .unwrap()
            .clone();
        let first = tokens[0].clone();
        tokens.iter().take_while(|token| **token == first).count()
    };
    assert_eq!(tokens(&body), 60);
    body["dry_multiplier"] = json!(1);
    body["dry_sequence_breakers"] = json!([]);
    assert!(tokens(&body) < 12);
}

/// Of a completion that says one token again and again.
fn looping(fields: Value) -> Value {
    let mut body = json!({ "prompt": "the cat", "max_tokens": 200, "logit_bias": {} });
    body["logit_bias"][TOKEN.to_string()] = json!(100);
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[test]
fn an_answer_that_repeats_itself_is_ended() {
    let server = serve("tiny.gguf", &[]);
    let ask = |fields: Value| {
        let (status, answer) = server.post("/v1/completions", &looping(fields));
        assert_eq!(status, 200, "{answer}");
        let choice = &answer["choices"][0];
        let reason = choice["finish_reason"].as_str().unwrap().to_owned();
        let by = choice.get("stopped_by").cloned();
        (
            reason,
            by,
            answer["usage"]["completion_tokens"].as_u64().unwrap(),
        )
    };
    let ended = ("stop".to_owned(), Some(json!("repetition")), 128);
    assert_eq!(ask(json!({})), ended);
    assert_eq!(
        ask(json!({ "temperature": 0 })),
        ended,
        "tokens decide, not how they are drawn"
    );
    let on = ("length".to_owned(), None, 200);
    assert_eq!(ask(json!({ "stop_repetition": false })), on);
    let short = ("length".to_owned(), None, 127);
    assert_eq!(ask(json!({ "max_tokens": 127 })), short);
    // A grammar decides where structured output ends.
    let constrained = |stops: Option<bool>| {
        let mut fields = json!({ "grammar": { "regex": "[a-z]*" }, "logit_bias": {} });
        if let Some(stops) = stops {
            fields["stop_repetition"] = json!(stops);
        }
        let (reason, by, _) = ask(fields);
        (reason, by)
    };
    assert_ne!(constrained(None).1, Some(json!("repetition")));

    let streamed = looping(json!({ "stream": true }));
    let request = Server::request("POST", "/v1/completions", "", &streamed.to_string());
    let (_, _, body) = server.raw(&request);
    let last = events(&body).into_iter().rev();
    let last = last.map(|event| event["choices"][0].clone());
    let last = last
        .into_iter()
        .find(|choice| choice["finish_reason"].is_string())
        .unwrap();
    assert_eq!(last["stopped_by"], "repetition", "{last}");
    let response = json!({ "input": "the cat", "max_output_tokens": 200 });
    let (_, response) = server.post("/v1/responses", &response);
    assert_eq!(response.get("stopped_by"), None, "{response}");
}

#[test]
fn run_and_chat_end_what_repeats_itself_where_they_should() {
    let sandbox = Sandbox::new();
    let path = model(&sandbox, "tiny.gguf", &[]);
    let bias = format!("{TOKEN}=100");
    let run = |more: &[&str]| {
        let mut line = vec![
            "run",
            text(&path),
            "--prompt",
            "the cat",
            "--raw",
            "-n",
            "200",
        ];
        line.extend(["--repack", "off", "--json", "--logit-bias", &bias]);
        line.extend(more);
        sandbox.run(&line)
    };
    let found = |more: &[&str]| {
        let json = run(more).json();
        let tokens = json["token_ids"].as_array().unwrap().len();
        (
            tokens,
            json["finish_reason"].clone(),
            json.get("stopped_by").cloned(),
        )
    };
    assert_eq!(found(&[]), (200, json!("length"), None));
    assert_eq!(
        found(&["--stop-repetition", "on"]),
        (128, json!("stop"), Some(json!("repetition")))
    );
    let off = ["--ignore-eos", "--stop-repetition", "off"];
    assert_eq!(found(&off), (200, json!("length"), None));
    let refused = run(&["--ignore-eos", "--stop-repetition", "on"]);
    assert!(
        refused.error(2).contains("--ignore-eos"),
        "{}",
        refused.stderr
    );

    let chat = |more: &[&str]| {
        let mut line = vec!["chat", text(&path), "-n", "200", "--repack", "off"];
        line.extend(["--logit-bias", &bias]);
        line.extend(more);
        let ended = sandbox.run_with(&line, "hello\n");
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stderr
    };
    let noted = chat(&[]);
    assert!(noted.contains("the answer repeated itself"), "{noted}");
    let noted = chat(&["--stop-repetition", "off"]);
    assert!(!noted.contains("the answer repeated itself"), "{noted}");
}

/// `run` takes the likeliest token unless a flag says otherwise; `chat` draws as the model's file recommends.
#[test]
fn run_stays_greedy_and_chat_suits_the_model() {
    let sandbox = Sandbox::new();
    let warm = model(&sandbox, "warm.gguf", &[("temp", 5.0)]);
    let greedy = model(&sandbox, "greedy.gguf", &[("temp", 0.0)]);
    let run = |path: &PathBuf, more: &[&str]| {
        let mut line = vec![
            "run",
            text(path),
            "--prompt",
            "the cat",
            "--raw",
            "-n",
            "24",
        ];
        line.extend(["--repack", "off"]);
        line.extend(more);
        let ended = sandbox.run(&line);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stdout
    };
    assert_eq!(run(&warm, &[]), run(&warm, &["--temperature", "0"]));
    let chat = |path: &PathBuf, more: &[&str]| {
        let mut line = vec!["chat", text(path), "-n", "24", "--repack", "off"];
        line.extend(more);
        sandbox.run_with(&line, "the cat\n").stdout
    };
    let likeliest = chat(&warm, &["--temperature", "0"]);
    assert_ne!(chat(&warm, &[]), likeliest);
    assert_eq!(chat(&greedy, &[]), likeliest);
    assert_eq!(
        chat(&warm, &["--seed", "3"]),
        chat(&greedy, &["--seed", "3", "--temperature", "5"])
    );
}
