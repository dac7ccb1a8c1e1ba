//! Reading and judging: everything that is not in the state yet.
//!
//! All contenders of a context read a window side by side, so that the logits of the reference are computed
//! once for many. Where their caches together would take too much they come in groups.

use super::Exam;
use super::contest::Contest;
use super::state::{self, State};
use crate::engine::{self, LoadedModel};
use crate::{out, progress};
use anyhow::{Result, anyhow};
use haversack::engine::runtime::{Runtime, RuntimeOptions, SequenceId};
use haversack::engine::{Activations, runtime::plan};
use haversack_eval::answers::{self, Script};
use haversack_eval::bleu::BleuCounts;
use haversack_eval::choice;
use haversack_eval::contender::Setup;
use haversack_eval::side::{self, CacheVerdict};
use haversack_eval::task::Task;
use serde_json::{Value as Json, json};
use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// The reference with rounded activations: what KL would be without any loss in the cache.
pub const FLOOR: &str = "floor";

/// Caches that are held at once take about so much, and beside them each runtime some scratch.
const GROUP_BYTES: u64 = 1 << 30;
const GROUP_MOST: usize = 12;

/// Names of results.
pub fn at_kl(context: usize, text: usize, chunk: usize, key: &str) -> String {
    format!("kl/{context}/{text}/{chunk}/{key}")
}

pub fn at_case(task: Task, context: usize, text: usize, case: usize, key: &str) -> String {
    format!("{}/{context}/{text}/{case}/{key}", task.name())
}

pub fn at_answer(context: usize, number: usize, key: &str) -> String {
    format!("answers/{context}/{number}/{key}")
}

/// One of a group, with its cache.
struct Runner<'a> {
    key: &'a str,
    runtime: Runtime,
}

/// Those that read at the same time in one context.
struct Group<'a> {
    context: usize,
    /// Its key.
    reference: &'a str,
    runners: Vec<Runner<'a>>,
}

struct Work<'a> {
    engine: &'a mut LoadedModel,
    exam: &'a Exam,
    state: &'a mut State,
    bar: Bar,
}

pub fn run(
    engine: &mut LoadedModel,
    options: &RuntimeOptions,
    exam: &Exam,
    contests: &[Contest],
    state: &mut State,
) -> Result<()> {
    let total = contests.iter().flat_map(|c| wanted(exam, c, options));
    let missing = total.filter(|at| !state.has(at)).count();
    let mut work = Work {
        bar: Bar::new(missing),
        engine,
        exam,
        state,
    };
    for contest in contests {
        work.contest(options, contest)?;
    }
    Ok(())
}

/// Whether the floor is measured: it says something where nothing else is rounded.
fn has_floor(exam: &Exam, options: &RuntimeOptions) -> bool {
    exam.has_kl && options.activations == Activations::F32
}

/// Names of all results of a contest.
fn wanted(exam: &Exam, contest: &Contest, options: &RuntimeOptions) -> Vec<String> {
    let context = contest.context;
    let keys: Vec<&str> = contest.setups.iter().map(|e| e.key.as_str()).collect();
    let mut all = Vec::new();
    for text in 0..exam.texts.len() {
        let chunks = 0..if exam.has_kl { exam.chunks } else { 0 };
        for chunk in chunks {
            let floor = has_floor(exam, options).then_some(FLOOR);
            let keys = keys.iter().copied().chain(floor);
            all.extend(keys.map(|key| at_kl(context, text, chunk, key)));
        }
        for &task in &exam.tasks {
            for case in 0..exam.cases {
                let at = |key: &&str| at_case(task, context, text, case, key);
                all.extend(keys.iter().map(at));
            }
        }
    }
    for number in 0..exam.instructions.len() {
        all.extend(keys.iter().map(|key| at_answer(context, number, key)));
    }
    all
}

impl Work<'_> {
    fn contest(&mut self, options: &RuntimeOptions, contest: &Contest) -> Result<()> {
        let is_open = |state: &State, key: &str| {
            let (wanted, ending) = (wanted(self.exam, contest, options), format!("/{key}"));
            let mut own = wanted.iter().filter(|at| at.ends_with(&ending));
            own.any(|at| !state.has(at))
        };
        let setups = contest.setups.split_first();
        let (reference, others) = setups.ok_or_else(|| anyhow!("no policy to compare"))?;
        let mut entrants: Vec<(&str, RuntimeOptions)> = Vec::new();
        for entrant in others.iter().filter(|e| is_open(self.state, &e.key)) {
            let options = RuntimeOptions {
                kv: entrant.setup.kv.clone(),
                retention: entrant.setup.retention.clone(),
                guard: entrant.setup.guard,
                ..options.clone()
            };
            entrants.push((&entrant.key, options));
        }
        if has_floor(self.exam, options) && is_open(self.state, FLOOR) {
            let Setup { kv, retention, .. } = Setup::reference();
            let options = RuntimeOptions {
                kv,
                retention,
                activations: Activations::Int8,
                ..options.clone()
            };
            entrants.push((FLOOR, options));
        }
        let is_alone = entrants.is_empty() && is_open(self.state, &reference.key);
        let mut left = &entrants[..];
        while !left.is_empty() || is_alone {
            let (next, rest) = left.split_at(self.fitting(left, contest.context));
            left = rest;
            let mut group = Group {
                context: contest.context,
                reference: &reference.key,
                runners: Vec::new(),
            };
            for (key, options) in next {
                let runtime = engine::runtime(&self.engine.model, options)?;
                group.runners.push(Runner { key, runtime });
            }
            self.group(&mut group)?;
            if is_alone {
                break;
            }
        }
        Ok(())
    }

    /// How many of the next ones may be held at once.
    fn fitting(&self, left: &[(&str, RuntimeOptions)], context: usize) -> usize {
        let (config, runtime) = (self.engine.model.config(), &self.engine.runtime);
        // Beside the reference.
        let budget = runtime.ledger().budget.unwrap_or(usize::MAX);
        let room = budget.saturating_sub(runtime.needs_bytes(context)) as u64;
        let mut sum = 0u64;
        let fits = left.iter().take_while(|(_, options)| {
            let rows = options.retention.window.map_or(context, |window| {
                let anchors = options.retention.anchors.unwrap_or(0);
                (anchors + window + 64).min(context)
            });
            sum = sum.saturating_add(plan::blocks_bytes(config, &options.kv, rows));
            sum <= GROUP_BYTES.min(room)
        });
        fits.count().clamp(1, GROUP_MOST).min(left.len())
    }

    /// Everything that is missing for the reference and the runners.
    fn group(&mut self, group: &mut Group<'_>) -> Result<()> {
        let exam = self.exam;
        for text in 0..exam.texts.len() {
            if exam.has_kl {
                for chunk in 0..exam.chunks {
                    self.window(group, text, chunk)?;
                }
            }
            for &task in &exam.tasks {
                for case in 0..exam.cases {
                    self.case(group, task, text, case)?;
                }
            }
        }
        if !exam.instructions.is_empty() {
            self.answers(group)?;
        }
        Ok(())
    }

    fn window(&mut self, group: &mut Group<'_>, number: usize, chunk: usize) -> Result<()> {
        let (context, reference) = (group.context, group.reference);
        let at = |key: &str| at_kl(context, number, chunk, key);
        let has = |key: &str| self.state.has(&at(key));
        let mut keys = Vec::new();
        let mut runtimes = Vec::new();
        let runners = group.runners.iter_mut();
        for runner in runners.filter(|runner| !has(runner.key)) {
            keys.push(runner.key);
            runtimes.push(&mut runner.runtime);
        }
        if keys.is_empty() && has(reference) {
            return Ok(());
        }
        let opening = choice::opening(self.engine.model.tokenizer());
        let tokens = self.exam.texts[number].window(&opening, context, chunk);
        let from = (context as f64 * self.exam.score_from) as usize;
        let truth = &mut self.engine.runtime;
        let mut on = |_: usize| ControlFlow::Continue(());
        let judged = side::judge(truth, &mut runtimes, &tokens, from, &mut on)?;
        let (truth, judged) = judged.ok_or_else(|| anyhow!("interrupted"))?;
        if !self.state.has(&at(reference)) {
            self.put(at(reference), of_window(&truth, truth.token_ms))?;
        }
        for (key, judged) in keys.into_iter().zip(&judged) {
            self.put(at(key), of_window(judged, truth.token_ms))?;
        }
        Ok(())
    }

    fn case(
        &mut self,
        group: &mut Group<'_>,
        task: Task,
        number: usize,
        case: usize,
    ) -> Result<()> {
        let (context, reference) = (group.context, group.reference);
        let at = |key: &str| at_case(task, context, number, case, key);
        let (ids, seed) = (&self.exam.texts[number].ids, self.exam.seed);
        let tokenizer = self.engine.model.tokenizer();
        let asked = task.case(tokenizer, ids, context, seed, case);
        if !self.state.has(&at(reference)) {
            let verdicts = choice::judge(&mut self.engine.runtime, &asked)?;
            self.put(at(reference), of_case(&verdicts))?;
        }
        let runners = group.runners.iter_mut();
        for runner in runners.filter(|runner| runner.key != FLOOR) {
            if !self.state.has(&at(runner.key)) {
                let verdicts = choice::judge(&mut runner.runtime, &asked)?;
                self.put(at(runner.key), of_case(&verdicts))?;
            }
        }
        Ok(())
    }

    fn answers(&mut self, group: &mut Group<'_>) -> Result<()> {
        let (context, reference) = (group.context, group.reference);
        let at = |number: usize, key: &str| at_answer(context, number, key);
        let count = self.exam.instructions.len();
        let is_done = |state: &State, key: &str| (0..count).all(|i| state.has(&at(i, key)));
        let mut keys = group.runners.iter().map(|runner| runner.key);
        if is_done(self.state, reference) && keys.all(|k| k == FLOOR || is_done(self.state, k)) {
            return Ok(());
        }
        let text = &self.exam.texts[0].text;
        let (model, told) = (self.engine.model.clone(), &self.exam.instructions);
        let script = answers::script(&model, text, told, context)?;
        let base = answers::begin(&mut self.engine.runtime, &script)?;
        for (i, rest) in script.rests.iter().enumerate() {
            if self.state.has(&at(i, reference)) {
                continue;
            }
            let truth = &mut self.engine.runtime;
            let own = answers::answer(truth, base, rest)?;
            let nll = answers::nll(truth, base, rest, &own.tokens)?;
            let result = json!({
                "tokens": own.tokens,
                "text": own.text,
                "nll": state::number(nll),
            });
            self.put(at(i, reference), result)?;
        }
        let runners = group.runners.iter_mut();
        for runner in runners.filter(|runner| runner.key != FLOOR) {
            if !is_done(self.state, runner.key) {
                self.answers_of(context, reference, runner, &script, base)?;
            }
        }
        self.engine.runtime.close(base)?;
        Ok(())
    }

    fn answers_of(
        &mut self,
        context: usize,
        reference: &str,
        runner: &mut Runner<'_>,
        script: &Script,
        truth: SequenceId,
    ) -> Result<()> {
        let base = answers::begin(&mut runner.runtime, script)?;
        for (i, rest) in script.rests.iter().enumerate() {
            let at = at_answer(context, i, runner.key);
            if self.state.has(&at) {
                continue;
            }
            let own = self.state.get(&at_answer(context, i, reference));
            let own = own.and_then(|own| {
                let tokens = own["tokens"].as_array()?.iter();
                let tokens = tokens.map(|id| u32::try_from(id.as_u64()?).ok());
                let tokens = tokens.collect::<Option<Vec<u32>>>()?;
                Some((tokens, own["text"].as_str()?.to_owned()))
            });
            let (own_tokens, own_text) = own.ok_or_else(|| anyhow!("the state has no answers"))?;
            let made = answers::answer(&mut runner.runtime, base, rest)?;
            let nll = answers::nll(&mut self.engine.runtime, truth, rest, &made.tokens)?;
            let counts = BleuCounts::of(&made.text, &own_text);
            let result = json!({
                "tokens": made.tokens,
                "text": made.text,
                "nll": state::number(nll),
                "alike": answers::divergence(&made.tokens, &own_tokens),
                "is_same": made.tokens == own_tokens,
                "bleu": [
                    counts.matched.to_vec(),
                    counts.all.to_vec(),
                    vec![counts.words, counts.reference_words],
                ],
            });
            self.put(at, result)?;
        }
        runner.runtime.close(base)?;
        Ok(())
    }

    fn put(&mut self, at: String, result: Json) -> Result<()> {
        self.state.put(at, result)?;
        self.bar.step();
        Ok(())
    }
}

fn of_window(judged: &CacheVerdict, full_ms: Option<f64>) -> Json {
    let ms = |ms: Option<f64>| ms.map_or(Json::Null, state::number);
    json!({
        "tokens": judged.tally.tokens,
        "nll": state::number(judged.tally.nll),
        "kl": state::numbers(&judged.tally.kl),
        "top1": judged.tally.top1,
        "ms": ms(judged.token_ms),
        "full_ms": ms(full_ms),
        "bytes": judged.held.bytes,
        "values": judged.held.values,
        "rows": judged.held.rows,
        "kept": out::list(&judged.held.kept, |layer| state::bytes(layer)),
    })
}

fn of_case(verdicts: &[choice::Verdict]) -> Json {
    let logprobs = out::list(verdicts, |v| state::number(v.logprob));
    let right: Vec<bool> = verdicts.iter().map(|v| v.right).collect();
    json!({ "logprobs": logprobs, "right": right })
}

/// A bar on a terminal, a line now and then in a log: comparisons may run for hours.
struct Bar {
    count: progress::Count,
    done: usize,
    total: usize,
    said: Instant,
}

const SAY_EVERY: Duration = Duration::from_secs(60);

impl Bar {
    fn new(total: usize) -> Bar {
        Bar {
            count: progress::Count::new(total, "results"),
            done: 0,
            total,
            said: Instant::now(),
        }
    }

    fn step(&mut self) {
        self.done += 1;
        self.count.set(self.done);
        if !io::stderr().is_terminal() && self.said.elapsed() >= SAY_EVERY {
            self.said = Instant::now();
            out::note(&format!("{} of {} results", self.done, self.total));
        }
    }
}
