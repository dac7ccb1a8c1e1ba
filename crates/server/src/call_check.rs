//! Whether the call that an answer begins with is needed.
//!
//! Small models that are given tools write a call for much that needs none, and little in how they write it
//! tells those calls from others: neither how likely the first token is nor an instruction changes it. Asked without the tools
//! whether a message takes that function, they know. So they are asked, with yes or no, in a prompt whose beginning is the same
//! for every call and is therefore cached; one step of the model compares the two words.
//!
//! Pure: what is asked, and what the answer means.

use super::tools::ToolSet;
use super::types::ChatMessage;
use haversack::Logprob;
use haversack::engine::Model;

/// Messages that the question quotes, and bytes of the last one and of each before it.
const MESSAGES: usize = 4;
const LAST_BYTES: usize = 1024;
const EARLIER_BYTES: usize = 256;
/// Of the description of a function.
const DESCRIPTION_BYTES: usize = 512;
/// Likeliest tokens in which the two words are looked for: as written, with a blank, in capitals.
pub const TOP: usize = 20;

const INSTRUCTION: &str = "You decide whether an assistant must call a function to answer a user. \
    Say yes if the user wants something done or looked up that takes the function: an action, a calculation, a search, \
    current or private data. \
    Say no if it takes only words: greetings, thanks, general knowledge, language, writing, programming, advice.";

/// What a user says, a function, what that does, and whether it must be called. Each function that comes twice is needed once.
const EXAMPLES: [(&str, &str, &str, &str); 6] = [
    (
        "What is 'house' in Italian?",
        "search_files",
        "Search the user's files.",
        "no",
    ),
    (
        "Lock the front door.",
        "lock_door",
        "Lock or unlock a door.",
        "yes",
    ),
    (
        "How much money do I have?",
        "get_balance",
        "Get the balance of the user's account.",
        "yes",
    ),
    (
        "Good morning!",
        "get_balance",
        "Get the balance of the user's account.",
        "no",
    ),
    (
        "Who built the Eiffel Tower?",
        "search_encyclopedia",
        "Search an online encyclopedia.",
        "no",
    ),
    (
        "Look up which films are on in Lyon tonight.",
        "search_encyclopedia",
        "Search an online encyclopedia.",
        "yes",
    ),
];

/// How many times as likely as "no" a "yes" must be. Qwen2.5-Coder-1.5B: 3.3 and more where a function is needed, 2.0 and less for a
/// search for general knowledge; the logarithms are 1.2 and 0.7, and this is between them.
const YES_TO_NO: f64 = 2.6;

/// What the question about a call is made of.
pub struct CallCheck {
    /// The end of the conversation.
    said: String,
    /// Names and descriptions of the functions.
    functions: Vec<(String, String)>,
}

impl CallCheck {
    /// `None`: the user did not speak last, and what the calls go on with was decided before.
    pub fn new(messages: &[ChatMessage], tools: &ToolSet) -> Option<CallCheck> {
        let (last, before) = messages.split_last()?;
        if last.role != "user" {
            return None;
        }
        let earlier = before.iter().rev();
        let earlier = earlier.filter(|m| m.role == "user" || m.role == "assistant");
        let mut quoted: Vec<String> = earlier
            .map(|m| (m.role.as_str(), m.text()))
            .filter(|(_, text)| !text.trim().is_empty())
            .take(MESSAGES - 1)
            .map(|(role, text)| format!("{role}: {}\n", shortened(text.trim(), EARLIER_BYTES)))
            .collect();
        quoted.reverse();
        quoted.push(format!(
            "user: {}",
            shortened(last.text().trim(), LAST_BYTES)
        ));
        Some(CallCheck {
            said: quoted.concat(),
            functions: tools.descriptions(),
        })
    }

    /// The question about this function, as a conversation.
    pub fn question(&self, name: &str) -> Vec<ChatMessage> {
        let mut functions = self.functions.iter();
        let description = functions.find(|(one, _)| one == name);
        let description = description.map_or("", |(_, text)| text.trim());
        let description = shortened(description, DESCRIPTION_BYTES);
        let mut messages = vec![ChatMessage::new("system", INSTRUCTION)];
        for (said, name, description, answer) in EXAMPLES {
            let said = format!("user: {said}");
            let question = one_question(&said, name, description);
            messages.push(ChatMessage::new("user", &question));
            messages.push(ChatMessage::new("assistant", answer));
        }
        let question = one_question(&self.said, name, &description);
        messages.push(ChatMessage::new("user", &question));
        messages
    }
}

fn one_question(said: &str, name: &str, description: &str) -> String {
    format!("{said}\n\nFunction {name}: {description}")
}

/// Whether the first token of the answer to the question speaks for the call. Without either word it stands.
pub fn is_needed(model: &Model, first: &Logprob) -> bool {
    let likely = |wanted: &str| -> f64 {
        let is_wanted = |id: u32| {
            let piece = model.tokenizer().piece_bytes(id);
            String::from_utf8_lossy(&piece)
                .trim()
                .eq_ignore_ascii_case(wanted)
        };
        let found = first.top.iter().filter(|(id, _)| is_wanted(*id));
        found.map(|(_, logprob)| logprob.exp()).sum()
    };
    likely("yes") >= likely("no") * YES_TO_NO
}

/// The beginning and the end of a text that has more bytes than these.
fn shortened(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let from = text.ceil_char_boundary(text.len() - bytes / 3);
    let to = text.floor_char_boundary(bytes - bytes / 3);
    format!("{} … {}", &text[..to], &text[from..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(messages: Value) -> Option<CallCheck> {
        let function = json!({ "name": "go", "description": " Goes somewhere. " });
        let tool = json!({ "type": "function", "function": function });
        let tools = ToolSet::read(&[tool], None, false).unwrap().unwrap();
        let messages: Vec<ChatMessage> = serde_json::from_value(messages).unwrap();
        CallCheck::new(&messages, &tools)
    }

    #[test]
    fn the_end_of_the_conversation_is_quoted() {
        let one = check(json!([
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": "first" },
            { "role": "assistant", "content": null, "tool_calls": [] },
            { "role": "tool", "content": "5" },
            { "role": "assistant", "content": "second" },
            { "role": "user", "content": "third" },
            { "role": "assistant", "content": "fourth" },
            { "role": "user", "content": " Go there! " },
        ]));
        let question = one.unwrap().question("go");
        let last = question.last().unwrap();
        assert_eq!(last.role, "user");
        assert_eq!(
            last.text(),
            "assistant: second\nuser: third\nassistant: fourth\nuser: Go there!\n\nFunction go: Goes somewhere."
        );
        // The beginning is the same for every call.
        let other = check(json!([{ "role": "user", "content": "x" }]));
        let other = other.unwrap().question("go");
        assert_eq!(question.len(), other.len());
        for (one, other) in question.iter().zip(&other).take(question.len() - 1) {
            assert_eq!((&one.role, one.text()), (&other.role, other.text()));
        }
    }

    #[test]
    fn only_the_first_call_behind_a_message_of_the_user_is_checked() {
        assert!(check(json!([])).is_none());
        assert!(
            check(json!([
                { "role": "user", "content": "x" },
                { "role": "tool", "content": "5" },
            ]))
            .is_none()
        );
    }

    #[test]
    fn long_texts_keep_both_ends() {
        assert_eq!(shortened("short", 5), "short");
        let long = format!("begins{}ends", "é".repeat(500));
        let short = shortened(&long, 100);
        assert!(
            short.starts_with("beginsé") && short.ends_with("éends"),
            "{short}"
        );
        assert!(short.len() <= 100 + " … ".len(), "{}", short.len());
        let said = check(json!([{ "role": "user", "content": long.repeat(99) }]));
        let question = said.unwrap().question("go");
        assert!(question.last().unwrap().text().len() < LAST_BYTES + 100);
    }
}
