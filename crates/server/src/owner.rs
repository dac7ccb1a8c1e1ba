//! The thread that owns the runtime and the desk, and the hall where those wait who want something of it.

use haversack::alerts::{self, Raised, Watch, Watched};
use super::limits;
use haversack::speed::Speed;
use haversack::engine::device::{Thermal, governor};
use haversack::engine::runtime::{Finish, Runtime};
use haversack::engine::sample::{SampleError, logprob_of, logprobs_top};
use haversack::engine::{Ledger, Model};
use haversack::memory::{Readings, Zones};
use haversack::scheduler::{
    Held, Request, RequestEvent, RequestId, Reuse, Scheduler, SchedulerOptions, Sight, SubmitError,
    TurnRequest,
};
use haversack::session::{Context, Embed, Sessions};
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, oneshot};

#[derive(Clone, Copy, Debug)]
pub struct OwnerOptions {
    /// Sequences in one step.
    pub batch: usize,
    /// Requests that may wait beside those.
    pub queue: usize,
    /// Sequences of requests that are over, kept for those who begin alike.
    pub reuse: usize,
}

/// What a choice is told: which one, and what.
pub type Told = (usize, Piece);

#[derive(Debug)]
pub enum Piece {
    Token {
        /// What may be shown now.
        text: String,
        logprob: Option<Logprob>,
    },
    Done {
        text: String,
        tokens: usize,
        finish: Finish,
        became: Became,
    },
    Failed(String),
}

/// What became of the tokens that were read.
#[derive(Debug)]
pub enum Became {
    /// They are gone with the request.
    Request(Held),
    /// They are part of a conversation.
    Turn {
        number: Option<u64>,
        context: Box<Context>,
    },
}

/// What somebody wants answered.
pub enum Submission {
    Request(Box<Request>),
    Turn(Box<TurnRequest>),
}

/// How likely a token was, and what else was.
#[derive(Debug)]
pub struct Logprob {
    pub id: u32,
    pub logprob: f64,
    pub top: Vec<(u32, f64)>,
}

/// The books as they were after the last step.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub ledger: Ledger,
    pub active: usize,
    pub waiting: usize,
    pub steps: u64,
    /// Sequences in all steps together.
    pub stepped: u64,
    /// Of requests that were taken.
    pub prompt_tokens: u64,
    pub tokens: u64,
    pub done: u64,
    pub cancelled: u64,
    pub failed: u64,
    /// Counted beside the books, and told with them.
    pub refused: u64,
    /// Prompts that begin like others.
    pub reuse: Reuse,
    /// How hot the device is, if anybody says so.
    pub thermal: Option<Thermal>,
    /// On the ladder of heat.
    pub rung: u8,
    /// Changes that the device made necessary, and the last of them.
    pub changes: u64,
    pub last_changes: VecDeque<(Duration, String)>,
    /// Tokens per second: sampled, read.
    pub speed: [f64; 2],
    pub sight: Sight,
    pub alerts: Vec<Raised>,
    /// How often each was raised.
    pub alert_counts: [u64; alerts::Alert::ALL.len()],
    /// Tokens that answers saw: what was there, and what had to be computed.
    pub cache: Cache,
    /// Rows that left the windows of requests.
    pub left_windows: u64,
}

/// Tokens, by whether they were there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cache {
    pub hits: u64,
    /// Said for the first time.
    pub new: u64,
    /// Of requests that name no session.
    pub no_session: u64,
    /// Of turns whose rows were nowhere any more.
    pub rows_gone: u64,
}

/// Something that everybody may hear of.
#[derive(Clone, Debug)]
pub enum Notice {
    Alert(Duration, alerts::Change),
    Device(Duration, String),
}

/// Of the last changes.
const CHANGES_KEPT: usize = 32;
/// How often the device is looked at while nobody wants anything.
const IDLE_LOOK: Duration = Duration::from_secs(1);

impl Seen {
    fn end(&mut self, finish: Finish) {
        match finish {
            Finish::Cancelled => self.cancelled += 1,
            Finish::Stop | Finish::Length => self.done += 1,
        }
    }

    /// A turn was said: what of its context was there.
    fn count(&mut self, context: &Context) {
        let read = context.kept.saturating_sub(context.cached);
        self.prompt_tokens += read;
        self.cache.hits += context.cached;
        self.cache.rows_gone += context.recomputed;
        self.cache.new += read.saturating_sub(context.recomputed);
    }
}

/// Notices that somebody who listens may be behind.
const NOTICES: usize = 64;

enum Command {
    Submit {
        what: Submission,
        choice: usize,
        logprobs: Option<usize>,
        to: mpsc::Sender<Told>,
        permit: OwnedSemaphorePermit,
        reply: oneshot::Sender<Result<RequestId, SubmitError>>,
    },
    Cancel(RequestId),
    Do(Box<dyn FnOnce(&mut Scheduler) + Send>),
    /// How hot it is; `None`: what the device says.
    Tell(Option<Thermal>),
    Stop,
}

/// Where requests come in.
pub struct Hall {
    commands: Sender<Command>,
    places: Arc<Semaphore>,
    seen: Arc<Mutex<Seen>>,
    /// Found no place. Not in the books: whoever is refused waits for nobody who writes in them.
    refused: Arc<AtomicU64>,
    stopping: AtomicBool,
    started: Instant,
    notices: broadcast::Sender<Notice>,
    pub options: OwnerOptions,
    pub model: Arc<Model>,
    /// Rows that a sequence may have.
    pub rows_most: usize,
    /// Judges questions; `None` where nothing does, or there are no sessions.
    pub encoder: Option<Arc<dyn Embed>>,
}

/// Who is being answered. Whoever drops it wants no more.
pub struct Place {
    commands: Sender<Command>,
    tickets: Vec<RequestId>,
}

impl Drop for Place {
    fn drop(&mut self) {
        for &ticket in &self.tickets {
            let _ = self.commands.send(Command::Cancel(ticket));
        }
    }
}

/// Why nobody took it.
pub enum Turned {
    Busy,
    Stopping,
    SubmitError(SubmitError),
}

impl Hall {
    pub fn seen(&self) -> Seen {
        Seen {
            refused: self.refused.load(Ordering::Relaxed),
            ..lock(&self.seen).clone()
        }
    }

    /// What changes from now on.
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    /// On the clock of deadlines.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Nobody enters any more.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// The owner ends once nobody waits.
    pub fn close(&self) {
        let _ = self.commands.send(Command::Stop);
    }

    /// Says how hot the device is, for those that cannot be asked; `None`: ask it again.
    pub fn tell_thermal(&self, thermal: Option<Thermal>) {
        let _ = self.commands.send(Command::Tell(thermal));
    }

    /// Has something done between two steps. `None`: the owner has gone.
    pub async fn with<T: Send + 'static>(
        &self,
        go: impl FnOnce(&mut Scheduler) -> T + Send + 'static,
    ) -> Option<T> {
        self.order(go)?.await.ok()
    }

    /// The same for threads that may wait.
    pub fn wait_for<T: Send + 'static>(
        &self,
        go: impl FnOnce(&mut Scheduler) -> T + Send + 'static,
    ) -> Option<T> {
        self.order(go)?.blocking_recv().ok()
    }

    fn order<T: Send + 'static>(
        &self,
        go: impl FnOnce(&mut Scheduler) -> T + Send + 'static,
    ) -> Option<oneshot::Receiver<T>> {
        let (reply, done) = oneshot::channel();
        let go = Box::new(|desk: &mut Scheduler| drop(reply.send(go(desk))));
        self.commands.send(Command::Do(go)).ok()?;
        Some(done)
    }

    /// Places for all of them or none, at once; then the desk says whether it takes them.
    pub async fn submit(
        &self,
        what: Vec<Submission>,
        logprobs: Option<usize>,
    ) -> Result<(Place, mpsc::Receiver<Told>), Turned> {
        if self.is_stopping() {
            return Err(Turned::Stopping);
        }
        let count = u32::try_from(what.len()).unwrap_or(u32::MAX);
        let places = self.places.clone();
        let mut permits = places.try_acquire_many_owned(count).map_err(|_| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            Turned::Busy
        })?;
        let mut place = Place {
            commands: self.commands.clone(),
            tickets: Vec::new(),
        };
        let (to, told) = mpsc::channel(limits::BEHIND);
        for (choice, what) in what.into_iter().enumerate() {
            let (reply, answer) = oneshot::channel();
            let permit = permits.split(1).ok_or(Turned::Busy)?;
            let submit = Command::Submit {
                what,
                choice,
                logprobs,
                to: to.clone(),
                permit,
                reply,
            };
            let sent = self.commands.send(submit).is_ok();
            let answer = if sent { answer.await.ok() } else { None };
            let ticket = answer.ok_or(Turned::Stopping)?;
            place.tickets.push(ticket.map_err(Turned::SubmitError)?);
        }
        Ok((place, told))
    }
}

/// Who listens to a request.
struct Listener {
    choice: usize,
    logprobs: Option<usize>,
    to: mpsc::Sender<Told>,
    /// Its place among those who are computed or wait: free for somebody else when the last token is there, whether or not it was read.
    _permit: OwnedSemaphorePermit,
}

/// What the device says, and what somebody says of it.
struct Device {
    readings: Readings,
    zones: Zones,
    told: Option<Thermal>,
    /// When it is looked at next.
    due: Duration,
}

pub struct Owner {
    desk: Scheduler,
    device: Device,
    commands: Receiver<Command>,
    listeners: HashMap<RequestId, Listener>,
    seen: Arc<Mutex<Seen>>,
    refused: Arc<AtomicU64>,
    started: Instant,
    stopping: bool,
    queue: usize,
    speed: Speed,
    watch: Watch,
    notices: broadcast::Sender<Notice>,
}

impl Owner {
    /// Starts the thread.
    pub fn start(
        runtime: Runtime,
        sessions: Option<Sessions>,
        options: OwnerOptions,
    ) -> std::io::Result<(Hall, JoinHandle<()>)> {
        let (commands, from) = channel();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let refused = Arc::new(AtomicU64::new(0));
        let started = Instant::now();
        let (notices, _) = broadcast::channel(NOTICES);
        let hall = Hall {
            commands,
            places: Arc::new(Semaphore::new(options.batch + options.queue)),
            seen: seen.clone(),
            refused: refused.clone(),
            stopping: AtomicBool::new(false),
            started,
            notices: notices.clone(),
            options,
            model: runtime.model().clone(),
            rows_most: runtime.bounds().rows_max,
            encoder: sessions.as_ref().and_then(Sessions::encoder),
        };
        let desk = SchedulerOptions {
            batch: options.batch,
            // Places are counted in the hall.
            queue: options.batch + options.queue,
            reuse: options.reuse,
            ..SchedulerOptions::default()
        };
        let mut desk = Scheduler::new(runtime, desk);
        if let Some(sessions) = sessions {
            desk = desk.with_sessions(sessions);
        }
        let device = Device {
            readings: Readings::open(),
            zones: Zones::open(),
            told: None,
            due: Duration::ZERO,
        };
        let mut owner = Owner {
            desk,
            device,
            commands: from,
            listeners: HashMap::new(),
            seen,
            refused,
            started,
            stopping: false,
            queue: options.queue,
            speed: Speed::default(),
            watch: Watch::default(),
            notices,
        };
        owner.publish();
        let thread = std::thread::Builder::new().name("owner".into());
        Ok((hall, thread.spawn(move || owner.run())?))
    }

    fn run(&mut self) {
        while self.take() {
            self.look();
            self.step();
            self.publish();
        }
        self.desk.suspend_all();
    }

    /// Takes what was asked for; waits where there is nothing else to do. `false`: it is over.
    fn take(&mut self) -> bool {
        loop {
            let is_idle = self.desk.is_idle();
            if is_idle {
                self.publish();
            }
            if is_idle && self.stopping {
                return false;
            }
            let command = match is_idle {
                // Sessions that do nothing leave memory too when the device is short of it.
                true => self.commands.recv_timeout(IDLE_LOOK).map_err(|e| match e {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                }),
                false => self.commands.try_recv(),
            };
            match command {
                Ok(command) => {
                    self.obey(command);
                    // Somebody who asks again and again must not keep it from looking.
                    if self.desk.is_idle() {
                        self.look();
                    }
                }
                Err(TryRecvError::Empty) if is_idle => self.look(),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => self.stopping = true,
            }
            if self.stopping && !self.desk.is_idle() {
                return true;
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit {
                what,
                choice,
                logprobs,
                to,
                permit,
                reply,
            } => {
                let (ticket, tokens) = match what {
                    Submission::Request(request) => {
                        let tokens = request.prompt.len();
                        (self.desk.submit(*request), tokens)
                    }
                    // Its tokens are counted when it is said.
                    Submission::Turn(turn) => (self.desk.say(*turn), 0),
                };
                if let Ok(ticket) = ticket {
                    let mut seen = lock(&self.seen);
                    seen.prompt_tokens += tokens as u64;
                    seen.cache.no_session += tokens as u64;
                    drop(seen);
                    let listener = Listener {
                        choice,
                        logprobs,
                        to,
                        _permit: permit,
                    };
                    self.listeners.insert(ticket, listener);
                }
                let _ = reply.send(ticket);
            }
            Command::Cancel(ticket) => {
                if self.listeners.remove(&ticket).is_some() {
                    lock(&self.seen).cancelled += 1;
                    if let Err(error) = self.desk.cancel(ticket) {
                        log::error!("a request could not be ended: {error}");
                    }
                }
            }
            Command::Do(go) => go(&mut self.desk),
            Command::Tell(thermal) => {
                self.device.told = thermal;
                self.device.due = Duration::ZERO;
            }
            Command::Stop => self.stopping = true,
        }
    }

    /// Looks at the device, if it is time to, and does what follows.
    fn look(&mut self) {
        let now = self.started.elapsed();
        if now < self.device.due {
            return;
        }
        self.device.due = now + governor::INTERVAL;
        let thermal = self.device.told.or_else(|| self.device.zones.now());
        let reading = self.device.readings.now();
        let changes = self.desk.observe(thermal, &reading, now);
        let (ledger, sight) = (self.desk.runtime().ledger(), self.desk.sight());
        let mut seen = lock(&self.seen);
        self.speed.note(now, seen.tokens, sight.read);
        seen.speed = self.speed.per_second();
        seen.thermal = thermal;
        seen.rung = self.desk.rung();
        seen.sight = sight;
        let watched = Watched {
            budget_bytes: ledger.budget,
            bound_bytes: sight.bound_bytes,
            waiting: self.desk.waiting(),
            queue: self.queue,
            thermal,
            is_short: sight.is_short,
            unsaved: sight.unsaved,
            refused_total: self.refused.load(Ordering::Relaxed),
            failed_total: seen.failed,
            forgotten_total: sight.tally.forgotten,
        };
        for change in self.watch.look(now, &watched) {
            let alert = change.alert.name();
            match change.is_raised {
                true => log::warn!("alert {alert}: {}", change.words),
                false => log::info!("alert {alert}: {}", change.words),
            }
            let _ = self.notices.send(Notice::Alert(now, change));
        }
        seen.alerts = self.watch.raised().to_vec();
        seen.alert_counts = self.watch.counts();
        for change in changes {
            log::warn!("{change}");
            let _ = self.notices.send(Notice::Device(now, change.clone()));
            seen.changes += 1;
            if seen.last_changes.len() == CHANGES_KEPT {
                seen.last_changes.pop_front();
            }
            seen.last_changes.push_back((now, change));
        }
    }

    fn step(&mut self) {
        let now = self.started.elapsed();
        let Owner {
            desk,
            listeners,
            seen,
            ..
        } = self;
        let active = desk.active();
        let tell = &mut |ticket: RequestId, news: RequestEvent<'_>| {
            let Some(listener) = listeners.get(&ticket) else {
                return ControlFlow::Break(());
            };
            let is_over = matches!(
                news,
                RequestEvent::Done(..) | RequestEvent::Said(_) | RequestEvent::Failed(_)
            );
            // In the books before anybody hears of it.
            let mut books = lock(seen);
            match &news {
                RequestEvent::Token { .. } => books.tokens += 1,
                RequestEvent::Done(completed, held) => {
                    books.end(completed.finish);
                    books.left_windows += held.seen.saturating_sub(held.rows as u64);
                }
                RequestEvent::Said(answer) => {
                    books.end(answer.finish);
                    books.count(&answer.context);
                }
                RequestEvent::Failed(_) => books.failed += 1,
                RequestEvent::Entered | RequestEvent::Prompt { .. } => {}
            }
            drop(books);
            let flow = listener.hear(news);
            if is_over {
                listeners.remove(&ticket);
            }
            flow
        };
        let stepped = desk.step(now, tell);
        if let Err(error) = stepped {
            log::error!("a step failed: {error}");
        }
        let mut seen = lock(seen);
        seen.steps += 1;
        seen.stepped += active as u64;
    }

    fn publish(&mut self) {
        let mut seen = lock(&self.seen);
        seen.ledger = self.desk.runtime().ledger();
        seen.active = self.desk.active();
        seen.waiting = self.desk.waiting();
        seen.reuse = self.desk.reuse();
    }
}

impl Listener {
    /// Passes on what is of interest. Nobody waits for a reader: one that is too far behind hears no more.
    fn hear(&self, news: RequestEvent<'_>) -> ControlFlow<()> {
        let piece = match news {
            RequestEvent::Entered | RequestEvent::Prompt { .. } => {
                return match self.to.is_closed() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                };
            }
            RequestEvent::Token { sampled, logits } => {
                let logprob = self.logprobs.map(|top| logprob(sampled.id, logits, top));
                match logprob.transpose() {
                    Ok(logprob) => Piece::Token {
                        text: sampled.text.to_owned(),
                        logprob,
                    },
                    Err(error) => Piece::Failed(error.to_string()),
                }
            }
            RequestEvent::Done(completed, held) => Piece::Done {
                text: completed.text,
                tokens: completed.tokens.len(),
                finish: completed.finish,
                became: Became::Request(held),
            },
            RequestEvent::Said(answer) => Piece::Done {
                tokens: answer.tokens.len(),
                finish: answer.finish,
                became: Became::Turn {
                    number: answer.turn,
                    context: Box::new(answer.context),
                },
                text: answer.text,
            },
            RequestEvent::Failed(why) => Piece::Failed(why),
        };
        match self.to.try_send((self.choice, piece)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(TrySendError::Full(_)) => {
                log::warn!(
                    "a reader was {} tokens behind and is cut off",
                    limits::BEHIND
                );
                ControlFlow::Break(())
            }
            Err(TrySendError::Closed(_)) => ControlFlow::Break(()),
        }
    }
}

/// Of a token among all, and of the likeliest.
fn logprob(id: u32, logits: &[f32], top: usize) -> Result<Logprob, SampleError> {
    Ok(Logprob {
        id,
        logprob: logprob_of(logits, id)?,
        top: match top {
            0 => Vec::new(),
            top => logprobs_top(logits, top)?,
        },
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_of_all_add_up_to_one() {
        let logits = [0.5, -1.0, 3.0, 3.0, f32::NEG_INFINITY];
        let found = logprob(1, &logits, 5).unwrap();
        let sum: f64 = found.top.iter().map(|(_, p)| p.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        let order: Vec<u32> = found.top.iter().map(|(id, _)| *id).collect();
        assert_eq!(order, [2, 3, 0, 1, 4]);
        assert_eq!(found.logprob, found.top[3].1);
        assert_eq!(logprob(0, &logits, 2).unwrap().top.len(), 2);
        assert!(logprob(0, &logits, 0).unwrap().top.is_empty());
    }
}
