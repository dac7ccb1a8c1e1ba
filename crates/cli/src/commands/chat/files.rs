//! Files in a chat: texts that go with a message, and answers that are saved.

use crate::error::{one_line, usage};
use crate::markdown::code_blocks;
use crate::{out, save};
use anyhow::{Context, Result, bail};
use std::env;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Of the files of one message together: some 300,000 tokens, which takes a small machine an hour to read.
const BYTES_MAX: u64 = 1 << 20;

/// Text files that go with the next message.
#[derive(Default)]
pub struct Attachments(Vec<Attachment>);

struct Attachment {
    name: String,
    text: String,
}

impl Attachments {
    /// Does what `/file` says; the message to send at once, if it says one.
    pub fn command(&mut self, argument: Option<&str>) -> Result<Option<String>> {
        let Some(argument) = argument else {
            if self.0.is_empty() {
                return Err(usage("/file PATH [QUESTION] needs the path of a text file"));
            }
            for file in &self.0 {
                out::line(&format!("{:>9} bytes  {}", file.text.len(), file.name))?;
            }
            return Ok(None);
        };
        // A path with blanks needs no quotes where nothing follows it.
        let (path, question) = match expand(argument).is_file() {
            true => (argument, ""),
            false => path_and_rest(argument),
        };
        let name = self.add(&expand(path))?;
        if !question.is_empty() {
            return Ok(Some(self.with(question)));
        }
        out::note(&format!("{name} goes with the next message"));
        Ok(None)
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    fn add(&mut self, path: &Path) -> Result<String> {
        let text = read(path)?;
        let before = self
            .0
            .iter()
            .map(|file| file.text.len() as u64)
            .sum::<u64>();
        let bytes = text.len() as u64;
        let shown = path.display();
        if before + bytes > BYTES_MAX {
            bail!(
                "{shown} has {bytes} bytes, files attached before it {before}; accepted: at most {BYTES_MAX} together"
            );
        }
        let name = path.file_name().unwrap_or(path.as_os_str());
        let name = one_line(&name.to_string_lossy());
        self.0.push(Attachment {
            name: name.clone(),
            text,
        });
        Ok(name)
    }

    /// The message, with the files before it. They are attached no more.
    pub fn with(&mut self, message: &str) -> String {
        let mut whole = String::new();
        for Attachment { name, text } in self.0.drain(..) {
            let fence = "`".repeat(longest_run(&text).max(2) + 1);
            let line_end = if text.ends_with('\n') { "" } else { "\n" };
            let label = Path::new(&name).extension().unwrap_or_default();
            let label = label.to_str().filter(|label| !label.contains('`'));
            let label = label.unwrap_or_default();
            whole += &format!("File {name}:\n\n{fence}{label}\n{text}{line_end}{fence}\n\n");
        }
        whole + message
    }
}

fn longest_run(text: &str) -> usize {
    let runs = text.split(|c| c != '`').map(str::len);
    runs.max().unwrap_or(0)
}

/// The text of a file. Nothing but files is opened: reading a pipe or a device would never end.
fn read(path: &Path) -> Result<String> {
    let shown = path.display();
    let doing = || format!("cannot read {shown}");
    let metadata = path.metadata().with_context(doing)?;
    if metadata.is_dir() {
        bail!("{shown} is a directory, not a text file");
    }
    if !metadata.is_file() {
        bail!("{shown} is not a file");
    }
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(doing)?;
    let read = file.take(BYTES_MAX + 1).read_to_end(&mut bytes);
    read.with_context(doing)?;
    let size = metadata.len().max(bytes.len() as u64);
    if bytes.len() as u64 > BYTES_MAX {
        bail!("{shown} has {size} bytes; accepted: at most {BYTES_MAX}");
    }
    if bytes.contains(&0) {
        bail!("{shown} is a binary file; accepted: UTF-8 text");
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow::anyhow!("{shown} is not UTF-8 text: byte {at} does not belong there")
    })?;
    if text.trim().is_empty() {
        bail!("{shown} is empty");
    }
    Ok(text
        .strip_prefix('\u{feff}')
        .map(str::to_owned)
        .unwrap_or(text))
}

/// The path that begins an argument, in quotes or up to a blank, and what follows it.
fn path_and_rest(argument: &str) -> (&str, &str) {
    let quoted = argument.chars().next().filter(|c| matches!(c, '"' | '\''));
    let quoted = quoted.and_then(|quote| argument[1..].split_once(quote));
    let (path, rest) = quoted
        .or_else(|| argument.split_once(char::is_whitespace))
        .unwrap_or((argument, ""));
    (path, rest.trim())
}

/// `~` is the folder of the user.
fn expand(path: &str) -> PathBuf {
    let rest = path
        .strip_prefix('~')
        .filter(|rest| rest.is_empty() || rest.starts_with(['/', '\\']));
    let home = env::var_os("HOME").or_else(|| env::var_os("USERPROFILE"));
    match (rest, home) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest.trim_start_matches(['/', '\\'])),
        _ => PathBuf::from(path),
    }
}

/// Where `/copy` and `/export` write.
pub struct SaveAs<'a> {
    pub argument: Option<&'a str>,
    /// A file that is there is replaced.
    pub replaces: bool,
}

impl SaveAs<'_> {
    /// Saves an answer, or one of its code blocks.
    pub fn copy(&self, answer: Option<String>) -> Result<()> {
        let (path, which) = self.argument.map(path_and_rest).ok_or_else(|| {
            usage("/copy FILE saves the last answer, /copy FILE N its N-th code block")
        })?;
        let answer = answer.ok_or_else(|| usage("there is no answer yet"))?;
        let text = match which {
            "" => answer,
            which => block(&answer, which)?,
        };
        self.save(path, text, "/copy!")
    }

    /// Saves a whole conversation.
    pub fn export(&self, page: impl FnOnce() -> Result<String>) -> Result<()> {
        let path = self
            .argument
            .ok_or_else(|| usage("/export FILE saves the conversation as Markdown"))?;
        let path = match path_and_rest(path) {
            (quoted, "") => quoted,
            _ => path,
        };
        self.save(path, page()?, "/export!")
    }

    fn save(&self, path: &str, mut text: String, replacing: &str) -> Result<()> {
        if !text.ends_with('\n') {
            text.push('\n');
        }
        let path = expand(path);
        match self.replaces {
            true => save::replace(&path, &text)?,
            false => save::write_new(&path, &text, &format!("{replacing} FILE replaces it"))?,
        }
        let (bytes, path) = (text.len(), one_line(&path.display().to_string()));
        out::note(&format!("saved {path}, {bytes} bytes"));
        Ok(())
    }
}

/// `code`: the last; a number: counted from 1.
fn block(answer: &str, which: &str) -> Result<String> {
    let mut blocks = code_blocks(answer);
    let count = blocks.len();
    if count == 0 {
        return Err(usage("the last answer has no code block"));
    }
    let at = match which {
        "code" => Some(count),
        which => which.parse::<usize>().ok(),
    };
    match at.filter(|at| (1..=count).contains(at)) {
        Some(at) => Ok(blocks.swap_remove(at - 1)),
        None => Err(usage(format!(
            "'{which}' is no code block of the last answer; accepted: code, or a number in 1..={count}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_and_without_quotes() {
        assert_eq!(path_and_rest("a.txt"), ("a.txt", ""));
        assert_eq!(path_and_rest("a.txt  why? "), ("a.txt", "why?"));
        assert_eq!(path_and_rest("\"a b.txt\" why?"), ("a b.txt", "why?"));
        assert_eq!(path_and_rest("'a b'"), ("a b", ""));
        assert_eq!(path_and_rest("\"a b"), ("\"a", "b"));
        assert_eq!(path_and_rest("'"), ("'", ""));
        assert_eq!(expand("~x/~"), PathBuf::from("~x/~"));
        assert!(expand("~/x").ends_with("x") && !expand("~/x").starts_with("~"));
    }

    #[test]
    fn a_file_comes_before_the_message_in_a_fence_that_it_cannot_close() {
        let file = |name: &str, text: &str| Attachment {
            name: name.into(),
            text: text.into(),
        };
        let mut files = Attachments(vec![file("a.md", "x\n````\n"), file("b", "y")]);
        assert_eq!(
            files.with("Why?"),
            "File a.md:\n\n`````md\nx\n````\n`````\n\nFile b:\n\n```\ny\n```\n\nWhy?"
        );
        assert_eq!(files.with("And?"), "And?");
    }

    #[test]
    fn one_code_block_of_an_answer() {
        let answer = "```\na\n```\n```\nb\n```";
        assert_eq!(block(answer, "code").unwrap(), "b\n");
        assert_eq!(block(answer, "1").unwrap(), "a\n");
        for which in ["0", "3", "-1", "x", "99999999999999999999"] {
            let error = block(answer, which).unwrap_err().to_string();
            assert!(error.contains(which) && error.contains("1..=2"), "{error}");
        }
        assert!(block("none", "1").is_err());
    }
}
