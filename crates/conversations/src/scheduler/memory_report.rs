//! Memory report: bytes by zone and form, and the tokens of each sequence by where they are, between two steps. Making one
//! takes time by blocks, not by tokens, and changes nothing.

use super::batch::Batch;
use super::plan::Pace;
use super::request::RequestId;
use super::resources::{Resources, SuspendCounts};
use super::token_map::{TokenMap, token_maps};
use crate::session::{Owner, RemovalCause, SessionCounters, SessionId, SessionReport, Sessions};
use haversack_cache::{KvForm, Ledger, ZoneBytes};
use haversack_engine::runtime::SequenceId;

#[derive(Clone, Debug)]
pub struct MemoryReport {
    pub ledger: Ledger,
    /// Blocks by zone and form; shared blocks count once.
    pub zones: Vec<ZoneBytes>,
    /// Promised to running requests and not held yet.
    pub promised_bytes: usize,
    /// Held by idle sessions and by the prefix cache, which leave memory when a request needs it.
    pub idle_bytes: usize,
    /// Mapped from the model file, not in the budget.
    pub weights_bytes: usize,
    pub pace: Pace,
    pub threads: usize,
    pub active: usize,
    pub waiting: usize,
    /// Of the owner that asks; the largest first, at most [`MAX_SEQUENCES`].
    pub sequences: Vec<SequenceReport>,
    /// Sequences beyond those.
    pub left_off: usize,
    /// Sequences of other owners.
    pub others: usize,
}

/// A session in memory, or a running completion.
#[derive(Clone, Debug)]
pub struct SequenceReport {
    pub owner: SequenceOwner,
    pub is_active: bool,
    /// Tokens read or sampled.
    pub position: u64,
    /// Of its blocks; shared blocks count for each sequence.
    pub bytes: usize,
    pub zones: Vec<ZoneBytes>,
    pub token_maps: Vec<TokenMap>,
    /// Layers that have no token map because there are too many different ones.
    pub layers_left_off: usize,
}

#[derive(Clone, Debug)]
pub enum SequenceOwner {
    Session(Box<SessionReport>),
    Request(RequestId),
}

impl SequenceOwner {
    pub fn session(&self) -> Option<&SessionReport> {
        match self {
            SequenceOwner::Session(session) => Some(session),
            SequenceOwner::Request(_) => None,
        }
    }
}

pub const MAX_SEQUENCES: usize = 64;

/// `int4`, or `int8+int4` where keys and values differ.
pub fn form_name(form: KvForm) -> String {
    match (form.k.codec, form.v.codec) {
        (k, v) if k == v => k.to_string(),
        (k, v) => format!("{k}+{v}"),
    }
}

/// Counters for alerts and metrics, cheap enough to read twice a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SchedulerStats {
    /// Held or promised, beyond what idle sessions and the prefix cache hold.
    pub bound_bytes: usize,
    /// Sessions whose last turn is not on disk.
    pub unsaved: usize,
    /// The device is short of memory.
    pub is_short: bool,
    pub suspensions: SuspendCounts,
    pub tally: SessionCounters,
    /// Tokens read, of prompts and answers.
    pub tokens_read: u64,
    /// Session openings: computed, found in memory, found on disk.
    pub openings: [u64; 3],
    /// Sessions that limits removed, as in [`RemovalCause::ALL`].
    pub removed: [u64; RemovalCause::ALL.len()],
}

impl MemoryReport {
    pub(super) fn new(
        resources: &Resources,
        batch: &Batch,
        pace: Pace,
        waiting: usize,
        owner: Owner,
    ) -> MemoryReport {
        let runtime = &resources.runtime;
        let mut holders = holders(resources, batch);
        let all = holders.len();
        holders.retain(|(holder, _)| holder.is_of(resources, owner));
        let others = all - holders.len();
        holders.sort_by_key(|(_, id)| std::cmp::Reverse(resources.held_bytes(*id)));
        let left_off = holders.len().saturating_sub(MAX_SEQUENCES);
        holders.truncate(MAX_SEQUENCES);
        let sequences = holders.into_iter();
        let sequences = sequences.filter_map(|(holder, id)| report_sequence(resources, holder, id));
        MemoryReport {
            ledger: runtime.ledger(),
            zones: runtime.store().zone_bytes(),
            promised_bytes: batch.promises().outstanding_bytes(resources),
            idle_bytes: resources.idle_bytes(),
            weights_bytes: runtime.model().weights().bytes_per_token(),
            pace,
            threads: runtime.threads(),
            active: batch.len(),
            waiting,
            sequences: sequences.collect(),
            left_off,
            others,
        }
    }
}

impl SchedulerStats {
    pub(super) fn new(resources: &Resources, batch: &Batch) -> SchedulerStats {
        let sessions = resources.sessions.as_ref();
        let held = resources.runtime.ledger().total();
        let bound = held.saturating_sub(resources.idle_bytes());
        let promised = batch.promises().outstanding_bytes(resources);
        let openings = sessions.map(Sessions::prefixes);
        SchedulerStats {
            bound_bytes: bound.saturating_add(promised),
            unsaved: sessions.map_or(0, Sessions::unsaved),
            is_short: resources.is_device_short(),
            suspensions: resources.suspensions,
            tally: sessions.map_or_else(SessionCounters::default, Sessions::counters),
            tokens_read: batch.tokens_read(),
            openings: openings.map_or([0; 3], |p| [p.computed, p.shared, p.mapped]),
            removed: sessions.map_or([0; 2], Sessions::removed_counts),
        }
    }
}

enum Holder {
    Session(SessionId),
    Request(RequestId, Owner),
}

impl Holder {
    fn is_of(&self, resources: &Resources, owner: Owner) -> bool {
        match self {
            Holder::Session(id) => {
                let sessions = resources.sessions.as_ref();
                sessions.is_some_and(|all| all.owner(*id).is_ok_and(|its| its == owner))
            }
            Holder::Request(_, its) => *its == owner,
        }
    }
}

fn holders(resources: &Resources, batch: &Batch) -> Vec<(Holder, SequenceId)> {
    let sessions = resources.sessions.iter().flat_map(|sessions| {
        let of = |id| Some((Holder::Session(id), sessions.sequence(id).ok()?));
        sessions.open_ids().filter_map(of)
    });
    let requests = batch.completions();
    let requests = requests.map(|(request, owner, id)| (Holder::Request(request, owner), id));
    sessions.chain(requests).collect()
}

/// `None`: the sequence has just ended.
fn report_sequence(
    resources: &Resources,
    holder: Holder,
    sequence: SequenceId,
) -> Option<SequenceReport> {
    let (runtime, store) = (&resources.runtime, resources.runtime.store());
    let stats = runtime.stats(sequence).ok()?;
    let owner = match holder {
        Holder::Session(id) => {
            let session = resources.sessions.as_ref()?.report(runtime, id);
            SequenceOwner::Session(Box::new(session.ok()?))
        }
        Holder::Request(id, _) => SequenceOwner::Request(id),
    };
    let away = owner.session().map_or(&[][..], |session| &session.away);
    let shapes = store.layers().iter().copied().enumerate();
    let layers = shapes.map(|(i, shape)| Some((shape, store.token_runs(sequence, i).ok()?)));
    let layers: Option<Vec<_>> = layers.collect();
    let (token_maps, layers_left_off) = token_maps(layers?.into_iter(), away);
    Some(SequenceReport {
        is_active: owner.session().is_none_or(|session| session.is_answering),
        position: stats.position,
        bytes: stats.bytes,
        zones: store.sequence_zone_bytes(sequence).ok()?,
        token_maps,
        layers_left_off,
        owner,
    })
}
