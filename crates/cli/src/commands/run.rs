//! `run`: one completion, streamed.

use crate::answer::{self, Showing};
use crate::args::{self, Switch};
use crate::engine::{self, Habits, LoadedModel, milliseconds, per_second};
use crate::error::usage;
use crate::input::Text;
use crate::screen::Screen;
use crate::{ledger, out, resolve};
use anyhow::{Context, Result};
use haversack::memory::Backing;
use haversack::text::chat::EncodedChat;
use haversack::text::template::Message;
use haversack::text::tokenizer::EncodeOptions;
use serde_json::json;

pub fn run(args: &args::RunArgs, as_json: bool) -> Result<()> {
    if args.ignore_eos && args.stop_repetition == Some(Switch::On) {
        return Err(usage(
            "--stop-repetition on ends an answer and --ignore-eos does not; accepted: one of them",
        ));
    }
    let prompt = Text::given(
        args.prompt.prompt.as_deref(),
        args.prompt.prompt_file.as_deref(),
    )?;
    let (prompt, compute) = profiled(prompt, &args.compute)?;
    let habits = Habits::TALK.explaining(args.explain);
    let loaded = engine::load(args.model.as_deref(), &compute, habits)?;
    let EncodedChat { ids, messages, .. } = prompt_tokens(args, prompt, &loaded)?;
    loaded.check_fits(ids.len())?;
    loaded.note_budget_on_terminal();

    let sample = engine::sample_options(&args.sampling, loaded.model.config().vocab, None)?;
    let max_tokens = loaded.tokens_max_alone(args.max_tokens);
    let mut stop = args.stop.clone();
    if !is_plain_text(args) {
        let usual = loaded.model.template().stop_strings().iter();
        stop.extend(usual.map(|text| text.to_string()));
    }
    let (name, load, plan) = (loaded.name(), loaded.load, loaded.plan_in_words());
    let model_name = resolve::name_of(&loaded.path);
    let (engine, mut memory) = loaded.start(None, 1)?;
    let layout = engine.client().layout().clone();
    let prompt_tokens = ids.len();
    let prompt = engine
        .complete_tokens(ids)
        // Its rows stay until the engine ends, for the report about their pages.
        .continues()
        .messages(messages)
        .max_tokens(max_tokens)
        .ignore_end(args.ignore_eos)
        .stop_repetition(args.stop_repetition == Some(Switch::On))
        .sample(sample)
        .stops(stop);
    let showing = Showing {
        patience: 1,
        screen: (!as_json).then(|| Screen::of_stdout(true)),
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
    let mut document = json!({
        "model": model_name,
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
    });
    if let Some(by) = answer.finish.stopped_by() {
        document["stopped_by"] = json!(by);
    }
    out::json(&document)
}

/// Whether the prompt is continued rather than answered.
fn is_plain_text(args: &args::RunArgs) -> bool {
    args.raw || args.prompt.ids.is_some()
}

fn prompt_tokens(args: &args::RunArgs, prompt: Text, loaded: &LoadedModel) -> Result<EncodedChat> {
    let plain = |ids| EncodedChat {
        ids,
        ..EncodedChat::default()
    };
    let tokenizer = loaded.model.tokenizer();
    if let Some(ids) = &args.prompt.ids {
        super::tokenize::check_ids(tokenizer, &ids.0)?;
        return Ok(plain(ids.0.clone()));
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
        return Ok(plain(tokenizer.encode(&text, options)?));
    }
    let mut messages = Vec::new();
    if let Some(system) = &args.system {
        messages.push(Message::new("system", system));
    }
    messages.push(Message::new("user", text));
    let mut chat = engine::chat_ids(
        &loaded.model,
        &loaded.name(),
        &messages,
        args.encoding.special,
    )?;
    let first = chat.ids.first().copied();
    if args.encoding.no_bos && first.is_some() && first == tokenizer.bos() && tokenizer.add_bos() {
        chat.remove_first();
    }
    Ok(chat)
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
