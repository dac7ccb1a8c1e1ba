//! Why a chat could not be rendered, in one line.

use std::fmt;

/// Longest error message, in characters.
const MESSAGE_CHARS_MAX: usize = 200;

/// Why a chat could not be rendered. Displays as one line of at most a few hundred characters, whatever the
/// template put into its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateError {
    /// The source is too long or not a template.
    Source(String),
    /// The template called `raise_exception`.
    Raised(String),
    /// The template asked for more than it may have.
    Limit(&'static str),
    /// The template computed something that has no answer.
    Render(String),
    /// The interpreter failed: a bug of ours, contained.
    Internal,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TemplateError::Source(why) => write!(f, "chat template: {}", OneLine(why)),
            TemplateError::Raised(why) => write!(
                f,
                "the chat template refused the messages: {}",
                OneLine(why)
            ),
            TemplateError::Limit(what) => write!(f, "chat template: {what}"),
            TemplateError::Render(why) => write!(f, "chat template: {}", OneLine(why)),
            TemplateError::Internal => write!(f, "chat template: the interpreter failed"),
        }
    }
}

impl std::error::Error for TemplateError {}

/// Text from a stranger inside a message: control characters escaped, cut to [`MESSAGE_CHARS_MAX`].
struct OneLine<'s>(&'s str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chars = self.0.chars();
        for c in chars.by_ref().take(MESSAGE_CHARS_MAX) {
            // Besides control characters: separators that some terminals break at, and what reverses text.
            if c.is_control()
                || matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
            {
                write!(f, "{}", c.escape_default())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        if chars.next().is_some() {
            write!(f, "…")
        } else {
            Ok(())
        }
    }
}
