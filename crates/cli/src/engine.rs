//! From flags to a model that is ready to run, and its numbers afterwards.

use crate::args::{self, ComputeArgs, SamplingArgs};
use crate::error::usage;
use crate::interrupt::Cooperative;
use crate::machine::threads_of_machine;
use crate::{out, policy_file, progress, resolve};
use anyhow::{Context, Result};
use haversack::cache::policy::profile::Profile;
use haversack::cache::policy::rows::RowPolicy;
use haversack::engine::kv_quality::calibrate;
use haversack::engine::kv_quality::probe::{self, Depth, Probe};
use haversack::engine::runtime::adaptive::{self, AdaptiveOptions};
use haversack::engine::runtime::bounds::BoundsError;
use haversack::engine::runtime::{Runtime, RuntimeError, RuntimeOptions};
use haversack::engine::sample::{DryValues, SampleOptions, SamplingValues, effective};
use haversack::engine::{
    Activations, Codec, Guarding, KvOptions, LoadOptions, Model, Policy, Positions, Repack,
    Residence, Retention,
};
use haversack::memory::bytes::human;
use haversack::memory::{Backing, HeapBudget, PeakMeter, ProcessUsage, heap};
use haversack::session::Sessions;
use haversack::text::chat::{EncodedChat, encode_chat_with_borders};
use haversack::text::template::{Message, RenderOptions};
use haversack::text::tokenizer::EncodeOptions;
use haversack::{Engine, EngineOptions};
use haversack_hub::catalogue::catalogue;
use haversack_hub::home::Home;
use haversack_hub::tidy::Endings;
use serde_json::{Value as Json, json};
use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub struct LoadedModel {
    pub path: PathBuf,
    pub model: Arc<Model>,
    pub runtime: Runtime,
    pub load: Duration,
    pub memory: Memory,
}

/// What a command does where the flags say nothing.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    kv: Codec,
    policy: Policy,
    follow_device: bool,
    /// Plans are put into words.
    explain: bool,
}

impl Habits {
    /// For `run` and `chat`: small, without end, and considerate.
    pub const TALK: Habits = Habits {
        kv: Codec::Int4,
        policy: Policy::Auto,
        follow_device: true,
        explain: false,
    };
    /// For a `chat` that is kept: facts and turns.
    pub const SESSION: Habits = Habits {
        policy: Policy::Streams,
        ..Habits::TALK
    };
    /// For commands that judge: nothing lost that was not asked for.
    pub const JUDGE: Habits = Habits {
        kv: Codec::F16,
        policy: Policy::Full,
        follow_device: false,
        explain: false,
    };
    /// The same for a text without end.
    pub const STREAM: Habits = Habits {
        policy: Policy::Auto,
        ..Habits::JUDGE
    };
    /// For `bench`: as in a talk, but the same work every time.
    pub const MEASURE: Habits = Habits {
        kv: Codec::Int4,
        ..Habits::JUDGE
    };

    pub fn explaining(self, explain: bool) -> Habits {
        Habits { explain, ..self }
    }
}

/// Loads what `MODEL` means, fetching it first if need be.
pub fn load(model: Option<&str>, compute: &ComputeArgs, habits: Habits) -> Result<LoadedModel> {
    let options = runtime_options(compute, habits)?;
    let path = resolve::model(model)?;
    let started = Instant::now();
    let (model, runtime) = open(&path, compute, &options)?;
    Ok(LoadedModel {
        path,
        model,
        runtime,
        load: started.elapsed(),
        memory: Memory::after_load(),
    })
}

fn open(
    path: &Path,
    compute: &ComputeArgs,
    options: &RuntimeOptions,
) -> Result<(Arc<Model>, Runtime)> {
    let (repack, _tidy) = repack(compute);
    let load = LoadOptions {
        context: compute.context,
        repack,
        residence: match compute.weights.unwrap_or_default() {
            args::WeightsArg::Auto => Residence::Auto,
            args::WeightsArg::Mapped => Residence::Mapped,
            args::WeightsArg::Prefetch => Residence::Prefetch,
            args::WeightsArg::Locked => Residence::Locked,
        },
        threads: options.threads,
        sampling: catalogue_sampling(path),
    };
    let mut bar: Option<progress::Bytes> = None;
    let model = Model::load(path, &load, &mut |done, total| {
        let bar = bar.get_or_insert_with(|| {
            out::note("packing the weights for this CPU (once)");
            progress::Bytes::new(total)
        });
        bar.set(done);
    })?;
    drop(bar);
    let runtime = runtime(&model, options)?;
    Ok((model, runtime))
}

/// A runtime of a loaded model. Without a budget it gets what the device has room for; a command that judges a model is
/// refused where that would change what it keeps.
pub fn runtime(model: &Arc<Model>, options: &RuntimeOptions) -> Result<Runtime> {
    let options = &options.clone().with_device_budget(model);
    let _tidy = options
        .cache_dir
        .as_ref()
        .map(|dir| Endings::new(dir.clone(), temporary_ending()));
    let line = match options.cache_dir {
        Some(_) => "measuring key statistics of this model (once)",
        None => "measuring key statistics of this model (not saved: --repack off)",
    };
    let planned = planned(model, options)?;
    let options = planned.as_ref().unwrap_or(options);
    let note = must_measure(model, options).then(|| progress::Late::new(line));
    let runtime = Runtime::new(model.clone(), options);
    drop(note);
    let runtime = runtime.map_err(|error| match error {
        RuntimeError::Bounds(BoundsError::Budget { .. } | BoundsError::Window { .. })
            if options.budget_follows_device =>
        {
            anyhow::Error::new(error).context("this device has too little memory left")
        }
        error => named(error),
    })?;
    if options.budget_follows_device && !options.follow_device {
        check_keeps_all(&runtime, options)?;
    }
    Ok(runtime)
}

/// Refuses a budget of the device that would shorten a window that no flag names.
fn check_keeps_all(runtime: &Runtime, options: &RuntimeOptions) -> Result<()> {
    let (bounds, context) = (runtime.bounds(), runtime.model().config().context);
    // Where everything is kept, the length of the text decides.
    if bounds.window.is_none() || options.retention.window.is_some() || bounds.rows_max >= context {
        return Ok(());
    }
    Err(anyhow::anyhow!(
        "all {context} tokens of the context need {}, and this device has {} left; accepted: a smaller --context, a --window, or a --memory that says what may be kept",
        human(runtime.needs_bytes(context) as u64),
        human(runtime.ledger().budget.unwrap_or(usize::MAX) as u64),
    ))
}

/// Options that wait for a plan, with it. A probe of the model comes first, once.
fn planned(model: &Arc<Model>, options: &RuntimeOptions) -> Result<Option<RuntimeOptions>> {
    if !adaptive::needs_plan(options) {
        return Ok(None);
    }
    let probe = probe(model, options, options.retention.adaptive.depth)?;
    let planned = adaptive::with_probe(model.config(), options, &probe);
    planned.map(Some).map_err(|error| named(error.into()))
}

/// What hurts the layers of a model: kept, or measured with a bar.
pub fn probe(model: &Arc<Model>, options: &RuntimeOptions, depth: Depth) -> Result<Probe> {
    let options = &options.clone().with_device_budget(model);
    adaptive::check_probe(model, options, depth).map_err(named)?;
    let dir = options.cache_dir.as_deref();
    let mut bar = None;
    if !dir.is_some_and(|dir| probe::is_saved(model, dir, depth)) {
        out::note("measuring how sensitive each layer is (once)");
        bar = Some(progress::Count::new(model.config().layers.len(), "layers"));
    }
    let interrupt = Cooperative::begin(1);
    let mut tell = |done: usize| {
        if let Some(bar) = &mut bar {
            bar.set(done);
        }
        match interrupt.raised() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let probe = adaptive::load_or_measure(model, options, depth, &mut tell).map_err(named)?;
    probe.ok_or_else(|| anyhow::anyhow!("interrupted"))
}

/// What the flags ask for and cannot be had is a usage error.
fn named(error: RuntimeError) -> anyhow::Error {
    match &error {
        RuntimeError::Bounds(bounds) => {
            let flags = match bounds {
                BoundsError::Budget { .. } => "--memory",
                BoundsError::Window { .. } => "--anchors, --window and --memory",
                BoundsError::Context { .. } | BoundsError::Anchors { .. } => {
                    "--anchors and --window"
                }
                BoundsError::TooNarrow { .. } => "--window or --memory",
                BoundsError::Replay { .. } => "--window-plan",
                BoundsError::NoSuchLayer { .. } => "kv_layers",
            };
            usage(format!("{flags}: {error}"))
        }
        RuntimeError::Probe { .. } => usage(format!("--policy adaptive and --memory: {error}")),
        RuntimeError::Params(_) => usage(format!("--policy-file: {error}")),
        _ => anyhow::Error::new(error),
    }
}

/// Whether [`Runtime::new`] will read the built-in text, which takes a second or two.
fn must_measure(model: &Model, options: &RuntimeOptions) -> bool {
    let weights_bytes = model.weights().bytes_per_token() as u64;
    let wanted = haversack::engine::runtime::plan::side_bytes(model.config(), &options.kv) > 0
        && calibrate::tokens_affordable(weights_bytes).is_some();
    let kept = options.cache_dir.as_ref();
    let kept = kept.is_some_and(|dir| calibrate::file(model, dir).exists());
    wanted && !kept
}

/// The flags and the habits together, before any model is looked at.
pub fn runtime_options(compute: &ComputeArgs, habits: Habits) -> Result<RuntimeOptions> {
    if let (Some(memory), Some(total)) = (
        compute.memory,
        haversack::memory::Reading::now().mem_total_bytes,
    ) && memory > total
    {
        out::note(&format!(
            "--memory {} is more than this machine has ({}); it is a limit, not a reservation",
            human(memory),
            human(total)
        ));
    }
    Ok(RuntimeOptions {
        threads: threads(compute),
        activations: match compute.activations.unwrap_or_default() {
            args::ActivationsArg::Int8 => Activations::Int8,
            args::ActivationsArg::F32 => Activations::F32,
        },
        budget_bytes: compute
            .memory
            .map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
        kv: kv(&compute.cache, habits.kv),
        kv_memory: match compute.kv_memory.unwrap_or_default() {
            args::KvMemoryArg::Private => Backing::Private,
            args::KvMemoryArg::Mergeable => Backing::Mergeable,
            args::KvMemoryArg::Memfd => Backing::Memfd,
        },
        retention: retention(&compute.cache, habits)?,
        follow_device: habits.follow_device,
        cache_dir: match (compute.repack.unwrap_or_default(), Home::find()) {
            (args::RepackArg::Auto, Ok(home)) => Some(home.cache()),
            _ => None,
        },
        ..RuntimeOptions::default()
    })
}

/// How keys and values are stored; `auto` is `usual`.
pub fn kv(flags: &args::CacheArgs, usual: Codec) -> KvOptions {
    let pair = match flags.kv.unwrap_or_default() {
        args::Kv::Auto => args::KvPair::both(usual),
        args::Kv::Named(pair) => pair,
    };
    let group = flags.group;
    let layers = flags.kv_layers.iter();
    KvOptions {
        layers: layers.map(|(&i, pair)| (i, pair.form(group))).collect(),
        sinks: flags.sinks.unwrap_or(KvOptions::SINKS),
        recent: flags.recent.unwrap_or(KvOptions::RECENT),
        near: match flags.recent_kv.unwrap_or_default() {
            args::RecentKv::Int8 => Codec::Int8,
            args::RecentKv::F16 => Codec::F16,
        },
        centre: !flags.no_centre,
        ..KvOptions::new(pair.form(group))
    }
}

/// Whether the kind of text decides what `tiers` keeps.
pub fn wants_profile(compute: &args::ComputeArgs) -> bool {
    compute.cache.profile == Some(args::ProfileName::Auto)
}

/// With the profile of this text instead of `--profile auto`.
pub fn with_profile_of(compute: &args::ComputeArgs, text: &str) -> args::ComputeArgs {
    let profile = Profile::of(text);
    log::info!("profile {}", profile.name());
    let mut compute = compute.clone();
    compute.cache.profile = Some(args::ProfileName::Named(profile));
    compute
}

fn retention(flags: &args::CacheArgs, habits: Habits) -> Result<Retention> {
    let bounded = flags.anchors.is_some() || flags.window.is_some() || flags.window_plan.is_some();
    let file = flags.policy_file.as_deref().map(policy_file::read);
    let file = file.transpose()?;
    let mut params = file.as_ref().map(|file| file.params);
    let policy = match file.map(|file| file.policy).or(flags.policy) {
        Some(Policy::Full) if bounded => {
            return Err(usage(
                "--policy full evicts nothing; --anchors and --window need --policy window or auto",
            ));
        }
        // Sessions are what is best for a talk, and made of turns.
        Some(Policy::Auto | Policy::Turns) | None if habits.policy == Policy::Streams => {
            Policy::Streams
        }
        Some(policy) => policy,
        // --anchors or --window alone means --policy window.
        None if bounded => Policy::Window,
        None => habits.policy,
    };
    match flags.profile {
        None => {}
        Some(_) if policy != Policy::Tiers || params.is_some() => {
            return Err(usage("--profile applies to --policy tiers only"));
        }
        // Until a prompt is there to look at.
        Some(args::ProfileName::Auto) => {}
        Some(args::ProfileName::Named(profile)) => {
            params = Some(RowPolicy::Tiers(profile.params()));
        }
    }
    if policy == Policy::Adaptive {
        let named = matches!(flags.kv, Some(args::Kv::Named(_))) || !flags.kv_layers.is_empty();
        if named || flags.window.is_some() || flags.window_plan.is_some() {
            return Err(usage(
                "--policy adaptive chooses formats and window itself; --kv, kv_layers and --window need another policy",
            ));
        }
    } else if flags.probe.is_some() || flags.recall {
        return Err(usage("--probe and --recall need --policy adaptive"));
    }
    Ok(Retention {
        policy,
        anchors: flags.anchors,
        window: flags.window,
        positions: match flags.positions.unwrap_or_default() {
            args::PositionsArg::Auto => Positions::Auto,
            args::PositionsArg::Compact => Positions::Compact,
            args::PositionsArg::Original => Positions::Original,
        },
        adaptive: AdaptiveOptions {
            depth: match flags.probe.unwrap_or_default() {
                args::ProbeArg::Short => Depth::Scaled,
                args::ProbeArg::Deep => Depth::Full,
            },
            recall: flags.recall,
            kv_bytes: None,
        },
        params,
        explain: habits.explain,
        guard: match flags.guard {
            Some(args::Switch::Off) => Guarding::Off,
            Some(args::Switch::On) | None => Guarding::On,
        },
        replay: flags
            .window_plan
            .as_ref()
            .map_or(Vec::new(), |plan| plan.0.clone()),
    })
}

pub fn threads(compute: &ComputeArgs) -> usize {
    compute.threads.unwrap_or_else(threads_of_machine)
}

/// Where packed weights are kept, and what removes a half-written copy if Ctrl-C ends the load.
fn repack(compute: &ComputeArgs) -> (Repack, Option<Endings>) {
    match (compute.repack.unwrap_or_default(), Home::find()) {
        (args::RepackArg::Auto, Ok(home)) => {
            let tidy = Endings::new(home.packed(), temporary_ending());
            (Repack::Into(home.packed()), Some(tidy))
        }
        _ => (Repack::Off, None),
    }
}

/// Of files that the library is still writing.
pub fn temporary_ending() -> String {
    format!(".{}.tmp", std::process::id())
}

/// How an answer is sampled. `usual`: what the model is best sampled with, where flags leave values out; without it
/// they are off.
pub fn sample_options(
    flags: &SamplingArgs,
    vocabulary: usize,
    usual: Option<&SamplingValues>,
) -> Result<SampleOptions> {
    if let Some((id, _)) = flags
        .logit_bias
        .iter()
        .find(|(id, _)| *id as usize >= vocabulary)
    {
        return Err(usage(format!(
            "--logit-bias names token {id}; accepted: 0 to {}",
            vocabulary.saturating_sub(1)
        )));
    }
    let values = sampling_values(flags);
    let options = match usual {
        Some(usual) => effective(&values, usual),
        None => values.options(),
    };
    let options = SampleOptions {
        logit_bias: flags.logit_bias.clone(),
        seed: flags.seed.unwrap_or(options.seed),
        ..options
    };
    options.check().map_err(|error| usage(error.to_string()))?;
    Ok(options)
}

fn sampling_values(flags: &SamplingArgs) -> SamplingValues {
    let breakers = match &flags.dry.dry_sequence_breaker[..] {
        [] => None,
        [none] if none == "none" => Some(Vec::new()),
        some => Some(some.to_vec()),
    };
    SamplingValues {
        temperature: flags.temperature,
        top_k: flags.top_k,
        top_p: flags.top_p,
        min_p: flags.min_p,
        typical_p: flags.typical_p,
        top_n_sigma: flags.top_n_sigma,
        xtc_probability: flags.xtc_probability,
        xtc_threshold: flags.xtc_threshold,
        repetition_penalty: flags.repetition_penalty,
        presence_penalty: flags.presence_penalty,
        frequency_penalty: flags.frequency_penalty,
        penalty_last_n: None,
        dry: DryValues {
            multiplier: flags.dry.dry_multiplier,
            base: flags.dry.dry_base,
            allowed_length: flags.dry.dry_allowed_length,
            last_n: flags.dry.dry_penalty_last_n,
            breakers,
        },
    }
}

/// How the catalogue says that a model is best sampled, by the name of its file.
fn catalogue_sampling(path: &Path) -> SamplingValues {
    let Some(found) = catalogue().sampling_of(path) else {
        return SamplingValues::default();
    };
    SamplingValues {
        temperature: found.temperature,
        top_k: found.top_k,
        top_p: found.top_p,
        min_p: found.min_p,
        repetition_penalty: found.repetition_penalty,
        ..SamplingValues::default()
    }
}

/// What the process takes: after loading, and at most since then.
pub struct Memory {
    baseline: Option<ProcessUsage>,
    meter: PeakMeter,
}

/// A reading costs tens of microseconds: often enough to see a peak, rarely enough not to be seen.
const POLL_TOKENS: usize = 64;

impl Memory {
    fn after_load() -> Memory {
        // What loading has left behind on the heap is no part of the baseline.
        heap::release_free_pages();
        let mut meter = PeakMeter::new();
        Memory {
            baseline: meter.poll(),
            meter,
        }
    }

    /// Anonymous pages of a process that has loaded its model and answers nothing: the program, the tokenizer, the stacks, and
    /// what the heap of a request may take before it counts against the budget.
    pub fn baseline_bytes(&self) -> Option<u64> {
        let working = HeapBudget::WORKING_BYTES as u64;
        self.baseline.map(|now| now.anonymous_bytes + working)
    }

    pub fn poll(&mut self) {
        let _ = self.meter.poll();
    }

    /// For the path of an answer: of its tokens only now and then.
    pub fn poll_event(&mut self, tokens: usize, is_token: bool) {
        if !is_token || tokens.is_multiple_of(POLL_TOKENS) {
            self.poll();
        }
    }

    /// Numbers are `null` where the system does not tell them.
    pub fn json(&self) -> Json {
        let peak = self.meter.peak();
        json!({
            "private_bytes": peak.map(|peak| peak.private_bytes),
            "baseline_bytes": self.baseline_bytes(),
            "pss_bytes": peak.map(|peak| peak.pss_bytes),
        })
    }
}

/// The ids of a conversation, up to the opening of the assistant's turn. Nothing a message says
/// can become a special token, unless the messages are `trusted` to mean it. `file` is named in errors.
pub fn chat_ids(
    model: &Model,
    file: &str,
    messages: &[Message],
    trusted: bool,
) -> Result<EncodedChat> {
    let options = RenderOptions::to_answer(haversack::memory::clock::since_1970());
    let (template, tokenizer) = (model.template(), model.tokenizer());
    let name = || format!("{file}: tokenizer.chat_template");
    if !trusted {
        return encode_chat_with_borders(template, tokenizer, messages, &options)
            .with_context(name);
    }
    let text = template.render(messages, &options).with_context(name)?;
    let special = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    let mut ids = tokenizer.encode(&text, special)?;
    // Templates that write the beginning token themselves would give two.
    if let (Some(bos), [first, second, ..]) = (tokenizer.bos(), ids.as_slice())
        && (*first, *second) == (bos, bos)
    {
        ids.remove(0);
    }
    Ok(EncodedChat {
        ids,
        ..EncodedChat::default()
    })
}

impl LoadedModel {
    /// For errors of computing: whose numbers they were.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// [`LoadedModel::note_budget`] of a short command, whose notes are for a terminal.
    pub fn note_budget_on_terminal(&self) {
        if io::stderr().is_terminal() {
            self.note_budget();
        }
    }

    /// Says how much memory the process may take.
    pub fn note_budget(&self) {
        let budget = self.runtime.ledger().budget.unwrap_or(usize::MAX);
        let source = match self.runtime.budget_follows_device() {
            true => "what this device has left",
            false => "--memory",
        };
        let baseline = self.memory.baseline_bytes();
        let baseline = baseline.map_or("unknown".to_owned(), human);
        out::note(&format!(
            "memory budget {} ({source}), beside it a baseline of {baseline} and the weights",
            human(budget as u64),
        ));
    }

    /// An engine for one caller, and the meter of its memory. `prefix_cache`: see [`EngineOptions`].
    pub fn start(
        self,
        sessions: Option<Sessions>,
        prefix_cache: usize,
    ) -> Result<(Engine, Memory)> {
        let options = EngineOptions {
            batch: 1,
            queue: 1,
            several_owners: false,
            prefix_cache,
            // A chat finds them itself, and says so.
            auto_facts: false,
            logs: false,
        };
        let engine = Engine::with_runtime(self.runtime, sessions, options)?;
        Ok((engine, self.memory))
    }

    /// What each layer stores and how many rows it keeps, where a plan says so.
    pub fn plan_in_words(&self) -> Vec<String> {
        let kv = self.runtime.kv();
        if self.runtime.retention().policy != Policy::Adaptive {
            return Vec::new();
        }
        let text = adaptive::describe(kv, self.model.config().context);
        text.lines().map(str::to_owned).collect()
    }

    /// Refuses a prompt that cannot fit, before anything is computed.
    pub fn check_fits(&self, tokens: usize) -> Result<()> {
        if tokens == 0 {
            return Err(anyhow::anyhow!("{}: the text has no tokens", self.name()));
        }
        match self.room() {
            Some(room) if tokens > room => Err(anyhow::anyhow!(
                "the text has {tokens} tokens, more than {} allows{}; accepted: at most {room}, or any length with --policy window",
                self.limit_name(),
                self.missing(tokens),
            )),
            _ => Ok(()),
        }
    }

    /// What these tokens need and what there is, where memory is what ends first.
    fn missing(&self, tokens: usize) -> String {
        if self.runtime.bounds().rows_max >= self.model.config().context {
            return String::new();
        }
        let needed = self.runtime.needs_bytes(tokens) as u64;
        let budget = self.runtime.ledger().budget.unwrap_or(usize::MAX);
        format!(
            " ({} needed, {} there)",
            human(needed),
            human(budget as u64)
        )
    }

    /// Tokens that a sequence can hold; `None`: it has no end.
    pub fn room(&self) -> Option<usize> {
        let bounds = self.runtime.bounds();
        bounds.end()
    }

    /// Tokens of an answer at most. A model that does not find its end is stopped after a context of
    /// them, unless more were asked for.
    pub fn tokens_max(&self, wanted: Option<usize>) -> usize {
        wanted.unwrap_or(self.model.config().context)
    }

    /// The same where one answer is all there is: who names a window wants it filled for as long as the
    /// model goes on.
    pub fn tokens_max_alone(&self, wanted: Option<usize>) -> Option<usize> {
        let policy = self.runtime.retention().policy;
        let named = policy == Policy::Window || policy.chooses();
        if named && self.room().is_none() {
            return wanted;
        }
        Some(self.tokens_max(wanted))
    }

    /// What ends first where everything is kept.
    pub fn limit_name(&self) -> &'static str {
        if self.runtime.bounds().rows_max >= self.model.config().context {
            "the context"
        } else {
            self.budget_name()
        }
    }

    /// Whose number the budget is.
    pub fn budget_name(&self) -> &'static str {
        match self.runtime.budget_follows_device() {
            true => "the memory of this device",
            false => "--memory",
        }
    }
}

/// Tokens per second; 0 where nothing was measured.
pub fn per_second(tokens: usize, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if tokens == 0 || seconds <= 0.0 {
        0.0
    } else {
        tokens as f64 / seconds
    }
}

pub fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
