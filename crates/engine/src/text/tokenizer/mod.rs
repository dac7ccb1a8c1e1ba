//! Tokenizers built from the vocabulary inside a GGUF file.
