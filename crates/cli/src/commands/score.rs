//! `score`: what the model thought of each token of a given text.

use crate::args;
use crate::engine::{self, Habits};
use crate::error::usage;
use crate::input::Text;
use crate::interrupt::Cooperative;
use crate::progress;
use crate::{error, out};
use anyhow::{Context, Result, anyhow};
use haversack::engine::runtime::{ScoredToken, score as score_tokens};
use haversack::text::tokenizer::Tokenizer;
use serde_json::{Value as Json, json};
use std::ops::ControlFlow;

/// The likeliest tokens listed at every place.
const TOP: usize = 5;

pub fn score(args: &args::ScoreArgs, as_json: bool) -> Result<()> {
    let text = Text::given(args.text.text.as_deref(), args.text.text_file.as_deref())?;
    let mut engine = engine::load(args.model.as_deref(), &args.compute, Habits::JUDGE)?;
    let model = engine.model.clone();
    let tokenizer = model.tokenizer();
    let ids = match &args.text.ids {
        Some(ids) => {
            super::tokenize::check_ids(tokenizer, &ids.0)?;
            ids.0.clone()
        }
        None => {
            let text = text.read()?;
            if text.is_empty() {
                return Err(usage("the text is empty; accepted: at least one character"));
            }
            tokenizer.encode(&text, args.encoding.options())?
        }
    };
    engine.check_fits(ids.len())?;
    engine.note_budget_on_terminal();

    let name = engine.name();
    let interrupt = Cooperative::begin(1);
    let mut bar = progress::Count::new(ids.len(), "tokens");
    let scored = score_tokens(&mut engine.runtime, &ids, TOP, &mut |done| {
        bar.set(done);
        match interrupt.raised() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    })
    .with_context(|| name)?;
    drop(bar);
    if interrupt.raised() {
        return Err(anyhow!("interrupted"));
    }

    let known: Vec<f64> = scored.iter().filter_map(|token| token.logprob).collect();
    let nll_mean = (!known.is_empty()).then(|| -known.iter().sum::<f64>() / known.len() as f64);
    if as_json {
        let tokens = out::list(&scored, |token| token_json(tokenizer, token));
        return out::json(&json!({ "tokens": tokens, "nll_mean": nll_mean }));
    }
    let mut page = String::new();
    for token in &scored {
        let piece = super::tokenize::piece(tokenizer, token.id);
        let piece = error::one_line(&format!("{piece:?}"));
        let logprob = token.logprob.map(|logprob| format!("{logprob:.4}"));
        let logprob = logprob.unwrap_or_else(|| "-".into());
        page.push_str(&format!("{:>8} {logprob:>10}  {piece}\n", token.id));
    }
    if let Some(nll) = nll_mean {
        let (perplexity, tokens) = (nll.exp(), known.len());
        page += &format!("nll_mean {nll:.6}, perplexity {perplexity:.4}, {tokens} tokens\n");
    }
    out::text(&page)
}

fn token_json(tokenizer: &Tokenizer, token: &ScoredToken) -> Json {
    let piece = super::tokenize::piece(tokenizer, token.id);
    let Some(logprob) = token.logprob else {
        return json!({ "id": token.id, "piece": piece });
    };
    let top = token.top.iter();
    let top = top.map(|(id, logprob)| json!({ "id": id, "logprob": logprob }));
    let top: Json = top.collect();
    json!({ "id": token.id, "piece": piece, "logprob": logprob, "top": top })
}
