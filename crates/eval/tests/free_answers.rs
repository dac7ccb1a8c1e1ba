//! A short talk in sessions of the library: what is shown is what was chosen, and no question sees another.

use haversack_eval::free_answers::choices::TurnChoice;
use haversack_eval::free_answers::library::{
    GivenAnswer, InstructionPlace, TalkEngine, TalkListener,
};
use haversack_eval::free_answers::table::{AnswerSummary, JudgedAnswer};
use haversack_eval::long_talk::{Hardness, LongQuestion, LongTalk, NOT_MENTIONED};
use haversack_testing::models::Spec;
use std::path::Path;

const TURNS: usize = 24;
const CAPACITY: usize = 768;
const FULL: usize = 3072;

fn engine(name: &str) -> TalkEngine {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let model = folder.join("tiny.gguf");
    let spec = Spec {
        context: 4096,
        ..Spec::named("llama").unwrap()
    };
    spec.write_file(&model).unwrap();
    TalkEngine {
        model,
        encoder: None,
        cache: folder.join("cache"),
        folder,
        instruction: InstructionPlace::Question,
        threads: Some(1),
    }
}

/// Told in its first turn and soon after, before others about the weather.
fn talk() -> LongTalk {
    let mut turns = vec![("It rains.".to_owned(), "So it does.".to_owned()); TURNS];
    turns[0].0 = "Nora took a job at the sawmill.".into();
    turns[4].0 = "Viktor plays the cello.".into();
    let asked = |question: &str, hardness, evidence: &[usize], answer: &str| LongQuestion {
        question: question.into(),
        hardness,
        evidence: evidence.to_vec(),
        answer: answer.into(),
    };
    LongTalk {
        turns,
        asked: vec![
            asked(
                "What job does Nora have?",
                Hardness::Paraphrase,
                &[0],
                "sawmill",
            ),
            asked(
                "What does Viktor play?",
                Hardness::Paraphrase,
                &[4],
                "cello",
            ),
            asked("What does Ines own?", Hardness::Never, &[], NOT_MENTIONED),
        ],
    }
}

fn answers(engine: &TalkEngine, choice: TurnChoice, talk: &LongTalk) -> Vec<GivenAnswer> {
    let tokens = if choice == TurnChoice::Full {
        FULL
    } else {
        CAPACITY
    };
    let name = format!("talk-{tokens}");
    let mut listener = engine.start(choice, tokens).unwrap();
    listener.hear(&name, &talk.turns).unwrap();
    let ask = |asked| listener.ask(&name, talk, asked).unwrap();
    talk.asked.iter().map(ask).collect()
}

fn judged(choice: TurnChoice, talk: &LongTalk, given: &[GivenAnswer]) -> Vec<JudgedAnswer> {
    let asked = (0..).zip(talk.asked.iter().zip(given));
    asked
        .map(|(i, (asked, given))| {
            JudgedAnswer::new(choice, (0, i), asked.hardness.name(), asked, given)
        })
        .collect()
}

#[test]
fn questions_are_shown_what_was_chosen_and_not_each_other() {
    let (engine, talk) = (engine("choices"), talk());
    let mut all = Vec::new();
    for choice in [
        TurnChoice::Full,
        TurnChoice::Window,
        TurnChoice::Words,
        TurnChoice::Oracle,
    ] {
        let given = answers(&engine, choice, &talk);
        // In another order, by another engine on the same files.
        let mut backwards = talk.clone();
        backwards.asked.reverse();
        let mut again = answers(&engine, choice, &backwards);
        again.reverse();
        for (given, again) in given.iter().zip(&again) {
            assert_eq!(given.text, again.text, "{choice:?}");
            assert_eq!(given.is_shown, again.is_shown, "{choice:?}");
            assert_eq!(given.tokens, again.tokens, "{choice:?}");
            let is_full = given.is_shown.iter().all(|&shown| shown);
            assert_eq!(is_full, choice == TurnChoice::Full);
            assert!(given.is_shown.ends_with(&[true, true]), "{choice:?}");
        }
        all.extend(judged(choice, &talk, &given));
    }
    let covered = |choice| AnswerSummary::of(&all, choice, None).covered.mean;
    assert_eq!(covered(TurnChoice::Full), 1.0);
    assert_eq!(covered(TurnChoice::Window), 0.0);
    assert_eq!(covered(TurnChoice::Words), 1.0);
    assert_eq!(covered(TurnChoice::Oracle), 1.0);
    // Random weights know nothing.
    let full = AnswerSummary::of(&all, TurnChoice::Full, None);
    assert_eq!((full.f1.mean, full.f1.count), (0.0, 2));
    assert_eq!((full.invented.mean, full.invented.count), (1.0, 1));
    let tokens = |choice| AnswerSummary::of(&all, choice, None).tokens;
    assert!(tokens(TurnChoice::Window) < tokens(TurnChoice::Full));
}
