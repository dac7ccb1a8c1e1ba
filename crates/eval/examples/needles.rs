//! Needles with several caches side by side:
//! `cargo run --release -p haversack-eval --example needles -- MODEL.gguf TEXT [CASES] [CODEC…]`

use haversack_engine::{Activations, Codec, KvForm, KvOptions, Retention, Runtime, RuntimeOptions};
use haversack_eval::{choice, needles};
use haversack_text::tokenizer::EncodeOptions;
use std::path::Path;

/// Of a case, the question included.
const TOKENS: usize = 1536;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (model, text) = (args.next(), args.next());
    let (Some(model), Some(text)) = (model, text) else {
        return Err("usage: needles MODEL.gguf TEXT [CASES] [CODEC…]".into());
    };
    let count: usize = args.next().map_or(Ok(20), |n| n.parse())?;
    let mut codecs: Vec<Codec> = vec![Codec::F16];
    for name in args {
        codecs.push(name.parse().map_err(|_| format!("no codec '{name}'"))?);
    }
    let model = haversack_eval::load(Path::new(&model))?;
    let plain = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    let filler = model
        .tokenizer()
        .encode(&std::fs::read_to_string(text)?, plain)?;
    let case = |number| needles::case(model.tokenizer(), &filler, TOKENS, 0, number);
    let cases: Vec<choice::Case> = (0..count).map(case).collect();
    let mut runtimes = Vec::new();
    for &codec in &codecs {
        let options = RuntimeOptions {
            activations: Activations::F32,
            kv: KvOptions::new(KvForm::both(codec.form())),
            retention: Retention::full(),
            ..RuntimeOptions::default()
        };
        runtimes.push((codec, Runtime::new(model.clone(), &options)?, 0.0, 0));
    }
    for (done, case) in cases.iter().enumerate() {
        for (_, runtime, sum, right) in &mut runtimes {
            for verdict in choice::judge(runtime, case)? {
                *sum += verdict.logprob;
                *right += usize::from(verdict.right);
            }
        }
        eprint!("\r{}/{}", done + 1, cases.len());
    }
    eprintln!();
    let n = cases.iter().map(|c| c.questions.len()).sum::<usize>() as f64;
    println!("codec       log p(right)   right");
    for (codec, _, sum, right) in &runtimes {
        let share = 100.0 * *right as f64 / n;
        println!("{:11} {:12.3} {share:6.1} %", codec.name(), sum / n);
    }
    Ok(())
}
