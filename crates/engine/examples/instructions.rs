//! Instructions of decoded tokens, counted in an emulator, where hardware does not count them:
//!
//! ```text
//! RUSTFLAGS="--cfg rustix_use_libc" cargo build --release -p haversack --example instructions
//! valgrind --tool=callgrind --instr-atstart=no target/release/examples/instructions heavy|window|guardless
//! ```
//!
//! (Without that setting system calls are made in a way the emulator may not know.)
//!
//! Reads a prompt of 2304 tokens into 2048 rows, says so, and waits for a line: the moment for
//! `callgrind_control -i on`. Then it decodes 64 tokens, over two borders of blocks, where rows leave.
//!
//! The model has SmolLM2's layers, a fifth of them, and a fifth of its vocabulary: the prompt takes minutes in place
//! of hours there, and what a layer does weighs as much against the rest as it does in the whole.

use haversack_engine::runtime::options::Guarding;
use haversack_engine::{
    Codec, KvForm, KvOptions, LoadOptions, Model, Policy, Repack, Retention, Runtime,
    RuntimeOptions,
};
use haversack_kernels::format::WeightType;
use haversack_testing::models::{Arch, Mix, Rope, Spec};
use std::ops::ControlFlow;

const PROMPT: usize = 2304;
const ROWS: usize = 2048;
const DECODED: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_default();
    let (policy, guard) = match name.as_str() {
        "heavy" => (Policy::Heavy, Guarding::On),
        "guardless" => (Policy::Heavy, Guarding::Off),
        "window" => (Policy::Window, Guarding::Off),
        _ => return Err("usage: instructions heavy|guardless|window".into()),
    };
    let spec = Spec {
        name: "a fifth of SmolLM2".into(),
        arch: Arch::Llama,
        layers: 6,
        dim: 576,
        ffn: 1536,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        rope_dim: 64,
        rope_base: 100_000.0,
        rope: Rope::Plain,
        context: 8192,
        vocab_size: 49_152 / 5,
        tied: true,
        mix: Mix::All(WeightType::Q4_1),
        ..Spec::named("llama").ok_or("no model to start from")?
    };
    let file = std::env::temp_dir().join("haversack-instructions.gguf");
    if !file.exists() {
        spec.write_file(&file)?;
    }
    let load = LoadOptions {
        repack: Repack::Into(std::env::temp_dir().join("haversack-instructions")),
        ..LoadOptions::default()
    };
    let model = Model::load(&file, &load, &mut |_, _| ())?;
    let options = RuntimeOptions {
        threads: 1,
        kv: KvOptions::new(KvForm::both(Codec::Int4.form())),
        retention: Retention {
            policy,
            guard,
            anchors: Some(64),
            window: Some(ROWS - 64),
            ..Retention::default()
        },
        ..RuntimeOptions::default()
    };
    let mut runtime = Runtime::new(model, &options)?;
    let tokens = spec.ids(PROMPT + DECODED);
    let id = runtime.open()?;
    runtime.feed(id, &tokens[..PROMPT], &mut |done| {
        eprint!("\r{done}/{PROMPT}");
        ControlFlow::Continue(())
    })?;
    eprintln!("\n{} rows; a line to go on", runtime.stats(id)?.rows);
    std::io::stdin().read_line(&mut String::new())?;
    for token in &tokens[PROMPT..] {
        runtime.decode(id, *token)?;
    }
    println!("{} rows", runtime.stats(id)?.rows);
    Ok(())
}
