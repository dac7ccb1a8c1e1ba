//! A conversation: facts that always hold, turns that come and go, a file that outlives the engine.

use crate::client::Client;
use crate::error::Error;
use crate::fact_search::FactSearch;
use crate::found_facts::FoundFact;
use crate::page::ConversationPage;
use crate::prompt::Prompt;
use crate::sessions::{ConversationView, VIEW_TURNS_MAX};
use haversack_conversations::scheduler::Request;
use haversack_conversations::session::date::date_of;
use haversack_conversations::session::{
    FactView, SessionError, SessionRead, SessionSettings, SessionStats, TurnView,
};
use haversack_memory::clock::now_ms;
use std::sync::Arc;

/// A conversation before it is opened.
#[must_use = "nothing happens before `open`"]
pub struct ConversationBuilder {
    client: Arc<Client>,
    name: String,
    system: String,
    settings: SessionSettings,
}

impl ConversationBuilder {
    pub(crate) fn new(client: Arc<Client>, name: String) -> ConversationBuilder {
        ConversationBuilder {
            client,
            name,
            system: String::new(),
            settings: SessionSettings::default(),
        }
    }

    /// What the conversation begins with, if it is new.
    pub fn system(mut self, text: impl Into<String>) -> ConversationBuilder {
        self.system = text.into();
        self
    }

    /// What it may hold, if it is new.
    pub fn settings(mut self, settings: SessionSettings) -> ConversationBuilder {
        self.settings = settings;
        self
    }

    /// Finds lasting facts in what the user says, if it is new: after an answer, while nothing else is computed, as
    /// [`Conversation::find_facts`] does, and adds them. They name the turn that says them.
    pub fn auto_facts(mut self, finds: bool) -> ConversationBuilder {
        self.settings.auto_facts = Some(finds);
        self
    }

    /// Puts the date (UTC) before what the user says, as part of the text, if it is new: answers can tell when something was
    /// said. Turns, exports and `say` have the message alone.
    pub fn dates(mut self, has_dates: bool) -> ConversationBuilder {
        self.settings.dates = Some(has_dates);
        self
    }

    /// Goes on with the conversation of this name, or begins it.
    pub fn open(self) -> Result<Conversation, Error> {
        if !self.client.open(&self.name).wait()? {
            match self.read() {
                // Another handle began it just now.
                Err(Error::Session(error)) if error.is_taken() => {
                    self.client.open(&self.name).wait()?;
                }
                begun => begun?,
            }
        }
        Ok(self.begun())
    }

    /// Begins the conversation. There must be none of this name.
    pub fn begin(self) -> Result<Conversation, Error> {
        self.read()?;
        Ok(self.begun())
    }

    /// Begins the conversation instead of the one that has its name, whose file may be damaged.
    pub fn replace(self) -> Result<Conversation, Error> {
        self.client.make_way(&self.name).wait()?;
        self.begin()
    }

    fn read(&self) -> Result<(), Error> {
        let now = now_ms();
        let texts = self.client.texts()?;
        let opening = texts.opening_with("", &self.system, now, self.settings)?;
        let read = SessionRead::create(opening);
        let read = Request::read(&self.name, read, now);
        self.client.read_blocking(read).map(drop)
    }

    fn begun(self) -> Conversation {
        Conversation {
            client: self.client,
            name: self.name,
        }
    }
}

/// A handle on one conversation. All methods block until the engine's thread has answered; [`crate::Client`] has the
/// same as futures.
#[derive(Clone)]
pub struct Conversation {
    client: Arc<Client>,
    name: String,
}

impl Conversation {
    /// The name it is saved under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A message; [`Prompt::send`] starts the answer.
    pub fn say(&self, text: impl Into<String>) -> Prompt {
        Prompt::message(self.client.clone(), self.name.clone(), text.into())
    }

    /// Facts that hold.
    pub fn facts(&self) -> Result<Vec<FactView>, Error> {
        Ok(self.view(0)?.facts)
    }

    /// Adds a fact that every answer sees; returns its number.
    pub fn add_fact(&self, text: impl Into<String>) -> Result<u64, Error> {
        self.tell_fact(&text.into(), None, None)
    }

    /// Adds a fact that a turn says, and notes which; returns its number.
    pub fn add_fact_of(&self, turn: u64, text: impl Into<String>) -> Result<u64, Error> {
        self.tell_fact(&text.into(), None, Some(turn))
    }

    /// Replaces a fact that no longer holds; returns the new one's number.
    pub fn replace_fact(&self, number: u64, text: impl Into<String>) -> Result<u64, Error> {
        self.tell_fact(&text.into(), Some(number), None)
    }

    /// Looks for lasting facts in what the user said in a turn, as a background request. They hold once they are added
    /// ([`Conversation::add_found_fact`]).
    ///
    /// ```no_run
    /// # fn remember(anna: &haversack::Conversation, turn: u64) -> Result<(), haversack::Error> {
    /// for fact in anna.find_facts(turn).run()? {
    ///     println!("remembered: {}", fact.words());
    ///     anna.add_found_fact(&fact)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn find_facts(&self, turn: u64) -> FactSearch {
        FactSearch::new(self.client.clone(), self.name.clone(), turn)
    }

    /// Adds a fact that was found, in place of the one that it supersedes; returns its number.
    pub fn add_found_fact(&self, fact: &FoundFact) -> Result<u64, Error> {
        self.tell_fact(&fact.text, fact.supersedes, Some(fact.found_in))
    }

    fn tell_fact(
        &self,
        text: &str,
        supersedes: Option<u64>,
        found_in: Option<u64>,
    ) -> Result<u64, Error> {
        let fact = self.client.texts()?.fact(text)?;
        self.read(SessionRead::Fact {
            fact,
            supersedes,
            found_in,
        })
    }

    fn read(&self, read: SessionRead) -> Result<u64, Error> {
        let read = Request::read(&self.name, read, now_ms());
        self.client.read_blocking(read)
    }

    /// Answers do not see this fact any more.
    pub fn revoke_fact(&self, number: u64) -> Result<(), Error> {
        self.client.revoke_fact(&self.name, number).wait()
    }

    /// The last turns, the oldest first.
    pub fn turns(&self) -> Result<Vec<TurnView>, Error> {
        Ok(self.view(VIEW_TURNS_MAX)?.turns)
    }

    /// What it holds, in memory and on disk.
    pub fn stats(&self) -> Result<SessionStats, Error> {
        Ok(self.view(0)?.stats)
    }

    /// Everything about the conversation, with its last turns, at most this many.
    pub fn view(&self, turns: usize) -> Result<ConversationView, Error> {
        self.client.view(&self.name, turns).wait()
    }

    /// Adds a state: a turn that holds until another replaces it.
    pub fn set_state(&self, text: impl Into<String>, replaces: Option<u64>) -> Result<(), Error> {
        let state = self.client.texts()?.state(&text.into())?;
        let instead = replaces;
        self.read(SessionRead::State { state, instead }).map(drop)
    }

    /// Answers do not see this state any more.
    pub fn delete_state(&self, number: u64) -> Result<(), Error> {
        self.client.delete_state(&self.name, number).wait()
    }

    /// The next answer sees this turn, wherever its rows are.
    pub fn recall(&self, turn: u64) -> Result<(), Error> {
        self.client.recall(&self.name, turn).wait()
    }

    /// Every answer sees this turn from now on; it has to be in memory. Pinned turns and states have a quarter of the capacity.
    pub fn pin(&self, turn: u64) -> Result<(), Error> {
        self.client.pin(&self.name, turn, true).wait()
    }

    /// The turn may leave memory again.
    pub fn unpin(&self, turn: u64) -> Result<(), Error> {
        self.client.pin(&self.name, turn, false).wait()
    }

    /// No answer sees this turn from now on, until it is included or recalled.
    pub fn exclude(&self, turn: u64) -> Result<(), Error> {
        self.client.exclude(&self.name, turn, true).wait()
    }

    /// Answers may see this turn again.
    pub fn include(&self, turn: u64) -> Result<(), Error> {
        self.client.exclude(&self.name, turn, false).wait()
    }

    /// Deletes the last turn; returns its number, `None` where there was none.
    pub fn retract(&self) -> Result<Option<u64>, Error> {
        self.client.retract(&self.name).wait()
    }

    /// A second conversation that goes on from here under another name.
    pub fn fork(&self, name: impl Into<String>) -> Result<Conversation, Error> {
        let name = name.into();
        self.client.fork(&self.name, name.clone()).wait()?;
        Ok(Conversation {
            client: self.client.clone(),
            name,
        })
    }

    /// Saves the conversation and frees its memory; its next message opens it again.
    pub fn suspend(&self) -> Result<(), Error> {
        self.client.suspend(&self.name).wait()
    }

    /// Opens a suspended conversation before its next message does.
    pub fn resume(&self) -> Result<(), Error> {
        if !self.client.open(&self.name).wait()? {
            let name = self.name.clone();
            return Err(SessionError::NoSuchSession { name }.into());
        }
        Ok(())
    }

    /// Facts, states and turns as a page of Markdown.
    pub fn export(&self) -> Result<String, Error> {
        let view = self.view(usize::MAX)?;
        let mut page = ConversationPage::new(&format!("Session {}", self.name));
        for fact in &view.facts {
            page.fact(fact.number, &fact.text);
        }
        for TurnView {
            turn,
            text,
            answer,
            time_ms,
            is_dated,
            ..
        } in &view.turns
        {
            let date = is_dated.then(|| date_of(*time_ms));
            match turn.is_state {
                true => page.state(turn.number, text),
                false => page.turn(turn.number, date.as_deref(), text, answer),
            }
        }
        Ok(page.into_text())
    }

    /// Deletes the conversation and its file.
    pub fn delete(self) -> Result<(), Error> {
        self.client.delete(&self.name).wait()
    }
}
