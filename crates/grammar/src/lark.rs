//! Lark grammars as clients send them, in the syntax of `llguidance`: what may be in them.
//!
//! Rules, terminals, `%import common.…`, `%ignore` and `%json` are accepted. Refused are what has no counted cost
//! (intersections, negations, substrings), what the compiler would take from elsewhere (other grammars, tokens by number),
//! and what asks for another engine (stop strings, temperatures).

use crate::gbnf::{check_levels, syntax};
use crate::{GrammarError, limits, schema};
use serde_json::{Deserializer, Value as Json};

/// A grammar within the limits, its schemas checked.
pub struct CheckedLark {
    pub lark: String,
    /// Of its schemas.
    pub bytes: usize,
    pub alternative_bytes: usize,
}

/// What must not be outside of strings and regular expressions, and why.
const REFUSED: [(&str, &str); 9] = [
    ("%llguidance", "options of the compiler are not accepted"),
    ("%regex", "substrings are not accepted"),
    ("%lark", "grammars in grammars are not accepted"),
    ("%if", "conditions are not accepted"),
    ("::", "rules with parameters are not accepted"),
    ("&", "intersections are not accepted"),
    ("@", "references to other grammars are not accepted"),
    ("<", "tokens in a grammar are not accepted"),
    ("=", "attributes of rules are not accepted"),
];

/// In brackets behind the name of a rule, without a value.
const ATTRIBUTES: [&str; 2] = ["[lazy", "[capture"];

pub fn check(source: &str) -> Result<CheckedLark, GrammarError> {
    let mut checked = CheckedLark {
        lark: String::with_capacity(source.len()),
        bytes: 0,
        alternative_bytes: 0,
    };
    let (mut at, mut levels) = (0, 0);
    while let Some(c) = source[at..].chars().next() {
        let rest = &source[at..];
        let fail = |what: &str| Err(syntax(source, at, what.to_owned()));
        let taken = match c {
            '"' | '/' | '#' => beside_code(rest),
            '%' if rest.starts_with(JSON) => {
                json(rest, &mut checked).map_err(|error| syntax(source, at, error.to_string()))?
            }
            '~' if !rest[1..]
                .trim_start()
                .starts_with(|c: char| c.is_ascii_digit()) =>
            {
                return fail("negations are not accepted");
            }
            '~' | '{' if repetitions(&rest[1..]) > limits::REPETITIONS => {
                let max = limits::REPETITIONS;
                return fail(&format!("accepted repetitions: 0 to {max}"));
            }
            '[' if ATTRIBUTES.iter().any(|name| rest.starts_with(name))
                && rest
                    .split_once(']')
                    .is_some_and(|(_, rest)| rest.starts_with(':')) =>
            {
                return fail("attributes of rules are not accepted");
            }
            _ => match REFUSED.iter().find(|(text, _)| rest.starts_with(text)) {
                Some((_, why)) => return fail(why),
                None => c.len_utf8(),
            },
        };
        levels += usize::from(matches!(c, ':' | '(' | '['));
        if !rest.starts_with(JSON) {
            checked.lark.push_str(&rest[..taken]);
        }
        at += taken;
    }
    check_levels(source, levels)?;
    Ok(checked)
}

const JSON: &str = "%json";

/// Bytes of a string, a regular expression or a comment.
fn beside_code(rest: &str) -> usize {
    let line = rest.find('\n').unwrap_or(rest.len());
    if rest.starts_with('#') || rest.starts_with("//") {
        return line;
    }
    let quote = &rest[..1];
    let mut is_escaped = false;
    for (i, c) in rest[..line].char_indices().skip(1) {
        match is_escaped {
            true => is_escaped = false,
            false if rest[i..].starts_with(quote) => return i + 1,
            false => is_escaped = c == '\\',
        }
    }
    // It does not end: the compiler says so.
    line
}

/// Checks the schema behind `%json`, writes both, and returns how many bytes they had.
fn json(rest: &str, checked: &mut CheckedLark) -> Result<usize, GrammarError> {
    let mut stream = Deserializer::from_str(&rest[JSON.len()..]).into_iter();
    let schema: Json = match stream.next() {
        Some(Ok(schema)) => schema,
        _ => {
            return Err(GrammarError::Refused(
                "what follows %json is not JSON".to_owned(),
            ));
        }
    };
    let end = JSON.len() + stream.byte_offset();
    let schema = schema::check(&schema)?;
    checked.bytes += schema.bytes;
    checked.alternative_bytes += schema.alternative_bytes;
    // As many lines as before: faults behind it are told by their line.
    let lines = "\n".repeat(rest[..end].matches('\n').count());
    let text = schema.schema.to_string();
    let inner = text.strip_prefix('{').unwrap_or(&text);
    checked.lark.push_str(&format!("{JSON} {{{lines}{inner}"));
    Ok(end)
}

/// The largest number in `3..5` or `3,5}`.
fn repetitions(rest: &str) -> u32 {
    let is_part = |c: char| c.is_ascii_digit() || " ,.".contains(c);
    let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
    let numbers = rest[..end].split(|c: char| !c.is_ascii_digit());
    let numbers = numbers.filter(|digits| !digits.is_empty());
    numbers
        .map(|digits| digits.parse().unwrap_or(u32::MAX))
        .max()
        .unwrap_or(0)
}

/// What the compiler says of a grammar, with its place as we write places.
pub fn refused(message: &str) -> Option<GrammarError> {
    let message = message.strip_prefix("at ").unwrap_or(message);
    let (place, what) = message.split_once("): ")?;
    let (line, column) = place.split_once('(')?;
    Some(GrammarError::Syntax {
        line: line.parse().ok()?,
        column: column.parse().ok()?,
        what: GrammarError::refused(&what).to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gbnf::tests::expect_fault;

    fn error(source: &str) -> String {
        check(source).err().unwrap().to_string()
    }

    #[test]
    fn what_is_in_strings_is_not_looked_at() {
        let source = "start: \"a&b<@=~\" /x&[a\\/]=/ # & here\n  | A{2,3} // <x>\nA: \"\\\"&\"~2..3 [\"x\"]\n%ignore / +/\n";
        assert_eq!(check(source).unwrap().lark, source);
    }

    #[test]
    fn what_is_refused_has_a_place() {
        for (source, place, what) in [
            ("start: A & B\n", "line 1, column 10", "intersections"),
            ("start: a\nA: ~\"x\"", "line 2, column 4", "negations"),
            ("start: <|im_end|>", "line 1, column 8", "tokens"),
            ("start: @other", "line 1, column 8", "other grammars"),
            ("start[stop=\"x\"]: /a+/", "line 1, column 11", "attributes"),
            ("start[lazy]: /a+/", "line 1, column 6", "attributes"),
            (
                "start: %regex { \"substring_chars\": \"x\" }",
                "line 1, column 8",
                "substrings",
            ),
            (
                "%llguidance {}\nstart: \"a\"",
                "line 1, column 1",
                "options",
            ),
            ("start: \"a\"{3000}", "line 1, column 11", "repetitions"),
            (
                "start: \"a\" ~ 1..99999999999",
                "line 1, column 12",
                "repetitions",
            ),
            ("start: \n  %json { nothing", "line 2, column 3", "not JSON"),
            (
                "start: %json { \"type\": \"object\", \"enum\": 7, } ",
                "line 1, column 8",
                "not JSON",
            ),
        ] {
            expect_fault(source, &error(source), place, what);
        }
        let deep = format!("start: {}\"a\"{}", "(".repeat(2000), ")".repeat(2000));
        assert!(error(&deep).contains("2001"), "{}", error(&deep));
    }

    #[test]
    fn schemas_are_checked_and_keep_their_lines() {
        let source =
            "start: %json {\n \"type\": \"object\", \"properties\": { \"a\": {} }\n}\nA: \"x\"";
        let lark = check(source).unwrap().lark;
        assert!(lark.contains("\"additionalProperties\":false"), "{lark}");
        assert_eq!(lark.lines().count(), source.lines().count());
    }

    #[test]
    fn places_of_the_compiler_are_read() {
        let said = "at 3(5): unknown name: \"b\"\n   1 | start: b";
        assert_eq!(
            refused(said).unwrap().to_string(),
            "line 3, column 5: unknown name: \"b\""
        );
        assert_eq!(refused("no start rule found"), None);
    }
}
