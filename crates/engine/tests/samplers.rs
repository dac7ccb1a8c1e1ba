//! Typical-p, top-n-sigma, XTC and DRY against slow twins, and what a model's file recommends.

use haversack_engine::sample::{
    DryOptions, SampleError, SampleOptions, Sampler, SamplingValues, XtcOptions,
};
use haversack_engine::{LoadOptions, Model};
use haversack_gguf::write::{Meta, Planned};
use haversack_testing::models::Spec;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Every token that is drawn in many draws.
fn drawn(options: &SampleOptions, logits: &[f32], history: &[u32]) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for seed in 0..300 {
        let options = SampleOptions {
            seed,
            ..options.clone()
        };
        let mut sampler = Sampler::new(options).unwrap();
        found.insert(sampler.sample(logits, history).unwrap());
    }
    found
}

fn softmax(logits: &[f32], temperature: f32) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights = logits
        .iter()
        .map(|&l| (f64::from(l) - f64::from(top)) / f64::from(temperature));
    let weights: Vec<f64> = weights.map(f64::exp).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / total).collect()
}

/// Tokens within `n` deviations of the largest logit.
fn sigma_twin(logits: &[f32], n: f32) -> BTreeSet<u32> {
    let len = logits.len() as f64;
    let mean = logits.iter().map(|&l| f64::from(l)).sum::<f64>() / len;
    let variance = logits.iter().map(|&l| (f64::from(l) - mean).powi(2));
    let deviation = (variance.sum::<f64>() / len).sqrt();
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let least = f64::from(top) - f64::from(n) * deviation;
    let kept = (0..logits.len()).filter(|&i| f64::from(logits[i]) >= least - 1e-9);
    kept.map(|i| i as u32).collect()
}

/// By the definition: entropy, surprise, distance.
fn typical_twin(logits: &[f32], share: f32, temperature: f32) -> BTreeSet<u32> {
    let p = softmax(logits, temperature);
    let entropy: f64 = p.iter().map(|p| -p * p.ln()).sum();
    let mut order: Vec<usize> = (0..p.len()).collect();
    // Rounded, so that what is equal stays equal after a logarithm.
    let distance = |i: usize| ((-p[i].ln() - entropy).abs() * 1e9).round();
    order.sort_by(|&a, &b| {
        let by_distance = distance(a).total_cmp(&distance(b));
        by_distance.then(p[b].total_cmp(&p[a])).then(a.cmp(&b))
    });
    let mut mass = 0.0;
    let mut kept = BTreeSet::new();
    for i in order {
        kept.insert(i as u32);
        mass += p[i];
        if mass > f64::from(share) {
            break;
        }
    }
    kept
}

/// Likeliest first; the first ones above the threshold leave, all but the last of them.
fn xtc_twin(logits: &[f32], threshold: f32, temperature: f32) -> BTreeSet<u32> {
    let p = softmax(logits, temperature);
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[b].total_cmp(&p[a]).then(a.cmp(&b)));
    let likely = order
        .iter()
        .filter(|&&i| p[i] >= f64::from(threshold))
        .count();
    let left = &order[likely.saturating_sub(1)..];
    left.iter().map(|&i| i as u32).collect()
}

/// By token: the longest suffix of the history that was there before it, by trying all.
fn dry_twin(history: &[u32], options: &DryOptions) -> Vec<(u32, usize)> {
    let window = &history[history.len().saturating_sub(options.last_n)..];
    let mut found = std::collections::BTreeMap::new();
    for at in 1..window.len() {
        let before = &window[..at];
        let alike = before.iter().rev().zip(window.iter().rev());
        let len = alike.take_while(|(a, b)| a == b).count();
        if len >= options.allowed_length {
            let longest = found.entry(window[at]).or_insert(0);
            *longest = len.max(*longest);
        }
    }
    found.into_iter().collect()
}

fn few_logits() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec((-12i32..12).prop_map(|l| l as f32 / 4.0), 2..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn sigma_keeps_what_its_twin_keeps(logits in few_logits(), n in 0.05f32..3.0) {
        let options = SampleOptions { temperature: 1.0, top_n_sigma: n, ..SampleOptions::default() };
        let kept = sigma_twin(&logits, n);
        prop_assert!(drawn(&options, &logits, &[]).is_subset(&kept));
        // All of them at a temperature at which they are about equally likely.
        let hot = SampleOptions { temperature: 100.0, ..options };
        prop_assert_eq!(drawn(&hot, &logits, &[]), kept);
    }

    #[test]
    fn typical_keeps_what_its_twin_keeps(
        logits in few_logits(), share in 0.05f32..0.95, top_k in prop_oneof![Just(0usize), Just(1000)],
    ) {
        // Of a vocabulary that is cut by top-k nothing is left out here: both ways lead to the same set.
        let top_k = if top_k > 0 { logits.len().saturating_sub(1) } else { 0 };
        let temperature = 4.0;
        let options = SampleOptions { temperature, typical_p: share, top_k, ..SampleOptions::default() };
        if top_k == 0 {
            prop_assert_eq!(drawn(&options, &logits, &[]), typical_twin(&logits, share, temperature));
        } else {
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            order.truncate(top_k);
            order.sort_unstable();
            let cut: Vec<f32> = order.iter().map(|&i| logits[i]).collect();
            let kept = typical_twin(&cut, share, temperature);
            let kept: BTreeSet<u32> = kept.into_iter().map(|i| order[i as usize] as u32).collect();
            prop_assert_eq!(drawn(&options, &logits, &[]), kept);
        }
    }

    #[test]
    fn xtc_keeps_what_its_twin_keeps(logits in few_logits(), threshold in 0.02f32..0.5) {
        let temperature = 4.0;
        let xtc = XtcOptions { probability: 1.0, threshold };
        let options = SampleOptions { temperature, xtc, ..SampleOptions::default() };
        prop_assert_eq!(drawn(&options, &logits, &[]), xtc_twin(&logits, threshold, temperature));
    }

    /// Histories of few letters repeat themselves everywhere.
    #[test]
    fn dry_penalises_what_its_twin_penalises(
        history in prop::collection::vec(0u32..3, 0..60),
        allowed_length in 1usize..5,
        last_n in prop_oneof![Just(4096usize), 1usize..60],
    ) {
        let dry = DryOptions { multiplier: 1.0, base: 2.0, allowed_length, last_n, ..DryOptions::default() };
        let twin = dry_twin(&history, &dry);
        // A bias for one token shows its penalty: it wins with a little more, and does not with a little less.
        for token in 0..4u32 {
            let repeated = twin.iter().find(|(of, _)| *of == token).map(|(_, len)| *len);
            let penalty = repeated.map_or(0.0, |len| 2f32.powi((len - allowed_length) as i32).min(1e30));
            if penalty > 1e6 {
                continue;
            }
            for (more, wins) in [(0.25, true), (-0.25, false)] {
                let mut logits = [-1e7f32; 5];
                logits[4] = 0.0;
                logits[token as usize] = penalty + more;
                let options = SampleOptions { dry: dry.clone(), ..SampleOptions::default() };
                let found = Sampler::new(options).unwrap().sample(&logits, &history).unwrap();
                prop_assert_eq!(found == token, wins, "{} {:?}", token, twin);
            }
        }
    }

    /// What is off changes nothing, whatever its other options say.
    #[test]
    fn samplers_that_are_off_change_no_token(
        logits in few_logits(), top_k in 0usize..20, top_p in 0.2f32..1.0, seed: u64,
    ) {
        let plain = SampleOptions { temperature: 0.8, top_k, top_p, seed, ..SampleOptions::default() };
        let off = SampleOptions {
            xtc: XtcOptions { probability: 1.0, threshold: 0.6 },
            dry: DryOptions { base: 3.0, allowed_length: 1, ..DryOptions::default() },
            ..plain.clone()
        };
        let (mut plain, mut off) = (Sampler::new(plain).unwrap(), Sampler::new(off).unwrap());
        let mut history = Vec::new();
        for _ in 0..40 {
            let token = plain.sample(&logits, &history).unwrap();
            prop_assert_eq!(off.sample(&logits, &history).unwrap(), token);
            history.push(token);
        }
    }

    #[test]
    fn no_logits_panic(
        logits in prop::collection::vec(any::<f32>(), 0..40),
        history in prop::collection::vec(0u32..50, 0..40),
        (temperature, n, share) in (0.0f32..100.0, 0.0f32..100.0, 0.001f32..1.0),
        (base, probability) in (1.0f32..100.0, 0.0f32..1.0),
    ) {
        let options = SampleOptions {
            temperature, top_n_sigma: n, typical_p: share,
            xtc: XtcOptions { probability, threshold: 0.05 },
            dry: DryOptions { multiplier: 100.0, base, allowed_length: 1, ..DryOptions::default() },
            ..SampleOptions::default()
        };
        match Sampler::new(options).unwrap().sample(&logits, &history) {
            Ok(id) => prop_assert!((id as usize) < logits.len()),
            Err(SampleError::Nan(at)) => prop_assert!(logits[at].is_nan()),
            Err(SampleError::Empty) => prop_assert!(logits.is_empty()),
            Err(error) => prop_assert_eq!(error, SampleError::Nothing),
        }
    }
}

/// The draw of XTC comes on top of the one for the token, and is made where XTC is on only.
#[test]
fn xtc_happens_as_often_as_it_is_asked_for() {
    let logits = [2.0, 1.9, 1.8, -5.0];
    let options = SampleOptions {
        temperature: 1.0,
        xtc: XtcOptions {
            probability: 0.25,
            threshold: 0.1,
        },
        ..SampleOptions::default()
    };
    let mut sampler = Sampler::new(options).unwrap();
    let draws = 20_000;
    let first = (0..draws).filter(|_| sampler.sample(&logits, &[]).unwrap() == 0);
    let share = first.count() as f64 / f64::from(draws);
    let plain = softmax(&logits, 1.0)[0];
    assert!((share - 0.75 * plain).abs() < 0.02, "{share}, {plain}");
}

/// A repetition reaches up to a breaker, which may begin in one token and end in the next.
#[test]
fn breakers_end_repetitions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    Spec::named("llama").unwrap().write_file(&path).unwrap();
    let model = Model::load(&path, &LoadOptions::default(), &mut |_, _| {}).unwrap();
    let tokenizer = model.tokenizer();
    let pieces: Vec<(u32, String)> = (0..tokenizer.len() as u32)
        .filter_map(|id| {
            Some((
                id,
                String::from_utf8(tokenizer.piece_bytes(id).into()).ok()?,
            ))
        })
        .filter(|(id, text)| {
            !tokenizer.is_control(*id) && text.trim().len() == text.len() && text.len() == 1
        })
        .collect();
    let ids: Vec<u32> = pieces.iter().map(|(id, _)| *id).take(8).collect();
    let text = |i: usize| pieces[i].1.clone();
    let [a, b, c, d, e, f] = [ids[0], ids[1], ids[2], ids[3], ids[4], ids[5]];
    // a b c d is followed by e, and is there again.
    let history = [f, a, b, c, d, e, f, f, a, b, c, d];
    let wins = |breakers: Vec<String>, bias: f32| {
        let options = SampleOptions {
            dry: DryOptions {
                multiplier: 1.0,
                base: 2.0,
                allowed_length: 2,
                breakers,
                ..DryOptions::default()
            },
            ..SampleOptions::default()
        };
        let mut logits = vec![-100.0; tokenizer.len()];
        (logits[0], logits[e as usize]) = (0.0, bias);
        let mut sampler = Sampler::new(options).unwrap();
        let found = sampler.sample_text(&logits, &history, Some(tokenizer));
        found.unwrap() == e
    };
    let penalised_by = |breakers: Vec<String>, penalty: f32| {
        wins(breakers.clone(), penalty + 0.1) && !wins(breakers, penalty - 0.1)
    };
    // Five tokens repeat, f included.
    assert!(penalised_by(Vec::new(), 8.0));
    assert!(penalised_by(vec![text(0)], 2.0), "b c d are left");
    let both = format!("{}{}", text(0), text(1));
    assert!(penalised_by(vec![both], 1.0), "c d are left");
    assert!(wins(vec![text(2)], 0.1), "d alone is allowed");
    assert!(
        wins(vec![text(4)], 0.1),
        "a breaker itself is not penalised"
    );
    let elsewhere = format!("{}{}", text(1), text(0));
    assert!(penalised_by(vec![elsewhere], 8.0), "in another order");
}

#[test]
fn new_options_are_checked_and_named() {
    let dry = |dry| SampleOptions {
        dry,
        ..SampleOptions::default()
    };
    let usual = DryOptions::default;
    let xtc = |probability, threshold| SampleOptions {
        xtc: XtcOptions {
            probability,
            threshold,
        },
        ..SampleOptions::default()
    };
    let bad = [
        (
            "typical_p",
            SampleOptions {
                typical_p: 0.0,
                ..SampleOptions::default()
            },
        ),
        (
            "top_n_sigma",
            SampleOptions {
                top_n_sigma: f32::NAN,
                ..SampleOptions::default()
            },
        ),
        ("xtc_probability", xtc(1.5, 0.1)),
        ("xtc_threshold", xtc(0.5, -0.1)),
        (
            "dry_multiplier",
            dry(DryOptions {
                multiplier: -1.0,
                ..usual()
            }),
        ),
        (
            "dry_base",
            dry(DryOptions {
                base: 0.5,
                ..usual()
            }),
        ),
        (
            "dry_allowed_length",
            dry(DryOptions {
                allowed_length: 0,
                ..usual()
            }),
        ),
        (
            "dry_penalty_last_n",
            dry(DryOptions {
                last_n: 65_537,
                ..usual()
            }),
        ),
        (
            "dry_sequence_breakers",
            dry(DryOptions {
                breakers: vec![String::new()],
                ..usual()
            }),
        ),
        (
            "dry_sequence_breakers",
            dry(DryOptions {
                breakers: vec!["x".into(); 65],
                ..usual()
            }),
        ),
    ];
    for (name, options) in bad {
        let error = options.check().unwrap_err().to_string();
        assert!(error.starts_with(name), "{name}: {error}");
    }
}

/// Metadata comes before what the caller knows of the model; what is wrong in it is left out, and does no harm.
#[test]
fn a_file_recommends_how_it_is_sampled() {
    let spec = Spec::named("llama").unwrap();
    let load = |metadata: Vec<(&str, Meta)>| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        let mut writer = spec.writer().unwrap();
        for (key, value) in metadata {
            writer.set(format!("general.sampling.{key}"), value);
        }
        let mut fill = |planned: &Planned, out: &mut dyn std::io::Write| spec.fill(planned, out);
        writer.write_file(&path, &mut fill).unwrap();
        let options = LoadOptions {
            sampling: SamplingValues {
                top_k: Some(7),
                top_p: Some(0.5),
                ..SamplingValues::default()
            },
            ..LoadOptions::default()
        };
        Model::load(&path, &options, &mut |_, _| {}).unwrap()
    };
    let told = load(vec![
        ("temp", 0.3f32.into()),
        ("top_k", Meta::I32(11)),
        ("min_p", 0.125f64.into()),
        ("penalty_repeat", 1.25f32.into()),
        ("penalty_last_n", Meta::I32(32)),
        ("xtc_probability", 0.5f32.into()),
        ("xtc_threshold", 0.2f32.into()),
    ]);
    let found = told.sampling_defaults();
    let expected = SampleOptions {
        temperature: 0.3,
        top_k: 11,
        top_p: 0.5,
        min_p: 0.125,
        repetition_penalty: 1.25,
        penalty_last_n: 32,
        xtc: XtcOptions {
            probability: 0.5,
            threshold: 0.2,
        },
        ..SampleOptions::default()
    };
    assert_eq!(found, expected);

    let hostile = load(vec![
        ("temp", f32::NAN.into()),
        ("top_k", Meta::I32(-1)),
        ("top_p", 3.5f32.into()),
        ("min_p", "many".into()),
        ("penalty_repeat", f32::INFINITY.into()),
        ("penalty_last_n", u64::MAX.into()),
        ("xtc_probability", Meta::Bool(true)),
        ("xtc_threshold", Meta::array([1u32, 2])),
    ]);
    let expected = SamplingValues {
        top_k: Some(7),
        top_p: Some(0.5),
        ..SamplingValues::default()
    };
    assert_eq!(*hostile.sampling(), expected);
}

/// A repetition that begins before the window is none.
#[test]
fn dry_looks_back_no_farther_than_it_may() {
    let options = |last_n| SampleOptions {
        dry: DryOptions {
            multiplier: 1.0,
            last_n,
            ..DryOptions::default()
        },
        ..SampleOptions::default()
    };
    // Before the last eight tokens 1 2 was followed by 3.
    let history = [1, 2, 3, 9, 8, 7, 6, 5, 4, 1, 2];
    let logits = [0.5, 0.0, 0.0, 1.0];
    let mut far = Sampler::new(options(11)).unwrap();
    assert_eq!(far.sample(&logits, &history), Ok(0));
    let mut near = Sampler::new(options(8)).unwrap();
    assert_eq!(near.sample(&logits, &history), Ok(3));
}
