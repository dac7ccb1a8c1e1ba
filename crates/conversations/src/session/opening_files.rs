//! Files of sessions that requests wait for, verified and read beside the engine: a long file takes as long as reading it
//! does.

use super::error::{SessionError, SessionResult};
use super::limits::SessionSettings;
use super::log::LogHome;
use super::options::{SessionOptions, journal_options};
use super::owner::{Owner, SessionName};
use super::replay::Replay;
use super::sessions::Sessions;
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

fn replay(name: &str, map: &JournalMap, records: &[RecordRef]) -> SessionResult<Replay> {
    Replay::of(map, records).map_err(|source| SessionError::Record {
        name: name.to_owned(),
        source,
    })
}

/// The files of sessions that are not in memory yet.
#[derive(Default)]
pub(super) struct OpeningFiles(Vec<OpeningFile>);

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

impl OpeningFiles {
    fn at(&self, name: SessionName<'_>) -> Option<usize> {
        self.0.iter().position(|file| file.name() == name)
    }

    /// The file of this session, if it is being opened; waits until it is.
    pub fn take(&mut self, name: SessionName<'_>) -> Option<SessionResult<SessionFile>> {
        let file = self.0.swap_remove(self.at(name)?);
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
    fn ready(&mut self, name: SessionName<'_>) -> Option<&SessionFile> {
        let at = self.at(name).filter(|&at| self.0[at].is_ready())?;
        if matches!(self.0[at].state, OpeningState::Running(_)) {
            let file = self.take(name)?;
            self.push(name, OpeningState::Ended(Box::new(file)));
        }
        self.ended(name)
    }

    fn ended(&self, name: SessionName<'_>) -> Option<&SessionFile> {
        match &self.0[self.at(name)?].state {
            OpeningState::Ended(file) => file.as_ref().as_ref().ok(),
            OpeningState::Running(_) => None,
        }
    }

    /// There was no memory for its session.
    pub fn put_back(&mut self, name: SessionName<'_>, file: SessionFile) {
        self.push(name, OpeningState::Ended(Box::new(Ok(file))));
    }

    fn push(&mut self, SessionName { owner, name }: SessionName<'_>, state: OpeningState) {
        self.0.push(OpeningFile {
            owner,
            name: name.to_owned(),
            state,
            has_command: false,
        });
    }
}

impl Sessions {
    /// Whether a session was begun with this persistent text. One that is not open is looked up in its file.
    pub fn began_with<'a>(
        &self,
        name: impl Into<SessionName<'a>>,
        text: &str,
    ) -> SessionResult<bool> {
        let full_name @ SessionName { name, .. } = name.into();
        if let Some(id) = self.opened(full_name) {
            return Ok(self.session(id)?.transcript.began_with(text));
        }
        if let Some(file) = self.opening.ended(full_name) {
            return Ok(file.replay.transcript.began_with(text));
        }
        let home = self.home(full_name);
        let home = home.ok_or_else(|| SessionError::NowhereToLook { name: name.into() })?;
        let view = Journal::view(&home.path, &journal_options(self.options(), u64::MAX));
        let view = view.map_err(|source| SessionError::File {
            name: name.into(),
            source,
        })?;
        let replay = replay(name, &view.map, &view.records)?;
        Ok(replay.transcript.began_with(text))
    }

    /// Whether a session is in memory or its file is ready. If it is neither, its file begins to be opened beside the caller.
    pub(crate) fn is_file_ready(&mut self, name: SessionName<'_>) -> bool {
        if self.opened(name).is_some() || !self.exists(name) {
            return true;
        }
        if let Some(at) = self.opening.at(name) {
            return self.opening.0[at].is_ready();
        }
        let Some(home) = self.home(name) else {
            return true;
        };
        let of = name.name.to_owned();
        let read = move |opened| SessionFile::read(&of, opened);
        let options = journal_options(self.options(), u64::MAX);
        let task = Journal::open_beside(home.path, options, read);
        let is_ready = task.has_ended();
        self.opening.push(name, OpeningState::Running(task));
        is_ready
    }

    /// The same for a command, which is executed at once if it is ready and keeps the file open until then.
    pub(crate) fn is_file_ready_for_command(&mut self, name: SessionName<'_>) -> bool {
        let is_ready = self.is_file_ready(name);
        if let Some(at) = self.opening.at(name) {
            self.opening.0[at].has_command = !is_ready;
        }
        is_ready
    }

    /// Position and settings of a session whose file is ready and which is not in memory.
    pub(super) fn position_in_file(
        &mut self,
        name: SessionName<'_>,
    ) -> Option<(u64, SessionSettings)> {
        let replay = &self.opening.ready(name)?.replay;
        let limits = replay.transcript.limits.as_ref();
        let own = limits.map(|limits| limits.own).unwrap_or_default();
        Some((replay.state.position, own))
    }

    /// Whether a file is being opened.
    pub(crate) fn is_opening_file(&self) -> bool {
        let is_running = |file: &OpeningFile| matches!(file.state, OpeningState::Running(_));
        self.opening.0.iter().any(is_running)
    }

    /// Closes the files that no command and, as the caller says, no request waits for any more.
    pub(crate) fn keep_opening(&mut self, is_awaited: impl Fn(SessionName<'_>) -> bool) {
        let files = &mut self.opening.0;
        files.retain(|file| file.has_command || is_awaited(file.name()));
    }
}
