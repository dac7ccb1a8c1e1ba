//! What clients send. Fields that are not known are passed over; those that are known and not served are refused in
//! [`super::request`], because an answer that ignores them would be a wrong one.

use serde::Deserialize;
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Of chat and completion requests.
#[derive(Debug, Default, Deserialize)]
pub struct CommonFields {
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
    pub guided_grammar: Option<String>,
    pub guided_json: Option<Json>,
    pub tools: Option<Vec<Json>>,
    #[serde(flatten)]
    pub samplers: SamplerFields,
}

/// Extensions: samplers that few clients know, and the end of answers that repeat themselves.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct SamplerFields {
    pub typical_p: Option<f32>,
    pub top_n_sigma: Option<f32>,
    pub xtc_probability: Option<f32>,
    pub xtc_threshold: Option<f32>,
    pub dry_multiplier: Option<f32>,
    pub dry_base: Option<f32>,
    pub dry_allowed_length: Option<u64>,
    pub dry_sequence_breakers: Option<Vec<String>>,
    /// -1: as many as there may be.
    pub dry_penalty_last_n: Option<i64>,
    pub stop_repetition: Option<bool>,
}

impl CommonFields {
    /// Answers to the request.
    pub fn choices(&self) -> u64 {
        self.n.unwrap_or(1)
    }
}

#[derive(Debug, Deserialize)]
pub struct ChatRequest {
    pub messages: Vec<ChatMessage>,
    pub tool_choice: Option<Json>,
    /// `false`: at most one call.
    pub parallel_tool_calls: Option<bool>,
    pub logprobs: Option<bool>,
    pub top_logprobs: Option<u64>,
    /// The session to continue, which is created if there is none.
    pub session_id: Option<String>,
    /// Of a session that this request creates: lasting facts are found in what the user says, and added.
    pub auto_facts: Option<bool>,
    /// The same: the date goes before what the user says.
    pub dates: Option<bool>,
    #[serde(flatten)]
    pub common: CommonFields,
}

/// Which functions an answer may call, in responses.
#[derive(Debug, Deserialize)]
pub struct ToolFields {
    pub tools: Option<Vec<Json>>,
    pub tool_choice: Option<Json>,
    /// `false`: at most one call.
    pub parallel_tool_calls: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub struct CompletionRequest {
    pub prompt: CompletionPrompt,
    pub logprobs: Option<u64>,
    pub echo: Option<bool>,
    pub suffix: Option<String>,
    pub best_of: Option<u64>,
    #[serde(flatten)]
    pub common: CommonFields,
}

#[derive(Debug, Deserialize)]
pub struct ChatMessage {
    pub role: String,
    pub content: Option<MessageContent>,
    /// Calls that the assistant made.
    pub tool_calls: Option<Vec<Json>>,
    /// Which call this message answers.
    pub tool_call_id: Option<String>,
    pub name: Option<String>,
    /// When a message of a history was said, in milliseconds since 1970.
    pub time_ms: Option<u64>,
}

impl ChatMessage {
    pub fn new(role: &str, text: &str) -> ChatMessage {
        ChatMessage {
            role: role.to_owned(),
            content: Some(MessageContent::Text(text.to_owned())),
            tool_calls: None,
            tool_call_id: None,
            name: None,
            time_ms: None,
        }
    }

    pub fn text(&self) -> String {
        match &self.content {
            None => String::new(),
            Some(MessageContent::Text(text)) => text.clone(),
            Some(MessageContent::Parts(parts)) => {
                let texts = parts.iter().map(|ContentPart::Text { text }| text.as_str());
                texts.collect()
            }
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum MessageContent {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentPart {
    #[serde(alias = "input_text", alias = "output_text")]
    Text { text: String },
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum CompletionPrompt {
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

/// Tokens that attention may see, and what happens to a request that has more.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct ContextLimit {
    pub limit: Option<u64>,
    #[serde(default)]
    pub when_longer: WhenLonger,
    /// First tokens that stay.
    pub anchors: Option<u64>,
    /// With `again`: how many tokens are evicted before the rest is read again.
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
    Turns,
    Adaptive,
}
