//! What is known so far, one JSON line for each result, so that an interrupted comparison goes on where it
//! was.
//!
//! ```text
//! {"haversack_compare":1,"settings":"…","model":"…","seed":0}     must be the same, or the file is refused
//! {"at":"kl/2048/0/0/3fa9…","result":{…}}                        one for each result, appended when it is there
//! ```
//!
//! A last line that was cut off is dropped. Numbers are kept as the hexadecimal digits of their bits: a
//! report from a file is the report of the run, bit for bit. Who is compared, and on how many windows and
//! prompts, is not part of the settings: results carry what they are of, so that more can be added to a
//! comparison that is done.

use crate::error::usage;
use anyhow::{Context, Result, anyhow};
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;

#[derive(Default)]
pub struct State {
    results: BTreeMap<String, Json>,
    /// `None`: kept nowhere.
    file: Option<File>,
}

impl State {
    /// From a file that may be there already, with the same header.
    pub fn open(path: &Path, header: &Json) -> Result<State> {
        let name = || format!("cannot use {}", path.display());
        let text = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(anyhow::Error::new(error).context(name())),
        };
        let end = text.iter().rposition(|&b| b == b'\n');
        let whole = end.map_or(0, |at| at + 1);
        let text = String::from_utf8_lossy(&text[..whole]).into_owned();
        let mut lines = text.lines();
        if let Some(first) = lines.next() {
            let found: Option<Json> = serde_json::from_str(first).ok();
            if found.as_ref() != Some(header) {
                return Err(usage(format!(
                    "{} is of {}; accepted: the same settings, or another --out",
                    path.display(),
                    difference(found.as_ref(), header)
                )));
            }
        }
        let mut results = BTreeMap::new();
        for (i, line) in lines.enumerate() {
            let entry: Option<Json> = serde_json::from_str(line).ok();
            let entry = entry.and_then(|mut entry| {
                let at = entry["at"].as_str()?.to_owned();
                Some((at, entry["result"].take()))
            });
            let (at, result) =
                entry.ok_or_else(|| anyhow!("{}: line {} is no result", path.display(), i + 2))?;
            results.insert(at, result);
        }
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.with_context(name)?;
        file.set_len(whole as u64).with_context(name)?;
        let mut state = State {
            results,
            file: Some(file),
        };
        if whole == 0 {
            state.append(header)?;
        }
        Ok(state)
    }

    pub fn get(&self, at: &str) -> Option<&Json> {
        self.results.get(at)
    }

    pub fn has(&self, at: &str) -> bool {
        self.results.contains_key(at)
    }

    pub fn put(&mut self, at: String, result: Json) -> Result<()> {
        self.append(&json!({ "at": at, "result": result }))?;
        self.results.insert(at, result);
        Ok(())
    }

    /// In one write, so that a line is there or not.
    fn append(&mut self, line: &Json) -> Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        file.write_all(text.as_bytes())
            .context("cannot write the state of the comparison")
    }
}

/// What a file is of instead.
fn difference(found: Option<&Json>, wanted: &Json) -> &'static str {
    let differs = |key: &str| found.is_some_and(|found| found[key] != wanted[key]);
    match found {
        None => "something else",
        Some(_) if differs("haversack_compare") => "another version",
        Some(_) if differs("model") => "another model",
        Some(_) if differs("seed") => "another seed",
        Some(_) => "other settings",
    }
}

/// A short name of anything that can be written down.
pub fn digest(text: &str) -> String {
    let hash = Sha256::digest(text.as_bytes());
    let digits = hash.iter().take(10).map(|byte| format!("{byte:02x}"));
    digits.collect()
}

pub fn number(value: f64) -> Json {
    Json::String(format!("{:016x}", value.to_bits()))
}

pub fn as_number(value: &Json) -> Option<f64> {
    let bits = u64::from_str_radix(value.as_str()?, 16).ok()?;
    Some(f64::from_bits(bits))
}

pub fn numbers(values: &[f32]) -> Json {
    let digits = values.iter().map(|x| format!("{:08x}", x.to_bits()));
    Json::String(digits.collect())
}

pub fn as_numbers(value: &Json) -> Option<Vec<f32>> {
    let digits = value.as_str()?.as_bytes().chunks(8);
    let bits = |eight| u32::from_str_radix(std::str::from_utf8(eight).ok()?, 16).ok();
    let numbers = digits.map(|eight| bits(eight).map(f32::from_bits));
    numbers.collect()
}

pub fn bytes(values: &[u8]) -> Json {
    Json::String(values.iter().map(|byte| format!("{byte:02x}")).collect())
}

pub fn as_bytes(value: &Json) -> Option<Vec<u8>> {
    let digits = value.as_str()?.as_bytes().chunks(2);
    let byte = |two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok();
    digits.map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_bit_for_bit() {
        let values = [0.1f32, -0.0, f32::MIN_POSITIVE / 3.0, 1e30];
        let back = as_numbers(&numbers(&values)).unwrap();
        assert!(
            values
                .iter()
                .zip(&back)
                .all(|(a, b)| a.to_bits() == b.to_bits())
        );
        for value in [0.1f64, 1.0 / 3.0, -7e-300] {
            assert_eq!(
                as_number(&number(value)).map(f64::to_bits),
                Some(value.to_bits())
            );
        }
        assert_eq!(as_bytes(&bytes(&[0, 7, 255])), Some(vec![0, 7, 255]));
        assert_eq!(as_number(&json!("xyz")), None);
    }

    #[test]
    fn a_cut_line_is_dropped_and_another_header_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.jsonl");
        let header = json!({"haversack_compare": 1, "settings": "a", "model": "m", "seed": 1});
        let mut state = State::open(&path, &header).unwrap();
        state.put("x".into(), json!({"n": 1})).unwrap();
        state.put("y".into(), json!({"n": 2})).unwrap();
        drop(state);
        let length = fs::metadata(&path).unwrap().len();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(length - 3).unwrap();
        let mut state = State::open(&path, &header).unwrap();
        assert!(state.has("x") && !state.has("y"));
        state.put("y".into(), json!({"n": 3})).unwrap();
        drop(state);
        let state = State::open(&path, &header).unwrap();
        assert_eq!(state.get("y"), Some(&json!({"n": 3})));
        for (key, what) in [
            ("settings", "settings"),
            ("model", "model"),
            ("seed", "seed"),
        ] {
            let mut other = header.clone();
            other[key] = json!("b");
            let error = State::open(&path, &other).err().unwrap().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
