//! Bytes of the heap that tokenizers of real models hold. Alone in its process: the allocator counts every thread.

use haversack_gguf::Gguf;
use haversack_testing::heap::{CountingAllocator, held_bytes};
use haversack_text::tokenizer::Tokenizer;

mod tokenizer_common;

use tokenizer_common::model;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn a_tokenizer_holds_few_bytes() {
    for (file, bytes_max) in [
        ("smollm2-135m-instruct-q4_1.gguf", 8 << 20),
        ("gemma-3-270m-q4_k_m.gguf", 25 << 20),
    ] {
        let Some(path) = model(file) else { continue };
        let gguf = Gguf::open(path).unwrap();
        let before = held_bytes();
        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
        let held = held_bytes() - before;
        println!("{file}: {held} bytes, {} tokens", tokenizer.len());
        assert!(held <= bytes_max, "{file}: {held} bytes");
    }
}
