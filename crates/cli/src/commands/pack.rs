//! `pack` and `unpack`: a model as one packed file, and back to the GGUF file it was. `pull --packed` packs too.
//!
//! Nothing is removed before what takes its place was read back: a packed model is converted back in memory, and the
//! sha256 of that is the GGUF file's; a GGUF file is read again after it was written. A process that is killed leaves
//! the old file, or both, and a temporary file that the next use removes.

use crate::args;
use crate::engine::temporary_ending;
use crate::machine::threads_of_machine;
use crate::{out, progress, resolve};
use anyhow::{Context, Result, bail};
use haversack::engine::model::pack::path as packed_copy;
use haversack::engine::model::packing::Packing;
use haversack::gguf::Gguf;
use haversack::kernels::threads::ThreadPool;
use haversack::memory::bytes::human;
use haversack::memory::file::{UnfinishedFile, remove_unfinished_of};
use haversack_hub::catalogue::catalogue;
use haversack_hub::fetch::{enough_space, sha256_file};
use haversack_hub::home::Home;
use haversack_hub::tidy::Endings;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub fn pack(args: &args::PackArgs, as_json: bool) -> Result<()> {
    let path = resolve::model(Some(&args.model))?;
    let target = target(args, &path, "packed");
    packed(&path, &target, args.keep)?.print(as_json)
}

pub fn unpack(args: &args::PackArgs, as_json: bool) -> Result<()> {
    let path = resolve::model(Some(&args.model))?;
    let target = target(args, &path, "gguf");
    unpacked(&path, &target, args.keep)?.print(as_json)
}

fn target(args: &args::PackArgs, path: &Path, extension: &str) -> PathBuf {
    let usual = || path.with_extension(extension);
    args.output.clone().unwrap_or_else(usual)
}

fn check_is_another(target: &Path, path: &Path) -> Result<()> {
    if target == path {
        let path = path.display();
        bail!("{path} is the model itself; accepted: another file as --output");
    }
    Ok(())
}

/// A model in its other form.
pub struct Converted {
    pub path: PathBuf,
    /// Of the GGUF file.
    pub original_sha256: String,
    pub original_bytes: u64,
    /// What model and packed copy took, and take.
    pub before_bytes: u64,
    pub after_bytes: u64,
}

impl Converted {
    fn print(&self, as_json: bool) -> Result<()> {
        if as_json {
            return out::json(&self.json()?);
        }
        out::line(&self.path.display().to_string())?;
        self.note();
        Ok(())
    }

    /// What the disk has gained.
    pub fn note(&self) {
        let (before, after) = (human(self.before_bytes), human(self.after_bytes));
        out::note(&format!(
            "model and packed copy: {before} before, {after} now"
        ));
    }

    pub fn json(&self) -> Result<Json> {
        Ok(json!({
            "path": self.path,
            "sha256": sha256_file(&self.path)?,
            "bytes": fs::metadata(&self.path)?.len(),
            "original": { "sha256": self.original_sha256, "bytes": self.original_bytes },
            "before_bytes": self.before_bytes,
            "after_bytes": self.after_bytes,
        }))
    }
}

/// Packs a GGUF file into `target` and removes it, unless it is to be kept.
pub fn packed(path: &Path, target: &Path, keep: bool) -> Result<Converted> {
    remove_unfinished_of(target);
    let known = Home::find().ok().map(|home| home.packed());
    let sha256 = sha256_file(path)?;
    if let Some(file) = catalogue().file_named(path)
        && file.sha256 != sha256
    {
        let wanted = &file.sha256;
        bail!(
            "{}: sha256 is {sha256}, the catalogue has {wanted}",
            path.display()
        );
    }
    let packing = Packing::open(path, known.as_deref(), threads_of_machine())?;
    check_is_another(target, path)?;
    let copy = known.map(|dir| packed_copy(&dir, packing.fingerprint()));
    let before_bytes = bytes_of(path) + copy.as_deref().map_or(0, bytes_of);
    if !is_packed_already(target, &sha256)? {
        write_packed(&packing, target, &sha256)?;
    }
    let original_bytes = bytes_of(path);
    if !keep {
        remove(path, target)?;
        // A cache: where it cannot be removed it costs disk, nothing else.
        let _ = copy.as_deref().map(fs::remove_file);
    }
    let kept = [Some(path), copy.as_deref(), Some(target)];
    Ok(Converted {
        path: target.to_owned(),
        original_sha256: sha256,
        original_bytes,
        before_bytes,
        after_bytes: kept.into_iter().flatten().map(bytes_of).sum(),
    })
}

fn write_packed(packing: &Packing, target: &Path, sha256: &str) -> Result<()> {
    enough_space(folder(target), packing.file_bytes())?;
    let doing = || format!("cannot write {}", target.display());
    let (mut unfinished, _tidy) = unfinished(target)?;
    out::note("packing the model into one file");
    let mut bar = progress::Bytes::new(packing.file_bytes());
    let sha256_bytes = bytes_of_hex(sha256).context("a sha256 has 64 digits")?;
    packing
        .write(unfinished.file(), sha256_bytes, &mut |done, _| {
            bar.set(done)
        })
        .with_context(doing)?;
    drop(bar);
    out::note("comparing it with the GGUF file");
    let found = original_sha256(&Gguf::open(unfinished.path())?)?;
    if found != sha256 {
        bail!(
            "{}: what was packed is not the GGUF file any more (sha256 {found}, before {sha256}): it was changed meanwhile; nothing was removed",
            target.display()
        );
    }
    unfinished.place(target).with_context(doing)
}

/// Whether `target` is this model already, whole. Any other file of that name stays.
fn is_packed_already(target: &Path, sha256: &str) -> Result<bool> {
    if !target.exists() {
        return Ok(false);
    }
    let in_the_way = || {
        let target = target.display();
        format!(
            "{target} is there already, and it is not this model; accepted: another file as --output"
        )
    };
    match packed_sha256(target) {
        Ok(Some(found)) if found == sha256 => Ok(true),
        Ok(_) => bail!(in_the_way()),
        Err(error) if begins_like_packed(target) => {
            out::note(&format!("{error:#}; packing again"));
            Ok(false)
        }
        Err(_) => bail!(in_the_way()),
    }
}

/// The sha256 of the GGUF file that a packed model converts back to, every byte checked; `None` of a GGUF file.
pub fn packed_sha256(path: &Path) -> Result<Option<String>> {
    let gguf = Gguf::open(path)?;
    match gguf.packed() {
        Some(_) => original_sha256(&gguf).map(Some),
        None => Ok(None),
    }
}

/// The same of an open one. What it says of its GGUF file must be what it converts back to.
pub fn original_sha256(gguf: &Gguf) -> Result<String> {
    let pool = ThreadPool::new(threads_of_machine());
    gguf.check_packed(&pool)?;
    let mut hash = Sha256::new();
    let hashed: Result<(), std::convert::Infallible> = gguf.read_original(&pool, &mut |bytes| {
        hash.update(bytes);
        Ok(())
    });
    let Ok(()) = hashed;
    let found = hash.finalize();
    if let Some(packed) = gguf.packed()
        && packed.original.sha256[..] != found[..]
    {
        bail!(
            "{}: it is damaged: it does not convert back to its GGUF file (sha256 {}, packed from {})",
            gguf.path().display(),
            hex(&found),
            hex(&packed.original.sha256)
        );
    }
    Ok(hex(&found))
}

/// Writes the GGUF file of a packed model to `target` and removes the packed one, unless it is to be kept.
fn unpacked(path: &Path, target: &Path, keep: bool) -> Result<Converted> {
    remove_unfinished_of(target);
    let gguf = Gguf::open(path)?;
    let Some(packed) = gguf.packed() else {
        bail!("{} is not a packed model", path.display());
    };
    check_is_another(target, path)?;
    let (sha256, bytes) = (hex(&packed.original.sha256), packed.original.bytes);
    let before_bytes = bytes_of(path);
    if !target.exists() {
        write_original(&gguf, target, &sha256)?;
    } else if sha256_file(target)? != sha256 {
        let target = target.display();
        bail!(
            "{target} is there already, and it is not this model; accepted: another file as --output"
        );
    }
    if !keep {
        remove(path, target)?;
    }
    Ok(Converted {
        path: target.to_owned(),
        original_sha256: sha256,
        original_bytes: bytes,
        before_bytes,
        after_bytes: bytes_of(path) + bytes_of(target),
    })
}

fn write_original(gguf: &Gguf, target: &Path, sha256: &str) -> Result<()> {
    let pool = ThreadPool::new(threads_of_machine());
    let bytes = gguf.packed().map_or(0, |packed| packed.original.bytes);
    gguf.check_packed(&pool)?;
    enough_space(folder(target), bytes)?;
    let doing = || format!("cannot write {}", target.display());
    let (mut unfinished, _tidy) = unfinished(target)?;
    out::note("writing the GGUF file");
    let mut bar = progress::Bytes::new(bytes);
    let (file, mut done) = (unfinished.file(), 0);
    let written: io::Result<()> = gguf.read_original(&pool, &mut |bytes| {
        file.write_all(bytes)?;
        done += bytes.len() as u64;
        bar.set(done);
        Ok(())
    });
    written.with_context(doing)?;
    drop(bar);
    let found = sha256_file(unfinished.path())?;
    if found != sha256 {
        let name = gguf.path().display();
        bail!(
            "{name}: it is damaged: it does not convert back to its GGUF file (sha256 {found}, packed from {sha256})"
        );
    }
    unfinished.place(target).with_context(doing)
}

/// A file on its way to `target`, and what removes it if Ctrl-C ends the program.
fn unfinished(target: &Path) -> Result<(UnfinishedFile, Endings)> {
    let tidy = Endings::new(folder(target).to_owned(), temporary_ending());
    let file = UnfinishedFile::create(target);
    Ok((
        file.with_context(|| format!("cannot write {}", target.display()))?,
        tidy,
    ))
}

/// Another process that did the same may have been first.
fn remove(path: &Path, target: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            let (path, target) = (path.display(), target.display());
            Err(error).with_context(|| format!("{target} is whole; cannot remove {path}"))
        }
        _ => Ok(()),
    }
}

fn begins_like_packed(path: &Path) -> bool {
    let mut begin = [0; haversack::gguf::packed::MAGIC.len()];
    let read =
        fs::File::open(path).and_then(|mut file| io::Read::read_exact(&mut file, &mut begin));
    read.is_ok() && &begin == haversack::gguf::packed::MAGIC
}

/// Of a file on the disk; 0 where there is none.
fn bytes_of(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

fn folder(path: &Path) -> &Path {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let (digits, rest) = text.as_bytes().as_chunks::<2>();
    if digits.len() != bytes.len() || !rest.is_empty() {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(digits) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}
