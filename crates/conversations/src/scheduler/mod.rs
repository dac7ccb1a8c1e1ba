//! Scheduler: requests wait until their worst-case bytes are available, then share every pass over the weights.
//!
//! ```text
//! submit ─► queue ─► admission (bytes promised) ─► batch ─► step ─► … ─► Completed | TurnSaved | SessionRead | Failed
//! ```
//!
//! [`queue`], [`plan`], [`row_limit`], [`throttle`] and the decision of [`admission`] are pure. The tokens of a request do
//! not depend on which other requests run, when it was admitted, or how its prompt was cut into portions.

pub mod admission;
mod batch;
pub mod memory_report;
mod owner_loads;
pub mod plan;
mod prefix_cache;
pub mod protection;
pub mod queue;
mod request;
mod resources;
pub mod row_limit;
mod running;
mod submit;
pub mod throttle;
pub mod token_map;

pub use memory_report::{MemoryReport, SchedulerStats};
pub use plan::{Pace, Priority};
pub use prefix_cache::PrefixCacheStats;
pub use request::{
    Request, RequestError, RequestEvent, RequestId, RequestKind, RequestReport, SubmitError,
};
pub use resources::SuspendCounts;
pub use row_limit::{LongPrompt, RowLimit};
pub use throttle::{StepLimits, Throttle, ThrottleChange};

use crate::session::{
    Owner, RemovedSession, SessionError, SessionId, SessionName, SessionResult, Sessions,
};
use admission::{Admission, Outcome};
use batch::Batch;
use haversack_engine::device::Thermal;
use haversack_engine::runtime::completion::Completed;
use haversack_engine::runtime::{Finish, Runtime, StepError};
use haversack_engine::sample::Sampler;
use haversack_kernels::attention::BLOCK_SLOTS;
use haversack_memory::Reading;
use owner_loads::OwnerLoads;
use plan::{Portion, plan, prompt_tokens, reads_for_light_owner};
use queue::{Admit, Queue};
use request::Deliver;
use resources::Resources;
use running::{PreparedRequest, PreparedWork, RunningRequest};
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct SchedulerOptions {
    /// Maximum requests that run at once.
    pub batch: usize,
    /// Of them, maximum of one owner.
    pub owner_batch: usize,
    /// Maximum requests that wait.
    pub queue: usize,
    /// Maximum requests of which the prefix cache has sequences; 0 = no cache.
    pub reuse: usize,
    /// Maximum prompt tokens of a step while several requests run or wait, see [`Portion`].
    pub chunk: usize,
}

impl Default for SchedulerOptions {
    fn default() -> SchedulerOptions {
        SchedulerOptions {
            batch: 8,
            owner_batch: usize::MAX,
            queue: 64,
            reuse: 0,
            // Reading 2,000 tokens takes SmolLM2 as long as in steps of 512, and a model of 1B 3 % longer.
            chunk: 64,
        }
    }
}

/// Between two looks at the thread that judges sentences, while there is nothing to compute.
const JUDGING_PAUSE: Duration = Duration::from_millis(1);

pub struct Scheduler {
    options: SchedulerOptions,
    queue: Queue<PreparedRequest>,
    batch: Batch,
    resources: Resources,
    pace: Pace,
    shared_portion: Portion,
    light_portion: Portion,
    lone_portion: Portion,
    throttle: Throttle,
    owner_loads: OwnerLoads,
    next_id: u64,
}

impl Scheduler {
    pub fn new(runtime: Runtime, options: SchedulerOptions) -> Scheduler {
        // A batch of none would never end.
        let batch = options.batch.max(1);
        let chunk = runtime.chunk().min(options.chunk.max(1));
        let pace = Pace { batch, chunk };
        Scheduler {
            options: SchedulerOptions { batch, ..options },
            queue: Queue::new(options.queue),
            batch: Batch::default(),
            pace,
            shared_portion: Portion::shared(chunk),
            light_portion: Portion::light(chunk, runtime.chunk()),
            lone_portion: Portion::lone(chunk, runtime.chunk()),
            throttle: Throttle::new(StepLimits {
                pace,
                threads: runtime.threads(),
            }),
            resources: Resources::new(runtime, options.reuse),
            owner_loads: OwnerLoads::default(),
            next_id: 0,
        }
    }

    /// Serves turns of these sessions. They must be of this scheduler's runtime, and none may be open.
    pub fn with_sessions(mut self, sessions: Sessions) -> Scheduler {
        self.resources.set_sessions(sessions);
        self
    }

    /// Queues a request, or says at once why it could never be served. Requests of a session keep their order.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, SubmitError> {
        let Request { owner, options, .. } = request;
        let (resources, messages) = (&self.resources, &request.messages);
        let (mut work, bytes) = submit::prepare(resources, request.kind, options, owner, messages)?;
        if let PreparedWork::Completion(work) = &mut work {
            work.continues = request.continues;
            work.checkpoints = request.borders;
        }
        let id = RequestId(self.next_id);
        let sampler = Sampler::new(request.sample)?.constrained(request.constraint);
        let prepared = PreparedRequest { id, sampler, work };
        self.queue
            .push(prepared, request.priority, owner, bytes, request.deadline)?;
        self.next_id += 1;
        Ok(id)
    }

    /// Ends a request. A completion or a read is gone at once, without an event. A running turn ends with what it has said so far,
    /// which becomes part of its session. Requests that have ended are ignored.
    pub fn cancel(&mut self, id: RequestId) -> Result<(), StepError> {
        self.queue.remove(|queued| queued.request.id == id);
        self.batch.cancel(&mut self.resources, id)
    }

    /// Computes one step of the batch. `now` is the caller's clock, also of deadlines. `deliver` receives the events; `Break`
    /// cancels the request. `false`: there was nothing to do.
    pub fn step(&mut self, now: Duration, deliver: Deliver<'_>) -> Result<bool, StepError> {
        self.shared_portion.begin(now);
        self.light_portion.begin(now);
        self.lone_portion.begin(now);
        self.expire(now, deliver)?;
        if let Err(error) = self.admission().work_on_sessions() {
            log::debug!("condensing waits: {error}");
        }
        self.resources.awaited = None;
        self.admit(deliver)?;
        let (batch, resources) = (&mut self.batch, &mut self.resources);
        batch.reread_full(resources)?;
        batch.advance_reads(resources, deliver)?;
        batch.conclude_turns(resources, deliver);
        batch.save_turns(resources, deliver);
        batch.wait_for_reads();
        let share = batch.condense_share(resources);
        if batch.is_empty() && share.is_none() {
            if !self.is_idle() && !self.batch.is_saving() {
                // Sentences are judged on another thread.
                std::thread::sleep(JUDGING_PAUSE);
            }
            let opens = self.sessions().is_some_and(Sessions::is_opening_file);
            return Ok(self.batch.is_saving() || opens);
        }
        let demands = batch.demands(&self.owner_loads);
        let mut takes = self.plan_step(&demands, now);
        let chunk = self.pace().chunk.max(BLOCK_SLOTS);
        let (batch, resources) = (&mut self.batch, &mut self.resources);
        if batch.compute(resources, &demands, &mut takes, share, chunk, deliver)? {
            let computed = demands
                .iter()
                .map(|demand| demand.owner)
                .zip(takes.iter().copied());
            self.owner_loads.end_step(computed);
            batch.cache_prefixes(resources, &takes)?;
            batch.deliver(resources, &takes, deliver)?;
            batch.advance_reads(resources, deliver)?;
            batch.conclude_turns(resources, deliver);
        }
        Ok(true)
    }

    /// (demand): tokens of the next step. The only request reads the runtime's own chunk, and one of an owner that had little reads
    /// larger portions, unless the pace was lowered.
    fn plan_step(&mut self, demands: &[plan::Demand], now: Duration) -> Vec<usize> {
        let is_lone = demands.len() == 1 && self.queue.is_empty();
        let is_slowed = self.pace.chunk < self.throttle.max().pace.chunk;
        let mut pace = self.pace();
        let portion = match is_slowed {
            false if is_lone => &mut self.lone_portion,
            false if reads_for_light_owner(demands) => &mut self.light_portion,
            _ => &mut self.shared_portion,
        };
        pace.chunk = pace.chunk.max(portion.tokens());
        let takes = plan(demands, pace);
        portion.reads(now, prompt_tokens(demands, &takes));
        takes
    }

    /// Ends requests whose deadline has passed.
    fn expire(&mut self, now: Duration, deliver: Deliver<'_>) -> Result<(), StepError> {
        for expired in self.queue.remove_expired(now) {
            let completed = match expired.request.work {
                PreparedWork::Completion(work) => work.completion.end(),
                PreparedWork::Read(_) => {
                    let event = RequestEvent::Failed(SessionError::Stopped.into());
                    let _ = deliver(expired.request.id, event);
                    continue;
                }
                PreparedWork::Turn(_) => Completed {
                    text: String::new(),
                    tokens: Vec::new(),
                    finish: Finish::Cancelled,
                    shown: 0,
                },
            };
            let event = RequestEvent::Completed(completed, Box::default());
            let _ = deliver(expired.request.id, event);
        }
        self.batch.expire(&mut self.resources, now, deliver)
    }

    /// Moves requests from the queue to the batch while their bytes can be promised.
    fn admit(&mut self, deliver: Deliver<'_>) -> Result<(), StepError> {
        while self.batch.len() < self.options.batch && !self.queue.is_empty() {
            let first = first_of_sessions(&self.queue);
            let owners: Vec<Owner> = self.batch.owners().collect();
            let owner_batch = self.options.owner_batch.max(1);
            let is_full = |owner| owners.iter().filter(|&&of| of == owner).count() >= owner_batch;
            let mut admission = Admission::new(&mut self.resources, self.batch.promises());
            let mut outcome = Outcome::Waits(Admit::Blocked);
            let admitted = self.queue.pop_admissible(|queued| {
                let PreparedRequest { id, work, .. } = &queued.request;
                outcome = match work {
                    _ if is_full(queued.owner.owner) => Outcome::Waits(Admit::Blocked),
                    PreparedWork::Turn(_) | PreparedWork::Read(_) if !first.contains(id) => {
                        Outcome::Waits(Admit::Blocked)
                    }
                    _ => admission.start(queued),
                };
                outcome.admit()
            });
            let Some(queued) = admitted else {
                break;
            };
            let id = queued.request.id;
            match outcome {
                Outcome::Started(started) => {
                    self.batch.push(RunningRequest::new(queued, started));
                    if deliver(id, RequestEvent::Admitted).is_break() {
                        self.cancel(id)?;
                    }
                }
                Outcome::Failed(error) => drop(deliver(id, RequestEvent::Failed(error))),
                Outcome::Waits(_) => {}
            }
        }
        if let Some(sessions) = &mut self.resources.sessions {
            let queue = &self.queue;
            sessions.keep_opening(|name| {
                let mut queued = queue.iter();
                queued.any(|queued| queued.request.work.session() == Some(name))
            });
        }
        Ok(())
    }

    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Requests in the batch.
    pub fn active(&self) -> usize {
        self.batch.len()
    }

    /// Whether a request waits, runs or is being saved.
    pub fn has_requests(&self) -> bool {
        !self.queue.is_empty() || !self.batch.is_empty() || self.batch.is_saving()
    }

    /// Whether there is nothing to do: no request, no stream to condense, and no file to verify.
    pub fn is_idle(&self) -> bool {
        let works = |sessions: &Sessions| sessions.is_condensing() || sessions.is_opening_file();
        !self.has_requests() && !self.sessions().is_some_and(works)
    }

    /// Limits later steps. Running requests stay, and their tokens do not change.
    pub fn set_pace(&mut self, pace: Pace) {
        let batch = pace.batch.clamp(1, self.options.batch);
        self.pace = Pace { batch, ..pace };
    }

    /// Of a step beside other requests.
    pub fn pace(&self) -> Pace {
        Pace {
            chunk: self.pace.chunk.min(self.shared_portion.tokens()),
            ..self.pace
        }
    }

    /// 0 = not throttled.
    pub fn throttle_level(&self) -> u8 {
        self.throttle.level()
    }

    /// Acts on readings of the device, and returns log lines of what changed. Heat changes the pace and the threads. A
    /// shortage of memory empties the prefix cache, lowers the capacity of sessions, suspends idle ones, holds up admission, and
    /// shrinks the windows of sequences that have one. Capacities and windows change tokens, and answers report them. No running
    /// request is ended.
    pub fn observe(
        &mut self,
        thermal: Option<Thermal>,
        reading: &Reading,
        now: Duration,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(change) = thermal.and_then(|thermal| self.throttle.observe(thermal, now)) {
            self.set_pace(change.limits.pace);
            self.resources.runtime.set_threads(change.limits.threads);
            lines.push(change.to_string());
        }
        lines.extend(self.resources.observe(reading, now));
        let promised = self.promised_bytes();
        let runtime = &mut self.resources.runtime;
        runtime.follow_budget(reading, promised);
        runtime.observe(reading, now);
        lines
    }

    /// Takes over what the process has on its heap beside the runtime. `wanted`: what another thread would allocate if it
    /// fitted. What may leave memory leaves for both; whether something did.
    pub fn set_heap_bytes(&mut self, bytes: usize, wanted: usize) -> bool {
        if bytes == 0 && wanted == 0 && self.resources.runtime.ledger().heap == 0 {
            return false;
        }
        let promised = self.promised_bytes();
        self.resources.set_heap_bytes(bytes, promised, wanted)
    }

    /// Promised to running requests and not held yet, the scratch of their largest step included.
    pub fn promised_bytes(&self) -> usize {
        let (promises, runtime) = (self.batch.promises(), &self.resources.runtime);
        let scratch = promises.scratch_bytes(runtime);
        let scratch = scratch.saturating_sub(runtime.ledger().scratch);
        promises.outstanding_bytes(&self.resources) + scratch
    }

    /// Of all memory, with the sequences of one owner.
    pub fn memory_report(&self, owner: Owner) -> MemoryReport {
        let waiting = self.queue.len();
        MemoryReport::new(&self.resources, &self.batch, self.pace(), waiting, owner)
    }

    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats::new(&self.resources, &self.batch)
    }

    pub fn prefix_cache_stats(&self) -> PrefixCacheStats {
        self.resources.prefix_cache.stats()
    }

    pub fn runtime(&self) -> &Runtime {
        &self.resources.runtime
    }

    /// For what does not concern sequences, such as threads.
    pub fn runtime_mut(&mut self) -> &mut Runtime {
        &mut self.resources.runtime
    }

    pub fn sessions(&self) -> Option<&Sessions> {
        self.resources.sessions.as_ref()
    }

    /// See [`Sessions::keep_limits`].
    pub fn keep_session_limits(&mut self, now_ms: u64) -> SessionResult<Vec<RemovedSession>> {
        let sessions = self.resources.sessions.as_mut();
        sessions
            .ok_or(SessionError::NoSessions)?
            .keep_limits(now_ms)
    }

    /// Runs `go` with a session, opened if it was not. It cannot take memory that was promised to requests.
    pub fn with_session<'a, T>(
        &mut self,
        name: impl Into<SessionName<'a>>,
        go: impl FnOnce(&mut Runtime, &mut Sessions, SessionId) -> SessionResult<T>,
    ) -> SessionResult<T> {
        let mut admission = self.admission();
        let id = admission.open_session(name.into())?;
        admission.with_session(id, |runtime, sessions| go(runtime, sessions, id))
    }

    /// See [`Sessions::create_marked`]. Idle sessions may be suspended for the new one.
    pub fn create_session<'a>(
        &mut self,
        name: impl Into<SessionName<'a>>,
        marked: &str,
        persistent: &str,
        now_ms: u64,
    ) -> SessionResult<SessionId> {
        self.admission().add_session(None, |runtime, sessions| {
            sessions.create_marked(runtime, name, marked, persistent, now_ms)
        })
    }

    /// See [`Sessions::fork`].
    pub fn fork_session<'a>(
        &mut self,
        from: impl Into<SessionName<'a>>,
        name: &str,
    ) -> SessionResult<SessionId> {
        let mut admission = self.admission();
        let id = admission.open_session(from.into())?;
        admission.add_session(Some(id), |runtime, sessions| {
            sessions.fork(runtime, id, name)
        })
    }

    /// Deletes a session and its file, open or not, unless it is answering.
    pub fn delete_session<'a>(&mut self, name: impl Into<SessionName<'a>>) -> SessionResult {
        self.resources.delete_session(name.into())
    }

    /// Whether a command of this session can be executed now. It waits while a turn has ended its answer and is not saved yet,
    /// and while the session's file is verified, which begins with this call.
    pub fn is_ready_for_command(&mut self, name: SessionName<'_>) -> bool {
        let Some(sessions) = &mut self.resources.sessions else {
            return true;
        };
        match sessions.opened(name) {
            Some(id) => !self.batch.is_ending(id),
            None => sessions.is_file_ready_for_command(name),
        }
    }

    /// Suspends every idle session, so that its file has all of it, and empties the prefix cache.
    pub fn suspend_all(&mut self) {
        self.resources.suspend_all();
    }

    /// Gives up the prefix cache, then idle sessions, until the ledger is `bytes` lower or nothing is left to give up. Returns by
    /// how much it is lower.
    pub fn trim(&mut self, bytes: usize) -> usize {
        self.resources.trim(bytes)
    }

    /// Charges bytes that no sequence holds to the budget, if they were promised to no request and a request still fits
    /// beside them.
    pub fn reserve_bytes(&mut self, bytes: usize) -> Result<(), SubmitError> {
        self.admission().reserve_bytes(bytes)
    }

    /// Gives back reserved bytes.
    pub fn release_bytes(&mut self, bytes: usize) {
        self.resources.runtime.release_side(bytes);
        self.resources.releases += 1;
    }

    fn admission(&mut self) -> Admission<'_> {
        Admission::new(&mut self.resources, self.batch.promises())
    }
}

/// The first queued request of each session: they keep their order, whichever users they have.
fn first_of_sessions(queue: &Queue<PreparedRequest>) -> Vec<RequestId> {
    let mut sessions: Vec<SessionName<'_>> = Vec::new();
    let mut first = Vec::new();
    for queued in queue.iter() {
        if let Some(session) = queued.request.work.session()
            && !sessions.contains(&session)
        {
            sessions.push(session);
            first.push(queued.request.id);
        }
    }
    first
}
