//! From source to tokens, with Jinja's whitespace rules: `trim_blocks` and `lstrip_blocks` are on, as the
//! programs that templates are written for have them, one newline at the end of the source is dropped and
//! `\r\n` counts as `\n`.
//!
//! `trim_blocks` eats one newline after `%}` and `#}`; `lstrip_blocks` eats blanks between the start of a
//! line and `{%` or `{#`; a `-` eats all white space on its side and a `+` keeps it.

use super::error::TemplateError;

#[derive(Debug, Clone, PartialEq)]
pub enum Token<'s> {
    Text(&'s str),
    PrintBegin,
    PrintEnd,
    BlockBegin,
    BlockEnd,
    Name(&'s str),
    Str(String),
    Int(i64),
    Float(f64),
    Op(&'static str),
}

pub type Lexed<'s> = Vec<(Token<'s>, u32)>;

/// Longest first, so that the first match is the right one.
const OPERATORS: [&str; 28] = [
    "**", "//", "==", "!=", "<=", ">=", "<", ">", "=", "+", "-", "*", "/", "%", "~", "(", ")", "[",
    "]", "{", "}", ",", ".", ":", "|", ";", "!", "&",
];

pub fn lex(source: &str) -> Result<Lexed<'_>, TemplateError> {
    let source = source.strip_suffix('\n').unwrap_or(source);
    let mut lexer = Lexer {
        source,
        at: 0,
        line: 1,
        line_start: true,
        tokens: Vec::new(),
    };
    lexer.run()?;
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    line: u32,
    /// Nothing but eaten newlines since the start of the line: what `lstrip_blocks` asks.
    line_start: bool,
    tokens: Lexed<'s>,
}

fn newlines(text: &str) -> u32 {
    text.bytes().filter(|&b| b == b'\n').count() as u32
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        self.source.get(self.at..).unwrap_or("")
    }

    fn error<T>(&self, message: &str) -> Result<T, TemplateError> {
        let line = self.line;
        Err(TemplateError::Source(format!("line {line}: {message}")))
    }

    fn advance(&mut self, bytes: usize) -> &'s str {
        let text = self.rest().get(..bytes).unwrap_or("");
        self.line += newlines(text);
        self.at += bytes;
        text
    }

    fn push(&mut self, token: Token<'s>) {
        self.tokens.push((token, self.line));
    }

    fn run(&mut self) -> Result<(), TemplateError> {
        loop {
            let rest = self.rest();
            let Some((begin, kind)) = find_tag(rest) else {
                if !rest.is_empty() {
                    self.push(Token::Text(rest));
                }
                return Ok(());
            };
            let text = rest.get(..begin).unwrap_or("");
            let sign = rest.as_bytes().get(begin + 2).copied().unwrap_or(0);
            self.text_before(text, sign, kind != b'{');
            let signed = matches!(sign, b'-' | b'+');
            self.advance(begin + 2 + usize::from(signed));
            self.line_start = false;
            match kind {
                b'#' => self.comment()?,
                b'%' => {
                    if let Some((bytes, sign)) = word_tag(self.rest(), "raw") {
                        self.raw(bytes, sign)?;
                    } else {
                        self.push(Token::BlockBegin);
                        self.inside("%}", Token::BlockEnd)?;
                    }
                }
                _ => {
                    self.push(Token::PrintBegin);
                    self.inside("}}", Token::PrintEnd)?;
                }
            }
        }
    }

    /// Text in front of a tag: without what its sign, or `lstrip_blocks`, eats.
    fn text_before(&mut self, text: &'s str, sign: u8, block: bool) {
        let kept = match sign {
            b'-' => text.trim_end(),
            b'+' => text,
            _ if !block => text,
            _ => self.without_indent(text),
        };
        if !kept.is_empty() {
            self.push(Token::Text(kept));
        }
    }

    fn without_indent(&self, text: &'s str) -> &'s str {
        let start = text.rfind('\n').map_or(0, |i| i + 1);
        let (head, indent) = text.split_at(start);
        if (start > 0 || self.line_start) && indent.chars().all(char::is_whitespace) {
            head
        } else {
            text
        }
    }

    /// Past the end of a tag: eats what its sign, or `trim_blocks`, says.
    fn after_tag(&mut self, sign: u8, block: bool) {
        let rest = self.rest();
        let eaten = match sign {
            b'-' => rest.len() - rest.trim_start().len(),
            b'+' => 0,
            _ if !block => 0,
            _ if rest.starts_with("\r\n") => 2,
            _ => usize::from(rest.starts_with('\n')),
        };
        let text = self.advance(eaten);
        self.line_start = text.ends_with('\n');
    }

    fn comment(&mut self) -> Result<(), TemplateError> {
        let Some(end) = self.rest().find("#}") else {
            return self.error("a comment is not closed");
        };
        let text = self.advance(end);
        let sign = text.bytes().last().unwrap_or(0);
        self.advance(2);
        self.after_tag(sign, true);
        Ok(())
    }

    fn raw(&mut self, open_bytes: usize, open_sign: u8) -> Result<(), TemplateError> {
        self.advance(open_bytes);
        if open_sign == b'-' {
            self.after_tag(b'-', true);
        }
        let body = self.rest();
        let mut from = 0;
        while let Some(found) = body.get(from..).and_then(|b| b.find("{%")) {
            let begin = from + found;
            let tag = body.get(begin + 2..).unwrap_or("");
            let sign = tag.bytes().next().unwrap_or(0);
            let signed = usize::from(matches!(sign, b'-' | b'+'));
            if let Some((bytes, end_sign)) = word_tag(tag.get(signed..).unwrap_or(""), "endraw") {
                self.text_before(body.get(..begin).unwrap_or(""), sign, true);
                self.advance(begin + 2 + signed + bytes);
                self.after_tag(end_sign, true);
                return Ok(());
            }
            from = begin + 2;
        }
        self.error("a raw block is not closed")
    }

    /// Tokens up to the end of the tag. Inside brackets an end of tag is just operators.
    fn inside(&mut self, end: &str, end_token: Token<'s>) -> Result<(), TemplateError> {
        let block = end == "%}";
        let mut brackets: Vec<&'static str> = Vec::new();
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.advance(rest.len() - trimmed.len());
            let rest = trimmed;
            let Some(first) = rest.chars().next() else {
                return self.error("a tag is not closed");
            };
            if brackets.is_empty() {
                let signed = rest.starts_with('-') || (block && rest.starts_with('+'));
                let tail = rest.get(usize::from(signed)..).unwrap_or("");
                if tail.starts_with(end) {
                    self.push(end_token);
                    self.advance(usize::from(signed) + 2);
                    self.after_tag(if signed { first as u8 } else { 0 }, block);
                    return Ok(());
                }
            }
            if first.is_alphabetic() || first == '_' {
                let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
                let name = self.advance(end.unwrap_or(rest.len()));
                self.push(Token::Name(name));
            } else if first.is_ascii_digit() {
                self.number(rest)?;
            } else if first == '\'' || first == '"' {
                self.string(rest, first)?;
            } else if let Some(op) = OPERATORS.iter().find(|op| rest.starts_with(**op)) {
                if matches!(*op, ")" | "]" | "}") && brackets.pop() != Some(*op) {
                    return self.error(&format!("unexpected '{op}'"));
                }
                match *op {
                    "(" => brackets.push(")"),
                    "[" => brackets.push("]"),
                    "{" => brackets.push("}"),
                    _ => {}
                }
                self.push(Token::Op(op));
                self.advance(op.len());
            } else {
                return self.error(&format!("unexpected character {first:?}"));
            }
        }
    }

    fn number(&mut self, rest: &'s str) -> Result<(), TemplateError> {
        let bytes = rest.as_bytes();
        let run = |from: usize, keep: fn(&u8) -> bool| {
            let tail = bytes.get(from..).unwrap_or(&[]).iter();
            tail.take_while(|b| keep(b) || **b == b'_').count()
        };
        let digits = |from: usize| run(from, u8::is_ascii_digit);
        let radix = match bytes.get(1) {
            Some(b'x' | b'X') => 16,
            Some(b'o' | b'O') => 8,
            Some(b'b' | b'B') => 2,
            _ => 10,
        };
        if bytes.first() == Some(&b'0') && radix != 10 {
            let len = 2 + run(2, u8::is_ascii_alphanumeric);
            let text = self.advance(len).get(2..).unwrap_or("").replace('_', "");
            let Ok(value) = i64::from_str_radix(&text, radix) else {
                return self.error("a malformed number");
            };
            self.push(Token::Int(value));
            return Ok(());
        }
        let mut len = digits(0);
        let mut float = false;
        if bytes.get(len) == Some(&b'.') && bytes.get(len + 1).is_some_and(u8::is_ascii_digit) {
            float = true;
            len += 1 + digits(len + 1);
        }
        if matches!(bytes.get(len), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(len + 1), Some(b'+' | b'-')));
            if bytes.get(len + 1 + sign).is_some_and(u8::is_ascii_digit) {
                float = true;
                len += 1 + sign + digits(len + 1 + sign);
            }
        }
        let text = self.advance(len).replace('_', "");
        let token = if float {
            text.parse().ok().map(Token::Float)
        } else {
            text.parse().ok().map(Token::Int)
        };
        let Some(token) = token else {
            return self.error("a number out of range");
        };
        self.push(token);
        Ok(())
    }

    /// A string with Python's escapes; an escape it does not know keeps its backslash.
    fn string(&mut self, rest: &'s str, quote: char) -> Result<(), TemplateError> {
        let mut value = String::new();
        let mut chars = rest.char_indices().skip(1).peekable();
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.push(Token::Str(value));
                self.advance(at + 1);
                return Ok(());
            }
            if c != '\\' {
                value.push(c);
                continue;
            }
            let Some((at, escape)) = chars.next() else {
                break;
            };
            match escape {
                'n' => value.push('\n'),
                't' => value.push('\t'),
                'r' => value.push('\r'),
                'a' => value.push('\u{7}'),
                'b' => value.push('\u{8}'),
                'f' => value.push('\u{c}'),
                'v' => value.push('\u{b}'),
                '\\' | '\'' | '"' => value.push(escape),
                // A line continued.
                '\n' => {}
                'x' | 'u' | 'U' => {
                    let digits = match escape {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    let hex = rest.get(at + 1..at + 1 + digits).unwrap_or("");
                    let is_hex = hex.bytes().all(|b| b.is_ascii_hexdigit());
                    let code = u32::from_str_radix(hex, 16).ok().filter(|_| is_hex);
                    let Some(c) = code.and_then(char::from_u32) else {
                        return self.error("a malformed escape in a string");
                    };
                    value.push(c);
                    chars.nth(digits - 1);
                }
                '0'..='7' => {
                    let mut code = escape as u32 - '0' as u32;
                    for _ in 0..2 {
                        let Some((_, digit)) = chars.next_if(|(_, c)| c.is_digit(8)) else {
                            break;
                        };
                        code = code * 8 + (digit as u32 - '0' as u32);
                    }
                    value.push(char::from_u32(code).unwrap_or('\u{fffd}'));
                }
                _ => value.extend(['\\', escape]),
            }
        }
        self.error("a string is not closed")
    }
}

/// The next tag: where it begins and its second byte.
fn find_tag(text: &str) -> Option<(usize, u8)> {
    let bytes = text.as_bytes();
    (0..bytes.len().saturating_sub(1))
        .find(|&i| bytes[i] == b'{' && matches!(bytes[i + 1], b'{' | b'%' | b'#'))
        .map(|i| (i, bytes[i + 1]))
}

/// `text`, which follows `{%`, is `word %}`: its length and the sign before its end.
fn word_tag(text: &str, word: &str) -> Option<(usize, u8)> {
    let tail = text.trim_start().strip_prefix(word)?.trim_start();
    let sign = tail.bytes().next().filter(|b| matches!(b, b'-' | b'+'));
    let sign = sign.unwrap_or(0);
    let tail = tail.get(usize::from(sign != 0)..)?.strip_prefix("%}")?;
    Some((text.len() - tail.len(), sign))
}
