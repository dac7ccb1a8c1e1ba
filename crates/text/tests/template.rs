//! Chat templates against Jinja 2: `fixtures/template/make.py` wrote what it makes of each case.

use haversack_text::template::{ChatTemplate, Message, RenderOptions, TemplateError, Variable};
use serde_json::Value;
use std::path::Path;

fn fixtures() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/template")
}

fn text<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value.get(key).and_then(Value::as_str)
}

fn chat(name: &str, all: &Value) -> Vec<Message> {
    let chat = all["chats"][name].as_array().expect("a chat");
    chat.iter()
        .map(|m| {
            Message::new(
                text(m, "role").expect("role"),
                text(m, "content").expect("content"),
            )
        })
        .collect()
}

#[test]
fn every_case_renders_as_jinja_does() {
    let all = std::fs::read_to_string(fixtures().join("cases.json")).expect("cases.json");
    let all: Value = serde_json::from_str(&all).expect("JSON");
    let mut wrong = Vec::new();
    let cases = all["cases"].as_array().expect("cases");
    assert!(cases.len() > 250);
    for case in cases {
        let source = match text(case, "file") {
            Some(file) => std::fs::read_to_string(fixtures().join(file)).expect("a template"),
            None => text(case, "source").expect("a source").to_owned(),
        };
        let variables = case["variables"].as_object().expect("variables").iter();
        let options = RenderOptions {
            add_generation_prompt: case["prompt"] == true,
            now_unix_seconds: all["now"].as_i64().expect("now"),
            variables: variables
                .map(|(name, value)| match value {
                    Value::Bool(b) => (name.clone(), Variable::Bool(*b)),
                    other => (
                        name.clone(),
                        Variable::Text(other.as_str().expect("text").to_owned()),
                    ),
                })
                .collect(),
        };
        let template = ChatTemplate::new(Some(&source), "<s>", "</s>");
        let got = template.render(&chat(text(case, "chat").expect("chat"), &all), &options);
        let right = match &got {
            Ok(got) => Some(got.as_str()) == text(case, "text"),
            Err(TemplateError::Raised(message)) => Some(message.as_str()) == text(case, "raised"),
            Err(_) => text(case, "error").is_some(),
        };
        if !right {
            wrong.push(format!(
                "{source:.400}\n  chat {}\n  want {case}\n  got  {got:?}\n",
                case["chat"]
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn a_model_without_a_template_gets_the_plain_format() {
    let plain = ChatTemplate::new(None, "<s>", "</s>");
    assert!(!plain.stop_strings().is_empty() && plain.source_error().is_none());
    let messages = [
        Message::new("system", " Be terse.\n"),
        Message::new("user", "2+2?"),
        Message::new("assistant", "4"),
        Message::new("user", ""),
    ];
    let mut options = RenderOptions {
        add_generation_prompt: true,
        ..RenderOptions::default()
    };
    let want = "System: Be terse.\n\nUser: 2+2?\nAssistant: 4\nUser:\nAssistant:";
    assert_eq!(plain.render(&messages, &options).as_deref(), Ok(want));
    options.add_generation_prompt = false;
    let want = "System: Be terse.\n\nUser: 2+2?\nAssistant: 4\nUser:\n";
    assert_eq!(plain.render(&messages, &options).as_deref(), Ok(want));
    assert_eq!(plain.stop_strings(), ["\nUser:", "\nSystem:"]);
    assert_eq!(ChatTemplate::new(Some(""), "", "").stop_strings(), [""; 0]);
}

#[test]
fn a_broken_template_says_so_when_asked() {
    for broken in [
        ChatTemplate::new(Some("{% if %}"), "", ""),
        ChatTemplate::unusable("tokenizer.chat_template is not UTF-8"),
    ] {
        let error = broken.source_error().cloned().expect("an error");
        assert!(broken.stop_strings().is_empty());
        assert_eq!(broken.render(&[], &RenderOptions::default()), Err(error));
    }
}

#[test]
fn errors_are_one_line_and_carry_the_place() {
    let render = |source: &str| {
        let template = ChatTemplate::new(Some(source), "", "");
        let error = template.render(&[Message::new("user", "x")], &RenderOptions::default());
        error.expect_err("an error").to_string()
    };
    assert_eq!(
        render("a\n{{ messages[0].frob.nicate }}"),
        "chat template: line 2: 'frob' is undefined"
    );
    assert_eq!(
        render("{{ raise_exception('one\ntwo\x1b[0m') }}"),
        "the chat template refused the messages: one\\ntwo\\u{1b}[0m"
    );
    assert_eq!(
        render("\n\n{% frob %}"),
        "chat template: line 3: unknown tag 'frob'"
    );
    assert_eq!(
        render("{% include 'x' %}"),
        "chat template: line 1: 'include' is refused: a template stands alone"
    );
    let long = render("{{ raise_exception('x' * 1000) }}");
    assert!(long.ends_with("x…") && long.chars().count() < 260, "{long}");
}

#[test]
fn long_chats_fit_and_longer_ones_are_refused() {
    let source = std::fs::read_to_string(fixtures().join("qwen3.jinja")).expect("a template");
    let template = ChatTemplate::new(Some(&source), "", "");
    let chat = |turns: usize, bytes: usize| -> Vec<Message> {
        let role = |i| if i % 2 == 0 { "user" } else { "assistant" };
        (0..turns)
            .map(|i| Message::new(role(i), "y".repeat(bytes)))
            .collect()
    };
    let options = RenderOptions::default();
    assert!(template.render(&chat(8_000, 200), &options).is_ok());
    assert!(template.render(&chat(2, 1 << 20), &options).is_ok());
    let refused = Err(TemplateError::Limit("the messages are too long"));
    assert_eq!(template.render(&chat(20_000, 1), &options), refused);
    assert_eq!(template.render(&chat(5, 1 << 20), &options), refused);
}

/// Tools and calls as templates of the families look at them.
#[test]
fn tools_and_calls_are_given_to_the_template() {
    let text = |text: &str| Variable::Text(text.to_owned());
    let map = |entries: &[(&str, Variable)]| {
        let entries = entries.iter().map(|(k, v)| ((*k).to_owned(), v.clone()));
        Variable::Map(entries.collect())
    };
    let tool = map(&[
        ("type", text("function")),
        (
            "function",
            map(&[
                ("name", text("go")),
                ("least", Variable::Int(-3)),
                ("share", Variable::Float(0.5)),
                ("none", Variable::None),
                (
                    "list",
                    Variable::List(vec![Variable::Bool(true), text("\"é\"")]),
                ),
            ]),
        ),
    ]);
    let source = "{%- for t in tools %}{{ t.function.name }} {{ t | tojson }}\n{% endfor %}\
        {%- for m in messages %}{{ m.role }}:{% if m.tool_calls %}\
        {%- for c in m.tool_calls %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}\
        {%- else %}{{ m.content }}{% endif %}{% if 'tool_call_id' in m %}[{{ m.tool_call_id }}]{% endif %};{% endfor %}";
    let template = ChatTemplate::new(Some(source), "", "");
    assert!(template.knows_tools());
    assert!(!ChatTemplate::new(Some("{{ messages }}"), "", "").knows_tools());
    assert!(!ChatTemplate::new(None, "", "").knows_tools());
    let options = RenderOptions {
        variables: vec![("tools".to_owned(), Variable::List(vec![tool]))],
        ..RenderOptions::default()
    };
    let call = map(&[(
        "function",
        map(&[
            ("name", text("go")),
            ("arguments", map(&[("n", Variable::Int(1))])),
        ]),
    )]);
    let mut calls = Message::new("assistant", "");
    calls.fields = vec![("tool_calls".to_owned(), Variable::List(vec![call]))];
    let mut result = Message::new("tool", "gone");
    result.fields = vec![("tool_call_id".to_owned(), text("x1"))];
    let got = template.render(&[Message::new("user", "Go!"), calls, result], &options);
    assert_eq!(
        got.unwrap(),
        "go {\"type\": \"function\", \"function\": {\"name\": \"go\", \"least\": -3, \"share\": 0.5, \"none\": null, \
         \"list\": [true, \"\\\"é\\\"\"]}}\nuser:Go!;assistant:go({\"n\": 1});tool:gone[x1];"
    );
    // A structure is part of what may be given.
    let wide = Variable::List(vec![Variable::None; 100_000]);
    let options = RenderOptions {
        variables: vec![("tools".to_owned(), wide)],
        ..RenderOptions::default()
    };
    assert!(matches!(
        template.render(&[], &options),
        Err(TemplateError::Limit(_))
    ));
    let mut deep = Variable::None;
    for _ in 0..200 {
        deep = Variable::List(vec![deep]);
    }
    let options = RenderOptions {
        variables: vec![("tools".to_owned(), deep)],
        ..RenderOptions::default()
    };
    assert!(template.render(&[], &options).is_err());
}
