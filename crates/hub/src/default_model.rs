//! Which model is meant where none is named: remembered in the home folder, because choosing it measures the device.

use crate::error::{Doing, HubError};
use crate::home::{Home, create};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;

/// A choice that was made, by the program or by the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefaultModel {
    /// As `MODEL` means it: a catalogue name or `hf:owner/repo/file.gguf`.
    pub model: String,
    pub why: String,
}

const HEAD: &str =
    "# The model of commands that name none. haversack pull NAME --default changes it.\n";

/// The largest file that is read: two lines.
const BYTES_MAX: u64 = 4096;

impl DefaultModel {
    /// What was remembered; a file that says nothing of use is as none.
    pub fn read(home: &Home) -> Option<DefaultModel> {
        let path = home.default_model();
        let is_short = path.metadata().is_ok_and(|found| found.len() <= BYTES_MAX);
        let text = is_short.then(|| fs::read_to_string(&path).ok()).flatten()?;
        let found: DefaultModel = toml::from_str(&text).ok()?;
        Some(found).filter(|found| !found.model.is_empty())
    }

    /// Remembers the choice; a crash leaves the one before.
    pub fn write(&self, home: &Home) -> Result<(), HubError> {
        let path = home.default_model();
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        create(home.path())?;
        let lines = toml::to_string(self).map_err(io::Error::other);
        let written = lines.and_then(|lines| {
            fs::write(&temporary, format!("{HEAD}{lines}"))?;
            fs::rename(&temporary, &path)
        });
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written.doing(|| format!("cannot write {}", path.display()))
    }

    /// Forgets it: the next command without a model chooses anew.
    pub fn forget(home: &Home) -> Result<(), HubError> {
        let path = home.default_model();
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.doing(|| format!("cannot remove {}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(&directory.path().join("home"));
        assert_eq!(DefaultModel::read(&home), None);
        DefaultModel::forget(&home).unwrap();
        let choice = DefaultModel {
            model: "hf:a/b/c.gguf".into(),
            why: "it \"fits\"\nthis device".into(),
        };
        choice.write(&home).unwrap();
        assert_eq!(DefaultModel::read(&home), Some(choice));
        for nonsense in ["", "model = 3", "model = ''\nwhy = ''", &"#".repeat(5000)] {
            fs::write(home.default_model(), nonsense).unwrap();
            assert_eq!(DefaultModel::read(&home), None, "{nonsense}");
        }
        DefaultModel::forget(&home).unwrap();
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }
}
