//! A cache policy of your own. A policy is a pure function: it looks at which blocks a sequence holds and says which
//! leave. Here: keep the first block and the last four, and every second block between them.
//! `cargo run --release --example custom_policy -- model.gguf`

use haversack::cache::policy::{EvictionPlan, Snapshot};
use haversack::engine::sample::{SampleOptions, Sampler};
use haversack::engine::{LoadOptions, Model, Retention, Runtime, RuntimeOptions};
use haversack::text::tokenizer::EncodeOptions;
use std::error::Error;
use std::ops::{ControlFlow, Range};

/// Tokens of a block.
const BLOCK: u64 = 32;

fn every_second_block(held: &Snapshot) -> Vec<Range<u64>> {
    let recent = held.position.saturating_sub(4 * BLOCK);
    let blocks = held.blocks.iter().map(|block| block.first_position);
    let leaves = |first: &u64| *first > 0 && first + BLOCK <= recent && (first / BLOCK) % 2 == 1;
    blocks
        .filter(leaves)
        .map(|first| first..first + BLOCK)
        .collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args()
        .nth(1)
        .expect("usage: custom_policy MODEL.gguf");
    let model = Model::load(path.as_ref(), &LoadOptions::default(), &mut |_, _| ())?;
    // The runtime evicts nothing by itself: this program decides.
    let options = RuntimeOptions {
        retention: Retention::managed(),
        ..RuntimeOptions::default()
    };
    let mut runtime = Runtime::new(model.clone(), &options)?;
    let text = "Once upon a time there was a small engine. ".repeat(6);
    let plain = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let mut tokens = model.tokenizer().encode(&text, plain)?;
    let sequence = runtime.open()?;
    runtime.feed(sequence, &tokens, &mut |_| ControlFlow::Continue(()))?;
    let mut sampler = Sampler::new(SampleOptions::default())?;
    let mut hidden: Vec<Range<u64>> = Vec::new();
    for _ in 0..128 {
        let token = sampler.sample(runtime.logits(), &tokens)?;
        tokens.push(token);
        runtime.decode(sequence, token)?;
        let held = runtime.store().snapshot(sequence)?;
        for gap in every_second_block(&held) {
            // A plan explains itself; hiding and dropping carries it out.
            println!("{}", EvictionPlan::without(&held, gap.clone()));
            hidden.push(gap.clone());
            hidden.sort_by_key(|range| range.start);
            runtime.hide(sequence, &hidden)?;
            runtime.drop_hidden(sequence, gap)?;
        }
    }
    let stats = runtime.stats(sequence)?;
    println!("{} tokens seen, {} rows kept", stats.position, stats.rows);
    Ok(())
}
