//! A turn, from the question to the commit: what is seen is decided, memory is made, the answer is generated, the turn
//! is saved.
//!
//! ```text
//! begin ─► TurnInProgress: tokens to read, logits to sample from ─► conclude ─► tokens to read ─► end
//!                  alone (say), or with others in one step (many)
//! ```
//!
//! What a plan does to memory loses nothing, so it stays done when an answer fails; tokens are read behind a fork, which
//! takes the sequence's place again if they do not become a turn.

use super::rebuild::Reading;
use super::record::{Change, TurnRecord};
use super::relevance::Relevance;
use super::session::{Answer, Context};
use super::turns::{Place, Room, plan};
use super::{Deferred, Embed, STEP_TOKENS_MAX, SessionError, SessionId, Sessions, feed};
use haversack_cache::Positions;
use haversack_engine::encoder::{Embedding, EncoderError};
use haversack_engine::runtime::completion::Completion;
use haversack_engine::runtime::generate::{Took, conclude, drive};
use haversack_engine::runtime::{
    Event, Finish, GenerateOptions, Generation, Runtime, SequenceId, StepError,
};
use haversack_engine::sample::Sampler;
use haversack_memory::zoo::{Bug, planted};
use haversack_text::tokenizer::EncodeOptions;
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
    /// Until it has become a turn.
    owed: Deferred,
    context: Context,
}

/// What was answered, and what it is about with its question.
struct Said {
    generation: Generation,
    embedding: Option<Embedding>,
    now_ms: u64,
}

/// A turn under way. The session does nothing else until it was handed back, to [`Sessions::end`] or
/// [`Sessions::abandon`].
#[must_use]
pub struct TurnInProgress {
    stage: Stage,
    id: SessionId,
    sequence: SequenceId,
    text: String,
    now_ms: u64,
    ready: Ready,
    /// A stream that is read beside the answer.
    shadow: Option<Reading>,
}

enum Stage {
    Answering(Completion),
    /// The answer is there; so much was read of what ends it.
    Closing {
        generation: Generation,
        tokens: Vec<u32>,
        read: usize,
    },
}

impl Stage {
    /// The answer, and what is still to be read of what ends it.
    fn end(self) -> (Generation, Vec<u32>) {
        match self {
            Stage::Closing {
                generation,
                mut tokens,
                read,
            } => (generation, tokens.split_off(read)),
            Stage::Answering(completion) => {
                let nobody = &mut |_: Event<'_>| ControlFlow::Continue(());
                (conclude(completion, Took::default(), nobody), Vec::new())
            }
        }
    }
}

impl TurnInProgress {
    pub fn session(&self) -> SessionId {
        self.id
    }

    /// Where the tokens go.
    pub fn sequence(&self) -> SequenceId {
        self.sequence
    }

    /// The answer, until [`Sessions::conclude`].
    pub fn completion(&mut self) -> Option<&mut Completion> {
        match &mut self.stage {
            Stage::Answering(completion) => Some(completion),
            Stage::Closing { .. } => None,
        }
    }

    /// Tokens to be read next, of the question, the answer or what ends it.
    pub fn pending(&self) -> &[u32] {
        match &self.stage {
            Stage::Answering(completion) => completion.pending(),
            Stage::Closing { tokens, read, .. } => &tokens[*read..],
        }
    }

    /// Whether a token is sampled from the logits behind so many of them.
    pub fn samples_after(&self, tokens: usize) -> bool {
        match &self.stage {
            Stage::Answering(completion) => completion.samples_after(tokens),
            Stage::Closing { .. } => false,
        }
    }

    /// So many of them are in the sequence now.
    pub fn read(&mut self, count: usize) {
        match &mut self.stage {
            Stage::Answering(completion) => completion.read(count),
            Stage::Closing { tokens, read, .. } => *read = (*read + count).min(tokens.len()),
        }
    }

    /// Question and answer, once the answer is there: what [`Embed`] is asked about.
    pub fn said(&self) -> Option<String> {
        match &self.stage {
            Stage::Closing { generation, .. } if !generation.tokens.is_empty() => {
                Some(said_of(&self.text, generation))
            }
            _ => None,
        }
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
        let mut saying = self.begin(runtime, id, text, None, now_ms, options)?;
        let beside = self.options.condense_beside;
        let TurnInProgress {
            stage,
            sequence,
            shadow,
            ..
        } = &mut saying;
        let decode = &mut |runtime: &mut Runtime, id, token| match shadow {
            Some(shadow) => shadow.decode_beside(runtime, id, token, beside),
            None => runtime.decode(id, token).map(|_| ()),
        };
        let driven = match stage {
            Stage::Answering(completion) => {
                drive(runtime, *sequence, completion, sampler, tell, decode)
            }
            Stage::Closing { .. } => Ok(Took::default()),
        };
        match driven {
            Ok(took) => {
                let saying = self.conclude(runtime, saying, took, tell)?;
                self.end(runtime, saying, None)
            }
            Err(error) => {
                self.abandon(runtime, saying)?;
                Err(error.into())
            }
        }
    }

    /// Makes everything ready for an answer that somebody else computes. What the question is about is found out here,
    /// unless somebody has done so.
    pub fn begin(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        embedding: Option<Embedding>,
        now_ms: u64,
        options: &GenerateOptions,
    ) -> Result<TurnInProgress, SessionError> {
        self.work(runtime, id, STEP_TOKENS_MAX)?;
        let ready = self.prepare(runtime, id, text, embedding)?;
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
        Ok(TurnInProgress {
            stage: Stage::Answering(completion),
            id,
            sequence,
            text: text.to_owned(),
            now_ms,
            ready,
            shadow,
        })
    }

    /// The answer is over, or nobody wants more of it: what is left to read is what ends it. On an error the
    /// conversation is as it was.
    pub fn conclude(
        &mut self,
        runtime: &mut Runtime,
        saying: TurnInProgress,
        took: Took,
        tell: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<TurnInProgress, SessionError> {
        let completion = match saying.stage {
            Stage::Answering(completion) => completion,
            closing => {
                return Ok(TurnInProgress {
                    stage: closing,
                    ..saying
                });
            }
        };
        let generation = conclude(completion, took, tell);
        let closing = match generation.tokens.is_empty() {
            true => Ok(Vec::new()),
            false => self.closing(runtime, &generation),
        };
        let closing = closing.map(|tokens| Stage::Closing {
            generation,
            tokens,
            read: 0,
        });
        match closing {
            Ok(stage) => Ok(TurnInProgress { stage, ..saying }),
            Err(error) => {
                self.give_back(saying.id, saying.shadow)?;
                self.undo(runtime, saying.id, saying.ready)?;
                Err(error)
            }
        }
    }

    /// Makes a turn of a question and its answer. What ends it is read first, if it was not yet. An answer that was
    /// cancelled before its first token makes none. What both are about is found out here, unless somebody has done so.
    pub fn end(
        &mut self,
        runtime: &mut Runtime,
        saying: TurnInProgress,
        embedding: Option<Embedding>,
    ) -> Result<Answer, SessionError> {
        let said = saying.said();
        let TurnInProgress {
            stage,
            id,
            sequence,
            now_ms,
            ready,
            shadow,
            ..
        } = saying;
        self.give_back(id, shadow)?;
        let (generation, rest) = stage.end();
        let Some(said) = said else {
            let context = ready.context.clone();
            self.undo(runtime, id, ready)?;
            self.session_mut(id)?.is_answering = planted(Bug::WedgedAfterCancel);
            return Ok(Answer {
                text: String::new(),
                tokens: Vec::new(),
                finish: generation.finish,
                generation,
                turn: None,
                context,
            });
        };
        let said = Said {
            embedding: embedding.or_else(|| self.encoder.as_deref()?.embed(&said).ok()),
            generation,
            now_ms,
        };
        let closed = match &rest[..] {
            [] => Ok(()),
            rest => feed(runtime, sequence, rest),
        };
        match closed {
            Ok(()) => self.finish(runtime, id, ready, said),
            Err(error) => {
                self.undo(runtime, id, ready)?;
                Err(error)
            }
        }
    }

    /// The conversation is as it was before the question.
    pub fn abandon(
        &mut self,
        runtime: &mut Runtime,
        saying: TurnInProgress,
    ) -> Result<(), SessionError> {
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
        let ready = self.prepare(runtime, id, text, None)?;
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
        let encoder = self.encoder.as_deref();
        let said = Said {
            embedding: encoder.and_then(|e| e.embed(&said_of(text, &generation)).ok()),
            generation,
            now_ms,
        };
        let answer = self.finish(runtime, id, ready, said)?;
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
        let ready = self.prepare(runtime, id, text, None)?;
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
        embedding: Option<Embedding>,
    ) -> Result<Ready, SessionError> {
        let index = self.find(id)?;
        self.hold_for(runtime, index)?;
        let layout = &self.layout;
        // Without an encoder nobody judges, whatever the caller says.
        let (question, embedding) = match (embedding, &self.encoder) {
            (Some(embedding), Some(_)) => (layout.question(text), Ok(Some(embedding))),
            (_, encoder) => beside(encoder.as_deref(), text, || layout.question(text)),
        };
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
        session.note_relevance(&similarities);
        for (held, similarity) in session.turns.iter().zip(&mut similarities) {
            if session.owed.wanted.contains(&held.turn.number) {
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
        // What follows may find no room; what was done by then is told with the next answer.
        let earlier = std::mem::take(&mut session.owed.done).that_holds(&session.turns);
        session.owed.done = found.clone().after(&earlier);
        let mut reread = session.carry_out(runtime, &found)?;
        session.make_room(runtime, coming, options.last)?;
        session.give_way(runtime, coming);

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
        let backup = runtime.fork(session.sequence)?;
        let owed = std::mem::take(&mut session.owed);
        let mut context = session.context(&owed.done, self.encoder.is_none());
        session.note_plan(&context.plan);
        context.recomputed = prompt.len() as u64;
        context.kept += (prompt.len() + question.len()) as u64;
        let question_start = position + prompt.len() as u64;
        prompt.extend_from_slice(&question);
        Ok(Ready {
            prompt,
            backup,
            question: question.len(),
            question_start,
            reread: read_again,
            owed,
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
        if generation.finish == Finish::Cancelled && planted(Bug::OrphanedMarker) {
            return Ok(Vec::new());
        }
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
        session.owed = ready.owed;
        let failed = std::mem::replace(&mut session.sequence, ready.backup);
        runtime.close(failed)?;
        Ok(())
    }

    fn finish(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        ready: Ready,
        said: Said,
    ) -> Result<Answer, SessionError> {
        let Said {
            generation,
            embedding,
            now_ms,
        } = said;
        runtime.close(ready.backup)?;
        let ending = self.closing(runtime, &generation)?;
        let index = self.find(id)?;
        let options = &self.options;
        let Some(session) = &mut self.slots[index].session else {
            return Err(SessionError::Closed { index });
        };
        for (number, span) in ready.reread {
            if let Some(held) = session.turns.iter_mut().find(|h| h.turn.number == number) {
                held.turn.place = Place::Live;
                held.turn.is_visible = true;
                held.turn.span = span.clone();
                session.tally.read_again += span.end - span.start;
                session.change(Change::Moved {
                    turn: number,
                    place: Place::Live,
                    start: span.start,
                });
            }
        }
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
            // One that cannot be had makes a turn unjudged, not unsaid.
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

fn said_of(question: &str, generation: &Generation) -> String {
    format!("{question}\n{}", generation.text)
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
