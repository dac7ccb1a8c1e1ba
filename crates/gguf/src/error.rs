//! What can be wrong with a model file, as one line for a person.
//!
//! Text from the file never reaches a message as it stands: [`shown`] escapes what a terminal would
//! act on and cuts what would fill the screen.

use std::io;
use std::path::Path;

/// A file and what is wrong with it.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct GgufError {
    /// Of a split set, the part in question.
    pub file: Box<str>,
    pub problem: Problem,
}

#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("cannot be opened: {0}")]
    Open(io::Error),

    #[error("not a GGUF file: {0}")]
    NotGguf(String),

    #[error("GGUF version {found}{hint}; accepted: 2 and 3, little-endian")]
    Version { found: u32, hint: &'static str },

    #[error("{field} needs {needs} bytes, the file has {left} left: damaged or cut short")]
    CutShort {
        field: String,
        needs: u64,
        left: u64,
    },

    #[error("{field} is {found}; accepted: {accepted}")]
    Value {
        field: String,
        found: String,
        accepted: String,
    },

    #[error("{key} is of type {found}; accepted: {accepted}")]
    Kind {
        key: String,
        found: String,
        accepted: &'static str,
    },

    #[error("{what} {name} appears twice")]
    Duplicate { what: &'static str, name: String },

    #[error("tensor {tensor} has type {found}; accepted: {accepted}")]
    TensorType {
        tensor: String,
        found: String,
        accepted: String,
    },

    #[error(
        "tensor {tensor} takes {bytes} bytes from offset {offset} of the tensor data, which has {left}: damaged or cut short"
    )]
    Outside {
        tensor: String,
        offset: u64,
        bytes: u64,
        left: u64,
    },

    #[error("tensors {first} and {second} overlap in the file")]
    Overlap { first: String, second: String },

    #[error("split file: {0}")]
    Split(String),

    /// Of a packed model, which has checksums.
    #[error("it is damaged: {0}")]
    Damaged(String),

    #[error("no memory for {field} ({count} entries)")]
    Memory { field: &'static str, count: u64 },
}

impl Problem {
    pub(super) fn of(self, path: &Path) -> GgufError {
        GgufError {
            file: shown_up_to(path.as_os_str().as_encoded_bytes(), FILE_CHARS_MAX).into(),
            problem: self,
        }
    }

    pub(super) fn value(
        field: impl ToString,
        found: impl ToString,
        accepted: impl ToString,
    ) -> Problem {
        Problem::Value {
            field: field.to_string(),
            found: found.to_string(),
            accepted: accepted.to_string(),
        }
    }
}

/// Paths are the user's own and may be long; they are escaped all the same.
const FILE_CHARS_MAX: usize = 1000;
/// Longer than any name in a well-formed model.
const TEXT_CHARS_MAX: usize = 80;

/// Bytes from a file, safe to print: control, format and invalid characters escaped, cut at
/// 80 characters.
pub fn shown(bytes: &[u8]) -> String {
    shown_up_to(bytes, TEXT_CHARS_MAX)
}

fn shown_up_to(bytes: &[u8], chars_max: usize) -> String {
    let mut out = String::new();
    let mut chars = 0;
    for chunk in bytes.utf8_chunks() {
        let valid = chunk.valid().chars().map(|c| match c {
            '"' | '\'' | '\\' => c.to_string(),
            c => c.escape_debug().to_string(),
        });
        let invalid = chunk.invalid().iter().map(|b| format!("\\x{b:02x}"));
        for piece in valid.chain(invalid) {
            if chars == chars_max {
                out.push('…');
                return out;
            }
            chars += 1;
            out.push_str(&piece);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_a_file_cannot_speak_to_the_terminal() {
        assert_eq!(shown(b"blk.0.attn_q.weight"), "blk.0.attn_q.weight");
        assert_eq!(shown("größe 模型".as_bytes()), "größe 模型");
        assert_eq!(shown(b"a\x1b[31m\n\0"), "a\\u{1b}[31m\\n\\0");
        assert_eq!(shown("\u{202e}rtl".as_bytes()), "\\u{202e}rtl");
        assert_eq!(shown(b"\xff\xfe"), "\\xff\\xfe");
        let long = shown(&[b'x'; 5000]);
        assert_eq!(long.chars().count(), TEXT_CHARS_MAX + 1);
        assert_eq!(shown(&[0x80; 5000]).matches('\\').count(), TEXT_CHARS_MAX);
    }
}
