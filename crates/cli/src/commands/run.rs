//! `run`: one completion, streamed.

use crate::answer::{self, Showing};
use crate::args;
use crate::engine::{self, Habits, LoadedModel, milliseconds, per_second};
use crate::error::usage;
use crate::input::Text;
use crate::{ledger, out};
use anyhow::{Context, Result};
use haversack::memory::Backing;
use haversack::text::template::Message;
use haversack::text::tokenizer::EncodeOptions;
use serde_json::json;

pub fn run(args: &args::RunArgs, as_json: bool) -> Result<()> {
    let prompt = Text::given(
        args.prompt.prompt.as_deref(),
        args.prompt.prompt_file.as_deref(),
    )?;
    let (prompt, compute) = profiled(prompt, &args.compute)?;
    let habits = Habits::TALK.explaining(args.explain);
    let loaded = engine::load(args.model.as_deref(), &compute, habits)?;
    let ids = prompt_ids(args, prompt, &loaded)?;
    loaded.check_fits(ids.len())?;
    loaded.note_budget_on_terminal();

    let sample = engine::sample_options(&args.sampling, 0.0, loaded.model.config().vocab)?;
    let max_tokens = loaded.tokens_max_alone(args.max_tokens);
    let mut stop = args.stop.clone();
    if !is_plain_text(args) {
        let usual = loaded.model.template().stop_strings().iter();
        stop.extend(usual.map(|text| text.to_string()));
    }
    let (name, load, plan) = (loaded.name(), loaded.load, loaded.plan_in_words());
    let (engine, mut memory) = loaded.start(None, 1)?;
    let layout = engine.client().layout().clone();
    let prompt_tokens = ids.len();
    let prompt = engine
        .complete_tokens(ids)
        // Its rows stay until the engine ends, for the report about their pages.
        .continues()
        .max_tokens(max_tokens)
        .ignore_end(args.ignore_eos)
        .sample(sample)
        .stops(stop);
    let showing = Showing {
        patience: 1,
        is_quiet: as_json,
        memory: Some(&mut memory),
    };
    let answer = answer::show(prompt, showing).with_context(|| name)?;
    let pages = engine.kv_memory()?;
    drop(engine);

    let (prefill, decode, completion) = (answer.prefill(), answer.decode(), answer.tokens.len());
    let prefill_speed = per_second(prompt_tokens, prefill);
    // The first token comes with the prompt.
    let decode_speed = per_second(completion.saturating_sub(1), decode);
    let held = answer.held();
    if !as_json {
        out::text("\n")?;
    }
    if args.stats {
        out::note(&format!(
            "{completion} tokens at {decode_speed:.1}/s; prompt {prompt_tokens} tokens at {prefill_speed:.1}/s"
        ));
        out::note(&ledger::bar(&layout, &held.usage));
        if pages.backing != Backing::Private {
            out::note(&ledger::pages(&pages));
        }
    }
    if args.explain {
        plan.iter()
            .chain(&held.plans)
            .for_each(|line| out::note(line));
        out::note(&ledger::explain(&layout, &held.usage, 0, prompt_tokens));
    }
    if !as_json {
        return Ok(());
    }
    let mut memory = memory.json();
    memory["kv_memory"] = ledger::pages_json(&pages);
    out::json(&json!({
        "text": answer.text,
        "token_ids": answer.tokens,
        "finish_reason": answer.finish.name(),
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion,
            "cached_tokens": 0,
        },
        "timing": {
            "load_ms": milliseconds(load),
            "prefill_ms": milliseconds(prefill),
            "decode_ms": milliseconds(decode),
            "prefill_tokens_per_second": prefill_speed,
            "decode_tokens_per_second": decode_speed,
        },
        "kv": ledger::kv_json(&layout, &held.usage),
        "memory": memory,
        "context": ledger::context_json(&layout, &held.usage, 0),
    }))
}

/// Whether the prompt is continued rather than answered.
fn is_plain_text(args: &args::RunArgs) -> bool {
    args.raw || args.prompt.ids.is_some()
}

fn prompt_ids(args: &args::RunArgs, prompt: Text, loaded: &LoadedModel) -> Result<Vec<u32>> {
    let tokenizer = loaded.model.tokenizer();
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
    let ids = engine::chat_ids(
        &loaded.model,
        &loaded.name(),
        &messages,
        args.encoding.special,
    )?
    .ids;
    Ok(match (args.encoding.no_bos, ids.split_first()) {
        (true, Some((first, rest))) if tokenizer.bos() == Some(*first) && tokenizer.add_bos() => {
            rest.to_vec()
        }
        _ => ids,
    })
}

/// `--profile auto` looks at the prompt.
fn profiled(prompt: Text, compute: &args::ComputeArgs) -> Result<(Text, args::ComputeArgs)> {
    if !engine::wants_profile(compute) {
        return Ok((prompt, compute.clone()));
    }
    let text = prompt.read()?;
    let compute = engine::with_profile_of(compute, &text);
    Ok((Text::Here(text), compute))
}
