//! Recorded against found, field by field, less what is intended.

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;

/// `intended.toml`: differences that are there on purpose.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intended {
    #[serde(default)]
    change: Vec<Change>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    /// A case, or with `/*` at its end all below that; without it the change is in all cases.
    case: Option<String>,
    /// A field of the case's record, such as `/json/kv/codec`, with everything below it.
    field: Option<String>,
    /// A group of words, such as `error-wording`.
    group: Option<String>,
    /// A number that differs by no more than this.
    within: Option<f64>,
    reason: String,
}

/// A field that is not as it was recorded.
pub struct Difference {
    pub case: String,
    field: String,
    recorded: Option<Value>,
    found: Option<Value>,
}

impl Difference {
    /// Every field of a case in which `recorded` and `found` differ.
    pub fn all(case: &str, recorded: &Value, found: &Value) -> Vec<Difference> {
        let mut all = Vec::new();
        walk(case, "", Some(recorded), Some(found), &mut all);
        all
    }

    /// Between two numbers; of anything else there is no end to it.
    fn size(&self) -> f64 {
        let number = |value: &Option<Value>| value.as_ref().and_then(Value::as_f64);
        match (number(&self.recorded), number(&self.found)) {
            (Some(before), Some(after)) => (before - after).abs(),
            _ => f64::INFINITY,
        }
    }

    pub fn line(&self) -> String {
        let shown = |value: &Option<Value>| {
            let text = value
                .as_ref()
                .map_or("nothing".to_owned(), Value::to_string);
            text.chars().take(300).collect::<String>()
        };
        let (recorded, found) = (shown(&self.recorded), shown(&self.found));
        format!(
            "{} {}\n  recorded {recorded}\n  found    {found}",
            self.case, self.field
        )
    }
}

fn walk(
    case: &str,
    field: &str,
    recorded: Option<&Value>,
    found: Option<&Value>,
    all: &mut Vec<Difference>,
) {
    match (recorded, found) {
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            for key in keys {
                let field = format!("{field}/{key}");
                walk(case, &field, before.get(key), after.get(key), all);
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) if before.len() == after.len() => {
            for (i, (before, after)) in before.iter().zip(after).enumerate() {
                walk(
                    case,
                    &format!("{field}/{i}"),
                    Some(before),
                    Some(after),
                    all,
                );
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) if are_words(before, after) => {
            let sides = [(before, after, true), (after, before, false)];
            for (one, other, is_recorded) in sides {
                for word in one.iter().filter(|word| !other.contains(word)) {
                    let field = format!("{field}/{}", word.as_str().unwrap_or_default());
                    let (recorded, found) = match is_recorded {
                        true => (Some(word), None),
                        false => (None, Some(word)),
                    };
                    walk(case, &field, recorded, found, all);
                }
            }
        }
        (before, after) if before == after => {}
        (before, after) => all.push(Difference {
            case: case.to_owned(),
            field: field.to_owned(),
            recorded: before.cloned(),
            found: after.cloned(),
        }),
    }
}

/// Lists of words, of which some came or went: each is a difference of its own.
fn are_words(before: &[Value], after: &[Value]) -> bool {
    before != after && before.iter().chain(after).all(Value::is_string)
}

impl Change {
    fn is_in(&self, case: &str) -> bool {
        self.case
            .as_deref()
            .is_none_or(|own| match own.strip_suffix('*') {
                Some(folder) => case.starts_with(folder),
                None => own == case,
            })
    }

    fn covers(&self, difference: &Difference) -> bool {
        let is_below = |field: &str| {
            let rest = difference.field.strip_prefix(field);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let group = self.group.as_ref().map(|group| format!("/words/{group}"));
        self.is_in(&difference.case)
            && self.field.as_deref().is_none_or(is_below)
            && group.as_deref().is_none_or(is_below)
            && self.within.is_none_or(|max| difference.size() <= max)
    }
}

impl Intended {
    pub fn read(text: &str) -> Intended {
        let intended: Intended = toml::from_str(text).unwrap();
        for change in &intended.change {
            assert!(!change.reason.is_empty(), "an intended change has a reason");
            assert!(
                change.field.is_some() || change.group.is_some(),
                "a field or a group"
            );
        }
        intended
    }

    /// What is left: unintended differences, and intended changes that no longer differ. `ran` are the cases
    /// that were compared: an intended change of one that was skipped is not stale.
    pub fn judge(&self, differences: &[Difference], ran: &BTreeSet<String>) -> Vec<String> {
        let unintended = differences
            .iter()
            .filter(|difference| !self.change.iter().any(|change| change.covers(difference)))
            .map(Difference::line);
        let stale = self.change.iter().filter(|change| {
            let has_run = change.case.is_none() || ran.iter().any(|case| change.is_in(case));
            has_run
                && !differences
                    .iter()
                    .any(|difference| change.covers(difference))
        });
        let stale = stale.map(|change| {
            let name = [&change.case, &change.group, &change.field];
            let name = name.into_iter().flatten().next().unwrap();
            format!(
                "intended.toml: nothing differs any more by {name}: {}",
                change.reason
            )
        });
        unintended.chain(stale).collect()
    }
}
