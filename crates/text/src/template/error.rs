//! Why a chat could not be rendered, in one line.

use std::fmt;

/// Longest error message, in characters.
const MESSAGE_CHARS_MAX: usize = 200;

/// Why a chat could not be rendered. Displays as one line of at most a few hundred characters, whatever the
/// template put into its message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The source is too long or not a template.
    #[error("chat template: {}", OneLine(.0))]
    Source(String),
    /// The template called `raise_exception`.
    #[error("the chat template refused the messages: {}", OneLine(.0))]
    Raised(String),
    /// The template asked for more than it may have.
    #[error("chat template: {0}")]
    Limit(&'static str),
    /// The template computed something that has no answer.
    #[error("chat template: {}", OneLine(.0))]
    Render(String),
    /// The interpreter failed: a bug of ours, contained.
    #[error("chat template: the interpreter failed")]
    Internal,
}

/// Text from a stranger inside a message: control characters escaped, cut to [`MESSAGE_CHARS_MAX`].
struct OneLine<'s>(&'s str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chars = self.0.chars();
        for c in chars.by_ref().take(MESSAGE_CHARS_MAX) {
            // Besides control characters: separators that some terminals break at, and what reverses text.
            let breaks = matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            if c.is_control() || breaks {
                write!(f, "{}", c.escape_default())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        f.write_str(if chars.next().is_some() { "…" } else { "" })
    }
}
