//! Words in saved sessions. Files are read, one at a time; no session is opened, and no model state is needed.

use super::export::{SessionExport, TurnText};
use super::folder::SessionFolder;
use super::inspect::InspectError;
use super::layout::{ChatLayout, LayoutError};
use super::names::{self, BadName};

/// Characters shown around a match.
const BEFORE: usize = 24;
const AFTER: usize = 64;

/// Why a session was not searched.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error(transparent)]
    Name(#[from] BadName),
    #[error(transparent)]
    File(#[from] InspectError),
    #[error("it is damaged: {0}")]
    Damaged(String),
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// Words of which a session has all, in any case and in any of its facts, states and turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSearch {
    words: Vec<String>,
}

/// The newest of the texts that hold the most words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchMatch {
    /// `fact`, `state` or `turn`.
    pub kind: &'static str,
    /// Of the fact, or of the turn.
    pub number: u64,
    /// Around the first of the words, as it was written.
    pub text: String,
}

impl SessionSearch {
    /// Empty words are left out.
    pub fn new<'a>(words: impl IntoIterator<Item = &'a str>) -> SessionSearch {
        let words = words.into_iter().map(|word| lower(word.trim()));
        SessionSearch {
            words: words.filter(|word| !word.is_empty()).collect(),
        }
    }

    /// Words as they are compared.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// The words that this text does not have.
    pub fn without(&self, text: &str) -> SessionSearch {
        let text = lower(text);
        let words = self.words.iter().filter(|&word| !text.contains(word));
        SessionSearch {
            words: words.cloned().collect(),
        }
    }

    /// `None`: the session does not have all words.
    pub fn in_session(
        &self,
        folder: &SessionFolder,
        layout: &ChatLayout,
        name: &str,
    ) -> Result<Option<SearchMatch>, SearchError> {
        let found = folder.export(names::check(name)?)?;
        if let Some(damage) = found.damage {
            return Err(SearchError::Damaged(damage));
        }
        found.check_model(layout.model())?;
        let mut look = Look::new(&self.words);
        for fact in &found.facts {
            look.at("fact", fact.number, &fact.text);
        }
        for turn in &found.turns {
            let TurnText { question, answer } = SessionExport::text(layout, turn)?;
            let kind = if answer.is_some() { "turn" } else { "state" };
            // Together, so that words in both make one match.
            let text = question + "\n" + answer.as_deref().unwrap_or_default();
            look.at(kind, turn.number, &text);
        }
        Ok(look.found())
    }
}

/// What the texts of one session have of the words so far.
struct Look<'a> {
    words: &'a [String],
    seen: Vec<bool>,
    /// With how many words it has.
    best: Option<(usize, SearchMatch)>,
}

impl Look<'_> {
    fn new(words: &[String]) -> Look<'_> {
        Look {
            words,
            seen: vec![false; words.len()],
            best: None,
        }
    }

    fn at(&mut self, kind: &'static str, number: u64, text: &str) {
        let lowered = lower(text);
        let mut first: Option<usize> = None;
        let mut count = 0;
        for (word, seen) in self.words.iter().zip(&mut self.seen) {
            if let Some(at) = lowered.find(word) {
                *seen = true;
                count += 1;
                first = Some(first.map_or(at, |first| first.min(at)));
            }
        }
        let is_best = self.best.as_ref().is_none_or(|(most, _)| *most <= count);
        if let Some(first) = first.filter(|_| is_best) {
            let text = context(text, first);
            self.best = Some((count, SearchMatch { kind, number, text }));
        }
    }

    fn found(self) -> Option<SearchMatch> {
        let (_, best) = self.best?;
        self.seen.iter().all(|&seen| seen).then_some(best)
    }
}

/// Character by character, so that places can be found again; `str::to_lowercase` looks at neighbours.
fn lower(text: &str) -> String {
    text.chars().flat_map(char::to_lowercase).collect()
}

/// The text around a byte of its lowered form.
fn context(text: &str, lowered_at: usize) -> String {
    let mut bytes = 0;
    let lengths = text
        .chars()
        .map(|c| c.to_lowercase().map(char::len_utf8).sum::<usize>());
    let before = lengths.take_while(|length| {
        bytes += length;
        bytes <= lowered_at
    });
    let at = before.count();
    let from = at.saturating_sub(BEFORE);
    let mut rest = text.chars().skip(from);
    let shown: String = rest.by_ref().take(at - from + AFTER).collect();
    let begin = if from > 0 { "…" } else { "" };
    let end = if rest.next().is_some() { "…" } else { "" };
    format!("{begin}{}{end}", shown.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_around_a_match() {
        let text = "İİ".repeat(40) + " Über\nden Ärger " + &"x ".repeat(60);
        let at = lower(&text).find("über").unwrap();
        let shown = context(&text, at);
        assert!(
            shown.starts_with('…') && shown.ends_with('…') && shown.contains("İ Über\nden Ärger x"),
            "{shown}"
        );
        assert_eq!(context("Miso", 0), "Miso");
        assert_eq!(context("", 9), "");
    }

    #[test]
    fn words_are_compared_in_any_case() {
        let search = SessionSearch::new(["Ä", " b C ", " "]);
        assert_eq!(search.words(), ["ä", "b c"]);
        assert_eq!(search.without("xB c").words(), ["ä"]);
        assert!(SessionSearch::new([" "]).words().is_empty());
    }

    #[test]
    fn the_newest_text_with_the_most_words_is_shown() {
        let words = ["cat".to_owned(), "miso".to_owned()];
        let mut look = Look::new(&words);
        look.at("turn", 1, "My CAT is called Miso.");
        look.at("turn", 2, "A cat, and Miso again");
        look.at("turn", 3, "a cat");
        let found = look.found().unwrap();
        assert_eq!((found.number, &found.text[..5]), (2, "A cat"));
        let mut look = Look::new(&words);
        look.at("turn", 1, "a cat");
        assert_eq!(look.found(), None);
    }
}
