//! Values of flags: numbers in a range and the like. An error says what is accepted.

use haversack::session::relevance::Relevance;
use std::str::FromStr;

pub const THREADS_MAX: u64 = 256;
/// Longer than any trained context; positions stay exact in f64 far beyond it.
pub const CONTEXT_MAX: u64 = 1 << 24;
/// A completion this long outlives its context; the number only has to be an honest one.
pub const TOKENS_MAX: u64 = (1 << 31) - 1;

/// A whole number in a range.
pub fn count(min: u64, max: u64) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync {
    move |text| {
        let number = text.parse::<u64>().ok().filter(|n| (min..=max).contains(n));
        number
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| format!("accepted: a whole number in {min}..={max}"))
    }
}

/// `all`, `threshold=F` or `top-k=N`.
pub fn relevance(text: &str) -> Result<Relevance, String> {
    let found = match text.split_once('=') {
        None if text == "all" => Some(Relevance::All),
        None if text == "top-k" => Some(Relevance::default()),
        Some(("threshold", n)) => {
            let n = n.parse::<f32>().ok().filter(|n| (-1.0..=1.0).contains(n));
            n.map(Relevance::Threshold)
        }
        Some(("top-k", n)) => {
            let n = n.parse::<usize>().ok().filter(|n| (1..=1024).contains(n));
            n.map(|turns| Relevance::Top {
                turns,
                hysteresis: 0.05,
                least: -1.0,
            })
        }
        _ => None,
    };
    found.ok_or_else(|| {
        "accepted: all, threshold=F with F from -1 to 1, top-k=N with N from 1 to 1024".to_owned()
    })
}

pub fn between<const MIN: i32, const MAX: i32>(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value >= MIN as f32 && value <= MAX as f32 => Ok(value),
        _ => Err(format!("accepted: a number from {MIN} to {MAX}")),
    }
}

pub fn above_zero(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if (0.01..=100.0).contains(&value) => Ok(value),
        _ => Err("accepted: a number from 0.01 to 100".into()),
    }
}

pub fn share(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value > 0.0 && value <= 1.0 => Ok(value),
        _ => Err("accepted: a number above 0, up to 1".into()),
    }
}

/// A place within a window: its beginning, but not its end.
pub fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..1.0).contains(&value) => Ok(value),
        _ => Err("accepted: a number from 0 up to, but not including, 1".into()),
    }
}

pub fn bias(text: &str) -> Result<(u32, f32), String> {
    const ACCEPTED: &str = "accepted: ID=BIAS with a token id and a number from -100 to 100";
    let (id, bias) = text.split_once('=').ok_or(ACCEPTED)?;
    let id = id.parse().map_err(|_| ACCEPTED)?;
    let bias = between::<-100, 100>(bias).map_err(|_| ACCEPTED)?;
    Ok((id, bias))
}

pub fn peer_kv(text: &str) -> Result<String, String> {
    const TYPES: [&str; 9] = [
        "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl",
    ];
    if TYPES.contains(&text) {
        Ok(text.into())
    } else {
        Err(format!("accepted: {}", TYPES.join(", ")))
    }
}

pub fn group(text: &str) -> Result<usize, String> {
    match text {
        "32" => Ok(32),
        "64" => Ok(64),
        _ => Err("accepted: 32, 64".into()),
    }
}

/// A list of token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids(pub Vec<u32>);

impl FromStr for Ids {
    type Err = String;

    fn from_str(text: &str) -> Result<Ids, String> {
        let ids: Result<Vec<u32>, String> = text
            .split([',', ' ', '\n', '\t'])
            .filter(|word| !word.is_empty())
            .map(|word| {
                word.parse()
                    .map_err(|_| format!("'{word}' is not a token id; accepted: whole numbers from 0 on, such as \"1,2,3\""))
            })
            .collect();
        match ids?.as_slice() {
            [] => Err("no token ids; accepted: whole numbers from 0 on, such as \"1,2,3\"".into()),
            ids => Ok(Ids(ids.to_vec())),
        }
    }
}
