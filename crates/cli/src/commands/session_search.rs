//! Words in saved sessions: `session search`, and `/search` in a chat.
//!
//! Session files are read one by one, newest first, and dropped before the next: memory follows the longest session, not
//! their number. A session has a match if its facts, states and turns together hold every word, in any case. What cannot
//! be read is named and skipped.

use crate::error::{one_line, usage};
use crate::out;
use anyhow::{Result, bail};
use haversack::session::SessionFolder;
use haversack::session::export::{SessionExport, TurnText};
use haversack::session::layout::ChatLayout;
use std::path::Path;

/// Characters shown around a match.
const BEFORE: usize = 24;
const AFTER: usize = 64;

/// What came of one session; those without a match are not told.
pub enum Searched {
    Found(SearchMatch),
    Skipped { name: String, reason: String },
}

/// The newest of the texts that hold the most words.
pub struct SearchMatch {
    pub name: String,
    pub saved_ms: u64,
    /// `fact`, `state` or `turn`.
    pub kind: &'static str,
    pub number: u64,
    /// One line around the first of the words.
    pub text: String,
}

/// Words as they are compared.
pub fn words<'a>(given: impl Iterator<Item = &'a str>) -> Result<Vec<String>> {
    let words = given.map(|word| lower(word.trim()));
    let words: Vec<String> = words.filter(|word| !word.is_empty()).collect();
    match words.is_empty() {
        true => Err(usage(
            "nothing to search for; accepted: words, of which a session has all",
        )),
        false => Ok(words),
    }
}

/// Tells of each session in turn, those saved last first.
pub fn search(
    folder: &SessionFolder,
    layout: &ChatLayout,
    words: &[String],
    mut tell: impl FnMut(Searched) -> Result<()>,
) -> Result<()> {
    let mut listed = folder.list()?;
    listed.sort_by(|a, b| (b.saved_ms, &a.name).cmp(&(a.saved_ms, &b.name)));
    for session in listed {
        let found = folder.path(&session.name).map_err(Into::into);
        match found.and_then(|path| in_session(&path, layout, words)) {
            Ok(None) => {}
            Ok(Some(Best {
                kind, number, text, ..
            })) => tell(Searched::Found(SearchMatch {
                name: session.name,
                saved_ms: session.saved_ms,
                kind,
                number,
                text,
            }))?,
            Err(error) => tell(Searched::Skipped {
                name: session.name,
                reason: one_line(&format!("{error:#}")),
            })?,
        }
    }
    Ok(())
}

/// The same, as lines for a person.
pub fn print(folder: &SessionFolder, layout: &ChatLayout, words: &[String]) -> Result<()> {
    let mut found = 0u64;
    search(folder, layout, words, |searched| match searched {
        Searched::Found(hit) => {
            found += 1;
            let SearchMatch {
                name,
                kind,
                number,
                text,
                ..
            } = hit;
            out::line(&format!("{name:<24} {kind} {number}: {text}"))
        }
        Searched::Skipped { name, reason } => {
            out::note(&format!("session {name} was not searched: {reason}"));
            Ok(())
        }
    })?;
    if found == 0 {
        out::note(&format!("no session has: {}", one_line(&words.join(" "))));
    }
    Ok(())
}

struct Best {
    words: usize,
    kind: &'static str,
    number: u64,
    text: String,
}

fn in_session(path: &Path, layout: &ChatLayout, words: &[String]) -> Result<Option<Best>> {
    let found = SessionExport::of(path, None)?;
    if let Some(damage) = &found.damage {
        bail!("{damage}");
    }
    found.check_model(layout.model())?;
    let mut seen = vec![false; words.len()];
    let mut best: Option<Best> = None;
    let mut look = |kind: &'static str, number: u64, text: &str| {
        let lowered = lower(text);
        let at: Vec<Option<usize>> = words.iter().map(|word| lowered.find(word)).collect();
        seen.iter_mut()
            .zip(&at)
            .for_each(|(seen, at)| *seen |= at.is_some());
        let count = at.iter().flatten().count();
        let first = at.iter().flatten().min();
        if let Some(&first) = first.filter(|_| best.as_ref().is_none_or(|best| best.words <= count))
        {
            let text = context(text, first);
            best = Some(Best {
                words: count,
                kind,
                number,
                text,
            });
        }
    };
    for fact in &found.facts {
        look("fact", fact.number, &fact.text);
    }
    for turn in &found.turns {
        let TurnText { question, answer } = SessionExport::text(layout, turn)?;
        let kind = if answer.is_some() { "turn" } else { "state" };
        // Together, so that words in both make one match.
        let text = question + "\n" + answer.as_deref().unwrap_or_default();
        look(kind, turn.number, &text);
    }
    Ok(best.filter(|_| seen.iter().all(|&seen| seen)))
}

/// Character by character, so that places can be found again; `str::to_lowercase` looks at neighbours.
fn lower(text: &str) -> String {
    text.chars().flat_map(char::to_lowercase).collect()
}

/// The text around a byte of its lowered form, on one line.
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
    let shown: String = text.chars().skip(from).take(at - from + AFTER).collect();
    let is_cut = text.chars().nth(at + AFTER).is_some();
    let (begin, end) = (
        if from > 0 { "…" } else { "" },
        if is_cut { "…" } else { "" },
    );
    format!("{begin}{}{end}", one_line(&shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_around_a_match() {
        let text = "İİ".repeat(40) + " Über\nden Ärger " + &"x ".repeat(60);
        let at = lower(&text).find("über").unwrap();
        let line = context(&text, at);
        assert!(
            line.starts_with('…') && line.ends_with('…') && line.contains("İ Über den Ärger x"),
            "{line}"
        );
        assert_eq!(context("Miso", 0), "Miso");
        assert_eq!(context("", 9), "");
    }

    #[test]
    fn words_are_compared_in_any_case() {
        assert_eq!(words(["Ä", " b C "].into_iter()).unwrap(), ["ä", "b c"]);
        assert!(words([" "].into_iter()).is_err());
    }
}
