//! A conversation as a page of Markdown: what [`crate::Conversation::export`] returns, `session export` prints and `/export`
//! saves.

use std::path::Path;

/// A page that grows by facts, states and turns. Titles and what is said of damage are one line each.
pub struct ConversationPage(String);

impl ConversationPage {
    /// Begins a page.
    pub fn new(title: &str) -> ConversationPage {
        ConversationPage(format!("# {title}\n\n"))
    }

    /// Says that the file is whole only up to here.
    pub fn damage(&mut self, path: &Path, damage: &str) {
        let path = path.display();
        self.0 +=
            &format!("> The file {path} is damaged: {damage}. This is what comes before it.\n\n");
    }

    /// A fact that was deleted is empty, and not on the page.
    pub fn fact(&mut self, number: u64, text: &str) {
        if !text.is_empty() {
            self.0 += &format!("## Fact {number}\n\n{}\n\n", text.trim_end());
        }
    }

    /// Something that holds until it is replaced.
    pub fn state(&mut self, number: u64, text: &str) {
        self.0 += &format!("## State {number}\n\n{text}\n\n");
    }

    /// A question and its answer, with its date where it was read with one.
    pub fn turn(&mut self, number: u64, date: Option<&str>, question: &str, answer: &str) {
        let date = date.map_or(String::new(), |date| format!(", {date}"));
        self.0 += &format!(
            "## Turn {number}{date}\n\n**User**\n\n{question}\n\n**Assistant**\n\n{answer}\n\n"
        );
    }

    /// The page as text.
    pub fn into_text(self) -> String {
        self.0
    }
}
