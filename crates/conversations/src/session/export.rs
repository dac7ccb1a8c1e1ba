//! What can be read of a session file that may be damaged: every fact and turn before the damage, without a model's
//! state. A model is only needed to put tokens into words.

use super::identity::{self, tokenizer_hash};
use super::inspect::{InspectError, identity_fields};
use super::layout::{ChatLayout, LayoutError};
use super::record::{CHANGE, FACT, FactRecord, LogChange, TURN, TurnRecord};
use haversack_engine::Model;
use haversack_memory::journal::{Journal, JournalOptions};
use std::ops::ControlFlow;
use std::path::Path;

/// The conversation of a file, as far as its records are intact.
#[derive(Clone, Debug, Default)]
pub struct SessionExport {
    /// Names and values; empty where the damage comes first.
    pub identity: Vec<(String, String)>,
    /// That hold, the opening included.
    pub facts: Vec<FactRecord>,
    /// Oldest first.
    pub turns: Vec<TurnRecord>,
    /// Intact records of every kind.
    pub records: u64,
    /// What ends the intact part; `None`: the file is whole.
    pub damage: Option<String>,
}

/// Question and answer of a turn. A state has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnText {
    pub question: String,
    pub answer: Option<String>,
}

impl SessionExport {
    /// Reads a file, which may be open elsewhere.
    pub fn of(path: &Path, key: Option<[u8; 32]>) -> Result<SessionExport, InspectError> {
        let options = JournalOptions {
            key,
            ..JournalOptions::default()
        };
        let mut export = SessionExport::default();
        let mut bad = None;
        let salvaged = Journal::salvage(path, &options, |kind, bytes| {
            match export.take(kind, bytes) {
                Ok(()) => ControlFlow::Continue(()),
                Err(record) => {
                    bad = Some(record);
                    ControlFlow::Break(())
                }
            }
        })?;
        if !salvaged.identity.is_empty() {
            export.identity = identity_fields(&salvaged.identity)?;
        }
        export.records = salvaged.records;
        let bad = bad.map(|record| InspectError::from(record).to_string());
        export.damage = bad.or(salvaged.damage.map(|damage| damage.to_string()));
        Ok(export)
    }

    fn take(&mut self, kind: u32, bytes: &[u8]) -> Result<(), super::record::BadRecord> {
        match kind {
            TURN => self.turns.push(TurnRecord::read(bytes)?),
            FACT => {
                let fact = FactRecord::read(bytes)?;
                // Condensing the stream writes facts anew under their old numbers.
                self.facts.retain(|f| f.number != fact.number);
                self.facts.push(fact);
            }
            CHANGE => match LogChange::read(bytes)? {
                LogChange::Forgotten { turn } => self.turns.retain(|t| t.number != turn),
                LogChange::Revoked { fact } => self.facts.retain(|f| f.number != fact),
                _ => {}
            },
            // Rows, states: nothing that was said.
            _ => {}
        }
        Ok(())
    }

    /// Whether the tokens are this model's; the error says whose they are.
    pub fn check_model(&self, model: &Model) -> Result<(), InspectError> {
        let here = tokenizer_hash(model);
        let saved = self.identity.iter().find(|(name, _)| name == "tokenizer");
        match saved {
            Some((_, saved)) if *saved != here => Err(InspectError::Tokenizer {
                saved: saved.clone(),
                here,
            }),
            _ => Ok(()),
        }
    }

    /// Puts a turn into words.
    pub fn text(layout: &ChatLayout, turn: &TurnRecord) -> Result<TurnText, LayoutError> {
        let (question, answer) = layout.turn_texts(turn)?;
        Ok(TurnText {
            question,
            answer: (!turn.turn().is_state).then_some(answer),
        })
    }
}

/// What a session opens with: the fields of its identity that a shared prefix has too, and the tokens. `None` where the
/// file cannot say.
pub(super) fn opening(path: &Path, key: Option<[u8; 32]>) -> Option<(String, Vec<u32>)> {
    let options = JournalOptions {
        key,
        ..JournalOptions::default()
    };
    let mut tokens = None;
    let salvaged = Journal::salvage(path, &options, |kind, bytes| {
        let fact = (kind == FACT).then(|| FactRecord::read(bytes).ok());
        match fact.flatten().filter(|fact| fact.number == 0) {
            Some(fact) => {
                tokens = Some(fact.tokens);
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        }
    });
    let shared = identity::shared_lines(&salvaged.ok()?.identity)?;
    Some((shared, tokens?))
}
