//! Names of sessions. A name becomes a file name, so it has no character with a meaning to file systems.

/// Longest name. With the extension it is within the limit of every file system.
pub const NAME_BYTES_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is not a session name; accepted: 1 to {NAME_BYTES_MAX} of a-z, A-Z, 0-9, '-', '_' and '.', beginning with a letter or a digit"
)]
pub struct BadName {
    /// Truncated.
    found: String,
}

/// Returns the name if it is valid.
pub fn check(name: &str) -> Result<&str, BadName> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && name.len() <= NAME_BYTES_MAX && name.chars().all(is_allowed) {
        return Ok(name);
    }
    Err(BadName {
        found: name.chars().take(NAME_BYTES_MAX).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_paths_are_refused() {
        for name in ["anna", "a", "2026-11-15.evening", &"x".repeat(64)] {
            assert_eq!(check(name), Ok(name));
        }
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "a\\b",
            "a\0b",
            ".hidden",
            "-x",
            "ä",
            "a b",
            "a\n",
            "CON:",
            &"x".repeat(65),
            &"x".repeat(300),
        ] {
            let error = check(name).unwrap_err().to_string();
            assert!(error.len() < 400 && !error.contains('\n'), "{error}");
        }
    }
}
