//! Sampling: sets against a naive twin, distributions by chi-square, formulae by hand.

use haversack_engine::sample::{
    Constraint, ConstraintError, SampleError, SampleOptions, Sampler, logprob_of, logprobs_top,
};
use proptest::prelude::*;

fn sampler(options: SampleOptions) -> Sampler {
    Sampler::new(options).expect("good options")
}

fn warm(temperature: f32) -> SampleOptions {
    SampleOptions {
        temperature,
        ..SampleOptions::default()
    }
}

/// The same chain, slow and obvious: sort everything, cut, normalise.
fn twin(logits: &[f32], o: &SampleOptions) -> Vec<(u32, f64)> {
    let mut all: Vec<(u32, f64)> = logits
        .iter()
        .enumerate()
        .map(|(i, &l)| (i as u32, f64::from(l)))
        .collect();
    all.retain(|(_, l)| *l > f64::NEG_INFINITY);
    all.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("no NaN").then(a.0.cmp(&b.0)));
    if o.top_k > 0 {
        all.truncate(o.top_k);
    }
    let top = all[0].1;
    for (_, l) in &mut all {
        *l = ((*l - top) / f64::from(o.temperature)).exp();
    }
    let total: f64 = all.iter().map(|(_, w)| w).sum();
    let mut mass = 0.0;
    let mut keep = all.len();
    for (i, (_, w)) in all.iter().enumerate() {
        mass += w;
        if o.top_p < 1.0 && mass >= f64::from(o.top_p) * total {
            keep = i + 1;
            break;
        }
    }
    all.truncate(keep);
    all.retain(|(_, w)| *w >= f64::from(o.min_p));
    let total: f64 = all.iter().map(|(_, w)| w).sum();
    all.into_iter().map(|(id, w)| (id, w / total)).collect()
}

#[test]
fn greedy_takes_the_largest_and_the_lowest_id_of_equals() {
    let mut s = sampler(SampleOptions::default());
    assert_eq!(s.sample(&[0.0, 3.0, 3.0, -1.0], &[]), Ok(1));
    assert_eq!(s.sample(&[f32::NEG_INFINITY, -5.0], &[]), Ok(1));
    assert_eq!(s.sample(&[-0.0, 0.0], &[]), Ok(0));
    assert_eq!(s.sample(&[1.0, f32::INFINITY, f32::INFINITY], &[]), Ok(1));
    assert_eq!(s.sample(&[f32::MAX, f32::MIN], &[]), Ok(0));
}

#[test]
fn what_has_no_answer_is_an_error() {
    for temperature in [0.0, 0.8] {
        let mut s = sampler(warm(temperature));
        assert_eq!(s.sample(&[], &[]), Err(SampleError::Empty));
        assert_eq!(s.sample(&[0.0, f32::NAN], &[]), Err(SampleError::Nan(1)));
        assert_eq!(
            s.sample(&[f32::NEG_INFINITY; 3], &[]),
            Err(SampleError::Nothing)
        );
    }
    let mut s = sampler(SampleOptions {
        logit_bias: vec![(7, 1.0)],
        ..SampleOptions::default()
    });
    assert_eq!(
        s.sample(&[0.0; 3], &[]),
        Err(SampleError::BiasToken {
            id: 7,
            vocabulary: 3
        })
    );
}

/// Vocabularies are looked at block by block.
#[test]
fn the_first_of_the_largest_wins_wherever_it_is() {
    let mut s = sampler(SampleOptions {
        temperature: 0.0,
        ..SampleOptions::default()
    });
    for len in [1usize, 7, 8, 9, 1023, 1024, 1025, 3001] {
        for at in (0..len).step_by(len.div_ceil(97)).chain([len - 1]) {
            let mut logits: Vec<f32> = (0..len).map(|i| -((i % 13) as f32) - 1.0).collect();
            logits[at..].fill(0.5);
            assert_eq!(s.sample(&logits, &[]), Ok(at as u32), "{len}");
            logits[at] = f32::NAN;
            assert_eq!(s.sample(&logits, &[]), Err(SampleError::Nan(at)), "{len}");
        }
    }
}

#[test]
fn every_option_is_checked_and_named() {
    let nan = f32::NAN;
    let good = SampleOptions::default();
    let bad = [
        (
            "temperature",
            SampleOptions {
                temperature: nan,
                ..good.clone()
            },
        ),
        (
            "temperature",
            SampleOptions {
                temperature: -0.1,
                ..good.clone()
            },
        ),
        (
            "temperature",
            SampleOptions {
                temperature: f32::INFINITY,
                ..good.clone()
            },
        ),
        (
            "top_p",
            SampleOptions {
                top_p: 0.0,
                ..good.clone()
            },
        ),
        (
            "top_p",
            SampleOptions {
                top_p: 1.01,
                ..good.clone()
            },
        ),
        (
            "top_p",
            SampleOptions {
                top_p: nan,
                ..good.clone()
            },
        ),
        (
            "min_p",
            SampleOptions {
                min_p: -0.1,
                ..good.clone()
            },
        ),
        (
            "min_p",
            SampleOptions {
                min_p: nan,
                ..good.clone()
            },
        ),
        (
            "repetition_penalty",
            SampleOptions {
                repetition_penalty: 0.0,
                ..good.clone()
            },
        ),
        (
            "repetition_penalty",
            SampleOptions {
                repetition_penalty: nan,
                ..good.clone()
            },
        ),
        (
            "presence_penalty",
            SampleOptions {
                presence_penalty: 101.0,
                ..good.clone()
            },
        ),
        (
            "presence_penalty",
            SampleOptions {
                presence_penalty: nan,
                ..good.clone()
            },
        ),
        (
            "frequency_penalty",
            SampleOptions {
                frequency_penalty: nan,
                ..good.clone()
            },
        ),
        (
            "penalty_last_n",
            SampleOptions {
                penalty_last_n: usize::MAX,
                ..good.clone()
            },
        ),
        (
            "logit_bias",
            SampleOptions {
                logit_bias: vec![(0, nan)],
                ..good.clone()
            },
        ),
        (
            "logit_bias",
            SampleOptions {
                logit_bias: vec![(0, 1e9)],
                ..good.clone()
            },
        ),
        (
            "logit_bias",
            SampleOptions {
                logit_bias: vec![(0, 0.0); 5000],
                ..good.clone()
            },
        ),
    ];
    for (name, options) in bad {
        let error = Sampler::new(options)
            .map(|_| ())
            .expect_err(name)
            .to_string();
        assert!(
            error.starts_with(name) && error.contains("accepted"),
            "{name}: {error}"
        );
        assert!(!error.contains('\n'));
    }
}

#[test]
fn a_seed_gives_the_same_tokens_for_ever() {
    let logits: Vec<f32> = (0..50).map(|i| ((i * 37) % 11) as f32 * 0.3).collect();
    let run = |seed| {
        let mut s = sampler(SampleOptions { seed, ..warm(1.0) });
        (0..8)
            .map(|_| s.sample(&logits, &[]).expect("a token"))
            .collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    // Recorded: a change here changes the text of every seed.
    assert_eq!(run(1), RECORDED);
}

const RECORDED: [u32; 8] = [41, 38, 5, 38, 8, 30, 49, 27];

#[test]
fn greedy_draws_nothing() {
    let logits = [0.0, 0.5, 1.0, 0.2];
    let mut plain = sampler(warm(1.0));
    let mut forced = sampler(warm(1.0));
    // A certain token takes no draw, so the next ones agree.
    assert_eq!(forced.sample(&[0.0, f32::INFINITY], &[]), Ok(1));
    for _ in 0..20 {
        assert_eq!(plain.sample(&logits, &[]), forced.sample(&logits, &[]));
    }
}

#[test]
fn frequencies_follow_the_distribution() {
    let logits: Vec<f32> = vec![2.0, 1.0, 0.5, 0.0, -0.5, 1.5, f32::NEG_INFINITY, 0.7];
    let cases = [
        warm(1.0),
        warm(0.5),
        warm(2.0),
        SampleOptions {
            top_k: 3,
            ..warm(1.0)
        },
        SampleOptions {
            top_p: 0.7,
            ..warm(1.0)
        },
        SampleOptions {
            min_p: 0.3,
            ..warm(1.5)
        },
        SampleOptions {
            top_k: 5,
            top_p: 0.9,
            min_p: 0.1,
            ..warm(0.8)
        },
    ];
    for options in cases {
        let expected = twin(&logits, &options);
        let mut s = sampler(SampleOptions {
            seed: 9,
            ..options.clone()
        });
        let draws = 40_000;
        let mut counts = vec![0u32; logits.len()];
        for _ in 0..draws {
            counts[s.sample(&logits, &[]).expect("a token") as usize] += 1;
        }
        let mut chi = 0.0;
        for &(id, p) in &expected {
            let want = p * f64::from(draws);
            chi += (f64::from(counts[id as usize]) - want).powi(2) / want;
            counts[id as usize] = 0;
        }
        assert!(
            counts.iter().all(|c| *c == 0),
            "a token outside of the set was drawn: {options:?}"
        );
        // With at most 6 degrees of freedom 27.9 is exceeded once in ten thousand.
        assert!(chi < 27.9, "chi-square {chi} for {options:?}");
    }
}

#[test]
fn penalties_follow_their_formulae() {
    let logits = [2.0f32, -1.0, 0.5];
    let options = SampleOptions {
        repetition_penalty: 2.0,
        presence_penalty: 0.25,
        frequency_penalty: 0.125,
        penalty_last_n: 4,
        ..SampleOptions::default()
    };
    // Token 0 twice: 2/2 - 0.25 - 2*0.125 = 0.5, equal to token 2, and lower in id.
    assert_eq!(sampler(options.clone()).sample(&logits, &[0, 0]), Ok(0));
    // A third time: 0.375, below token 2.
    assert_eq!(sampler(options.clone()).sample(&logits, &[0, 0, 0]), Ok(2));
    // Outside of the window nothing is remembered: only the last four count.
    assert_eq!(
        sampler(options.clone()).sample(&logits, &[0, 0, 0, 2, 2, 2, 2]),
        Ok(0)
    );
    // A negative logit is multiplied, so it falls.
    let only = SampleOptions {
        repetition_penalty: 3.0,
        ..SampleOptions::default()
    };
    assert_eq!(sampler(only.clone()).sample(&[-1.0, -2.0], &[0]), Ok(1));
    // Ids from elsewhere are passed over.
    assert_eq!(sampler(only).sample(&[1.0, 0.0], &[u32::MAX, 99]), Ok(0));
    // Switched off.
    assert_eq!(
        sampler(SampleOptions {
            penalty_last_n: 0,
            ..options
        })
        .sample(&logits, &[0, 0, 0]),
        Ok(0)
    );
}

#[test]
fn bias_forces_and_forbids() {
    let logits = [5.0f32, 4.0, 3.0];
    for temperature in [0.0, 1.0] {
        let force = SampleOptions {
            logit_bias: vec![(2, 100.0)],
            ..warm(temperature)
        };
        assert_eq!(sampler(force).sample(&logits, &[]), Ok(2));
        let forbid = SampleOptions {
            logit_bias: vec![(0, -100.0), (1, f32::NEG_INFINITY)],
            ..warm(temperature)
        };
        assert_eq!(sampler(forbid).sample(&logits, &[]), Ok(2));
        // The forbidding infinity wins over the logit's own.
        let both = SampleOptions {
            logit_bias: vec![(0, f32::NEG_INFINITY)],
            ..warm(temperature)
        };
        assert_eq!(sampler(both).sample(&[f32::INFINITY, 0.0], &[]), Ok(1));
    }
}

#[test]
fn log_probabilities_sum_to_one_and_sort() {
    let logits: Vec<f32> = (0..1000)
        .map(|i| ((i * 7919) % 997) as f32 / 50.0)
        .collect();
    let all = logprobs_top(&logits, usize::MAX).expect("logprobs");
    let sum: f64 = all.iter().map(|(_, l)| l.exp()).sum();
    assert!((sum - 1.0).abs() < 1e-12, "{sum}");
    assert!(
        all.windows(2)
            .all(|w| w[0].1 > w[1].1 || (w[0].1 == w[1].1 && w[0].0 < w[1].0))
    );
    assert_eq!(logprobs_top(&logits, 5).expect("top"), all[..5]);
    for &(id, l) in all.iter().step_by(97) {
        assert_eq!(logprob_of(&logits, id), Ok(l));
    }
    assert_eq!(
        logprob_of(&[0.0, f32::NEG_INFINITY], 1),
        Ok(f64::NEG_INFINITY)
    );
    assert_eq!(logprob_of(&[0.0, f32::INFINITY], 1), Ok(-0.0));
    assert_eq!(logprob_of(&[0.0, f32::INFINITY], 0), Ok(f64::NEG_INFINITY));
    assert_eq!(
        logprob_of(&[0.0], 1),
        Err(SampleError::Token {
            id: 1,
            vocabulary: 1
        })
    );
    assert_eq!(logprob_of(&[f32::NAN], 0), Err(SampleError::Nan(0)));
    assert_eq!(
        logprobs_top(&[f32::NEG_INFINITY], 1),
        Err(SampleError::Nothing)
    );
    assert_eq!(
        logprobs_top(&[3.4e38, -3.4e38], 2).expect("top")[1].1,
        f64::from(-3.4e38f32) - f64::from(3.4e38f32)
    );
}

proptest! {
    /// Coarse logits make ties, on which the order of ids decides the sets.
    #[test]
    fn sets_are_those_of_the_twin(
        logits in prop::collection::vec((-40i32..40).prop_map(|l| l as f32 / 4.0), 1..400),
        top_k in 0usize..60,
        top_p in prop_oneof![Just(1.0f32), 0.01f32..1.0],
        min_p in prop_oneof![Just(0.0f32), 0.0f32..1.0],
        temperature in 0.1f32..3.0,
        seed: u64,
    ) {
        let options = SampleOptions { top_k, top_p, min_p, temperature, seed, ..SampleOptions::default() };
        let set = twin(&logits, &options);
        let mut s = sampler(options);
        for _ in 0..50 {
            let id = s.sample(&logits, &[]).expect("a token");
            prop_assert!(set.iter().any(|(have, _)| *have == id), "{id} is not in the set");
        }
        if let [(only, _)] = set.as_slice() {
            prop_assert_eq!(s.sample(&logits, &[]), Ok(*only));
        }
    }

    #[test]
    fn no_logits_panic_or_leave_the_vocabulary(
        logits in prop::collection::vec(any::<f32>(), 0..50),
        history in prop::collection::vec(any::<u32>().prop_map(|i| i % 60), 0..50),
        repetition_penalty in 0.01f32..100.0,
        frequency_penalty in -100f32..100.0,
        temperature in prop_oneof![Just(0.0f32), Just(f32::MIN_POSITIVE), 0.0f32..100.0],
        top_p in 0.001f32..1.0,
    ) {
        let options = SampleOptions { repetition_penalty, frequency_penalty, temperature, top_p, ..SampleOptions::default() };
        match sampler(options).sample(&logits, &history) {
            Ok(id) => prop_assert!((id as usize) < logits.len()),
            Err(SampleError::Nan(at)) => prop_assert!(logits[at].is_nan()),
            Err(SampleError::Empty) => prop_assert!(logits.is_empty()),
            Err(SampleError::Nothing) => {}
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

/// Not a test of time: `cargo test --test sample -- --ignored --nocapture` prints it.
#[test]
#[ignore = "prints timings"]
fn timings() {
    let mut seed = 1u64;
    let mut normal = || {
        (0..12)
            .map(|_| {
                seed = seed
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (seed >> 40) as f32 / (1u64 << 24) as f32
            })
            .sum::<f32>()
            - 6.0
    };
    let logits: Vec<f32> = (0..150_000).map(|_| normal() * 3.0).collect();
    for (name, options) in [
        ("greedy", SampleOptions::default()),
        ("all", warm(0.8)),
        (
            "top-k 40",
            SampleOptions {
                top_k: 40,
                ..warm(0.8)
            },
        ),
        (
            "top-k 40 top-p 0.95",
            SampleOptions {
                top_k: 40,
                top_p: 0.95,
                ..warm(0.8)
            },
        ),
        (
            "top-p 0.95",
            SampleOptions {
                top_p: 0.95,
                ..warm(0.8)
            },
        ),
    ] {
        let mut s = sampler(options);
        s.sample(&logits, &[]).expect("a token");
        let start = std::time::Instant::now();
        for _ in 0..100 {
            s.sample(&logits, &[]).expect("a token");
        }
        println!("{name}: {:.0} us", start.elapsed().as_secs_f64() * 1e4);
    }
}

/// Each token is one more than the last, or three more; at ten it is over.
#[derive(Clone, Debug, Default)]
struct Climb {
    at: u32,
    allowed: [u32; 1],
}

impl Constraint for Climb {
    fn allowed(&mut self) -> Result<&[u32], ConstraintError> {
        if self.at > 10 {
            return Err(ConstraintError("it is over"));
        }
        self.allowed = [(1 << (self.at + 1)) | (1 << (self.at + 3))];
        Ok(&self.allowed)
    }

    fn take(&mut self, token: u32) -> Result<(), ConstraintError> {
        assert!(token == self.at + 1 || token == self.at + 3, "{token}");
        self.at = token;
        Ok(())
    }

    fn copy(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn a_constraint_comes_before_everything_else() {
    let options = SampleOptions {
        // The least likely token, and one that is not in the constraint's words at all.
        logit_bias: vec![(0, 100.0), (40, 100.0)],
        repetition_penalty: 1.5,
        ..SampleOptions::default()
    };
    let logits: Vec<f32> = (0..50).map(|i| -(i as f32)).collect();
    for temperature in [0.0, 1.0, 5.0] {
        for top_k in [0, 1, 40] {
            let options = SampleOptions {
                temperature,
                top_k,
                top_p: 0.9,
                min_p: 0.001,
                ..options.clone()
            };
            let climb: Box<dyn Constraint> = Box::new(Climb::default());
            let mut first = sampler(options).constrained(Some(climb));
            let mut history = Vec::new();
            while history.last().is_none_or(|&last| last <= 10) {
                // A copy goes its own way, from the same place.
                let other = first.clone().sample(&logits, &history).unwrap();
                let token = first.sample(&logits, &history).unwrap();
                assert_eq!(token, other);
                history.push(token);
            }
            for _ in 0..2 {
                let over = first.sample(&logits, &history);
                let why = ConstraintError("it is over");
                assert_eq!(over, Err(SampleError::Constraint(why)));
            }
        }
    }
}

#[test]
fn a_constraint_that_leaves_nothing_possible_is_an_error() {
    let mut logits = [f32::NEG_INFINITY; 8];
    logits[5] = 1.0;
    let climb: Box<dyn Constraint> = Box::new(Climb::default());
    let mut s = sampler(SampleOptions::default()).constrained(Some(climb));
    assert_eq!(s.sample(&logits, &[]), Err(SampleError::Nothing));
    // And nothing was taken.
    logits[3] = -1.0;
    assert_eq!(s.sample(&logits, &[]), Ok(3));
}
