//! The memory as it is between two steps, for whoever wants to see it: bytes by zone and form, and each sequence as strips
//! of tokens. It is made of what is there already, takes time for blocks and not for tokens, and changes nothing.

use super::house::House;
use super::job::{Job, Work};
use super::plan::Pace;
use super::token_map::{TokenMap, strips};
use super::{RequestId, Scheduler};
use crate::session::{SessionId, SessionPicture, Sessions, Tally};
use haversack_cache::{KvForm, Ledger, ZoneBytes};
use haversack_engine::runtime::{Runtime, SequenceId};

#[derive(Clone, Debug)]
pub struct MemoryReport {
    pub ledger: Ledger,
    /// Blocks by zone and form, shared ones once.
    pub zones: Vec<ZoneBytes>,
    /// Promised to those who have entered, and not held yet.
    pub promised_bytes: usize,
    /// Held by sessions that would leave for others, and kept for requests to come.
    pub idle_bytes: usize,
    /// Mapped, and not in the budget.
    pub weights_bytes: usize,
    pub pace: Pace,
    pub threads: usize,
    pub active: usize,
    pub waiting: usize,
    /// The largest first, at most [`SHOWN`].
    pub sequences: Vec<SequenceReport>,
    pub left_off: usize,
}

/// A session in memory, or a request that is computed.
#[derive(Clone, Debug)]
pub struct SequenceReport {
    pub who: SequenceOwner,
    pub is_active: bool,
    /// Tokens seen.
    pub position: u64,
    /// Of its blocks; shared ones count for each.
    pub bytes: usize,
    pub zones: Vec<ZoneBytes>,
    pub strips: Vec<TokenMap>,
    /// Layers beyond those.
    pub layers_left_off: usize,
}

#[derive(Clone, Debug)]
pub enum SequenceOwner {
    Session(Box<SessionPicture>),
    Request(RequestId),
}

impl SequenceOwner {
    pub fn session(&self) -> Option<&SessionPicture> {
        match self {
            SequenceOwner::Session(session) => Some(session),
            SequenceOwner::Request(_) => None,
        }
    }
}

/// Sequences that are shown at most.
pub const SHOWN: usize = 64;

/// How a form is called: `int4`, or `int8+int4` where keys and values differ.
pub fn form_name(form: KvForm) -> String {
    match (form.k.codec, form.v.codec) {
        (k, v) if k == v => k.to_string(),
        (k, v) => format!("{k}+{v}"),
    }
}

/// Why sessions that did nothing were put away, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuspendCounts {
    /// Somebody else needed the room.
    pub for_others: u64,
    /// The device was short of memory.
    pub for_device: u64,
}

/// What a watchman wants to know; cheap enough for twice a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SchedulerStats {
    /// Held, or promised, and not to be had by putting sessions away.
    pub bound_bytes: usize,
    /// Sessions whose last turn is not on disk.
    pub unsaved: usize,
    /// The device has no room for everybody.
    pub is_short: bool,
    pub put_away: SuspendCounts,
    pub tally: Tally,
    /// Tokens that were read, of prompts and answers.
    pub read: u64,
    /// Openings of sessions: computed, found in memory, found on disk.
    pub openings: [u64; 3],
}

impl Scheduler {
    pub fn memory_report(&self) -> MemoryReport {
        let house = self.house();
        let runtime = &house.runtime;
        let mut sequences = house.shown();
        sequences.sort_by_key(|(_, sequence)| std::cmp::Reverse(held(runtime, *sequence)));
        let left_off = sequences.len().saturating_sub(SHOWN);
        sequences.truncate(SHOWN);
        let sequences = sequences.into_iter().filter_map(|(who, sequence)| {
            // One that has just ended is not worth an error.
            house.look_at(who, sequence)
        });
        MemoryReport {
            ledger: runtime.ledger(),
            zones: runtime.store().zone_bytes(),
            promised_bytes: house.outstanding(),
            idle_bytes: house.idle_bytes(),
            weights_bytes: runtime.model().weights().bytes_per_token(),
            pace: self.pace(),
            threads: runtime.threads(),
            active: self.active(),
            waiting: self.waiting(),
            sequences: sequences.collect(),
            left_off,
        }
    }

    pub fn stats(&self) -> SchedulerStats {
        let house = self.house();
        let sessions = house.sessions.as_ref();
        let held = house.runtime.ledger().total();
        let bound = held.saturating_sub(house.idle_bytes());
        let prefix = sessions.map(Sessions::prefixes);
        SchedulerStats {
            bound_bytes: bound.saturating_add(house.outstanding()),
            unsaved: sessions.map_or(0, Sessions::unsaved),
            is_short: house.is_short(),
            put_away: house.put_away,
            tally: sessions.map_or_else(Tally::default, Sessions::tally),
            read: house.read,
            openings: prefix.map_or([0; 3], |p| [p.computed, p.shared, p.mapped]),
        }
    }
}

/// Somebody who holds a sequence.
enum Holder<'a> {
    Session(SessionId),
    Request(&'a Job),
}

impl House {
    fn shown(&self) -> Vec<(Holder<'_>, SequenceId)> {
        let sessions = self.sessions.iter().flat_map(|sessions| {
            let of = |id| Some((Holder::Session(id), sessions.sequence(id).ok()?));
            sessions.open_ids().filter_map(of)
        });
        let requests = self.active.iter().filter_map(|job| match &job.work {
            Work::Request { sequence, .. } => Some((Holder::Request(job), *sequence)),
            Work::Turn(_) => None,
        });
        sessions.chain(requests).collect()
    }

    fn look_at(&self, who: Holder<'_>, sequence: SequenceId) -> Option<SequenceReport> {
        let (runtime, store) = (&self.runtime, self.runtime.store());
        let stats = runtime.stats(sequence).ok()?;
        let who = match who {
            Holder::Session(id) => {
                let picture = self.sessions.as_ref()?.picture(runtime, id);
                SequenceOwner::Session(Box::new(picture.ok()?))
            }
            Holder::Request(job) => SequenceOwner::Request(job.ticket),
        };
        let away = who.session().map_or(&[][..], |session| &session.away);
        let shapes = store.layers().iter().copied().enumerate();
        let layers = shapes.map(|(i, shape)| Some((shape, store.runs(sequence, i).ok()?)));
        let layers: Option<Vec<_>> = layers.collect();
        let (strips, layers_left_off) = strips(layers?.into_iter(), away);
        Some(SequenceReport {
            is_active: who.session().is_none_or(|session| session.is_answering),
            position: stats.position,
            bytes: stats.bytes,
            zones: store.zone_bytes_of(sequence).ok()?,
            strips,
            layers_left_off,
            who,
        })
    }

    /// Held by sessions that could leave memory, and kept for requests to come.
    fn idle_bytes(&self) -> usize {
        let sessions = self.sessions.as_ref();
        let idle = self.idle(None).into_iter();
        let sequences = idle.filter_map(|id| sessions?.sequence(id).ok());
        let all = sequences.chain(self.past.sequences());
        all.map(|id| held(&self.runtime, id)).sum()
    }
}

fn held(runtime: &Runtime, sequence: SequenceId) -> usize {
    runtime.stats(sequence).map_or(0, |stats| stats.bytes)
}
