#![forbid(unsafe_code)]
//! Haversack runs language models from GGUF files inside a byte budget.

pub use haversack_cache as cache;
pub use haversack_conversations::{scheduler, session};
pub use haversack_engine as engine;
pub use haversack_gguf as gguf;
pub use haversack_kernels as kernels;
pub use haversack_memory as memory;
pub use haversack_text as text;

pub mod alerts;
pub mod speed;
