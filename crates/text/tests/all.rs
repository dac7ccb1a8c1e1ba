//! Tests of tokenizers and templates: one program, because each costs a link.

mod template;
mod tokenizer;
mod tokenizer_common;
mod tokenizer_defects;
mod tokenizer_models;
