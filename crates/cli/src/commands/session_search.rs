//! Words in saved sessions: `session search`, and `/search` in a chat.
//!
//! Session files are read one by one, newest first, and dropped before the next: memory follows the longest session, not
//! their number. What cannot be read is named and skipped.

use crate::error::{one_line, usage};
use crate::out;
use anyhow::Result;
use haversack::session::SessionFolder;
use haversack::session::layout::ChatLayout;
use haversack::session::search::SessionSearch;

/// What came of one session; those without a match are not told.
pub enum Searched {
    Found(FoundSession),
    Skipped { name: String, reason: String },
}

/// A session that has all words.
pub struct FoundSession {
    pub name: String,
    pub saved_ms: u64,
    /// `fact`, `state` or `turn`.
    pub kind: &'static str,
    pub number: u64,
    /// One line around the first of the words.
    pub text: String,
}

/// Words as they are compared.
pub fn words<'a>(given: impl Iterator<Item = &'a str>) -> Result<SessionSearch> {
    let search = SessionSearch::new(given);
    if search.words().is_empty() {
        return Err(usage(
            "nothing to search for; accepted: words, of which a session has all",
        ));
    }
    Ok(search)
}

/// Tells of each session in turn, those saved last first.
pub fn search(
    folder: &SessionFolder,
    layout: &ChatLayout,
    words: &SessionSearch,
    mut tell: impl FnMut(Searched) -> Result<()>,
) -> Result<()> {
    let mut listed = folder.list()?;
    listed.sort_by(|a, b| (b.saved_ms, &a.name).cmp(&(a.saved_ms, &b.name)));
    for session in listed {
        match words.in_session(folder, layout, &session.name) {
            Ok(None) => {}
            Ok(Some(found)) => tell(Searched::Found(FoundSession {
                name: session.name,
                saved_ms: session.saved_ms,
                kind: found.kind,
                number: found.number,
                text: one_line(&found.text),
            }))?,
            Err(error) => tell(Searched::Skipped {
                name: session.name,
                reason: one_line(&error.to_string()),
            })?,
        }
    }
    Ok(())
}

/// The same, as lines for a person.
pub fn print(folder: &SessionFolder, layout: &ChatLayout, words: &SessionSearch) -> Result<()> {
    let mut found = 0u64;
    search(folder, layout, words, |searched| match searched {
        Searched::Found(hit) => {
            found += 1;
            let FoundSession {
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
        let words = one_line(&words.words().join(" "));
        out::note(&format!("no session has: {words}"));
    }
    Ok(())
}
