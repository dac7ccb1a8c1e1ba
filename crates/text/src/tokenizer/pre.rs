//! Pre-tokenizers: how a text falls into the words that BPE merges within.
//!
//! Each is defined by a regular expression of the model's makers and written here by hand as a
//! scanner, without backtracking and hence linear. Two families cover what we load:
//!
//! ```text
//! words    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//! clauses  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}
//!          | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//! ```
//!
//! The words of a text, in order and joined, are the text.

use unicode_general_category::{GeneralCategory as G, get_general_category};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pre {
    /// The "words" expression.
    Gpt2,
    /// Every numeral alone, then "words" on what lies between.
    Smollm,
    /// The "clauses" expression.
    Llama3,
    /// "Clauses" with single numerals.
    Qwen2,
    /// As [`Pre::Qwen2`], with marks counted as letters inside a word.
    Qwen35,
}

impl Pre {
    /// By `tokenizer.ggml.pre`. Names that are missing (old files) or unknown get GPT-2's
    /// splitting, the ancestor of them all: mostly the same words, so the model still works, but
    /// the log says that ids may differ.
    pub fn from_name(name: &str) -> Pre {
        match name {
            "gpt-2" | "gpt2" | "phi-2" | "mpt" | "olmo" | "jais" | "trillion"
            | "granite-docling" | "exaone4" | "gigachat" | "a.x-4.0" | "mellum" | "modern-bert"
            | "roberta-bpe" | "jina-es" | "jina-de" | "jina-v1-en" | "jina-v2-es"
            | "jina-v2-de" | "jina-v2-code" => Pre::Gpt2,
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone"
            | "minerva-7b" | "mellum2" => Pre::Smollm,
            "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => Pre::Llama3,
            _ if asks_llama3(name) => Pre::Llama3,
            "qwen2" | "deepseek-r1-qwen" | "stablelm2" | "hunyuan" | "megrez" | "solar-open"
            | "kormo" | "f2llmv2" => Pre::Qwen2,
            "qwen35" => Pre::Qwen35,
            _ => {
                let shown: String = name.chars().take(40).collect();
                log::warn!(
                    "tokenizer.ggml.pre is {shown:?}, which is not known: split as gpt-2, token ids may differ"
                );
                Pre::Gpt2
            }
        }
    }

    /// Calls `word` with each word of the text, in order.
    pub fn split<'a>(self, text: &'a str, mut word: impl FnMut(&'a str)) {
        match self {
            Pre::Gpt2 => scan(text, words, &mut word),
            Pre::Llama3 => scan(text, |rest| clauses(rest, 3, false), &mut word),
            Pre::Qwen2 => scan(text, |rest| clauses(rest, 1, false), &mut word),
            Pre::Qwen35 => scan(text, |rest| clauses(rest, 1, true), &mut word),
            Pre::Smollm => {
                let mut rest = text;
                let is_number = |&(_, c): &(usize, char)| class(c) == Class::Number;
                while let Some((at, numeral)) = rest.char_indices().find(is_number) {
                    let (before, from) = rest.split_at(at);
                    let (number, after) = from.split_at(numeral.len_utf8());
                    scan(before, words, &mut word);
                    word(number);
                    rest = after;
                }
                scan(rest, words, &mut word);
            }
        }
    }
}

/// Names that split as Llama 3 does and, with it, add BOS and take whole words before merging.
const LLAMA3: &str =
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano";

pub(super) fn asks_llama3(name: &str) -> bool {
    LLAMA3.split(' ').any(|known| known == name)
}

/// Cuts words off the front; `length` says how many bytes the first has, at least one character.
fn scan<'a>(text: &'a str, length: impl Fn(&str) -> usize, word: &mut impl FnMut(&'a str)) {
    let mut rest = text;
    while !rest.is_empty() {
        let (first, after) = rest.split_at(length(rest));
        word(first);
        rest = after;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Mark,
    /// Punctuation, symbols, controls, unassigned.
    Other,
}

fn class(c: char) -> Class {
    if c.is_ascii() {
        return match c {
            'a'..='z' | 'A'..='Z' => Class::Letter,
            '0'..='9' => Class::Number,
            '\t'..='\r' | ' ' => Class::Space,
            _ => Class::Other,
        };
    }
    if is_newer(c) {
        return Class::Other;
    }
    // `\s` is the White_Space property, which no general category gives.
    if c.is_whitespace() {
        return Class::Space;
    }
    match get_general_category(c) {
        G::UppercaseLetter
        | G::LowercaseLetter
        | G::TitlecaseLetter
        | G::ModifierLetter
        | G::OtherLetter => Class::Letter,
        G::DecimalNumber | G::LetterNumber | G::OtherNumber => Class::Number,
        G::NonspacingMark | G::SpacingMark | G::EnclosingMark => Class::Mark,
        _ => Class::Other,
    }
}

/// Characters that Unicode 16 added. Models were trained and are served with tables up to 15, where
/// these have no category; newer tables here would give other ids than the reference.
fn is_newer(c: char) -> bool {
    matches!(c as u32,
        0x0897 | 0x1C89..=0x1C8A | 0xA7CB..=0xA7CD | 0xA7DA..=0xA7DC | 0x105C0..=0x105F3
        | 0x10D40..=0x10D85 | 0x10EC2..=0x10EC4 | 0x10EFC | 0x11380..=0x113E2
        | 0x116D0..=0x116E3 | 0x11BC0..=0x11BF9 | 0x11F5A | 0x13460..=0x143FA
        | 0x16100..=0x16139 | 0x16D40..=0x16D79 | 0x18CFF | 0x1CCF0..=0x1CCF9
        | 0x1E5D0..=0x1E5FA)
}

/// Bytes of the leading characters for which `keep` holds, at most `most` of them.
fn run(text: &str, most: usize, keep: impl Fn(char) -> bool) -> usize {
    let kept = text.chars().take(most).take_while(|&c| keep(c));
    kept.map(char::len_utf8).sum()
}

const ALL: usize = usize::MAX;

/// Length of an English contraction's tail, apostrophe included.
fn contraction(text: &str, any_case: bool) -> Option<usize> {
    let tail = text.strip_prefix('\'')?.as_bytes();
    let is_tail = |letters: &&str| match tail.get(..letters.len()) {
        Some(found) if any_case => found.eq_ignore_ascii_case(letters.as_bytes()),
        found => found == Some(letters.as_bytes()),
    };
    let tails = ["s", "t", "m", "d", "re", "ve", "ll"];
    tails
        .iter()
        .find(|letters| is_tail(letters))
        .map(|letters| 1 + letters.len())
}

/// `\s+(?!\S)|\s+`: white space, except its last character when a word follows that may want it.
fn spaces(text: &str) -> usize {
    let all = run(text, ALL, |c| class(c) == Class::Space);
    match text[..all].chars().next_back() {
        Some(last) if all < text.len() && all > last.len_utf8() => all - last.len_utf8(),
        _ => all,
    }
}

/// Length of the first match of the "words" expression.
fn words(text: &str) -> usize {
    if let Some(length) = contraction(text, false) {
        return length;
    }
    let space = usize::from(text.starts_with(' '));
    let body = &text[space..];
    match body.chars().next().map(class) {
        Some(kind @ (Class::Letter | Class::Number)) => {
            space + run(body, ALL, |c| class(c) == kind)
        }
        Some(Class::Mark | Class::Other) => {
            let sign = |c| matches!(class(c), Class::Mark | Class::Other);
            space + run(body, ALL, sign)
        }
        _ => spaces(text),
    }
}

/// Length of the first match of the "clauses" expression.
fn clauses(text: &str, digits_max: usize, marks: bool) -> usize {
    if let Some(length) = contraction(text, true) {
        return length;
    }
    let Some(first) = text.chars().next() else {
        return 0;
    };
    let in_word = |c: char| match class(c) {
        Class::Letter => true,
        Class::Mark => marks,
        _ => false,
    };
    // The optional first character of a word is anything but a letter, numeral or line end.
    let kind = class(first);
    let lead = match kind {
        Class::Letter => 0,
        Class::Number => text.len(),
        _ if first == '\r' || first == '\n' => text.len(),
        _ => first.len_utf8(),
    };
    if let Some(body) = text.get(lead..) {
        let letters = run(body, ALL, in_word);
        if letters > 0 {
            return lead + letters;
        }
    }
    if in_word(first) {
        return run(text, ALL, in_word);
    }
    if kind == Class::Number {
        return run(text, digits_max, |c| class(c) == Class::Number);
    }
    let space = usize::from(first == ' ');
    let sign = |c: char| match class(c) {
        Class::Other => true,
        Class::Mark => !marks,
        _ => false,
    };
    let signs = run(&text[space..], ALL, sign);
    if signs > 0 {
        let end = space + signs;
        return end + run(&text[end..], ALL, |c| c == '\r' || c == '\n');
    }
    // `\s*[\r\n]+` reaches to the last line end of the white space.
    let white = run(text, ALL, |c| class(c) == Class::Space);
    match text[..white].rfind(['\r', '\n']) {
        Some(at) => at + 1,
        None => spaces(text).max(first.len_utf8()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(pre: Pre, text: &str) -> Vec<&str> {
        let mut out = Vec::new();
        pre.split(text, |w| out.push(w));
        out
    }

    /// Runs of equal class over all code points, surrogates (as other) included.
    const CLASSES: &str = include_str!("../../tests/fixtures/tokenizer/classes.txt");

    #[test]
    fn every_character_has_the_class_of_the_reference() {
        let mut code = 0u32;
        for run in CLASSES.split_whitespace() {
            let (name, count) = run.split_at(1);
            for _ in 0..count.parse::<u32>().unwrap() {
                let ours = match char::from_u32(code).map(class) {
                    Some(Class::Letter) => "L",
                    Some(Class::Number) => "N",
                    Some(Class::Space) => "S",
                    Some(Class::Mark) => "M",
                    Some(Class::Other) | None => "O",
                };
                assert_eq!(ours, name, "U+{code:04X}");
                code += 1;
            }
        }
        assert_eq!(code, 0x110000);
    }

    #[test]
    fn the_last_space_goes_to_the_word_after_it() {
        assert_eq!(split(Pre::Gpt2, "a   b \n"), ["a", "  ", " b", " \n"]);
        assert_eq!(split(Pre::Gpt2, "a\n\nb"), ["a", "\n", "\n", "b"]);
        assert_eq!(split(Pre::Llama3, "a \n\n  b"), ["a", " \n\n", " ", " b"]);
        assert_eq!(split(Pre::Gpt2, "a\u{a0}b"), ["a", "\u{a0}", "b"]);
        assert_eq!(split(Pre::Llama3, "a\u{a0}b"), ["a", "\u{a0}b"]);
    }

    #[test]
    fn contractions_know_their_case() {
        assert_eq!(
            split(Pre::Gpt2, "I'll WE'LL"),
            ["I", "'ll", " WE", "'", "LL"]
        );
        assert_eq!(split(Pre::Qwen2, "I'll WE'LL"), ["I", "'ll", " WE", "'LL"]);
    }

    #[test]
    fn numerals_by_threes_by_ones_and_apart() {
        assert_eq!(split(Pre::Gpt2, "x 1234"), ["x", " 1234"]);
        assert_eq!(split(Pre::Smollm, "x  12½"), ["x", "  ", "1", "2", "½"]);
        assert_eq!(split(Pre::Llama3, "x 1234"), ["x", " ", "123", "4"]);
        assert_eq!(split(Pre::Qwen2, "x 12"), ["x", " ", "1", "2"]);
    }

    #[test]
    fn marks_are_letters_only_where_the_expression_says_so() {
        // e + combining acute
        assert_eq!(split(Pre::Qwen2, "e\u{301}a"), ["e", "\u{301}a"]);
        assert_eq!(split(Pre::Qwen35, "e\u{301}a"), ["e\u{301}a"]);
        assert_eq!(split(Pre::Qwen35, "\u{301}\u{301}"), ["\u{301}\u{301}"]);
    }
}
