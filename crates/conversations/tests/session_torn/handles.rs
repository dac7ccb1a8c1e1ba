//! Handles of sessions that are closed, clocks that go back, facts past the cap.

use crate::script::{OPENING, say};
use crate::{World, quick_dir};
use haversack_conversations::session::SessionStats;
use haversack_conversations::session::{SessionError, SessionId, Sessions};
use haversack_engine::Runtime;
use haversack_engine::runtime::GenerateOptions;
use haversack_engine::sample::{SampleOptions, Sampler};
use std::ops::ControlFlow;

/// Every call with a handle.
fn refused(sessions: &mut Sessions, runtime: &mut Runtime, id: SessionId) {
    let mut errors = vec![
        say(sessions, runtime, id, "hello").unwrap_err(),
        sessions.add_fact(runtime, id, "A fact.", 0).unwrap_err(),
        sessions
            .supersede(runtime, id, 1, "A fact.", 0)
            .unwrap_err(),
        sessions.revoke(runtime, id, 1).unwrap_err(),
        sessions.retract(runtime, id).unwrap_err(),
        sessions.pin(runtime, id, 0, true).unwrap_err(),
        sessions.recall(id, 0).unwrap_err(),
        sessions.suspend(runtime, id).unwrap_err(),
        sessions.close(runtime, id).unwrap_err(),
        sessions.fork(runtime, id, "fork").unwrap_err(),
        sessions.stats(runtime, id).unwrap_err(),
        sessions.turn(id, 0).unwrap_err(),
        sessions.sequence(id).unwrap_err(),
    ];
    errors.push(sessions.facts(id).unwrap_err());
    errors.push(sessions.turns(id).unwrap_err());
    for error in errors {
        assert!(matches!(error, SessionError::Closed { .. }), "{error}");
        let line = error.to_string();
        assert!(
            line.starts_with("session ") && line.ends_with(" is closed"),
            "{line}"
        );
    }
}

#[test]
fn closed_and_unknown_handles() {
    let folder = quick_dir();
    let world = World::tiny(folder.path(), 1);
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let one = sessions.create(&mut runtime, "one", OPENING, 0).unwrap();
    let two = sessions.create(&mut runtime, "two", OPENING, 0).unwrap();
    sessions.suspend(&mut runtime, one).unwrap();
    refused(&mut sessions, &mut runtime, one);
    // Its slot is used again; the old handle is not the new session's.
    let again = sessions.resume(&mut runtime, "one").unwrap();
    assert_ne!(one, again);
    refused(&mut sessions, &mut runtime, one);
    say(&mut sessions, &mut runtime, again, "hello").unwrap();
    // A handle of others.
    let mut others = world.sessions(&runtime);
    refused(&mut others, &mut runtime, two);
    assert!(!world.file("fork").exists());
    for id in [again, two] {
        sessions.close(&mut runtime, id).unwrap();
    }
    assert_eq!(runtime.ledger().kv_live, 0);
}

#[test]
fn a_clock_that_goes_back() {
    let folder = quick_dir();
    let world = World::tiny(folder.path(), 1);
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let mut id = sessions
        .create(&mut runtime, "clock", OPENING, 5_000)
        .unwrap();
    let mut expected = Vec::new();
    let mut latest = 5_000;
    for (i, now) in [7_000, 6_000, 0, 8_000, u64::MAX, 3]
        .into_iter()
        .enumerate()
    {
        let mut sampler = Sampler::new(SampleOptions::default()).unwrap();
        let mut go_on = |_: haversack_engine::runtime::GenerateEvent<'_>| ControlFlow::Continue(());
        let options = GenerateOptions::default();
        let answer = sessions.say(
            &mut runtime,
            id,
            "hello",
            now,
            &mut sampler,
            &options,
            &mut go_on,
        );
        answer.unwrap();
        latest = now.max(latest);
        expected.push(latest);
        if i == 2 {
            sessions.suspend(&mut runtime, id).unwrap();
            id = sessions.resume(&mut runtime, "clock").unwrap();
        }
    }
    let turns = sessions.turns(id).unwrap();
    let times = turns
        .iter()
        .map(|t| sessions.turn(id, t.number).unwrap().time_ms);
    assert_eq!(times.collect::<Vec<_>>(), expected);
}

#[test]
fn facts_past_the_cap_change_nothing() {
    let folder = quick_dir();
    let world = World::tiny(folder.path(), 1);
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let id = sessions.create(&mut runtime, "full", OPENING, 0).unwrap();
    let mut facts = 0;
    let refused = loop {
        match sessions.add_fact(&mut runtime, id, "The shop opens at nine.", 0) {
            Ok(_) => facts += 1,
            Err(error) => break error.to_string(),
        }
    };
    assert!(facts > 1);
    assert!(
        refused.starts_with("the persistent stream would have "),
        "{refused}"
    );
    assert!(
        refused.ends_with("accepted: at most 300, facts included"),
        "{refused}"
    );
    let stats = |sessions: &Sessions, runtime: &Runtime| -> SessionStats {
        sessions.stats(runtime, id).unwrap()
    };
    let before = stats(&sessions, &runtime);
    assert!(before.persistent <= 300);
    let long = "word ".repeat(500);
    assert!(sessions.supersede(&mut runtime, id, 1, &long, 0).is_err());
    assert_eq!(stats(&sessions, &runtime), before);
    // One in the place of another of its length fits.
    let number = sessions.supersede(&mut runtime, id, 1, "The shop opens at five.", 0);
    assert_eq!(number.unwrap(), facts + 1);
    let opening = "word ".repeat(3000);
    let error = sessions
        .create(&mut runtime, "long", &opening, 0)
        .unwrap_err();
    assert!(matches!(error, SessionError::PersistentFull { .. }));
    assert!(!world.file("long").exists());
}
