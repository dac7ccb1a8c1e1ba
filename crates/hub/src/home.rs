//! Where fetched models, caches and history live.
//!
//! ```text
//! $HAVERSACK_HOME
//!   models/             fetched models under their final names, packed or not, and `.part` files to resume
//!     OWNER/REPOSITORY/ those of the hub that the catalogue does not have
//!   packed/             weights repacked for this CPU, keyed by fingerprint
//!   cache/              what was measured of a model, keyed by fingerprint
//!   sessions/           conversations, one file each
//!   tmp/                one folder per running fetch, removed when it ends
//!   default-model.toml  the model of commands that name none
//!   chat-history        lines typed into `chat`
//! ```

use crate::catalogue::CatalogueFile;
use crate::error::{Doing, HubError};
use std::env;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

/// Neither `$HAVERSACK_HOME` nor the user's home is set.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no data directory: HAVERSACK_HOME is not set, and neither is the user's home")]
pub struct NoHome;

#[derive(Clone, Debug)]
pub struct Home(PathBuf);

impl Home {
    /// `$HAVERSACK_HOME`, else the platform's data directory. Creates nothing.
    pub fn find() -> Result<Home, NoHome> {
        let path = set("HAVERSACK_HOME").or_else(platform);
        path.map(Home).ok_or(NoHome)
    }

    /// A data directory at `path`, whatever the environment says.
    pub fn at(path: &Path) -> Home {
        Home(path.to_path_buf())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The folder that models go to, or the nearest above it that is there: it is on the same disk.
    pub fn models_disk(&self) -> PathBuf {
        let models = self.models();
        let existing = models.ancestors().find(|folder| folder.exists());
        existing.unwrap_or(self.path()).to_path_buf()
    }

    /// Removes the folders of the home above a file that is not there, as far as nothing else is in them.
    pub(crate) fn remove_empty_folders(&self, file: &Path) {
        let above = file.ancestors().skip(1);
        let is_inside = |folder: &&Path| folder.starts_with(self.path()) && *folder != self.path();
        let _ = above.take_while(is_inside).try_for_each(fs::remove_dir);
    }

    pub fn models(&self) -> PathBuf {
        self.0.join("models")
    }

    /// Where a fetched file is.
    pub fn fetched(&self, file: &CatalogueFile) -> PathBuf {
        self.models().join(&file.name)
    }

    /// Where a fetched model is once it was packed into one file.
    pub fn fetched_packed(&self, file: &CatalogueFile) -> PathBuf {
        self.fetched(file).with_extension("packed")
    }

    /// Where the sentence encoder is, once it was fetched.
    pub fn encoder(&self) -> PathBuf {
        self.models().join(ENCODER)
    }

    pub fn packed(&self) -> PathBuf {
        self.0.join("packed")
    }

    pub fn cache(&self) -> PathBuf {
        self.0.join("cache")
    }

    pub fn tmp(&self) -> PathBuf {
        self.0.join("tmp")
    }

    pub fn sessions(&self) -> PathBuf {
        self.0.join("sessions")
    }

    pub fn default_model(&self) -> PathBuf {
        self.0.join("default-model.toml")
    }

    pub fn chat_history(&self) -> PathBuf {
        self.0.join("chat-history")
    }
}

/// The catalogue name of the sentence encoder.
pub const ENCODER: &str = "all-minilm-l6-v2";

/// Creates a directory and those above it, naming it when that fails.
pub fn create(directory: &Path) -> Result<(), HubError> {
    fs::create_dir_all(directory)
        .doing(|| format!("cannot create directory {}", directory.display()))
}

/// Opens a file for reading and writing as it is, or creates it, naming it when that fails.
pub(crate) fn open_or_create(path: &Path) -> Result<File, HubError> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options.open(path);
    file.doing(|| format!("cannot write {}", path.display()))
}

fn set(name: &str) -> Option<PathBuf> {
    let value = env::var_os(name).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

#[cfg(target_os = "macos")]
fn platform() -> Option<PathBuf> {
    Some(set("HOME")?.join("Library/Application Support/haversack"))
}

#[cfg(windows)]
fn platform() -> Option<PathBuf> {
    Some(set("LOCALAPPDATA")?.join("haversack"))
}

#[cfg(not(any(target_os = "macos", windows)))]
fn platform() -> Option<PathBuf> {
    // A relative XDG_DATA_HOME is to be ignored, says the XDG specification.
    match set("XDG_DATA_HOME").filter(|path| path.is_absolute()) {
        Some(data) => Some(data.join("haversack")),
        None => Some(set("HOME")?.join(".local/share/haversack")),
    }
}
