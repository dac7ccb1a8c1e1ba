//! Placeholder until the reader is merged.
