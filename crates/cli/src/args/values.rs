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
        let accepted = format!("a whole number in {min}..={max}");
        let is_in = |n: &usize| (min..=max).contains(&(*n as u64));
        value(text, is_in, &accepted)
    }
}

/// `all`, `threshold=F` or `top-k=N`.
pub fn relevance(text: &str) -> Result<Relevance, String> {
    text.parse()
}

/// What `is_right`.
pub fn value<T: FromStr>(
    text: &str,
    is_right: impl FnOnce(&T) -> bool,
    accepted: &str,
) -> Result<T, String> {
    let value = text.parse().ok().filter(is_right);
    value.ok_or_else(|| format!("accepted: {accepted}"))
}

pub fn between<const MIN: i32, const MAX: i32>(text: &str) -> Result<f32, String> {
    let accepted = format!("a number from {MIN} to {MAX}");
    value(text, |n| (MIN as f32..=MAX as f32).contains(n), &accepted)
}

pub fn above_zero(text: &str) -> Result<f32, String> {
    let accepted = "a number from 0.01 to 100";
    value(text, |n| (0.01..=100.0).contains(n), accepted)
}

pub fn share(text: &str) -> Result<f32, String> {
    value(text, |n| *n > 0.0 && *n <= 1.0, "a number above 0, up to 1")
}

/// A place within a window: its beginning, but not its end.
pub fn fraction(text: &str) -> Result<f64, String> {
    let accepted = "a number from 0 up to, but not including, 1";
    value(text, |n| (0.0..1.0).contains(n), accepted)
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
    let is_known = |text: &String| TYPES.contains(&text.as_str());
    value(text, is_known, &TYPES.join(", "))
}

/// A time in milliseconds, from a whole number with a unit.
pub fn age(text: &str) -> Result<u64, String> {
    const ACCEPTED: &str =
        "accepted: a whole number from 1 on with s, m, h or d, such as 12h or 90d";
    let seconds = match text.char_indices().next_back() {
        Some((_, 's')) => 1,
        Some((_, 'm')) => 60,
        Some((_, 'h')) => 3600,
        Some((_, 'd')) => 86_400,
        _ => return Err(ACCEPTED.into()),
    };
    let number: Option<u64> = text[..text.len() - 1].parse().ok().filter(|n| *n > 0);
    let time_ms = number.and_then(|n| n.checked_mul(seconds * 1000));
    time_ms.ok_or_else(|| ACCEPTED.into())
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
        const ACCEPTED: &str = "accepted: whole numbers from 0 on, such as \"1,2,3\"";
        let words = text.split([',', ' ', '\n', '\t']);
        let id = |word: &str| {
            let id = word.parse();
            id.map_err(|_| format!("'{word}' is not a token id; {ACCEPTED}"))
        };
        let ids = words.filter(|word| !word.is_empty()).map(id);
        match ids.collect::<Result<Vec<u32>, String>>()? {
            ids if ids.is_empty() => Err(format!("no token ids; {ACCEPTED}")),
            ids => Ok(Ids(ids)),
        }
    }
}
