//! Shared prefix files: the keys and values of an opening, computed once for all sessions that begin with it.
//!
//! The keys and values of an opening depend on its tokens, the model, and how both are computed and coded, and on nothing
//! else. The first session that computes them writes `DIR/<hash>.prefix`; later sessions, in this process or another, map
//! the file and begin where the opening ends. Full blocks are read where they are mapped and are in memory once; the
//! partly filled block and the exact first tokens are copied, since the next token changes them.
//!
//! ```text
//! identity    the text that the hash is of, without the tokens
//! TOKENS      u32 each
//! OUTLINE     Store::outline
//! INDEX       Laid::index
//! POOL        one for each pool: its full blocks, back to back, from a multiple of 64 on
//! TAIL        the column that is not full, if there is one
//! ```
//!
//! The file is a [`Journal`] that is never appended to: it is complete under its name, or absent. A damaged file, or one
//! with other tokens, is not used and is replaced; without a writable folder nothing is shared. A problem is reported and
//! is never an error of the session: an opening can always be computed, with the same bits.
//!
//! What is not promised: without a key, a process that can write to the folder can plant other keys and values for the
//! right tokens under a valid checksum. The seal of [`SessionOptions::key`] prevents that; the tenant in the hash
//! prevents one tenant from timing what another opens with.

use super::error::{SessionResult, SharedError};
use super::identity::{Identity, shared_lines};
use super::options::{SessionOptions, journal_options};
use super::owner::Owner;
use haversack_cache::{Image, MappedImage};
use haversack_engine::runtime::{Runtime, SequenceId, StepError};
use haversack_memory::journal::{self, Journal, JournalMap, RecordRef, WeakJournalMap};
use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

const TOKENS: u32 = 1;
const OUTLINE: u32 = 2;
const INDEX: u32 = 3;
const POOL: u32 = 4;
const TAIL: u32 = 5;

const ENDING: &str = "prefix";

/// Another process is writing the same file: how often to look for it, and how long to wait in between. A file is written
/// in a few milliseconds; without it the session uses what it has computed.
const LOOKS: usize = 20;
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// How openings were obtained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixStats {
    /// Computed from their tokens.
    pub computed: u64,
    /// Found in memory: another session of this process had the same.
    pub shared: u64,
    /// Found on disk, verified and mapped.
    pub mapped: u64,
    /// Files written.
    pub written: u64,
    /// The last file that was not used, or not written.
    pub problem: Option<PrefixProblem>,
}

/// A prefix file that was not used, or not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixProblem {
    pub path: PathBuf,
    pub is_written: bool,
    pub error: SharedError<PrefixError>,
}

impl fmt::Display for PrefixProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_written { "used" } else { "written" };
        write!(f, "{} is not {what}: {}", self.path.display(), self.error)
    }
}

/// Files in use, and statistics.
pub(super) struct Prefixes {
    /// All that the bytes of an opening depend on except its tokens: the identity of the files.
    identity: Identity,
    more: String,
    known: Vec<MappedFile>,
    stats: PrefixStats,
}

/// A file that some sequence still reads: verified once.
struct MappedFile {
    hash: blake3::Hash,
    map: WeakJournalMap,
    records: Vec<RecordRef>,
}

/// A file that is verified and mapped.
pub(super) struct VerifiedFile {
    map: JournalMap,
    records: Vec<RecordRef>,
}

/// Why a prefix file cannot be used or written.
#[derive(Debug, thiserror::Error)]
pub enum PrefixError {
    #[error(transparent)]
    File(#[from] journal::JournalError),
    #[error("it belongs to another model, format or tenant")]
    Identity,
    #[error("its records are not those of an opening")]
    Records,
    #[error("its tokens are others")]
    Tokens,
    #[error("its position is not at the end of its tokens")]
    Position,
    #[error(transparent)]
    Step(#[from] StepError),
}

impl PrefixError {
    /// The file does not exist yet.
    fn is_absence(&self) -> bool {
        let PrefixError::File(journal::JournalError::Io { source, .. }) = self else {
            return false;
        };
        source.kind() == std::io::ErrorKind::NotFound
    }
}

impl From<haversack_cache::CacheError> for PrefixError {
    fn from(error: haversack_cache::CacheError) -> PrefixError {
        PrefixError::Step(error.into())
    }
}

impl Prefixes {
    /// For sessions of one runtime.
    pub fn new(runtime: &Runtime, identity: &Identity, options: &SessionOptions) -> Prefixes {
        let dir = options.prefix_dir.as_deref();
        Prefixes {
            identity: identity.clone(),
            more: dir.map_or(String::new(), |_| more_identity(runtime)),
            known: Vec::new(),
            stats: PrefixStats::default(),
        }
    }

    pub fn stats(&self) -> &PrefixStats {
        &self.stats
    }

    /// A sequence that has read `tokens` and nothing else, if they were computed before for this owner.
    pub fn find(
        &mut self,
        runtime: &mut Runtime,
        options: &SessionOptions,
        owner: Owner,
        tokens: &[u32],
    ) -> Option<SequenceId> {
        let file = self.file(options, owner, tokens)?;
        self.open_file(runtime, &file)
    }

    /// Shares what `computed` has read, which is `tokens` and nothing else; returns the sequence to go on with.
    pub fn share(
        &mut self,
        runtime: &mut Runtime,
        options: &SessionOptions,
        owner: Owner,
        tokens: &[u32],
        computed: SequenceId,
    ) -> SessionResult<SequenceId> {
        let Some(file) = self.file(options, owner, tokens) else {
            return Ok(computed);
        };
        self.stats.computed += 1;
        let dir = file.path.parent().unwrap_or(&file.path);
        match file.write(runtime, computed, dir) {
            Ok(()) => {
                self.stats.written += 1;
                keep_quota(dir, &file.path, options.prefix_quota_bytes);
            }
            Err(PrefixError::File(journal::JournalError::Busy)) => wait_for(&file.path),
            Err(error) => {
                self.note(&file.path, false, error);
                return Ok(computed);
            }
        }
        // From here on like every later session: the blocks just computed are in memory once, in the file's pages.
        let Ok(found) = file.open() else {
            return Ok(computed);
        };
        match self.mount(runtime, &file, &found) {
            Ok(mapped) => {
                runtime.close(computed)?;
                Ok(mapped)
            }
            Err(error) => {
                self.note(&file.path, true, error);
                Ok(computed)
            }
        }
    }

    /// The file of an opening; `None` where nothing is shared.
    fn file<'a>(
        &self,
        options: &SessionOptions,
        owner: Owner,
        tokens: &'a [u32],
    ) -> Option<PrefixFile<'a>> {
        let dir = options
            .prefix_dir
            .as_deref()
            .filter(|_| !tokens.is_empty())?;
        let identity = file_identity(&self.identity.of_owner(owner), &self.more);
        let hash = hash(&identity, options.key.as_ref(), tokens);
        Some(PrefixFile {
            path: dir.join(format!("{}.{ENDING}", hash.to_hex())),
            hash,
            identity,
            options: journal_options(options, options.prefix_quota_bytes),
            tokens,
        })
    }

    /// A sequence over the file, if it exists and is valid.
    fn open_file(&mut self, runtime: &mut Runtime, file: &PrefixFile<'_>) -> Option<SequenceId> {
        let known = self.known(file);
        let is_known = known.is_some();
        let mounted = match known.map_or_else(|| file.open(), Ok) {
            Ok(found) => self.mount(runtime, file, &found),
            Err(error) if error.is_absence() => return None,
            Err(error) => Err(error),
        };
        match mounted {
            Ok(sequence) => {
                let count = match is_known {
                    true => &mut self.stats.shared,
                    false => &mut self.stats.mapped,
                };
                *count += 1;
                Some(sequence)
            }
            Err(error) => {
                self.known.retain(|known| known.hash != file.hash);
                self.note(&file.path, true, error);
                None
            }
        }
    }

    /// The file of an opening that a session was saved with, if it is there and valid.
    pub fn verified(
        &mut self,
        options: &SessionOptions,
        owner: Owner,
        tokens: &[u32],
    ) -> Option<VerifiedFile> {
        let file = self.file(options, owner, tokens)?;
        match self.known(&file).map_or_else(|| file.open(), Ok) {
            Ok(found) => {
                self.remember(&file, &found);
                Some(found)
            }
            Err(error) => {
                if !error.is_absence() {
                    self.note(&file.path, true, error);
                }
                None
            }
        }
    }

    /// A file that some sequence reads.
    fn known(&mut self, file: &PrefixFile<'_>) -> Option<VerifiedFile> {
        self.known.retain(|known| known.map.upgrade().is_some());
        let known = self.known.iter().find(|known| known.hash == file.hash)?;
        let records = known.records.clone();
        let map = known.map.upgrade()?;
        Some(VerifiedFile { map, records })
    }

    fn remember(&mut self, file: &PrefixFile<'_>, found: &VerifiedFile) {
        if !self.known.iter().any(|known| known.hash == file.hash) {
            self.known.push(MappedFile {
                hash: file.hash,
                map: found.map.downgrade(),
                records: found.records.clone(),
            });
        }
    }

    /// Opens a sequence over a file and remembers the file for the next session.
    fn mount(
        &mut self,
        runtime: &mut Runtime,
        file: &PrefixFile<'_>,
        found: &VerifiedFile,
    ) -> Result<SequenceId, PrefixError> {
        let sequence = found.restore(runtime, file.tokens)?;
        self.remember(file, found);
        Ok(sequence)
    }

    fn note(&mut self, path: &Path, is_written: bool, error: PrefixError) {
        let problem = PrefixProblem {
            path: path.to_owned(),
            is_written,
            error: error.into(),
        };
        log::warn!("{problem}");
        self.stats.problem = Some(problem);
    }
}

/// The file of one opening, which may not exist.
struct PrefixFile<'a> {
    path: PathBuf,
    hash: blake3::Hash,
    identity: String,
    options: journal::JournalOptions,
    tokens: &'a [u32],
}

impl PrefixFile<'_> {
    /// Verifies and maps it; its tokens are not compared yet.
    fn open(&self) -> Result<VerifiedFile, PrefixError> {
        let view = Journal::view(&self.path, &self.options)?;
        if view.identity != self.identity.as_bytes() {
            return Err(PrefixError::Identity);
        }
        Ok(VerifiedFile {
            map: view.map,
            records: view.records,
        })
    }

    /// Writes the rows of a sequence that has read the tokens and nothing else.
    fn write(&self, runtime: &Runtime, id: SequenceId, dir: &Path) -> Result<(), PrefixError> {
        let store = runtime.store();
        let mut outline = Vec::new();
        store.outline(id, &mut outline)?;
        let laid = store.mapped_layout(id)?;
        std::fs::create_dir_all(dir).map_err(|source| journal::JournalError::Io {
            doing: "making its folder",
            source,
        })?;
        let identity = self.identity.as_bytes();
        Journal::publish(&self.path, identity, self.options.clone(), |to| {
            to.append(TOKENS, &[&bytes_of(self.tokens)])?;
            to.append(OUTLINE, &[&outline])?;
            to.append(INDEX, &[&laid.index])?;
            for blocks in &laid.regions {
                to.append(POOL, blocks)?;
            }
            for column in &laid.tail {
                to.append(TAIL, &[column])?;
            }
            Ok(())
        })
    }
}

impl VerifiedFile {
    /// A sequence over the file, if it has these tokens.
    fn restore(&self, runtime: &mut Runtime, tokens: &[u32]) -> Result<SequenceId, PrefixError> {
        let sequence = self.with_image(tokens, |image| runtime.restore_mapped(image))??;
        if runtime.position(sequence)? != tokens.len() as u64 {
            runtime.close(sequence)?;
            return Err(PrefixError::Position);
        }
        Ok(sequence)
    }

    /// A saved sequence that begins with these tokens: its blocks of the opening stay in the file.
    pub fn restore_session(
        &self,
        runtime: &mut Runtime,
        tokens: &[u32],
        image: Image<'_>,
    ) -> Result<SequenceId, StepError> {
        match self.with_image(tokens, |shared| runtime.restore_shared(image, shared)) {
            Ok(restored) => restored,
            Err(error) => {
                log::warn!("a session keeps its own copy of its opening: {error}");
                runtime.restore(image)
            }
        }
    }

    /// The image that the file holds, if it is of these tokens.
    fn with_image<T>(
        &self,
        tokens: &[u32],
        go: impl FnOnce(MappedImage<'_>) -> T,
    ) -> Result<T, PrefixError> {
        let [told, outline, index, rest @ ..] = &self.records[..] else {
            return Err(PrefixError::Records);
        };
        let pools = rest.iter().take_while(|r| r.kind == POOL).count();
        let (pools, tail) = rest.split_at(pools);
        let kinds = [told.kind, outline.kind, index.kind];
        if kinds != [TOKENS, OUTLINE, INDEX] || tail.iter().any(|r| r.kind != TAIL) {
            return Err(PrefixError::Records);
        }
        if self.map.payload(*told)? != bytes_of(tokens) {
            return Err(PrefixError::Tokens);
        }
        let regions = pools.iter().map(|r| self.map.region(*r));
        let regions = regions.collect::<Result<Vec<_>, _>>()?;
        let tail = tail.iter().map(|r| self.map.payload(*r));
        let tail = tail.collect::<Result<Vec<_>, _>>()?;
        Ok(go(MappedImage {
            outline: self.map.payload(*outline)?,
            index: self.map.payload(*index)?,
            regions: &regions,
            tail: &tail,
        }))
    }
}

/// All that the bytes depend on except the tokens, and the tenant: lines of a name and a value.
fn file_identity(identity: &Identity, more: &str) -> String {
    let mut text = String::from("haversack prefix 1\n");
    for (name, value) in identity.fields() {
        text.push_str(&format!("{name} {}\n", value.escape_debug()));
    }
    text.push_str(more);
    text
}

/// The lines that session files do not have.
fn more_identity(runtime: &Runtime) -> String {
    let model = runtime.model();
    let store = runtime.store();
    let mut carries = blake3::Hasher::new_derive_key("haversack prefix carries v1");
    for layer in 0..store.layers().len() {
        // Debug prints floats so that different numbers give different text. The type was called `Carry` when the format
        // was fixed: files of earlier builds hash that name.
        let text = format!("{:?};", store.error_feedback(layer));
        carries.update(text.replacen("ErrorFeedback", "Carry", 1).as_bytes());
    }
    let mut text = String::new();
    let rope = format!("{:?}", model.config().ropes);
    let rope = blake3::hash(rope.as_bytes()).to_hex();
    let carries = carries.finalize().to_hex();
    text.push_str(&format!("fingerprint {}\n", model.fingerprint().to_hex()));
    text.push_str(&format!("rope {}\n", &rope[..16]));
    text.push_str(&format!("carries {}\n", &carries[..16]));
    text.push_str(&format!("activations {:?}\n", runtime.activations()));
    text.push_str(&format!(
        "positions {:?}\n",
        runtime.retention().positions.in_store()
    ));
    text
}

/// The file's name. It depends on the key: a process that cannot open a file must not replace it.
fn hash(identity: &str, key: Option<&[u8; 32]>, tokens: &[u32]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_derive_key("haversack prefix v1");
    let sealed = key.map(|key| blake3::keyed_hash(key, b"haversack prefix key v1"));
    let sealed = sealed.map_or([0; 32], |hash| *hash.as_bytes());
    for part in [identity.as_bytes(), &sealed, &bytes_of(tokens)] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize()
}

fn bytes_of(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|t| t.to_le_bytes()).collect()
}

/// The prefix files of a folder, each with what the sessions that begin with it open with: lines of their identities, and
/// tokens. Files that cannot be read are not listed.
pub(super) fn files(dir: &Path, key: Option<[u8; 32]>) -> Vec<(PathBuf, (String, Vec<u32>))> {
    let options = journal::JournalOptions {
        key,
        ..journal::JournalOptions::default()
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|ending| ending != ENDING) {
            continue;
        }
        let mut tokens = Vec::new();
        let salvaged = Journal::salvage(&path, &options, |kind, bytes| {
            if kind == TOKENS {
                let ids = bytes.as_chunks::<4>().0.iter();
                tokens = ids.map(|id| u32::from_le_bytes(*id)).collect();
            }
            ControlFlow::Break(())
        });
        let shared = salvaged.ok().and_then(|s| shared_lines(&s.identity));
        found.extend(shared.map(|shared| (path, (shared, tokens))));
    }
    found
}

/// Removes the oldest files other than `kept` until all are within the quota. Sequences that have mapped a removed file
/// keep it; a file that cannot be removed stays.
fn keep_quota(dir: &Path, kept: &Path, bytes_max: u64) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    let mut files = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let is_ours = path.extension().is_some_and(|ending| ending == ENDING);
        let Some(metadata) = entry.metadata().ok().filter(|m| is_ours && m.is_file()) else {
            continue;
        };
        files.push((metadata.modified().ok(), path, metadata.len()));
    }
    files.sort();
    let mut bytes: u64 = files.iter().map(|(.., bytes)| bytes).sum();
    for (_, path, its) in files.iter().filter(|(_, path, _)| path != kept) {
        if bytes <= bytes_max {
            return;
        }
        if std::fs::remove_file(path).is_ok() {
            bytes -= its;
        }
    }
}

/// Waits until the file exists, for a moment at most.
fn wait_for(path: &Path) {
    for _ in 0..LOOKS {
        if path.exists() {
            return;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}
