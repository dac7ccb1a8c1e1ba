//! Tool calls of an answer as the APIs write them.

use haversack::grammar::ToolCall;
use serde_json::{Value as Json, json};
use std::hash::{BuildHasher, RandomState};

/// As the chat API has it.
pub fn call_json(call: &ToolCall) -> Json {
    json!({
        "id": any_id(),
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments },
    })
}

/// An id for a call: nine letters and digits, as some templates require.
pub fn any_id() -> String {
    let mut bits = RandomState::new().hash_one(0u8);
    let digit = |_| {
        let digit = char::from_digit((bits % 36) as u32, 36);
        bits /= 36;
        digit.unwrap_or('0')
    };
    (0..9).map(digit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_nine_letters_and_digits() {
        let (a, b) = (any_id(), any_id());
        assert_ne!(a, b);
        assert!(
            a.len() == 9 && a.bytes().all(|b| b.is_ascii_alphanumeric()),
            "{a}"
        );
    }
}
