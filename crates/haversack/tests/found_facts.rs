//! Facts that are found in what the user said: they enter on request alone, in the user's words, inside the budget.

use haversack::{Conversation, Engine, EngineBuilder, Error, FoundFact, SearchStop};
use haversack_testing::models::Spec;
use std::path::Path;
use std::time::{Duration, Instant};

/// A tiny model with random weights, whose context holds the examples of a search in its short tokens.
fn builder(dir: &Path) -> EngineBuilder {
    let path = dir.join("tiny.gguf");
    let spec = Spec {
        context: 8192,
        ..Spec::named("llama").unwrap()
    };
    spec.write_file(&path).unwrap();
    Engine::open(path).threads(1).memory("64M")
}

const SAID: &str =
    "I live in Ghent. My dog is called Rex! What is 2 + 2? If I were rich, I would travel.";

fn talked(engine: &Engine) -> Conversation {
    let anna = engine.conversation("anna").system("Be brief.").open();
    let anna = anna.unwrap();
    anna.say("Hello.").max_tokens(2).run().unwrap();
    anna.say(SAID).max_tokens(2).run().unwrap();
    anna
}

/// What a turn says of where the user lives, found by hand.
fn lives(text: &str, turn: u64, supersedes: Option<u64>) -> FoundFact {
    FoundFact {
        text: format!("The user said: {text}"),
        found_in: turn,
        supersedes,
    }
}

/// Random weights choose anything; what they choose from are the user's statements, and nothing changes by itself.
#[test]
fn a_search_returns_sentences_of_the_user_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).start().unwrap();
    let anna = talked(&engine);
    let before = anna.view(8).unwrap();
    let asked = engine.metrics().completed;
    for fact in anna.find_facts(1).run().unwrap() {
        assert!(["I live in Ghent.", "My dog is called Rex!"].contains(&fact.words()));
        assert_eq!(fact.found_in, 1);
    }
    let after = anna.view(8).unwrap();
    assert_eq!(after.facts, before.facts);
    assert_eq!(after.facts.len(), 1, "answers add no facts");
    assert_eq!(
        (after.stats.position, &after.turns),
        (before.stats.position, &before.turns)
    );
    // Both statements were put before the model, the question and the supposition were not; the examples were read once.
    assert_eq!(engine.metrics().completed, asked + 2);
    assert_eq!(engine.metrics().prefix_cache.hits, 1);
    assert!(matches!(anna.find_facts(9).run(), Err(Error::Session(_))));
}

/// What was found enters like what is told, at the end of the turns so far, and is there when the session is opened again.
#[test]
fn found_facts_replace_others_and_are_saved() {
    let dir = tempfile::tempdir().unwrap();
    let sessions = dir.path().join("sessions");
    let start = || builder(dir.path()).sessions(&sessions).start().unwrap();
    let asked = |anna: &Conversation| anna.say("Where do I live?").max_tokens(8).run().unwrap();
    let (facts, answer) = {
        let anna = talked(&start());
        let told = anna
            .add_found_fact(&lives("I live in Ghent.", 1, None))
            .unwrap();
        anna.say("I live in Porto now.")
            .max_tokens(2)
            .run()
            .unwrap();
        let later = lives("I live in Porto now.", 2, Some(told));
        let number = anna.add_found_fact(&later).unwrap();
        // What it replaces is gone: it enters once.
        assert!(anna.add_found_fact(&later).is_err());
        let facts = anna.facts().unwrap();
        assert_eq!(facts.len(), 2);
        let fact = &facts[1];
        assert_eq!((fact.number, fact.found_in), (number, Some(2)));
        assert_eq!(fact.text, "The user said: I live in Porto now.");
        anna.suspend().unwrap();
        let copy = anna.fork("copy").unwrap();
        (facts, asked(&copy))
    };
    let anna = start().conversation("anna").open().unwrap();
    assert_eq!(anna.facts().unwrap(), facts);
    assert_eq!(asked(&anna), answer);
}

/// Facts that a turn tells leave with it; those of other turns stay.
#[test]
fn a_turn_that_is_taken_back_takes_its_facts_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let sessions = dir.path().join("sessions");
    let start = || builder(dir.path()).sessions(&sessions).start().unwrap();
    let facts = {
        let anna = talked(&start());
        anna.add_fact("Anna is brief.").unwrap();
        anna.add_fact_of(0, "Anna says hello.").unwrap();
        anna.add_found_fact(&lives("I live in Ghent.", 1, None))
            .unwrap();
        assert_eq!(anna.retract().unwrap(), Some(1));
        let facts = anna.facts().unwrap();
        let texts: Vec<&str> = facts.iter().map(|fact| &fact.text[..]).collect();
        assert_eq!(texts, ["Be brief.", "Anna is brief.", "Anna says hello."]);
        facts
    };
    let anna = start().conversation("anna").open().unwrap();
    assert_eq!(anna.facts().unwrap(), facts);
}

fn until_idle(engine: &Engine) {
    let start = Instant::now();
    loop {
        let health = engine.client().health();
        if health.waiting + health.active == 0 {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{health:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A search that is stopped leaves no request behind.
#[test]
fn a_search_ends_when_it_is_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).batch(1).queue(1).start().unwrap();
    let anna = talked(&engine);
    let stopped = SearchStop::default();
    stopped.stop();
    assert!(anna.find_facts(1).run_until(&stopped).unwrap().is_none());
    for delay_ms in [0, 1, 5, 20, 80] {
        let stop = SearchStop::default();
        let search = std::thread::spawn({
            let (anna, stop) = (anna.clone(), stop.clone());
            move || anna.find_facts(1).run_until(&stop)
        });
        std::thread::sleep(Duration::from_millis(delay_ms));
        stop.stop();
        // A search of random weights takes some of these times; either way the next message has its place.
        search.join().unwrap().unwrap();
        anna.say("And now?").max_tokens(1).run().unwrap();
        until_idle(&engine);
    }
}

/// A search takes what the budget has left, or fails; the conversation goes on.
#[test]
fn a_search_stays_inside_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    let mut found_room = [false; 2];
    for kib in [600, 800, 1200, 4096] {
        let engine = builder(dir.path()).memory(kib * 1024).start();
        let Ok(engine) = engine else { continue };
        let Ok(anna) = engine.conversation("anna").open() else {
            continue;
        };
        if anna.say(SAID).max_tokens(2).run().is_err() {
            continue;
        }
        let found = anna.find_facts(0).run();
        found_room[usize::from(found.is_ok())] = true;
        let ledger = engine.memory().unwrap().ledger;
        assert!(ledger.peak <= kib as usize * 1024, "{ledger:?}");
        anna.say("And now?").max_tokens(1).run().unwrap();
    }
    assert_eq!(
        found_room, [true; 2],
        "some budgets have room for a search, some have not"
    );
}
