//! The file of a measurement: a heading, numbers (f32, little-endian), and the BLAKE3 hash of both.
//!
//! A file whose length or hash is wrong is treated as missing.

use crate::model::Model;
use std::io;
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
    }
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    std::fs::write(&temporary, bytes)?;
    std::fs::rename(&temporary, path)
}

/// The `count` finite numbers under this heading.
pub fn read(path: &Path, heading: &[u8], count: usize) -> Option<Vec<f32>> {
    let expected = heading.len() + 4 * count + blake3::OUT_LEN;
    if std::fs::metadata(path).ok()?.len() != expected as u64 {
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
