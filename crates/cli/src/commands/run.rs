//! `run`: one completion, streamed.

use crate::args;
use crate::engine::{self, Habits, LoadedModel, milliseconds, per_second};
use crate::error::usage;
use crate::input::Text;
use crate::interrupt::Cooperative;
use crate::ledger::{self, Holding};
use crate::{out, progress};
use anyhow::{Context, Result};
use haversack::cache::policy::profile::Profile;
use haversack::engine::runtime::{GenerateEvent, GenerateOptions, generate};
use haversack::text::template::Message;
use haversack::text::tokenizer::EncodeOptions;
use serde_json::json;
use std::ops::ControlFlow;

pub fn run(args: &args::RunArgs, as_json: bool) -> Result<()> {
    let prompt = Text::given(
        args.prompt.prompt.as_deref(),
        args.prompt.prompt_file.as_deref(),
    )?;
    let (prompt, compute) = profiled(prompt, &args.compute)?;
    let habits = Habits::TALK.explaining(args.explain);
    let mut engine = engine::load(args.model.as_deref(), &compute, habits)?;
    let ids = prompt_ids(args, prompt, &engine)?;
    engine.check_fits(ids.len())?;

    let vocabulary = engine.model.config().vocab;
    let mut sampler = engine::sampler(&args.sampling, 0.0, vocabulary)?;
    let mut stop = args.stop.clone();
    if !is_plain_text(args) {
        stop.extend(
            engine
                .model
                .template()
                .stop_strings()
                .iter()
                .map(|text| text.to_string()),
        );
    }
    let options = GenerateOptions {
        tokens_max: engine.tokens_max_alone(args.max_tokens),
        stop,
        ignore_end: args.ignore_eos,
    };

    let sequence = engine.runtime.open()?;
    let interrupt = Cooperative::begin(1);
    let mut writing: Result<()> = Ok(());
    let mut count = 0;
    let mut bar = progress::Count::of_prompt(ids.len());
    let name = engine.name();
    let (runtime, memory) = (&mut engine.runtime, &mut engine.memory);
    let generation = generate(
        runtime,
        sequence,
        &ids,
        &mut sampler,
        &options,
        &mut |event| {
            match event {
                GenerateEvent::Prompt { done, .. } => {
                    memory.poll();
                    if let Some(bar) = &mut bar {
                        bar.set(done);
                    }
                }
                GenerateEvent::Token { text, .. } => {
                    bar = None;
                    memory.poll_token(count);
                    count += 1;
                    if !as_json && !text.is_empty() {
                        writing = out::text(text);
                    }
                }
            }
            if writing.is_err() || interrupt.raised() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        },
    )
    .with_context(|| name)?;
    drop(interrupt);
    writing?;
    engine.memory.poll();

    let holding = Holding::of(&engine.runtime, sequence)?;
    let completion = generation.tokens.len();
    if !as_json {
        out::text("\n")?;
    }
    if args.stats {
        out::note(&format!(
            "{completion} tokens at {:.1}/s; prompt {} tokens at {:.1}/s",
            per_second(completion.saturating_sub(1), generation.decode),
            ids.len(),
            per_second(ids.len(), generation.prefill)
        ));
        out::note(&ledger::bar(&engine.runtime, &holding));
    }
    if args.explain {
        engine
            .plan_in_words()
            .iter()
            .for_each(|line| out::note(line));
        engine
            .runtime
            .plans()
            .iter()
            .for_each(|plan| out::note(plan));
        out::note(&ledger::explain(&engine.runtime, &holding, 0, ids.len()));
    }
    if !as_json {
        return Ok(());
    }
    out::json(&json!({
        "text": generation.text,
        "token_ids": generation.tokens,
        "finish_reason": generation.finish.name(),
        "usage": {
            "prompt_tokens": ids.len(),
            "completion_tokens": completion,
            "cached_tokens": 0,
        },
        "timing": {
            "load_ms": milliseconds(engine.load),
            "prefill_ms": milliseconds(generation.prefill),
            "decode_ms": milliseconds(generation.decode),
            "prefill_tokens_per_second": per_second(ids.len(), generation.prefill),
            // The first token comes with the prompt.
            "decode_tokens_per_second": per_second(completion.saturating_sub(1), generation.decode),
        },
        "kv": ledger::kv_json(&engine.runtime, &holding),
        "memory": engine.memory.json(),
        "context": ledger::context_json(&engine.runtime, &holding, 0),
    }))
}

/// Whether the prompt is continued rather than answered.
fn is_plain_text(args: &args::RunArgs) -> bool {
    args.raw || args.prompt.ids.is_some()
}

fn prompt_ids(args: &args::RunArgs, prompt: Text, engine: &LoadedModel) -> Result<Vec<u32>> {
    let tokenizer = engine.model.tokenizer();
    if let Some(ids) = &args.prompt.ids {
        super::tokenize::check_ids(tokenizer, &ids.0)?;
        return Ok(ids.0.clone());
    }
    let text = prompt.read()?;
    if text.is_empty() {
        return Err(usage(
            "the prompt is empty; accepted: at least one character",
        ));
    }
    if args.raw {
        let options = EncodeOptions {
            add_special: !args.encoding.no_bos,
            parse_special: args.encoding.special,
        };
        return Ok(tokenizer.encode(&text, options)?);
    }
    let mut messages = Vec::new();
    if let Some(system) = &args.system {
        messages.push(Message::new("system", system));
    }
    messages.push(Message::new("user", text));
    let ids = engine.chat_ids(&messages, args.encoding.special)?;
    Ok(match (args.encoding.no_bos, ids.split_first()) {
        (true, Some((first, rest))) if tokenizer.bos() == Some(*first) && tokenizer.add_bos() => {
            rest.to_vec()
        }
        _ => ids,
    })
}

/// `--profile auto` looks at the prompt.
fn profiled(prompt: Text, compute: &args::ComputeArgs) -> Result<(Text, args::ComputeArgs)> {
    let mut compute = compute.clone();
    if compute.cache.profile != Some(args::ProfileName::Auto) {
        return Ok((prompt, compute));
    }
    let text = prompt.read()?;
    let profile = Profile::of(&text);
    log::info!("profile {}", profile.name());
    compute.cache.profile = Some(args::ProfileName::Named(profile));
    Ok((Text::Here(text), compute))
}
