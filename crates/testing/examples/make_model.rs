//! Writes synthetic models (see `load::gguf::synth`).
//!
//! ```text
//! make_model --list                          the names there are
//! make_model NAME OUT.gguf                   a tiny model
//! make_model --preset 1b|7b OUT.gguf         a benchmark shape
//!   --type TYPE     weight type, or q4_k_m; presets keep their output in Q6_K
//!   --seed N        other weights (default 1)
//!   --parts N       a split set OUT-00001-of-0000N.gguf
//! make_model --ids N NAME                    the test text of a model, as ids
//! make_model --hash NAME                     BLAKE3 of the file, as fixtures name it
//! ```

use haversack_kernels::format::WeightType;
use haversack_testing::models::{Mix, Spec};
use std::path::Path;

fn main() {
    if let Err(e) = run(std::env::args().skip(1).collect()) {
        eprintln!("make_model: {e}");
        std::process::exit(2);
    }
}

fn run(args: Vec<String>) -> Result<(), String> {
    let mut plain = Vec::new();
    let mut hash = false;
    let (mut preset, mut ty, mut seed, mut parts, mut ids) = (None, None, 1, None, None);
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let mut next = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--list" => {
                let types = WeightType::ALL.map(Spec::of_type);
                for spec in Spec::variants().iter().chain(&types) {
                    println!("{}", spec.name);
                }
                return Ok(());
            }
            "--hash" => hash = true,
            "--preset" => preset = Some(next()?),
            "--type" => ty = Some(mix(&next()?)?),
            "--seed" => seed = number(&next()?)?,
            "--parts" => parts = Some(number(&next()?)? as u16),
            "--ids" => ids = Some(number(&next()?)? as usize),
            _ => plain.push(arg),
        }
    }
    let mut plain = plain.into_iter();
    let mut spec = match preset.as_deref() {
        Some("1b") => Spec::preset_1b(ty.map_or(Mix::Q4KM, mostly)),
        Some("7b") => Spec::preset_7b(ty.map_or(Mix::Q4KM, mostly)),
        Some(other) => return Err(format!("preset {other}; there are 1b and 7b")),
        None => {
            let name = plain.next().ok_or("a name, or --list")?;
            let mut spec = Spec::named(&name).ok_or(format!("no model {name}; see --list"))?;
            spec.mix = ty.unwrap_or(spec.mix);
            spec
        }
    };
    spec.seed = seed;
    if let Some(count) = ids {
        let ids: Vec<String> = spec.ids(count).iter().map(u32::to_string).collect();
        println!("{}", ids.join(" "));
        return Ok(());
    }
    if hash {
        let bytes = spec.to_bytes().map_err(|e| e.to_string())?;
        println!("{}", blake3::hash(&bytes));
        return Ok(());
    }
    let out = plain.next().ok_or("a file to write")?;
    let written = match parts {
        Some(parts) => spec
            .write_split(Path::new(out.strip_suffix(".gguf").unwrap_or(&out)), parts)
            .map(drop),
        None => spec.write_file(Path::new(&out)),
    };
    written.map_err(|e| format!("{out}: {e}"))
}

fn mostly(mix: Mix) -> Mix {
    match mix {
        Mix::All(ty) if !ty.is_float() => Mix::Mostly(ty),
        other => other,
    }
}

fn mix(name: &str) -> Result<Mix, String> {
    if name.eq_ignore_ascii_case("q4_k_m") {
        return Ok(Mix::Q4KM);
    }
    WeightType::ALL
        .into_iter()
        .find(|t| t.name().eq_ignore_ascii_case(name))
        .map(Mix::All)
        .ok_or_else(|| format!("type {name}; there are q4_k_m, {}", all_types()))
}

fn all_types() -> String {
    WeightType::ALL.map(WeightType::name).join(", ")
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is not a number"))
}
