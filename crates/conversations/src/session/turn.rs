//! A turn, from the question to the commit: the plan is made and carried out, the answer is generated, the turn is saved.
//!
//! ```text
//! begin ─► TurnInProgress: tokens to read, logits to sample from ─► conclude ─► tokens to read ─► end
//!                  alone (say), or batched with others (the scheduler)
//! ```
//!
//! A plan loses nothing, so it stays carried out when an answer fails. Tokens are read behind a fork of the sequence,
//! which takes its place again if the turn is dropped.

use super::condensing::{RebuildReading, STEP_TOKENS_MAX};
use super::date::dated;
use super::embed::{QuestionEmbedding, embed_later, embed_while};
use super::error::{SessionError, SessionResult};
use super::layout::ChatLayout;
use super::log::{RunningSave, StartedSave};
use super::open_session::{OpenSession, stored_bytes};
use super::parts::message_parts;
use super::record::TurnRecord;
use super::report::{ContextReport, TurnAnswer};
use super::residency::{feed, fits, promised_bytes};
use super::scoring::{Rank, RankedQuestion};
use super::sessions::Sessions;
use super::slots::SessionId;
use super::undo::{DroppedTurns, TurnUndo, Undo, UndoOnDrop};
use haversack_cache::PositionMode;
use haversack_engine::encoder::Embedding;
use haversack_engine::runtime::completion::Completion;
use haversack_engine::runtime::generate::{GenerateTimes, conclude, drive};
use haversack_engine::runtime::{
    Finish, GenerateEvent, GenerateOptions, Generation, Runtime, SequenceId, StepError,
};
use haversack_engine::sample::Sampler;
use haversack_text::tokenizer::EncodeOptions;
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::thread::JoinHandle;
use std::time::Duration;

/// A turn that is about to be read.
struct PreparedTurn {
    session: SessionId,
    sequence: SequenceId,
    prompt: Vec<u32>,
    /// Number of tokens of the question, at the end of the prompt.
    question: usize,
    /// It begins with the date.
    is_dated: bool,
    question_start: u64,
    /// Turns that the prompt begins with, and their new positions.
    reread: Vec<(u64, Range<u64>)>,
    /// Not every turn of the plan came back: there was no memory for it.
    recalls_fewer: bool,
    context: ContextReport,
    undo: UndoOnDrop,
}

/// What a prepared turn needs from outside its session.
struct Question<'a> {
    text: &'a str,
    tokens: Vec<u32>,
    is_dated: bool,
    embedding: Option<QuestionEmbedding>,
    has_encoder: bool,
    /// Tokens of the question, the longest answer and its ending.
    coming: u64,
    /// Parts of the message before this one, which are turns already.
    told: Vec<u64>,
}

/// What is left of a message.
struct Message {
    /// Its parts that were not begun yet.
    rest: VecDeque<String>,
    /// Turns of those that were read.
    told: Vec<u64>,
    /// Of the part that is being read.
    embedding: Option<JoinHandle<Option<Embedding>>>,
    options: GenerateOptions,
    /// Tokens of the answer at most.
    answer: usize,
}

/// A question as its caller has it.
#[derive(Clone, Copy, Debug)]
pub struct AskedQuestion<'a> {
    pub text: &'a str,
    /// From [`SessionTexts::question`](super::SessionTexts::question). `None`: made when the turn begins.
    pub tokens: Option<&'a [u32]>,
    /// `None`: made when the turn begins.
    pub embedding: Option<&'a QuestionEmbedding>,
    pub now_ms: u64,
}

impl AskedQuestion<'_> {
    pub fn new(text: &str, now_ms: u64) -> AskedQuestion<'_> {
        AskedQuestion {
            text,
            tokens: None,
            embedding: None,
            now_ms,
        }
    }
}

/// A turn in progress. Its session does nothing else until it is handed back to [`Sessions::end`]. Dropping it undoes it:
/// the session is as it was before the question, from the next call of [`Sessions`] on.
#[must_use]
pub struct TurnInProgress {
    stage: Stage,
    /// The message, or the part of it that is being read.
    text: String,
    now_ms: u64,
    prepared: PreparedTurn,
    message: Message,
}

enum Stage {
    /// A part of the message is being read; others follow.
    Telling {
        tokens: Vec<u32>,
        read: usize,
    },
    Answering(Completion),
    /// The answer is complete; `read` of the tokens that end it have been read.
    Closing {
        generation: Generation,
        tokens: Vec<u32>,
        read: usize,
    },
}

impl Stage {
    /// The answer, and the unread tokens of its ending.
    fn end(self) -> (Generation, Vec<u32>) {
        match self {
            Stage::Closing {
                generation,
                mut tokens,
                read,
            } => (generation, tokens.split_off(read)),
            Stage::Telling { .. } => (cancelled(), Vec::new()),
            Stage::Answering(completion) => {
                let ignore = &mut |_: GenerateEvent<'_>| ControlFlow::Continue(());
                (
                    conclude(completion, GenerateTimes::default(), ignore),
                    Vec::new(),
                )
            }
        }
    }
}

impl TurnInProgress {
    pub fn session(&self) -> SessionId {
        self.prepared.session
    }

    /// The sequence that its tokens are read into.
    pub fn sequence(&self) -> SequenceId {
        self.prepared.sequence
    }

    /// Whether turns stay where they are for want of memory that the plan has recalled.
    pub(crate) fn recalls_fewer(&self) -> bool {
        self.prepared.recalls_fewer
    }

    /// The answer, until [`Sessions::conclude`].
    pub fn completion(&mut self) -> Option<&mut Completion> {
        match &mut self.stage {
            Stage::Answering(completion) => Some(completion),
            Stage::Telling { .. } | Stage::Closing { .. } => None,
        }
    }

    /// Whether the answer has ended: what is left is to read its ending and to save it.
    pub fn has_answered(&self) -> bool {
        match &self.stage {
            Stage::Answering(completion) => completion.is_over(),
            Stage::Telling { .. } => false,
            Stage::Closing { .. } => true,
        }
    }

    /// Ends the answer. If it has no token yet, the message is taken back.
    pub fn cancel(&mut self) {
        match &mut self.stage {
            Stage::Answering(completion) => completion.cancel(),
            Stage::Telling { .. } => {
                self.stage = Stage::Closing {
                    generation: cancelled(),
                    tokens: Vec::new(),
                    read: 0,
                }
            }
            Stage::Closing { .. } => {}
        }
    }

    /// Tokens of the part that is being read, and how many of them have been; `None` once the last part is.
    pub fn telling(&self) -> Option<(usize, usize)> {
        match &self.stage {
            Stage::Telling { tokens, read } => Some((*read, tokens.len())),
            _ => None,
        }
    }

    /// Tokens to be read next: of the question, the answer or its ending.
    pub fn pending(&self) -> &[u32] {
        match &self.stage {
            Stage::Answering(completion) => completion.pending(),
            Stage::Telling { tokens, read } | Stage::Closing { tokens, read, .. } => {
                &tokens[*read..]
            }
        }
    }

    /// Whether a token is sampled after the first `tokens` of them.
    pub fn samples_after(&self, tokens: usize) -> bool {
        match &self.stage {
            Stage::Answering(completion) => completion.samples_after(tokens),
            Stage::Telling { .. } | Stage::Closing { .. } => false,
        }
    }

    /// Notes that the first `count` of them are in the sequence.
    pub fn read(&mut self, count: usize) {
        match &mut self.stage {
            Stage::Answering(completion) => {
                let is_answer = !completion.sampled().is_empty();
                if let Some(rebuild) = self.prepared.undo.rebuild().filter(|_| is_answer) {
                    let fed = completion.pending();
                    rebuild.mirror(&fed[..count.min(fed.len())]);
                }
                completion.read(count);
            }
            Stage::Telling { tokens, read } | Stage::Closing { tokens, read, .. } => {
                *read = (*read + count).min(tokens.len());
            }
        }
    }

    /// The rebuild of its session while it reads.
    pub(crate) fn rebuild(&mut self) -> Option<&mut RebuildReading> {
        self.prepared.undo.rebuild()
    }

    /// Question and answer, once the answer is complete: the text to embed.
    pub fn said(&self) -> Option<String> {
        match &self.stage {
            Stage::Closing { generation, .. } if !generation.tokens.is_empty() => {
                Some(exchange(&self.text, generation))
            }
            _ => None,
        }
    }
}

impl PreparedTurn {
    /// Decides what the answer sees, and makes it so.
    fn new(
        runtime: &mut Runtime,
        id: SessionId,
        session: &mut OpenSession,
        question: Question<'_>,
        layout: &ChatLayout,
        dropped: &DroppedTurns,
    ) -> SessionResult<PreparedTurn> {
        let Question {
            text,
            tokens: question,
            is_dated,
            embedding,
            has_encoder,
            coming,
            told,
        } = question;
        if session.log.unsaved().is_some() {
            // Turns that leave memory now have to be in the file, and the disk may work again.
            session.save(runtime);
        }
        let asked = RankedQuestion {
            text,
            embedding: embedding.as_ref(),
        };
        let sequence = session.residency.sequence;
        let position = runtime.position(sequence)?;
        // A recalled turn counts as standing where it would if nothing had been said in between: small models do not
        // look far (`docs/how-it-works/conversations.md`).
        runtime.set_positions(sequence, PositionMode::Compact)?;
        let recalled = session.recall_for(runtime, layout, &asked, coming)?;

        let mut prompt = Vec::new();
        let mut reread = Vec::new();
        for number in recalled.recompute {
            let Some(i) = session.transcript.index_of(number) else {
                continue;
            };
            let record = session.log.turn_record(&session.transcript.turns[i]);
            let Ok(TurnRecord { tokens, .. }) = record else {
                session.forget(i);
                continue;
            };
            let start = position + prompt.len() as u64;
            reread.push((number, start..start + tokens.len() as u64));
            prompt.extend(tokens);
        }
        let backup = session.back_up(runtime, coming + prompt.len() as u64)?;
        let deferred = std::mem::take(&mut session.transcript.deferred);
        let mut context = session.context(&deferred.done, &deferred.recall, !has_encoder);
        session.decision.plan = context.plan.clone();
        context.changes = deferred.changes.clone();
        context.condensed = session.condensing.untold();
        context.parts = match told.len() as u64 {
            0 => 0,
            told => told + 1,
        };
        context.recomputed = prompt.len() as u64;
        context.kept += (prompt.len() + question.len()) as u64;
        let question_start = position + prompt.len() as u64;
        prompt.extend_from_slice(&question);
        Ok(PreparedTurn {
            session: id,
            sequence,
            prompt,
            question: question.len(),
            is_dated,
            question_start,
            reread,
            recalls_fewer: !recalled.left_out.is_empty(),
            context,
            undo: dropped.guard(Undo::Turn(Box::new(TurnUndo {
                session: id,
                backup,
                deferred,
                told,
                rebuild: None,
            }))),
        })
    }

    fn question(&self) -> &[u32] {
        &self.prompt[self.prompt.len() - self.question..]
    }

    /// Adds a part of a message to its session as a turn without an answer, and saves it; returns its number.
    fn commit_part(
        mut self,
        runtime: &mut Runtime,
        session: &mut OpenSession,
        embedding: Option<Embedding>,
        now_ms: u64,
    ) -> SessionResult<u64> {
        let tokens = self.question().to_vec();
        session.is_answering = false;
        for (number, span) in self.reread {
            session.relocate(number, span);
        }
        let number = session.transcript.next_turn();
        let record = TurnRecord {
            number,
            start: self.question_start,
            time_ms: session.transcript.at(now_ms),
            question: tokens.len() as u32,
            is_pinned: false,
            is_part: true,
            is_dated: self.is_dated,
            embedding: stored_bytes(embedding),
            tokens,
        };
        session.add_turn(&record);
        if let Some(undo) = self.undo.commit() {
            // The last part takes up what the first found.
            session.transcript.deferred = undo.deferred;
            runtime.close(undo.backup)?;
        }
        session.save(runtime);
        Ok(number)
    }

    /// Adds the turn to its session and begins to save it. The session goes on answering until that has ended.
    fn commit(
        mut self,
        runtime: &mut Runtime,
        session: &mut OpenSession,
        generation: Generation,
        ending: Vec<u32>,
        embedding: Option<Embedding>,
        now_ms: u64,
    ) -> SessionResult<EndedTurn> {
        let end = runtime.position(self.sequence)?;
        let mut tokens = self.question().to_vec();
        tokens.extend_from_slice(&generation.tokens);
        // Beyond the answer the sequence has read its ending.
        let whole = (end - self.question_start) as usize;
        tokens.truncate(whole.saturating_sub(ending.len()));
        tokens.extend(ending);
        debug_assert_eq!(tokens.len(), whole);

        let undo = self.undo.commit();
        session.is_answering = false;
        for (number, span) in self.reread {
            session.relocate(number, span);
        }
        let number = session.transcript.next_turn();
        let record = TurnRecord {
            number,
            start: self.question_start,
            time_ms: session.transcript.at(now_ms),
            question: self.question as u32,
            is_pinned: false,
            is_part: false,
            is_dated: self.is_dated,
            embedding: stored_bytes(embedding),
            tokens,
        };
        session.add_turn(&record);
        session.condensing.told();
        if let Some(undo) = undo {
            let condensing = &mut session.condensing;
            condensing.give_back(undo.rebuild, number, &record.tokens);
            runtime.close(undo.backup)?;
        }
        let save = session
            .begin_save(runtime)
            .map(|save| TurnSave::Started(Box::new(save)));
        session.is_answering = true;
        let held = runtime.stats(session.residency.sequence);
        let context = ContextReport {
            bytes: held.map_or(0, |stats| stats.bytes as u64),
            ..self.context
        };
        let answer = TurnAnswer {
            text: generation.text.clone(),
            tokens: generation.tokens.clone(),
            finish: generation.finish,
            turn: Some(number),
            generation,
            context,
        };
        Ok(EndedTurn {
            session: self.session,
            answer,
            now_ms,
            save: save.unwrap_or(TurnSave::Done),
        })
    }
}

/// A turn that is part of its session and may not be durable yet. The session does nothing else until [`Sessions::finish`].
#[must_use]
pub struct EndedTurn {
    session: SessionId,
    answer: TurnAnswer,
    now_ms: u64,
    save: TurnSave,
}

enum TurnSave {
    Done,
    Started(Box<StartedSave>),
    Running(Box<RunningSave>),
}

impl EndedTurn {
    /// Lets another thread wait for the disk.
    pub fn save_beside(self) -> EndedTurn {
        let save = match self.save {
            TurnSave::Started(save) => TurnSave::Running(Box::new(save.start())),
            save => save,
        };
        EndedTurn { save, ..self }
    }

    /// Whether [`Sessions::finish`] would not wait.
    pub fn is_saved(&self) -> bool {
        match &self.save {
            TurnSave::Done => true,
            TurnSave::Started(_) => false,
            TurnSave::Running(save) => save.has_ended(),
        }
    }

    /// Waits until it is saved, at most this long.
    pub fn wait_for(&self, time: Duration) {
        if let TurnSave::Running(save) = &self.save {
            save.wait_for(time);
        }
    }
}

impl Sessions {
    /// One turn: reads the question, generates the answer, saves both. On an error the conversation is as it was.
    #[allow(clippy::too_many_arguments)]
    pub fn say(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        now_ms: u64,
        sampler: &mut Sampler,
        options: &GenerateOptions,
        tell: &mut dyn FnMut(GenerateEvent<'_>) -> ControlFlow<()>,
    ) -> SessionResult<TurnAnswer> {
        self.work(runtime, id, STEP_TOKENS_MAX)?;
        let asked = AskedQuestion::new(text, now_ms);
        let mut turn = self.begin(runtime, id, asked, options)?;
        while turn.telling().is_some() {
            turn = self.read_part(runtime, turn)?;
        }
        let per_token = self.options().condense_per_token;
        let TurnInProgress {
            stage, prepared, ..
        } = &mut turn;
        let sequence = prepared.sequence;
        let decode = &mut |runtime: &mut Runtime, id, token| match prepared.undo.rebuild() {
            Some(rebuild) => rebuild.decode_with(runtime, id, token, per_token),
            None => runtime.decode(id, token).map(|_| ()),
        };
        let driven = match stage {
            Stage::Answering(completion) => {
                drive(runtime, sequence, completion, sampler, tell, decode)
            }
            Stage::Telling { .. } | Stage::Closing { .. } => Ok(GenerateTimes::default()),
        };
        match driven {
            Ok(took) => {
                let turn = self.conclude(runtime, turn, took, tell)?;
                self.end(runtime, turn, None)
            }
            Err(error) => {
                self.abandon(runtime, turn)?;
                Err(error.into())
            }
        }
    }

    /// Prepares a turn whose answer the caller computes. The question is embedded here unless the caller has done so.
    pub fn begin(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        asked: AskedQuestion<'_>,
        options: &GenerateOptions,
    ) -> SessionResult<TurnInProgress> {
        self.follow_now(runtime, id)?;
        let session = self.session_mut(runtime, id)?;
        let answer = session.limits.answer(options.tokens_max)?;
        let date = session.settings().date_tokens();
        let limits = session.limits.with_shorter_parts(date);
        let pinned = session.transcript.turns().filter(|turn| turn.is_pinned);
        let pinned: u64 = pinned.map(|turn| turn.tokens()).sum();
        let room = limits.capacity.saturating_sub(pinned as usize);
        let beside = answer + self.ending_tokens()? + 1 + date;
        let message = Message {
            rest: message_parts(self.layout(), asked.text, &limits, room, beside)?,
            told: Vec::new(),
            embedding: None,
            options: GenerateOptions {
                tokens_max: Some(answer),
                ..options.clone()
            },
            answer,
        };
        self.begin_part(runtime, id, message, asked)
    }

    /// Begins with the next part of a message. On an error the parts before it are taken back.
    fn begin_part(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        mut message: Message,
        asked: AskedQuestion<'_>,
    ) -> SessionResult<TurnInProgress> {
        let text = message.rest.pop_front().unwrap_or_default();
        let (told, now_ms) = (message.told.clone(), asked.now_ms);
        let begun = match (message.rest.is_empty(), &told[..]) {
            (true, []) => self.begin_answer(runtime, id, asked, &message),
            // An embedding of the whole message is not one of its last part.
            (true, _) => {
                let last = AskedQuestion::new(&text, now_ms);
                self.begin_answer(runtime, id, last, &message)
            }
            (false, _) => self.begin_telling(runtime, id, &text, &mut message, now_ms),
        };
        let (prepared, stage) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                self.undo_dropped(runtime)?;
                let session = self.any_session_mut(id)?;
                session.is_answering = false;
                session.take_back(runtime, &told)?;
                return Err(error);
            }
        };
        self.any_session_mut(id)?.is_answering = true;
        Ok(TurnInProgress {
            stage,
            text,
            now_ms,
            prepared,
            message,
        })
    }

    fn begin_answer(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        asked: AskedQuestion<'_>,
        message: &Message,
    ) -> SessionResult<(PreparedTurn, Stage)> {
        let (answer, told) = (message.answer, message.told.clone());
        let mut prepared = self.prepare(runtime, id, asked, answer, told)?;
        let (sequence, options) = (prepared.sequence, &message.options);
        let completion = Completion::new(runtime, sequence, &prepared.prompt, options)?;
        let session = self.session_mut(runtime, id)?;
        let rebuild = session.condensing.lend(prepared.question());
        prepared.undo.set_rebuild(rebuild);
        Ok((prepared, Stage::Answering(completion)))
    }

    fn begin_telling(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        message: &mut Message,
        now_ms: u64,
    ) -> SessionResult<(PreparedTurn, Stage)> {
        self.hold_for(runtime, id)?;
        let (layout, encoder) = (self.shared_layout(), self.encoder());
        let date_ms = self.any_session(id)?.date_ms(now_ms);
        let tokens = layout.fact(&dated(text, date_ms))?;
        let question = Question {
            // The parts before it are what it goes on from.
            text: "",
            coming: tokens.len() as u64,
            tokens,
            is_dated: date_ms.is_some(),
            embedding: None,
            has_encoder: encoder.is_some(),
            told: message.told.clone(),
        };
        let dropped = self.dropped();
        let session = self.session_mut(runtime, id)?;
        let prepared = PreparedTurn::new(runtime, id, session, question, &layout, &dropped)?;
        message.embedding = encoder.map(|encoder| embed_later(encoder, text.to_owned()));
        let tokens = prepared.prompt.clone();
        Ok((prepared, Stage::Telling { tokens, read: 0 }))
    }

    /// Makes a part that was read a turn, and begins with the next.
    fn end_part(
        &mut self,
        runtime: &mut Runtime,
        turn: TurnInProgress,
    ) -> SessionResult<TurnInProgress> {
        let TurnInProgress {
            prepared,
            mut message,
            now_ms,
            ..
        } = turn;
        let id = prepared.session;
        // An encoder that panicked gives no embedding.
        let embedding = message
            .embedding
            .take()
            .and_then(|thread| thread.join().ok());
        let session = self.any_session_mut(id)?;
        let number = prepared.commit_part(runtime, session, embedding.flatten(), now_ms)?;
        message.told.push(number);
        self.begin_part(runtime, id, message, AskedQuestion::new("", now_ms))
    }

    /// Reads the part of a message that is being told, and begins with the next.
    fn read_part(
        &mut self,
        runtime: &mut Runtime,
        mut turn: TurnInProgress,
    ) -> SessionResult<TurnInProgress> {
        let tokens = turn.pending().to_vec();
        if let Err(error) = feed(runtime, turn.sequence(), &tokens) {
            self.abandon(runtime, turn)?;
            return Err(error);
        }
        turn.read(tokens.len());
        self.end_part(runtime, turn)
    }

    /// Ends the answer, where it is: what is left to read is its ending. After a part of a message, begins with the next.
    /// On an error the turn is undone.
    pub fn conclude(
        &mut self,
        runtime: &mut Runtime,
        turn: TurnInProgress,
        took: GenerateTimes,
        tell: &mut dyn FnMut(GenerateEvent<'_>) -> ControlFlow<()>,
    ) -> SessionResult<TurnInProgress> {
        let completion = match turn.stage {
            Stage::Answering(completion) => completion,
            Stage::Telling { .. } => return self.end_part(runtime, turn),
            stage => return Ok(TurnInProgress { stage, ..turn }),
        };
        let generation = conclude(completion, took, tell);
        let tokens = match generation.tokens.is_empty() {
            true => Ok(Vec::new()),
            false => self.ending_of(runtime, &generation),
        };
        match tokens {
            Ok(tokens) => {
                let stage = Stage::Closing {
                    generation,
                    tokens,
                    read: 0,
                };
                Ok(TurnInProgress { stage, ..turn })
            }
            Err(error) => {
                drop(turn.prepared);
                self.undo_dropped(runtime)?;
                Err(error)
            }
        }
    }

    /// Makes question and answer a turn of the session, and saves it. The ending is read first, where the caller has not done
    /// so. An answer that was cancelled before its first token makes no turn. Both are embedded here unless the caller has
    /// done so.
    pub fn end(
        &mut self,
        runtime: &mut Runtime,
        turn: TurnInProgress,
        embedding: Option<Embedding>,
    ) -> SessionResult<TurnAnswer> {
        let ended = self.end_unsaved(runtime, turn, embedding)?;
        self.finish(runtime, ended)
    }

    /// The same as far as it needs no disk; [`Sessions::finish`] does the rest.
    pub fn end_unsaved(
        &mut self,
        runtime: &mut Runtime,
        turn: TurnInProgress,
        embedding: Option<Embedding>,
    ) -> SessionResult<EndedTurn> {
        let said = turn.said();
        let TurnInProgress {
            stage,
            now_ms,
            prepared,
            ..
        } = turn;
        let (generation, rest) = stage.end();
        let Some(said) = said else {
            let (session, context) = (prepared.session, prepared.context.clone());
            drop(prepared);
            self.undo_dropped(runtime)?;
            let answer = TurnAnswer {
                text: String::new(),
                tokens: Vec::new(),
                finish: generation.finish,
                generation,
                turn: None,
                context,
            };
            return Ok(EndedTurn {
                session,
                answer,
                now_ms,
                save: TurnSave::Done,
            });
        };
        let embedding = embedding.or_else(|| self.encoder()?.embed(&said).ok());
        self.read_and_commit(runtime, prepared, &rest, generation, embedding, now_ms)
    }

    /// Waits until a turn is saved, and lets its session go on.
    pub fn finish(&mut self, runtime: &mut Runtime, ended: EndedTurn) -> SessionResult<TurnAnswer> {
        let EndedTurn {
            session: id,
            mut answer,
            now_ms,
            save,
        } = ended;
        let session = self.any_session_mut(id)?;
        match save {
            TurnSave::Done => {}
            TurnSave::Started(save) => session.end_save(save.run()),
            TurnSave::Running(save) => session.end_save(save.wait()),
        }
        session.is_answering = false;
        if answer.turn.is_some() {
            answer.context.unsaved = session.log.unsaved().cloned();
            self.keep_limits_now_and_then(now_ms);
            self.follow_after(runtime, id);
        }
        Ok(answer)
    }

    /// Undoes a turn now; dropping it would do so at the next call.
    pub fn abandon(&mut self, runtime: &mut Runtime, turn: TurnInProgress) -> SessionResult {
        drop(turn);
        self.undo_dropped(runtime)
    }

    /// Adds a turn whose answer is known: a conversation that took place elsewhere.
    pub fn tell(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        answer: &str,
        now_ms: u64,
    ) -> SessionResult<u64> {
        let plain = EncodeOptions {
            add_special: false,
            parse_special: false,
        };
        let tokens = runtime.model().tokenizer().encode(answer, plain)?;
        let session = self.session_mut(runtime, id)?;
        let count = tokens.len();
        session.limits.check_told_answer(count)?;
        let asked = AskedQuestion::new(text, now_ms);
        let prepared = self.prepare(runtime, id, asked, count, Vec::new())?;
        let generation = Generation {
            text: answer.to_owned(),
            tokens,
            finish: Finish::Stop,
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
        };
        let mut all = prepared.prompt.clone();
        all.extend_from_slice(&generation.tokens[..generation.tokens.len() - 1]);
        all.extend(self.ending_of(runtime, &generation)?);
        let encoder = self.encoder();
        let said = exchange(text, &generation);
        let embedding = encoder.and_then(|encoder| encoder.embed(&said).ok());
        let ended = self.read_and_commit(runtime, prepared, &all, generation, embedding, now_ms)?;
        let answer = self.finish(runtime, ended)?;
        Ok(answer.turn.unwrap_or_default())
    }

    /// Lets the caller look at the sequence right behind a question. The conversation does not change.
    pub fn peek<T>(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        look: &mut dyn FnMut(&mut Runtime, SequenceId) -> Result<T, StepError>,
    ) -> SessionResult<(T, ContextReport)> {
        let answer = self.session_mut(runtime, id)?.limits.answer_usual;
        let asked = AskedQuestion::new(text, 0);
        let prepared = self.prepare(runtime, id, asked, answer, Vec::new())?;
        let context = prepared.context.clone();
        let sequence = prepared.sequence;
        let found = feed(runtime, sequence, &prepared.prompt)
            .and_then(|()| look(runtime, sequence).map_err(SessionError::from));
        drop(prepared);
        self.undo_dropped(runtime)?;
        Ok((found?, context))
    }

    /// How the turns of a session are ranked for a question, by their numbers; those for which nothing speaks are left
    /// out. `embedding` is the question's.
    pub fn rank_turns(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        embedding: Option<&QuestionEmbedding>,
    ) -> SessionResult<Vec<(u64, Rank)>> {
        self.index_turns(runtime, id)?;
        let layout = self.shared_layout();
        let session = self.session_mut(runtime, id)?;
        let question = RankedQuestion { text, embedding };
        let ranks = session.ranks(&layout, &question)?;
        let turns = session.transcript.turns().map(|turn| turn.number);
        let ranked = turns
            .zip(ranks)
            .filter_map(|(number, rank)| Some((number, rank?)));
        Ok(ranked.collect())
    }

    /// Bytes that the sequence will hold until this turn is over, at most, and whether the budget has them.
    pub(crate) fn promise(
        &self,
        runtime: &Runtime,
        turn: &TurnInProgress,
    ) -> SessionResult<(usize, bool)> {
        let (sequence, ending) = (turn.sequence(), self.ending_tokens()? + 1);
        let coming = (turn.pending().len() + turn.message.answer + ending) as u64;
        let mut bytes = promised_bytes(runtime, sequence, coming)?;
        if turn.telling().is_some() {
            // With its parts and the answer the session may fill its capacity.
            let capacity = self.any_session(turn.session())?.limits.capacity as u64;
            let (whole, _) = self.turn_needs(runtime, turn.session(), capacity)?;
            bytes = bytes.max(whole);
        }
        Ok((bytes, fits(runtime, Some(sequence), coming)?))
    }

    /// Brings the index of turns up to date, if the budget has room for it.
    fn index_turns(&mut self, runtime: &mut Runtime, id: SessionId) -> SessionResult {
        let (layout, has_encoder) = (self.shared_layout(), self.has_encoder());
        let session = self.session_mut(runtime, id)?;
        session.index_turns(runtime, &layout, has_encoder)?;
        if self.hold(runtime).is_err() {
            // It can be made again.
            self.session_mut(runtime, id)?.index.clear();
        }
        Ok(())
    }

    fn prepare(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        asked: AskedQuestion<'_>,
        answer: usize,
        told: Vec<u64>,
    ) -> SessionResult<PreparedTurn> {
        let (layout, encoder) = (self.shared_layout(), self.encoder());
        self.index_turns(runtime, id)?;
        self.hold_for(runtime, id)?;
        let date_ms = self.any_session(id)?.date_ms(asked.now_ms);
        let tokens = || match (asked.tokens, date_ms) {
            (Some(tokens), None) => Ok(tokens.to_vec()),
            // Those of the caller have no date.
            _ => layout.question(&dated(asked.text, date_ms)),
        };
        // Without an encoder turns are not judged, even if the caller has an embedding.
        let (tokens, embedding) = match (asked.embedding, &encoder) {
            (Some(embedding), Some(_)) => (tokens(), Ok(Some(embedding.clone()))),
            (_, encoder) => embed_while(encoder.as_deref(), asked.text, tokens),
        };
        let (tokens, embedding) = (tokens?, embedding?);
        let ending = self.ending_tokens()? + 1;
        let question = Question {
            text: asked.text,
            coming: (tokens.len() + answer + ending) as u64,
            tokens,
            is_dated: date_ms.is_some(),
            embedding,
            has_encoder: encoder.is_some(),
            told,
        };
        let dropped = self.dropped();
        let session = self.session_mut(runtime, id)?;
        PreparedTurn::new(runtime, id, session, question, &layout, &dropped)
    }

    /// Reads the last tokens of a turn and commits it, or undoes it. It is not saved yet.
    fn read_and_commit(
        &mut self,
        runtime: &mut Runtime,
        prepared: PreparedTurn,
        rest: &[u32],
        generation: Generation,
        embedding: Option<Embedding>,
        now_ms: u64,
    ) -> SessionResult<EndedTurn> {
        let read = match rest {
            [] => Ok(()),
            rest => feed(runtime, prepared.sequence, rest),
        };
        let ending = read.and_then(|()| self.ending_of(runtime, &generation));
        let ending = match ending {
            Ok(ending) => ending,
            Err(error) => {
                drop(prepared);
                self.undo_dropped(runtime)?;
                return Err(error);
            }
        };
        let session = self.any_session_mut(prepared.session)?;
        prepared.commit(runtime, session, generation, ending, embedding, now_ms)
    }

    /// Tokens to read behind an answer so that it ends as the template ends it: the last sampled token, which the
    /// sequence does not have yet, and the markers.
    fn ending_of(&self, runtime: &Runtime, generation: &Generation) -> SessionResult<Vec<u32>> {
        let ending = self.layout().ending()?;
        let Some(&last) = generation.tokens.last() else {
            return Ok(ending.to_vec());
        };
        // An answer that ended by itself has the first token of its ending already.
        let is_end = runtime.model().tokenizer().is_end(last) && ending.first() == Some(&last);
        let own = (!is_end).then_some(last);
        Ok(own.into_iter().chain(ending.iter().copied()).collect())
    }
}

/// The text that is embedded for a turn.
fn exchange(question: &str, generation: &Generation) -> String {
    format!("{question}\n{}", generation.text)
}

/// An answer that was cancelled before it began.
fn cancelled() -> Generation {
    Generation {
        text: String::new(),
        tokens: Vec::new(),
        finish: Finish::Cancelled,
        prefill: Duration::ZERO,
        decode: Duration::ZERO,
    }
}
