//! Why a model file was refused.

use haversack_text::tokenizer::pieces::VocabError;
use std::path::{Path, PathBuf};

/// Why a model file was refused. One line, naming the file and the field.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Gguf(#[from] haversack_gguf::GgufError),
    #[error("{}: {field}: {what}", path.display())]
    Field {
        path: PathBuf,
        field: String,
        what: String,
    },
    #[error("{}: the weights could not be locked in memory: {error}", path.display())]
    Lock {
        path: PathBuf,
        error: std::io::Error,
    },
    #[error(
        "{}: it was changed since it was first used (content {found}, then {known}): it is damaged, unless this was meant; haversack verify --accept takes it as it is", path.display()
    )]
    Content {
        path: PathBuf,
        found: String,
        known: String,
    },
    #[error("{}: {what}", packed.display())]
    Packed { packed: PathBuf, what: String },
    #[error(transparent)]
    Vocab(#[from] VocabError),
}

pub(crate) type LoadResult<T = ()> = Result<T, LoadError>;

impl LoadError {
    pub(crate) fn field(field: impl Into<String>, what: impl Into<String>) -> LoadError {
        LoadError::Field {
            path: PathBuf::new(),
            field: field.into(),
            what: what.into(),
        }
    }

    /// Names the file, for errors found by code that does not know it.
    pub(crate) fn at(mut self, file: &Path) -> LoadError {
        if let LoadError::Field { path, .. }
        | LoadError::Lock { path, .. }
        | LoadError::Content { path, .. } = &mut self
        {
            *path = file.to_owned();
        }
        self
    }
}
