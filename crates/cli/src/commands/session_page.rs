//! A conversation as a page of Markdown: what `session export` prints, and `/export` saves.

use crate::error::one_line;
use std::path::Path;

pub struct ConversationPage(String);

impl ConversationPage {
    pub fn new(title: &str) -> ConversationPage {
        ConversationPage(format!("# {}\n\n", one_line(title)))
    }

    pub fn damage(&mut self, path: &Path, damage: &str) {
        let (path, damage) = (path.display(), one_line(damage));
        self.0 +=
            &format!("> The file {path} is damaged: {damage}. This is what comes before it.\n\n");
    }

    /// A fact that was deleted is empty, and not on the page.
    pub fn fact(&mut self, number: u64, text: &str) {
        if !text.is_empty() {
            self.0 += &format!("## Fact {number}\n\n{}\n\n", text.trim_end());
        }
    }

    pub fn state(&mut self, number: u64, text: &str) {
        self.0 += &format!("## State {number}\n\n{text}\n\n");
    }

    pub fn turn(&mut self, number: u64, question: &str, answer: &str) {
        self.0 +=
            &format!("## Turn {number}\n\n**User**\n\n{question}\n\n**Assistant**\n\n{answer}\n\n");
    }

    pub fn into_text(self) -> String {
        self.0
    }
}
