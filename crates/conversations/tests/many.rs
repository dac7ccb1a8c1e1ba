//! Many requests in one scheduler: each gets the tokens it gets alone, bytes are promised before they are taken, and every
//! request is served.

use crate::common;

use common::{Dice, SMOLLM2, load, packed_dir, real_model};
use haversack_conversations::scheduler::{
    LongPrompt, Pace, Priority, Request, RequestEvent, RequestId, RequestKind, RowLimit, Scheduler,
    SchedulerOptions, SubmitError, protection,
};
use haversack_conversations::session::Owner;
use haversack_engine::kv_quality::probe::{self, Depth};
use haversack_engine::runtime::completion::Completed;
use haversack_engine::runtime::options::Guarding;
use haversack_engine::runtime::{Finish, GenerateOptions, SequenceRetention, generate};
use haversack_engine::sample::{SampleOptions, Sampler};
use haversack_engine::{
    Codec, KvForm, KvOptions, Model, Policy, Positions, Repack, Retention, Runtime, RuntimeOptions,
    StepError,
};
use haversack_memory::Reading;
use haversack_testing::models::Spec;
use haversack_text::chat::{MessageSpan, Speaker};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

fn tiny() -> (tempfile::TempDir, Spec, Arc<Model>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    let spec = Spec {
        context: 2048,
        ..Spec::named("llama").unwrap()
    };
    spec.write_file(&path).unwrap();
    let model = load(&path, Repack::Off);
    (dir, spec, model)
}

fn runtime(model: &Arc<Model>, budget_bytes: Option<usize>) -> Runtime {
    let options = RuntimeOptions {
        threads: 2,
        retention: Retention::full(),
        budget_bytes,
        // The mean keys are measured once.
        cache_dir: Some(packed_dir()),
        ..RuntimeOptions::default()
    };
    Runtime::new(model.clone(), &options).unwrap()
}

/// A random request; `alike`: with the same beginning as all others.
fn request(dice: &mut Dice, ids: &[u32], alike: bool) -> Request {
    let from = if alike { 0 } else { dice.roll(ids.len() / 2) };
    let prompt = [1, 2, 31, 32, 33, 65, 150][dice.roll(7)];
    let prompt = ids[from..from + prompt].to_vec();
    let sample = SampleOptions {
        temperature: [0.0, 1.0][dice.roll(2)],
        repetition_penalty: 1.1,
        seed: dice.0,
        ..SampleOptions::default()
    };
    let options = GenerateOptions {
        tokens_max: Some([0, 1, 2, 40][dice.roll(4)]),
        ignore_end: true,
        ..GenerateOptions::default()
    };
    let rows = [
        None,
        Some(LongPrompt::Refuse),
        Some(LongPrompt::Truncate),
        Some(LongPrompt::Window),
        Some(LongPrompt::Reread { every: 16 }),
    ][if alike { 0 } else { dice.roll(5) }]
    .map(|when_longer| RowLimit {
        max_rows: if when_longer == LongPrompt::Refuse {
            190
        } else {
            100
        },
        anchors: 10,
        when_longer,
    });
    Request {
        kind: RequestKind::Completion { prompt, rows },
        sample,
        constraint: None,
        options,
        priority: [Priority::Interactive, Priority::Background][dice.roll(2)],
        owner: (dice.roll(if alike { 2 } else { 3 }) as u64).into(),
        deadline: None,
        continues: false,
        // Wherever they are, no token depends on them.
        borders: vec![dice.roll(160), 33 + dice.roll(60)],
        messages: Vec::new(),
    }
}

fn prompt_and_rows(request: &Request) -> (&[u32], Option<RowLimit>) {
    match &request.kind {
        RequestKind::Completion { prompt, rows } => (prompt, *rows),
        _ => panic!("a completion"),
    }
}

/// The tokens of a request computed alone, by the shortest way: one that re-reads reads all its rows for every token.
fn alone(model: &Arc<Model>, request: &Request) -> Vec<u32> {
    let mut runtime = runtime(model, None);
    let mut sampler = Sampler::new(request.sample.clone()).unwrap();
    let max_tokens = request.options.tokens_max.unwrap();
    let (whole, rows) = prompt_and_rows(request);
    let (keep, prompt) = match &rows {
        Some(rows) => {
            let read = rows.prompt_to_read(whole, max_tokens);
            (rows.keep(whole.len() + max_tokens), read.unwrap())
        }
        None => (SequenceRetention::Default, whole.to_vec()),
    };
    if let Some(rows) = rows.filter(RowLimit::rereads) {
        let mut history = whole.to_vec();
        for _ in 0..max_tokens {
            let id = runtime.open_with(keep).unwrap();
            let go_on = &mut |_| ControlFlow::Continue(());
            runtime.feed(id, &rows.rows_after(&history), go_on).unwrap();
            history.push(sampler.sample(runtime.logits(), &history).unwrap());
            runtime.close(id).unwrap();
        }
        return history.split_off(whole.len());
    }
    let id = runtime.open_with(keep).unwrap();
    let go_on = &mut |_: haversack_engine::runtime::GenerateEvent<'_>| ControlFlow::Continue(());
    let said = generate(
        &mut runtime,
        id,
        &prompt,
        &mut sampler,
        &request.options,
        go_on,
    );
    said.unwrap().tokens
}

/// Steps until the scheduler is idle.
fn finish(scheduler: &mut Scheduler) -> HashMap<RequestId, Completed> {
    let mut done = HashMap::new();
    let mut steps = 0;
    while !scheduler.is_idle() {
        let now = Duration::ZERO;
        scheduler
            .step(now, &mut |request_id, event| {
                match event {
                    RequestEvent::Completed(completed, _) => {
                        assert!(done.insert(request_id, completed).is_none())
                    }
                    RequestEvent::Failed(why) => panic!("{request_id:?}: {why}"),
                    _ => {}
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        steps += 1;
        assert!(steps < 100_000, "the scheduler never becomes idle");
    }
    done
}

/// Arrivals, cancels, threads and a batch that grow and shrink, and a budget too small for all requests: no token changes, no
/// request is lost, and the ledger is within the budget after every step.
#[test]
fn other_requests_change_no_token() {
    let (_dir, spec, model) = tiny();
    let ids = spec.ids(600);
    let one = runtime(&model, None).sequence_bytes(190);
    let mut found = 0;
    for seed in 1..=24u64 {
        let mut dice = Dice(seed * 0x9e37_79b9);
        let budget = [None, Some(2), Some(4), Some(9)][dice.roll(4)];
        let budget = budget.map(|times| times * one + (1 << 20));
        let runtime = runtime(&model, budget);
        let options = SchedulerOptions {
            batch: 1 + dice.roll(8),
            queue: 64,
            reuse: [0, 1, 6][dice.roll(3)],
            ..SchedulerOptions::default()
        };
        let alike = options.reuse > 0 && dice.roll(2) == 0;
        let mut scheduler = Scheduler::new(runtime, options);
        let mut given: HashMap<RequestId, Request> = HashMap::new();
        let (mut done, mut cancelled) = (HashMap::new(), 0);
        for round in 0..60 {
            if round < 30 && dice.roll(2) == 0 {
                let request = request(&mut dice, &ids, alike);
                let request_id = scheduler.submit(request.clone()).unwrap();
                given.insert(request_id, request);
            }
            if dice.roll(12) == 0
                && let Some(&request_id) = given.keys().find(|t| !done.contains_key(*t))
            {
                scheduler.cancel(request_id).unwrap();
                given.remove(&request_id);
                cancelled += 1;
            }
            scheduler.set_pace(Pace {
                batch: 1 + dice.roll(8),
                chunk: 1 + dice.roll(100),
            });
            scheduler.runtime_mut().set_threads(1 + dice.roll(3));
            scheduler
                .step(Duration::ZERO, &mut |request_id, event| {
                    match event {
                        RequestEvent::Completed(completed, _) => {
                            drop(done.insert(request_id, completed))
                        }
                        RequestEvent::Failed(why) => panic!("seed {seed}: {why}"),
                        _ => {}
                    }
                    ControlFlow::Continue(())
                })
                .unwrap();
            let ledger = scheduler.runtime().ledger();
            assert!(budget.is_none_or(|budget| ledger.peak <= budget));
        }
        done.extend(finish(&mut scheduler));
        assert_eq!(
            done.len(),
            given.len(),
            "seed {seed}, {cancelled} cancelled"
        );
        for (request_id, request) in &given {
            assert_eq!(
                done[request_id].tokens,
                alone(&model, request),
                "seed {seed}"
            );
        }
        found += scheduler.prefix_cache_stats().hits;
        let short = Reading {
            mem_available_bytes: Some(0),
            ..Reading::default()
        };
        scheduler.observe(None, &short, Duration::ZERO);
        assert_eq!(scheduler.runtime().ledger().kv_live, 0, "seed {seed}");
    }
    assert!(found > 3, "{found} prefix cache hits");
}

/// The heap of the process grows beside the budget's blocks: the prefix cache leaves for it, and for what another thread
/// would allocate; a running request goes on; further requests wait until the heap shrinks; the only one gets what there is.
#[test]
fn a_heap_that_grows_empties_the_prefix_cache_and_holds_up_admission() {
    let (_dir, spec, model) = tiny();
    let ids = spec.ids(400);
    let budget = 8 << 20;
    let options = SchedulerOptions {
        reuse: 8,
        ..SchedulerOptions::default()
    };
    let mut scheduler = Scheduler::new(runtime(&model, Some(budget)), options);
    let ask = |scheduler: &mut Scheduler, from: usize| {
        let prompt = ids[from..from + 100].to_vec();
        let request = Request {
            kind: RequestKind::Completion { prompt, rows: None },
            sample: SampleOptions::default(),
            constraint: None,
            options: GenerateOptions {
                tokens_max: Some(20),
                ignore_end: true,
                ..GenerateOptions::default()
            },
            priority: Priority::Interactive,
            owner: 0u64.into(),
            deadline: None,
            continues: false,
            borders: Vec::new(),
            messages: Vec::new(),
        };
        scheduler.submit(request).unwrap()
    };
    let cached = |scheduler: &Scheduler| scheduler.runtime().ledger().kv_live > 0;
    for wanted in [false, true] {
        ask(&mut scheduler, 0);
        finish(&mut scheduler);
        assert!(cached(&scheduler));
        // What fits beside the prefix cache leaves it alone.
        assert!(!scheduler.set_heap_bytes(1000, 1000));
        assert!(cached(&scheduler));
        let (grown, refused) = if wanted { (1000, budget) } else { (budget, 0) };
        assert!(scheduler.set_heap_bytes(grown, refused));
        assert!(!cached(&scheduler));
        scheduler.set_heap_bytes(0, 0);
    }

    let ignore = &mut |_: RequestId, _: RequestEvent<'_>| ControlFlow::Continue(());
    let first = ask(&mut scheduler, 0);
    scheduler.step(Duration::ZERO, ignore).unwrap();
    assert_eq!(scheduler.active(), 1);
    scheduler.set_heap_bytes(budget, 0);
    let ledger = scheduler.runtime().ledger();
    assert!(ledger.total() > budget && ledger.peak > budget);
    let second = ask(&mut scheduler, 200);
    for _ in 0..5 {
        scheduler.step(Duration::ZERO, ignore).unwrap();
        assert_eq!((scheduler.active(), scheduler.waiting()), (1, 1));
    }
    scheduler.set_heap_bytes(0, 0);
    scheduler.step(Duration::ZERO, ignore).unwrap();
    assert_eq!((scheduler.active(), scheduler.waiting()), (2, 0));
    scheduler.set_heap_bytes(budget, 0);
    let done = finish(&mut scheduler);
    for id in [first, second] {
        assert_eq!(done[&id].tokens.len(), 20);
    }
    // Alone, it is admitted and ends.
    let third = ask(&mut scheduler, 100);
    assert_eq!(finish(&mut scheduler)[&third].tokens.len(), 20);
}

/// An owner with many long prompts in the batch and in the queue: another one's prompt has a place at once and is read
/// before theirs. Within one owner it would wait for all of them.
#[test]
fn one_owner_does_not_delay_another() {
    let (_dir, spec, model) = tiny();
    let ids = spec.ids(1000);
    let steps_until_first_token = |owner: Owner| {
        let options = SchedulerOptions {
            batch: 4,
            owner_batch: 3,
            ..SchedulerOptions::default()
        };
        let mut scheduler = Scheduler::new(runtime(&model, None), options);
        let submit = |scheduler: &mut Scheduler, owner: Owner, prompt: &[u32]| {
            let mut request = Request {
                owner: owner.user(0),
                ..Request::completion(prompt.to_vec())
            };
            request.options.tokens_max = Some(2);
            scheduler.submit(request).unwrap()
        };
        let many = Owner::new("many").unwrap();
        for i in 0..8 {
            submit(&mut scheduler, many, &ids[10 * i..][..500]);
        }
        let ignore = &mut |_: RequestId, _: RequestEvent<'_>| ControlFlow::Continue(());
        for _ in 0..5 {
            scheduler.step(Duration::ZERO, ignore).unwrap();
        }
        assert_eq!((scheduler.active(), scheduler.waiting()), (3, 5));
        let mine = submit(&mut scheduler, owner, &ids[500..620]);
        let mut steps = 0;
        let mut has_token = false;
        while !has_token {
            let deliver = &mut |id: RequestId, event: RequestEvent<'_>| {
                has_token |= id == mine && matches!(event, RequestEvent::Token { .. });
                ControlFlow::Continue(())
            };
            scheduler.step(Duration::ZERO, deliver).unwrap();
            steps += 1;
        }
        steps
    };
    let few = steps_until_first_token(Owner::new("few").unwrap());
    // 120 tokens in portions of 64.
    assert_eq!(few, 2);
    assert!(steps_until_first_token(Owner::new("many").unwrap()) > 20);
}

/// Conversations that are sent whole each time: a cached beginning is not read again, prompts with the same beginning go on
/// from where they fork, and no owner gets what another owner's requests have read.
#[test]
fn the_prefix_cache_serves_its_owner() {
    let (_dir, spec, model) = tiny();
    let ids = spec.ids(600);
    let options = SchedulerOptions {
        reuse: 8,
        ..SchedulerOptions::default()
    };
    let mut scheduler = Scheduler::new(runtime(&model, None), options);
    let mut ask = |owner: u64, prompt: &[u32]| {
        let request = Request {
            sample: SampleOptions {
                temperature: 0.0,
                ..SampleOptions::default()
            },
            options: GenerateOptions {
                tokens_max: Some(20),
                ignore_end: true,
                ..GenerateOptions::default()
            },
            owner: owner.into(),
            ..Request::completion(prompt.to_vec())
        };
        scheduler.submit(request.clone()).unwrap();
        let mut ended = None;
        while !scheduler.is_idle() {
            scheduler
                .step(Duration::ZERO, &mut |_, event| {
                    if let RequestEvent::Completed(completed, held) = event {
                        ended = Some((completed.tokens, held.reused));
                    }
                    ControlFlow::Continue(())
                })
                .unwrap();
        }
        let (tokens, reused) = ended.unwrap();
        assert_eq!(tokens, alone(&model, &request));
        (tokens, reused)
    };
    let opening = &ids[..70];
    let (answer, reused) = ask(1, opening);
    assert_eq!(reused, 0);
    // The conversation goes on: all is cached but the last token.
    let mut longer = [opening, &answer, &ids[200..230]].concat();
    let (answer, reused) = ask(1, &longer);
    assert_eq!(reused, 70 + 19);
    // Another answer to the same prompt: only the end of the prompt is of use.
    longer.extend([&answer[..3], &ids[300..310]].concat());
    assert_eq!(ask(1, &longer).1, 70 + 20 + 30);
    // Others with a longer beginning in common: the second one shows where they fork.
    let with = |more: std::ops::Range<usize>| [&ids[..160], &ids[more]].concat();
    assert_eq!(ask(1, &with(400..440)).1, 70);
    assert_eq!(ask(1, &with(450..490)).1, 70);
    assert_eq!(ask(1, &with(500..540)).1, 160);
    // Twice the same prompt: all but the last token.
    assert_eq!(ask(1, &with(500..540)).1, 199);
    // Another owner.
    assert_eq!(ask(2, &with(500..540)).1, 0);
    let stats = scheduler.prefix_cache_stats();
    assert_eq!((stats.hits, stats.misses), (6, 2), "{stats:?}");
}

/// Asks one request after the other, each computed alone too, and says how much of each prompt was cached.
struct Asking {
    model: Arc<Model>,
    options: RuntimeOptions,
    scheduler: Scheduler,
}

impl Asking {
    fn new(model: &Arc<Model>, options: RuntimeOptions) -> Asking {
        let scheduling = SchedulerOptions {
            reuse: 16,
            ..SchedulerOptions::default()
        };
        let runtime = Runtime::new(model.clone(), &options).unwrap();
        Asking {
            model: model.clone(),
            scheduler: Scheduler::new(runtime, scheduling),
            options,
        }
    }

    fn request(prompt: &[u32], borders: &[usize]) -> Request {
        Request {
            options: GenerateOptions {
                tokens_max: Some(8),
                ignore_end: true,
                ..GenerateOptions::default()
            },
            borders: borders.to_vec(),
            ..Request::completion(prompt.to_vec())
        }
    }

    fn fresh(&self, prompt: &[u32]) -> Vec<u32> {
        let mut runtime = Runtime::new(self.model.clone(), &self.options).unwrap();
        let id = runtime.open().unwrap();
        let mut sampler = Sampler::new(SampleOptions::default()).unwrap();
        let options = &Asking::request(prompt, &[]).options;
        let go_on =
            &mut |_: haversack_engine::runtime::GenerateEvent<'_>| ControlFlow::Continue(());
        let said = generate(&mut runtime, id, prompt, &mut sampler, options, go_on);
        said.unwrap().tokens
    }

    /// The answers, and how many tokens of each prompt came from the cache.
    fn all(&mut self, requests: Vec<Request>) -> Vec<(Vec<u32>, usize)> {
        let ids = requests.into_iter().map(|r| self.scheduler.submit(r));
        let ids: Vec<RequestId> = ids.map(Result::unwrap).collect();
        let mut ended = HashMap::new();
        while !self.scheduler.is_idle() {
            let deliver = &mut |id, event: RequestEvent<'_>| {
                match event {
                    RequestEvent::Completed(completed, held) => {
                        ended.insert(id, (completed.tokens, held.reused));
                    }
                    RequestEvent::Failed(why) => panic!("{why}"),
                    _ => {}
                }
                ControlFlow::Continue(())
            };
            self.scheduler.step(Duration::ZERO, deliver).unwrap();
        }
        ids.iter().map(|id| ended.remove(id).unwrap()).collect()
    }

    fn one(&mut self, prompt: &[u32], borders: &[usize]) -> (Vec<u32>, usize) {
        let request = Asking::request(prompt, borders);
        self.all(vec![request]).swap_remove(0)
    }
}

fn of_kind(kv: KvOptions, positions: Positions, budget_bytes: Option<usize>) -> RuntimeOptions {
    RuntimeOptions {
        threads: 2,
        kv,
        retention: Retention {
            positions,
            ..Retention::full()
        },
        budget_bytes,
        cache_dir: Some(packed_dir()),
        ..RuntimeOptions::default()
    }
}

/// Another question, an edited one, another answer to the same one, and the next: each goes on from where the message
/// begins, or from further, and answers as if it had read everything. In every form of keys and values.
#[test]
fn a_second_question_goes_on_from_its_border() {
    for name in ["llama", "gemma3-linear"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        let spec = Spec {
            context: 1024,
            ..Spec::named(name).unwrap()
        };
        spec.write_file(&path).unwrap();
        let model = load(&path, Repack::Off);
        let ids = spec.ids(900);
        let (history, border) = (&ids[..400], 400);
        let coded = |codec: Codec| KvOptions::new(KvForm::both(codec.form()));
        let mut kinds: Vec<KvOptions> = Codec::ALL.into_iter().map(coded).collect();
        kinds.push(KvOptions {
            near: Codec::F16,
            recent: 100,
            sinks: 1,
            ..coded(Codec::Int3)
        });
        for (i, kv) in kinds.into_iter().enumerate() {
            let positions = [Positions::Auto, Positions::Compact, Positions::Original][i % 3];
            let what = format!("{name}, {:?}, {positions:?}", kv.form);
            let mut asking = Asking::new(&model, of_kind(kv, positions, None));
            let question = |from: usize, tokens| [history, &ids[from..from + tokens]].concat();
            let first = question(500, 90);
            let (answer, cached) = asking.one(&first, &[border]);
            assert_eq!(cached, 0, "{what}");
            for (prompt, least) in [
                // Another last message, one that is longer, one that begins like the first.
                (question(600, 20), border),
                (question(650, 150), border),
                (question(510, 1), border),
                // The first again: all but its last token.
                (first.clone(), first.len() - 1),
                // The conversation goes on.
                ([&first, &answer, &ids[800..820]].concat(), first.len() + 7),
            ] {
                let (tokens, cached) = asking.one(&prompt, &[border]);
                assert_eq!(cached, least, "{what}");
                assert_eq!(tokens, asking.fresh(&prompt), "{what}");
            }
        }
    }
}

/// A long conversation, sent whole with twenty different last messages: from the second on at least 99 % is cached.
#[test]
fn twenty_last_messages_of_a_long_conversation() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    let spec = Spec {
        context: 16384,
        ..Spec::named("llama").unwrap()
    };
    spec.write_file(&path).unwrap();
    let model = load(&path, Repack::Off);
    let ids = spec.ids(11_000);
    let options = of_kind(KvOptions::default(), Positions::Auto, Some(64 << 20));
    let mut asking = Asking::new(&model, options);
    for i in 0..20 {
        let last = &ids[10_000 + 40 * i..][..20 + 3 * i];
        let prompt = [&ids[..10_000], last].concat();
        let (tokens, cached) = asking.one(&prompt, &[10_000]);
        let least = if i == 0 { 0 } else { prompt.len() * 99 / 100 };
        assert!(cached >= least, "{i}: {cached} of {}", prompt.len());
        if i == 19 {
            assert_eq!(tokens, asking.fresh(&prompt), "{i}");
        }
    }
    let ledger = asking.scheduler.runtime().ledger();
    assert!(ledger.peak <= 64 << 20);
}

/// A client that left, or waited no longer, asks again: what was read stays, wherever it was cancelled.
#[test]
fn what_a_cancelled_request_has_read_stays() {
    let (_dir, spec, model) = tiny();
    let ids = spec.ids(600);
    for is_late in [false, true] {
        let options = of_kind(KvOptions::default(), Positions::Auto, None);
        let mut asking = Asking::new(&model, options);
        asking.scheduler.set_pace(Pace {
            batch: 8,
            chunk: 32,
        });
        let request = Request {
            deadline: is_late.then_some(Duration::from_secs(1)),
            ..Asking::request(&ids[..500], &[])
        };
        let id = asking.scheduler.submit(request).unwrap();
        let ignore = &mut |_, _: RequestEvent<'_>| ControlFlow::Continue(());
        for _ in 0..3 {
            asking.scheduler.step(Duration::ZERO, ignore).unwrap();
        }
        match is_late {
            true => drop(asking.scheduler.step(Duration::from_secs(2), ignore)),
            false => asking.scheduler.cancel(id).unwrap(),
        }
        let read = asking.scheduler.stats().tokens_read as usize;
        assert!((64..500).contains(&read), "{read}");
        let (tokens, cached) = asking.one(&ids[..500], &[]);
        assert_eq!(cached, read);
        assert_eq!(tokens, asking.fresh(&ids[..500]));
    }
}

/// Several answers to one prompt, asked for at once: one reads it, the others its last token.
#[test]
fn choices_share_their_prompt() {
    let (_dir, spec, model) = tiny();
    let ids = spec.ids(600);
    // The last token is alone in its block, or not; or the prompt is too short to wait for.
    for (tokens, cached) in [(300, 299), (289, 288), (20, 0)] {
        let options = of_kind(KvOptions::default(), Positions::Auto, None);
        let mut asking = Asking::new(&model, options);
        let choices = vec![Asking::request(&ids[..tokens], &[]); 4];
        let answers = asking.all(choices);
        let fresh = asking.fresh(&ids[..tokens]);
        let reused: Vec<usize> = answers.iter().map(|(_, reused)| *reused).collect();
        assert_eq!(reused, [0, cached, cached, cached]);
        assert!(answers.iter().all(|(answer, _)| *answer == fresh));
        let stats = asking.scheduler.stats();
        let read = tokens + 3 * (tokens - cached) + 4 * 7;
        assert_eq!(stats.tokens_read as usize, read);
    }
}

/// A checkpoint has blocks of its own only for what is recent, leaves before a request waits, and is counted while it is there.
#[test]
fn a_checkpoint_is_small_and_leaves_first() {
    let (_dir, spec, model) = tiny();
    let ids = spec.ids(1600);
    let options = of_kind(KvOptions::default(), Positions::Auto, None);
    let one = Runtime::new(model.clone(), &options).unwrap();
    let one = one.sequence_bytes(1400);
    let live = |borders: &[usize]| {
        let mut asking = Asking::new(&model, options.clone());
        asking.one(&ids[..1300], borders);
        asking.scheduler.runtime().ledger().kv_live
    };
    let own = live(&[640]) - live(&[]);
    assert!(own > 0 && own * 10 < one, "{own} of {one}");
    // Room for one conversation: what is cached makes room for the other.
    let options = RuntimeOptions {
        budget_bytes: Some(one + one / 2 + (1 << 20)),
        ..options
    };
    let mut asking = Asking::new(&model, options);
    for from in [0, 200, 0] {
        let prompt = &ids[from..from + 1300];
        let (tokens, _) = asking.one(prompt, &[640, 1200]);
        assert_eq!(tokens, asking.fresh(prompt));
    }
    let ledger = asking.scheduler.runtime().ledger();
    assert!(ledger.peak <= ledger.budget.unwrap());
    assert!(asking.scheduler.prefix_cache_stats().evicted > 0);
}

/// Steps until the scheduler is idle. Returns the prompt tokens that each step has read, and the answers.
fn read_step_by_step(
    scheduler: &mut Scheduler,
    mut before_step: impl FnMut(&mut Scheduler, usize),
) -> (Vec<usize>, HashMap<RequestId, Vec<u32>>) {
    let (mut steps, mut answers) = (Vec::new(), HashMap::new());
    let mut read: HashMap<RequestId, usize> = HashMap::new();
    while !scheduler.is_idle() {
        before_step(scheduler, steps.len());
        let mut step = 0;
        scheduler
            .step(Duration::ZERO, &mut |id, event| {
                match event {
                    RequestEvent::PromptRead { done, .. } => {
                        let before = read.insert(id, done).unwrap_or(0);
                        step += done - before;
                    }
                    RequestEvent::Completed(completed, _) => {
                        answers.insert(id, completed.tokens);
                    }
                    RequestEvent::Failed(why) => panic!("{why}"),
                    _ => {}
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        if step > 0 {
            steps.push(step);
        }
    }
    (steps, answers)
}

/// The only request reads its prompt in the runtime's own chunk. As soon as another runs or waits, steps read 64 prompt
/// tokens at most. The tokens are the same.
#[test]
fn a_lone_prompt_is_read_in_the_runtimes_chunk() {
    let (_dir, spec, model) = tiny();
    let ids = spec.ids(600);
    let chunk = 150;
    let new_scheduler = |batch: usize| {
        let options = RuntimeOptions {
            threads: 2,
            retention: Retention::full(),
            chunk: Some(chunk),
            cache_dir: Some(packed_dir()),
            ..RuntimeOptions::default()
        };
        let runtime = Runtime::new(model.clone(), &options).unwrap();
        assert_eq!(runtime.chunk(), chunk);
        let options = SchedulerOptions {
            batch,
            ..SchedulerOptions::default()
        };
        Scheduler::new(runtime, options)
    };
    let request = |from: usize| Request {
        options: GenerateOptions {
            tokens_max: Some(5),
            ignore_end: true,
            ..GenerateOptions::default()
        },
        ..Request::completion(ids[from..from + 400].to_vec())
    };
    let mut scheduler = new_scheduler(8);
    let id = scheduler.submit(request(0)).unwrap();
    let (steps, answers) = read_step_by_step(&mut scheduler, |_, _| ());
    assert_eq!(steps.len(), 400usize.div_ceil(chunk));
    assert_eq!(steps, [150, 150, 100]);
    assert_eq!(answers[&id], alone(&model, &request(0)));

    let mut scheduler = new_scheduler(8);
    let both = [0, 100].map(|from| scheduler.submit(request(from)).unwrap());
    let (steps, answers) = read_step_by_step(&mut scheduler, |_, _| ());
    assert!(steps.iter().all(|&read| read <= 64), "{steps:?}");
    for (id, from) in both.iter().zip([0, 100]) {
        assert_eq!(answers[id], alone(&model, &request(from)));
    }

    // The second arrives after one step of the first.
    let mut scheduler = new_scheduler(8);
    scheduler.submit(request(0)).unwrap();
    let (steps, _) = read_step_by_step(&mut scheduler, |scheduler, step| {
        if step == 1 && scheduler.active() + scheduler.waiting() == 1 {
            scheduler.submit(request(100)).unwrap();
        }
    });
    assert_eq!(steps[..4], [150, 64, 64, 64]);

    // A request that waits in the queue limits the step too.
    let mut scheduler = new_scheduler(1);
    for from in [0, 100] {
        scheduler.submit(request(from)).unwrap();
    }
    let (steps, _) = read_step_by_step(&mut scheduler, |_, _| ());
    assert_eq!(steps, [64, 64, 64, 64, 64, 64, 16, 150, 150, 100]);
}

/// Two requests whose bytes together exceed the budget: the second waits, and both complete.
#[test]
fn two_long_requests_run_one_after_the_other() {
    let (_dir, spec, model) = tiny();
    let ids = spec.ids(400);
    let budget = {
        let runtime = runtime(&model, None);
        let scratch = runtime.scratch_bytes_counting(2, 0, 64, 400);
        runtime.ledger().side + scratch + runtime.sequence_bytes(400) * 7 / 4
    };
    let runtime = runtime(&model, Some(budget));
    let mut scheduler = Scheduler::new(runtime, SchedulerOptions::default());
    let request = Request {
        options: GenerateOptions {
            tokens_max: Some(200),
            ignore_end: true,
            ..GenerateOptions::default()
        },
        ..Request::completion(ids[..200].to_vec())
    };
    for _ in 0..2 {
        scheduler.submit(request.clone()).unwrap();
    }
    let mut max_active = 0;
    let mut lengths = Vec::new();
    while !scheduler.is_idle() {
        scheduler
            .step(Duration::ZERO, &mut |_, event| {
                if let RequestEvent::Completed(completed, _) = event {
                    lengths.push(completed.tokens.len());
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        max_active = max_active.max(scheduler.active());
    }
    assert_eq!((lengths, max_active), (vec![200, 200], 1));
    assert!(scheduler.runtime().ledger().peak <= budget);
}

#[test]
fn a_request_that_can_never_be_served_is_refused_at_once() {
    let (_dir, spec, model) = tiny();
    let ids = spec.ids(300);
    let one = runtime(&model, None).sequence_bytes(100);
    let runtime = runtime(&model, Some(one + (1 << 20)));
    let options = SchedulerOptions {
        batch: 2,
        queue: 1,
        ..SchedulerOptions::default()
    };
    let end = runtime.bounds().end().unwrap();
    let mut scheduler = Scheduler::new(runtime, options);
    let mut ask = |prompt: &[u32], tokens_max| {
        let options = GenerateOptions {
            tokens_max: Some(tokens_max),
            ..GenerateOptions::default()
        };
        scheduler.submit(Request {
            options,
            ..Request::completion(prompt.to_vec())
        })
    };
    assert!(matches!(ask(&[], 1), Err(SubmitError::EmptyPrompt)));
    assert!(matches!(
        ask(&[u32::MAX], 1),
        Err(SubmitError::UnknownToken {
            token: u32::MAX,
            ..
        })
    ));
    let long = vec![ids[0]; end + 1];
    assert!(matches!(
        ask(&long, 1),
        Err(SubmitError::PromptTooLong { .. })
    ));
    assert!(ask(&ids[..50], 50).is_ok());
    assert!(matches!(
        ask(&ids[..50], 50),
        Err(SubmitError::QueueFull(_))
    ));
}

#[test]
fn a_deadline_ends_a_request_in_the_queue_and_in_the_batch() {
    let (_dir, spec, model) = tiny();
    let ids = spec.ids(100);
    let runtime = runtime(&model, None);
    let options = SchedulerOptions {
        batch: 1,
        queue: 9,
        ..SchedulerOptions::default()
    };
    let mut scheduler = Scheduler::new(runtime, options);
    for _ in 0..2 {
        let request = Request {
            deadline: Some(Duration::from_secs(5)),
            ..Request::completion(ids[..40].to_vec())
        };
        scheduler.submit(request).unwrap();
    }
    let mut ends = Vec::new();
    for second in 0..=5 {
        scheduler
            .step(Duration::from_secs(second), &mut |_, event| {
                if let RequestEvent::Completed(completed, _) = event {
                    ends.push((second, completed.finish, completed.tokens.len()));
                }
                ControlFlow::Continue(())
            })
            .unwrap();
    }
    ends.sort_by_key(|end| end.2);
    let cancelled = Finish::Cancelled;
    assert_eq!(ends.len(), 2);
    assert!(ends.iter().all(|end| (end.0, end.1) == (5, cancelled)));
    assert!(ends[0].2 == 0 && ends[1].2 > 0, "{ends:?}");
    assert!(scheduler.is_idle() && scheduler.runtime().ledger().kv_live == 0);
}

/// Three requests share every step of the real model.
#[test]
fn three_on_the_real_model() {
    let Some(path) = real_model(SMOLLM2) else {
        return;
    };
    let model = load(&path, Repack::Into(packed_dir()));
    let texts = [
        "The capital of France is",
        "Once upon a time there was a small",
        "fn main() {",
    ];
    let requests = texts.map(|text| {
        let plain = haversack_text::tokenizer::EncodeOptions {
            add_special: true,
            parse_special: false,
        };
        let prompt = model.tokenizer().encode(text, plain).unwrap();
        Request {
            options: GenerateOptions {
                tokens_max: Some(24),
                ignore_end: true,
                ..GenerateOptions::default()
            },
            ..Request::completion(prompt)
        }
    });
    let runtime = runtime(&model, None);
    let mut scheduler = Scheduler::new(runtime, SchedulerOptions::default());
    let request_ids = requests
        .clone()
        .map(|request| scheduler.submit(request).unwrap());
    let done = finish(&mut scheduler);
    for (request_id, request) in request_ids.iter().zip(&requests) {
        assert_eq!(done[request_id].tokens, alone(&model, request));
    }
}

/// A sequence with its own window gives the bits of a runtime in which every sequence has that window.
#[test]
fn a_window_of_one_sequence() {
    let (_dir, spec, model) = tiny();
    let tokens = spec.ids(400);
    let (anchors, window) = (10, 50);
    let logits = |retention: Retention, keep: SequenceRetention| {
        let options = RuntimeOptions {
            retention,
            cache_dir: Some(packed_dir()),
            ..RuntimeOptions::default()
        };
        let mut runtime = Runtime::new(model.clone(), &options).unwrap();
        let whole = runtime.open().unwrap();
        let id = runtime.open_with(keep).unwrap();
        let go_on = &mut |_| ControlFlow::Continue(());
        for id in [whole, id] {
            runtime.feed(id, &tokens[..300], go_on).unwrap();
        }
        runtime.feed(id, &tokens[300..], go_on).unwrap();
        let rows = [whole, id].map(|id| runtime.stats(id).unwrap().rows);
        (rows, runtime.logits().to_vec())
    };
    let all = Retention {
        policy: Policy::Window,
        anchors: Some(anchors),
        window: Some(window),
        ..Retention::default()
    };
    let (_, expected) = logits(all, SequenceRetention::Default);
    let own = SequenceRetention::Window { anchors, window };
    for retention in [Retention::full(), Retention::managed()] {
        let (rows, found) = logits(retention, own);
        assert!(
            rows[0] == 300 && rows[1] <= anchors + window + 32,
            "{rows:?}"
        );
        assert!(found == expected);
    }
    let mut runtime = runtime(&model, None);
    for (anchors, window) in [(0, 0), (2048, 1), (0, usize::MAX)] {
        let opened = runtime.open_with(SequenceRetention::Window { anchors, window });
        assert!(matches!(opened, Err(StepError::Window { .. })));
    }
    let opened = runtime.open_with(SequenceRetention::All { tokens: 2049 });
    assert!(matches!(opened, Err(StepError::TooManyTokens { .. })));
}

/// Policies that select rows, each set for one request: a sequence gives the bits of a runtime in which every sequence has its
/// policy, next to others that keep everything or a window, within a budget of which each is promised its part.
#[test]
fn rows_selected_for_one_request() {
    let (_dir, spec, model) = tiny();
    let ids = spec.ids(1200);
    let (max_rows, anchors) = (352, 32);
    let dir = packed_dir();
    let go_on = &mut |_| ControlFlow::Continue(());
    let probe = probe::load_or_measure(&model, 2, Depth::Local, Some(&dir), go_on);
    let probe = probe.unwrap().unwrap();
    let longs = [
        LongPrompt::Select(Policy::Heavy),
        LongPrompt::Select(Policy::Snap),
        LongPrompt::Select(Policy::Adaptive),
        LongPrompt::Window,
        LongPrompt::Truncate,
    ];
    let requests: Vec<Request> = (0..10)
        .map(|i| Request {
            options: GenerateOptions {
                tokens_max: Some(70),
                ignore_end: true,
                ..GenerateOptions::default()
            },
            ..Request::new(RequestKind::Completion {
                prompt: ids[31 * i..31 * i + 600].to_vec(),
                rows: Some(RowLimit {
                    max_rows,
                    anchors,
                    when_longer: longs[i % longs.len()],
                }),
            })
        })
        .collect();
    let keep = |when_longer| {
        let rows = RowLimit {
            max_rows,
            anchors,
            when_longer,
        };
        rows.keep(670)
    };
    let one = {
        let mut runtime = runtime(&model, None);
        runtime.load_probe(&probe);
        let bytes = longs.map(|long| runtime.sequence_bytes_with(keep(long), max_rows).unwrap());
        let scratch = runtime.scratch_bytes_counting(3, 3, 96, 700);
        runtime.ledger().side + scratch + 3 * bytes.into_iter().max().unwrap()
    };
    let mut runtime = runtime(&model, Some(one));
    runtime.load_probe(&probe);
    let mut scheduler = Scheduler::new(runtime, SchedulerOptions::default());
    let request_ids: Vec<RequestId> = requests
        .iter()
        .map(|request| scheduler.submit(request.clone()).unwrap())
        .collect();
    let (mut done, mut together) = (HashMap::new(), 0);
    while !scheduler.is_idle() {
        let tell: &mut dyn FnMut(RequestId, RequestEvent<'_>) -> ControlFlow<()> =
            &mut |request_id, event| {
                match event {
                    RequestEvent::Completed(completed, held) => {
                        done.insert(request_id, (completed.tokens, held));
                    }
                    RequestEvent::Failed(why) => panic!("{why}"),
                    _ => {}
                }
                ControlFlow::Continue(())
            };
        scheduler.step(Duration::ZERO, tell).unwrap();
        together = together.max(scheduler.active());
        assert!(scheduler.runtime().ledger().total() <= one);
    }
    assert!((2..10).contains(&together), "{together} at once");

    for (request_id, request) in request_ids.iter().zip(&requests) {
        let (tokens, held) = &done[request_id];
        let long = prompt_and_rows(request).1.unwrap().when_longer;
        assert_eq!(*tokens, selected_alone(&model, &probe, request), "{long:?}");
        if let LongPrompt::Select(Policy::Heavy | Policy::Snap) = long {
            assert!(
                held.usage.tokens_seen == 669 && held.usage.rows <= max_rows,
                "{long:?}: {held:?}"
            );
        }
    }
    assert_ne!(done[&request_ids[0]].0, done[&request_ids[3]].0);
}

/// Messages of a prompt: the answer to a request is that of a sequence with their annotations, in company and alone, and not
/// that of the same tokens without them.
#[test]
fn messages_are_protected_or_leave_as_turns() {
    let (_dir, spec, model) = tiny();
    let prompt = spec.ids(600);
    let message = |speaker, start: usize, content| MessageSpan {
        speaker,
        start,
        content: start + 4..content,
    };
    let mut messages = vec![message(Speaker::System, 0, 100)];
    for (i, start) in (102..560).step_by(60).enumerate() {
        let speaker = [Speaker::User, Speaker::Other][i % 2];
        messages.push(message(speaker, start, start + 58));
    }
    let limit = |policy| RowLimit {
        max_rows: 384,
        anchors: 8,
        when_longer: LongPrompt::Select(policy),
    };
    let request = |policy, messages: &[MessageSpan]| Request {
        messages: messages.to_vec(),
        options: GenerateOptions {
            tokens_max: Some(40),
            ignore_end: true,
            ..GenerateOptions::default()
        },
        ..Request::new(RequestKind::Completion {
            prompt: prompt.clone(),
            rows: Some(limit(policy)),
        })
    };
    let policies = [Policy::Heavy, Policy::Snap, Policy::Turns];
    let mut scheduler = Scheduler::new(runtime(&model, None), SchedulerOptions::default());
    let mut requests = HashMap::new();
    for policy in policies {
        for messages in [&messages[..], &[]] {
            let id = scheduler.submit(request(policy, messages)).unwrap();
            requests.insert(id, (policy.name(), !messages.is_empty()));
        }
    }
    let mut answers = HashMap::new();
    while !scheduler.is_idle() {
        let tell: &mut dyn FnMut(RequestId, RequestEvent<'_>) -> ControlFlow<()> =
            &mut |id, event| {
                if let RequestEvent::Completed(completed, held) = event {
                    assert!(held.usage.rows <= 384, "{held:?}");
                    answers.insert(requests[&id], completed.tokens);
                }
                ControlFlow::Continue(())
            };
        scheduler.step(Duration::ZERO, tell).unwrap();
    }
    for policy in policies {
        let spans = match policy {
            Policy::Turns => protection::whole_turns(&messages, 600),
            _ => protection::markers(&messages, 600),
        };
        let alone = |spans: &[_]| {
            let mut runtime = runtime(&model, None);
            let id = runtime.open_with(limit(policy).keep(640)).unwrap();
            runtime.annotate(id, spans).unwrap();
            let options = request(policy, &[]).options;
            let mut sampler = Sampler::new(SampleOptions::default()).unwrap();
            let tell =
                &mut |_: haversack_engine::runtime::GenerateEvent<'_>| ControlFlow::Continue(());
            let said = generate(&mut runtime, id, &prompt, &mut sampler, &options, tell);
            said.unwrap().tokens
        };
        assert_eq!(answers[&(policy.name(), true)], alone(&spans), "{policy:?}");
        assert_eq!(answers[&(policy.name(), false)], alone(&[]), "{policy:?}");
        assert_ne!(
            answers[&(policy.name(), true)],
            answers[&(policy.name(), false)],
            "{policy:?}"
        );
    }
}

/// The tokens of a request computed alone, in a runtime whose every sequence has its policy where there is one.
fn selected_alone(model: &Arc<Model>, probe: &probe::Probe, request: &Request) -> Vec<u32> {
    let (prompt, Some(rows)) = prompt_and_rows(request) else {
        return alone(model, request);
    };
    let (retention, keep) = match rows.when_longer {
        LongPrompt::Select(policy @ (Policy::Heavy | Policy::Snap)) => {
            let retention = Retention {
                policy,
                anchors: Some(rows.anchors),
                window: Some(rows.max_rows - rows.anchors - 32),
                guard: Guarding::Off,
                ..Retention::default()
            };
            (retention, SequenceRetention::Default)
        }
        LongPrompt::Select(_) => (Retention::full(), rows.keep(670)),
        _ => return alone(model, request),
    };
    let options = RuntimeOptions {
        threads: 1,
        retention,
        cache_dir: Some(packed_dir()),
        ..RuntimeOptions::default()
    };
    let mut runtime = Runtime::new(model.clone(), &options).unwrap();
    runtime.load_probe(probe);
    let id = runtime.open_with(keep).unwrap();
    let mut sampler = Sampler::new(request.sample.clone()).unwrap();
    let tell = &mut |_: haversack_engine::runtime::GenerateEvent<'_>| ControlFlow::Continue(());
    let options = &request.options;
    let said = generate(&mut runtime, id, prompt, &mut sampler, options, tell);
    said.unwrap().tokens
}

/// Policies that cannot be set for one request are refused with the reason.
#[test]
fn policies_that_cannot_select_for_one_request() {
    let (_dir, _, model) = tiny();
    let options = RuntimeOptions {
        retention: Retention::full(),
        ..RuntimeOptions::default()
    };
    let mut runtime = Runtime::new(model.clone(), &options).unwrap();
    let mut open = |by, window| {
        let keep = SequenceRetention::Selected {
            by,
            anchors: 0,
            window,
            tokens: 1000,
        };
        runtime.open_with(keep).unwrap_err()
    };
    for by in [Policy::Tiers, Policy::Streams] {
        assert!(matches!(open(by, 512), StepError::PolicyPerSequence { .. }));
    }
    let narrow = open(Policy::Heavy, 255);
    assert_eq!(
        narrow,
        StepError::NarrowWindow {
            window: 224,
            min: 256
        }
    );
    assert!(matches!(
        open(Policy::Snap, usize::MAX),
        StepError::Window { .. }
    ));
    assert_eq!(open(Policy::Adaptive, 512), StepError::NotProbed);
}

/// A window that shrinks while requests read: portions follow it, no request fails, and the reported changes give the same
/// tokens again.
#[test]
fn a_window_that_follows_the_device() {
    let (_dir, spec, model) = tiny();
    let ids = spec.ids(600);
    let make = |replay: Vec<(u64, usize)>| {
        let options = RuntimeOptions {
            threads: 2,
            retention: Retention {
                policy: Policy::Window,
                anchors: Some(4),
                window: Some(171),
                replay,
                ..Retention::default()
            },
            cache_dir: Some(packed_dir()),
            ..RuntimeOptions::default()
        };
        Runtime::new(model.clone(), &options).unwrap()
    };
    let options = GenerateOptions {
        tokens_max: Some(30),
        ignore_end: true,
        ..GenerateOptions::default()
    };
    let short = haversack_memory::Reading {
        mem_available_bytes: Some(0),
        ..Default::default()
    };
    let mut changed = 0;
    for after in 1..8 {
        let mut scheduler = Scheduler::new(make(Vec::new()), SchedulerOptions::default());
        scheduler.set_pace(Pace {
            batch: 8,
            chunk: 100,
        });
        let prompts = [&ids[..400], &ids[100..480]];
        for prompt in prompts {
            let request = Request {
                options: options.clone(),
                ..Request::completion(prompt.to_vec())
            };
            scheduler.submit(request).unwrap();
        }
        let mut done = Vec::new();
        for step in 0.. {
            if scheduler.is_idle() {
                break;
            }
            if step == after {
                scheduler.observe(None, &short, Duration::from_secs(1));
            }
            scheduler
                .step(Duration::ZERO, &mut |request_id, event| {
                    match event {
                        RequestEvent::Completed(completed, held) => {
                            done.push((request_id, completed.tokens, held))
                        }
                        RequestEvent::Failed(why) => panic!("{after}: {why}"),
                        _ => {}
                    }
                    ControlFlow::Continue(())
                })
                .unwrap();
        }
        done.sort_by_key(|done| done.0);
        for ((_, tokens, held), prompt) in done.iter().zip(prompts) {
            changed += held.usage.changes.len();
            let replay = held.usage.changes.iter().map(|c| (c.position, c.window));
            let mut runtime = make(replay.collect());
            let id = runtime.open().unwrap();
            let mut sampler = Sampler::new(SampleOptions::default()).unwrap();
            let go_on =
                &mut |_: haversack_engine::runtime::GenerateEvent<'_>| ControlFlow::Continue(());
            let said = generate(&mut runtime, id, prompt, &mut sampler, &options, go_on);
            assert_eq!(said.unwrap().tokens, *tokens, "{after}");
        }
    }
    assert!(changed >= 14, "{changed} changes");
}
