//! `tools`, `tool_choice`, and messages with calls and their results.
//!
//! A template that knows tools gets them as they came. For any other template the tools are described in the system
//! message, calls are written as text, and results come from the user: such a model has seen nothing but text.

use super::fail::{Fail, refuse, require};
use super::limits;
use super::types::ChatMessage;
use haversack::grammar::{Calls, Function, Functions, Shape, ToolCall};
use haversack::text::template::{Message, Variable};
use serde_json::Value as Json;

#[derive(Debug, PartialEq)]
struct Tool {
    name: String,
    parameters: Option<Json>,
    /// As it came.
    whole: Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Auto,
    /// The answer must be a call: of this tool, or of any.
    Must(Option<usize>),
}

/// A description of tools begins with it.
pub const TOOLS_BEGIN: &str = "You may call functions to answer the user.";

/// A call that is written as text begins with it.
pub const CALL_BEGIN: &str = "<tool_call>";

/// A result that is written as text begins with it.
pub const RESULT_BEGIN: &str = "<tool_response>";

/// Functions that the answer may call.
#[derive(Debug, PartialEq)]
pub struct ToolSet {
    tools: Vec<Tool>,
    choice: Choice,
    once: bool,
}

impl ToolSet {
    /// `once`: at most one call.
    pub fn read(
        tools: &[Json],
        choice: Option<&Json>,
        once: bool,
    ) -> Result<Option<ToolSet>, Fail> {
        let max = limits::TOOLS;
        let accepted = format!("accepted: at most {max}");
        require(tools.len() <= max, "tools", accepted)?;
        let tools: Result<Vec<Tool>, Fail> = tools.iter().map(tool).collect();
        let tools = tools?;
        let wrong = |what: &str| refuse("tool_choice", what);
        let named = |choice: &Json| {
            let name = choice.pointer("/function/name").or(choice.get("name"));
            let name = name.and_then(Json::as_str);
            name.map(|name| tools.iter().position(|tool| tool.name == name))
        };
        let choice = match choice.unwrap_or(&Json::Null) {
            Json::Null => Choice::Auto,
            Json::String(word) => match word.as_str() {
                "none" => return Ok(None),
                "auto" => Choice::Auto,
                "required" => Choice::Must(None),
                _ => return wrong("accepted: none, auto, required, or a function"),
            },
            choice => match named(choice) {
                Some(Some(at)) => Choice::Must(Some(at)),
                Some(None) => return wrong("the function is not among the tools"),
                None => return wrong("accepted: none, auto, required, or a function"),
            },
        };
        match (tools.is_empty(), choice) {
            (false, _) => Ok(Some(ToolSet {
                tools,
                choice,
                once,
            })),
            (true, Choice::Auto) => Ok(None),
            (true, Choice::Must(_)) => wrong("there are no tools"),
        }
    }

    pub fn functions(&self) -> Functions {
        Functions {
            names: self.tools.iter().map(|tool| tool.name.clone()).collect(),
            once: self.once,
        }
    }

    /// Names of the functions, and what they are said to do.
    pub fn descriptions(&self) -> Vec<(String, String)> {
        let described = |tool: &Tool| {
            let text = tool.whole.pointer("/function/description");
            let text = text.and_then(Json::as_str).unwrap_or_default();
            (tool.name.clone(), text.to_owned())
        };
        self.tools.iter().map(described).collect()
    }

    /// The shape of an answer that may call them, or must.
    pub fn shape(&self) -> Shape {
        let (tools, must) = match self.choice {
            Choice::Auto => (&self.tools[..], false),
            Choice::Must(None) => (&self.tools[..], true),
            Choice::Must(Some(at)) => (&self.tools[at..=at], true),
        };
        let functions = tools.iter().map(|tool| Function {
            name: tool.name.clone(),
            parameters: tool.parameters.clone(),
        });
        Shape::Calls(Calls {
            functions: functions.collect(),
            must,
            once: self.once,
        })
    }

    /// The answer is nothing but a call.
    pub fn must(&self) -> bool {
        self.choice != Choice::Auto
    }

    /// For a template that knows tools.
    pub fn variable(&self) -> Variable {
        let tools = self.tools.iter().map(|tool| variable(&tool.whole));
        Variable::List(tools.collect())
    }

    /// For one that does not, and for a session.
    pub fn description(&self) -> String {
        let tools = self.tools.iter().map(|tool| tool.whole.to_string());
        format!(
            "{TOOLS_BEGIN} These are the functions, one in each line:\n{}\n\n\
             To call one, write a JSON object with its name and its arguments between tags, and nothing else:\n\
             <tool_call>\n{{\"name\": \"the name\", \"arguments\": {{}}}}\n</tool_call>",
            tools.collect::<Vec<String>>().join("\n")
        )
    }
}

fn tool(tool: &Json) -> Result<Tool, Fail> {
    let wrong = |what: &str| refuse("tools", what);
    if tool.get("type").and_then(Json::as_str) != Some("function") {
        return wrong("accepted types: function");
    }
    let Some(name) = tool.pointer("/function/name").and_then(Json::as_str) else {
        return wrong("a function has no name");
    };
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    if !(1..=64).contains(&name.len()) || !name.bytes().all(is_name) {
        return wrong("accepted names: 1 to 64 letters, digits, underscores, dots and dashes");
    }
    let parameters = match tool.pointer("/function/parameters") {
        None | Some(Json::Null) => None,
        Some(schema) if schema.is_object() => Some(schema.clone()),
        Some(_) => return wrong("parameters: accepted: a schema"),
    };
    Ok(Tool {
        name: name.to_owned(),
        parameters,
        whole: tool.clone(),
    })
}

/// The messages as a template takes them.
pub fn messages(
    given: &[ChatMessage],
    tools: Option<&ToolSet>,
    knows_tools: bool,
) -> Result<Vec<Message>, Fail> {
    let mut messages: Vec<Message> = Vec::new();
    // The last message is one of results.
    let mut is_results = false;
    for message in given {
        let calls = message.tool_calls.as_deref().unwrap_or_default();
        let calls: Result<Vec<PastCall>, Fail> = calls.iter().map(past_call).collect();
        let calls = calls?;
        let role = match message.role.as_str() {
            "developer" => "system",
            role => role,
        };
        let text = message.text();
        let was_results = std::mem::replace(&mut is_results, false);
        if knows_tools {
            let mut one = Message::new(role, text);
            if !calls.is_empty() {
                let calls = calls.iter().map(PastCall::variable).collect();
                let calls = Variable::List(calls);
                one.fields.push(("tool_calls".into(), calls));
            }
            let text = |text: &Option<String>| text.clone().map(Variable::Text);
            let id = text(&message.tool_call_id).map(|id| ("tool_call_id".into(), id));
            let name = text(&message.name).map(|name| ("name".into(), name));
            one.fields.extend(id.into_iter().chain(name));
            messages.push(one);
        } else if role == "tool" {
            let result = format!("{RESULT_BEGIN}\n{text}\n</tool_response>");
            is_results = true;
            match messages.last_mut() {
                Some(last) if was_results => last.content += &format!("\n{result}"),
                _ => messages.push(Message::new("user", result)),
            }
        } else {
            let written = calls.iter().map(PastCall::written);
            let parts: Vec<String> = std::iter::once(text)
                .filter(|text| !text.is_empty() || calls.is_empty())
                .chain(written)
                .collect();
            messages.push(Message::new(role, parts.join("\n")));
        }
    }
    if let Some(tools) = tools.filter(|_| !knows_tools) {
        let description = tools.description();
        match messages.first_mut().filter(|first| first.role == "system") {
            Some(first) => first.content += &format!("\n\n{description}"),
            None => messages.insert(0, Message::new("system", description)),
        }
    }
    Ok(messages)
}

/// A call that was made earlier.
struct PastCall {
    id: String,
    name: String,
    arguments: Json,
}

fn past_call(call: &Json) -> Result<PastCall, Fail> {
    let text = |at: &str| call.pointer(at).and_then(Json::as_str);
    let (Some(name), Some(arguments)) = (text("/function/name"), text("/function/arguments"))
    else {
        let accepted = "tool_calls: accepted: functions with a name and arguments";
        return refuse("messages", accepted);
    };
    // Templates write the object out themselves; anything else stays text.
    let object = serde_json::from_str(arguments).ok().filter(Json::is_object);
    Ok(PastCall {
        id: text("/id").unwrap_or_default().to_owned(),
        name: name.to_owned(),
        arguments: object.unwrap_or_else(|| Json::from(arguments)),
    })
}

/// A call of a message, as the answer it came from had it.
pub fn tool_call(call: &Json) -> Option<ToolCall> {
    let PastCall {
        name, arguments, ..
    } = past_call(call).ok()?;
    let arguments = arguments.to_string();
    Some(ToolCall { name, arguments })
}

impl PastCall {
    fn variable(&self) -> Variable {
        let text = |text: &str| Variable::Text(text.to_owned());
        let function = vec![
            ("name".into(), text(&self.name)),
            ("arguments".into(), variable(&self.arguments)),
        ];
        Variable::Map(vec![
            ("id".into(), text(&self.id)),
            ("type".into(), text("function")),
            ("function".into(), Variable::Map(function)),
        ])
    }

    fn written(&self) -> String {
        let (name, arguments) = (Json::from(self.name.as_str()), &self.arguments);
        format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>")
    }
}

fn variable(json: &Json) -> Variable {
    match json {
        Json::Null => Variable::None,
        Json::Bool(b) => Variable::Bool(*b),
        Json::Number(n) => match n.as_i64() {
            Some(i) => Variable::Int(i),
            None => Variable::Float(n.as_f64().unwrap_or_default()),
        },
        Json::String(text) => Variable::Text(text.clone()),
        Json::Array(items) => Variable::List(items.iter().map(variable).collect()),
        Json::Object(map) => {
            let entries = map.iter().map(|(name, of)| (name.clone(), variable(of)));
            Variable::Map(entries.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn go() -> Json {
        json!({ "type": "function", "function": { "name": "go", "parameters": { "type": "object" } } })
    }

    fn chat(messages: Json) -> Vec<ChatMessage> {
        serde_json::from_value(messages).unwrap()
    }

    #[test]
    fn choices_are_read() {
        let of = |choice: Json| ToolSet::read(&[go()], Some(&choice), false);
        assert_eq!(of(json!("none")).unwrap(), None);
        let must = |choice: Json| of(choice).unwrap().unwrap().must();
        assert!(!must(json!("auto")) && must(json!("required")));
        // As the chat API names a function, and as responses do.
        for named in [
            json!({ "type": "function", "function": { "name": "go" } }),
            json!({ "type": "function", "name": "go" }),
        ] {
            assert!(must(named));
        }
        for bad in [
            json!("wat"),
            json!(5),
            json!({ "function": { "name": "stop" } }),
        ] {
            let error = of(bad).unwrap_err();
            assert_eq!(error.json()["error"]["param"], "tool_choice");
        }
        assert_eq!(ToolSet::read(&[], None, false).unwrap(), None);
        assert!(ToolSet::read(&[], Some(&json!("required")), false).is_err());
        for bad in [
            json!(5),
            json!({ "type": "web_search" }),
            json!({ "type": "function", "function": { "name": "a b" } }),
            json!({ "type": "function", "function": { "name": "f", "parameters": [] } }),
        ] {
            let error = ToolSet::read(&[bad], None, false).unwrap_err();
            assert_eq!(error.json()["error"]["param"], "tools");
        }
    }

    #[test]
    fn a_template_without_tools_gets_text() {
        let tools = ToolSet::read(&[go()], None, false).unwrap();
        let given = chat(json!([
            { "role": "user", "content": "Go!" },
            { "role": "assistant", "content": null, "tool_calls": [
                { "id": "1", "type": "function", "function": { "name": "go", "arguments": "{\"n\": 1}" } },
                { "id": "2", "type": "function", "function": { "name": "go", "arguments": "not JSON" } },
            ] },
            { "role": "tool", "tool_call_id": "1", "content": "gone" },
            { "role": "tool", "tool_call_id": "2", "content": "lost" },
        ]));
        let got = messages(&given, tools.as_ref(), false).unwrap();
        let roles: Vec<&str> = got.iter().map(|m| m.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        assert!(
            got[0].content.contains("\"name\":\"go\"") && got[0].content.contains("<tool_call>")
        );
        assert_eq!(
            got[2].content,
            "<tool_call>\n{\"name\": \"go\", \"arguments\": {\"n\":1}}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"go\", \"arguments\": \"not JSON\"}\n</tool_call>"
        );
        let results = ["gone", "lost"].map(|r| format!("<tool_response>\n{r}\n</tool_response>"));
        assert_eq!(got[3].content, results.join("\n"));
    }

    #[test]
    fn a_template_that_knows_tools_gets_them_as_they_came() {
        let given = chat(json!([
            { "role": "developer", "content": "Be brief." },
            { "role": "assistant", "tool_calls": [
                { "id": "1", "type": "function", "function": { "name": "go", "arguments": "{\"n\": 1}" } },
            ] },
            { "role": "tool", "tool_call_id": "1", "content": "gone" },
        ]));
        let got = messages(&given, None, true).unwrap();
        assert_eq!(got[0], Message::new("system", "Be brief."));
        let (name, Variable::List(calls)) = &got[1].fields[0] else {
            panic!("{:?}", got[1]);
        };
        assert_eq!((name.as_str(), calls.len()), ("tool_calls", 1));
        let mut texts = Vec::new();
        calls[0].texts(&mut texts);
        assert_eq!(
            texts,
            [
                "id",
                "1",
                "type",
                "function",
                "function",
                "name",
                "go",
                "arguments",
                "n"
            ]
        );
        assert_eq!(
            got[2].fields,
            [("tool_call_id".into(), Variable::Text("1".into()))]
        );
        let bad = chat(json!([{ "role": "assistant", "tool_calls": [{ "id": "1" }] }]));
        assert!(messages(&bad, None, true).is_err());
    }
}
