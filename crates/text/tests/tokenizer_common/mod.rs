//! Fixtures and models shared by the tokenizer tests.
#![allow(dead_code)]

use serde_json::Value;
use std::path::{Path, PathBuf};

pub fn fixture(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/tokenizer")
        .join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

pub fn strings(list: &Value) -> Vec<String> {
    let list = list.as_array().unwrap();
    list.iter()
        .map(|s| s.as_str().unwrap().to_string())
        .collect()
}

pub fn ids(list: &Value) -> Vec<u32> {
    let list = list
        .as_array()
        .unwrap_or_else(|| panic!("not a list: {list}"));
    list.iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

pub fn id_lists(lists: &Value) -> Vec<Vec<u32>> {
    lists.as_array().unwrap().iter().map(ids).collect()
}

/// A catalogue model, where it has been fetched: `$HAVERSACK_TEST_MODELS`, or the data directory.
pub fn model(file: &str) -> Option<PathBuf> {
    let mut places: Vec<PathBuf> = Vec::new();
    let var = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    places.extend(var("HAVERSACK_TEST_MODELS"));
    places.extend(var("HAVERSACK_HOME").map(|home| home.join("models")));
    places.extend(var("XDG_DATA_HOME").map(|data| data.join("haversack/models")));
    places.extend(var("HOME").map(|home| home.join(".local/share/haversack/models")));
    let found = places.iter().map(|p| p.join(file)).find(|p| p.exists());
    if found.is_none() {
        skipped(&format!(
            "no {file} in HAVERSACK_TEST_MODELS or the data directory"
        ));
    }
    found
}

/// Printed even for tests that pass: the harness holds back `eprintln!`, not the stream itself.
pub fn skipped(why: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}
