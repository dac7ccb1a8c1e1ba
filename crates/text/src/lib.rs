#![forbid(unsafe_code)]
//! Between text and token ids: tokenizers, detokenizing, stop strings, chat templates.

pub mod chat;
pub mod detokenize;
pub mod stop;
pub mod template;
pub mod tokenizer;
