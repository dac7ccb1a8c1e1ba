//! What a session may be called. A name becomes a file name, so it is letters, digits and a little more, and nothing that
//! means something to a file system.

/// Longest name. With an ending it is below what every file system takes.
pub const NAME_BYTES_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is no name of a session; accepted: 1 to {NAME_BYTES_MAX} of a-z, A-Z, 0-9, '-', '_' and '.', beginning with a letter or a digit"
)]
pub struct BadName {
    /// Its beginning.
    found: String,
}

/// The name, if it is one.
pub fn check(name: &str) -> Result<&str, BadName> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && name.len() <= NAME_BYTES_MAX && name.chars().all(known) {
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
