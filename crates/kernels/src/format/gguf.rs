//! Blocks as they lie in a GGUF file, and the plain way to read them back as f32.
