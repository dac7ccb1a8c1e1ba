//! Watching memory: where the bytes are while a conversation grows, and what pressure changes.
//! `cargo run --release --example memory -- model.gguf`

use haversack::memory::bytes::human;
use haversack::{Engine, Error, Pressure};
use std::time::Duration;

fn show(engine: &Engine, when: &str) -> Result<(), Error> {
    let report = engine.memory()?;
    println!("{when}: {} held", human(report.ledger.total() as u64));
    for zone in &report.zones {
        println!(
            "  {:8} {:10} {}",
            zone.zone.name(),
            zone.form.k.codec,
            human(zone.bytes as u64)
        );
    }
    for sequence in &report.sequences {
        println!(
            "  {} tokens in {}",
            sequence.position,
            human(sequence.bytes as u64)
        );
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let model = std::env::args().nth(1).expect("usage: memory MODEL.gguf");
    let engine = Engine::open(model).memory("1G").start()?;
    let talk = engine.conversation("talk").open()?;
    show(&engine, "before the first message")?;
    for message in ["Tell me about rivers.", "And about mountains?"] {
        talk.say(message).max_tokens(64).run()?;
        show(&engine, message)?;
    }
    // What a phone's system says before it ends programs.
    engine.pressure(Pressure::Critical);
    std::thread::sleep(Duration::from_millis(200));
    show(&engine, "under pressure")?;
    for (_, change) in engine.metrics().last_device_changes {
        println!("{change}");
    }
    Ok(())
}
