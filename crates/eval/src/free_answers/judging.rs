//! Whether a freely given answer says the right thing. Pure.
//!
//! Words are compared as in SQuAD (Rajpurkar and others, 2016): small letters, no punctuation, no articles. F1 is the
//! harmonic mean of two shares: of the words of the answer that are right, and of the right ones that are in the answer. An
//! answer in a whole sentence loses by the first, however right it is; containment does not look at it.

use std::collections::BTreeMap;

const ARTICLES: [&str; 3] = ["a", "an", "the"];

/// Words that a right answer may leave out.
const FUNCTION_WORDS: [&str; 6] = ["on", "in", "at", "of", "and", "before"];

/// What says that nothing was said, as its words are compared.
const NOT_SAID: [&str; 22] = [
    "not mentioned",
    "never mentioned",
    "not been mentioned",
    "no mention",
    "isnt mentioned",
    "wasnt mentioned",
    "not mention",
    "didnt mention",
    "not said",
    "never said",
    "not specified",
    "not stated",
    "not provided",
    "not given",
    "not known",
    "unknown",
    "not have information",
    "no information",
    "dont know",
    "not know",
    "dont have",
    "not sure",
];

/// The words of an answer as they are compared.
pub fn compared_words(text: &str) -> Vec<String> {
    let kept = |c: &char| c.is_alphanumeric() || c.is_whitespace();
    let text: String = text.to_lowercase().chars().filter(kept).collect();
    let words = text
        .split_whitespace()
        .filter(|word| !ARTICLES.contains(word));
    words.map(str::to_owned).collect()
}

/// F1 of the words of an answer against those of the right one: 1 where they are the same, 0 where none is.
pub fn token_f1(answer: &str, right: &str) -> f64 {
    let (answer, right) = (compared_words(answer), compared_words(right));
    if answer.is_empty() || right.is_empty() {
        return f64::from(u8::from(answer == right));
    }
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    for word in &right {
        *left.entry(word).or_default() += 1;
    }
    let mut same = 0;
    for word in &answer {
        if let Some(count) = left.get_mut(word.as_str()).filter(|count| **count > 0) {
            *count -= 1;
            same += 1;
        }
    }
    2.0 * f64::from(same) / (answer.len() + right.len()) as f64
}

/// Whether every word of the right answer is in the given one, in any order. Ordinals are numbers: people write both.
pub fn contains_answer(answer: &str, right: &str) -> bool {
    let number = |word: &String| -> String {
        let digits = ["st", "nd", "rd", "th"]
            .iter()
            .find_map(|end| word.strip_suffix(end))
            .filter(|digits| !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit()));
        digits.unwrap_or(word).to_owned()
    };
    let answer: Vec<String> = compared_words(answer).iter().map(number).collect();
    let right: Vec<String> = compared_words(right).iter().map(number).collect();
    let mut needed = right
        .iter()
        .filter(|word| !FUNCTION_WORDS.contains(&word.as_str()))
        .peekable();
    needed.peek().is_some() && needed.all(|word| answer.contains(word))
}

/// Whether an answer says that what it was asked for was not said.
pub fn says_not_said(answer: &str) -> bool {
    let words = format!(" {} ", compared_words(answer).join(" "));
    NOT_SAID
        .iter()
        .any(|said| words.contains(&format!(" {said} ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_as_they_are_compared() {
        for (text, words) in [
            ("The Old Mill.", "old mill"),
            ("  a  dog, an ox; THE cat! ", "dog ox cat"),
            ("Don’t: it's 3.50 €", "dont its 350"),
            ("ice-cream", "icecream"),
            ("Åsa, Ünal", "åsa ünal"),
            ("an the a", ""),
            ("", ""),
        ] {
            assert_eq!(compared_words(text).join(" "), words, "{text}");
        }
    }

    #[test]
    fn f1_of_known_answers() {
        for (answer, right, f1) in [
            ("a bakery", "The bakery.", 1.0),
            ("bakery", "sawmill", 0.0),
            // Two of six words, both of the two.
            ("Nora works at old sawmill there", "the old sawmill", 0.5),
            // Said twice, right once.
            ("seven seven", "seven", 2.0 / 3.0),
            ("seven", "seven seven", 2.0 / 3.0),
            ("cello", "cello and banjo", 0.5),
            ("", "", 1.0),
            ("the", "", 1.0),
            ("", "bakery", 0.0),
            ("bakery", "", 0.0),
            ("Not mentioned.", "not mentioned", 1.0),
        ] {
            assert!(
                (token_f1(answer, right) - f1).abs() < 1e-12,
                "{answer} {right}: {}",
                token_f1(answer, right)
            );
        }
    }

    #[test]
    fn an_answer_contains_the_right_one_in_any_order() {
        for (answer, right, contains) in [
            ("She works at the old sawmill now.", "an old sawmill", true),
            ("She works at a mill.", "an old sawmill", false),
            ("sawmills", "sawmill", false),
            ("March 14", "on the 14th of March", true),
            ("March 4", "on the 14th of March", false),
            ("the 21st", "21", true),
            ("th", "the 4th", false),
            (
                "The banjo, and before that the cello",
                "cello and banjo",
                true,
            ),
            ("The banjo", "cello and banjo", false),
            ("anything", "", false),
            ("anything", "on the", false),
        ] {
            assert_eq!(contains_answer(answer, right), contains, "{answer} {right}");
        }
    }

    #[test]
    fn saying_that_nothing_was_said() {
        for answer in [
            "Not mentioned.",
            "It is not mentioned in the text",
            "That wasn't mentioned.",
            "You didn't mention where Nora works.",
            "I don't know.",
            "Unknown",
            "This was never said.",
            "There is no information about that",
        ] {
            assert!(says_not_said(answer), "{answer}");
        }
        for answer in [
            "At the sawmill.",
            "",
            "She mentioned a knot",
            "notmentioned",
        ] {
            assert!(!says_not_said(answer), "{answer}");
        }
    }
}
