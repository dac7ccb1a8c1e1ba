//! The encoder as sessions see it: text in, embedding out.

use haversack_engine::encoder::{Embedding, Encoder, EncoderError};

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
