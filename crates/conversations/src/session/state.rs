//! State: what holds now and will be otherwise soon. The level of a game, the page that is open, who is in the room.
//!
//! A state is told like a fact and kept like a pinned turn: every answer sees it, whatever is asked, and it does not
//! leave for want of room. It belongs to the ephemeral stream, with a rule of its own: when it changes, what held before
//! is forgotten at once, rows and tokens, in memory and in the file. One that changes with every turn takes as much
//! as one that never does. Together they have a part of the stream's capacity and no more.

use super::record::TurnRecord;
use super::turns::Turn;
use super::{Session, SessionError, SessionId, Sessions};
use haversack_engine::runtime::Runtime;

/// One token of so many in the ephemeral stream may belong to what is pinned.
const PART: usize = 4;

impl Sessions {
    /// Says what holds from now on, in place of `instead` if that is given; returns its number, which is a turn's.
    ///
    /// [`Sessions::pin`] lets it become a turn like others, [`Sessions::drop_state`] lets it go.
    pub fn tell_state(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        now_ms: u64,
        instead: Option<u64>,
    ) -> Result<u64, SessionError> {
        let tokens = self.layout.fact(text)?;
        let most = self.options.capacity / PART;
        let session = self.session(id)?;
        if let Some(number) = instead {
            session.state_turn(number)?;
        }
        let pinned = session
            .turns
            .iter()
            .map(|h| &h.turn)
            .filter(|t| t.is_pinned);
        let others = pinned.filter(|t| Some(t.number) != instead);
        let asked = others.map(Turn::tokens).sum::<u64>() as usize + tokens.len();
        if asked > most {
            let tokens = asked;
            return Err(SessionError::TooMuchState { tokens, most });
        }
        // Without one it is judged by nothing, should it ever be.
        let encoder = self.encoder.as_deref();
        let embedding = encoder.and_then(|encoder| encoder.embed(text).ok());
        let options = self.options.clone();
        let session = self.session_mut(id)?;
        let start = session.append(runtime, &tokens, options.last)?;
        if let Some(number) = instead {
            session.let_go(number);
        }
        let number = session.turns_made;
        session.turns_made += 1;
        let record = TurnRecord {
            number,
            start,
            time_ms: session.at(now_ms),
            question: tokens.len() as u32,
            is_pinned: true,
            embedding: embedding.map_or(Vec::new(), |e| e.store().to_bytes().to_vec()),
            tokens,
        };
        session.add(&record);
        session.mask(runtime)?;
        session.save(runtime, &options);
        Ok(number)
    }

    /// A state does not hold any more, and nothing takes its place.
    pub fn drop_state(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        number: u64,
    ) -> Result<(), SessionError> {
        let options = self.options.clone();
        let session = self.session_mut(id)?;
        session.state_turn(number)?;
        session.let_go(number);
        session.mask(runtime)?;
        session.save(runtime, &options);
        Ok(())
    }
}

impl Session {
    fn state_turn(&self, number: u64) -> Result<&Turn, SessionError> {
        let mut states = self.turns.iter().map(|h| &h.turn).filter(|t| t.is_state);
        let found = states.find(|turn| turn.number == number);
        found.ok_or(SessionError::NoSuchState { number })
    }

    /// Taken back rather than forgotten: nobody misses what does not hold.
    fn let_go(&mut self, number: u64) {
        if let Some(i) = self.turns.iter().position(|h| h.turn.number == number) {
            self.take_out(i);
        }
    }
}
