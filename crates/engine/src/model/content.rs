//! Whether the bytes of a model are still those that were there when it was first used.
//!
//! The fingerprint samples a few pages of each tensor: enough to tell models apart, too little to find damage. Beside it
//! stands the *content*, a hash of every byte. It is computed when a model file is first used and again whenever the
//! file's stamp (device, inode, size, times) has changed; an unchanged stamp costs one `stat`. What was found is kept next to
//! the packed copies, a line for each model file:
//!
//! ```text
//! DIR/known-models   fields with a tab between them
//!   32 hex   hash of the model's path
//!   64 hex   content
//!   samples  16 bits for each matrix, of what the fingerprint samples of it, in hex
//!   packed   stamp of the packed copy when it was last verified, or nothing
//!   model    stamps of the parts, a space between them
//!   16 hex   check: BLAKE3 of the line up to here
//! ```
//!
//! A file that was changed in place is refused until `verify --accept` says that this was meant. A new model is not: a file
//! that another one took the place of (a new inode), or one whose matrices nearly all differ where they are sampled, as
//! those of another training or quantisation do. A line that is damaged counts as missing. A packed model has checksums of
//! its own: its line says with which stamp they were last compared.

use super::error::{LoadError, LoadResult};
use super::fingerprint;
use haversack_gguf::{Gguf, Tensor};
use haversack_kernels::threads::{ThreadPool, chunks_mut};
use haversack_memory::file::{FileMap, UnfinishedFile};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Bytes hashed by one thread at a time.
const CHUNK_BYTES: usize = 1 << 20;
const FILE: &str = "known-models";
/// Models in it at most, those used last; and its bytes.
const LINES_MAX: usize = 256;
const FILE_BYTES_MAX: u64 = 4 << 20;

/// A hash of every byte of a model's files.
pub fn content(gguf: &Gguf, pool: &ThreadPool) -> blake3::Hash {
    let mut all = blake3::Hasher::new_derive_key("haversack content v1");
    for map in gguf.maps() {
        all.update(&(map.len() as u64).to_le_bytes());
        for hash in chunk_hashes(map, pool) {
            all.update(&hash);
        }
    }
    all.finalize()
}

fn chunk_hashes(map: &FileMap, pool: &ThreadPool) -> Vec<[u8; 32]> {
    let chunks: Vec<&[u8]> = map.as_slice().chunks(CHUNK_BYTES).collect();
    let mut hashes = vec![[0; 32]; chunks.len()];
    chunks_mut(pool, &mut hashes, 1, &|i, out: &mut [[u8; 32]]| {
        out[0] = *blake3::hash(chunks[i]).as_bytes();
    });
    hashes
}

/// What changes with every write to a file, and with its replacement.
pub(super) fn stamp(path: &Path) -> io::Result<String> {
    let found = fs::metadata(path)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        Ok(format!(
            "{}:{}:{}:{}.{:09}:{}.{:09}",
            found.dev(),
            found.ino(),
            found.len(),
            found.mtime(),
            found.mtime_nsec(),
            found.ctime(),
            found.ctime_nsec()
        ))
    }
    #[cfg(not(unix))]
    {
        let modified = found.modified()?.duration_since(std::time::UNIX_EPOCH);
        let modified = modified.map_or(0, |since| since.as_nanos());
        Ok(format!("0:0:{}:{modified}", found.len()))
    }
}

/// The file that a stamp is of: device and inode.
fn inode(stamp: &str) -> Vec<&str> {
    stamp.split(':').take(2).collect()
}

/// What is known of a model's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ContentRecord {
    /// `None` before the first use.
    known: Option<KnownContent>,
    /// Stamp of the packed copy when it was last verified.
    pub packed: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct KnownContent {
    content: blake3::Hash,
    stamp: String,
    /// Of each matrix: four hex digits, one after the other.
    samples: String,
}

impl ContentRecord {
    /// What `dir` knows of a model; an empty record if that is nothing.
    pub fn read(gguf: &Gguf, dir: &Path) -> ContentRecord {
        let name = name_of(gguf);
        let lines = lines(dir);
        let found = lines.iter().find(|line| line.starts_with(&name));
        found.map_or(ContentRecord::default(), |line| {
            ContentRecord::parse(line).unwrap_or_else(|| {
                let path = dir.join(FILE);
                let path = path.display();
                log::warn!("{path} is damaged; the model and its packed copy are read again");
                ContentRecord::default()
            })
        })
    }

    fn parse(line: &str) -> Option<ContentRecord> {
        let (body, check) = line.rsplit_once('\t')?;
        if check_of(body) != check {
            return None;
        }
        let mut fields = body.split('\t').skip(1);
        let mut next = || fields.next();
        let (content, samples, packed, stamp) = (next()?, next()?, next()?, next()?);
        Some(ContentRecord {
            known: Some(KnownContent {
                content: blake3::Hash::from_hex(content).ok()?,
                stamp: stamp.to_owned(),
                samples: samples.to_owned(),
            }),
            packed: (!packed.is_empty()).then(|| packed.to_owned()),
        })
    }

    fn line(&self, name: &str) -> Option<String> {
        let known = self.known.as_ref()?;
        let (content, packed) = (known.content.to_hex(), self.packed.as_deref());
        let packed = packed.unwrap_or_default();
        let body = format!(
            "{name}\t{content}\t{}\t{packed}\t{}",
            known.samples, known.stamp
        );
        Some(format!("{body}\t{}", check_of(&body)))
    }

    /// Puts the record into the file, in place of what it has of this model. Of two processes at once one has to find out
    /// again what it knew.
    pub fn write(&self, gguf: &Gguf, dir: &Path) -> io::Result<()> {
        let name = name_of(gguf);
        let Some(line) = self.line(&name) else {
            return Ok(());
        };
        let mut lines = lines(dir);
        lines.retain(|line| !line.starts_with(&name));
        lines.push(line);
        lines.drain(..lines.len().saturating_sub(LINES_MAX));
        let path = dir.join(FILE);
        let mut file = UnfinishedFile::create(&path)?;
        file.file()
            .write_all((lines.join("\n") + "\n").as_bytes())?;
        file.place(&path)
    }

    /// The content of the model, read again if its files have changed since. An error where it was changed in place.
    pub fn check(&mut self, gguf: &Gguf, pool: &ThreadPool) -> LoadResult<blake3::Hash> {
        let now = stamps(gguf);
        if let (Some(known), Some(now)) = (&self.known, &now)
            && known.stamp == *now
        {
            return Ok(known.content);
        }
        let found = content(gguf, pool);
        self.take(found, now, fingerprint::sample_tags(gguf))?;
        Ok(found)
    }

    /// The same, whatever the stamp says.
    pub fn check_all(&mut self, gguf: &Gguf, pool: &ThreadPool) -> LoadResult<blake3::Hash> {
        let now = stamps(gguf);
        let found = content(gguf, pool);
        self.take(found, now, fingerprint::sample_tags(gguf))?;
        Ok(found)
    }

    /// Compares a packed model with its checksums, unless its stamp is the one they were last compared with.
    pub fn check_packed(&mut self, gguf: &Gguf, pool: &ThreadPool) -> LoadResult {
        let Some(packed) = gguf.packed() else {
            return Ok(());
        };
        let (now, content) = (stamps(gguf), packed.original.content.into());
        if let (Some(known), Some(now)) = (&self.known, &now)
            && (known.content, &known.stamp) == (content, now)
        {
            return Ok(());
        }
        gguf.check_packed(pool)?;
        self.known = Some(KnownContent {
            content,
            stamp: now.unwrap_or_default(),
            samples: String::new(),
        });
        Ok(())
    }

    fn take(&mut self, found: blake3::Hash, now: Option<String>, samples: String) -> LoadResult {
        let stamp = now.unwrap_or_default();
        if let Some(known) = &self.known
            && known.content != found
            && same_files(&known.stamp, &stamp)
            && !is_another_model(&known.samples, &samples)
        {
            return Err(LoadError::Content {
                path: PathBuf::new(),
                found: found.to_hex()[..16].to_owned(),
                known: known.content.to_hex()[..16].to_owned(),
            });
        }
        self.known = Some(KnownContent {
            content: found,
            stamp,
            samples,
        });
        Ok(())
    }
}

fn lines(dir: &Path) -> Vec<String> {
    let path = dir.join(FILE);
    let found = fs::metadata(&path).is_ok_and(|found| found.len() <= FILE_BYTES_MAX);
    let text = found.then(|| fs::read(&path).unwrap_or_default());
    let text = String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
    text.lines().map(str::to_owned).collect()
}

fn name_of(gguf: &Gguf) -> String {
    let model = gguf.path();
    let full = model.canonicalize().unwrap_or_else(|_| model.to_owned());
    let hash = blake3::hash(full.as_os_str().as_encoded_bytes()).to_hex();
    hash[..32].to_owned()
}

fn check_of(body: &str) -> String {
    blake3::hash(body.as_bytes()).to_hex()[..16].to_owned()
}

/// The stamps of all parts; `None` where one cannot be had.
fn stamps(gguf: &Gguf) -> Option<String> {
    let stamps: io::Result<Vec<String>> = gguf.part_paths().map(stamp).collect();
    Some(stamps.ok()?.join(" "))
}

fn same_files(before: &str, now: &str) -> bool {
    let inodes = |stamps: &str| -> Vec<Vec<String>> {
        let each = stamps.split(' ').map(inode);
        each.map(|of| of.into_iter().map(str::to_owned).collect())
            .collect()
    };
    inodes(before) == inodes(now)
}

/// Whether nearly every matrix differs. Damage changes some of a file; nothing of another training is alike.
fn is_another_model(before: &str, now: &str) -> bool {
    let (before, now) = (before.as_bytes().chunks(4), now.as_bytes().chunks(4));
    let matrices = before.len().max(now.len());
    let alike = before
        .zip(now)
        .filter(|(before, now)| before == now)
        .count();
    matrices > 0 && alike * 10 < matrices
}

/// Tensors in a row, and their part of the file, that may be zero wherever they are sampled. A file that was not written
/// to its end, or has a hole, has nothing else there; single matrices of zeros are a model's own business.
const ZERO_TENSORS_MAX: usize = 8;
const ZERO_SHARE_MAX: f64 = 0.125;

/// Refuses a model of which a large part was never written.
pub(super) fn refuse_zeros(gguf: &Gguf) -> LoadResult {
    let tensors = gguf.tensors();
    let all: usize = tensors.iter().map(|tensor| gguf.bytes(tensor).len()).sum();
    for run in tensors.chunk_by(|a, b| is_zero(gguf, a) && is_zero(gguf, b)) {
        let bytes: usize = run.iter().map(|tensor| gguf.bytes(tensor).len()).sum();
        if run.len() > ZERO_TENSORS_MAX && bytes as f64 > all as f64 * ZERO_SHARE_MAX {
            let (name, count) = (run[0].name.escape_debug().to_string(), run.len() - 1);
            let what = format!(
                "zero, and so are the {count} tensors after it: the file was not written to its end, or is damaged"
            );
            return Err(LoadError::field(name, what));
        }
    }
    Ok(())
}

fn is_zero(gguf: &Gguf, tensor: &Tensor) -> bool {
    fingerprint::is_zero_where_sampled(gguf.bytes(tensor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> ContentRecord {
        ContentRecord {
            known: Some(KnownContent {
                content: blake3::Hash::from([0xab; 32]),
                stamp: "1:2:3:4.5:6.7 1:3:3:4.5:6.7".into(),
                samples: "00112233445566778899".into(),
            }),
            packed: Some("1:9:3:4.5:6.7".into()),
        }
    }

    #[test]
    fn a_record_reads_back_and_damage_makes_it_missing() {
        let line = record().line("0123").unwrap();
        assert_eq!(ContentRecord::parse(&line), Some(record()));
        for at in 0..line.len() {
            let mut bytes = line.clone().into_bytes();
            bytes[at] ^= 1;
            let changed = String::from_utf8(bytes).unwrap();
            assert_eq!(ContentRecord::parse(&changed), None, "byte {at}");
            assert_eq!(ContentRecord::parse(&line[..at]), None, "cut at {at}");
        }
    }

    /// Written over in place it is damaged; another file under the name is another model.
    #[test]
    fn only_a_file_that_was_changed_in_place_is_refused() {
        let known = "00112233445566778899";
        let same = "1:2:3:9.9:9.9 1:3:3:4.5:6.7";
        let take = |content: u8, stamp: &str, samples: &str| {
            let content = blake3::Hash::from([content; 32]);
            record().take(content, Some(stamp.to_owned()), samples.to_owned())
        };
        take(0xab, same, known).unwrap();
        let error = take(0xcd, same, known).unwrap_err();
        assert!(error.to_string().contains("abab"), "{error}");
        take(0xcd, same, "00112233445566778800").unwrap_err();
        take(0xcd, "1:7:3:9.9:9.9 1:3:3:4.5:6.7", known).unwrap();
        take(0xcd, same, "ffff").unwrap();
        take(0xcd, same, "ffffeeeeddddccccbbbb").unwrap();
    }
}
