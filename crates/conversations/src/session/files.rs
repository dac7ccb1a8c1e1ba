//! The files of sessions: the folder they are in, what its limits removed, and those that requests wait for. They are
//! verified and read beside the engine: a long file takes as long as reading it does.

use super::error::{SessionError, SessionResult};
use super::folder::{RemovalCause, RemovedSession, SessionFolder};
use super::log::LogHome;
use super::options::{FolderLimits, SessionOptions, journal_options};
use super::owner::{Owner, SessionName};
use super::replay::Replay;
use haversack_memory::journal::{
    Journal, JournalError, JournalMap, JournalOpenTask, OpenedJournal, RecordRef,
};

/// A session's file: verified, locked and read.
pub(super) struct SessionFile {
    pub journal: Journal,
    pub map: JournalMap,
    pub replay: Replay,
}

impl SessionFile {
    fn read(name: &str, opened: Result<OpenedJournal, JournalError>) -> SessionResult<SessionFile> {
        let error = |source| SessionError::File {
            name: name.to_owned(),
            source,
        };
        let OpenedJournal {
            journal, records, ..
        } = opened.map_err(error)?;
        if records.is_empty() {
            return Err(SessionError::NoSuchSession { name: name.into() });
        }
        let map = journal.map().map_err(error)?;
        let replay = replay(name, &map, &records)?;
        Ok(SessionFile {
            journal,
            map,
            replay,
        })
    }
}

pub(super) fn replay(name: &str, map: &JournalMap, records: &[RecordRef]) -> SessionResult<Replay> {
    Replay::of(map, records).map_err(|source| SessionError::Record {
        name: name.to_owned(),
        source,
    })
}

/// Time between two looks at the limits of the folder while turns are saved.
const LIMITS_INTERVAL_MS: u64 = 60_000;

pub(super) struct SessionFiles {
    /// `None` where sessions are not saved.
    folder: Option<SessionFolder>,
    limits: FolderLimits,
    /// Sessions that limits removed, as in [`RemovalCause::ALL`].
    removed_counts: [u64; RemovalCause::ALL.len()],
    /// When the limits were last looked at.
    looked_ms: u64,
    /// Of sessions that are not in memory yet.
    opening: Vec<OpeningFile>,
}

struct OpeningFile {
    owner: Owner,
    name: String,
    state: OpeningState,
    /// A command waits for it.
    has_command: bool,
}

enum OpeningState {
    Running(JournalOpenTask<SessionResult<SessionFile>>),
    Ended(Box<SessionResult<SessionFile>>),
}

impl OpeningState {
    fn wait(self, name: &str) -> SessionResult<SessionFile> {
        match self {
            OpeningState::Running(task) => task.wait().unwrap_or_else(|| {
                Err(SessionError::Io {
                    doing: "reading",
                    path: name.into(),
                    source: std::io::Error::other("it panicked"),
                })
            }),
            OpeningState::Ended(file) => *file,
        }
    }
}

impl OpeningFile {
    fn name(&self) -> SessionName<'_> {
        self.owner.session(&self.name)
    }

    fn is_ready(&self) -> bool {
        match &self.state {
            OpeningState::Running(task) => task.has_ended(),
            OpeningState::Ended(_) => true,
        }
    }
}

impl SessionFiles {
    pub fn new(options: &SessionOptions) -> SessionFiles {
        SessionFiles {
            folder: SessionFolder::of(options),
            limits: options.limits,
            removed_counts: Default::default(),
            looked_ms: 0,
            opening: Vec::new(),
        }
    }

    pub fn folder(&self, owner: Owner) -> Option<SessionFolder> {
        let folder = self.folder.as_ref();
        folder.map(|folder| folder.of_owner(owner))
    }

    /// Removes what the limits ask for, of each owner by itself, and returns it.
    pub fn keep_limits(
        &mut self,
        now_ms: u64,
        is_open: impl Fn(SessionName<'_>) -> bool,
    ) -> SessionResult<Vec<(Owner, RemovedSession)>> {
        self.looked_ms = now_ms;
        let Some(folder) = &self.folder else {
            return Ok(Vec::new());
        };
        if self.limits == FolderLimits::default() {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        for (owner, folder) in folder.owners() {
            let is_open = |name: &str| is_open(owner.session(name));
            for gone in folder.keep(self.limits, now_ms, is_open)? {
                let of_cause = RemovalCause::ALL.iter().zip(&mut self.removed_counts);
                let of_cause = of_cause.filter(|(cause, _)| **cause == gone.cause);
                of_cause.for_each(|(_, count)| *count += 1);
                all.push((owner, gone));
            }
        }
        Ok(all)
    }

    /// Whether it is time to look at the limits again.
    pub fn is_look_due(&self, now_ms: u64) -> bool {
        let since = now_ms.saturating_sub(self.looked_ms);
        self.limits != FolderLimits::default() && since >= LIMITS_INTERVAL_MS
    }

    pub fn removed_counts(&self) -> [u64; RemovalCause::ALL.len()] {
        self.removed_counts
    }

    /// Begins to open the file of a session beside the caller, unless that has begun. Whether it is ready.
    pub fn open_beside(
        &mut self,
        name: SessionName<'_>,
        home: LogHome,
        options: &SessionOptions,
    ) -> bool {
        if let Some(at) = self.at(name) {
            return self.opening[at].is_ready();
        }
        let of = name.name.to_owned();
        let read = move |opened| SessionFile::read(&of, opened);
        let task = Journal::open_beside(home.path, journal_options(options, u64::MAX), read);
        let is_ready = task.has_ended();
        self.push(name, OpeningState::Running(task));
        is_ready
    }

    /// Keeps the file of a session open for a command, or no longer.
    pub fn set_has_command(&mut self, name: SessionName<'_>, has_command: bool) {
        if let Some(at) = self.at(name) {
            self.opening[at].has_command = has_command;
        }
    }

    /// Whether a file is being opened.
    pub fn is_opening(&self) -> bool {
        let is_running = |file: &OpeningFile| matches!(file.state, OpeningState::Running(_));
        self.opening.iter().any(is_running)
    }

    /// Closes the files that no command and, as the caller says, no request waits for any more.
    pub fn keep(&mut self, is_awaited: impl Fn(SessionName<'_>) -> bool) {
        let files = &mut self.opening;
        files.retain(|file| file.has_command || is_awaited(file.name()));
    }

    fn at(&self, name: SessionName<'_>) -> Option<usize> {
        self.opening.iter().position(|file| file.name() == name)
    }

    /// The file of this session, if it is being opened; waits until it is.
    pub fn take(&mut self, name: SessionName<'_>) -> Option<SessionResult<SessionFile>> {
        let file = self.opening.swap_remove(self.at(name)?);
        Some(file.state.wait(&file.name))
    }

    /// The file of this session, opened now if it is not being opened.
    pub fn open(
        &mut self,
        name: SessionName<'_>,
        home: &LogHome,
        options: &SessionOptions,
    ) -> SessionResult<SessionFile> {
        self.take(name).unwrap_or_else(|| {
            let opened = Journal::open(&home.path, journal_options(options, u64::MAX));
            SessionFile::read(name.name, opened)
        })
    }

    /// The file of this session, if it is ready.
    pub fn ready(&mut self, name: SessionName<'_>) -> Option<&SessionFile> {
        let at = self.at(name).filter(|&at| self.opening[at].is_ready())?;
        if matches!(self.opening[at].state, OpeningState::Running(_)) {
            let file = self.take(name)?;
            self.push(name, OpeningState::Ended(Box::new(file)));
        }
        self.ended(name)
    }

    pub fn ended(&self, name: SessionName<'_>) -> Option<&SessionFile> {
        match &self.opening[self.at(name)?].state {
            OpeningState::Ended(file) => file.as_ref().as_ref().ok(),
            OpeningState::Running(_) => None,
        }
    }

    /// There was no memory for its session.
    pub fn put_back(&mut self, name: SessionName<'_>, file: SessionFile) {
        self.push(name, OpeningState::Ended(Box::new(Ok(file))));
    }

    fn push(&mut self, SessionName { owner, name }: SessionName<'_>, state: OpeningState) {
        self.opening.push(OpeningFile {
            owner,
            name: name.to_owned(),
            state,
            has_command: false,
        });
    }
}
