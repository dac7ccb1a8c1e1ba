//! The encoder as sessions see it: text in, embedding out.

use super::stems::split_by_person;
use haversack_engine::encoder::{Embedding, Encoder, EncoderError};
use haversack_memory::background;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Embeds texts, so that turns can be compared with a question. [`Encoder`] does.
pub trait Embed: Send + Sync {
    fn embed(&self, text: &str) -> Result<Embedding, EncoderError>;

    /// Memory that it holds, scratch included.
    fn bytes(&self) -> usize {
        0
    }

    /// Whether embedding is too fast to be worth a thread.
    fn is_quick(&self) -> bool {
        false
    }
}

impl Embed for Encoder {
    fn embed(&self, text: &str) -> Result<Embedding, EncoderError> {
        Encoder::embed(self, text)
    }

    fn bytes(&self) -> usize {
        self.heap_bytes() + self.scratch_bytes()
    }
}

/// Embeds a text on a thread of its own, while others work.
pub(crate) fn embed_later(encoder: Arc<dyn Embed>, text: String) -> JoinHandle<Option<Embedding>> {
    std::thread::spawn(move || {
        background::lower_priority();
        encoder.embed(&text).ok()
    })
}

/// A question as an encoder has it.
#[derive(Clone, Debug)]
pub struct QuestionEmbedding {
    pub(super) whole: Embedding,
    /// Of a question about "my dentist": who that is, and what is asked of them.
    pub(super) parts: Option<Box<[Embedding; 2]>>,
}

impl QuestionEmbedding {
    pub fn new(encoder: &dyn Embed, question: &str) -> Result<QuestionEmbedding, EncoderError> {
        let parts = match split_by_person(question) {
            Some([who, what]) => Some(Box::new([encoder.embed(&who)?, encoder.embed(&what)?])),
            None => None,
        };
        Ok(QuestionEmbedding {
            whole: encoder.embed(question)?,
            parts,
        })
    }

    pub fn whole(&self) -> &Embedding {
        &self.whole
    }
}

/// Runs `other` while the encoder embeds a question on a thread of its own.
pub(super) fn embed_while<T>(
    encoder: Option<&dyn Embed>,
    question: &str,
    other: impl FnOnce() -> T,
) -> (T, Result<Option<QuestionEmbedding>, EncoderError>) {
    let Some(encoder) = encoder else {
        return (other(), Ok(None));
    };
    std::thread::scope(|scope| {
        let embedding = scope.spawn(|| QuestionEmbedding::new(encoder, question));
        let value = other();
        // If the encoder panicked, nothing is judged.
        let embedding = embedding.join().map_or(Ok(None), |e| e.map(Some));
        (value, embedding)
    })
}
