//! `--policy-file F.toml`: a policy and its numbers, so that a sweep needs no rebuild.
//!
//! ```toml
//! policy = "tiers"
//! profile = "code"       # tiers: numbers to start from
//! alpha = 0.3            # or half_life = 32
//! trigger = 0.7
//! borders = [10, 20]
//! shallow = { recent = 128, theta = 0.2 }
//! middle = { first = 64, recent = 128, part = [0.25, 0.75], theta = 0.15, batch = 16 }
//! deep = { recent = 256, theta = 0.25, share_max = 0.1 }
//! ```
//!
//! `heavy` and `adaptive` know `score` (sum, peak, max, average with alpha or half_life), `heads` (together, apart) and
//! `recent`; `snap` knows `neighbours` and `recent`; `turns` knows `recent`. Keys that are left out keep their
//! defaults, unknown keys are refused; the library checks the ranges.

use crate::error::usage;
use anyhow::Result;
use haversack::cache::policy::count::AttentionMemory;
use haversack::cache::policy::heavy::{Heads, HeavyParams, HeavyScore};
use haversack::cache::policy::profile::Profile;
use haversack::cache::policy::rows::RowPolicy;
use haversack::cache::policy::snap::SnapParams;
use haversack::cache::policy::tiers::TiersParams;
use haversack::cache::policy::turns::TurnsParams;
use haversack::engine::Policy;
use std::path::Path;

/// What a file says.
#[derive(Debug, PartialEq)]
pub struct PolicyFile {
    pub policy: Policy,
    pub params: RowPolicy,
}

pub fn read(path: &Path) -> Result<PolicyFile> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| usage(format!("cannot read --policy-file {name}: {error}")))?;
    parse(&text).map_err(|what| usage(format!("{name}: {what}")))
}

fn parse(text: &str) -> Result<PolicyFile, String> {
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| error.message().to_owned())?;
    let path = String::new();
    let mut keys = Keys { path, table };
    let chosen = Policy::ALL.into_iter().filter(|policy| policy.chooses());
    let names: Vec<&str> = chosen.map(Policy::name).collect();
    let accepted = || format!("accepted: {}", names.join(", "));
    let name = keys.text("policy")?;
    let name = name.ok_or_else(|| format!("policy is missing; {}", accepted()))?;
    let policy = name.parse().ok().filter(|policy: &Policy| policy.chooses());
    let policy = policy.ok_or_else(|| format!("policy is '{name}'; {}", accepted()))?;
    let params = params(policy, &mut keys)?;
    keys.end()?;
    Ok(PolicyFile { policy, params })
}

/// The numbers of a policy that chooses rows.
pub fn params(policy: Policy, keys: &mut Keys) -> Result<RowPolicy, String> {
    Ok(match policy {
        Policy::Tiers => RowPolicy::Tiers(tiers(keys)?),
        Policy::Snap => {
            let usual = SnapParams::default();
            RowPolicy::Snap(SnapParams {
                neighbours: keys.whole("neighbours")?.unwrap_or(usual.neighbours),
                recent: keys.whole("recent")?.unwrap_or(usual.recent),
            })
        }
        Policy::Turns => {
            let usual = TurnsParams::default();
            RowPolicy::Turns(TurnsParams {
                recent: keys.whole("recent")?.unwrap_or(usual.recent),
            })
        }
        _ => RowPolicy::Heavy(heavy(keys)?),
    })
}

fn heavy(keys: &mut Keys) -> Result<HeavyParams, String> {
    let usual = HeavyParams::default();
    let memory = memory(keys)?;
    let score = match (keys.text("score")?.as_deref(), memory) {
        (None, None) => usual.score,
        (Some("sum"), None) => HeavyScore::Sum,
        (Some("peak"), None) => HeavyScore::Peak,
        (Some("max"), None) => HeavyScore::Max,
        (None | Some("average"), memory) => HeavyScore::Average(memory.unwrap_or_default()),
        (Some(score @ ("sum" | "peak" | "max")), Some(_)) => {
            let what = "forgets nothing; alpha and half_life need average";
            return Err(format!("score {score} {what}"));
        }
        (Some(score), _) => {
            let accepted = "sum, peak, max, average";
            return Err(format!("score is '{score}'; accepted: {accepted}"));
        }
    };
    let heads = match keys.text("heads")?.as_deref() {
        None => usual.heads,
        Some("together") => Heads::Together,
        Some("apart") => Heads::Apart,
        Some(heads) => return Err(format!("heads is '{heads}'; accepted: together, apart")),
    };
    Ok(HeavyParams {
        score,
        heads,
        recent: keys.whole("recent")?.unwrap_or(usual.recent),
    })
}

fn memory(keys: &mut Keys) -> Result<Option<AttentionMemory>, String> {
    match (keys.number("alpha")?, keys.number("half_life")?) {
        (Some(_), Some(_)) => {
            Err("alpha and half_life say the same thing; accepted: one of them".into())
        }
        (Some(alpha), None) => Ok(Some(AttentionMemory::Alpha(alpha))),
        (None, Some(queries)) => Ok(Some(AttentionMemory::HalfLife(queries))),
        (None, None) => Ok(None),
    }
}

fn tiers(keys: &mut Keys) -> Result<TiersParams, String> {
    let mut params = TiersParams::PUBLISHED;
    if let Some(name) = keys.text("profile")? {
        let profile = Profile::from_name(&name).ok_or_else(|| {
            let names = Profile::ALL.map(Profile::name).join(", ");
            format!("profile is '{name}'; accepted: {names}")
        })?;
        params = profile.params();
    }
    params.memory = memory(keys)?.unwrap_or(params.memory);
    set(&mut params.trigger, keys.number("trigger")?);
    if let Some([first, second]) = keys.pair("borders")? {
        let border = |x: f32| match x >= 0.0 && x.fract() == 0.0 && x < 1e6 {
            true => Ok(x as usize),
            false => Err(format!("borders has {x}; accepted: layers")),
        };
        params.borders = Some([border(first)?, border(second)?]);
    }
    if let Some(mut keys) = keys.table("shallow")? {
        set(&mut params.shallow.recent, keys.whole("recent")?);
        params.shallow.theta = keys.number("theta")?.or(params.shallow.theta);
        keys.end()?;
    }
    if let Some(mut keys) = keys.table("middle")? {
        set(&mut params.middle.first, keys.whole("first")?);
        set(&mut params.middle.recent, keys.whole("recent")?);
        set(&mut params.middle.part, keys.pair("part")?);
        set(&mut params.middle.theta, keys.number("theta")?);
        let batch = keys.whole("batch")?;
        let batch = batch.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        set(&mut params.middle.batch, batch);
        keys.end()?;
    }
    if let Some(mut keys) = keys.table("deep")? {
        set(&mut params.deep.recent, keys.whole("recent")?);
        set(&mut params.deep.theta, keys.number("theta")?);
        set(&mut params.deep.share_max, keys.number("share_max")?);
        keys.end()?;
    }
    Ok(params)
}

fn number(value: &toml::Value) -> Option<f32> {
    let whole = value.as_integer().map(|number| number as f32);
    whole.or(value.as_float().map(|number| number as f32))
}

fn set<T>(to: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *to = value;
    }
}

/// A table whose keys are taken out one by one.
pub struct Keys {
    /// Of the table inside the file, with a dot behind it.
    pub path: String,
    pub table: toml::Table,
}

impl Keys {
    /// What `read` makes of the value, where there is one.
    fn take<T>(
        &mut self,
        key: &str,
        accepted: &str,
        read: impl FnOnce(&toml::Value) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(value) = self.table.remove(key) else {
            return Ok(None);
        };
        let (path, kind) = (&self.path, value.type_str());
        let wrong = || format!("{path}{key} is a {kind}; accepted: {accepted}");
        read(&value).map(Some).ok_or_else(wrong)
    }

    pub fn text(&mut self, key: &str) -> Result<Option<String>, String> {
        self.take(key, "a string", |value| value.as_str().map(str::to_owned))
    }

    fn number(&mut self, key: &str) -> Result<Option<f32>, String> {
        self.take(key, "a number", number)
    }

    pub fn whole(&mut self, key: &str) -> Result<Option<u64>, String> {
        let found = self.take(key, "a whole number", toml::Value::as_integer)?;
        let path = &self.path;
        let whole = |number: i64| {
            let wrong = |_| format!("{path}{key} is {number}; accepted: 0 or more");
            u64::try_from(number).map_err(wrong)
        };
        found.map(whole).transpose()
    }

    fn pair(&mut self, key: &str) -> Result<Option<[f32; 2]>, String> {
        let accepted = "two numbers in brackets";
        self.take(key, accepted, |value| match &value.as_array()?[..] {
            [a, b] => Some([number(a)?, number(b)?]),
            _ => None,
        })
    }

    fn table(&mut self, key: &str) -> Result<Option<Keys>, String> {
        let table = self.take(key, "a table", |value| value.as_table().cloned())?;
        let path = format!("{}{key}.", self.path);
        Ok(table.map(|table| Keys { path, table }))
    }

    /// Whatever is left is unknown.
    pub fn end(self) -> Result<(), String> {
        match self.table.keys().next() {
            Some(key) => Err(format!("unknown key '{}{key}'", self.path)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_reach_their_place() {
        let file = parse(
            "policy = 'tiers'\nprofile = 'code'\nhalf_life = 32\ntrigger = 0.5\nborders = [8, 20]\n\
             shallow = { theta = 0.2 }\nmiddle = { part = [0, 1], batch = 4 }\ndeep = { share_max = 0.5 }",
        )
        .unwrap();
        let RowPolicy::Tiers(params) = file.params else {
            panic!("{file:?}");
        };
        assert_eq!(file.policy, Policy::Tiers);
        assert_eq!(params.memory, AttentionMemory::HalfLife(32.0));
        assert_eq!((params.trigger, params.borders), (0.5, Some([8, 20])));
        assert_eq!(
            (params.shallow.recent, params.shallow.theta),
            (128, Some(0.2))
        );
        assert_eq!((params.middle.part, params.middle.batch), ([0.0, 1.0], 4));
        assert_eq!((params.middle.theta, params.deep.share_max), (0.10, 0.5));
        let heavy =
            parse("policy = 'adaptive'\nscore = 'max'\nheads = 'apart'\nrecent = 100").unwrap();
        let score = HeavyScore::Max;
        let expected = HeavyParams {
            score,
            heads: Heads::Apart,
            recent: 100,
        };
        assert_eq!(heavy.params, RowPolicy::Heavy(expected));
        assert_eq!(heavy.policy, Policy::Adaptive);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("", "policy is missing"),
            ("policy = 'window'", "tiers, heavy"),
            ("policy = 5", "accepted: a string"),
            ("policy = 'tiers'\ntheta = 1", "'theta'"),
            ("policy = 'tiers'\ndeep = { batch = 1 }", "'deep.batch'"),
            (
                "policy = 'tiers'\nalpha = 0.3\nhalf_life = 3",
                "one of them",
            ),
            ("policy = 'tiers'\nmiddle = 3", "accepted: a table"),
            ("policy = 'tiers'\nborders = [1]", "two numbers"),
            ("policy = 'tiers'\nborders = [1.5, 2]", "layers"),
            ("policy = 'tiers'\nprofile = 'auto'", "conservative"),
            ("policy = 'heavy'\nrecent = -1", "0 or more"),
            ("policy = 'heavy'\nscore = 'min'", "sum, peak, max, average"),
            ("policy = 'heavy'\nheads = 3", "accepted: a string"),
            ("policy = 'heavy'\nheads = 'each'", "together, apart"),
            ("policy = 'snap'\nheads = 'apart'", "'heads'"),
            (
                "policy = 'heavy'\nscore = 'sum'\nalpha = 0.1",
                "need average",
            ),
            ("policy = ", "expected"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
