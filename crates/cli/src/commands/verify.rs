//! `verify`: is this file whole, and is it the file it claims to be?
//!
//! The table is checked as for running; then every byte is read, which finds what a disk cannot
//! give back, and every weight is unpacked, which finds numbers that are none. A file named like one
//! of the catalogue must also have its sha256. Last it is loaded, as `run` would.
//!
//! Of a model that was used before, every byte is compared with what it was then, and its packed copy is verified. A packed
//! model is compared with its checksums and converted back: what comes out has the sha256 of its GGUF file.
//!
//! A session's file is verified as resuming it would; see [`super::session_file`].

use crate::args;
use crate::commands::{pack, session_file};
use crate::machine::threads_of_machine;
use crate::{out, resolve};
use anyhow::{Context, Result, anyhow, bail};
use haversack::engine::{LoadOptions, Model};
use haversack::gguf::{Gguf, shown};
use haversack::kernels::format::gguf::unpack_row;
use haversack::kernels::threads::ThreadPool;
use haversack::memory::MapAdvice;
use haversack::memory::bytes::human;
use haversack_hub::catalogue::catalogue;
use haversack_hub::fetch::sha256_file;
use haversack_hub::home::Home;
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};

pub fn verify(args: &args::VerifyArgs, as_json: bool) -> Result<()> {
    let mut rows = Vec::new();
    let mut failures: Vec<anyhow::Error> = Vec::new();
    for name in &args.files {
        let result = match session_file::meant(name) {
            Some(path) => session_file::verify(path),
            None => resolve::model(Some(name)).and_then(|path| {
                let good = one(&path, args.accept)?;
                Ok((good.line(&path), good.json(&path)))
            }),
        };
        match result {
            Ok((line, row)) => {
                if !as_json {
                    out::line(&line)?;
                }
                rows.push(row);
            }
            Err(error) => {
                rows.push(json!({ "path": name, "ok": false, "error": format!("{error:#}") }));
                failures.push(error);
            }
        }
    }
    if as_json {
        out::json(&json!({ "ok": failures.is_empty(), "files": rows }))?;
    }
    match (failures.pop(), failures.len()) {
        (None, _) => Ok(()),
        (Some(error), 0) => Err(error),
        (Some(last), _) => {
            let all = failures.iter().chain([&last]);
            let all: Vec<String> = all.map(|error| format!("{error:#}")).collect();
            let (bad, files) = (all.len(), args.files.len());
            Err(anyhow!("{bad} of {files} files: {}", all.join("; ")))
        }
    }
}

struct Good {
    parts: Vec<(PathBuf, String)>,
    tensors: usize,
    bytes: u64,
    catalogue: bool,
    packed: Option<PathBuf>,
    /// sha256 and bytes of the GGUF file of a packed model.
    original: Option<(String, u64)>,
}

fn one(path: &Path, accept: bool) -> Result<Good> {
    let gguf = Gguf::open(path)?;
    gguf.advise(MapAdvice::Sequential);
    let original = match gguf.packed() {
        Some(packed) => Some((pack::original_sha256(&gguf)?, packed.original.bytes)),
        None => None,
    };
    let mut parts = Vec::new();
    let mut known = false;
    for part in gguf.part_paths() {
        let found = sha256_file(part)?;
        let (name, of_gguf) = match &original {
            Some((sha256, _)) => (part.with_extension("gguf"), sha256),
            None => (part.to_path_buf(), &found),
        };
        if let Some(file) = catalogue().file_named(&name) {
            known = true;
            if file.sha256 != *of_gguf {
                let (part, sha256) = (part.display(), &file.sha256);
                bail!("{part}: sha256 is {of_gguf}, the catalogue has {sha256}");
            }
        }
        parts.push((part.to_path_buf(), found));
    }
    let threads = threads_of_machine();
    let pool = ThreadPool::new(threads);
    for tensor in 0..gguf.tensors().len() {
        check_finite(&gguf, tensor, &pool)?;
    }
    drop(pool);
    Model::load(path, &LoadOptions::default(), &mut |_, _| ())?;
    let packed = match Home::find() {
        Ok(home) => Model::verify_content(path, &home.packed(), threads, accept)?,
        Err(_) => None,
    };
    Ok(Good {
        parts,
        tensors: gguf.tensors().len(),
        bytes: gguf.file_bytes(),
        catalogue: known,
        packed,
        original,
    })
}

fn check_finite(gguf: &Gguf, index: usize, pool: &ThreadPool) -> Result<()> {
    let tensor = &gguf.tensors()[index];
    let row_bytes = tensor.ty.row_bytes(tensor.cols());
    let Some(row_bytes) = row_bytes.filter(|bytes| *bytes > 0) else {
        return Ok(());
    };
    let (path, name) = (gguf.path().display(), shown(tensor.name.as_bytes()));
    let mut row = Vec::new();
    let reserved = row.try_reserve_exact(tensor.cols());
    reserved.with_context(|| format!("{path}: tensor {name}"))?;
    row.resize(tensor.cols(), 0.0);
    let mut index_of_row = 0;
    gguf.read_rows(index, pool, &mut |rows| {
        for bytes in rows.chunks_exact(row_bytes) {
            unpack_row(tensor.ty, bytes, &mut row);
            if let Some(column) = row.iter().position(|weight| !weight.is_finite()) {
                bail!(
                    "{path}: tensor {name}: the weight in row {index_of_row}, column {column} is not a finite number"
                );
            }
            index_of_row += 1;
        }
        Ok(())
    })
}

impl Good {
    fn line(&self, path: &Path) -> String {
        let claim = match self.catalogue {
            true => ", sha256 as in the catalogue",
            false => "",
        };
        let (path, tensors, size) = (path.display(), self.tensors, human(self.bytes));
        let packed = match (&self.packed, &self.original) {
            (Some(_), _) => ", packed copy good",
            (None, Some(_)) => ", converts back to its GGUF file",
            (None, None) => "",
        };
        format!("{path}: good, {tensors} tensors, {size}{claim}{packed}")
    }

    fn json(&self, path: &Path) -> Json {
        let part = |(path, sha256): &(PathBuf, String)| json!({ "path": path, "sha256": sha256 });
        let mut document = json!({
            "path": path,
            "ok": true,
            "tensors": self.tensors,
            "bytes": self.bytes,
            "sha256": self.parts.first().map(|(_, sha256)| sha256),
            "parts": out::list(&self.parts, part),
            "catalogue": self.catalogue,
            "packed": self.packed,
        });
        if let Some((sha256, bytes)) = &self.original {
            document["original"] = json!({ "sha256": sha256, "bytes": bytes });
        }
        document
    }
}
