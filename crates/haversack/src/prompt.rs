//! A message or a text to complete, before it is sent: how long the answer may be, how it is sampled, what form it has.

use crate::answer::{Answer, AnswerStream};
use crate::client::{AnswerEvents, Client};
use crate::error::Error;
use crate::options::EventOptions;
use haversack_conversations::scheduler::{Priority, Request, RequestKind};
use haversack_conversations::session::Requester;
use haversack_engine::runtime::GenerateOptions;
use haversack_engine::sample::{Constraint, SampleOptions};
use haversack_memory::clock::now_ms;
use haversack_text::chat::MessageSpan;
use haversack_text::tokenizer::EncodeOptions;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Tokens of an answer where the caller names no limit.
const MAX_TOKENS: usize = 1024;

enum Target {
    Completion,
    /// The same of a text that is tokens already.
    Tokens(Vec<u32>),
    Conversation(String),
}

/// Events that an answer without a limit may be behind.
const BEHIND_MAX: usize = 1 << 16;

/// A request that is being put together: a prompt or a message, how it is sampled, where it ends.
#[must_use = "nothing is computed before `send`, `run` or `.await`"]
pub struct Prompt {
    client: Arc<Client>,
    target: Target,
    text: String,
    options: GenerateOptions,
    sample: SampleOptions,
    constraint: Option<Box<dyn Constraint>>,
    #[cfg(feature = "grammar")]
    shape: Option<Result<haversack_grammar::Shape, Error>>,
    priority: Priority,
    owner: Requester,
    timeout: Option<Duration>,
    continues: bool,
    borders: Vec<usize>,
    messages: Vec<MessageSpan>,
}

impl Prompt {
    pub(crate) fn completion(client: Arc<Client>, text: String) -> Prompt {
        Prompt::new(client, Target::Completion, text)
    }

    pub(crate) fn message(client: Arc<Client>, conversation: String, text: String) -> Prompt {
        Prompt::new(client, Target::Conversation(conversation), text)
    }

    pub(crate) fn tokens(client: Arc<Client>, tokens: Vec<u32>) -> Prompt {
        Prompt::new(client, Target::Tokens(tokens), String::new())
    }

    fn new(client: Arc<Client>, target: Target, text: String) -> Prompt {
        Prompt {
            client,
            text,
            options: GenerateOptions {
                // A session has a usual length of its own.
                tokens_max: match target {
                    Target::Conversation(_) => None,
                    Target::Completion | Target::Tokens(_) => Some(MAX_TOKENS),
                },
                ..GenerateOptions::default()
            },
            target,
            sample: SampleOptions::default(),
            constraint: None,
            #[cfg(feature = "grammar")]
            shape: None,
            priority: Priority::default(),
            owner: Requester::default(),
            timeout: None,
            continues: false,
            borders: Vec::new(),
            messages: Vec::new(),
        }
    }

    /// Tokens of the answer; 1024 unless said, less in a conversation with a small capacity. More than a conversation has
    /// room for is refused. `None`: what is usual in a conversation; otherwise until the model ends it or the context is
    /// full.
    pub fn max_tokens(mut self, tokens: impl Into<Option<usize>>) -> Prompt {
        self.options.tokens_max = tokens.into();
        self
    }

    /// Goes on where the model would end the answer.
    pub fn ignore_end(mut self, ignores: bool) -> Prompt {
        self.options.ignore_end = ignores;
        self
    }

    /// Ends an answer that repeats itself over and over
    /// ([`Finish::Repetition`](haversack_engine::runtime::Finish::Repetition)); off unless said, and never with
    /// [`Prompt::ignore_end`].
    pub fn stop_repetition(mut self, stops: bool) -> Prompt {
        self.options.stop_repetition = stops;
        self
    }

    /// 0, the default, takes the likeliest token.
    pub fn temperature(mut self, temperature: f32) -> Prompt {
        self.sample.temperature = temperature;
        self
    }

    /// Samples from this many likeliest tokens; 0 turns it off.
    pub fn top_k(mut self, tokens: usize) -> Prompt {
        self.sample.top_k = tokens;
        self
    }

    /// Samples from the likeliest tokens that together reach this probability; 1 turns it off.
    pub fn top_p(mut self, probability: f32) -> Prompt {
        self.sample.top_p = probability;
        self
    }

    /// Drops tokens below this fraction of the likeliest token's probability; 0 turns it off.
    pub fn min_p(mut self, probability: f32) -> Prompt {
        self.sample.min_p = probability;
        self
    }

    /// The same seed gives the same tokens.
    pub fn seed(mut self, seed: u64) -> Prompt {
        self.sample.seed = seed;
        self
    }

    /// Replaces all sampling options at once; those that suit the model are
    /// [`Model::sampling_defaults`](haversack_engine::Model::sampling_defaults).
    pub fn sample(mut self, options: SampleOptions) -> Prompt {
        self.sample = options;
        self
    }

    /// Ends the answer where this text comes, which is not part of it.
    pub fn stop(mut self, text: impl Into<String>) -> Prompt {
        self.options.stop.push(text.into());
        self
    }

    /// The same for several texts.
    pub fn stops(mut self, texts: impl IntoIterator<Item = String>) -> Prompt {
        self.options.stop.extend(texts);
        self
    }

    /// Whether it goes before requests that nobody waits for.
    pub fn priority(mut self, priority: Priority) -> Prompt {
        self.priority = priority;
        self
    }

    /// Whose request it is: the scheduler serves owners in turn, and the users of each.
    pub fn owner(mut self, owner: impl Into<Requester>) -> Prompt {
        self.owner = owner.into();
        self
    }

    /// Ends the answer after this time, waiting included.
    pub fn timeout(mut self, timeout: Duration) -> Prompt {
        self.timeout = Some(timeout);
        self
    }

    /// Goes on from where the owner's last completion of this kind ended, as far as the texts begin alike. Unlike the
    /// prefix cache it does so under every policy; rows that were evicted then stay evicted.
    pub fn continues(mut self) -> Prompt {
        self.continues = true;
        self
    }

    /// After how many tokens other prompts are likely to depart from this one, such as where a message begins
    /// ([`EncodedChat::borders`](haversack_text::chat::EncodedChat::borders)): the prefix cache has its state of there. No
    /// token depends on it.
    pub fn borders(mut self, borders: Vec<usize>) -> Prompt {
        self.borders = borders;
        self
    }

    /// Where the messages of a prompt in tokens are
    /// ([`EncodedChat::messages`](haversack_text::chat::EncodedChat::messages)): a policy that evicts rows keeps the system
    /// message and headers, or evicts whole turns.
    pub fn messages(mut self, messages: Vec<MessageSpan>) -> Prompt {
        self.messages = messages;
        self
    }

    /// Restricts which tokens may come next.
    pub fn constraint(mut self, constraint: Box<dyn Constraint>) -> Prompt {
        self.constraint = Some(constraint);
        self
    }

    /// The answer is JSON that fits this schema.
    #[cfg(feature = "grammar")]
    pub fn json_schema(mut self, schema: &str) -> Prompt {
        let parsed = serde_json::from_str(schema).map_err(|error| Error::Argument {
            name: "json_schema",
            what: error.to_string(),
        });
        self.shape = Some(parsed.map(haversack_grammar::Shape::Schema));
        self
    }

    /// The answer is text that this regular expression matches as a whole.
    #[cfg(feature = "grammar")]
    pub fn regex(mut self, regex: impl Into<String>) -> Prompt {
        self.shape = Some(Ok(haversack_grammar::Shape::Regex(regex.into())));
        self
    }

    /// The answer is text of this GBNF grammar, as llama.cpp has them.
    #[cfg(feature = "grammar")]
    pub fn gbnf(mut self, grammar: impl Into<String>) -> Prompt {
        self.shape = Some(Ok(haversack_grammar::Shape::Gbnf(grammar.into())));
        self
    }

    /// The answer is text of this Lark grammar, as `llguidance` has them.
    #[cfg(feature = "grammar")]
    pub fn lark(mut self, grammar: impl Into<String>) -> Prompt {
        self.shape = Some(Ok(haversack_grammar::Shape::Lark(grammar.into())));
        self
    }

    /// Blocks until the scheduler has accepted the request.
    pub fn send(self) -> Result<Answer, Error> {
        let (client, options) = (self.client.clone(), self.event_options());
        let events = self.events(options)?;
        Ok(Answer::new(client, events))
    }

    /// The same as events: tokens, log-probabilities, progress.
    pub fn events(self, options: EventOptions) -> Result<AnswerEvents, Error> {
        let client = self.client.clone();
        client.submit_blocking(vec![self.request()?], options)
    }

    /// Blocks until the answer is complete.
    pub fn run(self) -> Result<String, Error> {
        self.send()?.text()
    }

    /// Every token, and the end: an answer may be read whenever its owner likes.
    fn event_options(&self) -> EventOptions {
        let max = self.options.tokens_max.unwrap_or(BEHIND_MAX);
        EventOptions {
            max_behind: max.saturating_add(1),
            ..EventOptions::default()
        }
    }

    fn constrained(&mut self) -> Result<Option<Box<dyn Constraint>>, Error> {
        #[cfg(feature = "grammar")]
        if let Some(shape) = self.shape.take() {
            return self.client.constraint(&shape?).map(Some);
        }
        Ok(self.constraint.take())
    }

    fn request(mut self) -> Result<Request, Error> {
        let constraint = self.constrained()?;
        let model = self.client.model().clone();
        let mut options = std::mem::take(&mut self.options);
        if matches!(self.target, Target::Conversation(_)) && constraint.is_none() {
            let usual = model.template().stop_strings().iter();
            options.stop.extend(usual.map(|text| text.to_string()));
        }
        let deadline = self.timeout.map(|timeout| self.client.now() + timeout);
        let kind = match self.target {
            Target::Tokens(prompt) => RequestKind::Completion { prompt, rows: None },
            Target::Completion => {
                let encode = EncodeOptions {
                    add_special: true,
                    parse_special: false,
                };
                RequestKind::Completion {
                    prompt: model.tokenizer().encode(&self.text, encode)?,
                    rows: None,
                }
            }
            Target::Conversation(session) => RequestKind::Turn {
                session,
                embedding: self.client.question_embedding(&self.text),
                tokens: Some(self.client.texts()?.question(&self.text)?),
                text: self.text,
                now_ms: now_ms(),
            },
        };
        Ok(Request {
            kind,
            sample: self.sample,
            constraint,
            options,
            priority: self.priority,
            owner: self.owner,
            deadline,
            continues: self.continues,
            borders: self.borders,
            messages: self.messages,
        })
    }
}

/// Sends without blocking. Text becomes tokens, and a schema a grammar, where the future is first polled.
impl IntoFuture for Prompt {
    type Output = Result<AnswerStream, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<AnswerStream, Error>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (client, options) = (self.client.clone(), self.event_options());
            let events = client.submit(vec![self.request()?], options).await?;
            Ok(Answer::new(client, events).into_stream())
        })
    }
}
