//! Conversations: messages, facts, turns, and what becomes of them.

use crate::answer::NativeAnswer;
use crate::process::InProcess;
use crate::prompt::PromptOptions;
use crate::wait::work;
use haversack::session::turns::TurnPlace;
use haversack::{Conversation, Error};
use pyo3::prelude::*;

/// Number, text, turn in which it was found.
type FactFields = (u64, String, Option<u64>);
/// Number, question, answer, milliseconds since 1970, tokens, place, is visible, is a state.
type TurnFields = (u64, String, String, u64, u64, &'static str, bool, bool);

#[pyclass(frozen, name = "Conversation", module = "haversack._native")]
pub(crate) struct NativeConversation(InProcess<Conversation>);

impl NativeConversation {
    pub fn new(conversation: Conversation) -> NativeConversation {
        NativeConversation(InProcess::new(conversation))
    }

    fn work<T: Send + 'static>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(Conversation) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        let conversation = self.0.get(py)?.clone();
        work(py, || ask(conversation))
    }
}

#[pymethods]
impl NativeConversation {
    fn say(&self, py: Python<'_>, text: String, options: PromptOptions) -> PyResult<NativeAnswer> {
        self.work(py, |talk| options.apply(talk.say(text)).send())
            .map(NativeAnswer::new)
    }

    fn facts(&self, py: Python<'_>) -> PyResult<Vec<FactFields>> {
        let facts = self.work(py, |talk| talk.facts())?;
        Ok(facts
            .into_iter()
            .map(|fact| (fact.number, fact.text, fact.found_in))
            .collect())
    }

    fn add_fact(&self, py: Python<'_>, text: String) -> PyResult<u64> {
        self.work(py, |talk| talk.add_fact(text))
    }

    fn replace_fact(&self, py: Python<'_>, number: u64, text: String) -> PyResult<u64> {
        self.work(py, move |talk| talk.replace_fact(number, text))
    }

    fn revoke_fact(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        self.work(py, move |talk| talk.revoke_fact(number))
    }

    fn turns(&self, py: Python<'_>) -> PyResult<Vec<TurnFields>> {
        let turns = self.work(py, |talk| talk.turns())?;
        let fields = turns.into_iter().map(|view| {
            let place = match view.turn.place {
                TurnPlace::Live => "memory",
                TurnPlace::Spilled => "disk",
                TurnPlace::Ids => "tokens",
            };
            let turn = &view.turn;
            let (number, tokens) = (turn.number, turn.tokens());
            let (visible, state) = (turn.is_visible, turn.is_state);
            (
                number,
                view.text,
                view.answer,
                view.time_ms,
                tokens,
                place,
                visible,
                state,
            )
        });
        Ok(fields.collect())
    }

    fn recall(&self, py: Python<'_>, turn: u64) -> PyResult<()> {
        self.work(py, move |talk| talk.recall(turn))
    }

    fn undo(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.work(py, |talk| talk.retract())
    }

    fn fork(&self, py: Python<'_>, name: String) -> PyResult<NativeConversation> {
        self.work(py, |talk| talk.fork(name))
            .map(NativeConversation::new)
    }

    fn suspend(&self, py: Python<'_>) -> PyResult<()> {
        self.work(py, |talk| talk.suspend())
    }

    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        self.work(py, |talk| talk.resume())
    }

    fn export(&self, py: Python<'_>) -> PyResult<String> {
        self.work(py, |talk| talk.export())
    }

    fn delete(&self, py: Python<'_>) -> PyResult<()> {
        self.work(py, |talk| talk.delete())
    }
}
