//! Every operation of an engine as a typed command to its thread, for callers that work with names and futures, as the
//! server does. [`crate::Engine`] and [`crate::Conversation`] are built on it.

use crate::channel::{Reply, ReplyTo, bounded, reply};
use crate::command::{Command, ConversationCommand, ConversationView, History, Pressure, Submit};
use crate::driver::Driver;
use crate::error::Error;
use crate::metrics::{Metrics, SharedMetrics};
use crate::notices::{NoticeReceiver, Notices};
use crate::places::Places;
use crate::report::EventReceiver;
use crate::thread;
use haversack_conversations::scheduler::{
    MemoryReport, Request, RequestId, Scheduler, SchedulerOptions,
};
use haversack_conversations::session::{Embed, ListedSession, Sessions};
use haversack_engine::Model;
use haversack_engine::device::Thermal;
use haversack_engine::runtime::Runtime;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Sequences in one step.
    pub batch: usize,
    /// Requests that may wait besides those.
    pub queue: usize,
    /// Finished requests whose keys and values are kept for prompts that begin alike.
    pub prefix_cache: usize,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            batch: 8,
            queue: 64,
            prefix_cache: 16,
        }
    }
}

/// How the events of requests are told.
#[derive(Clone, Copy, Debug)]
pub struct EventOptions {
    /// How many of the likeliest tokens are told with each; `None`: no log-probabilities.
    pub logprobs: Option<usize>,
    /// Events that may wait to be received; a request whose reader is further behind is cancelled.
    pub max_behind: usize,
}

pub struct Client {
    commands: Sender<Command>,
    places: Places,
    metrics: Arc<SharedMetrics>,
    notices: Arc<Notices>,
    is_stopping: AtomicBool,
    started: Instant,
    options: EngineOptions,
    model: Arc<Model>,
    rows_max: usize,
    encoder: Option<Arc<dyn Embed>>,
    #[cfg(feature = "grammar")]
    vocabulary: crate::structured::LazyVocabulary,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Client {
    /// Starts the engine's thread.
    pub(crate) fn start(
        runtime: Runtime,
        sessions: Option<Sessions>,
        options: EngineOptions,
    ) -> Result<Client, Error> {
        let model = runtime.model().clone();
        let rows_max = runtime.bounds().rows_max;
        let encoder = sessions.as_ref().and_then(Sessions::encoder);
        let places = options.batch + options.queue;
        let scheduler = SchedulerOptions {
            batch: options.batch,
            // Places are counted here.
            queue: places,
            reuse: options.prefix_cache,
            ..SchedulerOptions::default()
        };
        let mut scheduler = Scheduler::new(runtime, scheduler);
        if let Some(sessions) = sessions {
            scheduler = scheduler.with_sessions(sessions);
        }
        let driver = Driver::new(scheduler, options.queue);
        let (metrics, notices) = driver.shared();
        let started = Instant::now();
        let (commands, thread) = thread::spawn(driver, started).map_err(Error::Thread)?;
        Ok(Client {
            commands,
            places: Places::new(places),
            metrics,
            notices,
            is_stopping: AtomicBool::new(false),
            started,
            options,
            model,
            rows_max,
            encoder,
            #[cfg(feature = "grammar")]
            vocabulary: Default::default(),
            thread: Mutex::new(Some(thread)),
        })
    }

    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub fn options(&self) -> EngineOptions {
        self.options
    }

    /// Rows that a sequence may have.
    pub fn rows_max(&self) -> usize {
        self.rows_max
    }

    /// What judges which turns are relevant; `None` where nothing does, or there are no sessions.
    pub fn encoder(&self) -> Option<&Arc<dyn Embed>> {
        self.encoder.as_ref()
    }

    /// On the clock of deadlines.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn metrics(&self) -> Metrics {
        self.metrics.snapshot()
    }

    /// Alerts and device changes from now on.
    pub fn notices(&self) -> NoticeReceiver {
        self.notices.subscribe()
    }

    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Refuses every further request; those that were accepted are finished.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Stops, and waits until accepted requests have ended and all sessions are saved.
    pub fn close(&self) -> Result<(), Error> {
        self.stop();
        let _ = self.commands.send(Command::Stop);
        let thread = crate::channel::lock(&self.thread).take();
        match thread {
            // The last handle may be dropped by a waker that the engine's thread calls.
            Some(thread) if thread.thread().id() != std::thread::current().id() => {
                let joined = thread.join();
                joined.map_err(|_| Error::Panicked)
            }
            _ => Ok(()),
        }
    }

    /// Takes places for all requests or none, at once and without a lock, and hands them to the scheduler.
    fn offer(
        &self,
        requests: Vec<Request>,
        options: EventOptions,
    ) -> Result<(Reply<Vec<RequestId>>, AnswerEvents), Error> {
        if self.is_stopping() {
            return Err(Error::Closed);
        }
        let permits = self.places.try_acquire(requests.len()).ok_or_else(|| {
            self.metrics.refused.fetch_add(1, Ordering::Relaxed);
            Error::Busy
        })?;
        let (events, receiver) = bounded(options.max_behind);
        let submit = Submit {
            requests,
            permits,
            logprobs: options.logprobs,
            events,
        };
        let ids = self.ask(|reply| Command::Submit(submit, reply));
        let events = AnswerEvents {
            receiver: EventReceiver(receiver),
            commands: self.commands.clone(),
            ids: Vec::new(),
        };
        Ok((ids, events))
    }

    pub async fn submit(
        &self,
        requests: Vec<Request>,
        options: EventOptions,
    ) -> Result<AnswerEvents, Error> {
        let (ids, mut events) = self.offer(requests, options)?;
        events.ids = ids.await?;
        Ok(events)
    }

    /// [`Client::submit`] for a thread that may block.
    pub fn submit_blocking(
        &self,
        requests: Vec<Request>,
        options: EventOptions,
    ) -> Result<AnswerEvents, Error> {
        let (ids, mut events) = self.offer(requests, options)?;
        events.ids = ids.wait()?;
        Ok(events)
    }

    fn ask<T>(&self, command: impl FnOnce(ReplyTo<T>) -> Command) -> Reply<T> {
        let (to, reply) = reply();
        // A thread that has ended drops the command, and the reply says so.
        let _ = self.commands.send(command(to));
        reply
    }

    fn tell<T>(
        &self,
        name: &str,
        command: impl FnOnce(ReplyTo<T>) -> ConversationCommand,
    ) -> Reply<T> {
        self.ask(|reply| Command::Conversation(name.to_owned(), command(reply)))
    }

    /// Conversations in the sessions folder.
    pub fn list(&self) -> Reply<Vec<ListedSession>> {
        self.ask(Command::List)
    }

    /// Goes on with a conversation, or begins it with a system text.
    pub fn open(&self, name: &str, system: String) -> Reply<()> {
        self.tell(name, |reply| ConversationCommand::Open(system, reply))
    }

    /// Begins a conversation; `verbatim` is the part of its opening that is never condensed.
    pub fn create(&self, name: &str, verbatim: String, more: String) -> Reply<ConversationView> {
        self.tell(name, |reply| {
            ConversationCommand::Create(verbatim, more, reply)
        })
    }

    pub fn view(&self, name: &str) -> Reply<ConversationView> {
        self.tell(name, ConversationCommand::View)
    }

    /// Copies a conversation under a new name.
    pub fn fork(&self, name: &str, to: String) -> Reply<ConversationView> {
        self.tell(name, |reply| ConversationCommand::Fork(to, reply))
    }

    pub fn delete(&self, name: &str) -> Reply<()> {
        self.tell(name, ConversationCommand::Delete)
    }

    /// Makes `history` what was said last, beginning the conversation if there is none. `false`: the conversation went
    /// another way.
    pub fn rewind(&self, name: &str, system: String, history: History) -> Reply<bool> {
        self.tell(name, |reply| {
            ConversationCommand::Rewind(system, history, reply)
        })
    }

    /// Adds a fact, in place of the one it supersedes; replies its number.
    pub fn add_fact(&self, name: &str, text: String, supersedes: Option<u64>) -> Reply<u64> {
        self.tell(name, |reply| {
            ConversationCommand::AddFact(text, supersedes, reply)
        })
    }

    pub fn revoke_fact(&self, name: &str, number: u64) -> Reply<()> {
        self.tell(name, |reply| ConversationCommand::RevokeFact(number, reply))
    }

    /// The next answer sees this turn, wherever its rows are.
    pub fn recall(&self, name: &str, turn: u64) -> Reply<()> {
        self.tell(name, |reply| ConversationCommand::Recall(turn, reply))
    }

    /// Deletes the last turn; replies its number, `None` where there was none.
    pub fn retract(&self, name: &str) -> Reply<Option<u64>> {
        self.tell(name, ConversationCommand::Retract)
    }

    pub fn memory(&self) -> Reply<MemoryReport> {
        self.ask(Command::Memory)
    }

    /// Counts bytes that the caller is about to allocate against the budget.
    pub fn reserve(&self, bytes: usize) -> Reply<()> {
        self.ask(|reply| Command::Reserve(bytes, reply))
    }

    /// Gives reserved bytes back.
    pub fn release(&self, bytes: usize) {
        let _ = self.commands.send(Command::Release(bytes));
    }

    /// Overrides how hot the device is; `None`: what the device says.
    pub fn set_thermal(&self, thermal: Option<Thermal>) {
        let _ = self.commands.send(Command::Thermal(thermal));
    }

    pub fn set_pressure(&self, pressure: Pressure) {
        let _ = self.commands.send(Command::Pressure(pressure));
    }

    /// Compiles a constraint for structured output. Takes up to seconds and blocks, the first time longest: the
    /// vocabulary is prepared then, inside the budget.
    #[cfg(feature = "grammar")]
    pub fn constraint(
        &self,
        shape: &haversack_grammar::Shape,
    ) -> Result<Box<dyn haversack_engine::sample::Constraint>, Error> {
        let reserve = |bytes| self.reserve(bytes).wait();
        let release = |bytes| self.release(bytes);
        let vocabulary = &self.vocabulary;
        vocabulary.compile(self.model.tokenizer(), shape, reserve, release)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            log::error!("{error}");
        }
    }
}

/// Events of submitted requests. Dropping it cancels those that are not over.
pub struct AnswerEvents {
    receiver: EventReceiver,
    commands: Sender<Command>,
    ids: Vec<RequestId>,
}

impl Deref for AnswerEvents {
    type Target = EventReceiver;

    fn deref(&self) -> &EventReceiver {
        &self.receiver
    }
}

impl DerefMut for AnswerEvents {
    fn deref_mut(&mut self) -> &mut EventReceiver {
        &mut self.receiver
    }
}

impl Drop for AnswerEvents {
    fn drop(&mut self) {
        let _ = self
            .commands
            .send(Command::Cancel(std::mem::take(&mut self.ids)));
    }
}
