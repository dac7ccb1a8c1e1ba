//! JSON that several endpoints write.

use serde_json::Value;

/// What `json` makes of each.
pub fn list<T>(of: impl IntoIterator<Item = T>, json: impl FnMut(T) -> Value) -> Value {
    of.into_iter().map(json).collect()
}
