//! GBNF, the grammar format of llama.cpp, as a Lark grammar.
//!
//! ```text
//! root ::= "yes" | "no" (" " [a-z]+){1,3}   # rules, literals, classes, groups, repetitions
//! ```
//!
//! What does not refer to itself is regular, and becomes a terminal: rules that do are left to the parser. A terminal takes
//! the longest text it can, which only a grammar whose recursive rules overlap with what follows them notices.

use crate::{GrammarError, limits};
use std::collections::HashMap;
use std::fmt::Write as _;

/// Repetitions of one part in each other.
const REPEATS: usize = 4;

enum Node {
    Text(String),
    /// As a regular expression.
    Class(String),
    Rule(usize),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    /// `None`: without end.
    Repeat(Box<Node>, u32, Option<u32>),
}

/// The same grammar for the compiler.
pub fn to_lark(source: &str) -> Result<String, GrammarError> {
    let mut parser = Parser {
        source,
        at: 0,
        depth: 0,
        rules: Vec::new(),
        numbers: HashMap::new(),
    };
    parser.rules()?;
    let mut bodies = Vec::new();
    for rule in parser.rules {
        let named = rule.name;
        let missing = || syntax(source, rule.at, format!("rule {named} is not defined"));
        bodies.push(rule.body.ok_or_else(missing)?);
    }
    let no_root = || syntax(source, 0, "there is no rule root".to_owned());
    let root = *parser.numbers.get("root").ok_or_else(no_root)?;
    let mut writer = Writer {
        is_regular: regular(&bodies),
        lark: String::new(),
        count: 0,
    };
    for (i, body) in bodies.iter().enumerate() {
        match writer.is_regular.get(i) {
            Some(true) => {
                let body = writer.terminal_body(body);
                let _ = writeln!(writer.lark, "R{i}: {body}");
            }
            _ => {
                let body = writer.rule_body(body);
                let _ = writeln!(writer.lark, "r{i}: {body}");
            }
        }
    }
    check_levels(source, bodies.len() + writer.count)?;
    let start = writer.rule(&Node::Rule(root));
    Ok(format!("start: {start}\n{}", writer.lark))
}

/// An error at a byte of a grammar.
pub fn syntax(source: &str, at: usize, what: String) -> GrammarError {
    let before = source.get(..at).unwrap_or(source);
    let line_start = before.rfind('\n').map_or(0, |i| i + 1);
    GrammarError::Syntax {
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        what,
    }
}

/// Refuses a grammar with too many rules, terminals and groups.
pub fn check_levels(source: &str, levels: usize) -> Result<(), GrammarError> {
    let max = limits::GRAMMAR_LEVELS;
    if levels <= max {
        return Ok(());
    }
    let what = format!("too many rules and groups: {levels}; accepted: at most {max}");
    Err(syntax(source, 0, what))
}

struct Rule<'a> {
    name: &'a str,
    /// Where it was seen first.
    at: usize,
    body: Option<Node>,
}

struct Parser<'a> {
    source: &'a str,
    at: usize,
    /// Of groups.
    depth: usize,
    rules: Vec<Rule<'a>>,
    numbers: HashMap<&'a str, usize>,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        self.source.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn fail<T>(&self, what: impl Into<String>) -> Result<T, GrammarError> {
        Err(syntax(self.source, self.at, what.into()))
    }

    fn takes(&mut self, text: &str) -> bool {
        let is_next = self.rest().starts_with(text);
        self.at += if is_next { text.len() } else { 0 };
        is_next
    }

    fn expect(&mut self, text: &str) -> Result<(), GrammarError> {
        match self.takes(text) {
            true => Ok(()),
            false => self.fail(format!("{text} is missing")),
        }
    }

    /// Blanks and comments, and line breaks too where `lines`.
    fn skip(&mut self, lines: bool) {
        loop {
            let rest = self.rest();
            let blank = |c: char| c == ' ' || c == '\t' || lines && (c == '\n' || c == '\r');
            let trimmed = rest.trim_start_matches(blank);
            let comment = match trimmed.starts_with('#') {
                true => trimmed.find('\n').unwrap_or(trimmed.len()),
                false => 0,
            };
            self.at += rest.len() - trimmed.len() + comment;
            if comment == 0 {
                return;
            }
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        let rest = self.rest();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).filter(|name| !name.is_empty())
    }

    fn number_of(&mut self, name: &'a str, at: usize) -> usize {
        *self.numbers.entry(name).or_insert_with(|| {
            let body = None;
            self.rules.push(Rule { name, at, body });
            self.rules.len() - 1
        })
    }

    fn rules(&mut self) -> Result<(), GrammarError> {
        self.skip(true);
        while self.peek().is_some() {
            let at = self.at;
            let Some(name) = self.name() else {
                return self.fail("the name of a rule is missing");
            };
            let number = self.number_of(name, at);
            self.skip(false);
            self.expect("::=")?;
            let body = self.choice()?;
            if !matches!(self.peek(), None | Some('\n' | '\r')) {
                return self.fail("this is not part of a rule");
            }
            if let Some(rule) = self.rules.get_mut(number) {
                if rule.body.is_some() {
                    return Err(syntax(
                        self.source,
                        at,
                        format!("rule {name} is there twice"),
                    ));
                }
                rule.body = Some(body);
            }
            self.skip(true);
        }
        Ok(())
    }

    fn choice(&mut self) -> Result<Node, GrammarError> {
        let mut choices = vec![self.sequence()?];
        loop {
            // The next line may go on with another alternative.
            let here = self.at;
            self.skip(true);
            if !self.takes("|") {
                self.at = if self.depth > 0 { self.at } else { here };
                break;
            }
            choices.push(self.sequence()?);
        }
        Ok(match choices.len() {
            1 => choices.swap_remove(0),
            _ => Node::Choice(choices),
        })
    }

    fn sequence(&mut self) -> Result<Node, GrammarError> {
        let mut items = Vec::new();
        self.skip(true);
        loop {
            let at = self.at;
            let item = match self.peek() {
                Some('"') => Node::Text(self.text()?),
                Some('[') => Node::Class(self.class()?),
                Some('.') => {
                    self.at += 1;
                    Node::Class("(?s:.)".to_owned())
                }
                Some('(') => {
                    if self.depth >= limits::GROUPS {
                        return self.fail("groups are nested too deeply");
                    }
                    self.at += 1;
                    self.depth += 1;
                    let group = self.choice()?;
                    self.depth -= 1;
                    self.expect(")")?;
                    group
                }
                Some('<') => return self.fail("tokens in a grammar are not accepted"),
                _ => match self.name() {
                    Some(_) if self.defines() => {
                        self.at = at;
                        return self.fail("the rule before this one has no body");
                    }
                    Some(name) => Node::Rule(self.number_of(name, at)),
                    None => break,
                },
            };
            let item = self.repeated(item)?;
            items.push(item);
            self.skip(self.depth > 0);
        }
        Ok(match items.len() {
            1 => items.swap_remove(0),
            _ => Node::Sequence(items),
        })
    }

    fn defines(&mut self) -> bool {
        let here = self.at;
        self.skip(false);
        let defines = self.rest().starts_with("::=");
        self.at = here;
        defines
    }

    fn repeated(&mut self, mut item: Node) -> Result<Node, GrammarError> {
        for _ in 0..REPEATS {
            let here = self.at;
            self.skip(self.depth > 0);
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.at += 1;
                    let min = self.count()?;
                    let max = match self.takes(",") {
                        true if self.rest().trim_start().starts_with('}') => None,
                        true => Some(self.count()?),
                        false => Some(min),
                    };
                    self.skip(false);
                    if max.is_some_and(|max| max < min) {
                        return self.fail("the end of a repetition is before its beginning");
                    }
                    if !self.rest().starts_with('}') {
                        return self.fail("} is missing");
                    }
                    (min, max)
                }
                _ => {
                    self.at = here;
                    return Ok(item);
                }
            };
            self.at += 1;
            item = Node::Repeat(Box::new(item), min, max);
        }
        self.fail("too many repetitions of repetitions")
    }

    fn count(&mut self) -> Result<u32, GrammarError> {
        self.skip(false);
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_digit());
        let digits = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
        let max = limits::REPETITIONS;
        match digits.parse() {
            Ok(count) if count <= max => {
                self.at += digits.len();
                self.skip(false);
                Ok(count)
            }
            _ => self.fail(format!("accepted repetitions: 0 to {max}")),
        }
    }

    /// A literal.
    fn text(&mut self) -> Result<String, GrammarError> {
        self.at += 1;
        let mut text = String::new();
        while !self.takes("\"") {
            text.push(self.character()?);
        }
        Ok(text)
    }

    fn class(&mut self) -> Result<String, GrammarError> {
        let at = self.at;
        self.at += 1;
        let is_negated = self.takes("^");
        let mut class = String::new();
        while !self.takes("]") {
            let first = self.character()?;
            let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
            let last = match is_range {
                true => {
                    self.at += 1;
                    self.character()?
                }
                false => first,
            };
            if last < first {
                return self.fail("the end of a range is before its beginning");
            }
            let (first, last) = (u32::from(first), u32::from(last));
            let _ = write!(class, r"\x{{{first:x}}}-\x{{{last:x}}}");
        }
        match (class.is_empty(), is_negated) {
            (true, true) => Ok("(?s:.)".to_owned()),
            (true, false) => Err(syntax(self.source, at, "a class is empty".to_owned())),
            (false, true) => Ok(format!("[^{class}]")),
            (false, false) => Ok(format!("[{class}]")),
        }
    }

    /// One of a literal or a class.
    fn character(&mut self) -> Result<char, GrammarError> {
        let start = self.at;
        let Some(c) = self.peek().filter(|&c| c != '\n') else {
            return self.fail("the line ends in a literal or a class");
        };
        self.at += c.len_utf8();
        if c != '\\' {
            return Ok(c);
        }
        let escape = self.peek().unwrap_or('\n');
        self.at += escape.len_utf8();
        let digits = match escape {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' => return Ok(escape),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        let hex = self.rest().get(..digits).filter(|hex| !hex.is_empty());
        let hex = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok());
        self.at += digits;
        let unknown = || syntax(self.source, start, "this escape is not known".to_owned());
        hex.and_then(char::from_u32).ok_or_else(unknown)
    }
}

/// Which rules do not refer to themselves, nor to one that does.
fn regular(bodies: &[Node]) -> Vec<bool> {
    let mut open = vec![0usize; bodies.len()];
    let mut users = vec![Vec::new(); bodies.len()];
    for (i, body) in bodies.iter().enumerate() {
        each_rule(body, &mut |rule| {
            open[i] += 1;
            users[rule].push(i);
        });
    }
    let mut done: Vec<usize> = (0..bodies.len()).filter(|&i| open[i] == 0).collect();
    let mut is_regular = vec![false; bodies.len()];
    while let Some(rule) = done.pop() {
        is_regular[rule] = true;
        for &user in &users[rule] {
            open[user] -= 1;
            if open[user] == 0 {
                done.push(user);
            }
        }
    }
    is_regular
}

fn each_rule(node: &Node, visit: &mut dyn FnMut(usize)) {
    match node {
        Node::Text(_) | Node::Class(_) => {}
        Node::Rule(rule) => visit(*rule),
        Node::Sequence(parts) | Node::Choice(parts) => {
            parts.iter().for_each(|part| each_rule(part, visit));
        }
        Node::Repeat(part, ..) => each_rule(part, visit),
    }
}

/// Writes rules as `r0`, terminals as `R0`, and what is in them as `g0` and `G0`.
struct Writer {
    is_regular: Vec<bool>,
    lark: String,
    count: usize,
}

impl Writer {
    fn is_regular(&self, node: &Node) -> bool {
        let mut all = true;
        each_rule(node, &mut |rule| all &= self.is_regular[rule]);
        all
    }

    /// In a terminal.
    fn terminal(&mut self, node: &Node) -> String {
        match node {
            Node::Text(text) => literal(text),
            Node::Class(class) => format!("/{class}/"),
            Node::Rule(rule) => format!("R{rule}"),
            node => {
                let body = self.terminal_body(node);
                self.define('G', &body)
            }
        }
    }

    fn terminal_body(&mut self, node: &Node) -> String {
        match node {
            Node::Choice(parts) => separated(parts, " | ", |part| self.terminal(part)),
            Node::Sequence(parts) if parts.is_empty() => literal(""),
            Node::Sequence(parts) => separated(parts, " ", |part| self.terminal(part)),
            Node::Repeat(part, min, max) => repeated(self.terminal(part), *min, *max),
            node => self.terminal(node),
        }
    }

    /// In a rule.
    fn rule(&mut self, node: &Node) -> String {
        match node {
            Node::Sequence(parts) if parts.is_empty() => literal(""),
            node if self.is_regular(node) => self.terminal(node),
            Node::Rule(rule) => format!("r{rule}"),
            node => {
                let body = self.rule_body(node);
                self.define('g', &body)
            }
        }
    }

    fn rule_body(&mut self, node: &Node) -> String {
        match node {
            Node::Choice(parts) => separated(parts, " | ", |part| self.rule_body(part)),
            Node::Sequence(parts) if !self.is_regular(node) => {
                // Regular parts side by side are one terminal.
                let mut written = Vec::new();
                let mut regular: Vec<String> = Vec::new();
                for part in parts {
                    if self.is_regular(part) {
                        regular.push(self.terminal(part));
                        continue;
                    }
                    written.extend(self.joined(&mut regular));
                    written.push(self.rule(part));
                }
                written.extend(self.joined(&mut regular));
                written.join(" ")
            }
            Node::Repeat(part, min, max) if !self.is_regular(node) => {
                repeated(self.rule(part), *min, *max)
            }
            node => self.rule(node),
        }
    }

    /// Terminals side by side as one.
    fn joined(&mut self, parts: &mut Vec<String>) -> Option<String> {
        let parts = std::mem::take(parts);
        match parts.len() {
            0 => None,
            1 => parts.into_iter().next(),
            _ => Some(self.define('G', &parts.join(" "))),
        }
    }

    fn define(&mut self, kind: char, body: &str) -> String {
        let name = format!("{kind}{}", self.count);
        self.count += 1;
        let _ = writeln!(self.lark, "{name}: {body}");
        name
    }
}

fn separated(parts: &[Node], by: &str, write: impl FnMut(&Node) -> String) -> String {
    let parts: Vec<String> = parts.iter().map(write).collect();
    parts.join(by)
}

fn repeated(part: String, min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (_, Some(0)) => literal(""),
        (0, None) => format!("{part}*"),
        (1, None) => format!("{part}+"),
        (0, Some(1)) => format!("{part}?"),
        (min, None) => format!("{part}{{{min},}}"),
        (min, Some(max)) => format!("{part}{{{min},{max}}}"),
    }
}

/// A string as the compiler reads it.
fn literal(text: &str) -> String {
    let escape = |escaped: String, c: char| match c {
        '"' | '\\' => escaped + "\\" + c.encode_utf8(&mut [0; 4]),
        c if c.is_control() => escaped + &format!("\\u{:04x}", u32::from(c)),
        c => escaped + c.encode_utf8(&mut [0; 4]),
    };
    format!("\"{}\"", text.chars().fold(String::new(), escape))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// An error that names its place first.
    pub fn expect_fault(source: &str, error: &str, place: &str, what: &str) {
        assert!(
            error.starts_with(place) && error.contains(what),
            "{source}: {error}"
        );
    }

    fn error(source: &str) -> String {
        to_lark(source).err().unwrap().to_string()
    }

    #[test]
    fn regular_rules_are_terminals_and_others_are_rules() {
        let lark = to_lark(
            "# A list of words.\nroot ::= word | list # either\nlist ::= \"[\" ws (item (\",\" ws item)*)? \"]\"\n\
             item ::= word\n  | list\nword ::= [a-z\\]]+ ws\nws ::= [ \\t]{0,3}\n",
        );
        let want = r#"
            start: r0
            r0: R1 | r2
            R1: G0 R3
            G0: /[\x{61}-\x{7a}\x{5d}-\x{5d}]/+
            R3: /[\x{20}-\x{20}\x{9}-\x{9}]/{0,3}
            r2: G1 g6 "]"
            G1: "[" R3
            g6: g5?
            g5: r4 g4
            g4: g3*
            g3: G2 r4
            G2: "," R3
            r4: R1 | r2
        "#;
        let sorted = |text: &str| {
            let lines = text.trim().lines().map(|line| line.trim().to_owned());
            lines.collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(sorted(&lark.unwrap()), sorted(want));
    }

    #[test]
    fn literals_are_escaped() {
        let lark = to_lark(r#"root ::= "a\"\\\n\x41\u00e9\U0001F600\x7f" "" .{0}"#).unwrap();
        let literal = r#""a\"\\\u000aAé😀\u007f""#;
        assert_eq!(
            lark,
            format!("start: R0\nG0: \"\"\nR0: {literal} \"\" G0\n")
        );
    }

    #[test]
    fn faults_have_a_place() {
        for (source, place, what) in [
            ("", "line 1, column 1", "no rule root"),
            ("a ::= \"x\"", "line 1, column 1", "no rule root"),
            (
                "root ::= a b\na ::= \"x\"",
                "line 1, column 12",
                "rule b is not defined",
            ),
            ("root ::= \"x\nroot", "line 1, column 12", "line ends"),
            (
                "root ::= [z-a]",
                "line 1, column 14",
                "before its beginning",
            ),
            ("root ::= []", "line 1, column 10", "empty"),
            (
                "root ::= (\"a\" | (\"b\")",
                "line 1, column 22",
                ") is missing",
            ),
            (
                "root ::= \"é\" )",
                "line 1, column 14",
                "not part of a rule",
            ),
            ("root ::= \"\\q\"", "line 1, column 11", "escape"),
            ("root ::= \"\\xZZ\"", "line 1, column 11", "escape"),
            ("root ::= \"\\uD800\"", "line 1, column 11", "escape"),
            (
                "root ::= \"a\"{2,1}",
                "line 1, column 17",
                "before its beginning",
            ),
            (
                "root ::= \"a\"{1000000}",
                "line 1, column 14",
                "repetitions",
            ),
            ("root ::= \"a\"{1", "line 1, column 15", "} is missing"),
            ("root = \"a\"", "line 1, column 6", "::= is missing"),
            (
                "root ::= \"a\"\nroot ::= \"b\"",
                "line 2, column 1",
                "twice",
            ),
            ("root ::=\na ::= \"b\"", "line 2, column 1", "no body"),
            ("root ::= <|im_end|>", "line 1, column 10", "tokens"),
            ("* ::= \"a\"", "line 1, column 1", "name"),
        ] {
            expect_fault(source, &error(source), place, what);
        }
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(100), ")".repeat(100));
        assert!(error(&deep).contains("too deeply"), "{}", error(&deep));
        let repeated = format!("root ::= \"a\"{}", "*".repeat(10_000));
        assert!(
            error(&repeated).contains("repetitions"),
            "{}",
            error(&repeated)
        );
    }
}
