//! A turn, from the question to the commit: what is seen is decided, memory is made, the answer is generated, the turn
//! is saved.
//!
//! ```text
//! begin ─► Saying: tokens to read, logits to sample from ─► end
//!                  alone (say), or with others in one step (many)
//! ```
//!
//! What a plan does to memory loses nothing, so it stays done when an answer fails; tokens are read behind a fork, which
//! takes the sequence's place again if they do not become a turn.

use super::record::{Change, TurnRecord};
use super::relevance::Relevance;
use super::shadow::Reading;
use super::talk::{Answer, Context};
use super::turns::{Place, Room, plan};
use super::{Embed, STEP_TOKENS_MAX, SessionError, SessionId, Sessions, feed};
use crate::encoder::{Embedding, EncoderError};
use crate::run::completion::Completion;
use crate::run::generate::{Took, conclude, drive};
use crate::run::{Event, Finish, GenerateOptions, Generation, Runtime, SequenceId, StepError};
use crate::sample::Sampler;
use crate::text::tokenizer::EncodeOptions;
use haversack_cache::Positions;
use std::ops::{ControlFlow, Range};
use std::time::Duration;

/// A turn that is about to be read.
struct Ready {
    prompt: Vec<u32>,
    /// As it was before the first token of the prompt.
    backup: SequenceId,
    question: usize,
    question_start: u64,
    /// Turns that the prompt begins with, and where they will stand.
    reread: Vec<(u64, Range<u64>)>,
    context: Context,
}

/// A turn under way. The session does nothing else until it was handed back, to [`Sessions::end`] or
/// [`Sessions::abandon`].
#[must_use]
pub struct Saying {
    pub completion: Completion,
    id: SessionId,
    sequence: SequenceId,
    text: String,
    now_ms: u64,
    ready: Ready,
    /// A stream that is read beside the answer.
    shadow: Option<Reading>,
}

impl Saying {
    pub fn session(&self) -> SessionId {
        self.id
    }

    /// Where the tokens of the completion go.
    pub fn sequence(&self) -> SequenceId {
        self.sequence
    }
}

impl Sessions {
    /// One turn: the question is read, the answer generated, both saved. On an error the conversation is as it was.
    #[allow(clippy::too_many_arguments)]
    pub fn say(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        now_ms: u64,
        sampler: &mut Sampler,
        options: &GenerateOptions,
        tell: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Answer, SessionError> {
        let mut saying = self.begin(runtime, id, text, now_ms, options)?;
        let beside = self.options.condense_beside;
        let Saying {
            completion,
            sequence,
            shadow,
            ..
        } = &mut saying;
        let decode = &mut |runtime: &mut Runtime, id, token| match shadow {
            Some(shadow) => shadow.decode_beside(runtime, id, token, beside),
            None => runtime.decode(id, token).map(|_| ()),
        };
        match drive(runtime, *sequence, completion, sampler, tell, decode) {
            Ok(took) => self.end(runtime, saying, took, tell),
            Err(error) => {
                self.abandon(runtime, saying)?;
                Err(error.into())
            }
        }
    }

    /// Makes everything ready for an answer that somebody else computes.
    pub fn begin(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        now_ms: u64,
        options: &GenerateOptions,
    ) -> Result<Saying, SessionError> {
        self.work(runtime, id, STEP_TOKENS_MAX)?;
        let ready = self.prepare(runtime, id, text)?;
        let most = self.options.answer_max;
        let options = GenerateOptions {
            tokens_max: Some(options.tokens_max.map_or(most, |asked| asked.min(most))),
            ..options.clone()
        };
        let sequence = self.session(id)?.sequence;
        let completion = match Completion::new(runtime, sequence, &ready.prompt, &options) {
            Ok(completion) => completion,
            Err(error) => {
                self.undo(runtime, id, ready)?;
                return Err(error.into());
            }
        };
        let session = self.session_mut(id)?;
        let question = &ready.prompt[ready.prompt.len() - ready.question..];
        let shadow = session.lend(question);
        session.is_answering = true;
        Ok(Saying {
            completion,
            id,
            sequence,
            text: text.to_owned(),
            now_ms,
            ready,
            shadow,
        })
    }

    /// Makes a turn of a question and its answer. One that was cancelled before its first token becomes none.
    pub fn end(
        &mut self,
        runtime: &mut Runtime,
        saying: Saying,
        took: Took,
        tell: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Answer, SessionError> {
        let Saying {
            completion,
            id,
            sequence,
            text,
            now_ms,
            ready,
            shadow,
        } = saying;
        self.give_back(id, shadow)?;
        let generation = conclude(completion, took, tell);
        if generation.tokens.is_empty() {
            let context = ready.context.clone();
            self.undo(runtime, id, ready)?;
            return Ok(Answer {
                text: String::new(),
                tokens: Vec::new(),
                finish: generation.finish,
                generation,
                turn: None,
                context,
            });
        }
        let closed = self
            .closing(runtime, &generation)
            .and_then(|tokens| feed(runtime, sequence, &tokens));
        match closed {
            Ok(()) => self.finish(runtime, id, &text, now_ms, ready, generation),
            Err(error) => {
                self.undo(runtime, id, ready)?;
                Err(error)
            }
        }
    }

    /// The conversation is as it was before the question.
    pub fn abandon(&mut self, runtime: &mut Runtime, saying: Saying) -> Result<(), SessionError> {
        self.give_back(saying.id, saying.shadow)?;
        self.undo(runtime, saying.id, saying.ready)
    }

    fn give_back(&mut self, id: SessionId, shadow: Option<Reading>) -> Result<(), SessionError> {
        let index = self.find_any(id)?;
        if let Some(session) = &mut self.slots[index].session {
            session.is_answering = false;
            session.give_back(shadow);
        }
        Ok(())
    }

    /// A turn whose answer is known: a conversation that was had elsewhere.
    pub fn tell(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        answer: &str,
        now_ms: u64,
    ) -> Result<u64, SessionError> {
        let plain = EncodeOptions {
            add_special: false,
            parse_special: false,
        };
        let tokens = runtime.model().tokenizer().encode(answer, plain)?;
        let most = self.options.answer_max;
        if tokens.is_empty() || tokens.len() > most {
            let tokens = tokens.len();
            return Err(SessionError::AnswerLength { tokens, most });
        }
        let ready = self.prepare(runtime, id, text)?;
        let generation = Generation {
            text: answer.to_owned(),
            tokens,
            finish: Finish::Stop,
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
        };
        let sequence = self.session(id)?.sequence;
        let mut all = ready.prompt.clone();
        all.extend_from_slice(&generation.tokens[..generation.tokens.len() - 1]);
        all.extend(self.closing(runtime, &generation)?);
        if let Err(error) = feed(runtime, sequence, &all) {
            self.undo(runtime, id, ready)?;
            return Err(error);
        }
        let answer = self.finish(runtime, id, text, now_ms, ready, generation)?;
        Ok(answer.turn.unwrap_or_default())
    }

    /// Lets somebody look at the sequence as it would answer a question, right behind it. Nothing is said.
    pub fn peek<T>(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        look: &mut dyn FnMut(&mut Runtime, SequenceId) -> Result<T, StepError>,
    ) -> Result<(T, Context), SessionError> {
        let ready = self.prepare(runtime, id, text)?;
        let context = ready.context.clone();
        let sequence = self.session(id)?.sequence;
        let found = feed(runtime, sequence, &ready.prompt)
            .and_then(|()| look(runtime, sequence).map_err(SessionError::from));
        self.undo(runtime, id, ready)?;
        Ok((found?, context))
    }

    /// Decides what the answer sees, and makes it so.
    fn prepare(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
    ) -> Result<Ready, SessionError> {
        let index = self.find(id)?;
        self.hold_for(runtime, index)?;
        let layout = &self.layout;
        let (question, embedding) = beside(self.encoder.as_deref(), text, || layout.question(text));
        let (question, embedding) = (question?, embedding?);
        let ending = layout.ending()?.len() as u64 + 1;
        let options = &self.options;
        let Some(session) = &mut self.slots[index].session else {
            return Err(SessionError::Closed { index });
        };
        let coming = question.len() as u64 + options.answer_max as u64 + ending;
        if session.unsaved.is_some() {
            // A disk that works again in time loses nothing: what leaves memory now has to be in the file.
            session.save(runtime, options);
        }
        let mut similarities = session.similarities(embedding.as_ref())?;
        for (held, similarity) in session.turns.iter().zip(&mut similarities) {
            if session.wanted.contains(&held.turn.number) {
                *similarity = Some(f32::MAX);
            }
        }
        let relevance = match embedding {
            Some(_) => options.relevance,
            None => Relevance::All,
        };
        let room = Room {
            capacity: options.capacity as u64,
            coming,
            last: options.last,
            reread: options.reread_max as u64,
        };
        let found = plan(&session.turns, &similarities, &relevance, &room)?;
        log::debug!("session {}: {found}", session.name);
        let mut reread = session.carry_out(runtime, &found)?;
        session.make_room(runtime, coming, options.last)?;
        session.give_way(runtime, coming);
        session.wanted.clear();

        let position = runtime.position(session.sequence)?;
        // A turn that comes back counts as standing where it would if nothing had been said between: small models
        // do not look far (`docs/conversations.md`).
        runtime.set_positions(session.sequence, Positions::Compact)?;

        let mut prompt = Vec::new();
        let mut read_again = Vec::new();
        reread.sort_unstable();
        for number in reread {
            let Some(i) = session.turns.iter().position(|h| h.turn.number == number) else {
                continue;
            };
            let Ok(TurnRecord { tokens, .. }) = session.turn_record(&session.turns[i]) else {
                session.forget(i);
                continue;
            };
            let start = position + prompt.len() as u64;
            read_again.push((number, start..start + tokens.len() as u64));
            prompt.extend(tokens);
        }
        let mut context = session.context(&found, self.encoder.is_none());
        context.recomputed = prompt.len() as u64;
        context.kept += (prompt.len() + question.len()) as u64;
        let question_start = position + prompt.len() as u64;
        prompt.extend_from_slice(&question);
        Ok(Ready {
            prompt,
            backup: runtime.fork(session.sequence)?,
            question: question.len(),
            question_start,
            reread: read_again,
            context,
        })
    }

    /// What is read behind an answer so that it ends as the template ends it: the last token sampled, which the
    /// sequence does not have yet, and what follows.
    fn closing(
        &self,
        runtime: &Runtime,
        generation: &Generation,
    ) -> Result<Vec<u32>, SessionError> {
        let ending = self.layout.ending()?;
        let Some(&last) = generation.tokens.last() else {
            return Ok(ending.to_vec());
        };
        // An answer that ended by itself has the first token of its ending already.
        let is_end = runtime.model().tokenizer().is_end(last) && ending.first() == Some(&last);
        let own = (!is_end).then_some(last);
        Ok(own.into_iter().chain(ending.iter().copied()).collect())
    }

    fn undo(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        ready: Ready,
    ) -> Result<(), SessionError> {
        let session = self.session_mut(id)?;
        session.unmirror();
        let failed = std::mem::replace(&mut session.sequence, ready.backup);
        runtime.close(failed)?;
        Ok(())
    }

    fn finish(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        now_ms: u64,
        ready: Ready,
        generation: Generation,
    ) -> Result<Answer, SessionError> {
        runtime.close(ready.backup)?;
        let ending = self.closing(runtime, &generation)?;
        let index = self.find(id)?;
        let encoder = self.encoder.as_deref();
        let options = &self.options;
        let Some(session) = &mut self.slots[index].session else {
            return Err(SessionError::Closed { index });
        };
        for (number, span) in ready.reread {
            if let Some(held) = session.turns.iter_mut().find(|h| h.turn.number == number) {
                held.turn.place = Place::Live;
                held.turn.is_visible = true;
                held.turn.span = span.clone();
                session.change(Change::Moved {
                    turn: number,
                    place: Place::Live,
                    start: span.start,
                });
            }
        }
        // An embedding that cannot be had makes a turn unjudged, not unsaid.
        let said = format!("{text}\n{}", generation.text);
        let embedding = encoder.and_then(|encoder| encoder.embed(&said).ok());
        let end = runtime.position(session.sequence)?;
        let mut tokens = ready.prompt[ready.prompt.len() - ready.question..].to_vec();
        tokens.extend_from_slice(&generation.tokens);
        // What was read beyond the answer is the end marker and what belongs to it.
        let whole = (end - ready.question_start) as usize;
        tokens.truncate(whole.saturating_sub(ending.len()));
        tokens.extend(ending);
        debug_assert_eq!(tokens.len(), whole);
        let number = session.turns_made;
        session.turns_made += 1;
        let time_ms = session.at(now_ms);
        let record = TurnRecord {
            number,
            start: ready.question_start,
            time_ms,
            question: ready.question as u32,
            is_pinned: false,
            embedding: embedding.map_or(Vec::new(), |e| e.store().to_bytes().to_vec()),
            tokens,
        };
        session.add(&record);
        session.mirrored(number, &record.tokens);
        session.save(runtime, options);
        let mut context = ready.context;
        context.unsaved = session.unsaved.clone();
        Ok(Answer {
            text: generation.text.clone(),
            tokens: generation.tokens.clone(),
            finish: generation.finish,
            turn: Some(number),
            generation,
            context,
        })
    }
}

/// Runs `other` while the encoder is at work on the text, on a thread of its own.
fn beside<T>(
    encoder: Option<&dyn Embed>,
    text: &str,
    other: impl FnOnce() -> T,
) -> (T, Result<Option<Embedding>, EncoderError>) {
    let Some(encoder) = encoder else {
        return (other(), Ok(None));
    };
    std::thread::scope(|scope| {
        let embedding = scope.spawn(|| encoder.embed(text));
        let value = other();
        // A thread that died judged nothing.
        let embedding = embedding.join().map_or(Ok(None), |e| e.map(Some));
        (value, embedding)
    })
}
