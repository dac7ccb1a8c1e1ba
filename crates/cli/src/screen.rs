//! How a model's text reaches standard output: byte for byte in a pipe, drawn on a terminal.
//!
//! On a terminal, also with `--plain`, `NO_COLOR` or `TERM=dumb`, control characters become `\u{fffd}`: a model, or a file
//! that it repeats, cannot send escape sequences to the terminal. Everything else stays as the model wrote it there.

use crate::markdown::{Markdown, visible};
use crate::out;
use std::borrow::Cow;
use std::io::{self, IsTerminal};

#[derive(Debug)]
pub enum Screen {
    /// A pipe or a file: as the model wrote it.
    Exact,
    /// A terminal, without styles.
    Plain,
    Drawn(Markdown),
}

impl Screen {
    pub fn of_stdout(is_plain: bool) -> Screen {
        Screen::of(
            io::stdout().is_terminal(),
            is_plain || out::wants_no_style(),
        )
    }

    fn of(is_terminal: bool, is_plain: bool) -> Screen {
        match (is_terminal, is_plain) {
            (false, _) => Screen::Exact,
            (true, true) => Screen::Plain,
            (true, false) => Screen::Drawn(Markdown::default()),
        }
    }

    /// What to write for the next piece of a text.
    pub fn show<'a>(&mut self, text: &'a str) -> Cow<'a, str> {
        match self {
            Screen::Exact => Cow::Borrowed(text),
            Screen::Plain => Cow::Owned(text.chars().filter_map(visible).collect()),
            Screen::Drawn(markdown) => {
                let mut drawn = String::new();
                markdown.push(text, &mut drawn);
                Cow::Owned(drawn)
            }
        }
    }

    /// What to write at the end of a text.
    pub fn end(&mut self) -> String {
        let mut drawn = String::new();
        if let Screen::Drawn(markdown) = self {
            markdown.finish(&mut drawn);
        }
        drawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_gets_every_byte_and_a_terminal_no_sequence() {
        let text = "**a** \x1b[31m\r\n\x07";
        let shown = |mut screen: Screen| screen.show(text).into_owned() + &screen.end();
        assert_eq!(shown(Screen::of(false, false)), text);
        assert_eq!(shown(Screen::of(false, true)), text);
        assert_eq!(
            shown(Screen::of(true, true)),
            "**a** \u{fffd}[31m\n\u{fffd}"
        );
        assert_eq!(
            shown(Screen::of(true, false)),
            "\x1b[1ma\x1b[0m \u{fffd}[31m\n\u{fffd}"
        );
    }
}
