//! What the user types: one line, or several that belong together.

use crate::out;
use anyhow::{Context, Result, bail};
use rustyline::error::ReadlineError;
use rustyline::{DefaultEditor, ExternalPrinter};
use std::collections::VecDeque;
use std::io::{self, BufRead, IsTerminal, Read};
use std::path::PathBuf;

const PROMPT: &str = "> ";
const MORE: &str = ". ";
const QUOTES: &str = "\"\"\"";
/// Longer than any context; a pipe without line ends must not fill the memory.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// Prints a line while another is being typed.
pub type Print = Box<dyn FnMut(&str) + Send>;

pub enum Input {
    Text(String),
    /// An empty line, or one given up with Ctrl-C.
    Nothing,
    End,
}

pub struct Lines {
    source: Source,
    /// Read already, and not taken.
    ahead: VecDeque<Input>,
}

enum Source {
    Terminal {
        editor: Box<DefaultEditor>,
        history: Option<PathBuf>,
    },
    Pipe,
}

impl Lines {
    /// A line editor on a terminal, plain lines otherwise.
    pub fn new(history: Option<PathBuf>) -> Result<Lines> {
        if !io::stdin().is_terminal() {
            return Ok(Lines::over(Source::Pipe));
        }
        let mut editor = Box::new(DefaultEditor::new().context("cannot use the terminal")?);
        if let Some(path) = &history {
            // None yet, or not ours to read: the chat works without.
            let _ = editor.load_history(path);
        }
        Ok(Lines::over(Source::Terminal { editor, history }))
    }

    fn over(source: Source) -> Lines {
        Lines {
            source,
            ahead: VecDeque::new(),
        }
    }

    pub fn is_terminal(&self) -> bool {
        matches!(self.source, Source::Terminal { .. })
    }

    /// Prints above the line that is being typed; `None` in a pipe, and where the terminal cannot.
    pub fn printer(&mut self) -> Option<Print> {
        let Source::Terminal { editor, .. } = &mut self.source else {
            return None;
        };
        let mut printer = editor.create_external_printer().ok()?;
        Some(Box::new(move |text| {
            // A terminal that is gone shows nothing.
            let _ = printer.print(format!("{text}\n"));
        }))
    }

    /// The first text that `is_it` accepts, or none before the end. `next` returns it, and what came before it, again.
    pub fn look_ahead(&mut self, is_it: impl Fn(&str) -> bool) -> Result<String> {
        loop {
            let input = self.read()?;
            let found = match &input {
                Input::Text(text) if is_it(text) => Some(text.clone()),
                Input::End => Some(String::new()),
                _ => None,
            };
            self.ahead.push_back(input);
            if let Some(text) = found {
                return Ok(text);
            }
        }
    }

    /// The next text, with its continuation lines.
    pub fn next(&mut self) -> Result<Input> {
        match self.ahead.pop_front() {
            Some(input) => Ok(input),
            None => self.read(),
        }
    }

    /// Asks a question; anything but yes is a no.
    pub fn confirm(&mut self, question: &str) -> Result<bool> {
        let answer = match self.line(question)? {
            Line::Text(answer) => answer.trim().to_lowercase(),
            Line::GivenUp | Line::End => String::new(),
        };
        Ok(["y", "yes"].contains(&&answer[..]))
    }

    fn read(&mut self) -> Result<Input> {
        let mut text = String::new();
        let mut open = Open::No;
        loop {
            let prompt = if open == Open::No { PROMPT } else { MORE };
            let line = match self.line(prompt)? {
                Line::Text(line) => line,
                Line::GivenUp => return Ok(Input::Nothing),
                Line::End if text.trim().is_empty() => return Ok(Input::End),
                // The end of a pipe ends the text too.
                Line::End => break,
            };
            if text.len() + line.len() > TEXT_BYTES_MAX {
                bail!("a message is too long; accepted: at most {TEXT_BYTES_MAX} bytes");
            }
            open = open.add(&mut text, &line);
            if open == Open::No {
                break;
            }
        }
        if text.trim().is_empty() {
            return Ok(Input::Nothing);
        }
        self.remember(&text);
        Ok(Input::Text(text))
    }

    fn line(&mut self, prompt: &str) -> Result<Line> {
        match &mut self.source {
            Source::Terminal { editor, .. } => match editor.readline(prompt) {
                Ok(line) => Ok(Line::Text(line)),
                Err(ReadlineError::Interrupted) => {
                    out::note("(Ctrl-D or /quit ends)");
                    Ok(Line::GivenUp)
                }
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(error) => Err(error).context("cannot read from the terminal"),
            },
            Source::Pipe => {
                let mut bytes = Vec::new();
                let stdin = io::stdin().lock();
                let read = stdin
                    .take(TEXT_BYTES_MAX as u64)
                    .read_until(b'\n', &mut bytes);
                if read.context("cannot read standard input")? == 0 {
                    return Ok(Line::End);
                }
                let Ok(text) = String::from_utf8(bytes) else {
                    bail!("standard input is not UTF-8");
                };
                let text = text.strip_suffix('\n').unwrap_or(&text);
                Ok(Line::Text(
                    text.strip_suffix('\r').unwrap_or(text).to_owned(),
                ))
            }
        }
    }

    fn remember(&mut self, text: &str) {
        if let Source::Terminal { editor, history } = &mut self.source {
            let _ = editor.add_history_entry(text);
            if let Some(path) = history {
                if let Some(parent) = path.parent() {
                    let _ = std::fs::create_dir_all(parent);
                }
                // Each time, because a chat may end in any way.
                let _ = editor.save_history(path);
            }
        }
    }
}

enum Line {
    Text(String),
    GivenUp,
    End,
}

/// Whether more lines belong to the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    No,
    Backslash,
    Quotes,
}

impl Open {
    /// Adds a line to the text; what is open afterwards.
    fn add(self, text: &mut String, line: &str) -> Open {
        match self {
            Open::No if line.trim_start().starts_with(QUOTES) => {
                let rest = line.trim_start().trim_start_matches(QUOTES);
                Open::Quotes.add_quoted(text, rest, true)
            }
            Open::Quotes => Open::Quotes.add_quoted(text, line, false),
            Open::No | Open::Backslash => match line.strip_suffix('\\') {
                Some(line) => {
                    text.push_str(line);
                    text.push('\n');
                    Open::Backslash
                }
                None => {
                    text.push_str(line);
                    Open::No
                }
            },
        }
    }

    fn add_quoted(self, text: &mut String, line: &str, first: bool) -> Open {
        let (line, open) = match line.trim_end().strip_suffix(QUOTES) {
            Some(line) => (line, Open::No),
            None => (line, self),
        };
        // No empty line at either end, where the quotes stand alone.
        if !(line.is_empty() && (first || open == Open::No)) {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(line);
        }
        open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(lines: &[&str]) -> (String, Open) {
        let mut text = String::new();
        let mut open = Open::No;
        for line in lines {
            open = open.add(&mut text, line);
        }
        (text, open)
    }

    #[test]
    fn lines_that_belong_together() {
        assert_eq!(join(&["a"]), ("a".into(), Open::No));
        assert_eq!(join(&["a\\", "b"]), ("a\nb".into(), Open::No));
        assert_eq!(join(&["a\\"]), ("a\n".into(), Open::Backslash));
        assert_eq!(
            join(&["\"\"\"", "a", "", "b\\", "\"\"\""]),
            ("a\n\nb\\".into(), Open::No)
        );
        assert_eq!(join(&["\"\"\"a", "b\"\"\""]), ("a\nb".into(), Open::No));
        assert_eq!(
            join(&["\"\"\"one line\"\"\""]),
            ("one line".into(), Open::No)
        );
        assert_eq!(join(&["\"\"\"", "a"]), ("a".into(), Open::Quotes));
        assert_eq!(
            join(&["say \"\"\" inside"]),
            ("say \"\"\" inside".into(), Open::No)
        );
    }
}
