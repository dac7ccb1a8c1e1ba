//! What a vocabulary takes is said before it is made, and holds.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{real, tiny};
use haversack_grammar::Vocabulary;
use haversack_testing::heap::{self, CountingAllocator};
use haversack_text::tokenizer::Tokenizer;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator;

fn holds(name: &str, tokenizer: &Tokenizer) -> (f64, f64) {
    let needs = Vocabulary::needs(tokenizer);
    let before = heap::held_bytes();
    heap::take_peak_bytes();
    let vocabulary = Vocabulary::new(tokenizer).unwrap();
    let (most, kept) = (
        heap::take_peak_bytes() - before,
        heap::held_bytes() - before,
    );
    drop(vocabulary);
    let ids = 0..tokenizer.len() as u32;
    let pieces: usize = ids.map(|id| tokenizer.piece_bytes(id).len()).sum();
    println!(
        "{name}: {} tokens, {pieces} bytes: {most} while it is made, {kept} kept; {needs:?} said",
        tokenizer.len()
    );
    assert!(most <= needs.making && kept <= needs.kept, "{name}");
    (
        needs.making as f64 / most as f64,
        needs.kept as f64 / kept as f64,
    )
}

/// One test: everything in the process is counted.
#[test]
fn what_is_said_holds() {
    holds("tiny", tiny("llama").tokenizer());
    for file in [
        "smollm2-135m-instruct-q4_1.gguf",
        "gemma-3-270m-q4_k_m.gguf",
    ] {
        let Some(model) = real(file) else {
            continue;
        };
        let (making, kept) = holds(file, model.tokenizer());
        // Said too much would turn people away for nothing.
        assert!(making < 1.5 && kept < 1.5, "{file}: {making} {kept}");
    }
}
