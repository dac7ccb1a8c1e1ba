//! Drives a scheduler: submits, steps, tells listeners, counts. No thread, no clock and no device of its own: the
//! caller passes the time and the readings, so a simulation runs the same code as the engine's thread.

use crate::alerts::{AlertWatch, Watched};
use crate::channel::{Sender, TrySendError, bounded, lock};
use crate::error::{Error, ErrorKind, of_request};
use crate::found_facts::{EVENTS_MAX, FactFinder, LIKELIEST, SavedTurn};
use crate::metrics::{Metrics, SharedMetrics};
use crate::notices::{Notice, Notices};
use crate::options::{EngineOptions, EventOptions};
use crate::places::Permit;
use crate::report::{AnswerEvent, ContextSeen, EventReceiver, Logprob, Report};
use crate::speed::Speed;
use haversack_conversations::scheduler::{
    Request, RequestEvent, RequestId, RequestKind, Scheduler, SubmitError,
};
use haversack_conversations::session::{Owner, SessionName};
use haversack_engine::device::Thermal;
use haversack_memory::Reading;
use haversack_memory::heap::{HeapBudget, HeapTrimmer, LedgerLevel};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The receiver of one request's events.
pub(crate) struct Listener {
    /// Which of the requests that share a channel.
    index: usize,
    options: EventOptions,
    events: Sender<(usize, AnswerEvent)>,
    /// Free when the last token is there, whether or not it was read.
    _permit: Option<Permit>,
    submitted: Instant,
    first_token: Option<Duration>,
    is_stopped: bool,
    /// Its request answers nobody, and counts as none.
    is_read: bool,
    /// Of a turn.
    session: Option<(Owner, String)>,
}

/// A scheduler with those who listen to its requests, for programs with a loop of their own.
pub struct Driver {
    scheduler: Scheduler,
    listeners: HashMap<RequestId, Listener>,
    shared: Arc<SharedMetrics>,
    notices: Arc<Notices>,
    options: EngineOptions,
    speed: Speed,
    alerts: AlertWatch,
    heap: Arc<HeapBudget>,
    trimmer: HeapTrimmer,
    /// Of sessions whose facts are found while nothing else is computed.
    facts: FactFinder,
}

impl Driver {
    /// What the process holds on its heap now is the baseline of the budget.
    pub fn new(scheduler: Scheduler, options: &EngineOptions) -> Driver {
        let driver = Driver {
            heap: Arc::new(HeapBudget::new(ledger_level(&scheduler))),
            trimmer: HeapTrimmer::default(),
            scheduler,
            listeners: HashMap::new(),
            shared: Arc::default(),
            notices: Arc::default(),
            options: *options,
            speed: Speed::default(),
            alerts: AlertWatch::default(),
            facts: FactFinder::default(),
        };
        driver.publish();
        driver
    }

    /// What computes.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// What computes, for its sessions and settings.
    pub fn scheduler_mut(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    /// Whether any request waits or is computed.
    pub fn has_requests(&self) -> bool {
        self.scheduler.has_requests()
    }

    /// Whether [`Driver::step`] has nothing to do.
    pub fn is_idle(&self) -> bool {
        let finds = || self.facts.has_work(self.scheduler.sessions());
        self.scheduler.is_idle() && !(self.listeners.is_empty() && finds())
    }

    /// Counters and gauges as of the last step.
    pub fn metrics(&self) -> Metrics {
        self.shared.snapshot()
    }

    pub(crate) fn shared(&self) -> (Arc<SharedMetrics>, Arc<Notices>, Arc<HeapBudget>) {
        (self.shared.clone(), self.notices.clone(), self.heap.clone())
    }

    /// `max_behind`: events that may wait to be received; the request is cancelled beyond that.
    pub fn submit(
        &mut self,
        request: Request,
        max_behind: usize,
    ) -> Result<(RequestId, EventReceiver), SubmitError> {
        let (events, receiver) = bounded(max_behind);
        let options = EventOptions {
            max_behind,
            ..EventOptions::default()
        };
        let listener = Listener::new(0, options, events, None);
        let id = self.submit_for(request, listener)?;
        Ok((id, EventReceiver(receiver)))
    }

    pub(crate) fn submit_for(
        &mut self,
        request: Request,
        listener: Listener,
    ) -> Result<RequestId, SubmitError> {
        let tokens = match &request.kind {
            RequestKind::Completion { prompt, .. } => prompt.len(),
            // Tokens of a turn are counted when it is saved, those of a read with the turns that see them.
            RequestKind::Turn { .. } | RequestKind::Read { .. } => 0,
        };
        let is_read = matches!(request.kind, RequestKind::Read { .. });
        let owner = request.owner.owner;
        let (session, is_turn) = match &request.kind {
            RequestKind::Completion { .. } => (None, false),
            RequestKind::Turn { session, .. } => (Some(session.clone()), true),
            RequestKind::Read { session, .. } => (Some(session.clone()), false),
        };
        let of = session.as_deref().map(|name| owner.session(name));
        let interrupted = self.facts.interrupt(of);
        self.cancel_all(interrupted);
        let id = self.scheduler.submit(request)?;
        let mut metrics = lock(&self.shared.metrics);
        metrics.prompt_tokens += tokens as u64;
        metrics.cache.no_session += tokens as u64;
        drop(metrics);
        self.listeners.insert(
            id,
            Listener {
                is_read,
                session: session.filter(|_| is_turn).map(|name| (owner, name)),
                ..listener
            },
        );
        Ok(id)
    }

    /// Does nothing for a request that has ended.
    pub fn cancel(&mut self, id: RequestId) {
        if let Some(listener) = self.listeners.remove(&id) {
            lock(&self.shared.metrics).cancelled += u64::from(!listener.is_read);
            if let Err(error) = self.scheduler.cancel(id) {
                log::error!("request {} could not be cancelled: {error}", id.number());
            }
        }
    }

    fn cancel_all(&mut self, ids: impl IntoIterator<Item = RequestId>) {
        ids.into_iter().for_each(|id| self.cancel(id));
    }

    /// Nothing of this session is read in the background while a command of it is executed.
    pub(crate) fn make_way(&mut self, session: SessionName<'_>) {
        let interrupted = self.facts.interrupt_fact(session);
        self.cancel_all(interrupted);
    }

    /// Nothing opens this session in the background before its next request does; `None`: no session.
    pub(crate) fn let_rest(&mut self, session: Option<SessionName<'_>>) {
        let interrupted = match session {
            Some(_) => self.facts.interrupt(session),
            None => self.facts.interrupt_all(),
        };
        self.cancel_all(interrupted);
    }

    /// Ends what sessions read without answering, and what is found in the background: an engine that stops gives no answer
    /// after it.
    pub(crate) fn stop_reads(&mut self) {
        let finding = self.facts.close();
        self.cancel_all(finding);
        let reads = self
            .listeners
            .iter()
            .filter(|(_, listener)| listener.is_read);
        let reads: Vec<RequestId> = reads.map(|(id, _)| *id).collect();
        for id in reads {
            if let Some(listener) = self.listeners.get(&id) {
                let _ = listener.send(AnswerEvent::Failed(Error::Closed));
            }
            self.cancel(id);
        }
    }

    /// Ends answers where they are; their last events come with the next step.
    pub fn stop(&mut self, ids: &[RequestId]) {
        for id in ids {
            if let Some(listener) = self.listeners.get_mut(id) {
                listener.is_stopped = true;
            }
        }
    }

    /// Applies a reading of the device: throttling, room for sessions and requests, alerts.
    pub fn observe(&mut self, now: Duration, thermal: Option<Thermal>, reading: &Reading) {
        let changes = self.scheduler.observe(thermal, reading, now);
        self.update_heap();
        self.trimmer.poll();
        let (ledger, stats) = (self.scheduler.runtime().ledger(), self.scheduler.stats());
        let mut metrics = lock(&self.shared.metrics);
        self.speed
            .add(now, metrics.sampled_tokens, stats.tokens_read);
        metrics.speed = self.speed.per_second();
        metrics.thermal = thermal;
        metrics.throttle_level = self.scheduler.throttle_level();
        metrics.stats = stats;
        let watched = Watched {
            budget_bytes: ledger.budget,
            bound_bytes: stats.bound_bytes,
            waiting: self.scheduler.waiting(),
            queue: self.options.queue,
            thermal,
            is_short: stats.is_short,
            unsaved: stats.unsaved,
            refused_total: self.shared.refused.load(Ordering::Relaxed),
            failed_total: metrics.failed,
            forgotten_total: stats.tally.forgotten,
            removed_total: stats.removed.iter().sum(),
        };
        for change in self.alerts.observe(now, &watched) {
            let level = match change.is_raised && self.options.logs {
                true => log::Level::Warn,
                false => log::Level::Info,
            };
            log::log!(level, "alert {}: {}", change.alert.name(), change.words);
            self.notices.publish(&Notice::Alert(now, change));
        }
        metrics.alerts = self.alerts.raised().to_vec();
        metrics.alert_counts = self.alerts.counts();
        for change in changes {
            if self.options.logs {
                log::warn!("{change}");
            }
            self.notices.publish(&Notice::Device(now, change.clone()));
            metrics.add_device_change(now, change);
        }
    }

    /// Tells the scheduler what the process has on its heap, and other threads what the ledger leaves of the budget.
    fn update_heap(&mut self) {
        self.heap.set_ledger(ledger_level(&self.scheduler));
        let (bytes, wanted) = (self.heap.growth_bytes(), self.heap.take_refused());
        if self.scheduler.set_heap_bytes(bytes, wanted) {
            self.heap.set_ledger(ledger_level(&self.scheduler));
        }
    }

    /// Has the next thing computed that finds facts, while nobody waits for anything else.
    fn find_facts(&mut self) {
        let own = usize::from(self.facts.running().is_some());
        if self.listeners.len() > own {
            return;
        }
        let Some(request) = self.facts.next_request(&mut self.scheduler) else {
            return;
        };
        let (events, receiver) = bounded(EVENTS_MAX);
        let options = EventOptions {
            max_behind: EVENTS_MAX,
            logprobs: Some(LIKELIEST),
            ..EventOptions::default()
        };
        let listener = Listener {
            is_read: true,
            ..Listener::new(0, options, events, None)
        };
        let running = match self.scheduler.submit(request) {
            Ok(id) => {
                self.listeners.insert(id, listener);
                Some((id, EventReceiver(receiver)))
            }
            Err(error) => {
                log::debug!("no facts are found: {error}");
                None
            }
        };
        self.facts.begun(running);
    }

    /// Facts of these turns are to be found where their sessions ask for it.
    fn remember(&mut self, turns: Vec<SavedTurn>) {
        let turns = turns.into_iter().filter(|_| self.options.auto_facts);
        for turn in turns {
            let name = turn.owner.session(&turn.session);
            let sessions = self.scheduler.sessions();
            let finds = sessions.and_then(|all| all.settings(all.opened(name)?).ok()?.auto_facts);
            if finds == Some(true) {
                self.facts.add(turn);
            }
        }
    }

    /// One step of the scheduler. Metrics are counted before listeners are told.
    pub fn step(&mut self, now: Duration) {
        self.update_heap();
        self.find_facts();
        let mut saved = Vec::new();
        let Driver {
            scheduler,
            listeners,
            shared,
            ..
        } = self;
        let active = scheduler.active();
        let tell = &mut |id: RequestId, event: RequestEvent<'_>| {
            let Some(listener) = listeners.get_mut(&id) else {
                return ControlFlow::Break(());
            };
            if !listener.is_read {
                count(&mut lock(&shared.metrics), &event);
            }
            if let RequestEvent::TurnSaved(answer) = &event
                && let (Some(number), Some((owner, session))) =
                    (answer.turn, listener.session.take())
            {
                saved.push(SavedTurn {
                    owner,
                    session,
                    number,
                });
            }
            let is_admitted = matches!(event, RequestEvent::Admitted);
            let (event, is_last) = match listener.event(event) {
                // A request that ends with its admission is not heard of again.
                Heard::Nothing if is_admitted && listener.events.is_closed() => {
                    lock(&shared.metrics).cancelled += u64::from(!listener.is_read);
                    listeners.remove(&id);
                    return ControlFlow::Break(());
                }
                Heard::Nothing if listener.events.is_closed() => return ControlFlow::Break(()),
                Heard::Nothing if listener.is_stopped && !is_admitted => {
                    return ControlFlow::Break(());
                }
                Heard::Nothing => return ControlFlow::Continue(()),
                Heard::More(event) => (event, false),
                Heard::Last(event) => (event, true),
            };
            let flow = listener.send(event);
            match listener.is_stopped {
                _ if is_last => drop(listeners.remove(&id)),
                true => return ControlFlow::Break(()),
                false => {}
            }
            flow
        };
        if let Err(error) = scheduler.step(now, tell) {
            log::error!("a step failed: {error}");
        }
        self.remember(saved);
        let mut metrics = lock(&self.shared.metrics);
        metrics.steps += 1;
        metrics.step_sequences += active as u64;
        drop(metrics);
        self.publish();
    }

    /// Brings the gauges up to date.
    pub fn publish(&self) {
        let mut metrics = lock(&self.shared.metrics);
        metrics.ledger = self.scheduler.runtime().ledger();
        metrics.active = self.scheduler.active();
        metrics.waiting = self.scheduler.waiting();
        metrics.prefix_cache = self.scheduler.prefix_cache_stats();
    }

    /// Saves every session and ends all subscriptions.
    pub fn close(&mut self) {
        let finding = self.facts.close();
        self.cancel_all(finding);
        self.scheduler.suspend_all();
        self.notices.close();
    }
}

fn ledger_level(scheduler: &Scheduler) -> LedgerLevel {
    let ledger = scheduler.runtime().ledger();
    let blocks = ledger.kv_live + ledger.kv_ahead + ledger.kv_promised;
    LedgerLevel {
        budget_bytes: ledger.budget,
        block_bytes: blocks.saturating_add(scheduler.promised_bytes()),
        account_bytes: ledger.heap_accounts(),
    }
}

fn count(metrics: &mut Metrics, event: &RequestEvent<'_>) {
    // The step goes on: how many are active must be true before it ends.
    metrics.active = match event {
        RequestEvent::Admitted => metrics.active + 1,
        RequestEvent::Token { .. } | RequestEvent::PromptRead { .. } => metrics.active,
        _ => metrics.active.saturating_sub(1),
    };
    match event {
        RequestEvent::Token { .. } => metrics.sampled_tokens += 1,
        RequestEvent::Completed(completed, held) => {
            metrics.count_end(completed.finish);
            metrics.window_evictions += held.usage.evicted();
        }
        RequestEvent::TurnSaved(answer) => {
            metrics.count_end(answer.finish);
            metrics.count_turn(&answer.context);
        }
        RequestEvent::Failed(error) => match of_request(error) {
            ErrorKind::InvalidInput => metrics.unfollowed += 1,
            _ => metrics.failed += 1,
        },
        RequestEvent::Admitted
        | RequestEvent::PromptRead { .. }
        | RequestEvent::SessionRead { .. } => {}
    }
}

/// What a listener is told of a scheduler's event.
enum Heard {
    Nothing,
    More(AnswerEvent),
    Last(AnswerEvent),
}

impl Listener {
    pub fn new(
        index: usize,
        options: EventOptions,
        events: Sender<(usize, AnswerEvent)>,
        permit: Option<Permit>,
    ) -> Listener {
        Listener {
            index,
            options,
            events,
            _permit: permit,
            submitted: Instant::now(),
            first_token: None,
            is_stopped: false,
            is_read: false,
            session: None,
        }
    }

    fn event(&mut self, event: RequestEvent<'_>) -> Heard {
        match event {
            RequestEvent::PromptRead { done, total } if self.options.progress => {
                Heard::More(AnswerEvent::PromptRead { done, total })
            }
            RequestEvent::Admitted | RequestEvent::PromptRead { .. } => Heard::Nothing,
            RequestEvent::Token { sampled, logits } => {
                self.first_token.get_or_insert(self.submitted.elapsed());
                let top = self.options.logprobs;
                let logprob = top.map(|top| Logprob::new(sampled.id, logits, top));
                Heard::More(match logprob.transpose() {
                    Ok(logprob) => AnswerEvent::Token {
                        id: sampled.id,
                        text: sampled.text.to_owned(),
                        logprob,
                    },
                    Err(error) => AnswerEvent::Failed(Error::Sample(error)),
                })
            }
            RequestEvent::Completed(completed, held) => Heard::Last(AnswerEvent::Finished {
                report: self.report(completed.tokens.len(), ContextSeen::Completion(held)),
                finish: completed.finish,
                text: completed.text,
            }),
            RequestEvent::TurnSaved(answer) => {
                let seen = ContextSeen::Turn {
                    number: answer.turn,
                    context: Box::new(answer.context),
                };
                Heard::Last(AnswerEvent::Finished {
                    report: self.report(answer.tokens.len(), seen),
                    finish: answer.finish,
                    text: answer.text,
                })
            }
            RequestEvent::SessionRead { number } => {
                Heard::Last(AnswerEvent::SessionRead { number })
            }
            RequestEvent::Failed(error) => Heard::Last(AnswerEvent::Failed(error.into())),
        }
    }

    fn report(&self, tokens: usize, context: ContextSeen) -> Report {
        Report {
            tokens,
            first_token: self.first_token,
            time: self.submitted.elapsed(),
            context,
        }
    }

    /// A reader that is too far behind hears no more, unless the engine waits for it.
    fn send(&self, event: AnswerEvent) -> ControlFlow<()> {
        let event = (self.index, event);
        let sent = match self.options.waits {
            true => self.events.send(event),
            false => self.events.try_send(event),
        };
        match sent {
            Ok(()) => ControlFlow::Continue(()),
            Err(TrySendError::Full) => {
                log::warn!("a request is cancelled because its reader fell too far behind");
                ControlFlow::Break(())
            }
            Err(TrySendError::Closed) => ControlFlow::Break(()),
        }
    }
}
