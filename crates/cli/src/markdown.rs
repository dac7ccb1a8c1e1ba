//! Light Markdown on a terminal: a model's answer in, the same text with escape sequences out, while it streams.
//!
//! A machine over characters, so that pieces of any size give the same output. It draws bold, italics, inline code,
//! headings, lists, quotes and fenced code; everything else passes as it was written. It holds back what may still be a
//! marker, at most [`HELD_MAX`] bytes, and never ordinary text. No style outlives its line. Control characters become
//! `\u{fffd}`, so that a model cannot send escape sequences to the terminal.
//!
//! Not a parser of Markdown: emphasis across lines, tables, links and underlined headings stay as they are. Where a marker
//! may be meant as a character (`2*3*4`, `snake_case`, `__init__`), it stays one.

/// Longer than any marker that means something; what is longer is text.
const HELD_MAX: usize = 64;
/// `***` is bold and italic; more stars are text.
const STARS_MAX: usize = 3;
const FENCE_MIN: usize = 3;
const HEADING_MAX: usize = 6;
/// Of code, so that it stands apart without a colour.
const INDENT: &str = "  ";
/// What a backslash makes a character of; before anything else it stays, for formulas and paths.
const ESCAPED: &str = "*_`#";
/// What italics may begin with, beside letters and digits.
const ITALIC_FIRST: &str = "\"'([{`$“‘«¿¡\\";
const RESET: &str = "\x1b[0m";

/// What a terminal may be sent for `c`: nothing that moves its cursor or changes its state.
pub fn visible(c: char) -> Option<char> {
    match c {
        '\n' | '\t' => Some(c),
        // Half of a line end, or a way to overwrite what a person has read.
        '\r' => None,
        c if c.is_control() => Some('\u{fffd}'),
        c => Some(c),
    }
}

/// The fenced code blocks of a text, without fences and their indentation. One that is not closed ends with the text.
pub fn code_blocks(text: &str) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    let mut open: Option<(Fence, usize)> = None;
    for line in text.lines() {
        match open {
            None => {
                open = Fence::opened_by(line);
                if open.is_some() {
                    blocks.push(String::new());
                }
            }
            Some((fence, _)) if fence.closes(line) => open = None,
            Some((_, indent)) => {
                let blanks = line.len() - line.trim_start_matches([' ', '\t']).len();
                if let Some(block) = blocks.last_mut() {
                    block.push_str(&line[blanks.min(indent)..]);
                    block.push('\n');
                }
            }
        }
    }
    blocks
}

/// What a code block began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fence {
    mark: char,
    length: usize,
}

impl Fence {
    /// The fence, and the blanks before it.
    fn opened_by(line: &str) -> Option<(Fence, usize)> {
        let body = line.trim_start_matches([' ', '\t']);
        let mark = body.chars().next().filter(|c| matches!(c, '`' | '~'))?;
        let label = body.trim_start_matches(mark);
        let length = body.len() - label.len();
        let is_code_in_a_line = mark == '`' && label.contains('`');
        let is_fence = length >= FENCE_MIN && !is_code_in_a_line;
        is_fence.then_some((Fence { mark, length }, line.len() - body.len()))
    }

    /// Whether more characters could make this the line that closes the block.
    fn may_close(self, line: &str) -> bool {
        let body = line.trim_start_matches([' ', '\t']);
        let rest = body.trim_start_matches(self.mark);
        rest.is_empty() || self.closes(line)
    }

    fn closes(self, line: &str) -> bool {
        let body = line.trim_start_matches([' ', '\t']);
        let rest = body.trim_start_matches(self.mark);
        body.len() - rest.len() >= self.length && rest.chars().all(|c| matches!(c, ' ' | '\t'))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Style {
    bold: bool,
    dim: bool,
    italic: bool,
    code: bool,
}

impl Style {
    const DIM: Style = Style {
        bold: false,
        dim: true,
        italic: false,
        code: false,
    };

    /// The sequences that lead from `before` to this.
    fn write(self, before: Style, out: &mut String) {
        if before != Style::default() {
            out.push_str(RESET);
        }
        let sequences = [
            (self.bold, "\x1b[1m"),
            (self.dim, "\x1b[2m"),
            (self.italic, "\x1b[3m"),
            (self.code, "\x1b[36m"),
        ];
        for (_, sequence) in sequences.into_iter().filter(|(is_on, _)| *is_on) {
            out.push_str(sequence);
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
enum Place {
    /// Before the first character of a line that is no marker of its kind.
    #[default]
    LineStart,
    Inline,
    /// The rest of the line that opened a code block.
    Label,
    /// Before the first character of a line of code that cannot close the block.
    CodeStart,
    Code,
}

/// The machine. Its default is the beginning of an answer.
#[derive(Debug, Default)]
pub struct Markdown {
    place: Place,
    /// What may still be a marker.
    held: String,
    /// The character before, as the model wrote it; `None` at the beginning of a line.
    previous: Option<char>,
    is_heading: bool,
    is_bold: bool,
    /// The character that began italics.
    italic: Option<char>,
    /// Backticks that began inline code; 0: none.
    ticks: usize,
    fence: Option<Fence>,
    /// What the terminal is set to.
    drawn: Style,
}

impl Markdown {
    /// Draws the next piece of the text.
    pub fn push(&mut self, text: &str, out: &mut String) {
        for c in text.chars().filter_map(visible) {
            self.take(c, out);
        }
    }

    /// Draws what was held back and sets the terminal back. Afterwards another text may begin.
    pub fn finish(&mut self, out: &mut String) {
        match self.place {
            Place::LineStart => self.begin_inline(out),
            Place::CodeStart => {
                if !self.fence.is_some_and(|fence| fence.closes(&self.held)) {
                    self.draw_code_start(out);
                }
            }
            Place::Inline | Place::Label | Place::Code => {}
        }
        if matches!(self.place, Place::Inline) {
            self.end_run(None, out);
        }
        Style::default().write(self.drawn, out);
        *self = Markdown::default();
    }

    fn take(&mut self, c: char, out: &mut String) {
        match self.place {
            Place::LineStart => self.take_at_start(c, out),
            Place::Inline => self.take_inline(c, out),
            Place::Label => self.take_label(c, out),
            Place::CodeStart => self.take_at_code_start(c, out),
            Place::Code => {
                out.push(c);
                if c == '\n' {
                    self.place = Place::CodeStart;
                }
            }
        }
    }

    fn take_at_start(&mut self, c: char, out: &mut String) {
        let body = self.held.trim_start_matches([' ', '\t']);
        let (indent, run) = (self.held.len() - body.len(), body.len());
        let marker = body.chars().next();
        let goes_on = match marker {
            None => matches!(c, ' ' | '\t' | '#' | '-' | '+' | '*' | '>' | '`' | '~'),
            Some('#') => c == '#' && run < HEADING_MAX,
            Some(mark @ ('`' | '~')) => c == mark,
            Some(_) => false,
        };
        if goes_on && self.held.len() < HELD_MAX {
            self.held.push(c);
            return;
        }
        match (marker, c) {
            (Some('#'), ' ') => {
                self.held.clear();
                self.is_heading = true;
                self.place = Place::Inline;
            }
            (Some('-' | '+' | '*'), ' ') => {
                out.push_str(&self.held[..indent]);
                out.push_str("• ");
                self.held.clear();
                self.place = Place::Inline;
            }
            (Some('>'), ' ' | '\n') => {
                out.push_str(&self.held[..indent]);
                self.draw('│', Style::DIM, out);
                self.held.clear();
                // A quote holds whatever a line may.
                self.take(c, out);
            }
            (Some(mark @ ('`' | '~')), _) if run >= FENCE_MIN => {
                self.fence = Some(Fence { mark, length: run });
                self.held.clear();
                self.place = Place::Label;
                self.take(c, out);
            }
            _ => {
                self.begin_inline(out);
                self.take(c, out);
            }
        }
    }

    /// What was held at the beginning of a line marks no line.
    fn begin_inline(&mut self, out: &mut String) {
        self.place = Place::Inline;
        for c in std::mem::take(&mut self.held).chars() {
            self.take_inline(c, out);
        }
    }

    fn take_inline(&mut self, c: char, out: &mut String) {
        match self.held.chars().next() {
            None => {}
            Some('\\') if ESCAPED.contains(c) => {
                self.held.clear();
                return self.put(c, out);
            }
            Some(mark) if mark == c && c != '\\' => {
                self.held.push(c);
                let max = if mark == '`' { HELD_MAX } else { STARS_MAX };
                if self.held.len() > max {
                    self.put_held(out);
                }
                return;
            }
            Some(_) => self.end_run(Some(c), out),
        }
        match c {
            '\n' => self.end_line(out),
            '`' => self.held.push(c),
            '\\' if self.ticks == 0 => self.held.push(c),
            // After as many as mean nothing, more of them mean nothing either.
            '*' | '_' if self.ticks == 0 && self.previous != Some(c) => self.held.push(c),
            c => self.put(c, out),
        }
    }

    /// The run of equal characters that is held ends before `next`: it is a marker, or text.
    fn end_run(&mut self, next: Option<char>, out: &mut String) {
        let Some(mark) = self.held.chars().next() else {
            return;
        };
        let length = self.held.len();
        let is_marker = match mark {
            '`' => self.switch_code(length, next),
            '*' | '_' => self.switch_emphasis(mark, length, next),
            _ => false,
        };
        if is_marker {
            self.held.clear();
            self.previous = Some(mark);
        } else {
            self.put_held(out);
        }
    }

    fn switch_code(&mut self, length: usize, next: Option<char>) -> bool {
        match self.ticks {
            0 if next.is_none_or(|c| c == '\n') => return false,
            0 => self.ticks = length,
            open if open == length => self.ticks = 0,
            _ => return false,
        }
        true
    }

    fn switch_emphasis(&mut self, mark: char, length: usize, next: Option<char>) -> bool {
        // `__init__` is a name more often than it is bold.
        if mark == '_' && length > 1 {
            return false;
        }
        let is_blank = |c: Option<char>| c.is_none_or(char::is_whitespace);
        let is_in_word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let (bold, italic) = (length >= 2, length != 2);
        let is_open = (!bold || self.is_bold) && (!italic || self.italic == Some(mark));
        let may_close = !is_blank(self.previous) && (mark == '*' || !is_in_word(next));
        if is_open && may_close {
            self.is_bold &= !bold;
            self.italic = self.italic.filter(|_| !italic);
            return true;
        }
        let is_free = (!bold || !self.is_bold) && (!italic || self.italic.is_none());
        let is_first = |c: char| bold || c.is_alphanumeric() || ITALIC_FIRST.contains(c);
        let may_open = !is_blank(next) && !is_in_word(self.previous) && next.is_some_and(is_first);
        if is_free && may_open {
            self.is_bold |= bold;
            self.italic = self.italic.or(italic.then_some(mark));
            return true;
        }
        false
    }

    fn take_label(&mut self, c: char, out: &mut String) {
        let fence = self.fence.map(|fence| (fence.mark, fence.length));
        match (c, fence) {
            ('\n', _) => {
                if self.previous.is_some() {
                    self.end_line(out);
                }
                self.place = Place::CodeStart;
            }
            // No fence, but code in a line that begins with it.
            ('`', Some(('`', length))) => {
                self.fence = None;
                self.ticks = length;
                self.held.push(c);
                self.place = Place::Inline;
            }
            (' ' | '\t', _) if self.previous.is_none() => {}
            (c, _) => {
                if self.previous.is_none() {
                    out.push_str(INDENT);
                }
                self.draw(c, Style::DIM, out);
                self.previous = Some(c);
            }
        }
    }

    fn take_at_code_start(&mut self, c: char, out: &mut String) {
        let fence = self.fence;
        if c == '\n' {
            if fence.is_some_and(|fence| fence.closes(&self.held)) {
                *self = Markdown::default();
                return;
            }
            self.draw_code_start(out);
            out.push('\n');
            return;
        }
        self.held.push(c);
        let may_close = fence.is_some_and(|fence| fence.may_close(&self.held));
        if !may_close || self.held.len() > HELD_MAX {
            self.draw_code_start(out);
            self.place = Place::Code;
        }
    }

    /// The beginning of a line of code. An empty line is not indented.
    fn draw_code_start(&mut self, out: &mut String) {
        if !self.held.trim().is_empty() {
            out.push_str(INDENT);
            out.push_str(&self.held);
        }
        self.held.clear();
    }

    fn put_held(&mut self, out: &mut String) {
        for c in std::mem::take(&mut self.held).chars() {
            self.put(c, out);
        }
    }

    /// A character of the text, in the style that markers have set.
    fn put(&mut self, c: char, out: &mut String) {
        let style = Style {
            bold: self.is_heading || self.is_bold,
            dim: false,
            italic: self.italic.is_some(),
            code: self.ticks > 0,
        };
        self.draw(c, style, out);
        self.previous = Some(c);
    }

    fn draw(&mut self, c: char, style: Style, out: &mut String) {
        if style != self.drawn {
            style.write(self.drawn, out);
            self.drawn = style;
        }
        out.push(c);
    }

    fn end_line(&mut self, out: &mut String) {
        Style::default().write(self.drawn, out);
        out.push('\n');
        *self = Markdown {
            fence: self.fence,
            ..Markdown::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn_in(pieces: &[&str]) -> String {
        let (mut markdown, mut out) = (Markdown::default(), String::new());
        for piece in pieces {
            markdown.push(piece, &mut out);
            assert!(markdown.held.len() <= HELD_MAX, "{:?}", markdown.held);
        }
        markdown.finish(&mut out);
        out
    }

    /// Drawn, with names in place of the sequences.
    fn drawn(text: &str) -> String {
        let names = [
            ("\x1b[0m", "<0>"),
            ("\x1b[1m", "<b>"),
            ("\x1b[2m", "<d>"),
            ("\x1b[3m", "<i>"),
            ("\x1b[36m", "<c>"),
        ];
        let out = drawn_in(&[text]);
        names
            .iter()
            .fold(out, |out, (from, to)| out.replace(from, to))
    }

    const CASES: &[(&str, &str)] = &[
        ("", ""),
        ("plain text\n\nmore", "plain text\n\nmore"),
        ("a **b** c", "a <b>b<0> c"),
        (
            "**a** and *b*, ***both***.",
            "<b>a<0> and <i>b<0>, <b><i>both<0>.",
        ),
        ("**a *b***", "<b>a <0><b><i>b<0>"),
        (
            "_a_ snake_case __init__ 2*3*4 2 * 3 a**b",
            "<i>a<0> snake_case __init__ 2*3*4 2 * 3 a**b",
        ),
        ("的**重点**的", "的<b>重点<0>的"),
        ("**never closed\nnext", "<b>never closed<0>\nnext"),
        ("use `let *x*` or ``a`b``", "use <c>let *x*<0> or <c>a`b<0>"),
        ("`never closed\nnext`\n", "<c>never closed<0>\nnext`\n"),
        ("\\*no\\* \\(x\\) C:\\dir \\", "*no* \\(x\\) C:\\dir \\"),
        (
            "# One\n### **Two** `x`\n#no\n####### no\n#\n",
            "<b>One<0>\n<b>Two <0><b><c>x<0>\n#no\n####### no\n#\n",
        ),
        (
            "- a\n  * **b**\n+ c\n-d\n1. e\n---\n",
            "• a\n  • <b>b<0>\n• c\n-d\n1. e\n---\n",
        ),
        ("> a *b*\n>\n>>> c\n", "<d>│<0> a <i>b<0>\n<d>│<0>\n>>> c\n"),
        ("****\n*****x\n", "****\n*****x\n"),
        (
            "a\n```rust\nfn f() {\n    **x**\n\n``\n}\n```\nb **c**",
            "a\n  <d>rust<0>\n  fn f() {\n      **x**\n\n  ``\n  }\nb <b>c<0>",
        ),
        ("```\na\n", "  a\n"),
        ("```\na\n```", "  a\n"),
        ("~~~~ sh\n```\n~~~\n~~~~ \nb", "  <d>sh<0>\n  ```\n  ~~~\nb"),
        ("  ```\n  a\n  ```\nb", "    a\nb"),
        ("```a``` b", "  <d>a<0> b"),
        (
            "````md\n```\nx\n```\n````\n",
            "  <d>md<0>\n  ```\n  x\n  ```\n",
        ),
        (
            "\x1b]0;title\x07 \x1b[31mred\u{9b}2J\r\nb\x08\x7f",
            "\u{fffd}]0;title\u{fffd} \u{fffd}[31mred\u{fffd}2J\nb\u{fffd}\u{fffd}",
        ),
        (
            "**a\x1b[0m**\n```\x1b[2J\n\x1bc\n```\n",
            "<b>a\u{fffd}[0m<0>\n  <d>\u{fffd}[2J<0>\n  \u{fffd}c\n",
        ),
        ("SELECT * FROM t, *args", "SELECT * FROM t, <i>args<0>"),
        ("- [ ] task | a | b |", "• [ ] task | a | b |"),
    ];

    #[test]
    fn what_is_drawn() {
        for (text, expected) in CASES {
            assert_eq!(drawn(text), *expected, "{text:?}");
        }
    }

    #[test]
    fn every_split_draws_the_same() {
        for (text, _) in CASES {
            let whole = drawn_in(&[text]);
            for (at, _) in text.char_indices() {
                let (a, b) = text.split_at(at);
                assert_eq!(drawn_in(&[a, b]), whole, "{a:?} {b:?}");
            }
            let single: Vec<String> = text.chars().map(String::from).collect();
            let single: Vec<&str> = single.iter().map(String::as_str).collect();
            assert_eq!(drawn_in(&single), whole, "{text:?}");
        }
    }

    /// Random characters, most of them markers: no panic, the same in all pieces, no sequence but ours, and no style left on.
    #[test]
    fn random_text() {
        let mut state = 7u64;
        let mut random = |max: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % max
        };
        let letters: Vec<char> = "**__``~~~##--+> \n\n\t\\ab1é的\u{1b}\u{9b}[m\r."
            .chars()
            .collect();
        for round in 0..4000 {
            let text: String = match round % 4 {
                0 => {
                    let bytes: Vec<u8> = (0..random(80)).map(|_| random(256) as u8).collect();
                    String::from_utf8_lossy(&bytes).into_owned()
                }
                1 => {
                    let letter = letters[random(letters.len())];
                    let repeated = std::iter::repeat_n(letter, random(300));
                    repeated.chain("\nx".chars()).collect()
                }
                _ => (0..random(120))
                    .map(|_| letters[random(letters.len())])
                    .collect(),
            };
            let whole = drawn_in(&[&text]);
            let (mut pieces, mut rest) = (Vec::new(), text.as_str());
            while !rest.is_empty() {
                let at = rest.ceil_char_boundary(1 + random(5).min(rest.len() - 1));
                let (piece, after) = rest.split_at(at);
                pieces.push(piece);
                rest = after;
            }
            assert_eq!(drawn_in(&pieces), whole, "{text:?}");
            let ours = ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[3m", "\x1b[36m"];
            let last = whole.rfind('\x1b').map(|at| &whole[at..]);
            assert!(last.is_none_or(|last| last.starts_with(RESET)), "{whole:?}");
            let left = ours.iter().fold(whole, |left, ours| left.replace(ours, ""));
            let is_right = |c: char| visible(c) == Some(c);
            assert!(left.chars().all(is_right), "{text:?} {left:?}");
            for word in ["a", "b", "1", "é", "的"] {
                assert_eq!(
                    left.matches(word).count(),
                    text.matches(word).count(),
                    "{text:?}"
                );
            }
        }
    }

    #[test]
    fn ordinary_text_is_not_held_back() {
        let (mut markdown, mut out) = (Markdown::default(), String::new());
        for (piece, expected) in [
            ("The", "The"),
            (" sky", " sky"),
            (" **", " "),
            ("is", "\x1b[1mis"),
            ("\n- bl", "\x1b[0m\n• bl"),
            ("\n```py", "\n  \x1b[2mpy"),
            ("\nprint", "\x1b[0m\n  print"),
            ("(1)\n``", "(1)\n"),
            ("`", ""),
        ] {
            out.clear();
            markdown.push(piece, &mut out);
            assert_eq!(out, expected, "{piece:?}");
        }
        out.clear();
        markdown.finish(&mut out);
        markdown.finish(&mut out);
        assert_eq!(out, "");
    }

    #[test]
    fn code_blocks_of_an_answer() {
        let text = "See:\n```rust\nfn f() {}\n```\n1. x\n   ~~~\n   a\n     b\n   ~~~\n```x``` no\n````md\n```\n````\n```\nopen";
        assert_eq!(
            code_blocks(text),
            ["fn f() {}\n", "a\n  b\n", "```\n", "open\n"]
        );
        assert!(code_blocks("no code, `one` word").is_empty());
    }
}
