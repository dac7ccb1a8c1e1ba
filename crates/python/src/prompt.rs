//! How an answer is sampled and where it ends, as the dictionary that Python passes.

use haversack::Prompt;
use pyo3::prelude::*;
use std::time::Duration;

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct PromptOptions {
    max_tokens: Option<usize>,
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    seed: u64,
    stop: Vec<String>,
    /// Which form the answer has, and its text: a JSON schema, a regular expression, a grammar.
    form: Option<(String, String)>,
    timeout_ms: Option<u64>,
    ignore_end: bool,
    stop_repetition: bool,
}

impl PromptOptions {
    pub fn apply(self, prompt: Prompt) -> Prompt {
        let mut prompt = prompt
            .temperature(self.temperature)
            .top_k(self.top_k)
            .top_p(self.top_p)
            .min_p(self.min_p)
            .seed(self.seed)
            .stops(self.stop)
            .ignore_end(self.ignore_end)
            .stop_repetition(self.stop_repetition);
        if self.max_tokens.is_some() {
            prompt = prompt.max_tokens(self.max_tokens);
        }
        if let Some(ms) = self.timeout_ms {
            prompt = prompt.timeout(Duration::from_millis(ms));
        }
        match &self.form {
            None => prompt,
            Some((form, text)) => match form.as_str() {
                "json_schema" => prompt.json_schema(text),
                "regex" => prompt.regex(text),
                "gbnf" => prompt.gbnf(text),
                _ => prompt.lark(text),
            },
        }
    }
}
