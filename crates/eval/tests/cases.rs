//! Cases: within their context, the same again, and with one right answer.

use haversack_engine::{
    LoadOptions, Model, Policy, Repack, Retention, Runtime, RuntimeOptions, sample,
};
use haversack_eval::task::Task;
use haversack_eval::{answers, choice, instructions, records, story};
use haversack_testing::models::Spec;
use haversack_text::tokenizer::EncodeOptions;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

fn model(name: &str) -> Arc<Model> {
    let spec = Spec {
        context: 1024,
        ..Spec::named("llama").unwrap()
    };
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cases-{name}.gguf"));
    spec.write_file(&path).unwrap();
    let load = LoadOptions {
        repack: Repack::Off,
        ..LoadOptions::default()
    };
    Model::load(&path, &load, &mut |_, _| ()).unwrap()
}

#[test]
fn every_task_fits_its_context_and_repeats() {
    let model = model("tasks");
    let filler: Vec<u32> = Spec::named("llama").unwrap().ids(700);
    for task in Task::ALL {
        for context in [600, 1024] {
            for number in 0..3 {
                let of = |seed| task.case(model.tokenizer(), &filler, context, seed, number);
                let case = of(5);
                let name = task.name();
                assert_eq!(case, of(5), "{name}");
                assert_ne!(case, of(6), "{name}");
                assert_eq!(case.questions.len(), 4, "{name}");
                let room = context - choice::QUESTION_TOKENS;
                assert!((room / 2..=room).contains(&case.prompt.len()), "{name}");
                for question in &case.questions {
                    assert_eq!(question.answers.len(), 10, "{name}");
                    for (i, answer) in question.answers.iter().enumerate() {
                        assert!(!answer.is_empty(), "{name}");
                        assert!(!question.answers[..i].contains(answer), "{name}");
                    }
                }
            }
        }
    }
}

/// Making a case ends, whatever it is made of.
#[test]
fn no_text_and_no_room() {
    let model = model("rooms");
    for task in Task::ALL {
        for (filler, context) in [(&[][..], 512), (&[7, 8, 9][..], 16)] {
            let case = task.case(model.tokenizer(), filler, context, 0, 0);
            assert_eq!(case.questions.len(), 4, "{}", task.name());
        }
    }
}

#[test]
fn verdicts_and_answers_of_a_full_cache() {
    let model = model("verdicts");
    let options = RuntimeOptions {
        threads: 1,
        retention: Retention::full(),
        ..RuntimeOptions::default()
    };
    let mut runtime = Runtime::new(model.clone(), &options).unwrap();
    let filler: Vec<u32> = Spec::named("llama").unwrap().ids(700);
    let case = Task::Needles.case(model.tokenizer(), &filler, 700, 0, 0);
    let verdicts = choice::judge(&mut runtime, &case).unwrap();
    assert_eq!(verdicts, choice::judge(&mut runtime, &case).unwrap());
    assert!(
        verdicts
            .iter()
            .all(|v| v.logprob < 0.0 && v.logprob > -60.0)
    );

    let told = instructions::instructions(3, 4);
    let text = story::text(3, 4000);
    let script = answers::script(&model, &text, &told, 1000).unwrap();
    assert_eq!(script.rests.len(), 4);
    assert!(script.rests.iter().all(|rest| !rest.is_empty()));
    let longest = script.rests.iter().map(Vec::len).max().unwrap();
    assert!(script.shared.len() + longest + answers::ANSWER_TOKENS <= 1000);
    assert!(answers::script(&model, &text, &told, 80).is_err());
    let base = answers::begin(&mut runtime, &script).unwrap();
    let made = answers::answer(&mut runtime, base, &script.rests[0]).unwrap();
    let again = answers::answer(&mut runtime, base, &script.rests[0]).unwrap();
    assert_eq!((&made.tokens, &made.text), (&again.tokens, &again.text));
    // Greedy answers cannot be improved by changing their first token.
    let mut other = made.tokens[..1].to_vec();
    let best = answers::nll(&mut runtime, base, &script.rests[0], &other).unwrap();
    for token in [3, 40, 77] {
        other[0] = token;
        let nll = answers::nll(&mut runtime, base, &script.rests[0], &other).unwrap();
        assert!(nll >= best, "{token}");
    }
    let all = answers::nll(&mut runtime, base, &script.rests[0], &made.tokens).unwrap();
    assert!(all >= best && all.is_finite());
    assert_eq!(
        answers::nll(&mut runtime, base, &script.rests[0], &[]).unwrap(),
        0.0
    );
}

/// Answers tried together score what each scores alone, also where rows leave in the middle of one.
#[test]
fn answers_together_and_one_by_one() {
    let model = model("together");
    let filler: Vec<u32> = Spec::named("llama").unwrap().ids(700);
    for policy in [Policy::Full, Policy::Window, Policy::Heavy] {
        let bounded = policy != Policy::Full;
        let options = RuntimeOptions {
            threads: 2,
            retention: Retention {
                policy,
                anchors: bounded.then_some(32),
                window: bounded.then_some(320),
                ..Retention::default()
            },
            ..RuntimeOptions::default()
        };
        let mut runtime = Runtime::new(model.clone(), &options).unwrap();
        for context in [640, 655] {
            let case = Task::Recall.case(model.tokenizer(), &filler, context, 0, 0);
            let verdicts = choice::judge(&mut runtime, &case).unwrap();
            for (question, verdict) in case.questions.iter().zip(&verdicts).take(2) {
                let alone: Vec<f64> = question
                    .answers
                    .iter()
                    .map(|answer| alone(&mut runtime, &case.prompt, &question.ask, answer))
                    .collect();
                let sum: f64 = alone.iter().map(|score| score.exp()).sum();
                let logprob = alone[0] - sum.ln();
                let distance = (logprob - verdict.logprob).abs();
                assert!(distance < 1e-9, "{policy:?} {logprob} {verdict:?}");
            }
        }
    }
}

/// Log-probability of an answer, everything read from an empty sequence.
fn alone(runtime: &mut Runtime, prompt: &[u32], ask: &[u32], answer: &[u32]) -> f64 {
    let read = [prompt, ask].concat();
    let (&last, read) = read.split_last().unwrap();
    let vocab = runtime.model().config().vocab;
    let id = runtime.open().unwrap();
    let mut on = |_: usize| ControlFlow::Continue(());
    runtime.feed(id, read, &mut on).unwrap();
    let fed = [&[last], &answer[..answer.len() - 1]].concat();
    let logits = runtime.all_logits(id, &fed).unwrap();
    runtime.close(id).unwrap();
    let rows = logits.chunks_exact(vocab);
    let scores = rows
        .zip(answer)
        .map(|(row, &next)| sample::logprob_of(row, next).unwrap());
    scores.sum()
}

/// Records are as long as was asked for, the same again, and say what is asked for once, in the third it is asked for.
#[test]
fn records_hold_their_answers_once() {
    let model = model("records");
    let tokenizer = model.tokenizer();
    let encode = |text: &str| {
        let plain = EncodeOptions {
            add_special: false,
            parse_special: false,
        };
        tokenizer.encode(text, plain).unwrap()
    };
    let of = |tokens, seed, number| records::record(tokenizer, tokens, seed, number);
    assert_eq!(of(9000, 1, 2), of(9000, 1, 2));
    assert_ne!(of(9000, 1, 2), of(9000, 2, 2));
    for number in 0..20 {
        let record = of(9000, 0, number);
        let all = record.prompt.len();
        assert!((8000..9000).contains(&all), "{all}");
        assert_eq!(record.questions.len(), records::THIRDS);
        for (third, question) in record.questions.iter().enumerate() {
            assert!(3 * question.at / all == third, "{} of {all}", question.at);
            let answer = encode(&question.answer);
            let places = record.prompt.windows(answer.len());
            let places = places.filter(|window| **window == answer).count();
            assert_eq!(places, 1, "{}", question.answer);
        }
    }
    // Hardly any room: the facts, and nothing else.
    assert_eq!(of(40, 0, 0).questions.len(), records::THIRDS);
    assert!(records::is_right(" 4182.", "4182") && records::is_right("4182", "4182"));
    assert!(!records::is_right(" 41825", "4182") && !records::is_right("is 4182", "4182"));
}
