//! What is heard of an answer: its tokens as they come, and a report at its end.

use crate::channel::Receiver;
use crate::error::Error;
use haversack_conversations::scheduler::RequestReport;
use haversack_conversations::session::ContextReport;
use haversack_engine::runtime::Finish;
use haversack_engine::sample::{SampleError, logprob_of, logprobs_top};
use std::fmt;
use std::task::{self, Poll};
use std::time::Duration;

/// Events of requests that were submitted together, each with the index of its request.
pub struct EventReceiver(pub(crate) Receiver<(usize, AnswerEvent)>);

impl EventReceiver {
    /// Blocks for the next event. `None` before the last event of a request: it was cut off.
    pub fn recv(&mut self) -> Option<(usize, AnswerEvent)> {
        self.0.recv()
    }

    /// [`EventReceiver::recv`] for a future of your own.
    pub fn poll_next(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<(usize, AnswerEvent)>> {
        self.0.poll_recv(cx)
    }

    /// [`EventReceiver::recv`] as a future.
    pub async fn next(&mut self) -> Option<(usize, AnswerEvent)> {
        self.0.next().await
    }
}

/// What is heard of a request.
#[derive(Debug)]
pub enum AnswerEvent {
    /// A part of the prompt was read, where [`EventOptions::progress`](crate::EventOptions::progress) is set.
    PromptRead {
        /// Tokens read so far.
        done: usize,
        /// Tokens to read.
        total: usize,
    },
    /// A token was sampled.
    Token {
        /// Its number in the vocabulary.
        id: u32,
        /// What may be shown now: a part of a character or of a stop string is held back.
        text: String,
        /// Where [`EventOptions::logprobs`](crate::EventOptions::logprobs) is set.
        logprob: Option<Logprob>,
    },
    /// The last event of an answer that ended.
    Finished {
        /// The whole answer.
        text: String,
        /// Why it ended.
        finish: Finish,
        /// What it saw and what it cost.
        report: Report,
    },
    /// The only event of a request that answers nothing: the number of the new fact or state, 0 of a new conversation.
    SessionRead {
        /// Of the fact or state.
        number: u64,
    },
    /// The last event of an answer that failed.
    Failed(Error),
}

/// What an answer saw, what left memory for it, and what it cost.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Tokens sampled.
    pub tokens: usize,
    /// From the request to its first token; `None` where there was none.
    pub first_token: Option<Duration>,
    /// From the request to its end.
    pub time: Duration,
    /// What it was computed from.
    pub context: ContextSeen,
}

/// The context an answer was computed from.
#[derive(Clone, Debug)]
pub enum ContextSeen {
    /// Of a completion: it ended with the request.
    Completion(Box<RequestReport>),
    /// Of a conversation.
    Turn {
        /// `None` where the answer was cancelled before it began: the message is not part of the conversation then.
        number: Option<u64>,
        /// Which turns it saw, and where their keys and values were.
        context: Box<ContextReport>,
    },
}

impl Default for ContextSeen {
    fn default() -> ContextSeen {
        ContextSeen::Completion(Box::default())
    }
}

impl Report {
    /// Bytes of keys and values that the answer ended with: of the whole conversation, or of the completion.
    pub fn bytes(&self) -> u64 {
        match &self.context {
            ContextSeen::Completion(held) => {
                let usage = &held.usage;
                (usage.sinks_bytes + usage.near_bytes + usage.far_bytes) as u64
            }
            ContextSeen::Turn { context, .. } => context.bytes,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.time.as_secs_f64();
        write!(f, "{} tokens in {seconds:.2} s", self.tokens)?;
        if let Some(first) = self.first_token {
            write!(f, ", the first after {:.2} s", first.as_secs_f64())?;
        }
        match &self.context {
            ContextSeen::Completion(held) => {
                let (rows, left, reused) = (held.usage.rows, held.usage.evicted(), held.reused);
                write!(
                    f,
                    "; {rows} tokens in the cache, {left} left it, {reused} reused"
                )
            }
            ContextSeen::Turn { context, .. } => {
                let (saw, cached) = (context.kept, context.cached);
                write!(f, "; saw {saw} tokens, {cached} of them from the cache")?;
                let (masked, spilled) = (context.masked, context.spilled);
                write!(f, "; {masked} hidden, {spilled} on disk only")?;
                if !context.plan.is_empty() {
                    write!(f, "; {}", context.plan)?;
                }
                Ok(())
            }
        }
    }
}

/// How likely a token was, and the likeliest ones.
#[derive(Clone, Debug)]
pub struct Logprob {
    /// The token.
    pub id: u32,
    /// Natural logarithm of its probability.
    pub logprob: f64,
    /// The likeliest tokens with theirs, likeliest first.
    pub top: Vec<(u32, f64)>,
}

impl Logprob {
    pub(crate) fn new(id: u32, logits: &[f32], top: usize) -> Result<Logprob, SampleError> {
        Ok(Logprob {
            id,
            logprob: logprob_of(logits, id)?,
            top: match top {
                0 => Vec::new(),
                top => logprobs_top(logits, top)?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_of_all_tokens_add_up_to_one() {
        let logits = [0.5, -1.0, 3.0, 3.0, f32::NEG_INFINITY];
        let found = Logprob::new(1, &logits, 5).unwrap();
        let sum: f64 = found.top.iter().map(|(_, p)| p.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        let order: Vec<u32> = found.top.iter().map(|(id, _)| *id).collect();
        assert_eq!(order, [2, 3, 0, 1, 4]);
        assert_eq!(found.logprob, found.top[3].1);
        assert_eq!(Logprob::new(0, &logits, 2).unwrap().top.len(), 2);
        assert!(Logprob::new(0, &logits, 0).unwrap().top.is_empty());
    }
}
