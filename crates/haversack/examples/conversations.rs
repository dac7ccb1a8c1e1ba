//! Several conversations at once in one memory budget, saved between runs:
//! `cargo run --release --example conversations -- model.gguf sessions/`

use haversack::{Engine, Error};

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: conversations MODEL.gguf SESSIONS_FOLDER";
    let (model, folder) = (args.next().expect(usage), args.next().expect(usage));
    let engine = Engine::open(model).memory("1G").sessions(folder).start()?;

    let messages = [
        ("anna", "My cat is called Miso."),
        ("ben", "I live in Lisbon."),
        ("chris", "I am learning to bake bread."),
    ];
    // All answers are computed in the same steps; a thread each reads them.
    std::thread::scope(|scope| {
        let threads = messages.map(|(name, message)| {
            let engine = engine.clone();
            scope.spawn(move || -> Result<(String, usize), Error> {
                let talk = engine.conversation(name).system("Be brief.").open()?;
                let text = talk.say(message).max_tokens(48).run()?;
                Ok((text, talk.turns()?.len()))
            })
        });
        for ((name, message), thread) in messages.iter().zip(threads) {
            let (text, turns) = thread.join().expect("a thread panicked")?;
            println!("{name}, turn {turns}\n  > {message}\n  {text}");
        }
        Ok(())
    })
}
