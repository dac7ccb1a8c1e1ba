//! Tool calls: told from the text of an answer ([`CallReader`]), and held to the schemas of their functions
//! ([`constraint`]) from where a name is known.

pub mod constraint;
mod opening;
mod reader;

pub use reader::{AnswerPart, CallReader, Functions, ToolCall};
