//! What holds the calls of an answer to the schemas of their functions.
//!
//! Text is free. While a name is written that may become a function's, a token that would complete it is allowed only where the
//! grammar can go on behind it; from there to the end of the call every token is the grammar's to allow.

use super::opening::CallForm;
use super::reader::{ARGUMENTS, CallReader, Functions, Stage};
use crate::state::GrammarState;
use crate::{GrammarError, limits, schema};
use haversack_engine::sample::{Constraint, ConstraintError};
use llguidance::toktrie::{SimpleVob, TokEnv, TokTrie};
use serde_json::Value as Json;
use std::fmt::Write as _;

/// A function that an answer may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    pub name: String,
    /// What its arguments are: a schema of an object. Without one it takes none.
    pub parameters: Option<Json>,
}

/// What calls look like.
#[derive(Clone, Debug, PartialEq)]
pub struct Calls {
    pub functions: Vec<Function>,
    /// The answer is a call, and nothing else.
    pub must: bool,
    /// It ends with its first call.
    pub once: bool,
}

/// Calls as a grammar, and what it is counted by.
pub struct CheckedCalls {
    pub lark: String,
    pub bytes: usize,
    pub alternative_bytes: usize,
}

impl Calls {
    pub fn reader(&self) -> CallReader {
        let names = self.functions.iter().map(|function| function.name.clone());
        CallReader::new(Functions {
            names: names.collect(),
            once: self.once,
        })
    }

    /// One call from its opening on, in each of the forms.
    pub fn check(&self) -> Result<CheckedCalls, GrammarError> {
        let mut checked = CheckedCalls {
            lark: String::new(),
            bytes: 0,
            alternative_bytes: 0,
        };
        // The token that ends a call may hold the beginning of what follows.
        let after = if self.must { "" } else { "(?s:.*)" };
        let mut starts = Vec::new();
        for (i, function) in self.functions.iter().enumerate() {
            let parameters = schema::check_parameters(function.parameters.as_ref());
            let parameters = parameters.map_err(|error| error.of_function(&function.name))?;
            checked.bytes += parameters.bytes + function.name.len();
            checked.alternative_bytes += parameters.alternative_bytes;
            let bytes = checked.bytes;
            if bytes > limits::SCHEMA_BYTES {
                return Err(GrammarError::Bytes {
                    what: "schema of all functions",
                    bytes,
                    most: limits::SCHEMA_BYTES,
                });
            }
            let (name, schema) = (literal(&function.name), parameters.schema);
            let lark = &mut checked.lark;
            starts.push(format!("json{i}"));
            let keys = if self.must {
                ARGUMENTS[0].to_owned()
            } else {
                ARGUMENTS.join("|")
            };
            let _ = write!(
                lark,
                r#"json{i}: /\{{{BLANK}"name":{BLANK}"{name}"{BLANK},{BLANK}"({keys})":{BLANK}/ object{i} /{BLANK}\}}{after}/"#
            );
            if !self.must {
                starts.push(format!("tag{i}"));
                let _ = write!(
                    lark,
                    "\ntag{i}: /<function={name}>{BLANK}/ object{i} /{after}/"
                );
                let _ = write!(
                    lark,
                    " | /\\[TOOL_CALLS\\]{name}(\\[ARGS\\])?/ object{i} /{after}/"
                );
            }
            let _ = writeln!(lark, "\nobject{i}: %json {schema}");
        }
        checked
            .lark
            .insert_str(0, &format!("start: {}\n", starts.join(" | ")));
        Ok(checked)
    }
}

/// Between two parts of a call.
const BLANK: &str = r"( |\r?\n[ \t]{0,20})?";

/// As a regular expression.
fn literal(name: &str) -> String {
    let hex = |text: String, c: char| match c.is_ascii_alphanumeric() || c == '_' {
        true => text + c.encode_utf8(&mut [0; 4]),
        false => text + &format!("\\x{{{:x}}}", u32::from(c)),
    };
    name.chars().fold(String::new(), hex)
}

/// What the grammar expects before a name.
fn before_name(form: CallForm) -> &'static [u8] {
    match form {
        CallForm::Json => b"{\"name\":\"",
        CallForm::Tag => b"<function=",
        CallForm::List => b"[TOOL_CALLS]",
    }
}

/// What may come behind a name, at its beginning.
fn after_name(form: CallForm) -> &'static [&'static [u8]] {
    match form {
        CallForm::Json => &[b"\""],
        CallForm::Tag => &[b">"],
        CallForm::List => &[b"[", b"{"],
    }
}

/// An answer that may hold calls.
pub struct CallConstraint {
    reader: CallReader,
    env: TokEnv,
    /// At its beginning.
    grammar: GrammarState,
    call: Option<Call>,
    /// Bytes of the answer.
    bytes: usize,
    /// Every token: text is free.
    all: SimpleVob,
    allowed: SimpleVob,
}

/// A call that is being written.
struct Call {
    grammar: GrammarState,
    /// Where its name begins in the answer.
    name: usize,
    /// Bytes that the grammar has taken, from the name on.
    taken: usize,
}

impl std::fmt::Debug for CallConstraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallConstraint").finish_non_exhaustive()
    }
}

impl CallConstraint {
    pub fn new(reader: CallReader, grammar: GrammarState, env: TokEnv) -> CallConstraint {
        CallConstraint {
            reader,
            all: SimpleVob::alloc(env.tok_trie().vocab_size()).negated(),
            env,
            grammar,
            call: None,
            bytes: 0,
            allowed: SimpleVob::new(),
        }
    }
}

impl Constraint for CallConstraint {
    fn allowed(&mut self) -> Result<&[u32], ConstraintError> {
        let trie = self.env.tok_trie();
        self.allowed = match (self.reader.stage(), &mut self.call) {
            (Stage::Over, _) => trie.eos_token_set(),
            (Stage::Call { is_known: true, .. }, Some(call)) => call.grammar.mask()?,
            (Stage::Call { form, bytes, .. }, Some(call)) => {
                let mask = call.grammar.mask()?;
                let functions = &self.reader.functions().names;
                let mut allowed = completing(trie, functions, form, bytes).negated();
                allowed.or(&mask);
                allowed
            }
            (Stage::Text | Stage::Call { .. }, _) => return Ok(self.all.as_slice()),
        };
        Ok(self.allowed.as_slice())
    }

    fn take(&mut self, token: u32) -> Result<(), ConstraintError> {
        let trie = self.env.tok_trie();
        let text = trie.token(token);
        if trie.is_special_token(token) || trie.eos_tokens().contains(&token) {
            return Ok(());
        }
        self.bytes += text.len();
        self.reader.push(text);
        let Stage::Call { form, bytes, .. } = self.reader.stage() else {
            self.call = None;
            return Ok(());
        };
        let name = self.bytes - bytes.len();
        let known = self.call.take().filter(|call| call.name == name);
        let is_new = known.is_none();
        let mut call = match known {
            Some(call) => call,
            None => {
                let mut grammar = self.grammar.clone();
                grammar.take_bytes(trie, before_name(form))?;
                let taken = 0;
                Call {
                    grammar,
                    name,
                    taken,
                }
            }
        };
        let new = bytes.get(call.taken..).unwrap_or_default();
        let took = call.grammar.take_bytes(trie, new);
        call.taken = bytes.len();
        match took {
            Ok(()) => self.call = Some(call),
            // One token held a whole name and what the grammar does not have behind it.
            Err(_) if is_new => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn copy(&self) -> Box<dyn Constraint> {
        Box::new(CallConstraint {
            reader: self.reader.clone(),
            env: self.env.clone(),
            grammar: self.grammar.clone(),
            call: self.call.as_ref().map(|call| Call {
                grammar: call.grammar.clone(),
                ..*call
            }),
            bytes: self.bytes,
            all: self.all.clone(),
            allowed: self.allowed.clone(),
        })
    }
}

/// Tokens that would complete the name of a function that has begun like this.
fn completing(trie: &TokTrie, functions: &[String], form: CallForm, begun: &[u8]) -> SimpleVob {
    let mut set = trie.alloc_token_set();
    let rests = functions
        .iter()
        .filter_map(|name| name.as_bytes().strip_prefix(begun));
    let ends: Vec<Vec<u8>> = rests
        .flat_map(|rest| {
            after_name(form)
                .iter()
                .map(move |after| [rest, after].concat())
        })
        .collect();
    for token in 0..trie.vocab_size() as u32 {
        let bytes = trie.token(token);
        if ends.iter().any(|end| bytes.starts_with(end)) {
            set.allow_token(token);
        }
    }
    set
}
