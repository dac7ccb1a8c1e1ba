//! The runtime, the sessions and the prefix cache over it, and what can leave memory when other requests need it.
//!
//! A session between two turns was promised nothing: its file has all it holds. It is suspended (leaves memory) when other
//! requests need the bytes, the least recently used first, after everything in the prefix cache.

use super::prefix_cache::{PrefixCache, PrefixKey};
use super::request::SubmitError;
use crate::session::limits::SHRUNK_MIN;
use crate::session::{SessionError, SessionId, SessionName, SessionResult, Sessions};
use haversack_engine::device::{Governor, governor};
use haversack_engine::runtime::{Runtime, SequenceId, SequenceRetention, StepError};
use haversack_kernels::attention::BLOCK_SLOTS;
use haversack_memory::Reading;
use std::time::Duration;

pub(super) struct Resources {
    pub runtime: Runtime,
    pub sessions: Option<Sessions>,
    pub prefix_cache: PrefixCache,
    /// Open sessions, least recently used first.
    recency: Vec<SessionId>,
    /// Tables and lists of the runtime with nothing open; every promise includes them.
    empty_table_bytes: usize,
    /// Bytes that the device can still give, while it is short of memory.
    device_room: Option<usize>,
    /// Decides on the capacity of sessions by what the device has left.
    governor: Option<Governor>,
    /// Counts the times that memory became free.
    pub releases: u64,
    pub suspensions: SuspendCounts,
    /// A request waits until this session's stream is condensed.
    pub awaited: Option<SessionId>,
}

/// Sessions suspended, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuspendCounts {
    /// Other requests needed the memory.
    pub for_others: u64,
    /// The device was short of memory.
    pub for_device: u64,
}

impl Resources {
    pub fn new(runtime: Runtime, max_cached_prefixes: usize) -> Resources {
        Resources {
            empty_table_bytes: runtime.ledger().tables,
            runtime,
            sessions: None,
            prefix_cache: PrefixCache::new(max_cached_prefixes),
            recency: Vec::new(),
            device_room: None,
            governor: None,
            releases: 0,
            suspensions: SuspendCounts::default(),
            awaited: None,
        }
    }

    pub fn sessions_mut(&mut self) -> SessionResult<&mut Sessions> {
        self.sessions.as_mut().ok_or(SessionError::NoSessions)
    }

    /// Serves sessions, whose capacity follows the device.
    pub fn set_sessions(&mut self, sessions: Sessions) {
        let capacity = sessions.limits().capacity;
        let row_bytes = self.runtime.sequence_bytes(capacity) / capacity.max(1);
        let weights_bytes = self.runtime.model().weights().bytes_per_token() as u64;
        self.governor = Some(Governor::new(capacity, row_bytes, weights_bytes));
        self.sessions = Some(sessions);
    }

    pub fn sessions(&self) -> SessionResult<&Sessions> {
        self.sessions.as_ref().ok_or(SessionError::NoSessions)
    }

    /// Bytes and rows of a new session after a short first turn.
    pub fn new_session_needs(&self) -> SessionResult<(usize, usize)> {
        self.sessions()?.first_needs(&self.runtime)
    }

    /// The device is short of memory.
    pub fn is_device_short(&self) -> bool {
        self.device_room.is_some()
    }

    /// Bytes that all sequences of a batch of `sequences` may hold together beyond what is held now; `None`: there is no
    /// limit.
    pub fn free_bytes(&self, sequences: usize, counting: usize, rows: usize) -> Option<usize> {
        let room = promisable(&self.runtime, sequences, counting, rows).map(|room| {
            let ledger = self.runtime.ledger();
            let tables = ledger.tables.saturating_sub(self.empty_table_bytes);
            room.saturating_sub(ledger.kv_live + ledger.kv_ahead + tables + ledger.heap)
        });
        room.into_iter().chain(self.device_room).min()
    }

    pub fn held_bytes(&self, sequence: SequenceId) -> usize {
        self.runtime.stats(sequence).map_or(0, |stats| stats.bytes)
    }

    pub fn session_bytes(&self, id: SessionId) -> usize {
        let sequence = self.sessions.as_ref().and_then(|s| s.sequence(id).ok());
        sequence.map_or(0, |sequence| self.held_bytes(sequence))
    }

    /// Bytes of idle sessions and of the prefix cache. A block with several holders counts for each in part.
    pub fn idle_bytes(&self) -> usize {
        let sessions = self.idle_sessions(None).into_iter();
        let cached = self.prefix_cache.sequences();
        let share = |id| self.runtime.store().share_bytes(id).unwrap_or(0);
        sessions.map(|id| self.session_bytes(id)).sum::<usize>() + cached.map(share).sum::<usize>()
    }

    /// Sessions that can be suspended, least recently used first, without `spare`.
    pub fn idle_sessions(&self, spare: Option<SessionId>) -> Vec<SessionId> {
        let Some(sessions) = &self.sessions else {
            return Vec::new();
        };
        // A session without a file would be lost.
        if sessions.options().dir.is_none() {
            return Vec::new();
        }
        let is_idle = |&id: &SessionId| {
            Some(id) != spare && sessions.is_answering(id).is_ok_and(|answers| !answers)
        };
        self.recency.iter().copied().filter(is_idle).collect()
    }

    pub fn mark_used(&mut self, id: SessionId) {
        self.recency.retain(|&used| used != id);
        self.recency.push(id);
    }

    /// Suspends the least recently used idle session but `spare`. `false`: none can be suspended.
    pub fn suspend_one(&mut self, spare: Option<SessionId>) -> bool {
        let idle = self.idle_sessions(spare);
        let Some(sessions) = &mut self.sessions else {
            return false;
        };
        for id in idle {
            match sessions.suspend(&mut self.runtime, id) {
                Ok(()) => {
                    self.recency.retain(|&used| used != id);
                    return true;
                }
                Err(error) => log::warn!("{error}"),
            }
        }
        false
    }

    /// `false`: the prefix cache is empty.
    pub fn evict_prefix(&mut self) -> bool {
        let evicted = self.prefix_cache.evict_one(&mut self.runtime);
        evicted.unwrap_or_else(|error| {
            log::error!("{error}");
            false
        })
    }

    /// Closes what an owner's last requests of those that continue each other have left.
    pub fn close_continued(&mut self, key: PrefixKey) -> Result<(), StepError> {
        self.prefix_cache.close_continued(&mut self.runtime, key)
    }

    /// Empties the prefix cache and suspends idle sessions until `bytes` have left the ledger, or all have. Returns the bytes.
    pub fn trim(&mut self, bytes: usize) -> usize {
        let before = self.runtime.ledger().total();
        loop {
            let freed = before.saturating_sub(self.runtime.ledger().total());
            if freed >= bytes || !(self.evict_prefix() || self.suspend_one(None)) {
                return freed;
            }
        }
    }

    pub fn suspend_all(&mut self) {
        self.trim(usize::MAX);
    }

    /// Deletes a session and its file, open or not.
    pub fn delete_session(&mut self, name: SessionName<'_>) -> SessionResult {
        let sessions = self.sessions.as_mut().ok_or(SessionError::NoSessions)?;
        if let Some(id) = sessions.opened(name) {
            sessions.close(&mut self.runtime, id)?;
            self.recency.retain(|&used| used != id);
        }
        if !sessions.exists(name) {
            let name = name.name.to_owned();
            return Err(SessionError::NoSuchSession { name });
        }
        sessions.delete(name)
    }

    /// Opens an empty sequence. The prefix cache, then scratch of larger steps, leave memory for it.
    pub fn open_sequence(&mut self, keep: SequenceRetention) -> Result<SequenceId, StepError> {
        let mut has_scratch = true;
        loop {
            match self.runtime.open_with(keep) {
                Err(error) if error.is_cannot_fit() && self.evict_prefix() => {}
                Err(error) if error.is_cannot_fit() && has_scratch => {
                    self.runtime.release_scratch();
                    has_scratch = false;
                }
                opened => return opened,
            }
        }
    }

    /// Charges bytes that no sequence holds to the budget.
    pub fn reserve_bytes(&mut self, bytes: usize) -> Result<(), SubmitError> {
        let reserved = self.runtime.charge_side(bytes).or_else(|_| {
            // Scratch that larger steps left behind was promised to no request.
            self.runtime.release_scratch();
            self.runtime.charge_side(bytes)
        });
        reserved.map_err(|_| SubmitError::MemoryPromised { bytes })
    }

    /// Takes over what the process has on its heap. Where that, `promised` bytes of running requests and `wanted` bytes
    /// that another thread asks for do not fit beside the rest, the prefix cache is emptied and idle sessions leave
    /// memory; running requests go on, and admission waits until the heap shrinks. Whether something left.
    pub fn set_heap_bytes(&mut self, bytes: usize, promised: usize, wanted: usize) -> bool {
        self.releases += u64::from(bytes < self.runtime.ledger().heap);
        self.runtime.set_heap_bytes(bytes);
        let is_over = |runtime: &Runtime| {
            let ledger = runtime.ledger();
            let total = ledger.total().saturating_add(promised + wanted);
            ledger.budget.is_some_and(|budget| total > budget)
        };
        let mut has_left = false;
        while is_over(&self.runtime) {
            if !self.evict_prefix() {
                if !self.suspend_one(None) {
                    break;
                }
                self.suspensions.for_others += 1;
            }
            has_left = true;
        }
        has_left
    }

    /// Acts on a memory reading of the device. While it is short of memory, the prefix cache is emptied, the capacity of
    /// sessions shrinks, idle sessions are suspended as far as more is missing, and no request is admitted that it has no room
    /// for. Running requests go on. Returns log lines of what changed.
    pub fn observe(&mut self, reading: &Reading, now: Duration) -> Vec<String> {
        let mut lines = Vec::new();
        let weights = self.runtime.model().weights().bytes_per_token() as u64;
        let Some((room, bound)) = governor::headroom(reading, weights) else {
            return lines;
        };
        let held = self.runtime.ledger().total();
        let stalled = governor::is_stalled(reading);
        let spare = usize::try_from(room - governor::LOW_BYTES as i64).unwrap_or(0);
        let cause = if stalled {
            "tasks stall for memory".to_owned()
        } else {
            format!("{bound} leaves {} MiB", room >> 20)
        };
        let was_short = self.is_device_short();
        if stalled || spare == 0 {
            self.device_room = Some(0);
            if self.evict_prefix() {
                while self.evict_prefix() {}
                lines.push(format!("{cause}: the prefix cache is emptied"));
            }
            lines.extend(self.follow_device(reading, now));
            let missing = usize::try_from(governor::LOW_BYTES as i64 - room).unwrap_or(0);
            while held - self.runtime.ledger().total().min(held) < missing.max(1) {
                if !self.suspend_one(None) {
                    break;
                }
                self.suspensions.for_device += 1;
                lines.push(format!("{cause}: a session leaves memory"));
            }
            if !lines.is_empty() {
                self.runtime.give_back();
            } else if !was_short {
                lines.push(format!("{cause}: no further request is admitted"));
            }
            return lines;
        }
        lines.extend(self.follow_device(reading, now));
        if room > governor::HIGH_BYTES as i64 {
            self.device_room = None;
            self.releases += u64::from(was_short);
            if was_short {
                lines.push(format!("{cause}: requests are admitted again"));
            }
            return lines;
        }
        if was_short {
            self.device_room = Some(spare);
            self.releases += 1;
        }
        lines
    }

    /// Lets the capacity of sessions follow a reading; returns a log line if it changed.
    fn follow_device(&mut self, reading: &Reading, now: Duration) -> Option<String> {
        let (governor, sessions) = (self.governor.as_mut()?, self.sessions.as_mut()?);
        let (capacity, reason) = governor.decide(reading, now)?;
        let capacity = capacity.max(SHRUNK_MIN);
        sessions.follow_device(&mut self.runtime, capacity, &reason);
        Some(format!(
            "sessions keep at most {capacity} tokens of turns, {reason}"
        ))
    }
}

/// Bytes that the budget has for all sequences together beside the scratch of a step in which each of `sequences` reads a
/// block; `None`: there is no budget. `counting`: of how many attention is counted; `rows`: of the longest.
pub(super) fn promisable(
    runtime: &Runtime,
    sequences: usize,
    counting: usize,
    rows: usize,
) -> Option<usize> {
    let tokens = sequences * BLOCK_SLOTS;
    let scratch = runtime.scratch_bytes_counting(sequences, counting, tokens, rows);
    runtime.available_bytes(scratch)
}
