//! From flags to a model that is ready to run, and its numbers afterwards.

use crate::args::{self, Compute, Sampling};
use crate::error::usage;
use crate::home::Home;
use crate::interrupt::Endings;
use crate::{progress, resolve};
use anyhow::{Context, Result};
use haversack::memory::{PeakMeter, Usage};
use haversack::run::{Runtime, RuntimeOptions};
use haversack::sample::{SampleOptions, Sampler};
use haversack::text::chat::encode_chat;
use haversack::text::template::{Message, RenderOptions};
use haversack::text::tokenizer::EncodeOptions;
use haversack::{Activations, LoadOptions, Model, Precision, Repack};
use serde_json::{Value as Json, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

pub struct Engine {
    pub path: PathBuf,
    pub model: Arc<Model>,
    pub runtime: Runtime,
    pub load: Duration,
    pub memory: Memory,
    pub budget_bytes: Option<u64>,
    /// Tokens a sequence can hold: the context, or less if the budget ends first.
    pub room: usize,
}

/// Slots of a block: a sequence grows by so many at a time.
const BLOCK_SLOTS: usize = 32;

/// Loads what `MODEL` means, fetching it first if need be.
pub fn load(model: Option<&str>, compute: &Compute) -> Result<Engine> {
    let path = resolve::model(model)?;
    let started = Instant::now();
    let threads = threads(compute);
    let (repack, _tidy) = repack(compute);
    let options = LoadOptions {
        context: compute.context,
        repack,
        threads,
    };
    let mut bar: Option<progress::Bytes> = None;
    let model = Model::load(&path, &options, &mut |done, total| {
        let bar = bar.get_or_insert_with(|| {
            crate::out::note("packing the weights for this machine, once");
            progress::Bytes::new(total)
        });
        bar.set(done);
    })?;
    drop(bar);
    let runtime = Runtime::new(
        model.clone(),
        &RuntimeOptions {
            threads,
            activations: match compute.activations.unwrap_or_default() {
                args::Activations::Int8 => Activations::Int8,
                args::Activations::F32 => Activations::F32,
            },
            budget_bytes: compute
                .memory
                .map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
            kv: precision(compute),
            ..RuntimeOptions::default()
        },
    );
    let room = room(&runtime, compute.memory);
    Ok(Engine {
        room,
        path,
        model,
        runtime,
        load: started.elapsed(),
        memory: Memory::after_load(),
        budget_bytes: compute.memory,
    })
}

fn room(runtime: &Runtime, budget: Option<u64>) -> usize {
    let context = runtime.model().config().context;
    let block: usize = runtime
        .store()
        .layers()
        .iter()
        .map(|layer| layer.block_bytes())
        .sum();
    let blocks = budget.and_then(|budget| usize::try_from(budget).ok()?.checked_div(block));
    blocks.map_or(context, |blocks| {
        context.min(blocks.saturating_mul(BLOCK_SLOTS))
    })
}

fn precision(compute: &Compute) -> Precision {
    match compute.kv.unwrap_or_default() {
        args::Kv::Auto | args::Kv::F16 => Precision::F16,
        args::Kv::F32 => Precision::F32,
    }
}

pub fn threads(compute: &Compute) -> usize {
    compute
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |count| count.get()))
}

/// Where packed weights are kept, and what removes a half-written copy if Ctrl-C ends the load.
fn repack(compute: &Compute) -> (Repack, Option<Endings>) {
    match (compute.repack.unwrap_or_default(), Home::find()) {
        (args::Repack::Auto, Ok(home)) => {
            let ending = format!(".{}.tmp", std::process::id());
            let tidy = Endings::new(home.packed(), ending);
            (Repack::Into(home.packed()), Some(tidy))
        }
        _ => (Repack::Off, None),
    }
}

/// A sampler from the flags; `temperature` is the default of the command.
pub fn sampler(flags: &Sampling, temperature: f32, vocabulary: usize) -> Result<Sampler> {
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
    let default = SampleOptions::default();
    let options = SampleOptions {
        temperature: flags.temperature.unwrap_or(temperature),
        top_k: flags.top_k.unwrap_or(default.top_k),
        top_p: flags.top_p.unwrap_or(default.top_p),
        min_p: flags.min_p.unwrap_or(default.min_p),
        repetition_penalty: flags
            .repetition_penalty
            .unwrap_or(default.repetition_penalty),
        presence_penalty: flags.presence_penalty.unwrap_or(default.presence_penalty),
        frequency_penalty: flags.frequency_penalty.unwrap_or(default.frequency_penalty),
        logit_bias: flags.logit_bias.clone(),
        seed: flags.seed.unwrap_or(default.seed),
        ..default
    };
    Sampler::new(options).map_err(|error| usage(error.to_string()))
}

/// What the process takes: after loading, and at most since then.
pub struct Memory {
    baseline: Option<Usage>,
    meter: PeakMeter,
}

/// A reading costs tens of microseconds: often enough to see a peak, rarely enough not to be seen.
const POLL_TOKENS: usize = 64;

impl Memory {
    fn after_load() -> Memory {
        let mut meter = PeakMeter::new();
        Memory {
            baseline: meter.poll(),
            meter,
        }
    }

    pub fn poll(&mut self) {
        let _ = self.meter.poll();
    }

    /// For the path of a token: reads now and then.
    pub fn poll_token(&mut self, number: usize) {
        if number.is_multiple_of(POLL_TOKENS) {
            self.poll();
        }
    }

    /// Numbers are `null` where the system does not tell them.
    pub fn json(&self) -> Json {
        let peak = self.meter.peak();
        json!({
            "private_bytes": peak.map(|peak| peak.private_bytes),
            "baseline_bytes": self.baseline.map(|baseline| baseline.private_bytes),
            "pss_bytes": peak.map(|peak| peak.pss_bytes),
        })
    }
}

impl Engine {
    /// The `kv` object of the contract.
    pub fn kv_json(&self, tokens_seen: u64, rows: usize) -> Json {
        let store = self.runtime.store();
        let (codec, bits) = match self.runtime.precision() {
            Precision::F16 => ("f16", 16.0),
            Precision::F32 => ("f32", 32.0),
        };
        json!({
            "codec": codec,
            "policy": "full",
            "bytes_live": store.bytes_live(),
            "bytes_peak": store.bytes_peak(),
            "bytes_budget": self.budget_bytes,
            "bits_effective": bits,
            "tokens_seen": tokens_seen,
            "rows_live": rows,
            "rows_peak": rows,
            "rows_evicted": 0,
        })
    }

    /// The ids of a conversation, up to the opening of the assistant's turn. Nothing a message says
    /// can become a special token, unless the messages are `trusted` to mean it.
    pub fn chat_ids(&self, messages: &[Message], trusted: bool) -> Result<Vec<u32>> {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let options = RenderOptions {
            add_generation_prompt: true,
            now_unix_seconds: i64::try_from(now.as_secs()).unwrap_or(0),
            ..RenderOptions::default()
        };
        let (template, tokenizer) = (self.model.template(), self.model.tokenizer());
        let name = || format!("{}: tokenizer.chat_template", self.name());
        if !trusted {
            return encode_chat(template, tokenizer, messages, &options).with_context(name);
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
        Ok(ids)
    }

    /// For errors of computing: whose numbers they were.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Refuses a prompt that cannot fit, before anything is computed.
    pub fn check_fits(&self, tokens: usize) -> Result<()> {
        if tokens == 0 {
            return Err(anyhow::anyhow!(
                "{}: its tokenizer makes nothing of this text",
                self.name()
            ));
        }
        if self.room == 0 {
            let least = self
                .runtime
                .store()
                .layers()
                .iter()
                .map(|layer| layer.block_bytes())
                .sum::<usize>();
            return Err(anyhow::anyhow!(
                "--memory holds not one block of keys and values; accepted: at least {}",
                crate::bytes::human(least as u64)
            ));
        }
        if tokens > self.room {
            let limit = if self.room < self.model.config().context {
                "--memory"
            } else {
                "the context"
            };
            return Err(anyhow::anyhow!(
                "the text has {tokens} tokens, more than {limit} allows; accepted: at most {}",
                self.room
            ));
        }
        Ok(())
    }
}

impl Engine {
    /// Tokens that can be generated after a prompt, at most `wanted`. The last one needs no room: it
    /// is not read any more.
    pub fn tokens_max(&self, prompt: usize, wanted: Option<usize>) -> Option<usize> {
        let possible = self.room.saturating_sub(prompt) + 1;
        Some(wanted.map_or(possible, |wanted| wanted.min(possible)))
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
