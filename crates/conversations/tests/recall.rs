//! Turns that left memory come back when a question is about them: by their words, without an encoder, and as many as the
//! budget has room for.

use crate::common;

use common::load;
use common::session::{Words, say, seen, try_say};
use haversack_conversations::session::relevance::Relevance;
use haversack_conversations::session::turns::TurnPlace;
use haversack_conversations::session::{
    Embed, Ranking, SessionId, SessionOptions, SessionSettings, Sessions, TurnAnswer,
};
use haversack_engine::encoder::{Embedding, EncoderError};
use haversack_engine::{Model, Repack, Retention, Runtime, RuntimeOptions};
use haversack_testing::models::Spec;
use std::path::Path;
use std::sync::Arc;

fn tiny(dir: &Path) -> Arc<Model> {
    let path = dir.join("tiny.gguf");
    let spec = Spec {
        context: 4096,
        ..Spec::named("llama").unwrap()
    };
    spec.write_file(&path).unwrap();
    load(&path, Repack::Off)
}

fn runtime(model: &Arc<Model>, dir: &Path, budget_bytes: Option<usize>) -> Runtime {
    let options = RuntimeOptions {
        threads: 1,
        retention: Retention::managed(),
        budget_bytes,
        cache_dir: Some(dir.to_owned()),
        ..RuntimeOptions::default()
    };
    Runtime::new(model.clone(), &options).unwrap()
}

fn options(dir: &Path, settings: SessionSettings) -> SessionOptions {
    SessionOptions {
        dir: Some(dir.join("sessions")),
        settings: SessionSettings {
            persistent_max: Some(64),
            answer_max: Some(8),
            ..settings
        },
        ..SessionOptions::default()
    }
}

fn capacity(tokens: usize) -> SessionSettings {
    SessionSettings {
        capacity: Some(tokens),
        ..SessionSettings::default()
    }
}

/// What no question is about.
fn small_talk(i: usize) -> String {
    let things = [
        "lamp", "river", "violin", "bread", "glove", "comet", "fence",
    ];
    let (thing, other) = (things[i % 7], things[(i / 7 + i) % 7]);
    format!("What is the {thing} number {i} of, and the {other}?")
}

const SECRET: &str = "The name of my cat is Miso, and she is orange.";
const TOLD: u64 = 3;

/// Sixty turns, with a fact in one of the first.
fn talk(sessions: &mut Sessions, runtime: &mut Runtime, id: SessionId) {
    for i in 0..60 {
        let text = match i as u64 {
            TOLD => SECRET.to_owned(),
            _ => small_talk(i),
        };
        let answer = say(sessions, runtime, id, &text);
        assert_eq!((answer.context.masked, answer.context.evicted), (0, 0));
        assert!(answer.context.unjudged);
    }
}

fn place(sessions: &Sessions, id: SessionId, number: u64) -> TurnPlace {
    let turns = sessions.turns(id).unwrap();
    let turn = turns.iter().find(|turn| turn.number == number);
    turn.unwrap().place
}

fn is_seen(sessions: &Sessions, runtime: &Runtime, id: SessionId, number: u64) -> bool {
    let seen = seen(runtime, sessions, id);
    let view = sessions.turn(id, number).unwrap();
    view.turn
        .span
        .clone()
        .all(|position| seen.contains(&position))
}

/// What a turn that came back was ranked by.
fn by(answer: &TurnAnswer, number: u64) -> Option<Ranking> {
    let context = &answer.context;
    let at = context.recalled.iter().position(|&turn| turn == number);
    context.recalled_by[at.unwrap_or_else(|| panic!("{context:?}"))].map(|rank| rank.by)
}

#[test]
fn a_turn_comes_back_by_its_words() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path());
    let options = options(dir.path(), capacity(400));
    let mut answers: Vec<TurnAnswer> = Vec::new();
    // Without a budget; with one that leaves few words in memory; and resumed before every question.
    for (name, resumes, budget) in [
        ("whole", false, None),
        ("words", false, Some(8 << 20)),
        ("resumed", true, None),
    ] {
        let mut runtime = runtime(&model, dir.path(), budget);
        let mut sessions = Sessions::new(&runtime, options.clone()).unwrap();
        let id = sessions.create(&mut runtime, name, "", 0).unwrap();
        talk(&mut sessions, &mut runtime, id);
        assert_eq!(place(&sessions, id, TOLD), TurnPlace::Spilled);
        let mut id = id;
        let mut ask = |sessions: &mut Sessions, runtime: &mut Runtime, text: &str| {
            if resumes {
                sessions.suspend(runtime, id).unwrap();
                id = sessions.resume(runtime, name).unwrap();
            }
            (say(sessions, runtime, id, text), id)
        };
        let (vague, _) = ask(&mut sessions, &mut runtime, "What is it of?");
        assert_eq!(vague.context.recalled, [], "{:?}", vague.context);
        let (told, id) = ask(&mut sessions, &mut runtime, "How do I CALL my cat?");
        assert_eq!(by(&told, TOLD), Some(Ranking::Words));
        assert_eq!(told.context.masked, 0);
        assert!(is_seen(&sessions, &runtime, id, TOLD));
        let report = sessions.report(&runtime, id).unwrap();
        let ranked = report.turns.iter().find(|turn| turn.turn.number == TOLD);
        let rank = ranked.unwrap().rank.unwrap();
        assert!(
            rank.by == Ranking::Words && rank.similarity > 0.1,
            "{rank:?}"
        );
        let (other, id) = ask(&mut sessions, &mut runtime, "And comet number 12?");
        assert!(other.context.recalled.contains(&12), "{:?}", other.context);
        // What was asked for was not ranked.
        let turns = sessions.turns(id).unwrap();
        let away = turns.iter().find(|turn| turn.place == TurnPlace::Spilled);
        let away = away.unwrap().number;
        sessions.recall(id, away).unwrap();
        let wanted = say(&mut sessions, &mut runtime, id, "zzz");
        assert_eq!(wanted.context.recalled, [away]);
        assert_eq!(wanted.context.recalled_by, [None]);
        let given = [vague, told, other, wanted];
        match answers.is_empty() {
            true => answers.extend(given),
            false => {
                for (expected, found) in answers.iter().zip(&given) {
                    assert_eq!(expected.tokens, found.tokens, "{name}");
                    assert_eq!(expected.context.recalled, found.context.recalled, "{name}");
                }
            }
        }
        sessions.close(&mut runtime, id).unwrap();
    }
}

/// An encoder that is there later ranks what it has embedded, and words the rest.
#[test]
fn turns_without_an_embedding_are_ranked_by_words() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path());
    let options = options(dir.path(), capacity(400));
    let mut runtime = runtime(&model, dir.path(), None);
    let mut sessions = Sessions::new(&runtime, options.clone()).unwrap();
    let id = sessions.create(&mut runtime, "later", "", 0).unwrap();
    talk(&mut sessions, &mut runtime, id);
    sessions.suspend(&mut runtime, id).unwrap();
    let sessions_then = Sessions::new(&runtime, options.clone()).unwrap();
    let mut sessions = sessions_then.with_encoder(Arc::new(Words));
    let id = sessions.resume(&mut runtime, "later").unwrap();
    for i in 60..90 {
        let text = match i {
            62 => "My dog is called Rex, and Rex barks.".to_owned(),
            _ => small_talk(i),
        };
        say(&mut sessions, &mut runtime, id, &text);
    }
    assert_ne!(place(&sessions, id, 62), TurnPlace::Live);
    let answer = say(
        &mut sessions,
        &mut runtime,
        id,
        "My orange cat Miso, and my dog Rex that barks?",
    );
    assert_eq!(by(&answer, TOLD), Some(Ranking::Words));
    // Its words speak for it too.
    assert!(by(&answer, 62).is_some());
}

/// To which no two texts are alike.
struct Deaf;

impl Embed for Deaf {
    fn embed(&self, text: &str) -> Result<Embedding, EncoderError> {
        Words.embed(&text.replace(|c: char| !c.is_alphanumeric(), "x"))
    }
}

/// An encoder that hears nothing in a turn does not hide it from words. A threshold is one of its own scale.
#[test]
fn words_find_what_the_encoder_misses() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path());
    let question = "And what is the name of my cat?";
    for (name, relevance) in [
        ("top", Relevance::default()),
        ("threshold", Relevance::Threshold(0.5)),
    ] {
        let settings = SessionSettings {
            relevance: Some(relevance),
            ..capacity(400)
        };
        let options = options(dir.path(), settings);
        let mut runtime = runtime(&model, dir.path(), None);
        let sessions = Sessions::new(&runtime, options).unwrap();
        let mut sessions = sessions.with_encoder(Arc::new(Deaf));
        let id = sessions.create(&mut runtime, name, "", 0).unwrap();
        for i in 0..60 {
            let text = match i as u64 {
                TOLD => SECRET.to_owned(),
                _ => small_talk(i),
            };
            say(&mut sessions, &mut runtime, id, &text);
        }
        assert_ne!(place(&sessions, id, TOLD), TurnPlace::Live);
        let answer = say(&mut sessions, &mut runtime, id, question);
        match relevance {
            Relevance::Threshold(_) => {
                let mut ranks = answer.context.recalled_by.iter().flatten();
                assert!(ranks.all(|rank| rank.by != Ranking::Words));
            }
            _ => assert!(
                answer.context.recalled.contains(&TOLD),
                "{:?}",
                answer.context
            ),
        }
    }
}

/// Others take most of a budget. A question that recalled turns failed for want of memory where one of the same length
/// without them was answered: tokens that are read again were not counted, and a step between many gaps was too large.
/// It recalls fewer, in smaller steps.
#[test]
fn a_tight_budget_recalls_fewer_turns() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path());
    let settings = SessionSettings {
        capacity: Some(700),
        // The file has ids alone of most turns.
        quota_bytes: Some(500 << 10),
        ..SessionSettings::default()
    };
    let options = options(dir.path(), settings);
    let asked = "my cat Miso, the violin number 2, the bread number 17, the comet number 12";
    let sessions_of = |runtime: &Runtime| {
        let sessions = Sessions::new(runtime, options.clone()).unwrap();
        sessions.with_encoder(Arc::new(Words))
    };
    let file = dir.path().join("sessions/anna.session");
    let budget = {
        let mut runtime = runtime(&model, dir.path(), None);
        let mut sessions = sessions_of(&runtime);
        let id = sessions.create(&mut runtime, "anna", "", 0).unwrap();
        for i in 0..60 {
            let text = match i as u64 {
                TOLD => SECRET.to_owned(),
                _ => small_talk(i),
            };
            say(&mut sessions, &mut runtime, id, &text);
        }
        let turns = sessions.turns(id).unwrap();
        let ids = turns.iter().filter(|turn| turn.place == TurnPlace::Ids);
        assert!(ids.count() > 4, "{turns:?}");
        sessions.suspend(&mut runtime, id).unwrap();
        runtime.ledger().peak * 2
    };
    let whole = std::fs::read(&file).unwrap();
    let (mut most, mut fewest) = (0, usize::MAX);
    for left in (100..2000).rev().step_by(16) {
        let ask = |text: &str| {
            std::fs::write(&file, &whole).unwrap();
            let mut runtime = runtime(&model, dir.path(), Some(budget));
            let mut sessions = sessions_of(&runtime);
            let id = sessions.resume(&mut runtime, "anna").unwrap();
            let free = budget - runtime.ledger().total();
            let taken = free.saturating_sub(left << 10);
            runtime.charge_side(taken).unwrap();
            let answer = try_say(&mut sessions, &mut runtime, id, text);
            (answer, runtime.ledger().peak)
        };
        // Where there is room for a longer question, there is room for this one, whatever it recalls.
        if ask(&"zq ".repeat(40)).0.is_err() {
            break;
        }
        let (answer, peak) = ask(asked);
        let answer = answer.unwrap_or_else(|error| panic!("{left} KiB: {error}"));
        assert!(peak <= budget);
        let recalled = answer.context.recalled.len();
        (most, fewest) = (most.max(recalled), fewest.min(recalled));
    }
    assert!(most > fewest, "{most} {fewest}");
}
