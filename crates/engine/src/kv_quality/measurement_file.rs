//! The file of a measurement: a heading, numbers (f32, little-endian), and the BLAKE3 hash of both.
//!
//! A file whose length or hash is wrong is damaged, which is logged: it is measured and written again.

use crate::model::Model;
use haversack_memory::file::{UnfinishedFile, remove_unfinished};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The file of a model's measurement.
pub fn path(model: &Model, dir: &Path, ending: &str) -> PathBuf {
    dir.join(format!("{}.{ending}", model.fingerprint().to_hex()))
}

/// Writes the file if there is a place for it. A failure is logged: the next run measures again.
pub fn save(path: Option<&Path>, what: &str, heading: &[u8], values: impl Iterator<Item = f32>) {
    if let Some(path) = path
        && let Err(e) = write(path, heading, values)
    {
        log::warn!("{}: {what} not saved: {e}", path.display());
    }
}

/// Writes the whole file or nothing.
fn write(path: &Path, heading: &[u8], values: impl Iterator<Item = f32>) -> io::Result<()> {
    let mut bytes = heading.to_vec();
    bytes.extend(values.flat_map(f32::to_le_bytes));
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
        remove_unfinished(dir);
    }
    let mut file = UnfinishedFile::create(path)?;
    file.file().write_all(&bytes)?;
    file.place(path)
}

/// The `count` finite numbers under this heading; `None` where there is no such file, or a damaged one.
pub fn read(path: &Path, heading: &[u8], count: usize) -> Option<Vec<f32>> {
    let bytes = std::fs::metadata(path).ok()?.len();
    let values = read_whole(path, bytes, heading, count);
    if values.is_none() {
        let path = path.display();
        log::warn!("{path} is damaged or of another version; it is measured again");
    }
    values
}

fn read_whole(path: &Path, bytes: u64, heading: &[u8], count: usize) -> Option<Vec<f32>> {
    let expected = heading.len() + 4 * count + blake3::OUT_LEN;
    if bytes != expected as u64 {
        return None;
    }
    let bytes = std::fs::read(path).ok()?;
    let (body, hash) = bytes.split_at_checked(expected - blake3::OUT_LEN)?;
    if blake3::hash(body).as_bytes() != hash {
        return None;
    }
    let (values, _) = body.strip_prefix(heading)?.as_chunks::<4>();
    let values: Vec<f32> = values.iter().map(|b| f32::from_le_bytes(*b)).collect();
    values.iter().all(|x| x.is_finite()).then_some(values)
}
