//! How a command ends: one line on stderr and an exit code.
//!
//! Exit 0 is success, 2 a usage error (the arguments cannot mean anything), 1 everything that goes
//! wrong while running. An error is one line whatever its text holds, because scripts read it.

use std::fmt;

/// The arguments are at fault, even if only the model could tell (a token id outside the
/// vocabulary). Ends with exit code 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The reader of stdout closed it (`| head -1`). Not an error: the program ends quietly with 0.
#[derive(Debug)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output was closed")
    }
}

impl std::error::Error for Closed {}

/// A usage error as an `anyhow::Error`.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    Usage(message.into()).into()
}

/// The exit code of a failed command, and the line to print, if any.
pub fn ending(error: &anyhow::Error) -> (i32, Option<String>) {
    if error.is::<Closed>() {
        return (0, None);
    }
    let is_usage = error.is::<Usage>() || error.is::<haversack_hub::home::NoHome>();
    let code = if is_usage { 2 } else { 1 };
    (
        code,
        Some(format!("error: {}", one_line(&format!("{error:#}")))),
    )
}

/// `text` on one line: every run of white space becomes one space, and control characters, which
/// could drive the terminal from inside a hostile model file, become `?`.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.extend(word.chars().map(|c| if c.is_control() { '?' } else { c }));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn an_error_is_one_line_without_control_characters() {
        assert_eq!(one_line("a\n  b\r\n\x1b[31mc\t"), "a b ?[31mc");
    }

    #[test]
    fn context_does_not_hide_what_kind_of_error_it_was() {
        let error = Err::<(), _>(usage("bad"))
            .context("reading --kv")
            .unwrap_err();
        assert_eq!(ending(&error), (2, Some("error: reading --kv: bad".into())));
        assert_eq!(ending(&Closed.into()), (0, None));
        assert_eq!(
            ending(&anyhow::anyhow!("x\ny")),
            (1, Some("error: x y".into()))
        );
    }
}
