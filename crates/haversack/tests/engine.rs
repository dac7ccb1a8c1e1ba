//! The public face: engines, conversations, answers, errors.

mod common;

use common::builder;
use haversack::engine::device::Thermal;
use haversack::engine::runtime::Finish;
use haversack::engine::sample::{Constraint, ConstraintError, SampleOptions};
use haversack::engine::{LoadOptions, Model, Policy, Retention, Runtime, RuntimeOptions};
use haversack::memory::CountedHeap;
use haversack::scheduler::Request;
use haversack::session::{FactView, SessionOptions, SessionRead, Sessions};
use haversack::{
    Answer, AnswerEvent, Client, ContextSeen, Conversation, Engine, EngineOptions, EngineStatus,
    Error, ErrorKind, EventOptions, Owner, Pressure, Rewound, SessionName,
};
use haversack_testing::JournalFaults;
use std::future::Future;
use std::pin::pin;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// As the command has it: the budget covers the heap.
#[global_allocator]
static HEAP: CountedHeap = CountedHeap;

/// Waits until something holds; machines that run tests may be slow.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// An answer that does not end by itself.
fn endless(engine: &Engine, tokens: usize) -> Answer {
    let ends = engine.model().tokenizer().ends().iter();
    let options = SampleOptions {
        logit_bias: ends.map(|&id| (id, f32::NEG_INFINITY)).collect(),
        ..SampleOptions::default()
    };
    let prompt = engine.complete("a").max_tokens(tokens).sample(options);
    prompt.send().unwrap()
}

/// A model may sample a control token that does not end the answer. Its client does not see it, and must not find it when it
/// looks at the turn or sends the conversation back.
#[test]
fn a_turn_is_shown_as_it_was_answered() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).start().unwrap();
    let tokenizer = engine.model().tokenizer();
    let is_marker = |&id: &u32| tokenizer.is_control(id) && !tokenizer.is_end(id);
    let marker = (0..tokenizer.len() as u32).find(is_marker).unwrap();
    let options = SampleOptions {
        logit_bias: [(marker, 100.0)].into_iter().collect(),
        ..SampleOptions::default()
    };
    let anna = engine.conversation("anna").open().unwrap();
    let said = anna.say("one").max_tokens(3).sample(options);
    let said = said.run().unwrap();
    assert_eq!(anna.turns().unwrap()[0].answer, said.trim());
}

/// The date is read before a message where a conversation asks for it, and shown once where the conversation is exported.
#[test]
fn messages_are_dated_where_a_conversation_asks_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).start().unwrap();
    let said = |name: &str, has_dates: bool| {
        let conversation = engine.conversation(name).dates(has_dates).open().unwrap();
        conversation.say("I sing.").max_tokens(2).run().unwrap();
        let turn = conversation.turns().unwrap().remove(0);
        assert_eq!((&turn.text[..], turn.is_dated), ("I sing.", has_dates));
        let tokens = &turn.tokens[..turn.question];
        let read = engine.model().tokenizer().decode(tokens).unwrap();
        (read, conversation.export().unwrap())
    };
    let (read, page) = said("anna", true);
    let (before, date) = read.split_once('[').unwrap();
    let (date, after) = date.split_once("]\n").unwrap();
    assert!(after.starts_with("I sing.") && !before.contains("sing"));
    assert!(page.contains(&format!("## Turn 0, {date}\n\n**User**\n\nI sing.\n")));
    assert_eq!(page.matches(date).count(), 1, "{page}");
    let (read, page) = said("ben", false);
    assert!(!read.contains(date) && page.contains("## Turn 0\n"));
}

/// A client that leaves between sending a request and hearing of its acceptance cannot cancel it by its number. The engine notices
/// when it admits the request; the place was lost for good.
#[test]
fn a_request_whose_sender_leaves_at_once_frees_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).batch(1).queue(1).start().unwrap();
    let options = EventOptions {
        max_behind: 64,
        ..EventOptions::default()
    };
    for _ in 0..8 {
        let request = Request::completion(vec![1]);
        let mut sent = pin!(engine.client().submit(vec![request], options));
        let _ = sent.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    until("a place", || {
        engine.complete("a").max_tokens(1).run().is_ok()
    });
}

fn is_send_sync_clone<T: Send + Sync + Clone>() {}
fn is_send<T: Send>() {}

#[test]
fn handles_go_to_any_thread() {
    is_send_sync_clone::<Engine>();
    is_send_sync_clone::<Conversation>();
    is_send::<Answer>();
    is_send::<Error>();
}

#[test]
fn an_answer_is_streamed_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).start().unwrap();
    let anna = engine
        .conversation("anna")
        .system("Be brief.")
        .open()
        .unwrap();
    let mut answer = anna
        .say("My cat is called Miso.")
        .max_tokens(12)
        .send()
        .unwrap();
    let mut text = String::new();
    for piece in answer.by_ref() {
        let piece = piece.unwrap();
        assert!(!piece.is_empty());
        text += &piece;
    }
    assert!(answer.next().is_none());
    assert_eq!(answer.finish(), Some(Finish::Length));
    let report = answer.report();
    assert_eq!(report.tokens, 12);
    assert!(report.first_token.is_some_and(|first| first <= report.time));
    let ContextSeen::Turn { number, context } = &report.context else {
        panic!("{report}");
    };
    assert_eq!(*number, Some(0));
    assert!(context.kept > 12, "{report}");
    assert!(report.to_string().starts_with("12 tokens in"), "{report}");

    let turns = anna.turns().unwrap();
    assert_eq!(turns.len(), 1);
    assert_eq!(turns[0].text, "My cat is called Miso.");
    assert_eq!(turns[0].answer, text.trim());
    let opening = FactView {
        number: 0,
        text: "Be brief.".to_owned(),
        found_in: None,
    };
    assert_eq!(anna.facts().unwrap(), [opening]);
}

#[test]
fn a_completion_gives_the_same_text_whole_and_streamed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).start().unwrap();
    let prompt = || engine.complete("The capital of France is").max_tokens(24);
    let whole = prompt().run().unwrap();
    let pieces: Result<Vec<String>, Error> = prompt().send().unwrap().collect();
    let pieces = pieces.unwrap();
    assert!(pieces.len() > 1 && pieces.concat() == whole, "{pieces:?}");
    let warm = |seed| prompt().temperature(1.0).seed(seed).run().unwrap();
    assert_eq!(warm(1), warm(1));
    assert_ne!(warm(1), warm(2));
}

#[test]
fn dropping_an_answer_cancels_it() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).batch(1).queue(0).start().unwrap();
    let mut answer = endless(&engine, 1500);
    assert!(answer.next().unwrap().is_ok());
    let refused = engine.complete("b").send().err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    drop(answer);
    until("the place is free again", || {
        engine.complete("b").max_tokens(1).run().is_ok()
    });
    let metrics = engine.metrics();
    assert_eq!((metrics.cancelled, metrics.completed), (1, 1));
    assert!(metrics.refused >= 1 && metrics.active == 0, "{metrics:?}");
}

#[test]
fn an_answer_may_be_read_late() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).start().unwrap();
    let mut answer = endless(&engine, 700);
    until("it is complete", || engine.metrics().completed == 1);
    assert!(answer.text().is_ok());
    assert_eq!(answer.report().tokens, 700);
}

/// Under a window, far beyond the context: what was read is not read again, unless the prompt departs from it where the
/// state of then is gone.
#[test]
fn a_completion_continues_the_last_one() {
    let dir = tempfile::tempdir().unwrap();
    let window = Retention {
        anchors: Some(8),
        window: Some(64),
        ..Retention::by(Policy::Window)
    };
    let engine = builder(dir.path()).context(128).retention(window);
    let engine = engine.prefix_cache(1).start().unwrap();
    let ask = |prompt: &[u32]| {
        let options = EventOptions {
            max_behind: 64,
            ..EventOptions::default()
        };
        let prompt = engine.complete_tokens(prompt.to_vec()).continues();
        let mut events = prompt
            .max_tokens(20)
            .ignore_end(true)
            .events(options)
            .unwrap();
        let mut tokens = Vec::new();
        loop {
            match events.recv().unwrap().1 {
                AnswerEvent::Token { id, .. } => tokens.push(id),
                AnswerEvent::Finished { report, .. } => match report.context {
                    ContextSeen::Completion(held) => return (tokens, held),
                    seen => panic!("{seen:?}"),
                },
                event => panic!("{event:?}"),
            }
        }
    };
    let mut said: Vec<u32> = (0..40).collect();
    for round in 0..8 {
        let (answer, held) = ask(&said);
        assert_eq!(
            held.usage.tokens_seen as usize,
            said.len() + answer.len() - 1
        );
        let expected = if round == 0 { 0 } else { said.len() - 6 };
        assert_eq!(held.reused, expected, "round {round}");
        said.extend(answer);
        said.extend([1, 2, 3, 4, 5]);
    }
    assert!(said.len() > 128);
    // A departure at the beginning cannot be cut back to.
    said[2] = 77;
    assert_eq!(ask(&said[..100]).1.reused, 0);
}

/// An answer that is said otherwise in the next prompt, and a question that is replaced, as in a chat that is not saved:
/// what was read up to the border stays.
#[test]
fn a_continued_completion_goes_back_to_a_border() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).prefix_cache(4).start().unwrap();
    let ask = |prompt: &[u32], borders: &[usize]| {
        let prompt = engine.complete_tokens(prompt.to_vec()).continues();
        let prompt = prompt.max_tokens(50).ignore_end(true);
        let mut answer = prompt.borders(borders.to_vec()).send().unwrap();
        let text = answer.text().unwrap();
        match &answer.report().context {
            ContextSeen::Completion(held) => (text, held.reused),
            seen => panic!("{seen:?}"),
        }
    };
    let fresh = |prompt: &[u32]| {
        let prompt = engine.complete_tokens(prompt.to_vec()).owner(7);
        prompt.max_tokens(50).ignore_end(true).run().unwrap()
    };
    let said: Vec<u32> = (0..200).map(|i| 5 + i * 7 % 90).collect();
    assert_eq!(ask(&said, &[150]).1, 0);
    // The answer in other tokens: all of the prompt is there.
    let longer = [&said[..], &[9; 60], &said[..30]].concat();
    assert_eq!(ask(&longer, &[260]), (fresh(&longer), 200));
    // The question was taken back.
    let other = [&longer[..260], &[8; 40]].concat();
    assert_eq!(ask(&other, &[260]), (fresh(&other), 260));
    // A conversation of its own: nothing is left of the other.
    let new: Vec<u32> = said.iter().rev().copied().collect();
    assert_eq!(ask(&new, &[]).1, 0);
    assert_eq!(ask(&said, &[150]).1, 0);
}

/// Two that continue at the same time: the next one goes on from one of them, never from a mixture.
#[test]
fn of_two_that_continue_at_once_the_last_is_continued() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).start().unwrap();
    let prompt = |text: &str| engine.complete(text).max_tokens(12).ignore_end(true);
    let (a, b) = ("one two three four five six", "one two three four nine ten");
    // The one that ended first is asked for last.
    let alone = [b, a].map(|text| prompt(text).run().unwrap());
    for _ in 0..3 {
        let both = [a, b].map(|text| prompt(text).continues().send().unwrap());
        for mut answer in both {
            assert!(answer.text().is_ok());
        }
        let again = [b, a].map(|text| prompt(text).continues().run().unwrap());
        assert_eq!(again, alone);
    }
}

/// A stopped answer still ends with its report.
#[test]
fn an_answer_can_be_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).start().unwrap();
    let prompt = engine.complete("a").max_tokens(1500).ignore_end(true);
    let options = EventOptions {
        max_behind: 8,
        waits: true,
        ..EventOptions::default()
    };
    let mut events = prompt.events(options).unwrap();
    assert!(matches!(
        events.recv(),
        Some((0, AnswerEvent::Token { .. }))
    ));
    events.stop();
    let mut tokens = 1;
    let finish = loop {
        match events.recv().unwrap().1 {
            AnswerEvent::Token { .. } => tokens += 1,
            AnswerEvent::Finished { finish, report, .. } => {
                assert_eq!(report.tokens, tokens);
                break finish;
            }
            event => panic!("{event:?}"),
        }
    };
    assert_eq!(finish, Finish::Cancelled);
    assert!(tokens < 100, "{tokens}");
}

/// A command of a conversation follows the answer that has ended there, also one that was stopped, and finds it saved. While the
/// disk stands still the command waits, and neither the engine nor another answer does: the engine's thread once waited in its
/// place.
#[test]
fn a_command_follows_the_answer_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::load(
        &common::model(dir.path()),
        &LoadOptions::default(),
        &mut |_, _| (),
    );
    let options = RuntimeOptions {
        retention: Retention::managed(),
        threads: 1,
        ..RuntimeOptions::default()
    };
    let runtime = Runtime::new(model.unwrap(), &options).unwrap();
    let disk = JournalFaults::never();
    let options = SessionOptions {
        dir: Some(dir.path().join("sessions")),
        journal_io: Some(disk.io()),
        ..SessionOptions::default()
    };
    let sessions = Sessions::new(&runtime, options).unwrap();
    let engine = Engine::with_runtime(runtime, Some(sessions), EngineOptions::default()).unwrap();
    let anna = engine.conversation("anna").open().unwrap();
    disk.clone().late();
    for (turn, is_stopped) in [false, true].into_iter().enumerate() {
        let prompt = anna.say("one").max_tokens(if is_stopped { 900 } else { 2 });
        let options = EventOptions {
            max_behind: 1000,
            ..EventOptions::default()
        };
        let mut events = prompt.ignore_end(true).events(options).unwrap();
        for _ in 0..2 {
            let event = events.recv().unwrap().1;
            assert!(matches!(event, AnswerEvent::Token { .. }), "{event:?}");
        }
        if is_stopped {
            events.stop();
        }
        // The turn has been read to its end, and another answer comes and goes.
        let other = || engine.complete("a").max_tokens(20).ignore_end(true).run();
        other().unwrap();
        let mut view = pin!(engine.client().view("anna", 9));
        other().unwrap();
        let mut polled = || view.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled().is_pending(), "before the turn is saved");
        disk.catch_up();
        until("the command is executed", || {
            disk.catch_up();
            engine.metrics().active == 0
        });
        let view = loop {
            if let Poll::Ready(view) = polled() {
                break view.unwrap();
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(view.turns.len(), turn + 1);
        assert!(view.stats.unsaved.is_none());
    }

    // Neither does a command of a session hold up others whose file is long to verify.
    engine.client().suspend("anna").wait().unwrap();
    let mut view = pin!(engine.client().view("anna", 9));
    let mut polled = || view.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let other = || engine.complete("a").max_tokens(20).ignore_end(true).run();
    other().unwrap();
    assert!(polled().is_pending(), "before the file is verified");
    let mut done = None;
    until("the session is opened", || {
        disk.catch_up();
        if let Poll::Ready(view) = polled() {
            done = Some(view.unwrap().turns.len());
        }
        done.is_some()
    });
    assert_eq!(done, Some(2));
}

#[test]
fn two_conversations_at_once_say_what_each_says_alone() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).start().unwrap();
    let say = |name: &str, text: &str| {
        let talk = engine.conversation(name).open().unwrap();
        talk.say(text).max_tokens(40).send().unwrap()
    };
    let alone = [
        say("a", "Rivers.").text().unwrap(),
        say("b", "Mountains.").text().unwrap(),
    ];
    let (mut rivers, mut mountains) = (say("c", "Rivers."), say("d", "Mountains."));
    assert_eq!([rivers.text().unwrap(), mountains.text().unwrap()], alone);
    let metrics = engine.metrics();
    assert!(metrics.step_sequences > metrics.steps, "{metrics:?}");
}

#[test]
fn a_conversation_goes_on_in_the_next_engine() {
    let dir = tempfile::tempdir().unwrap();
    let start = || {
        builder(dir.path())
            .sessions(dir.path().join("sessions"))
            .start()
    };
    let engine = start().unwrap();
    let anna = engine
        .conversation("anna")
        .system("Be brief.")
        .open()
        .unwrap();
    anna.say("My cat is called Miso.")
        .max_tokens(8)
        .run()
        .unwrap();
    anna.add_fact_of(0, "Anna lives in Lisbon.").unwrap();
    let unknown = anna.add_fact_of(1, "Anna has a dog.").unwrap_err();
    assert!(unknown.to_string().contains("turn 1"), "{unknown}");
    drop((anna, engine));

    let engine = start().unwrap();
    assert_eq!(engine.conversations().unwrap()[0].name, "anna");
    let anna = engine
        .conversation("anna")
        .system("Ignored.")
        .open()
        .unwrap();
    let facts = anna.facts().unwrap();
    let facts: Vec<_> = facts.iter().map(|f| (&f.text[..], f.found_in)).collect();
    let expected = [("Be brief.", None), ("Anna lives in Lisbon.", Some(0))];
    assert_eq!(facts, expected);
    let mut answer = anna
        .say("What is my cat called?")
        .max_tokens(8)
        .send()
        .unwrap();
    answer.text().unwrap();
    let ContextSeen::Turn { number, .. } = answer.report().context else {
        panic!("{}", answer.report());
    };
    assert_eq!(number, Some(1));

    let copy = anna.fork("copy").unwrap();
    assert_eq!(copy.turns().unwrap().len(), 2);
    assert_eq!(copy.retract().unwrap(), Some(1));
    copy.recall(0).unwrap();
    assert_eq!(
        (copy.turns().unwrap().len(), anna.turns().unwrap().len()),
        (1, 2)
    );
    copy.delete().unwrap();
    assert_eq!(engine.conversations().unwrap().len(), 1);
}

#[test]
fn every_error_has_its_kind() {
    let dir = tempfile::tempdir().unwrap();
    let kind = |error: Option<Error>| error.unwrap().kind();
    let missing = Engine::open(dir.path().join("missing.gguf")).start();
    assert_eq!(kind(missing.err()), ErrorKind::NotFound);
    let bad = builder(dir.path()).memory("4GB").start();
    assert_eq!(kind(bad.err()), ErrorKind::InvalidInput);
    let small = builder(dir.path()).memory(1 << 10).start();
    assert_eq!(kind(small.err()), ErrorKind::OutOfMemory);

    let engine = builder(dir.path()).start().unwrap();
    let anna = engine.conversation("anna").open().unwrap();
    assert_eq!(kind(anna.revoke_fact(9).err()), ErrorKind::NotFound);
    assert_eq!(kind(anna.recall(9).err()), ErrorKind::NotFound);
    assert_eq!(kind(anna.fork("a/b").err()), ErrorKind::InvalidInput);
    anna.clone().delete().unwrap();
    assert_eq!(kind(anna.say("Hello.").send().err()), ErrorKind::NotFound);
    let long = engine.complete("a ".repeat(5000)).send();
    assert_eq!(kind(long.err()), ErrorKind::TooLarge);
    let hot = engine.complete("a").temperature(-1.0).send();
    assert_eq!(kind(hot.err()), ErrorKind::InvalidInput);
    engine.close().unwrap();
    assert_eq!(kind(engine.complete("a").send().err()), ErrorKind::Closed);
    assert_eq!(kind(engine.memory().err()), ErrorKind::Closed);

    let window = builder(dir.path()).policy(Policy::Window).start().unwrap();
    let none = window.conversation("anna").open();
    assert_eq!(kind(none.err()), ErrorKind::Unsupported);
    assert!(window.complete("a").max_tokens(4).run().is_ok());
}

#[test]
fn the_memory_report_adds_up_and_pressure_moves_conversations_out() {
    let dir = tempfile::tempdir().unwrap();
    let start = builder(dir.path()).sessions(dir.path().join("sessions"));
    let engine = start.start().unwrap();
    let anna = engine.conversation("anna").open().unwrap();
    anna.say("Hello.").max_tokens(8).run().unwrap();
    let report = engine.memory().unwrap();
    assert_eq!(report.sequences.len(), 1);
    let zones: usize = report.zones.iter().map(|zone| zone.bytes).sum();
    assert!(zones > 0 && zones <= report.ledger.kv_live, "{report:?}");
    engine.pressure(Pressure::Critical);
    until("the idle conversation moves to its file", || {
        engine.memory().unwrap().sequences.is_empty()
    });
    engine.pressure(Pressure::Nominal);
    assert!(anna.say("Still there?").max_tokens(8).run().is_ok());
}

/// An executor of one future: parks the thread until it is woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn the_same_calls_are_futures() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).start().unwrap();
    let blocking = engine.complete("Once").max_tokens(30).run().unwrap();
    let streamed = block_on(async {
        let mut answer = engine.complete("Once").max_tokens(30).await?;
        let mut text = String::new();
        while let Some(piece) = answer.next().await {
            text += &piece?;
        }
        assert_eq!(answer.report().tokens, 30);
        let client = engine.client();
        let opening = client.texts()?.opening("", "Be brief.", 0)?;
        let read = Request::read("anna", SessionRead::create(opening), 0);
        assert_eq!(client.read(read).await?, 0);
        assert_eq!(engine.client().view("anna", 0).await?.facts.len(), 1);
        assert_eq!(
            engine
                .client()
                .memory(Owner::default())
                .await?
                .sequences
                .len(),
            1
        );
        Ok::<String, Error>(text)
    });
    assert_eq!(streamed.unwrap(), blocking);
}

/// A history is imported while an answer is given: the answer goes on, a client that leaves takes its import along, and
/// an engine that stops ends it.
#[test]
fn a_history_is_imported_beside_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let files = dir.path().join("sessions");
    let engine = builder(dir.path()).sessions(files).start().unwrap();
    let client = engine.client();
    let turn = |i| (format!("What is {i}?"), format!("It is {i}."));
    let turns: Vec<_> = (0..1000).map(turn).collect();
    let read = |count: usize| {
        let texts = client.texts().unwrap();
        let go_on = &mut || std::ops::ControlFlow::Continue(());
        SessionRead::Create {
            opening: texts.opening("", "Be brief.", 0).unwrap(),
            history: texts.history(&turns[..count], go_on).unwrap(),
        }
    };
    let answer = endless(&engine, 1500);
    let sampled = || engine.metrics().sampled_tokens;
    until("the answer begins", || sampled() > 2);
    let before = sampled();
    let imported = client.read_blocking(Request::read("anna", read(200), 0));
    assert_eq!(imported.unwrap(), 0);
    assert!(sampled() > before + 20, "{} tokens", sampled() - before);
    assert_eq!(client.view("anna", 300).wait().unwrap().turns.len(), 200);
    let import = vec![Request::read("ben", read(200), 0)];
    let left = client.submit_blocking(import, EventOptions::default());
    drop(left.unwrap());
    assert!(!client.open("ben").wait().unwrap());
    drop(answer);
    until("nothing is computed", || engine.metrics().active == 0);
    let stopped = std::thread::scope(|scope| {
        let import = scope.spawn(|| client.read_blocking(Request::read("cleo", read(1000), 0)));
        until("the import begins", || engine.metrics().active == 1);
        client.stop();
        import.join().unwrap()
    });
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Closed);
    engine.close().unwrap();
}

#[cfg(feature = "grammar")]
#[test]
fn structured_output_has_its_shape() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).start().unwrap();
    let answer = engine.complete("a").regex("(yes|no){3}").run().unwrap();
    assert!(
        ["yes", "no"].iter().any(|word| answer.starts_with(word)),
        "{answer}"
    );
    let wrong = engine.complete("a").json_schema("{").send();
    assert_eq!(wrong.err().unwrap().kind(), ErrorKind::InvalidInput);
    let wrong = engine.complete("a").regex("(").send();
    assert_eq!(wrong.err().unwrap().kind(), ErrorKind::InvalidInput);
}

/// What the process allocates counts against the budget from any thread, and before it is allocated.
#[test]
fn the_heap_is_an_account_of_the_budget() {
    const MIB: usize = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).memory("32M").start().unwrap();
    let held = || engine.memory().unwrap().ledger.heap;
    let before = held();
    // Other tests of this program allocate too, and have budgets of 64 MiB: this is more than theirs and fits beside it.
    let taken = vec![1u8; 12 * MIB];
    until("the heap shows", || held() > before + 6 * MIB);
    let heap = engine.client().heap();
    assert!(heap.reserve(30 * MIB).is_err());
    let reserved = heap.reserve(8 * MIB).unwrap();
    until("a reservation shows", || held() > before + 14 * MIB);
    // A request goes on whatever the heap holds.
    let more = vec![1u8; 24 * MIB];
    until("beyond the budget", || held() > 32 * MIB);
    assert!(heap.reserve(MIB).is_err());
    let mut answer = endless(&engine, 8);
    assert!(answer.by_ref().all(|piece| piece.is_ok()));
    assert_eq!(answer.report().tokens, 8);
    drop((taken, more, reserved));
    until("it goes back", || held() < before + 8 * MIB);
    assert!(heap.reserve(8 * MIB).is_ok());
}

/// Heat slows an engine with one caller too, which is what `run` and `chat` use; its tokens stay the same.
#[test]
fn heat_throttles_an_engine_of_one_caller() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).batch(1).queue(1).start().unwrap();
    let text = |answer: Answer| answer.map(Result::unwrap).collect::<String>();
    let cool = text(endless(&engine, 24));
    assert_eq!(engine.metrics().throttle_level, 0);
    engine.thermal(Thermal::Critical);
    let answer = endless(&engine, 24);
    until("it is slowed", || engine.metrics().throttle_level > 0);
    assert_eq!(text(answer), cool);
}

/// Begins a conversation of an owner.
fn begin(client: &Client, name: SessionName<'_>, system: &str) -> Result<(), Error> {
    let opening = client.texts()?.opening("", system, 0)?;
    let request = Request {
        owner: name.owner.user(0),
        ..Request::read(name.name, SessionRead::create(opening), 0)
    };
    client.read_blocking(request).map(drop)
}

/// Fifty owners on one engine, each with the same names, texts and prompts, and each a session that no other has: every
/// owner tries every other's session in every way there is, and finds what it would find alone.
#[test]
fn owners_share_nothing() {
    const OWNERS: usize = 50;
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path())
        .sessions(dir.path().join("sessions"))
        .prefix_cache(2 * OWNERS)
        .start()
        .unwrap();
    let client = engine.client();
    let owners: Vec<Owner> = (0..OWNERS)
        .map(|i| Owner::new(&format!("owner-{i}")).unwrap())
        .collect();
    let own = |i: usize| format!("only-{i}");
    let events = EventOptions {
        max_behind: 8,
        ..EventOptions::default()
    };
    let system = "The same instructions for everyone.".to_owned();
    for (i, owner) in owners.iter().enumerate() {
        begin(client, owner.session("diary"), &system).unwrap();
        begin(client, owner.session(&own(i)), "").unwrap();
        let view = client.view(owner.session(&own(i)), 0).wait().unwrap();
        assert_eq!((view.stats.owner, view.stats.name), (*owner, own(i)));
        client.suspend(owner.session("diary")).wait().unwrap();
    }
    // The text of each was computed for each; what the model begins with was computed once.
    until("openings", || {
        engine.metrics().stats.openings.iter().sum::<u64>() == 2 * OWNERS as u64
    });
    assert_eq!(engine.metrics().stats.openings[0], OWNERS as u64 + 1);

    let missing = |error: Error| assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    for (i, owner) in owners.iter().enumerate() {
        let mut names: Vec<String> = client
            .list(*owner)
            .wait()
            .unwrap()
            .sessions
            .into_iter()
            .map(|s| s.name)
            .collect();
        names.sort();
        assert_eq!(names, ["diary".to_owned(), own(i)]);
        let report = client.memory(*owner).wait().unwrap();
        let named = report.sequences.iter().filter_map(|s| s.owner.session());
        assert!(
            named
                .map(|s| &s.stats)
                .all(|s| s.owner == *owner && names.contains(&s.name))
        );
        for j in (0..OWNERS).filter(|&j| j != i) {
            let theirs = own(j);
            let name = owner.session(&theirs);
            let view = client.view(name, 9);
            let fork = client.fork(name, "copy".into());
            let delete = client.delete(name);
            let (recall, retract) = (client.recall(name, 0), client.retract(name));
            missing(view.wait().unwrap_err());
            missing(fork.wait().unwrap_err());
            missing(delete.wait().unwrap_err());
            missing(recall.wait().unwrap_err());
            missing(retract.wait().unwrap_err());
            let turn = Request::turn(&theirs, "hello");
            let fact = SessionRead::Fact {
                fact: client.texts().unwrap().fact("x").unwrap(),
                supersedes: None,
                found_in: None,
            };
            for request in [turn, Request::read(&theirs, fact, 0)] {
                let owner = owner.user(0);
                let asked = client.submit_blocking(vec![Request { owner, ..request }], events);
                missing(asked.err().unwrap());
            }
        }
    }

    // The same beginning of the same user: known from the owner's own first request on.
    let prompt: Vec<u32> = (10..140).collect();
    let ask = |owner: &Owner, more: &[u32]| {
        let mut request = Request {
            owner: owner.user(7),
            ..Request::completion([&prompt, more].concat())
        };
        request.options.tokens_max = Some(1);
        let mut events = client.submit_blocking(vec![request], events).unwrap();
        loop {
            match events.recv().unwrap().1 {
                AnswerEvent::Finished { report, .. } => match report.context {
                    ContextSeen::Completion(held) => return held.reused,
                    seen => panic!("{seen:?}"),
                },
                AnswerEvent::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
    };
    for owner in &owners {
        assert_eq!(ask(owner, &[]), 0, "{owner}");
        assert_eq!(ask(owner, &[7, 8]), prompt.len(), "{owner}");
    }

    // A file that is moved to another owner is not opened there.
    engine.close().unwrap();
    drop(engine);
    let folder = dir.path().join("sessions");
    let file = |owner: &str| folder.join(owner).join("only-0.session");
    std::fs::rename(file("owner-0"), file("owner-1")).unwrap();
    let engine = builder(dir.path()).sessions(&folder).start().unwrap();
    let refused = engine.client().view(owners[1].session("only-0"), 9).wait();
    assert!(refused.unwrap_err().to_string().contains("tenant"));
}

/// A conversation is joined by its name only where the caller means the same one: what it began with counts.
#[test]
fn another_system_text_is_another_conversation() {
    let dir = tempfile::tempdir().unwrap();
    let sessions = dir.path().join("sessions");
    let engine = builder(dir.path()).sessions(&sessions).start().unwrap();
    let rewind = |engine: &Engine, name: &str, system: &str| {
        let reply = engine.client().rewind(name, system.to_owned(), Vec::new());
        reply.wait().unwrap()
    };
    let long = "This line is one of many that say nothing new. ".repeat(80);
    for (name, system) in [("brief", "Be brief."), ("plain", ""), ("long", &long)] {
        assert_eq!(rewind(&engine, name, system), Rewound::Absent);
        begin(engine.client(), name.into(), system).unwrap();
    }
    let check = |engine: &Engine| {
        for (name, system) in [("brief", " Be brief. "), ("plain", ""), ("long", &long)] {
            assert_eq!(rewind(engine, name, system), Rewound::Same, "{name}");
            assert_eq!(rewind(engine, name, ""), Rewound::Same, "{name}");
            let other = rewind(engine, name, "Be someone else.");
            assert_eq!(other, Rewound::OtherSystem, "{name}");
        }
    };
    check(&engine);
    let opening = engine.conversation("long").open().unwrap().facts().unwrap();
    assert!(opening[0].text.len() < long.len(), "condensed: {opening:?}");
    engine.close().unwrap();
    drop(engine);
    check(&builder(dir.path()).sessions(&sessions).start().unwrap());
}

/// Holds the engine's thread up until it hears something, then fails; or panics if no sender is left.
#[derive(Clone, Debug)]
struct Held(Arc<Mutex<Receiver<()>>>);

impl Constraint for Held {
    fn allowed(&mut self) -> Result<&[u32], ConstraintError> {
        let heard = self.0.lock().unwrap().recv();
        heard.expect("this panic is part of a test");
        Err(ConstraintError("it cannot be followed"))
    }

    fn take(&mut self, _: u32) -> Result<(), ConstraintError> {
        Ok(())
    }

    fn copy(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// While the engine's thread is busy, a bounded number of commands waits for it, those of callers that left are not
/// executed, and how the engine is can be asked all the same. A form that cannot be followed is no failure of the engine.
#[test]
fn commands_that_wait_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).start().unwrap();
    let client = engine.client();
    begin(client, "kept".into(), "").unwrap();
    let (go, held) = channel();
    let held = Box::new(Held(Arc::new(Mutex::new(held))));
    let answer = engine.complete("a").constraint(held).send().unwrap();
    until("it is computed", || client.health().active == 1);
    drop(client.delete("kept"));
    let waiting: Vec<_> = (0..2000).map(|_| client.view("kept", 0)).collect();
    let health = client.health();
    assert_eq!((health.status, health.active), (EngineStatus::Serving, 1));
    go.send(()).unwrap();
    let ended: Vec<_> = waiting.into_iter().map(|reply| reply.wait()).collect();
    let is_busy =
        |ended: &Result<_, Error>| ended.as_ref().is_err_and(|e| e.kind() == ErrorKind::Busy);
    let busy = ended.iter().filter(|ended| is_busy(ended)).count();
    assert!(
        (1500..2000).contains(&busy),
        "{busy} of 2000 are refused at once"
    );
    assert!(client.view("kept", 0).wait().is_ok());
    let error = answer.collect::<Result<Vec<String>, Error>>().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let metrics = engine.metrics();
    assert_eq!((metrics.failed, metrics.unfollowed), (0, 1));
}

#[test]
fn an_engine_that_has_ended_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let engine = builder(dir.path()).start().unwrap();
    let (go, held) = channel::<()>();
    let held = Box::new(Held(Arc::new(Mutex::new(held))));
    let answer = engine.complete("a").constraint(held).send().unwrap();
    drop(go);
    let error = answer.collect::<Result<Vec<String>, Error>>().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    until("it has ended", || {
        engine.client().health().status == EngineStatus::Ended
    });
    let closed = engine.client().view("anna", 0).wait().unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Closed);
    assert!(matches!(engine.close(), Err(Error::Panicked)));
}
