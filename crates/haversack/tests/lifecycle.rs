//! What an app does beside talking: plan, go to the background, give memory back, end an answer from another thread.

mod common;

use common::{builder, model};
use haversack::engine::runtime::Finish;
use haversack::engine::sample::SampleOptions;
use haversack::{Engine, ErrorKind};

#[test]
fn a_plan_says_what_the_engine_holds_later() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path());
    let plan = Engine::open(&path).memory("64M").plan().unwrap();
    assert_eq!(plan.context, 2048);
    assert!(plan.weights_bytes > 0 && plan.weights_bytes <= path.metadata().unwrap().len());
    assert!(plan.context_bytes > plan.context * plan.token_bytes);
    assert!(plan.tokens_max.unwrap() > plan.context, "{plan:?}");
    let short = Engine::open(&path).context(256).plan().unwrap();
    assert!(short.context_bytes < plan.context_bytes && short.tokens_max.is_none());

    let engine = builder(dir.path()).start().unwrap();
    let memory = engine.memory().unwrap();
    // Of the embedding a token reads one row.
    assert!((1..=plan.weights_bytes).contains(&(memory.weights_bytes as u64)));
    let long = engine.complete("a").max_tokens(900).ignore_end(true);
    let mut answer = long.send().unwrap();
    answer.text().unwrap();
    assert!(answer.report().bytes() > 800 * plan.token_bytes as u64);
    let ledger = engine.memory().unwrap().ledger;
    assert!(ledger.kv_peak > 900 * plan.token_bytes, "{ledger:?}");
    assert!(ledger.kv_peak < plan.context_bytes, "{ledger:?}");

    let absent = Engine::open(dir.path().join("absent.gguf")).plan();
    assert_eq!(absent.unwrap_err().kind(), ErrorKind::NotFound);
    std::fs::write(&path, "not a model").unwrap();
    let wrong = Engine::open(&path).plan();
    assert_eq!(wrong.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_suspended_engine_holds_no_conversation_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let sessions = dir.path().join("sessions");
    let engine = builder(dir.path()).sessions(&sessions).start().unwrap();
    let anna = engine
        .conversation("anna")
        .system("Be brief.")
        .open()
        .unwrap();
    let ben = engine.conversation("ben").open().unwrap();
    for talk in [&anna, &ben] {
        let mut answer = talk
            .say("My cat is called Miso.")
            .max_tokens(40)
            .send()
            .unwrap();
        answer.text().unwrap();
        assert!(answer.report().bytes() > 0);
    }
    let held = || engine.memory().unwrap().ledger.kv_live;
    let before = held();
    engine.suspend().unwrap();
    assert!(engine.memory().unwrap().sequences.is_empty());
    assert!(held() < before, "{} of {before} bytes", held());
    anna.resume().unwrap();
    assert_eq!(engine.memory().unwrap().sequences.len(), 1);
    assert_eq!(anna.turns().unwrap().len(), 1);
    assert!(!ben.say("And now?").max_tokens(8).run().unwrap().is_empty());
    ben.clone().delete().unwrap();
    assert_eq!(ben.resume().unwrap_err().kind(), ErrorKind::NotFound);
}

/// Trimming stops as soon as enough is free, caches first.
#[test]
fn trimming_gives_back_what_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let sessions = dir.path().join("sessions");
    let engine = builder(dir.path()).sessions(&sessions).start().unwrap();
    for name in ["anna", "ben"] {
        let talk = engine.conversation(name).open().unwrap();
        talk.say("My cat is called Miso.")
            .max_tokens(60)
            .run()
            .unwrap();
    }
    assert_eq!(engine.trim(0).unwrap(), 0);
    let open = || engine.memory().unwrap().sequences.len();
    assert_eq!(open(), 2);
    engine
        .complete("a")
        .max_tokens(60)
        .ignore_end(true)
        .run()
        .unwrap();
    assert!(engine.trim(1).unwrap() >= 1);
    assert_eq!(open(), 2, "the prefix cache was enough");
    assert!(engine.trim(usize::MAX).unwrap() > 0);
    assert_eq!(open(), 0);
    assert_eq!(engine.trim(usize::MAX).unwrap(), 0);
}

#[test]
fn another_thread_ends_an_answer_and_its_turn_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).start().unwrap();
    let anna = engine.conversation("anna").open().unwrap();
    let ends = engine.model().tokenizer().ends().iter();
    let options = SampleOptions {
        logit_bias: ends.map(|&id| (id, f32::NEG_INFINITY)).collect(),
        ..SampleOptions::default()
    };
    let mut answer = anna
        .say("Go on.")
        .max_tokens(1000)
        .sample(options)
        .send()
        .unwrap();
    assert!(answer.next().unwrap().is_ok());
    let stopper = answer.stopper();
    std::thread::scope(|scope| {
        scope.spawn(|| stopper.stop());
        assert!(answer.by_ref().all(|piece| piece.is_ok()));
    });
    assert_eq!(answer.finish(), Some(Finish::Cancelled));
    assert!(answer.report().tokens < 1000);
    assert_eq!(anna.turns().unwrap().len(), 1);
    // It is over.
    stopper.stop();
    assert_eq!(anna.turns().unwrap().len(), 1);
}

#[test]
fn a_page_has_all_that_was_said() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).start().unwrap();
    let anna = engine
        .conversation("anna")
        .system("Be brief.")
        .open()
        .unwrap();
    anna.say("Hello.").max_tokens(6).run().unwrap();
    anna.add_fact("Miso is a cat.").unwrap();
    anna.set_state("It rains.", None).unwrap();
    let page = anna.export().unwrap();
    let answer = &anna.turns().unwrap()[0].answer;
    for part in [
        "# Session anna\n",
        "## Fact 0\n\nBe brief.\n",
        "Miso is a cat.",
        "**User**\n\nHello.\n",
        answer,
        "\n\nIt rains.\n",
    ] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
}

#[test]
fn texts_are_embedded_only_where_there_is_an_encoder() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).start().unwrap();
    let refused = engine.embed("cat").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
}
