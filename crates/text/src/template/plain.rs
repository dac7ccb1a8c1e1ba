//! The format of a model without a chat template.
//!
//! ```text
//! System: You are terse.            ← every message: its role, a colon, its text without blanks around it
//!                                   ← an empty line after a system message
//! User: What is 2+2?
//! Assistant: 4
//! User: And 3+3?
//! Assistant:                        ← no blank and no newline after it: the model's first token brings its own
//! ```
//!
//! Base models continue such a dialogue, also with the next question; so generation stops at a line that
//! starts another turn ([`STOP_STRINGS`]).

use super::Message;
use super::limits::{INPUT_BYTES_MAX, Outcome, limit};

/// A new turn begins with one of these: the answer is over.
pub const STOP_STRINGS: [&str; 2] = ["\nUser:", "\nSystem:"];

pub fn render(messages: &[Message], add_generation_prompt: bool) -> Outcome<String> {
    let mut out = String::new();
    for message in messages {
        let name = match message.role.as_str() {
            "system" | "developer" => "System",
            "assistant" | "model" => "Assistant",
            "user" => "User",
            other => other,
        };
        let bytes = out.len().saturating_add(message.content.len());
        limit(bytes > 2 * INPUT_BYTES_MAX, "too much output")?;
        let text = message.content.trim();
        out.push_str(name);
        out.push_str(if text.is_empty() { ":" } else { ": " });
        out.push_str(text);
        out.push_str(if name == "System" { "\n\n" } else { "\n" });
    }
    if add_generation_prompt {
        out.push_str("Assistant:");
    }
    Ok(out)
}
