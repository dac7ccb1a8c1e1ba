//! What was fetched: the files of a model here, models of the hub beside the catalogue, and removing them.

use crate::catalogue::{CatalogueFile, CatalogueModel};
use crate::error::{Doing, HubError};
use crate::fetch::part_of;
use crate::home::Home;
use crate::repository::{HubName, PREFIX, is_first_of_model, parts_beside};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// How deep files lie below `models/OWNER/REPOSITORY`.
const DEPTH_MAX: usize = 4;

/// A model of the hub that the catalogue does not have.
#[derive(Debug, Clone)]
pub struct HubModel {
    /// As `MODEL` means it: `hf:owner/repo/file.gguf`.
    pub name: String,
    pub path: PathBuf,
    pub bytes: u64,
}

/// Whether every file is here, as it was fetched or packed.
pub fn is_here(home: &Home, model: &CatalogueModel) -> bool {
    model.files.iter().all(|file| path_of(home, file).is_some())
}

/// Where a file of a model is, as it was fetched or packed.
pub fn path_of(home: &Home, file: &CatalogueFile) -> Option<PathBuf> {
    // The hash was checked when the file got its name; here its size is enough.
    let path = home.fetched(file);
    let is_whole = path
        .metadata()
        .is_ok_and(|found| found.is_file() && found.len() == file.bytes);
    let packed = home.fetched_packed(file);
    match is_whole {
        true => Some(path),
        false => Some(packed).filter(|packed| packed.is_file()),
    }
}

/// All of a model that is here: its files, packed or not, and what a broken download left.
pub fn files_of(home: &Home, model: &CatalogueModel) -> Vec<PathBuf> {
    let files = model.files.iter().flat_map(|file| {
        let path = home.fetched(file);
        let part = part_of(&path);
        [path, home.fetched_packed(file), part]
    });
    files.filter(|path| path.is_file()).collect()
}

/// The model of the hub that is meant, if it was fetched: the file that is named, or the only one of its repository.
pub fn hub_model(home: &Home, name: &HubName) -> Option<HubModel> {
    let is_meant = |model: &HubModel| {
        let rest = model.name.strip_prefix(PREFIX);
        let rest = rest.and_then(|rest| rest.strip_prefix(&name.repository()));
        let file = rest.and_then(|rest| rest.strip_prefix('/'));
        file.is_some_and(|file| name.file().is_none_or(|named| stem(named) == stem(file)))
    };
    let mut models = hub_models(home);
    models.retain(is_meant);
    // A file and what it was packed into are one model.
    models.dedup_by(|later, first| stem(&later.name) == stem(&first.name));
    let mut models = models.into_iter();
    models.next().filter(|_| models.next().is_none())
}

/// Without the ending, which packing changes.
fn stem(file: &str) -> &str {
    file.rsplit_once('.').map_or(file, |(stem, _)| stem)
}

/// All that is here of the file that is named, packed or not, every part of a split one and what a broken download left; all of a
/// repository where no file is named.
pub fn files_of_hub_model(home: &Home, name: &HubName) -> Vec<PathBuf> {
    let folder = home.models().join(name.repository());
    let Some(file) = name.file() else {
        let mut files = Vec::new();
        below(&folder, DEPTH_MAX, &mut files);
        return files;
    };
    let parts = parts_beside(&folder.join(file)).into_iter();
    let files = parts.flat_map(|path| [path.with_extension("packed"), part_of(&path), path]);
    files.filter(|path| path.is_file()).collect()
}

/// Models of the hub that were fetched by name, sorted.
pub fn hub_models(home: &Home) -> Vec<HubModel> {
    let mut models = Vec::new();
    for owner in folders(&home.models()) {
        for repository in folders(&owner) {
            let mut files = Vec::new();
            below(&repository, DEPTH_MAX, &mut files);
            models.extend(files.into_iter().filter_map(|path| whole(home, path)));
        }
    }
    models.sort_by(|a, b| a.name.cmp(&b.name));
    models
}

/// The model whose first file this is, if all of its parts are here.
fn whole(home: &Home, path: PathBuf) -> Option<HubModel> {
    let below = path.strip_prefix(home.models()).ok()?.to_str()?;
    let name = format!("{PREFIX}{}", below.replace(std::path::MAIN_SEPARATOR, "/"));
    let sizes = parts_beside(&path).into_iter();
    let sizes = sizes.map(|part| part.metadata().map(|found| found.len()));
    let bytes = sizes.sum::<io::Result<u64>>().ok()?;
    is_first_of_model(&name).then_some(HubModel { name, path, bytes })
}

/// All files in a folder and its folders, so deep.
fn below(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    for path in entries(folder) {
        match path.is_dir() {
            true if depth > 0 => below(&path, depth - 1, files),
            true => {}
            false => files.push(path),
        }
    }
}

/// Removes files of the home, and its folders that are empty then.
pub fn remove(home: &Home, files: &[PathBuf]) -> Result<(), HubError> {
    for path in files {
        match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.doing(|| format!("cannot remove {}", path.display()))?,
        }
        home.remove_empty_folders(path);
    }
    Ok(())
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let mut entries = entries(path);
    entries.retain(|path| path.is_dir());
    entries
}

fn entries(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}
