//! Chat templates: Jinja programs from a model file, run in a sandbox.
//!
//! A template is a program that a stranger put into a model file, so it is treated as hostile: it sees the
//! messages, the special tokens and a clock that was handed in, and nothing else; it cannot load, import or
//! call out; and its time, memory, depth and output are bounded by counts (module `limits`), so that it ends
//! within a second and a few tens of MiB whatever it says. It ends in a prompt or in a [`TemplateError`] of one
//! line. A broken template never prevents loading a model or plain completion: the error is kept and reported
//! when a chat is rendered.
//!
//! The interpreter is our own. A general engine evaluates `s ~ s`, `l == l` or a mapping with a nested key
//! inside its virtual machine: fuel counts the instruction, not the bytes copied or the nodes compared, so
//! sixty doublings or a list of lists of the same list cost 2^60 of something that nothing counts, and a
//! thread that runs away cannot be stopped. Here each such operation is charged before it happens. What is
//! left out is what chat templates do not use: inheritance, imports, recursive loops, autoescaping.
//!
//! Semantics follow the environment that templates are written and tested in: Jinja 2 with `trim_blocks`,
//! `lstrip_blocks`, loop controls, the immutable sandbox, and `raise_exception`, `strftime_now`, `tojson`
//! and `{% generation %}` added. Printing, truth and comparisons are Python's.
//!
//! ```text
//! source ──lexer──► tokens ──parser──► tree (kept) ──eval──► prompt
//!                                                     ├ filters, methods, ops, time
//!                                                     └ value, limits: what exists and what it costs
//! ```

mod ast;
mod call;
mod error;
mod eval;
mod filters;
mod lexer;
mod limits;
mod methods;
mod ops;
mod parser;
mod plain;
mod time;
mod value;

pub use error::TemplateError;
pub use limits::{INPUT_BYTES_MAX, LIVE_BYTES_MAX, OUTPUT_BYTES_MAX, SOURCE_BYTES_MAX, STEPS_MAX};
pub use time::date_in_words;

use limits::{MESSAGE_BYTES, Meter, Outcome, PART_BYTES, STACK_BYTES, limit};
use std::sync::Arc;
use value::Value;

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub role: String,
    pub content: String,
    /// What else a template may ask it for, such as `tool_calls`.
    pub fields: Vec<(String, Variable)>,
}

impl Message {
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message {
            role: role.into(),
            content: content.into(),
            fields: Vec::new(),
        }
    }
}

/// What a template may be given by name, such as `enable_thinking`, `date_string` or `tools`: all that JSON can say.
#[derive(Debug, Clone, PartialEq)]
pub enum Variable {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Variable>),
    Map(Vec<(String, Variable)>),
}

/// JSON has no number that differs from itself.
impl Eq for Variable {}

impl Variable {
    /// The same with every text, names included, as `change` makes it.
    pub fn map_texts(&self, change: &dyn Fn(&str) -> String) -> Variable {
        match self {
            Variable::Text(text) => Variable::Text(change(text)),
            Variable::List(items) => {
                let items = items.iter().map(|item| item.map_texts(change));
                Variable::List(items.collect())
            }
            Variable::Map(entries) => {
                let entries = entries.iter();
                let entries = entries.map(|(name, value)| (change(name), value.map_texts(change)));
                Variable::Map(entries.collect())
            }
            other => other.clone(),
        }
    }

    /// Every text in it, names included.
    pub fn texts<'a>(&'a self, into: &mut Vec<&'a str>) {
        match self {
            Variable::Text(text) => into.push(text),
            Variable::List(items) => items.iter().for_each(|item| item.texts(into)),
            Variable::Map(entries) => {
                for (name, value) in entries {
                    into.push(name);
                    value.texts(into);
                }
            }
            _ => {}
        }
    }

    /// What it counts: its texts, and the value each part of it becomes.
    fn bytes(&self) -> usize {
        let inner = match self {
            Variable::Text(text) => text.len(),
            Variable::List(items) => items.iter().map(Variable::bytes).sum(),
            Variable::Map(entries) => entries.iter().map(entry_bytes).sum(),
            _ => 0,
        };
        inner.saturating_add(PART_BYTES)
    }

    fn value(&self, meter: &Meter) -> Outcome<Value> {
        Ok(match self {
            Variable::None => Value::None,
            Variable::Bool(b) => Value::Bool(*b),
            Variable::Int(i) => Value::Int(*i),
            Variable::Float(f) => Value::Float(*f),
            Variable::Text(text) => Value::given(text),
            Variable::List(items) => {
                let items = items.iter().map(|item| item.value(meter));
                Value::list(meter, items.collect::<Outcome<_>>()?)?
            }
            Variable::Map(entries) => {
                let entries = entries.iter().map(|entry| entry_value(entry, meter));
                Value::dict(meter, entries.collect::<Outcome<_>>()?)?
            }
        })
    }
}

fn entry_bytes((name, value): &(String, Variable)) -> usize {
    name.len() + value.bytes()
}

fn entry_value((name, value): &(String, Variable), meter: &Meter) -> Outcome<(Value, Value)> {
    Ok((Value::given(name), value.value(meter)?))
}

/// What a render depends on besides the messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RenderOptions {
    /// End with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// What `strftime_now` shows: seconds since 1970 in the time zone to show. Data, so that a render is pure.
    pub now_unix_seconds: i64,
    /// Further variables; a name given here hides a predefined one.
    pub variables: Vec<(String, Variable)>,
}

impl RenderOptions {
    /// Messages that end with the opening of the assistant's turn. `now` is the time since 1970.
    pub fn to_answer(now: std::time::Duration) -> RenderOptions {
        RenderOptions {
            add_generation_prompt: true,
            now_unix_seconds: i64::try_from(now.as_secs()).unwrap_or(0),
            ..RenderOptions::default()
        }
    }
}

#[derive(Debug, Clone)]
enum Form {
    Plain,
    Parsed(Arc<Vec<ast::Stmt>>),
    Broken(TemplateError),
}

/// The chat format of a model: its template, or the plain format (module `plain`) when it has none.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    form: Form,
    bos: String,
    eos: String,
    knows_tools: bool,
}

impl ChatTemplate {
    /// Parses `source`. A source that cannot be used is not an error here: see [`ChatTemplate::source_error`].
    pub fn new(source: Option<&str>, bos: &str, eos: &str) -> ChatTemplate {
        let form = match source {
            None => Form::Plain,
            Some(source) => {
                let parsed = contained(|| parser::parse(source).map(Arc::new));
                parsed.map_or_else(Form::Broken, Form::Parsed)
            }
        };
        ChatTemplate {
            form,
            bos: bos.to_owned(),
            eos: eos.to_owned(),
            knows_tools: source.is_some_and(|source| source.contains("tools")),
        }
    }

    /// A model whose template is there but is not text: it loads, and rendering says why it cannot.
    pub fn unusable(why: &str) -> ChatTemplate {
        ChatTemplate {
            form: Form::Broken(TemplateError::Source(why.to_owned())),
            ..ChatTemplate::new(None, "", "")
        }
    }

    /// Whether the template looks at `tools`. One that does not would leave them out.
    pub fn knows_tools(&self) -> bool {
        self.knows_tools
    }

    /// Why the source cannot be used, if so; rendering answers the same.
    pub fn source_error(&self) -> Option<&TemplateError> {
        match &self.form {
            Form::Broken(error) => Some(error),
            _ => None,
        }
    }

    /// Strings that end an answer, beyond the model's own end tokens: those of the plain format.
    pub fn stop_strings(&self) -> &'static [&'static str] {
        match self.form {
            Form::Plain => &plain::STOP_STRINGS,
            _ => &[],
        }
    }

    /// The prompt for these messages.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Outcome<String> {
        let message_bytes = |m: &Message| {
            let fields: usize = m.fields.iter().map(entry_bytes).sum();
            m.role.len() + m.content.len() + fields
        };
        let input: usize = messages.iter().map(message_bytes).sum();
        let variables = options.variables.iter().map(|(_, value)| value.bytes());
        let input = input + variables.sum::<usize>();
        // A message costs the template a mapping even when it is empty.
        let input = input.saturating_add(messages.len().saturating_mul(MESSAGE_BYTES));
        limit(input > INPUT_BYTES_MAX, "the messages are too long")?;
        match &self.form {
            Form::Plain => plain::render(messages, options.add_generation_prompt),
            Form::Broken(error) => Err(error.clone()),
            Form::Parsed(body) => contained(|| self.interpret(body, messages, options)),
        }
    }

    fn interpret(
        &self,
        body: &[ast::Stmt],
        messages: &[Message],
        options: &RenderOptions,
    ) -> Outcome<String> {
        // The messages are the caller's, already bounded: metered apart.
        let given = Meter::default();
        let (role, content) = (Value::given("role"), Value::given("content"));
        let mut list = Vec::with_capacity(messages.len());
        for message in messages {
            let mut entries = vec![
                (role.clone(), Value::given(&message.role)),
                (content.clone(), Value::given(&message.content)),
            ];
            for field in &message.fields {
                entries.push(entry_value(field, &given)?);
            }
            list.push(Value::dict(&given, entries)?);
        }
        let add_prompt = Value::Bool(options.add_generation_prompt);
        let mut variables: Vec<(ast::Name, Value)> = vec![
            ("messages".into(), Value::list(&given, list)?),
            ("bos_token".into(), Value::given(&self.bos)),
            ("eos_token".into(), Value::given(&self.eos)),
            ("add_generation_prompt".into(), add_prompt),
            ("tools".into(), Value::None),
            ("documents".into(), Value::None),
        ];
        for (name, value) in &options.variables {
            variables.retain(|(have, _)| **have != **name);
            variables.push((name.as_str().into(), value.value(&given)?));
        }
        let meter = Meter::default();
        eval::Interpreter::new(&meter, options.now_unix_seconds, variables).run(body)
    }
}

/// Runs on a stack of known size, whatever the caller has left of its own, and contains a panic.
fn contained<T: Send>(work: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("template".to_owned())
            .stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, work) {
            Ok(handle) => handle.join().unwrap_or(Err(TemplateError::Internal)),
            Err(_) => Err(TemplateError::Internal),
        }
    })
}
