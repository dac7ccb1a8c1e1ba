//! The folder of the session files as a whole: lists and removes them, damaged ones too, and keeps their number of bytes
//! and their age within limits. No model is needed.
//!
//! ```text
//! DIR/NAME.session     a session; those of a named owner are in DIR/OWNER
//! DIR/removed          what limits removed, a line each: time in ms, bytes, cause, name; the oldest lines go first
//! ```
//!
//! A session that is open anywhere is never removed. With the last session that opens with a text, the shared prefix
//! file of that text is removed as well: what was said is then nowhere on the disk.

use super::error::{SessionError, SessionResult};
use super::export::{SessionExport, opening};
use super::inspect::InspectError;
use super::names;
use super::options::{FolderLimits, SessionOptions, journal_options};
use super::owner::Owner;
use super::prefix;
use super::report::ListedSession;
use haversack_memory::journal::{Journal, JournalError, JournalOptions};
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Extension of a session file.
const ENDING: &str = "session";
const REMOVED: &str = "removed";
/// The list of removed sessions is cut in half beyond this size, and is shown up to a number of lines.
const REMOVED_BYTES_MAX: u64 = 64 << 10;
const REMOVED_SHOWN: usize = 64;
/// Session folders of one tree: a folder for each owner, and one level more.
const DEPTH_MAX: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalCause {
    Quota,
    Expired,
}

impl RemovalCause {
    pub const ALL: [RemovalCause; 2] = [RemovalCause::Quota, RemovalCause::Expired];

    pub fn name(self) -> &'static str {
        match self {
            RemovalCause::Quota => "quota",
            RemovalCause::Expired => "expired",
        }
    }
}

/// A session that a limit removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedSession {
    pub name: String,
    pub bytes: u64,
    pub cause: RemovalCause,
    pub time_ms: u64,
}

impl RemovedSession {
    fn line(&self) -> String {
        let (time, bytes, cause) = (self.time_ms, self.bytes, self.cause.name());
        format!("{time} {bytes} {cause} {}\n", self.name)
    }

    fn parse(line: &str) -> Option<RemovedSession> {
        let mut words = line.splitn(4, ' ');
        let (time_ms, bytes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let cause = words.next()?;
        Some(RemovedSession {
            cause: RemovalCause::ALL.into_iter().find(|c| c.name() == cause)?,
            name: names::check(words.next()?).ok()?.to_owned(),
            bytes,
            time_ms,
        })
    }
}

impl fmt::Display for RemovedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, bytes) = (&self.name, self.bytes);
        match self.cause {
            RemovalCause::Quota => write!(
                f,
                "session {name} was removed: all sessions together passed their quota ({bytes} bytes freed)"
            ),
            RemovalCause::Expired => write!(
                f,
                "session {name} was removed: it was not used for longer than sessions are kept"
            ),
        }
    }
}

/// A folder of session files.
#[derive(Clone, Debug)]
pub struct SessionFolder {
    dir: PathBuf,
    prefix_dir: Option<PathBuf>,
    journal: JournalOptions,
}

impl SessionFolder {
    pub fn new(dir: PathBuf, prefix_dir: Option<PathBuf>) -> SessionFolder {
        SessionFolder {
            dir,
            prefix_dir,
            journal: JournalOptions::default(),
        }
    }

    /// `None` where sessions are not saved.
    pub fn of(options: &SessionOptions) -> Option<SessionFolder> {
        Some(SessionFolder {
            dir: options.dir.clone()?,
            prefix_dir: options.prefix_dir.clone(),
            journal: journal_options(options, u64::MAX),
        })
    }

    /// The folder of an owner: this one is the unnamed owner's.
    pub fn of_owner(&self, owner: Owner) -> SessionFolder {
        let dir = match owner.is_unnamed() {
            true => self.dir.clone(),
            false => self.dir.join(owner.name()),
        };
        SessionFolder {
            dir,
            ..self.clone()
        }
    }

    /// The folders of all owners.
    pub fn owners(&self) -> Vec<(Owner, SessionFolder)> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let names = dirs.filter_map(|entry| Owner::new(entry.file_name().to_str()?).ok());
        let owners = std::iter::once(Owner::default()).chain(names);
        owners.map(|owner| (owner, self.of_owner(owner))).collect()
    }

    pub fn path(&self, name: &str) -> SessionResult<PathBuf> {
        let name = names::check(name)?;
        Ok(self.dir.join(format!("{name}.{ENDING}")))
    }

    /// What a session file holds, which may be open elsewhere.
    pub(super) fn export(&self, name: &str) -> Result<SessionExport, InspectError> {
        let path = self.dir.join(format!("{name}.{ENDING}"));
        SessionExport::of(&path, self.journal.key)
    }

    /// Whether there is a session of this name. A file to which nothing was saved is none: its process ended while it
    /// created the session, which was never acknowledged.
    pub fn has(&self, name: &str) -> bool {
        let path = self.path(name);
        path.is_ok_and(|path| path.is_file() && !Journal::is_blank(path, &self.journal))
    }

    /// The sessions by name; whether they are open is the caller's to say.
    pub fn list(&self) -> SessionResult<Vec<ListedSession>> {
        let error = |source| SessionError::Io {
            doing: "reading",
            path: self.dir.clone(),
            source,
        };
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(error(e)),
        };
        let mut listed = Vec::new();
        for entry in entries {
            let entry = entry.map_err(error)?;
            let file = entry.file_name();
            let name = file.to_str().and_then(name_of);
            let Some(name) = name.filter(|name| names::check(name).is_ok()) else {
                continue;
            };
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                // Removed since, by another process.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(error(e)),
            };
            if metadata.is_file() && !Journal::is_blank(entry.path(), &self.journal) {
                let modified = metadata.modified().ok();
                let modified = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
                listed.push(ListedSession {
                    name: name.to_owned(),
                    bytes: metadata.len(),
                    is_open: false,
                    saved_ms: modified.map_or(0, |since| since.as_millis() as u64),
                });
            }
        }
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listed)
    }

    /// Deletes a session that is not open, whatever its file holds.
    pub fn delete(&self, name: &str) -> SessionResult {
        let path = self.path(name)?;
        let opening = opening(&path, self.journal.key);
        let deleted = Journal::delete(&path, &self.journal);
        deleted.map_err(|source| match source {
            JournalError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                SessionError::NoSuchSession { name: name.into() }
            }
            source => SessionError::File {
                name: name.into(),
                source,
            },
        })?;
        self.remove_prefixes(opening.as_ref());
        Ok(())
    }

    /// Removes what the limits ask for and says what that was. Sessions that are open, here or in another process, stay.
    pub fn keep(
        &self,
        limits: FolderLimits,
        now_ms: u64,
        is_open: impl Fn(&str) -> bool,
    ) -> SessionResult<Vec<RemovedSession>> {
        if limits == FolderLimits::default() {
            return Ok(Vec::new());
        }
        let mut listed = self.list()?;
        for session in &mut listed {
            session.is_open = is_open(&session.name);
        }
        let mut removed = Vec::new();
        // A session that turns out to be open elsewhere leaves its share to the next oldest.
        while let Some((name, cause)) = next_to_remove(&listed, limits, now_ms) {
            let at = listed.iter().position(|session| session.name == name);
            let Some(at) = at else { break };
            let session = listed.remove(at);
            match self.delete(&session.name) {
                Ok(()) => {
                    let gone = RemovedSession {
                        name: session.name,
                        bytes: session.bytes,
                        cause,
                        time_ms: now_ms,
                    };
                    log::warn!("{gone}");
                    removed.push(gone);
                }
                Err(SessionError::NoSuchSession { .. }) => {}
                Err(error) => {
                    log::info!("{error}");
                    listed.push(ListedSession {
                        is_open: true,
                        ..session
                    });
                }
            }
        }
        if !removed.is_empty()
            && let Err(error) = self.note_removed(&removed)
        {
            log::warn!("{}: {error}", self.dir.join(REMOVED).display());
        }
        Ok(removed)
    }

    /// What limits removed from this folder, the latest last.
    pub fn removed(&self) -> Vec<RemovedSession> {
        let text = fs::read_to_string(self.dir.join(REMOVED)).unwrap_or_default();
        let mut removed: Vec<_> = text.lines().filter_map(RemovedSession::parse).collect();
        removed.split_off(removed.len().saturating_sub(REMOVED_SHOWN))
    }

    fn note_removed(&self, removed: &[RemovedSession]) -> io::Result<()> {
        let path = self.dir.join(REMOVED);
        let mut file = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)?;
        let lines: String = removed.iter().map(RemovedSession::line).collect();
        file.write_all(lines.as_bytes())?;
        if file.metadata()?.len() > REMOVED_BYTES_MAX {
            let text = fs::read_to_string(&path)?;
            let half = text.ceil_char_boundary(text.len() / 2);
            let kept = text[half..].split_once('\n').map_or("", |(_, rest)| rest);
            fs::write(&path, kept)?;
        }
        Ok(())
    }

    /// Removes the prefix file of an opening that no session has any more. Where the deleted session could not say what it
    /// opened with, every prefix file that no session opens with.
    fn remove_prefixes(&self, deleted: Option<&(String, Vec<u32>)>) {
        let Some(dir) = &self.prefix_dir else {
            return;
        };
        let key = self.journal.key;
        let mut unused = prefix::files(dir, key);
        if let Some(deleted) = deleted {
            unused.retain(|(_, opening)| opening == deleted);
        }
        if unused.is_empty() {
            return;
        }
        let mut sessions = Vec::new();
        session_files(&self.dir, DEPTH_MAX, &mut sessions);
        // Folders of other owners share the prefixes.
        if let Some(root) = dir.parent().filter(|root| self.dir.starts_with(root)) {
            session_files(root, DEPTH_MAX, &mut sessions);
        }
        for session in sessions {
            if unused.is_empty() {
                return;
            }
            if let Some(used) = opening(&session, key) {
                unused.retain(|(_, opening)| *opening != used);
            }
        }
        for (path, _) in unused {
            // Sequences that have it mapped keep it.
            if let Err(error) = fs::remove_file(&path) {
                log::warn!("{}: {error}", path.display());
            }
        }
    }
}

/// The session that leaves first: an expired one, or the one saved longest ago while all are over the quota.
fn next_to_remove(
    listed: &[ListedSession],
    limits: FolderLimits,
    now_ms: u64,
) -> Option<(String, RemovalCause)> {
    let closed = listed.iter().filter(|session| !session.is_open);
    let oldest = closed.min_by_key(|session| (session.saved_ms, &session.name))?;
    let age_ms = now_ms.saturating_sub(oldest.saved_ms);
    let bytes: u64 = listed.iter().map(|session| session.bytes).sum();
    let cause = if limits.age_max_ms.is_some_and(|max| age_ms > max) {
        RemovalCause::Expired
    } else if limits.bytes_max.is_some_and(|max| bytes > max) {
        RemovalCause::Quota
    } else {
        return None;
    };
    Some((oldest.name.clone(), cause))
}

fn name_of(file: &str) -> Option<&str> {
    file.strip_suffix(ENDING)?.strip_suffix('.')
}

fn session_files(dir: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() && depth > 1 {
            session_files(&entry.path(), depth - 1, found);
        } else if kind.is_file() && entry.file_name().to_str().and_then(name_of).is_some() {
            found.push(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(name: &str, bytes: u64, saved_ms: u64, is_open: bool) -> ListedSession {
        ListedSession {
            name: name.into(),
            bytes,
            is_open,
            saved_ms,
        }
    }

    #[test]
    fn the_oldest_closed_session_leaves_first() {
        let listed = [
            session("a", 10, 300, false),
            session("b", 10, 100, true),
            session("c", 10, 200, false),
        ];
        let next = |bytes_max, age_max_ms, now_ms| {
            let limits = FolderLimits {
                bytes_max,
                age_max_ms,
            };
            next_to_remove(&listed, limits, now_ms).map(|(name, cause)| (name, cause.name()))
        };
        let of = |name: &str, cause| Some((name.to_owned(), cause));
        assert_eq!(next(Some(30), None, 1000), None);
        assert_eq!(next(Some(29), None, 1000), of("c", "quota"));
        assert_eq!(next(None, Some(800), 1000), None);
        assert_eq!(next(None, Some(799), 1000), of("c", "expired"));
        assert_eq!(next(Some(0), Some(799), 1000), of("c", "expired"));
        // A clock that went back expires nothing.
        assert_eq!(next(None, Some(10), 0), None);
    }

    #[test]
    fn the_list_of_removed_sessions_reads_back_and_stays_small() {
        let dir = tempfile::tempdir().unwrap();
        let options = SessionOptions {
            dir: Some(dir.path().to_owned()),
            ..SessionOptions::default()
        };
        let folder = SessionFolder::of(&options).unwrap();
        assert_eq!(folder.removed(), []);
        let removed = |n: u64| RemovedSession {
            name: format!("session-{n}-{}", "x".repeat(40)),
            bytes: n,
            cause: RemovalCause::ALL[n as usize % 2],
            time_ms: 7 * n,
        };
        for n in 0..3000 {
            folder.note_removed(&[removed(n)]).unwrap();
        }
        let expected: Vec<_> = (3000 - REMOVED_SHOWN as u64..3000).map(removed).collect();
        assert_eq!(folder.removed(), expected);
        let path = dir.path().join(REMOVED);
        assert!(fs::metadata(&path).unwrap().len() <= REMOVED_BYTES_MAX);
        fs::write(
            &path,
            "nonsense\n1 2 quota ../x\n1 2 other x\n5 6 quota x\n",
        )
        .unwrap();
        assert_eq!(folder.removed().len(), 1);
    }
}
