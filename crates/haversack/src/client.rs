//! Every operation of an engine as a command to its thread, for callers that work with names and futures, as the
//! server does. [`crate::Engine`] and [`crate::Conversation`] are built on it.

use crate::channel::{Reply, bounded, reply};
use crate::driver::{Driver, Listener};
use crate::error::Error;
use crate::metrics::{Metrics, SharedMetrics};
use crate::notices::{NoticeReceiver, Notices};
use crate::options::{EngineOptions, EventOptions};
use crate::places::Places;
use crate::report::{AnswerEvent, EventReceiver};
use crate::sessions::{self, ConversationList, ConversationView, History, Rewound, SaidInTurn};
use crate::thread::{self, Command, Device, EngineThread, Pressure, Pulse};
use haversack_conversations::scheduler::{
    MemoryReport, Request, RequestId, Scheduler, SchedulerOptions,
};
use haversack_conversations::session::{
    Embed, Owner, QuestionEmbedding, SessionError, SessionId, SessionName, SessionTexts, Sessions,
};
use haversack_engine::Model;
use haversack_engine::device::Thermal;
use haversack_engine::runtime::{KvLayout, KvMemory, Runtime};
use haversack_memory::HeapBudget;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Commands that may wait for the engine's thread.
const COMMANDS_MAX: usize = 256;

/// What an engine does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineStatus {
    /// It takes them.
    Serving,
    /// Accepted requests are finished, others refused.
    Stopping,
    /// The engine's thread has ended; nothing is computed any more.
    Ended,
}

/// What is known of an engine without its thread.
#[derive(Clone, Copy, Debug)]
pub struct EngineHealth {
    /// Whether it takes requests.
    pub status: EngineStatus,
    /// Requests that are computed.
    pub active: usize,
    /// Accepted and not computed yet.
    pub waiting: usize,
    /// Since its thread last came round.
    pub since_step: Duration,
}

/// The engine's thread, from outside it. Dropping it finishes accepted requests and ends the thread.
pub struct Client {
    commands: Sender<Command>,
    places: Places,
    /// Of commands that wait to be executed. Requests have places of their own, and cancellations go with them.
    command_places: Places,
    pulse: Arc<Pulse>,
    metrics: Arc<SharedMetrics>,
    notices: Arc<Notices>,
    heap: Arc<HeapBudget>,
    options: EngineOptions,
    model: Arc<Model>,
    layout: KvLayout,
    encoder: Option<Arc<dyn Embed>>,
    texts: Option<SessionTexts>,
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
        let layout = KvLayout::new(&runtime);
        let encoder = sessions.as_ref().and_then(Sessions::encoder);
        let texts = sessions.as_ref().map(Sessions::texts);
        let places = options.batch + options.queue;
        let scheduler = SchedulerOptions {
            batch: options.batch,
            owner_batch: options.owner_share(options.batch),
            // Places are counted here.
            queue: places,
            reuse: options.prefix_cache,
            ..SchedulerOptions::default()
        };
        let mut scheduler = Scheduler::new(runtime, scheduler);
        if let Some(sessions) = sessions {
            scheduler = scheduler.with_sessions(sessions);
        }
        let driver = Driver::new(scheduler, &options);
        let (metrics, notices, heap) = driver.shared();
        haversack_memory::heap::release_free_pages();
        let pulse = Arc::new(Pulse::new());
        let spawned = thread::spawn(driver, pulse.clone());
        let (commands, thread) = spawned.map_err(Error::Thread)?;
        Ok(Client {
            commands,
            places: Places::new(places, options.owner_share(places)),
            command_places: Places::new(COMMANDS_MAX, COMMANDS_MAX),
            pulse,
            metrics,
            notices,
            heap,
            options,
            model,
            layout,
            encoder,
            texts,
            #[cfg(feature = "grammar")]
            vocabulary: Default::default(),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// The model it runs.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// What it was started with.
    pub fn options(&self) -> EngineOptions {
        self.options
    }

    /// How keys and values are stored, and how many rows a sequence may have.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// What judges which turns are relevant; `None` where nothing does, or there are no sessions.
    pub fn encoder(&self) -> Option<&Arc<dyn Embed>> {
        self.encoder.as_ref()
    }

    /// What a question to a conversation is compared with turns by, made on the caller's thread. Without one every turn in memory
    /// stays visible.
    pub fn question_embedding(&self, question: &str) -> Option<QuestionEmbedding> {
        QuestionEmbedding::new(&**self.encoder.as_ref()?, question).ok()
    }

    /// Makes tokens of what conversations read, on the caller's thread.
    pub fn texts(&self) -> Result<&SessionTexts, Error> {
        self.texts.as_ref().ok_or(SessionError::NoSessions.into())
    }

    /// On the clock of deadlines.
    pub fn now(&self) -> Duration {
        self.pulse.now()
    }

    /// Counters and gauges as of the last step.
    pub fn metrics(&self) -> Metrics {
        self.metrics.snapshot()
    }

    /// The budget as every thread sees it: who is about to allocate by the size of a request reserves here, without the
    /// engine's thread.
    pub fn heap(&self) -> &Arc<HeapBudget> {
        &self.heap
    }

    /// Alerts and device changes from now on.
    pub fn notices(&self) -> NoticeReceiver {
        self.notices.subscribe()
    }

    /// How the engine is, without asking its thread.
    pub fn health(&self) -> EngineHealth {
        let taken = self.places.taken();
        let active = self.metrics.active().min(taken);
        EngineHealth {
            status: match (self.pulse.has_ended(), self.is_stopping()) {
                (true, _) => EngineStatus::Ended,
                (false, true) => EngineStatus::Stopping,
                (false, false) => EngineStatus::Serving,
            },
            active,
            waiting: taken - active,
            since_step: self.now().saturating_sub(self.pulse.last()),
        }
    }

    /// Fails where a request of this owner would find no place now.
    pub fn check_place(&self, owner: Owner) -> Result<(), Error> {
        match self.places.free(owner) {
            _ if self.is_stopping() => Err(Error::Closed),
            0 => Err(self.refused()),
            _ => Ok(()),
        }
    }

    fn refused(&self) -> Error {
        self.metrics.refused.fetch_add(1, Ordering::Relaxed);
        Error::Busy
    }

    /// Whether further requests are refused.
    pub fn is_stopping(&self) -> bool {
        self.pulse.is_stopping.load(Ordering::Relaxed)
    }

    /// Refuses every further request; answers that were accepted are finished.
    pub fn stop(&self) {
        self.pulse.is_stopping.store(true, Ordering::Relaxed);
        self.tell(|thread| thread.driver.stop_reads());
    }

    /// Stops, and waits until accepted requests have ended and all sessions are saved.
    pub fn close(&self) -> Result<(), Error> {
        self.stop();
        self.tell(|thread| thread.is_stopping = true);
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

    /// Takes places for all requests, which are one owner's, or none, at once, and hands them to the scheduler.
    fn offer(
        &self,
        requests: Vec<Request>,
        options: EventOptions,
    ) -> Result<(Reply<Vec<RequestId>>, AnswerEvents), Error> {
        if self.is_stopping() {
            return Err(Error::Closed);
        }
        let owner = requests.first().map(|request| request.owner.owner);
        let owner = owner.unwrap_or_default();
        let permits = self.places.try_acquire(owner, requests.len());
        let permits = permits.ok_or_else(|| self.refused())?;
        let (events, receiver) = bounded(options.max_behind);
        let ids = self.ask_now(move |thread| {
            let mut ids = Vec::new();
            for (index, (request, permit)) in requests.into_iter().zip(permits).enumerate() {
                let listener = Listener::new(index, options, events.clone(), Some(permit));
                match thread.driver.submit_for(request, listener) {
                    Ok(id) => ids.push(id),
                    Err(error) => {
                        ids.into_iter().for_each(|id| thread.driver.cancel(id));
                        return Err(error);
                    }
                }
            }
            Ok(ids)
        });
        let events = AnswerEvents {
            receiver: EventReceiver(receiver),
            commands: self.commands.clone(),
            ids: Vec::new(),
        };
        Ok((ids, events))
    }

    /// Hands requests of one owner to the scheduler: all of them, or none if one is refused.
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

    /// Has a conversation read something, beside other requests; returns the number of the new fact or state. Dropping the
    /// future undoes it, and a conversation that was to be created does not come to be.
    pub async fn read(&self, request: Request) -> Result<u64, Error> {
        let mut events = self.submit(vec![request], READ_EVENTS).await?;
        number_read(events.next().await)
    }

    /// [`Client::read`] for a thread that may block.
    pub fn read_blocking(&self, request: Request) -> Result<u64, Error> {
        let mut events = self.submit_blocking(vec![request], READ_EVENTS)?;
        number_read(events.recv())
    }

    /// The likeliest first tokens of an answer with their log-probabilities, likeliest first.
    pub(crate) async fn first_token(
        &self,
        request: Request,
        likeliest: usize,
    ) -> Result<Vec<(u32, f64)>, Error> {
        let options = EventOptions {
            // The token and the end.
            max_behind: 2,
            logprobs: Some(likeliest),
            ..EventOptions::default()
        };
        let mut events = self.submit(vec![request], options).await?;
        let mut first = Vec::new();
        loop {
            match events.next().await {
                Some((_, AnswerEvent::Token { logprob, .. })) => {
                    first = logprob.map(|logprob| logprob.top).unwrap_or_default();
                }
                Some((_, AnswerEvent::Finished { .. })) => return Ok(first),
                Some((_, AnswerEvent::Failed(error))) => return Err(error),
                Some(_) => {}
                None => return Err(Error::CutOff),
            }
        }
    }

    /// One of a bounded number of commands that wait; [`Error::Busy`] beyond that.
    fn ask<T: Send + 'static, E: Into<Error>>(
        &self,
        command: impl FnOnce(&mut EngineThread) -> Result<T, E> + Send + 'static,
    ) -> Reply<T> {
        let (command, reply) = self.with_place(command);
        if let Some(command) = command {
            let _ = self.commands.send(command);
        }
        reply
    }

    /// The command, if there is a place for it, and where its result arrives.
    fn with_place<T: Send + 'static, E: Into<Error>>(
        &self,
        command: impl FnOnce(&mut EngineThread) -> Result<T, E> + Send + 'static,
    ) -> (Option<Command>, Reply<T>) {
        let (to, reply) = reply();
        let Some(place) = self.command_places.try_acquire(Owner::default(), 1) else {
            to.send(Err::<T, Error>(Error::Busy));
            return (None, reply);
        };
        let command: Command = Box::new(move |thread| {
            drop(place);
            if !to.is_closed() {
                to.send(command(thread));
            }
        });
        (Some(command), reply)
    }

    /// For what has a place already. A command whose caller has stopped waiting is not executed.
    fn ask_now<T: Send + 'static, E: Into<Error>>(
        &self,
        command: impl FnOnce(&mut EngineThread) -> Result<T, E> + Send + 'static,
    ) -> Reply<T> {
        let (to, reply) = reply();
        self.tell(move |thread| {
            if !to.is_closed() {
                to.send(command(thread));
            }
        });
        reply
    }

    /// A thread that has ended drops the command, and with it the reply, which says so.
    fn tell(&self, command: impl FnOnce(&mut EngineThread) + Send + 'static) {
        let _ = self.commands.send(Box::new(command));
    }

    /// Of the conversation of this name, behind its last turn.
    fn ask_scheduler<'a, T: Send + 'static>(
        &self,
        name: impl Into<SessionName<'a>>,
        command: impl FnOnce(&mut Scheduler, SessionName<'_>) -> Result<T, SessionError>
        + Send
        + 'static,
    ) -> Reply<T> {
        let SessionName { owner, name } = name.into();
        let (name, of) = (name.to_owned(), name.to_owned());
        let (command, reply) = self
            .with_place(move |thread| command(thread.driver.scheduler_mut(), owner.session(&name)));
        if let Some(command) = command {
            self.tell(move |thread| thread.follow_turn(owner, of, command));
        }
        reply
    }

    /// Of the conversation of this name, which is opened first.
    fn ask_session<'a, T: Send + 'static>(
        &self,
        name: impl Into<SessionName<'a>>,
        command: impl FnOnce(&mut Runtime, &mut Sessions, SessionId) -> Result<T, SessionError>
        + Send
        + 'static,
    ) -> Reply<T> {
        self.ask_scheduler(name, |scheduler, name| {
            scheduler.with_session(name, command)
        })
    }

    /// Conversations in the owner's folder. Those that a limit of the folder asks for are removed first.
    pub fn list(&self, owner: Owner) -> Reply<ConversationList> {
        self.ask(move |thread| sessions::list(thread.driver.scheduler_mut(), owner))
    }

    /// Opens a conversation. `false`: there is none of this name.
    pub fn open<'a>(&self, name: impl Into<SessionName<'a>>) -> Reply<bool> {
        self.ask_scheduler(name, sessions::open)
    }

    /// Deletes the conversation of this name if there is one, a damaged one too, so that another can begin.
    pub fn make_way<'a>(&self, name: impl Into<SessionName<'a>>) -> Reply<()> {
        self.ask_scheduler(name, sessions::make_way)
    }

    /// With its last turns, at most this many.
    pub fn view<'a>(
        &self,
        name: impl Into<SessionName<'a>>,
        turns: usize,
    ) -> Reply<ConversationView> {
        self.ask_scheduler(name, move |all, name| sessions::view(all, name, turns))
    }

    /// Copies a conversation under a new name.
    pub fn fork<'a>(
        &self,
        name: impl Into<SessionName<'a>>,
        to: String,
    ) -> Reply<ConversationView> {
        self.ask_scheduler(name, move |all, name| {
            all.fork_session(name, &to)?;
            sessions::view(all, name.owner.session(&to), sessions::VIEW_TURNS_MAX)
        })
    }

    /// Deletes a conversation and its file.
    pub fn delete<'a>(&self, name: impl Into<SessionName<'a>>) -> Reply<()> {
        self.ask_scheduler(name, sessions::delete)
    }

    /// Saves a conversation and frees its memory; its next turn opens it again.
    pub fn suspend<'a>(&self, name: impl Into<SessionName<'a>>) -> Reply<()> {
        let name = name.into();
        let (owner, of) = (name.owner, name.name.to_owned());
        self.tell(move |thread| thread.driver.let_rest(Some(owner.session(&of))));
        self.ask_session(name, |runtime, all, id| all.suspend(runtime, id))
    }

    /// Makes `history` what was said last: retracts the turns after it, if the conversation began with `system` (an empty
    /// one matches all).
    pub fn rewind<'a>(
        &self,
        name: impl Into<SessionName<'a>>,
        system: String,
        history: History,
    ) -> Reply<Rewound> {
        self.ask_scheduler(name, move |all, name| {
            sessions::rewind(all, name, &system, &history)
        })
    }

    /// Answers do not see this fact any more.
    pub fn revoke_fact<'a>(&self, name: impl Into<SessionName<'a>>, number: u64) -> Reply<()> {
        self.ask_session(name, move |runtime, all, id| {
            all.revoke(runtime, id, number)
        })
    }

    /// What the user said in a turn and in the one before it, and the facts that hold.
    pub(crate) fn said<'a>(
        &self,
        name: impl Into<SessionName<'a>>,
        turn: u64,
    ) -> Reply<SaidInTurn> {
        self.ask_session(name, move |_, all, id| sessions::said(all, id, turn))
    }

    /// States that hold, with their numbers.
    pub fn states<'a>(&self, name: impl Into<SessionName<'a>>) -> Reply<Vec<(u64, String)>> {
        self.ask_scheduler(name, sessions::states)
    }

    /// Answers do not see this state any more.
    pub fn delete_state<'a>(&self, name: impl Into<SessionName<'a>>, number: u64) -> Reply<()> {
        self.ask_session(name, move |runtime, all, id| {
            all.drop_state(runtime, id, number)
        })
    }

    /// The next answer sees this turn, wherever its rows are.
    pub fn recall<'a>(&self, name: impl Into<SessionName<'a>>, turn: u64) -> Reply<()> {
        self.ask_session(name, move |_, all, id| all.recall(id, turn))
    }

    /// Has every answer see this turn, which is in memory, or ends that.
    pub fn pin<'a>(
        &self,
        name: impl Into<SessionName<'a>>,
        turn: u64,
        is_pinned: bool,
    ) -> Reply<()> {
        self.ask_session(name, move |runtime, all, id| {
            all.pin(runtime, id, turn, is_pinned)
        })
    }

    /// Has no answer see this turn, or lets answers see it again.
    pub fn exclude<'a>(
        &self,
        name: impl Into<SessionName<'a>>,
        turn: u64,
        is_excluded: bool,
    ) -> Reply<()> {
        self.ask_session(name, move |runtime, all, id| {
            all.exclude(runtime, id, turn, is_excluded)
        })
    }

    /// Deletes the last turn; replies its number, `None` where there was none.
    pub fn retract<'a>(&self, name: impl Into<SessionName<'a>>) -> Reply<Option<u64>> {
        self.ask_session(name, |runtime, all, id| all.retract(runtime, id))
    }

    /// Saves every conversation that is not being answered, and empties the prefix cache.
    pub fn suspend_all(&self) -> Reply<()> {
        self.ask(|thread| {
            thread.driver.let_rest(None);
            thread.driver.scheduler_mut().suspend_all();
            Ok::<_, Error>(())
        })
    }

    /// Gives up caches, then idle conversations, until this many bytes of the budget are free again or nothing is left to give
    /// up; replies the bytes.
    pub fn trim(&self, bytes: usize) -> Reply<usize> {
        self.ask(move |thread| Ok::<_, Error>(thread.driver.scheduler_mut().trim(bytes)))
    }

    /// Where every byte is, with the sequences of this owner.
    pub fn memory(&self, owner: Owner) -> Reply<MemoryReport> {
        self.ask(move |thread| Ok::<_, Error>(thread.driver.scheduler().memory_report(owner)))
    }

    /// The pages of keys and values, as the kernel reports them.
    pub fn kv_memory(&self) -> Reply<KvMemory> {
        self.ask(|thread| Ok::<_, Error>(KvMemory::new(thread.driver.scheduler().runtime())))
    }

    /// Counts bytes that the caller is about to allocate against the budget.
    pub fn reserve(&self, bytes: usize) -> Reply<()> {
        self.ask(move |thread| thread.driver.scheduler_mut().reserve_bytes(bytes))
    }

    /// Gives reserved bytes back.
    pub fn release(&self, bytes: usize) {
        self.tell(move |thread| thread.driver.scheduler_mut().release_bytes(bytes));
    }

    /// Overrides how hot the device is; `None`: what the device says.
    pub fn set_thermal(&self, thermal: Option<Thermal>) {
        self.set_device(move |device| device.thermal = thermal);
    }

    /// What the system says of its memory; sessions and caches give up theirs accordingly.
    pub fn set_pressure(&self, pressure: Pressure) {
        self.set_device(move |device| device.pressure = pressure);
    }

    fn set_device(&self, set: impl FnOnce(&mut Device) + Send + 'static) {
        let Some(place) = self.command_places.try_acquire(Owner::default(), 1) else {
            log::warn!("what was said of the device is not heard: too many commands wait");
            return;
        };
        self.tell(move |thread| {
            drop(place);
            thread.device.set(set);
        });
    }

    /// Compiles a constraint for structured output. Takes up to seconds and blocks, the first time longest: the
    /// vocabulary is prepared then, inside the budget.
    #[cfg(feature = "grammar")]
    pub fn constraint(
        &self,
        shape: &haversack_grammar::Shape,
    ) -> Result<Box<dyn haversack_engine::sample::Constraint>, Error> {
        // What is refused is refused whatever room there is.
        let shape = shape.check()?;
        let reserve = |bytes| self.reserve(bytes).wait();
        let release = |bytes| self.release(bytes);
        let vocabulary = self
            .vocabulary
            .get(self.model.tokenizer(), reserve, release)?;
        let needs = shape.compiling_bytes();
        reserve(needs)?;
        let compiled = vocabulary.compile_checked(shape);
        release(needs);
        Ok(compiled?)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            log::error!("{error}");
        }
    }
}

/// A read has one event.
const READ_EVENTS: EventOptions = EventOptions {
    max_behind: 1,
    logprobs: None,
    waits: false,
    progress: false,
};

fn number_read(event: Option<(usize, AnswerEvent)>) -> Result<u64, Error> {
    match event {
        Some((_, AnswerEvent::SessionRead { number })) => Ok(number),
        Some((_, AnswerEvent::Failed(error))) => Err(error),
        _ => Err(Error::CutOff),
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

impl AnswerEvents {
    /// Ends the answers where they are. Their last events still come: a turn is saved as far as it came.
    pub fn stop(&self) {
        self.stopper().stop();
    }

    /// The same for another thread, while this one waits for events.
    pub fn stopper(&self) -> AnswerStopper {
        AnswerStopper {
            commands: self.commands.clone(),
            ids: self.ids.clone(),
        }
    }
}

/// Ends answers from any thread, while another one reads them.
#[derive(Clone)]
pub struct AnswerStopper {
    commands: Sender<Command>,
    ids: Vec<RequestId>,
}

impl AnswerStopper {
    /// Ends the answers where they are. Does nothing to those that are over.
    pub fn stop(&self) {
        let ids = self.ids.clone();
        let stop = move |thread: &mut EngineThread| thread.driver.stop(&ids);
        let _ = self.commands.send(Box::new(stop));
    }
}

impl Drop for AnswerEvents {
    fn drop(&mut self) {
        let ids = std::mem::take(&mut self.ids);
        let cancel = |thread: &mut EngineThread| {
            ids.into_iter().for_each(|id| thread.driver.cancel(id));
        };
        let _ = self.commands.send(Box::new(cancel));
    }
}
