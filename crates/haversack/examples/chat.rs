//! A chat in the terminal: `cargo run --release --example chat -- model.gguf`

use haversack::{Engine, Error};
use std::io::{BufRead, Write};

fn main() -> Result<(), Error> {
    let model = std::env::args().nth(1).expect("usage: chat MODEL.gguf");
    let engine = Engine::open(model).start()?;
    let chat = engine
        .conversation("chat")
        .system("You answer in one sentence.")
        .open()?;
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let mut answer = chat.say(line).max_tokens(200).temperature(0.7).send()?;
        for piece in answer.by_ref() {
            print!("{}", piece?);
            let _ = std::io::stdout().flush();
        }
        println!("\n[{}]", answer.report());
    }
    Ok(())
}
