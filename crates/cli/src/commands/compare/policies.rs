//! Policies by name, with parameters from a file where one is given.
//!
//! ```toml
//! [window]              # parameters of a policy
//! anchors = 64
//!
//! [heavy-sum]           # a policy under a name of its own, for --policies
//! policy = "heavy"
//! score = "sum"         # or peak
//! positions = "auto"    # or compact, original
//! sinks = 4
//! recent = 64
//! ```

use crate::error::usage;
use anyhow::Result;
use haversack::Positions;
use haversack::run::options::Score;
use haversack_eval::contender::{POLICIES, Variant};
use std::path::Path;

/// Numbers beyond these are mistakes.
const ANCHORS_MAX: i64 = 1 << 20;
const SINKS_MAX: i64 = 32;
const RECENT_MAX: i64 = 4096;

/// The variants that `names` ask for, in order, each once.
pub fn variants(names: &[String], file: Option<&Path>) -> Result<Vec<Variant>> {
    let known = match file {
        Some(path) => read(path)?,
        None => Vec::new(),
    };
    let mut found: Vec<Variant> = Vec::new();
    for name in names {
        if found.iter().any(|variant| variant.name == *name) {
            continue;
        }
        let own = known.iter().find(|variant| variant.name == *name).cloned();
        let variant = own.or_else(|| Variant::named(name)).ok_or_else(|| {
            let mut accepted: Vec<&str> = POLICIES.iter().map(|policy| policy.name()).collect();
            let known = known.iter().map(|variant| variant.name.as_str());
            accepted.extend(known.filter(|name| Variant::named(name).is_none()));
            usage(format!(
                "--policies: there is no '{name}' to compare; accepted: {}",
                accepted.join(", ")
            ))
        })?;
        found.push(variant);
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Vec<Variant>> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let path = path.display();
        usage(format!("cannot read --policy-file {path}: {error}"))
    })?;
    parse(&text).map_err(|what| usage(format!("{}: {what}", path.display())))
}

fn parse(text: &str) -> Result<Vec<Variant>, String> {
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| error.message().to_owned())?;
    table
        .iter()
        .map(|(name, value)| variant(name, value))
        .collect()
}

fn variant(name: &str, value: &toml::Value) -> Result<Variant, String> {
    let table = value
        .as_table()
        .ok_or_else(|| format!("'{name}' is no table; accepted: a table for each policy"))?;
    if name.contains(',') {
        return Err(format!("'{name}' has a comma; accepted: names without one"));
    }
    let names = || {
        let names: Vec<&str> = POLICIES.iter().map(|policy| policy.name()).collect();
        names.join(", ")
    };
    let base = match table.get("policy") {
        Some(policy) => policy.as_str().and_then(Variant::named),
        None => Variant::named(name),
    };
    let mut made = base.ok_or_else(|| format!("[{name}] policy: accepted: {}", names()))?;
    made.name = name.to_owned();
    for (key, value) in table {
        let refuse = |accepted: &str| format!("[{name}] {key}: accepted: {accepted}");
        let whole = |most: i64| {
            let number = value.as_integer().filter(|n| (0..=most).contains(n));
            let number = number.and_then(|n| usize::try_from(n).ok());
            number.ok_or_else(|| refuse(&format!("a whole number in 0..={most}")))
        };
        match key.as_str() {
            "policy" => (),
            "anchors" => made.anchors = whole(ANCHORS_MAX)?,
            "sinks" => made.sinks = whole(SINKS_MAX)?,
            "recent" => made.recent = whole(RECENT_MAX)?,
            "score" => {
                made.score = match value.as_str() {
                    Some("sum") => Score::Sum,
                    Some("peak") => Score::Peak,
                    _ => return Err(refuse("sum, peak")),
                }
            }
            "positions" => {
                made.positions = match value.as_str() {
                    Some("auto") => Positions::Auto,
                    Some("compact") => Positions::Compact,
                    Some("original") => Positions::Original,
                    _ => return Err(refuse("auto, compact, original")),
                }
            }
            _ => {
                let keys = "policy, anchors, sinks, recent, score, positions";
                return Err(format!("[{name}] has no '{key}'; accepted: {keys}"));
            }
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack::Policy;

    #[test]
    fn parameters_and_names_of_their_own() {
        let text = "[window]\nanchors = 64\n[old]\npolicy = 'heavy'\nscore = 'sum'\nrecent = 32";
        let found = parse(text).unwrap();
        let of = |name: &str| found.iter().find(|v| v.name == name).unwrap();
        assert_eq!(
            (of("window").policy, of("window").anchors),
            (Policy::Window, 64)
        );
        assert_eq!((of("old").policy, of("old").recent), (Policy::Heavy, 32));
        assert_eq!(of("old").score, Score::Sum);
    }

    #[test]
    fn what_is_refused_says_what_is_accepted() {
        for text in [
            "anchors = 3",
            "[other]\nanchors = 3",
            "[x]\npolicy = 'auto'",
            "[window]\nanchors = -1",
            "[window]\nanchors = 1.5",
            "[window]\nanchors = 99999999",
            "[window]\nsinks = 33",
            "[window]\ntheta = 0.1",
            "[heavy]\nscore = 'mean'",
            "[heavy]\npositions = 3",
            "[\"a,b\"]\npolicy = 'heavy'",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("accepted"), "{text}: {error}");
        }
    }
}
