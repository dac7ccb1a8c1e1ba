//! Sessions that ask for it have their facts found: turns wait here, and are looked through while nothing is answered.
//!
//! ```text
//! turn saved ─► waiting ─► questions, one at a time ─► facts, one at a time ─► next turn
//!                  ▲          │ a request of the same session comes: its search begins again after it
//!                  └──────────┘ another request comes: what was asked is asked again after it
//! ```
//!
//! It computes nothing itself. Its driver submits what it asks for, tells it what became of that, and interrupts it for
//! every other request. A turn of a session that is not in memory waits until another request opens it. At most
//! [`TURNS_MAX`] turns wait; the oldest are left out.

use super::choice::ModelChoice;
use super::search::{Chooser, FoundFact, find};
use crate::channel::lock;
use crate::error::Error;
use crate::report::{AnswerEvent, EventReceiver};
use crate::sessions;
use haversack_conversations::scheduler::{Priority, Request, RequestId, Scheduler};
use haversack_conversations::session::{
    Owner, Requester, SessionError, SessionName, SessionRead, Sessions,
};
use haversack_engine::Model;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// Turns that wait at most, of all sessions.
pub const TURNS_MAX: usize = 64;

/// Events of one of its requests that may wait: the token and the end.
pub const EVENTS_MAX: usize = 2;

/// A turn that was said, by its session and its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedTurn {
    pub owner: Owner,
    pub session: String,
    pub number: u64,
}

impl SavedTurn {
    fn session(&self) -> SessionName<'_> {
        self.owner.session(&self.session)
    }
}

#[derive(Default)]
pub struct FactFinder {
    waiting: VecDeque<SavedTurn>,
    search: Option<TurnSearch>,
    /// No turn is looked through any more.
    is_closed: bool,
}

/// The turn that is looked through.
struct TurnSearch {
    turn: SavedTurn,
    /// When it was said.
    time_ms: u64,
    stage: SearchStage,
    /// A question without an answer; where it was interrupted, it is asked again.
    asked: Option<Request>,
    running: Option<(RequestId, EventReceiver)>,
}

enum SearchStage {
    Searching {
        question: Arc<PendingQuestion>,
        found: SearchFuture,
    },
    /// What was found and is not part of the session yet.
    Adding(VecDeque<FoundFact>),
}

type SearchFuture = Pin<Box<dyn Future<Output = Result<Vec<FoundFact>, Error>> + Send>>;

/// A question of a search, until it is answered.
#[derive(Default)]
struct PendingQuestion(Mutex<QuestionState>);

#[derive(Default)]
struct QuestionState {
    asked: Option<Request>,
    likeliest: Option<Vec<(u32, f64)>>,
}

/// The model chooses, by requests that the driver submits.
struct DrivenChooser {
    question: Arc<PendingQuestion>,
    model: Arc<Model>,
    owner: Requester,
}

impl Chooser for DrivenChooser {
    async fn chooses(&self, choice: &ModelChoice, texts: &[&str]) -> Result<bool, Error> {
        let tokenizer = self.model.tokenizer();
        let request = choice.request(tokenizer, texts, self.owner)?;
        lock(&self.question.0).asked = Some(request);
        let answer = |_: &mut Context<'_>| match lock(&self.question.0).likeliest.take() {
            Some(likeliest) => Poll::Ready(likeliest),
            // The driver polls again once there is one.
            None => Poll::Pending,
        };
        let likeliest = poll_fn(answer).await;
        Ok(choice.is_chosen_by(tokenizer, &likeliest))
    }
}

impl FactFinder {
    /// Facts of this turn are to be found.
    pub fn add(&mut self, turn: SavedTurn) {
        if self.is_closed {
            return;
        }
        self.waiting.push_back(turn);
        if self.waiting.len() > TURNS_MAX {
            self.waiting.pop_front();
        }
    }

    /// The request that is computed for it.
    pub fn running(&self) -> Option<RequestId> {
        let (id, _) = self.search.as_ref()?.running.as_ref()?;
        Some(*id)
    }

    /// Whether there is something to do where nothing else is.
    pub fn has_work(&self, sessions: Option<&Sessions>) -> bool {
        self.search.is_some() || sessions.is_some_and(|all| self.first_open(all).is_some())
    }

    fn first_open(&self, sessions: &Sessions) -> Option<usize> {
        let is_open = |turn: &SavedTurn| sessions.opened(turn.session()).is_some();
        self.waiting.iter().position(is_open)
    }

    /// What is to be submitted next, while nothing else is computed. Takes up what became of the last request.
    pub fn next_request(&mut self, scheduler: &mut Scheduler) -> Option<Request> {
        loop {
            if self.search.is_none() {
                self.begin(scheduler)?;
            }
            let search = self.search.as_mut()?;
            if search.take_up().is_pending() {
                return None;
            }
            match search.next_request(scheduler) {
                Ok(Some(request)) => return Some(request),
                Ok(None) => self.search = None,
                Err(error) => {
                    log::debug!("session {}: no facts: {error}", search.turn.session);
                    self.search = None;
                }
            }
        }
    }

    /// Begins with the turn that has waited longest, of a session in memory.
    fn begin(&mut self, scheduler: &mut Scheduler) -> Option<()> {
        let i = self.first_open(scheduler.sessions()?)?;
        let turn = self.waiting.remove(i)?;
        let (number, model) = (turn.number, scheduler.runtime().model().clone());
        let said =
            scheduler.with_session(turn.session(), |_, all, id| sessions::said(all, id, number));
        let time_ms = said.as_ref().map_or(0, |told| told.time_ms);
        let question = Arc::new(PendingQuestion::default());
        let chooser = DrivenChooser {
            question: question.clone(),
            model,
            owner: turn.owner.user(0),
        };
        let found: SearchFuture = match said {
            Ok(told) => Box::pin(async move { find(&told, number, &chooser).await }),
            // The turn was taken back.
            Err(error) => Box::pin(async move { Err(error.into()) }),
        };
        self.search = Some(TurnSearch {
            turn,
            time_ms,
            stage: SearchStage::Searching { question, found },
            asked: None,
            running: None,
        });
        Some(())
    }

    /// The driver has submitted what was asked for; `None`: it was refused.
    pub fn begun(&mut self, running: Option<(RequestId, EventReceiver)>) {
        match (running, &mut self.search) {
            (Some(running), Some(search)) => search.running = Some(running),
            _ => self.search = None,
        }
    }

    /// Makes way for another request, of this session if it is of one; returns its own, which is to be cancelled.
    pub fn interrupt(&mut self, session: Option<SessionName<'_>>) -> Option<RequestId> {
        let search = self.search.as_mut()?;
        let running = search.stop();
        if session == Some(search.turn.session()) {
            // Its facts may be others after it.
            self.put_back();
        }
        running
    }

    /// Sessions are about to leave memory: it waits until another request opens its own. Returns its request, which is to be
    /// cancelled.
    pub fn interrupt_all(&mut self) -> Option<RequestId> {
        let running = self.search.as_mut()?.stop();
        self.put_back();
        running
    }

    fn put_back(&mut self) {
        if let Some(search) = self.search.take() {
            self.waiting.push_front(search.turn);
            self.waiting.truncate(TURNS_MAX);
        }
    }

    /// Makes way for a command of a session; returns its own request, which is to be cancelled.
    pub fn interrupt_fact(&mut self, session: SessionName<'_>) -> Option<RequestId> {
        let search = self.search.as_mut()?;
        let is_adding = matches!(search.stage, SearchStage::Adding(_));
        match is_adding && search.turn.session() == session {
            true => search.stop(),
            false => None,
        }
    }

    /// Drops everything; returns its request, which is to be cancelled.
    pub fn close(&mut self) -> Option<RequestId> {
        self.is_closed = true;
        self.waiting.clear();
        let search = self.search.take()?;
        search.running.map(|(id, _)| id)
    }
}

impl TurnSearch {
    /// Takes up what became of its request.
    fn take_up(&mut self) -> Poll<()> {
        while let Some((_, events)) = &mut self.running {
            let Poll::Ready(event) = events.poll_next(&mut Context::from_waker(Waker::noop()))
            else {
                return Poll::Pending;
            };
            match event.map(|(_, event)| event) {
                Some(AnswerEvent::Token { logprob, .. }) => {
                    self.answer(logprob.map(|logprob| logprob.top));
                    continue;
                }
                Some(AnswerEvent::PromptRead { .. }) => continue,
                Some(AnswerEvent::Finished { .. }) => self.answer(None),
                Some(AnswerEvent::SessionRead { .. }) => self.drop_fact(),
                // There is no room, or it replaces a fact that is gone.
                Some(AnswerEvent::Failed(error)) => self.fail(&error),
                None => self.fail(&Error::CutOff),
            }
            (self.running, self.asked) = (None, None);
        }
        Poll::Ready(())
    }

    /// Ends its request, unless that has ended by itself: a fact that was added is not added again.
    fn stop(&mut self) -> Option<RequestId> {
        let _ = self.take_up();
        self.running.take().map(|(id, _)| id)
    }

    fn answer(&mut self, likeliest: Option<Vec<(u32, f64)>>) {
        if let SearchStage::Searching { question, .. } = &self.stage {
            let answered = &mut lock(&question.0).likeliest;
            *answered = likeliest.or(answered.take()).or(Some(Vec::new()));
        }
    }

    fn drop_fact(&mut self) {
        if let SearchStage::Adding(facts) = &mut self.stage {
            facts.pop_front();
        }
    }

    fn fail(&mut self, error: &Error) {
        log::debug!("session {}: a fact is left out: {error}", self.turn.session);
        match &mut self.stage {
            SearchStage::Searching { .. } => self.stage = SearchStage::Adding(VecDeque::new()),
            SearchStage::Adding(_) => self.drop_fact(),
        }
    }

    /// `None`: everything was found and added.
    fn next_request(&mut self, scheduler: &mut Scheduler) -> Result<Option<Request>, Error> {
        if let SearchStage::Searching { question, found } = &mut self.stage {
            if self.asked.is_none() {
                match found.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Pending => self.asked = lock(&question.0).asked.take(),
                    Poll::Ready(found) => self.stage = SearchStage::Adding(found?.into()),
                }
            }
            if self.asked.is_some() {
                return Ok(self.asked.clone());
            }
        }
        let fact = match &self.stage {
            SearchStage::Adding(facts) => facts.front(),
            SearchStage::Searching { .. } => None,
        };
        fact.map(|fact| self.read(scheduler, fact)).transpose()
    }

    /// Adds a fact, if its turn was not taken back since.
    fn read(&self, scheduler: &mut Scheduler, fact: &FoundFact) -> Result<Request, Error> {
        let (name, number) = (self.turn.session(), self.turn.number);
        scheduler.with_session(name, |_, all, id| {
            let turns = all.turns(id)?;
            match turns.iter().any(|turn| turn.number == number) {
                true => Ok(()),
                false => Err(SessionError::NoSuchTurn { number }),
            }
        })?;
        let sessions = scheduler.sessions().ok_or(SessionError::NoSessions)?;
        let read = SessionRead::Fact {
            fact: sessions.texts().fact(&fact.text)?,
            supersedes: fact.supersedes,
            found_in: Some(fact.found_in),
        };
        Ok(Request {
            priority: Priority::Background,
            owner: name.owner.user(0),
            ..Request::read(name.name, read, self.time_ms)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_turns_are_left_out_and_a_closed_finder_takes_none() {
        let mut finder = FactFinder::default();
        let turn = |number| SavedTurn {
            owner: Owner::default(),
            session: "anna".to_owned(),
            number,
        };
        (0..TURNS_MAX as u64 + 8).for_each(|number| finder.add(turn(number)));
        assert_eq!(finder.waiting.len(), TURNS_MAX);
        assert_eq!(finder.waiting.front(), Some(&turn(8)));
        // Its session is not in memory.
        assert!(!finder.has_work(None));
        assert_eq!(finder.close(), None);
        finder.add(turn(0));
        assert!(finder.waiting.is_empty());
    }
}
