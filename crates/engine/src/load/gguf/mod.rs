//! Reading GGUF files, hostile ones included.
