//! What clients send. Fields that are not known are passed over; those that are known and not served are refused in
//! [`super::request`], because an answer that ignores them would be a wrong one.

use serde::Deserialize;
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Of both kinds of request.
#[derive(Debug, Default, Deserialize)]
pub struct Common {
    pub model: Option<String>,
    pub max_tokens: Option<u64>,
    pub max_completion_tokens: Option<u64>,
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u64>,
    pub min_p: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub logit_bias: Option<BTreeMap<String, f32>>,
    pub seed: Option<i64>,
    pub n: Option<u64>,
    pub stop: Option<OneOrMany>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    pub user: Option<String>,
    pub context: Option<ContextLimit>,
    pub response_format: Option<Json>,
    pub grammar: Option<Json>,
    pub guided_regex: Option<String>,
    pub guided_json: Option<Json>,
    pub tools: Option<Vec<Json>>,
}

#[derive(Debug, Deserialize)]
pub struct ChatRequest {
    pub messages: Vec<ChatMessage>,
    pub tool_choice: Option<Json>,
    /// `false`: one call at most.
    pub parallel_tool_calls: Option<bool>,
    pub logprobs: Option<bool>,
    pub top_logprobs: Option<u64>,
    /// The conversation that it goes on with, which is made if there is none.
    pub session_id: Option<String>,
    /// The same, if what it is called has that conversation; else nothing is gone on with.
    pub prompt_cache_key: Option<String>,
    #[serde(flatten)]
    pub common: Common,
}

#[derive(Debug, Deserialize)]
pub struct CompletionRequest {
    pub prompt: Prompt,
    pub logprobs: Option<u64>,
    pub echo: Option<bool>,
    pub suffix: Option<String>,
    pub best_of: Option<u64>,
    #[serde(flatten)]
    pub common: Common,
}

#[derive(Debug, Deserialize)]
pub struct ChatMessage {
    pub role: String,
    pub content: Option<Content>,
    /// Of an assistant that called.
    pub tool_calls: Option<Vec<Json>>,
    /// Of a tool that answers.
    pub tool_call_id: Option<String>,
    pub name: Option<String>,
}

impl ChatMessage {
    pub fn new(role: &str, text: &str) -> ChatMessage {
        ChatMessage {
            role: role.to_owned(),
            content: Some(Content::Text(text.to_owned())),
            tool_calls: None,
            tool_call_id: None,
            name: None,
        }
    }

    pub fn text(&self) -> String {
        match &self.content {
            None => String::new(),
            Some(Content::Text(text)) => text.clone(),
            Some(Content::Parts(parts)) => parts.iter().map(Part::text).collect(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    Text { text: String },
    InputText { text: String },
    OutputText { text: String },
}

impl Part {
    fn text(&self) -> &str {
        match self {
            Part::Text { text } | Part::InputText { text } | Part::OutputText { text } => text,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub fn as_slice(&self) -> &[String] {
        match self {
            OneOrMany::One(one) => std::slice::from_ref(one),
            OneOrMany::Many(many) => many,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct StreamOptions {
    pub include_usage: Option<bool>,
}

/// Tokens that the answer may look back at, and what becomes of a request that has more.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct ContextLimit {
    pub limit: Option<u64>,
    #[serde(default)]
    pub when_longer: WhenLonger,
    /// First tokens that stay.
    pub anchors: Option<u64>,
    /// With `again`: how many tokens leave before the rest is read again.
    pub every: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenLonger {
    #[default]
    Refuse,
    Truncate,
    Window,
    Again,
    Heavy,
    Snap,
    Adaptive,
}
