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
        Err(TemplateError::Source(format!(
            "line {}: {message}",
            self.line
        )))
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
            let sign = rest.as_bytes().get(begin + 2).copied();
            let kept = match sign {
                Some(b'-') => text.trim_end(),
                Some(b'+') => text,
                _ if kind == b'{' => text,
                _ => self.without_indent(text),
            };
            if !kept.is_empty() {
                self.push(Token::Text(kept));
            }
            let signed = matches!(sign, Some(b'-' | b'+'));
            self.advance(begin + 2 + usize::from(signed));
            self.line_start = false;
            match kind {
                b'#' => self.comment()?,
                b'%' => {
                    if let Some(bytes) = raw_begin(self.rest()) {
                        self.raw(bytes)?;
                    } else {
                        self.push(Token::BlockBegin);
                        self.inside(true)?;
                    }
                }
                _ => {
                    self.push(Token::PrintBegin);
                    self.inside(false)?;
                }
            }
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

    fn raw(&mut self, open_bytes: usize) -> Result<(), TemplateError> {
        let open = self.advance(open_bytes);
        if open.ends_with("-%}") {
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
                let text = body.get(..begin).unwrap_or("");
                let kept = match sign {
                    b'-' => text.trim_end(),
                    b'+' => text,
                    _ => self.without_indent(text),
                };
                if !kept.is_empty() {
                    self.push(Token::Text(kept));
                }
                self.advance(begin + 2 + signed + bytes);
                self.after_tag(end_sign, true);
                return Ok(());
            }
            from = begin + 2;
        }
        self.error("a raw block is not closed")
    }

    /// Tokens up to the end of the tag. Inside brackets an end of tag is just operators.
    fn inside(&mut self, block: bool) -> Result<(), TemplateError> {
        let end = if block { "%}" } else { "}}" };
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
                    self.push(if block {
                        Token::BlockEnd
                    } else {
                        Token::PrintEnd
                    });
                    self.advance(usize::from(signed) + 2);
                    self.after_tag(if signed { first as u8 } else { 0 }, block);
                    return Ok(());
                }
            }
            if first.is_alphabetic() || first == '_' {
                let bytes = rest
                    .find(|c: char| !(c.is_alphanumeric() || c == '_'))
                    .unwrap_or(rest.len());
                let name = self.advance(bytes);
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
        let digits = |from: usize| {
            let tail = bytes.get(from..).unwrap_or(&[]);
            tail.iter()
                .take_while(|b| b.is_ascii_digit() || **b == b'_')
                .count()
        };
        let radix = match bytes.get(1) {
            Some(b'x' | b'X') => 16,
            Some(b'o' | b'O') => 8,
            Some(b'b' | b'B') => 2,
            _ => 10,
        };
        if bytes.first() == Some(&b'0') && radix != 10 {
            let tail = bytes.get(2..).unwrap_or(&[]);
            let len = 2 + tail
                .iter()
                .take_while(|b| b.is_ascii_alphanumeric() || **b == b'_')
                .count();
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
            let plain = match escape {
                'n' => Some('\n'),
                't' => Some('\t'),
                'r' => Some('\r'),
                'a' => Some('\u{7}'),
                'b' => Some('\u{8}'),
                'f' => Some('\u{c}'),
                'v' => Some('\u{b}'),
                '\\' | '\'' | '"' => Some(escape),
                _ => None,
            };
            let digits_max = match escape {
                'x' => 2,
                'u' => 4,
                'U' => 8,
                _ => 0,
            };
            if let Some(plain) = plain {
                value.push(plain);
            } else if escape == '\n' {
                // a line continued
            } else if digits_max > 0 {
                let hex = rest.get(at + 1..at + 1 + digits_max).unwrap_or("");
                let code = if hex.bytes().all(|b| b.is_ascii_hexdigit()) {
                    u32::from_str_radix(hex, 16).ok()
                } else {
                    None
                };
                let Some(c) = code.and_then(char::from_u32) else {
                    return self.error("a malformed escape in a string");
                };
                value.push(c);
                for _ in 0..digits_max {
                    chars.next();
                }
            } else if let Some(mut code) = escape.to_digit(8) {
                for _ in 0..2 {
                    let Some(digit) = chars.peek().and_then(|(_, c)| c.to_digit(8)) else {
                        break;
                    };
                    code = code * 8 + digit;
                    chars.next();
                }
                value.push(char::from_u32(code).unwrap_or('\u{fffd}'));
            } else {
                value.push('\\');
                value.push(escape);
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
    let sign = tail
        .bytes()
        .next()
        .filter(|b| matches!(b, b'-' | b'+'))
        .unwrap_or(0);
    let tail = tail.get(usize::from(sign != 0)..)?.strip_prefix("%}")?;
    Some((text.len() - tail.len(), sign))
}

fn raw_begin(text: &str) -> Option<usize> {
    word_tag(text, "raw").map(|(bytes, _)| bytes)
}
