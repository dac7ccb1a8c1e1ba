//! Reads the records of a session file in order and rebuilds what they say.

use super::record::{
    BadRecord, CHANGE, COLUMN, FACT, FactRecord, LIMITS, LimitsRecord, LogChange, STATE,
    StateRecord, TURN, TurnRecord, number,
};
use super::transcript::{Fact, StoredRecord, StoredTurn, Transcript};
use super::turns::SLOTS;
use haversack_memory::journal::{JournalMap, RecordRef};
use std::collections::BTreeMap;

pub(super) struct Replay {
    pub transcript: Transcript,
    /// Columns that are still needed, by block.
    pub columns: BTreeMap<u64, RecordRef>,
    pub state: StateRecord,
    pub state_record: RecordRef,
}

impl Replay {
    pub fn of(map: &JournalMap, records: &[RecordRef]) -> Result<Replay, BadRecord> {
        let bad = |kind, what| BadRecord { kind, what };
        let mut transcript = Transcript::default();
        let mut columns = BTreeMap::new();
        let mut last = None;
        for &record in records {
            let kind = record.kind;
            let bytes = map.payload(record);
            let bytes = bytes.map_err(|_| bad(kind, "bytes missing"))?;
            match kind {
                TURN => {
                    let told = TurnRecord::read(bytes)?;
                    transcript.turns.push(StoredTurn {
                        turn: told.turn(),
                        record: StoredRecord::Saved(record),
                    });
                }
                FACT => {
                    let told = FactRecord::read(bytes)?;
                    // Condensing the stream writes facts anew under their old numbers.
                    transcript.facts.retain(|f| f.number != told.number);
                    transcript.facts.push(Fact::new(told, Some(record)));
                }
                CHANGE => match LogChange::read(bytes)? {
                    LogChange::Renewed => columns.clear(),
                    change => transcript.apply(change),
                },
                COLUMN => {
                    let block = number(bytes);
                    let block = block.ok_or(bad(COLUMN, "bytes missing"))?;
                    columns.insert(block, record);
                }
                STATE => last = Some(record),
                LIMITS => transcript.limits = Some(LimitsRecord::read(bytes)?),
                _ => return Err(bad(kind, "no meaning here")),
            }
        }
        let state_record = last.ok_or(bad(STATE, "no record"))?;
        let bytes = map.payload(state_record);
        let state = StateRecord::read(bytes.map_err(|_| bad(STATE, "bytes missing"))?)?;
        for stored in transcript.turns.iter_mut() {
            stored.turn.is_visible = state.visible.contains(&stored.turn.number);
        }
        let mut live = transcript.live_spans(true).into_iter();
        if live.any(|span| span.end > state.position) {
            return Err(bad(STATE, "a position before its turns"));
        }
        columns.retain(|block, _| {
            let is_needed = *block < u64::MAX / SLOTS - 1 && transcript.needs_block(*block);
            is_needed || state.blocks.contains(block)
        });
        transcript.facts_made = state.facts_made;
        transcript.turns_made = state.turns_made;
        transcript.forgotten = state.forgotten;
        transcript.last_time_ms = state.time_ms;
        Ok(Replay {
            transcript,
            columns,
            state,
            state_record,
        })
    }
}
