//! A search for lasting facts, as a program asks for it: run, awaited, or stopped from another thread.

use crate::client::Client;
use crate::error::Error;
use crate::found_facts::{Chooser, FoundFact, LIKELIEST, ModelChoice, find};
use haversack_conversations::session::{Owner, Requester};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake};
use std::thread::Thread;

/// Looks for new facts in what the user said in a turn. Nothing is computed before it is run or awaited; dropping the
/// future ends it.
#[must_use = "nothing is computed before `run` or `.await`"]
pub struct FactSearch {
    client: Arc<Client>,
    name: String,
    turn: u64,
    owner: Requester,
}

impl FactSearch {
    pub(crate) fn new(client: Arc<Client>, name: String, turn: u64) -> FactSearch {
        FactSearch {
            client,
            name,
            turn,
            owner: Requester::default(),
        }
    }

    /// Whose conversation it is.
    pub fn owner(mut self, owner: impl Into<Requester>) -> FactSearch {
        self.owner = owner.into();
        self
    }

    /// Blocks until it has ended.
    pub fn run(self) -> Result<Vec<FoundFact>, Error> {
        let found = self.run_until(&SearchStop::default())?;
        Ok(found.unwrap_or_default())
    }

    /// Blocks until it has ended, or was stopped from another thread: `None`.
    pub fn run_until(self, stop: &SearchStop) -> Result<Option<Vec<FoundFact>>, Error> {
        stop.wait(self.into_future()).transpose()
    }

    async fn find(self) -> Result<Vec<FoundFact>, Error> {
        let owner: Owner = self.owner.owner;
        let name = owner.session(&self.name);
        let told = self.client.said(name, self.turn).await?;
        let model = ModelChooser {
            client: &self.client,
            owner: self.owner,
        };
        find(&told, self.turn, &model).await
    }
}

/// The model of an engine chooses.
struct ModelChooser<'a> {
    client: &'a Client,
    owner: Requester,
}

impl Chooser for ModelChooser<'_> {
    async fn chooses(&self, choice: &ModelChoice, texts: &[&str]) -> Result<bool, Error> {
        let tokenizer = self.client.model().tokenizer();
        let request = choice.request(tokenizer, texts, self.owner)?;
        let likeliest = self.client.first_token(request, LIKELIEST).await?;
        Ok(choice.is_chosen_by(tokenizer, &likeliest))
    }
}

impl IntoFuture for FactSearch {
    type Output = Result<Vec<FoundFact>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.find())
    }
}

/// Ends a search that another thread waits for.
#[derive(Clone, Default)]
pub struct SearchStop(Arc<Waiter>);

#[derive(Default)]
struct Waiter {
    is_stopped: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl SearchStop {
    /// The search ends where it is; one that begins later ends at once.
    pub fn stop(&self) {
        self.0.is_stopped.store(true, Ordering::SeqCst);
        self.0.clone().wake();
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.0.is_stopped.load(Ordering::SeqCst)
    }

    /// Blocks until the future is ready; `None` where it was stopped before.
    fn wait<F: Future>(&self, future: F) -> Option<F::Output> {
        *crate::channel::lock(&self.0.thread) = Some(std::thread::current());
        let waker = self.0.clone().into();
        let mut cx = Context::from_waker(&waker);
        let mut future = pin!(future);
        while !self.is_stopped() {
            if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
                return Some(value);
            }
            // A wake that came meanwhile is not lost: it makes this return at once.
            std::thread::park();
        }
        None
    }
}

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        if let Some(thread) = &*crate::channel::lock(&self.thread) {
            thread.unpark();
        }
    }
}
