//! Batch: the running requests, computed together step by step until each ends.
//!
//! ```text
//! compute ─► cache prefixes ─► deliver tokens ─► finish completions
//!                                               conclude turns ─► embed the turn ─► save it ─► deliver it
//! ```

use super::admission::Promises;
use super::owner_loads::OwnerLoads;
use super::plan::{Demand, limit_takes, shrink};
use super::request::{Deliver, RequestError, RequestEvent, RequestId, RequestReport};
use super::resources::Resources;
use super::running::{CompletionWork, RunningRequest, RunningWork};
use crate::session::{
    AWAITED_TOKENS_MAX, Embed, EndedTurn, Owner, RebuildShare, STEP_TOKENS_MAX, SessionError,
    SessionId, SessionResult, Sessions, TurnAnswer, TurnInProgress, embed_later,
};
use haversack_engine::encoder::Embedding;
use haversack_engine::runtime::{
    GenerateEvent, GenerateTimes, Runtime, SequenceId, SequenceUsage, StepError,
};
use haversack_engine::step::{LogitRows, StepSpan};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

type StepResult<T = ()> = Result<T, StepError>;

/// How long a step waits for the disk when there is nothing to compute.
const DISK_PAUSE: Duration = Duration::from_millis(2);

#[derive(Default)]
pub(super) struct Batch {
    /// In order of admission.
    running: Vec<RunningRequest>,
    /// Turns that have all their tokens and wait for their embedding, or for the disk.
    saving: Vec<SavingTurn>,
    /// Tokens read so far, of prompts and answers.
    tokens_read: u64,
}

struct SavingTurn {
    id: RequestId,
    session: SessionId,
    sequence: SequenceId,
    promised_bytes: usize,
    stage: SavingStage,
}

enum SavingStage {
    Embedding(Box<TurnInProgress>, EmbeddingTask),
    Writing(Box<EndedTurn>),
}

/// The embedding of a turn, on a thread of its own if the encoder takes long.
enum EmbeddingTask {
    Done(Option<Box<Embedding>>),
    Running(JoinHandle<Option<Embedding>>),
}

impl EmbeddingTask {
    fn start(text: String, encoder: Arc<dyn Embed>) -> EmbeddingTask {
        if encoder.is_quick() {
            return EmbeddingTask::Done(encoder.embed(&text).ok().map(Box::new));
        }
        EmbeddingTask::Running(embed_later(encoder, text))
    }

    fn is_done(&self) -> bool {
        match self {
            EmbeddingTask::Done(_) => true,
            EmbeddingTask::Running(thread) => thread.is_finished(),
        }
    }

    /// Blocks until it is done. A thread that panicked gives no embedding.
    fn wait(self) -> Option<Embedding> {
        match self {
            EmbeddingTask::Done(embedding) => embedding.map(|embedding| *embedding),
            EmbeddingTask::Running(thread) => thread.join().ok().flatten(),
        }
    }
}

impl Batch {
    pub fn len(&self) -> usize {
        self.running.len()
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub fn is_saving(&self) -> bool {
        !self.saving.is_empty()
    }

    pub fn tokens_read(&self) -> u64 {
        self.tokens_read
    }

    pub fn push(&mut self, request: RunningRequest) {
        self.running.push(request);
    }

    pub fn demands(&self, loads: &OwnerLoads) -> Vec<Demand> {
        let load = |owner| loads.of(owner, self.owners().filter(|&of| of == owner).count());
        let running = self.running.iter();
        running
            .map(|request| request.demand(load(request.owner)))
            .collect()
    }

    /// Of each request.
    pub fn owners(&self) -> impl Iterator<Item = Owner> {
        self.running.iter().map(|request| request.owner)
    }

    /// Completions and their sequences; turns belong to their sessions.
    pub fn completions(&self) -> impl Iterator<Item = (RequestId, Owner, SequenceId)> {
        self.running
            .iter()
            .filter_map(|request| match &request.work {
                RunningWork::Completion { work, sequence } => {
                    Some((request.id, work.owner.owner, *sequence))
                }
                RunningWork::Turn(_) | RunningWork::Read(_) => None,
            })
    }

    pub fn promises(&self) -> Promises<'_> {
        let running = self.running.iter();
        let running = running.map(|request| (request.sequence(), request.promised_bytes));
        let saving = self.saving.iter();
        let saving = saving.map(|saving| (saving.sequence, saving.promised_bytes));
        Promises {
            sequences: running.chain(saving).collect(),
            requests: self.running.len(),
            counting: self.running.iter().filter(|r| r.counts_attention).count(),
            max_rows: self.running.iter().map(|r| r.max_rows).max().unwrap_or(0),
            reading: self
                .running
                .iter()
                .filter_map(RunningRequest::reading)
                .collect(),
        }
    }

    /// A completion or a read leaves at once. A turn ends at its next step with what it has said so far.
    pub fn cancel(&mut self, resources: &mut Resources, id: RequestId) -> StepResult {
        let Some(i) = self.running.iter().position(|request| request.id == id) else {
            return Ok(());
        };
        if matches!(self.running[i].work, RunningWork::Turn(_)) {
            self.running[i].cancel();
            return Ok(());
        }
        let request = self.running.remove(i);
        match request.work {
            RunningWork::Completion { work, sequence } => {
                cache_or_close(resources, id, &work, sequence)
            }
            _ => abandon(resources, request),
        }
    }

    /// Cancels requests whose deadline has passed.
    pub fn expire(
        &mut self,
        resources: &mut Resources,
        now: Duration,
        deliver: Deliver<'_>,
    ) -> StepResult {
        let is_late = |request: &RunningRequest| request.deadline.is_some_and(|at| at <= now);
        self.running
            .iter_mut()
            .filter(|request| is_late(request))
            .for_each(RunningRequest::cancel);
        let is_read = |r: &mut RunningRequest| is_late(r) && matches!(r.work, RunningWork::Read(_));
        let reads: Vec<RunningRequest> = self.running.extract_if(.., is_read).collect();
        for request in reads {
            let id = request.id;
            abandon(resources, request)?;
            let _ = deliver(id, RequestEvent::Failed(SessionError::Stopped.into()));
        }
        self.finish_completions(resources, deliver)
    }

    /// Restarts completions that re-read their rows and whose rows are full.
    pub fn reread_full(&mut self, resources: &mut Resources) -> StepResult {
        for request in &mut self.running {
            if request.is_full(&resources.runtime)? {
                request.restart(&mut resources.runtime)?;
            }
        }
        Ok(())
    }

    /// The next tokens of a stream that is being condensed: a few beside requests that decode, some more where a request
    /// waits for it, many where nothing decodes.
    pub fn condense_share(&mut self, resources: &mut Resources) -> Option<RebuildShare> {
        let awaited = resources.awaited;
        let sessions = resources.sessions.as_mut()?;
        let is_decoding = self
            .running
            .iter()
            .any(|request| request.pending().len() == 1);
        let tokens_max = match (is_decoding, awaited) {
            (true, None) => sessions.options().condense_per_token,
            (true, Some(_)) => AWAITED_TOKENS_MAX,
            (false, _) => STEP_TOKENS_MAX,
        };
        let lent = self.running.iter_mut().find_map(|request| {
            let RunningWork::Turn(turn) = &mut request.work else {
                return None;
            };
            let session = turn.session();
            turn.rebuild()?.share(session, tokens_max)
        });
        lent.or_else(|| sessions.rebuild_share(awaited, tokens_max))
    }

    fn note_share(
        &mut self,
        resources: &mut Resources,
        share: RebuildShare,
        read: Result<(), StepError>,
    ) {
        let lent = self.running.iter_mut().find_map(|r| match &mut r.work {
            RunningWork::Turn(turn) if turn.session() == share.session => turn.rebuild(),
            _ => None,
        });
        let sessions = resources.sessions.as_mut();
        if let Some(rebuild) = lent.or_else(|| sessions?.rebuild(share.session)) {
            self.tokens_read += share.tokens.len() as u64 * u64::from(read.is_ok());
            rebuild.note(share.tokens.len(), read);
        }
    }

    /// One pass over the weights, with `takes[i]` tokens of the `i`th request, and a share of condensing, which is left out
    /// first where the step is not possible. Takes become smaller where memory or a
    /// policy demands it, first to `chunk` tokens. `false`: the step is impossible, and all requests have failed.
    pub fn compute(
        &mut self,
        resources: &mut Resources,
        demands: &[Demand],
        takes: &mut [usize],
        share: Option<RebuildShare>,
        chunk: usize,
        deliver: Deliver<'_>,
    ) -> StepResult<bool> {
        if let Some(share) = share {
            let read = self.try_compute(resources, takes, Some(&share));
            let is_read = read.is_ok();
            self.note_share(resources, share, read);
            if is_read {
                return Ok(true);
            }
        }
        loop {
            let error = match self.try_compute(resources, takes, None) {
                Ok(()) => return Ok(true),
                Err(error) => error,
            };
            // Promises cover a block of each request, or decoding at least.
            let is_smaller = error.is_cannot_fit()
                && (limit_takes(takes, chunk)
                    || resources.evict_prefix()
                    || shrink(demands, takes)
                    || self.restart_last(resources, takes)?);
            if !is_smaller {
                return self.fail_all(resources, &error, deliver).map(|()| false);
            }
        }
    }

    fn try_compute(
        &self,
        resources: &mut Resources,
        takes: &mut [usize],
        share: Option<&RebuildShare>,
    ) -> StepResult {
        let runtime = &mut resources.runtime;
        let mut spans = Vec::with_capacity(takes.len());
        for (request, take) in self.running.iter().zip(takes) {
            if *take == 0 {
                continue;
            }
            let sequence = request.sequence();
            let position = runtime.position(sequence)?;
            *take = runtime.next_chunk(sequence, position, *take);
            *take = request.up_to_checkpoint(position, *take);
            let want = if request.samples_after(*take) {
                LogitRows::Last
            } else {
                LogitRows::Nothing
            };
            spans.push(StepSpan {
                sequence,
                position,
                tokens: &request.pending()[..*take],
                want,
            });
        }
        spans.extend(share.map(|share| StepSpan {
            sequence: share.sequence,
            position: share.position,
            tokens: &share.tokens,
            want: LogitRows::Nothing,
        }));
        if spans.is_empty() {
            return Ok(());
        }
        runtime.step(&spans).map(|_| ())
    }

    /// Restarts the completion admitted last, so that the others can go on; its tokens stay the same. `false`: fewer than
    /// two requests take part, or no completion does.
    fn restart_last(&mut self, resources: &mut Resources, takes: &mut [usize]) -> StepResult<bool> {
        let taking: Vec<usize> = (0..takes.len()).filter(|&i| takes[i] > 0).collect();
        if taking.len() < 2 {
            return Ok(false);
        }
        for i in taking.into_iter().rev() {
            let request = &mut self.running[i];
            if request.restart(&mut resources.runtime)? {
                log::warn!("a promise was too small: {:?} starts again", request.id);
                takes[i] = 0;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends every running request with this error.
    fn fail_all(
        &mut self,
        resources: &mut Resources,
        error: &StepError,
        deliver: Deliver<'_>,
    ) -> StepResult {
        for request in std::mem::take(&mut self.running) {
            let id = request.id;
            abandon(resources, request)?;
            let _ = deliver(id, RequestEvent::Failed(error.clone().into()));
        }
        Ok(())
    }

    /// Caches prompts whose reading has come to a checkpoint.
    pub fn cache_prefixes(&self, resources: &mut Resources, takes: &[usize]) -> StepResult {
        let (runtime, cache) = (&mut resources.runtime, &mut resources.prefix_cache);
        for (request, &take) in self.running.iter().zip(takes) {
            let RunningWork::Completion { work, sequence } = &request.work else {
                continue;
            };
            let position = runtime.position(*sequence)? as usize;
            if take > 0 && work.checkpoints.contains(&position) {
                let key = work.prefix_key(request.id);
                let tokens = &work.completion.prompt()[..position];
                cache.insert_fork(runtime, key, tokens, *sequence)?;
            }
        }
        Ok(())
    }

    /// Samples and delivers what the step computed.
    pub fn deliver(
        &mut self,
        resources: &mut Resources,
        takes: &[usize],
        deliver: Deliver<'_>,
    ) -> StepResult {
        let runtime = &resources.runtime;
        let model = runtime.model().clone();
        let tokenizer = model.tokenizer();
        let mut rows = runtime.logits().chunks_exact(model.config().vocab);
        let mut failed = Vec::new();
        for (i, (request, &take)) in self.running.iter_mut().zip(takes).enumerate() {
            if take == 0 {
                request.skipped_steps += 1;
                continue;
            }
            request.skipped_steps = 0;
            self.tokens_read += take as u64;
            let samples = request.samples_after(take);
            request.read(take);
            let RunningRequest {
                id, sampler, work, ..
            } = request;
            if let RunningWork::Turn(turn) = work
                && let Some((done, total)) = turn.telling()
                && deliver(*id, RequestEvent::PromptRead { done, total }).is_break()
            {
                turn.cancel();
            }
            let Some(completion) = work.completion() else {
                continue;
            };
            let mut flow = ControlFlow::Continue(());
            if let Some((done, total)) = completion.progress() {
                flow = deliver(*id, RequestEvent::PromptRead { done, total });
            }
            if samples {
                let logits = rows.next().unwrap_or_default();
                match completion.sample(sampler, tokenizer, logits) {
                    Ok(sampled) => {
                        if flow.is_continue() {
                            flow = deliver(*id, RequestEvent::Token { sampled, logits });
                        }
                    }
                    Err(error) => {
                        let _ = deliver(*id, RequestEvent::Failed(error.into()));
                        failed.push(i);
                        continue;
                    }
                }
            }
            if flow.is_break() {
                completion.cancel();
            }
        }
        for i in failed.into_iter().rev() {
            abandon(resources, self.running.remove(i))?;
        }
        self.finish_completions(resources, deliver)
    }

    /// Removes completions that have ended, and caches what they have read.
    fn finish_completions(
        &mut self,
        resources: &mut Resources,
        deliver: Deliver<'_>,
    ) -> StepResult {
        let is_over = |request: &mut RunningRequest| match &request.work {
            RunningWork::Completion { work, .. } => work.completion.is_over(),
            RunningWork::Turn(_) | RunningWork::Read(_) => false,
        };
        let over: Vec<RunningRequest> = self.running.extract_if(.., is_over).collect();
        for request in over {
            let RunningWork::Completion { work, sequence } = request.work else {
                continue;
            };
            let runtime = &mut resources.runtime;
            let report = RequestReport {
                usage: SequenceUsage::new(runtime, sequence)?,
                reused: work.reused,
                plans: runtime.plans(),
            };
            cache_or_close(resources, request.id, &work, sequence)?;
            let ended = RequestEvent::Completed(work.completion.end(), Box::new(report));
            let _ = deliver(request.id, ended);
        }
        Ok(())
    }

    /// Turns whose answer has ended read the end marker; those that have read it leave the batch to be saved.
    pub fn conclude_turns(&mut self, resources: &mut Resources, deliver: Deliver<'_>) {
        let runtime = &mut resources.runtime;
        let Some(sessions) = &mut resources.sessions else {
            return;
        };
        let is_over = |request: &mut RunningRequest| match &mut request.work {
            RunningWork::Completion { .. } | RunningWork::Read(_) => false,
            RunningWork::Turn(turn) => match turn.completion() {
                Some(completion) => completion.is_over(),
                None => turn.pending().is_empty(),
            },
        };
        let mut reading = Vec::new();
        for request in self.running.extract_if(.., is_over) {
            let RunningWork::Turn(turn) = request.work else {
                continue;
            };
            // Text that was held back is part of the answer, which is delivered at the end.
            let ignore = &mut |_: GenerateEvent<'_>| ControlFlow::Continue(());
            let turn = match sessions.conclude(runtime, *turn, GenerateTimes::default(), ignore) {
                Ok(turn) => turn,
                Err(error) => {
                    resources.releases += 1;
                    let _ = deliver(request.id, RequestEvent::Failed(error.into()));
                    continue;
                }
            };
            if !turn.pending().is_empty() {
                let work = RunningWork::Turn(Box::new(turn));
                reading.push(RunningRequest { work, ..request });
                continue;
            }
            let embedding = match turn.said().zip(sessions.encoder()) {
                Some((text, encoder)) => EmbeddingTask::start(text, encoder),
                None => EmbeddingTask::Done(None),
            };
            self.saving.push(SavingTurn {
                id: request.id,
                session: turn.session(),
                sequence: turn.sequence(),
                promised_bytes: request.promised_bytes,
                stage: SavingStage::Embedding(Box::new(turn), embedding),
            });
        }
        self.running.append(&mut reading);
    }

    /// Reads that have all tokens of a run go on to the next; those that have read everything leave the batch.
    pub fn advance_reads(&mut self, resources: &mut Resources, deliver: Deliver<'_>) -> StepResult {
        let mut i = 0;
        while i < self.running.len() {
            let Resources {
                runtime, sessions, ..
            } = resources;
            let request = &mut self.running[i];
            let (RunningWork::Read(read), Some(sessions)) = (&mut request.work, sessions) else {
                i += 1;
                continue;
            };
            if !read.pending().is_empty() || read.is_saving() {
                i += 1;
                continue;
            }
            let event = match read.advance(runtime, sessions) {
                Ok(None) => continue,
                Ok(Some(number)) => {
                    let session = read.session();
                    resources.mark_used(session);
                    RequestEvent::SessionRead { number }
                }
                Err(error) => RequestEvent::Failed(error.into()),
            };
            let request = self.running.remove(i);
            let id = request.id;
            abandon(resources, request)?;
            let _ = deliver(id, event);
        }
        Ok(())
    }

    /// With nothing but reads that wait for the disk: waits a little while.
    pub fn wait_for_reads(&self) {
        let saving = |request: &RunningRequest| match &request.work {
            RunningWork::Read(read) => read.is_saving(),
            RunningWork::Completion { .. } | RunningWork::Turn(_) => false,
        };
        if self.running.iter().all(saving)
            && let Some(RunningWork::Read(read)) = self.running.first().map(|r| &r.work)
        {
            read.wait_for(DISK_PAUSE);
        }
    }

    /// Saves turns that have their embedding: another thread waits for the disk, and the turn is delivered when it is done.
    /// With nothing else to compute, it waits for embeddings, and a little while for the disk.
    pub fn save_turns(&mut self, resources: &mut Resources, deliver: Deliver<'_>) {
        let runtime = &mut resources.runtime;
        let Some(sessions) = &mut resources.sessions else {
            return;
        };
        let waits = self.running.is_empty();
        let mut saving = Vec::with_capacity(self.saving.len());
        for mut turn in self.saving.drain(..) {
            let saved = match turn.stage.advance(runtime, sessions, waits) {
                Advanced::Ended(saved) => saved,
                Advanced::To(stage) => {
                    turn.stage = stage;
                    saving.push(turn);
                    continue;
                }
            };
            let event = match saved {
                Ok(answer) => RequestEvent::TurnSaved(answer),
                Err(error) => RequestEvent::Failed(RequestError::Session(error)),
            };
            resources.releases += 1;
            let _ = deliver(turn.id, event);
        }
        self.saving = saving;
    }

    /// Whether a turn of this session has ended its answer and is not saved yet.
    pub fn is_ending(&self, session: SessionId) -> bool {
        let ending = |request: &RunningRequest| match &request.work {
            RunningWork::Turn(turn) => turn.session() == session && turn.has_answered(),
            RunningWork::Completion { .. } | RunningWork::Read(_) => false,
        };
        self.saving.iter().any(|turn| turn.session == session) || self.running.iter().any(ending)
    }
}

impl SavingStage {
    /// As far as it gets without waiting; if it `waits`, then for the embedding, and a little while for the disk.
    fn advance(self, runtime: &mut Runtime, sessions: &mut Sessions, waits: bool) -> Advanced {
        let ended = match self {
            SavingStage::Embedding(unsaved, embedding) if waits || embedding.is_done() => {
                match sessions.end_unsaved(runtime, *unsaved, embedding.wait()) {
                    Ok(ended) => Box::new(ended.save_beside()),
                    Err(error) => return Advanced::Ended(Err(error)),
                }
            }
            SavingStage::Writing(ended) => ended,
            stage => return Advanced::To(stage),
        };
        if waits {
            ended.wait_for(DISK_PAUSE);
        }
        match ended.is_saved() {
            true => Advanced::Ended(sessions.finish(runtime, *ended).map(Box::new)),
            false => Advanced::To(SavingStage::Writing(ended)),
        }
    }
}

enum Advanced {
    To(SavingStage),
    Ended(SessionResult<Box<TurnAnswer>>),
}

/// Caches what a completion has read, whether it has ended or was cancelled: who asks again goes on from there.
fn cache_or_close(
    resources: &mut Resources,
    id: RequestId,
    work: &CompletionWork,
    sequence: SequenceId,
) -> StepResult {
    resources.releases += 1;
    let (runtime, cache) = (&mut resources.runtime, &mut resources.prefix_cache);
    let continues = work.continues && work.reread.is_none();
    if !continues && !work.is_cacheable(runtime) {
        return runtime.close(sequence);
    }
    let history = work.completion.history();
    let seen = (runtime.position(sequence)? as usize).min(history.len());
    cache.insert(
        runtime,
        work.prefix_key(id),
        history[..seen].to_vec(),
        sequence,
    )
}

/// Frees what a request holds. A session is as before the turn or the read, if it was not over.
fn abandon(resources: &mut Resources, request: RunningRequest) -> StepResult {
    resources.releases += 1;
    match (request.work, &mut resources.sessions) {
        (RunningWork::Completion { sequence, .. }, _) => resources.runtime.close(sequence),
        (RunningWork::Turn(turn), Some(sessions)) => {
            if let Err(error) = sessions.abandon(&mut resources.runtime, *turn) {
                log::error!("{error}");
            }
            Ok(())
        }
        (RunningWork::Read(read), Some(sessions)) => {
            if let Err(error) = read.abandon(&mut resources.runtime, sessions) {
                log::error!("{error}");
            }
            Ok(())
        }
        (RunningWork::Turn(_) | RunningWork::Read(_), None) => Ok(()),
    }
}
