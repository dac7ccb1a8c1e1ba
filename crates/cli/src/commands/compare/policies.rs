//! Policies by name, with parameters from a file where one is given.
//!
//! ```toml
//! [window]              # parameters of a policy
//! anchors = 64
//!
//! [heavy-sum]           # a policy under a name of its own, for --policies
//! policy = "heavy"
//! score = "sum"         # and whatever else `--policy-file` of the other commands knows
//! positions = "auto"    # or compact, original
//! sinks = 4
//! near = 64             # last tokens kept nearly exact
//! probe = "deep"        # adaptive
//! guard = "on"          # off but for adaptive
//! ```

use crate::error::usage;
use crate::policy_file::{self, Keys};
use anyhow::Result;
use haversack::engine::Positions;
use haversack::engine::kv_quality::probe::Depth;
use haversack::engine::runtime::options::Guarding;
use haversack_eval::contender::Variant;
use std::path::Path;

/// Numbers beyond these are mistakes.
const ANCHORS_MAX: u64 = 1 << 20;
const SINKS_MAX: u64 = 32;
const RECENT_MAX: u64 = 4096;

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
            let mut accepted = Variant::names();
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
    let tables = table.iter();
    tables.map(|(name, value)| variant(name, value)).collect()
}

fn variant(name: &str, value: &toml::Value) -> Result<Variant, String> {
    let table = value
        .as_table()
        .ok_or_else(|| format!("'{name}' is no table; accepted: a table for each policy"))?;
    if name.contains(',') {
        return Err(format!("'{name}' has a comma; accepted: names without one"));
    }
    let (path, table) = (format!("{name}."), table.clone());
    let mut keys = Keys { path, table };
    let base = match keys.text("policy")? {
        Some(policy) => Variant::named(&policy),
        None => Variant::named(name),
    };
    let accepted = || Variant::names().join(", ");
    let mut made = base.ok_or_else(|| format!("[{name}] policy: accepted: {}", accepted()))?;
    made.name = name.to_owned();
    within(&mut keys, "anchors", ANCHORS_MAX, &mut made.anchors)?;
    within(&mut keys, "sinks", SINKS_MAX, &mut made.sinks)?;
    within(&mut keys, "near", RECENT_MAX, &mut made.recent)?;
    let positions = [
        ("auto", Positions::Auto),
        ("compact", Positions::Compact),
        ("original", Positions::Original),
    ];
    choice(&mut keys, "positions", &positions, &mut made.positions)?;
    let depths = [("short", Depth::Scaled), ("deep", Depth::Full)];
    choice(&mut keys, "probe", &depths, &mut made.wishes.depth)?;
    let guards = [("on", Guarding::On), ("off", Guarding::Off)];
    choice(&mut keys, "guard", &guards, &mut made.guard)?;
    if made.policy.chooses() && !keys.table.is_empty() {
        made.params = Some(policy_file::params(made.policy, &mut keys)?);
    }
    let unknown = keys.end();
    unknown.map_err(|what| format!("{what}; accepted: policy, anchors, sinks, near, positions, probe, guard and what the policy knows"))?;
    Ok(made)
}

fn within(keys: &mut Keys, key: &str, most: u64, to: &mut usize) -> Result<(), String> {
    let path = keys.path.clone();
    match keys.whole(key)? {
        Some(number) if number > most => {
            Err(format!("{path}{key} is {number}; accepted: 0 to {most}"))
        }
        number => {
            *to = number.map_or(*to, |number| number as usize);
            Ok(())
        }
    }
}

fn choice<T: Copy>(
    keys: &mut Keys,
    key: &str,
    known: &[(&str, T)],
    to: &mut T,
) -> Result<(), String> {
    if let Some(name) = keys.text(key)? {
        let found = known.iter().find(|(known, _)| *known == name);
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let wrong = || format!("{}{key}: accepted: {}", keys.path, names.join(", "));
        *to = found.ok_or_else(wrong)?.1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack::cache::policy::heavy::HeavyScore;
    use haversack::cache::policy::rows::RowPolicy;
    use haversack::engine::Policy;

    #[test]
    fn parameters_and_names_of_their_own() {
        let text = "[window]\nanchors = 64\n[old]\npolicy = 'heavy'\nscore = 'sum'\nnear = 32";
        let found = parse(text).unwrap();
        let of = |name: &str| found.iter().find(|v| v.name == name).unwrap();
        assert_eq!(
            (of("window").policy, of("window").anchors),
            (Policy::Window, 64)
        );
        assert_eq!((of("old").policy, of("old").recent), (Policy::Heavy, 32));
        let Some(RowPolicy::Heavy(params)) = of("old").params else {
            panic!("{found:?}");
        };
        assert_eq!(params.score, HeavyScore::Sum);
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
