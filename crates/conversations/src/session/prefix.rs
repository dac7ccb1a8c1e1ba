//! What sessions open with, in one file for all who open with the same: found by a hash, believed after a look.
//!
//! The keys and values of an opening depend on its tokens, the model, and how both are computed and coded, and on nothing
//! else. So whoever computes them first leaves them in `DIR/<hash>.prefix`, and everybody after that, in this process or
//! another, maps the file and begins where the opening ends. Full blocks are read where they are mapped and are in
//! memory once; the partly filled one and the exact first tokens are copied, since the next token changes them.
//!
//! ```text
//! identity    what the hash is of, in words, all but the tokens
//! TOKENS      u32 each
//! OUTLINE     Store::outline
//! INDEX       Laid::index
//! POOL        one for each pool: its full blocks, back to back, from a multiple of 64 on
//! TAIL        the column that is not full, if there is one
//! ```
//!
//! It is a [`Journal`] that nobody appends to: complete under its name or not there. A file that is damaged, or whose
//! tokens are others, is not used and is replaced; a folder that takes no file is none. None of it is ever an error of
//! the session: an opening can always be computed, and is then the same, bit for bit.
//!
//! What is not promised: without a key, whoever can write to the folder can leave other keys and values for the right
//! tokens under a checksum that holds. The seal of [`SessionOptions::key`] is against that; the tenant in the hash is
//! against finding out by the clock what another tenant opens with.

use super::log::Identity;
use super::{SessionError, SessionOptions, feed};
use haversack_cache::MappedImage;
use haversack_engine::runtime::{Runtime, SequenceId, StepError};
use haversack_memory::journal::{self, Journal, Map, RecordRef, WeakMap};
use haversack_memory::zoo::{Bug, planted};
use std::path::{Path, PathBuf};
use std::time::Duration;

const TOKENS: u32 = 1;
const OUTLINE: u32 = 2;
const INDEX: u32 = 3;
const POOL: u32 = 4;
const TAIL: u32 = 5;

const ENDING: &str = "prefix";

/// Another process is writing the same file: how often it is looked for, and how long between. A file is written in
/// a few milliseconds; whoever finds none goes on with what it has computed.
const LOOKS: usize = 20;
const BETWEEN: Duration = Duration::from_millis(5);

/// How openings were come by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixStats {
    /// Computed, token by token.
    pub computed: u64,
    /// Found in memory: another session of this process had the same.
    pub shared: u64,
    /// Found on disk, verified and mapped.
    pub mapped: u64,
    /// Files written.
    pub written: u64,
    /// Why the last file was not believed, or not written.
    pub problem: Option<String>,
}

/// Files in use and what came of them.
pub(super) struct Prefixes {
    /// All that the bytes of an opening depend on beside its tokens.
    words: String,
    known: Vec<Known>,
    stats: PrefixStats,
}

/// A file that some sequence still reads: verified once.
struct Known {
    hash: blake3::Hash,
    map: WeakMap,
    records: Vec<RecordRef>,
}

/// A file that can be used now.
struct Found {
    map: Map,
    records: Vec<RecordRef>,
}

/// Why a file is no use.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    File(#[from] journal::Error),
    #[error("{0}")]
    Other(&'static str),
    #[error(transparent)]
    Step(#[from] StepError),
}

impl Unusable {
    /// Nobody has written it yet.
    fn is_absence(&self) -> bool {
        let Unusable::File(journal::Error::Io { source, .. }) = self else {
            return false;
        };
        source.kind() == std::io::ErrorKind::NotFound
    }
}

impl From<haversack_cache::CacheError> for Unusable {
    fn from(error: haversack_cache::CacheError) -> Unusable {
        Unusable::Step(error.into())
    }
}

impl Prefixes {
    /// For sessions of one runtime.
    pub fn new(runtime: &Runtime, identity: &Identity, options: &SessionOptions) -> Prefixes {
        let dir = options.prefix_dir.as_deref();
        Prefixes {
            words: dir.map_or(String::new(), |_| words(runtime, identity)),
            known: Vec::new(),
            stats: PrefixStats::default(),
        }
    }

    pub fn stats(&self) -> &PrefixStats {
        &self.stats
    }

    /// A sequence that has read `tokens` and nothing else.
    pub fn begin(
        &mut self,
        runtime: &mut Runtime,
        options: &SessionOptions,
        tokens: &[u32],
    ) -> Result<SequenceId, SessionError> {
        let Some(dir) = options.prefix_dir.as_deref().filter(|_| !tokens.is_empty()) else {
            return compute(runtime, tokens);
        };
        let words = self.words.clone();
        let hash = hash(&words, options.key.as_ref(), tokens);
        let file = File {
            path: dir.join(format!("{}.{ENDING}", hash.to_hex())),
            hash,
            words,
            options: journal::Options {
                quota_bytes: Some(options.prefix_quota_bytes),
                key: options.key,
                faults: options.faults.clone(),
            },
            tokens,
        };
        if let Some(sequence) = self.find(runtime, &file) {
            return Ok(sequence);
        }
        let computed = match planted(Bug::SharedBeforeComputed) {
            true => compute(runtime, &[&tokens[..tokens.len() - 1], &[0][..]].concat())?,
            false => compute(runtime, tokens)?,
        };
        self.stats.computed += 1;
        match file.write(runtime, computed, dir) {
            Ok(()) => {
                self.stats.written += 1;
                keep_quota(dir, &file.path, options.prefix_quota_bytes);
            }
            Err(Unusable::File(journal::Error::Busy)) => wait_for(&file.path),
            Err(error) => {
                self.note(&file.path, "is not written", &error);
                return Ok(computed);
            }
        }
        // From here on as all who come later: the blocks just computed are in memory once, in the file's pages.
        let Ok(found) = file.open() else {
            return Ok(computed);
        };
        match self.mount(runtime, &file, &found) {
            Ok(mapped) => {
                runtime.close(computed)?;
                Ok(mapped)
            }
            Err(error) => {
                self.note(&file.path, "is not used", &error);
                Ok(computed)
            }
        }
    }

    /// The sequence of a file that is there and right.
    fn find(&mut self, runtime: &mut Runtime, file: &File<'_>) -> Option<SequenceId> {
        self.known.retain(|known| known.map.upgrade().is_some());
        let is_it = |known: &&Known| known.hash == file.hash || planted(Bug::StaleHash);
        let known = self.known.iter().find(is_it);
        let known = known.and_then(|known| {
            let records = known.records.clone();
            let map = known.map.upgrade()?;
            Some(Found { map, records })
        });
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
                self.note(&file.path, "is not used", &error);
                None
            }
        }
    }

    /// Opens a sequence over a file and remembers the file for the next.
    fn mount(
        &mut self,
        runtime: &mut Runtime,
        file: &File<'_>,
        found: &Found,
    ) -> Result<SequenceId, Unusable> {
        let sequence = found.restore(runtime, file.tokens)?;
        if !self.known.iter().any(|known| known.hash == file.hash) {
            self.known.push(Known {
                hash: file.hash,
                map: found.map.downgrade(),
                records: found.records.clone(),
            });
        }
        Ok(sequence)
    }

    fn note(&mut self, path: &Path, what: &str, error: &Unusable) {
        let problem = format!("{} {what}: {error}", path.display());
        log::warn!("{problem}");
        self.stats.problem = Some(problem);
    }
}

/// One opening's file, there or not.
struct File<'a> {
    path: PathBuf,
    hash: blake3::Hash,
    words: String,
    options: journal::Options,
    tokens: &'a [u32],
}

impl File<'_> {
    /// Verifies and maps it. Its tokens have not been looked at.
    fn open(&self) -> Result<Found, Unusable> {
        let view = Journal::view(&self.path, &self.options)?;
        if view.identity != self.words.as_bytes() {
            return Err(Unusable::Other("it belongs to somebody else"));
        }
        Ok(Found {
            map: view.map,
            records: view.records,
        })
    }

    /// Leaves what a sequence has read for others. It has read the tokens and nothing else.
    fn write(&self, runtime: &Runtime, id: SequenceId, dir: &Path) -> Result<(), Unusable> {
        let store = runtime.store();
        let mut outline = Vec::new();
        store.outline(id, &mut outline)?;
        let laid = store.lay_out(id)?;
        std::fs::create_dir_all(dir).map_err(|source| journal::Error::Io {
            doing: "making its folder",
            source,
        })?;
        let identity = self.words.as_bytes();
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

impl Found {
    /// A sequence over the file, if it is of these tokens.
    fn restore(&self, runtime: &mut Runtime, tokens: &[u32]) -> Result<SequenceId, Unusable> {
        let odd = Unusable::Other("its records are not those of an opening");
        let [told, outline, index, rest @ ..] = &self.records[..] else {
            return Err(odd);
        };
        let pools = rest.iter().take_while(|r| r.kind == POOL).count();
        let (pools, tail) = rest.split_at(pools);
        let kinds = [told.kind, outline.kind, index.kind];
        if kinds != [TOKENS, OUTLINE, INDEX] || tail.iter().any(|r| r.kind != TAIL) {
            return Err(odd);
        }
        if self.map.payload(*told)? != bytes_of(tokens) && !planted(Bug::StaleHash) {
            return Err(Unusable::Other("its tokens are others"));
        }
        let regions = pools.iter().map(|r| self.map.region(*r));
        let regions = regions.collect::<Result<Vec<_>, _>>()?;
        let tail = tail.iter().map(|r| self.map.payload(*r));
        let tail = tail.collect::<Result<Vec<_>, _>>()?;
        let sequence = runtime.restore_mapped(MappedImage {
            outline: self.map.payload(*outline)?,
            index: self.map.payload(*index)?,
            regions: &regions,
            tail: &tail,
        })?;
        if runtime.position(sequence)? != tokens.len() as u64 {
            runtime.close(sequence)?;
            return Err(Unusable::Other("it stands elsewhere than its tokens end"));
        }
        Ok(sequence)
    }
}

/// Reads tokens into a sequence of their own.
fn compute(runtime: &mut Runtime, tokens: &[u32]) -> Result<SequenceId, SessionError> {
    let sequence = runtime.open()?;
    if tokens.is_empty() {
        return Ok(sequence);
    }
    match feed(runtime, sequence, tokens) {
        Ok(()) => Ok(sequence),
        Err(error) => {
            runtime.close(sequence)?;
            Err(error)
        }
    }
}

/// All that the bytes depend on beside the tokens, and whose they are: lines of a name and a value.
fn words(runtime: &Runtime, identity: &Identity) -> String {
    let model = runtime.model();
    let store = runtime.store();
    let mut carries = blake3::Hasher::new_derive_key("haversack prefix carries v1");
    for layer in 0..store.layers().len() {
        // Numbers are written so that they can be read again: other numbers, other text.
        carries.update(format!("{:?};", store.carry(layer)).as_bytes());
    }
    let mut words = String::from("haversack prefix 1\n");
    if planted(Bug::KeyOmitsSalt) {
        return words;
    }
    for (name, value) in identity.fields() {
        words.push_str(&format!("{name} {}\n", value.escape_debug()));
    }
    let rope = format!("{:?}", model.config().ropes);
    let rope = blake3::hash(rope.as_bytes()).to_hex();
    let carries = carries.finalize().to_hex();
    words.push_str(&format!("fingerprint {}\n", model.fingerprint().to_hex()));
    words.push_str(&format!("rope {}\n", &rope[..16]));
    words.push_str(&format!("carries {}\n", &carries[..16]));
    words.push_str(&format!("activations {:?}\n", runtime.activations()));
    words.push_str(&format!(
        "positions {:?}\n",
        runtime.retention().positions.in_store()
    ));
    words
}

/// The file's name. With a key it is another one: who cannot open a file should not replace it.
fn hash(words: &str, key: Option<&[u8; 32]>, tokens: &[u32]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_derive_key("haversack prefix v1");
    let sealed = key.map(|key| blake3::keyed_hash(key, b"haversack prefix key v1"));
    let sealed = sealed.map_or([0; 32], |hash| *hash.as_bytes());
    for part in [words.as_bytes(), &sealed, &bytes_of(tokens)] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize()
}

fn bytes_of(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|t| t.to_le_bytes()).collect()
}

/// Removes what was written longest ago until all files but `kept` are within the quota together with it. Whoever has
/// mapped one keeps it; what cannot be removed stays.
fn keep_quota(dir: &Path, kept: &Path, most: u64) {
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
        if bytes <= most {
            return;
        }
        if std::fs::remove_file(path).is_ok() {
            bytes -= its;
        }
    }
}

/// Until the file is there, or for a moment.
fn wait_for(path: &Path) {
    for _ in 0..LOOKS {
        if path.exists() {
            return;
        }
        std::thread::sleep(BETWEEN);
    }
}
