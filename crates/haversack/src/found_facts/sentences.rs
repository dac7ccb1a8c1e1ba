//! What a user said, cut into sentences, and what two sentences have in common. Pure.

use std::collections::BTreeSet;

/// Sentences of one message that are looked at: a pasted document is no talk about oneself.
pub const SENTENCES_MAX: usize = 16;

/// Bytes of a sentence that may become a fact.
pub const SENTENCE_BYTES_MAX: usize = 240;

/// Words that stand for a person or thing named before.
const PRONOUNS: [&str; 9] = [
    "he", "she", "it", "they", "his", "her", "its", "their", "this",
];

/// Words by which something is supposed, not told. Models take "If I had a dog" for a dog.
const SUPPOSING: [&str; 12] = [
    "if", "might", "maybe", "perhaps", "suppose", "imagine", "would", "could", "should", "shall",
    "wish", "pretend",
];

/// Verbs by which a sentence asks for something, where it begins with one. Verbs that may begin what is told without "I" are
/// not among them ("Keep bees."), nor are those of "Remember that …" and "Note that …".
const REQUESTING: [&str; 60] = [
    "add",
    "answer",
    "ask",
    "calculate",
    "check",
    "choose",
    "compare",
    "complete",
    "compute",
    "consider",
    "continue",
    "convert",
    "correct",
    "count",
    "create",
    "define",
    "describe",
    "design",
    "draft",
    "draw",
    "explain",
    "find",
    "finish",
    "fix",
    "forget",
    "generate",
    "give",
    "guess",
    "help",
    "improve",
    "let",
    "let's",
    "list",
    "make",
    "name",
    "outline",
    "pick",
    "print",
    "proofread",
    "prove",
    "provide",
    "recommend",
    "remove",
    "repeat",
    "replace",
    "rewrite",
    "shorten",
    "show",
    "solve",
    "sort",
    "spell",
    "start",
    "stop",
    "suggest",
    "summarise",
    "summarize",
    "tell",
    "translate",
    "try",
    "write",
];

/// Words before such a verb.
const BEFORE_REQUEST: [&str; 7] = ["please", "now", "then", "and", "so", "ok", "okay"];

/// The first sentences of a text that may tell something: no questions, requests or suppositions, no lines of code
/// or of lists.
pub fn statements(text: &str) -> Vec<&str> {
    let all = sentences(text).take(SENTENCES_MAX);
    all.filter(|sentence| is_statement(sentence)).collect()
}

/// A sentence ends with its mark and white space behind it, or with the line.
pub fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines();
    let cut = lines.flat_map(|line| {
        let ends = line.char_indices().filter_map(|(at, c)| {
            let next = at + c.len_utf8();
            let rest = &line[next..];
            let is_end = match c {
                '.' | '!' | '?' | '…' => rest.starts_with(char::is_whitespace),
                '。' | '！' | '？' => true,
                _ => false,
            };
            // "Dr. Smith" and "e.g. this" go on.
            let goes_on = c == '.' && is_abbreviated(&line[..at]);
            (is_end && !goes_on).then_some(next)
        });
        let ends: Vec<usize> = ends.chain([line.len()]).collect();
        let starts = [0].into_iter().chain(ends.clone());
        let cut: Vec<&str> = starts
            .zip(ends)
            .map(|(start, end)| line[start..end].trim())
            .collect();
        cut
    });
    cut.filter(|sentence| !sentence.is_empty())
}

/// Whether the last word is a single letter or a title, whose full stop ends no sentence.
fn is_abbreviated(before: &str) -> bool {
    let word = before.rsplit(|c: char| !c.is_alphanumeric()).next();
    let word = word.unwrap_or_default();
    word.chars().count() == 1 && word != "I" || ["Dr", "Mr", "Mrs", "Ms", "St"].contains(&word)
}

fn is_statement(sentence: &str) -> bool {
    let words = sentence.split_whitespace().count();
    let is_text = sentence.chars().next().is_some_and(char::is_alphabetic)
        && !sentence.contains(['{', '}', '<', '>', '=', '\\', '|', '`']);
    let asks = sentence.contains(['?', '？', '¿']);
    // Some scripts have no spaces.
    let is_long = words > 1 || !sentence.is_ascii();
    let is_told = !asks && !requests(sentence) && !supposes(sentence);
    is_text && is_told && is_long && sentence.len() <= SENTENCE_BYTES_MAX
}

fn requests(sentence: &str) -> bool {
    let words = sentence.split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '’');
    let words = words.filter(|word| !word.is_empty());
    let words = words.map(|word| word.to_lowercase().replace('’', "'"));
    let first = words.skip_while(|word| BEFORE_REQUEST.contains(&word.as_str()));
    first
        .take(1)
        .any(|word| REQUESTING.contains(&word.as_str()))
}

fn supposes(sentence: &str) -> bool {
    words(sentence)
        .iter()
        .any(|word| SUPPOSING.contains(&word.as_str()))
}

/// Words of a text in lower case.
pub fn words(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '’');
    let words = words.map(|word| word.trim_matches(['\'', '’']).to_lowercase());
    let words = words.map(|word| without_ending(&word).to_owned());
    words.filter(|word| !word.is_empty()).collect()
}

/// "Clara's" is about Clara.
fn without_ending(word: &str) -> &str {
    let stem = word.strip_suffix("'s").or_else(|| word.strip_suffix("’s"));
    stem.unwrap_or(word)
}

/// Whether it begins with a pronoun for what was named before.
pub fn begins_with_pronoun(sentence: &str) -> bool {
    let first = sentence.split(|c: char| !c.is_alphanumeric()).next();
    first.is_some_and(|word| PRONOUNS.contains(&word.to_lowercase().as_str()))
}

/// Whether two sentences say the same in the same words, in any order.
pub fn is_same(one: &str, other: &str) -> bool {
    words(one) == words(other)
}

/// What a text has in common with each of these: a word counts as much as it is rare in them. Short words do not count:
/// by "I" and "the" everything has something in common.
pub fn in_common(text: &str, all: &[&str]) -> Vec<f64> {
    let mut asked = words(text);
    asked.retain(|word| says_what(word));
    let sets: Vec<BTreeSet<String>> = all.iter().map(|text| words(text)).collect();
    let weight = |word: &String| {
        let having = sets.iter().filter(|set| set.contains(word)).count();
        ((1 + sets.len()) as f64 / (1 + having) as f64).ln() + 0.1
    };
    let common = |set: &BTreeSet<String>| asked.intersection(set).map(weight).sum();
    sets.iter().map(common).collect()
}

fn says_what(word: &str) -> bool {
    let has_number = || word.contains(|c: char| c.is_numeric());
    word.chars().count() > 3 || !word.is_ascii() || has_number()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_into_its_statements() {
        let text = "I'm vegetarian. What can I eat? My sister saw Dr. Smith at 9.30 today!\n\
            let x = 3;\n- a list\nOk\nElle habite à Gand… Et toi ?";
        assert_eq!(
            statements(text),
            [
                "I'm vegetarian.",
                "My sister saw Dr. Smith at 9.30 today!",
                "Elle habite à Gand…",
            ]
        );
        let all: Vec<&str> = sentences("我吃素。他住在根特。").collect();
        assert_eq!(all, ["我吃素。", "他住在根特。"]);
        assert!(statements(&"I sing. ".repeat(100)).len() <= SENTENCES_MAX);
        assert!(statements(&format!("I {}.", "very ".repeat(100))).is_empty());
        assert!(statements("If I had a dog I'd call it Rex. Perhaps I'll move.").is_empty());
        assert!(statements("").is_empty());
        assert!(statements("Name three rivers. Please, now write to Ann! Let’s go on.").is_empty());
        assert_eq!(statements("My name is Ann. Remember that I sing.").len(), 2);
    }

    #[test]
    fn sentences_are_compared_by_their_words() {
        assert!(is_same("I'm vegetarian.", "vegetarian, I'm"));
        assert!(!is_same("I'm vegetarian.", "I'm vegan."));
        assert!(begins_with_pronoun("She's in Ghent.") && !begins_with_pronoun("Shelley sings."));
        let known = [
            "My dog is called Rocket.",
            "I live in Ghent.",
            "My car is a Saab.",
        ];
        let common = in_common("I sold the Saab, my car is a Fiat.", &known);
        assert!(common[2] > 0.0 && common[..2] == [0.0; 2]);
    }
}
