//! Who is compared in one context: contenders, and the different ways of running a model that they come
//! down to. Two contenders that do the same are run once.

use super::state::digest;
use crate::error::usage;
use anyhow::Result;
use haversack::engine::KvForm;
use haversack::engine::kv_quality::probe::{Depth, Probe};
use haversack::engine::model::Config;
use haversack_eval::contender::{Coding, Setup, Variant};
use serde_json::{Value as Json, json};

pub struct Contest {
    pub context: usize,
    pub contenders: Vec<Contender>,
    /// The reference first.
    pub setups: Vec<Entrant>,
    pub left_out: Vec<LeftOut>,
}

/// A row of the report, for each text.
pub struct Contender {
    pub policy: String,
    pub codec: String,
    /// What it was given; `None`: what it takes.
    pub share: Option<f64>,
    /// Which of the setups it is.
    pub setup: usize,
}

/// A way of running the model, and the name its results are kept under.
pub struct Entrant {
    pub key: String,
    pub setup: Setup,
}

/// A contender that cannot be: no window is small enough.
pub struct LeftOut {
    policy: String,
    codec: String,
    share: f64,
    context: usize,
    least: f64,
}

impl LeftOut {
    pub fn json(&self) -> Json {
        json!({
            "policy": self.policy,
            "codec": self.codec,
            "share": self.share,
            "context": self.context,
            "share_least": self.least,
        })
    }

    pub fn line(&self) -> String {
        format!(
            "{} {} cannot keep {} tokens in a share of {}; it needs {:.4}",
            self.policy, self.codec, self.context, self.share, self.least
        )
    }
}

/// The contest in one context. A share that no policy can meet is refused, with the smallest that one can.
pub fn contests(
    config: &Config,
    variants: &[Variant],
    codings: &[Coding],
    probes: &[(Depth, Probe)],
    shares: &[f64],
    context: usize,
) -> Result<Contest> {
    let mut contest = Contest {
        context,
        contenders: Vec::new(),
        setups: Vec::new(),
        left_out: Vec::new(),
    };
    contest.add("full", "f16", None, Setup::reference());
    let own = [Coding {
        name: "auto".to_owned(),
        form: KvForm::F16,
    }];
    for variant in variants {
        let codings = match variant.has_own_codecs() {
            true => &own[..],
            false => codings,
        };
        let probe = probes.iter().find(|(d, _)| *d == variant.wishes.depth);
        let probe = probe.map(|(_, probe)| probe);
        for coding in codings {
            let wanted: Vec<Option<f64>> = match variant.has_shares() {
                true => shares.iter().copied().map(Some).collect(),
                false => vec![None],
            };
            for share in wanted {
                match Setup::of(config, variant, coding, probe, share, context) {
                    Ok(setup) => contest.add(&variant.name, &coding.name, share, setup),
                    Err(error) => contest.left_out.push(LeftOut {
                        policy: variant.name.clone(),
                        codec: coding.name.clone(),
                        share: error.share,
                        context,
                        least: error.min,
                    }),
                }
            }
        }
    }
    for &share in shares {
        let met = contest.contenders.iter().any(|c| c.share == Some(share));
        let mut least = contest.left_out.iter().filter(|left| left.share == share);
        let least = least.by_ref().map(|left| left.least).reduce(f64::min);
        if let (false, Some(least)) = (met, least) {
            // Rounded up, so that what is named works.
            let least = (least * 1e4).ceil() / 1e4;
            return Err(usage(format!(
                "--shares {share}: no policy can keep {context} tokens in it; accepted: at least {least}"
            )));
        }
    }
    Ok(contest)
}

impl Contest {
    fn add(&mut self, policy: &str, codec: &str, share: Option<f64>, setup: Setup) {
        let is_there = |c: &Contender| c.policy == policy && c.codec == codec && c.share == share;
        if self.contenders.iter().any(is_there) {
            return;
        }
        let known = self.setups.iter().position(|known| known.setup == setup);
        let index = known.unwrap_or(self.setups.len());
        if known.is_none() {
            let key = digest(&format!("{setup:?}"));
            self.setups.push(Entrant { key, setup });
        }
        self.contenders.push(Contender {
            policy: policy.to_owned(),
            codec: codec.to_owned(),
            share,
            setup: index,
        });
    }
}
