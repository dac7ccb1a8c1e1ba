//! `perplexity`: how well a text is predicted, and what the cache costs of it.
//!
//! *Chunk*: windows of `--context` tokens, each from an empty sequence. *Stream*: the whole text
//! through one sequence under the policy, reported in segments. A reference turns "how well" into
//! "how much worse": everything kept in f16 at the same activations for windows, anchors and window
//! read again and again for a stream.

use crate::args::{self, Mode, Reference};
use crate::engine::{self, Habits, LoadedModel};
use crate::error::usage;
use crate::input::Text;
use crate::interrupt::Cooperative;
use crate::ledger;
use crate::{out, progress};
use anyhow::{Context, Result, anyhow};
use haversack::engine::runtime::perplexity::{self, KlTally};
use haversack::engine::runtime::{KvLayout, Runtime, RuntimeOptions, SequenceId, SequenceUsage};
use haversack::engine::{Activations, KvForm, KvOptions, Retention};
use serde_json::{Value as Json, json};
use std::ops::ControlFlow;

pub fn perplexity(args: &args::PerplexityArgs, as_json: bool) -> Result<()> {
    check(args)?;
    let text = Text::given(args.text.text.as_deref(), args.text.text_file.as_deref())?;
    let habits = match args.mode {
        Mode::Chunk => Habits::JUDGE,
        Mode::Stream => Habits::STREAM,
    };
    let engine = engine::load(args.model.as_deref(), &args.compute, habits)?;
    engine.note_budget_on_terminal();
    let options = args.encoding.options();
    let ids = engine.model.tokenizer().encode(&text.read()?, options)?;
    let from = args.offset.min(ids.len());
    let most = args.tokens.unwrap_or(usize::MAX);
    let ids = &ids[from..ids.len().min(from.saturating_add(most))];
    let job = Job {
        exact: exact(&engine, args)?,
        args,
        engine,
        as_json,
    };
    match args.mode {
        Mode::Chunk => job.windows(ids),
        Mode::Stream => job.stream(ids),
    }
}

/// What can be refused before anything is loaded.
fn check(args: &args::PerplexityArgs) -> Result<()> {
    Err(usage(match (args.mode, args.reference) {
        (Mode::Stream, Some(Reference::Full)) => {
            "--reference full compares windows; --mode stream accepts recompute"
        }
        (Mode::Chunk, Some(Reference::Recompute)) => {
            "--reference recompute compares a stream; --mode chunk accepts full"
        }
        (Mode::Stream, _) if args.chunks.is_some() => {
            "--chunks counts windows; --mode stream accepts --tokens"
        }
        _ => return Ok(()),
    }))
}

/// Options of a runtime that keeps everything in f16, at the same activations.
fn exact(engine: &LoadedModel, args: &args::PerplexityArgs) -> Result<RuntimeOptions> {
    let given = engine::runtime_options(&args.compute, Habits::JUDGE)?;
    Ok(RuntimeOptions {
        threads: engine.runtime.threads(),
        activations: given.activations,
        kv: KvOptions::plain(KvForm::F16),
        retention: Retention::full(),
        ..RuntimeOptions::default()
    })
}

struct Job<'a> {
    args: &'a args::PerplexityArgs,
    engine: LoadedModel,
    exact: RuntimeOptions,
    as_json: bool,
}

/// One window, judged.
struct Window {
    tally: KlTally,
    /// int8 activations against f32, both with f16 keys and values.
    floor: Option<KlTally>,
}

impl Job<'_> {
    fn windows(mut self, ids: &[u32]) -> Result<()> {
        let length = self.engine.model.config().context;
        if length < 2 {
            let what = "--context 1 leaves nothing to predict; accepted: at least 2";
            return Err(usage(what));
        }
        if ids.len() < length {
            return Err(usage(format!(
                "the text has {} tokens from --offset on, less than one window; accepted: --context of at most that, or a longer text",
                ids.len()
            )));
        }
        self.engine.check_fits(length - 1)?;
        let count = (ids.len() / length).min(self.args.chunks.unwrap_or(usize::MAX));
        let from = (length as f64 * self.args.score_from) as usize;
        let model = self.engine.model.clone();
        let reference = self.args.reference;
        let reference = reference.map(|_| engine::runtime(&model, &self.exact));
        let mut reference = reference.transpose()?;
        let is_exact = self.exact.activations == Activations::F32;
        let mut rounded = match &reference {
            Some(_) if is_exact && !self.args.no_floor => {
                let options = RuntimeOptions {
                    activations: Activations::Int8,
                    ..self.exact.clone()
                };
                Some(engine::runtime(&model, &options)?)
            }
            _ => None,
        };

        let passes = 1 + usize::from(rounded.is_some());
        let mut bar = progress::Count::new(count * length * passes, "tokens");
        let mut windows: Vec<Window> = Vec::new();
        for (i, window) in ids.chunks_exact(length).take(count).enumerate() {
            let mut pass = |number: usize, runtime: &mut Runtime, truth: Option<&mut Runtime>| {
                let before = (i * passes + number) * length;
                judge(runtime, truth, window, from, &mut |done| {
                    bar.set(before + done)
                })
            };
            let tally = pass(0, &mut self.engine.runtime, reference.as_mut())
                .with_context(|| self.engine.name())?;
            let floor = match &mut rounded {
                Some(rounded) => Some(pass(1, rounded, reference.as_mut())?),
                None => None,
            };
            let place = self.args.offset + i * length;
            let (number, last, figures) = (i + 1, place + length - 1, figures(&tally));
            let line = format!("window {number}/{count}  tokens {place} to {last}{figures}");
            self.say(&line)?;
            windows.push(Window { tally, floor });
            self.engine.memory.poll();
        }
        drop(bar);
        drop((reference, rounded));

        let total = sum(windows.iter().map(|window| &window.tally));
        let floor = sum(windows.iter().filter_map(|window| window.floor.as_ref()));
        let (kv, context) = self.kv_of_a_window(&ids[..length])?;
        if !self.as_json {
            let mut line = format!("{count} windows of {length} tokens{}", figures(&total));
            if let Some(kl) = floor.kl_mean() {
                line.push_str(&format!("\nint8 activations alone cost kl {kl:.6}"));
            }
            return out::line(&format!("{line}\n{}", summary(&kv)));
        }
        let chunks = out::list(windows.iter().enumerate(), |(i, window)| {
            json!({
                "from": self.args.offset + i * length,
                "tokens_scored": window.tally.tokens,
                "perplexity": window.tally.perplexity(),
                "kl_mean": window.tally.kl_mean(),
                "top1_agreement": window.tally.top1_agreement(),
            })
        });
        out::json(&json!({
            "mode": "chunk",
            "context_tokens": length,
            "score_from": self.args.score_from,
            "perplexity": total.perplexity(),
            "nll_mean": total.nll_mean(),
            "tokens_scored": total.tokens,
            "kl_mean": total.kl_mean(),
            "kl_p99": total.kl_p99(),
            "top1_agreement": total.top1_agreement(),
            "kl_floor_int8": floor.kl_mean(),
            "chunks": chunks,
            "segments": [],
            "kv": kv,
            "context": context,
            "memory": self.engine.memory.json(),
        }))
    }

    /// The books of a whole window. Judging closed its sequence, so one is read once more, without
    /// asking for a single prediction.
    fn kv_of_a_window(&mut self, window: &[u32]) -> Result<(Json, Json)> {
        let runtime = &mut self.engine.runtime;
        let id = runtime.open()?;
        let mut on = |_| ControlFlow::Continue(());
        runtime.feed(id, &window[..window.len() - 1], &mut on)?;
        let books = books(runtime, id)?;
        runtime.close(id)?;
        Ok(books)
    }

    fn stream(mut self, ids: &[u32]) -> Result<()> {
        if ids.len() < 2 {
            let what = "the text has less than two tokens from --offset on; accepted: at least 2";
            return Err(usage(what));
        }
        self.engine.check_fits(ids.len() - 1)?;
        let bounds = *self.engine.runtime.bounds();
        let again = match (self.args.reference, bounds.window) {
            (Some(_), Some(window)) => Some((bounds.anchors, window)),
            (Some(_), None) => {
                let accepted = "accepted: --policy window or auto";
                let what = format!("--reference recompute needs a window; {accepted}");
                return Err(usage(what));
            }
            (None, _) => None,
        };
        let segment = self.args.segment;
        let id = self.engine.runtime.open()?;
        let interrupt = Cooperative::begin(1);
        let name = self.engine.name();
        let mut bar = progress::Count::new(ids.len(), "tokens");
        let memory = &mut self.engine.memory;
        let runtime = &mut self.engine.runtime;
        let found = perplexity::stream(runtime, id, ids, segment, &mut |done, _| {
            bar.set(done);
            memory.poll();
            flow(&interrupt)
        })
        .with_context(|| name)?
        .ok_or_else(|| anyhow!("interrupted"))?;
        drop(bar);
        let (kv, context) = books(&self.engine.runtime, id)?;

        let truth = match again {
            Some(kept) => {
                let mut exact = engine::runtime(&self.engine.model, &self.exact)?;
                let mut bar = progress::Count::new(ids.len(), "tokens read again");
                let stride = self.args.reference_stride;
                let needed = kept.0 + kept.1 + stride;
                if needed > exact.bounds().rows_max {
                    return Err(usage(format!(
                        "--reference-stride {stride} behind anchors and window needs {needed} tokens of context; there are {}",
                        exact.bounds().rows_max
                    )));
                }
                let tallies =
                    perplexity::recompute(&mut exact, ids, kept, segment, stride, &mut |done| {
                        bar.set(done);
                        flow(&interrupt)
                    })?;
                tallies.ok_or_else(|| anyhow!("interrupted"))?
            }
            None => Vec::new(),
        };
        drop(interrupt);

        let total = sum(&found);
        let reference = (!truth.is_empty()).then(|| sum(&truth).perplexity());
        let mut segments: Vec<Json> = Vec::new();
        for (i, tally) in found.iter().enumerate() {
            let (from, to) = (i * segment, ((i + 1) * segment).min(ids.len()));
            let again = truth.get(i).map(KlTally::perplexity);
            let beside = again.map_or(String::new(), |again| {
                let more = 100.0 * (tally.perplexity() / again - 1.0);
                format!("  read again {again:.4} ({more:+.2} %)")
            });
            if !self.as_json {
                let (last, figures) = (to - 1, figures(tally));
                out::line(&format!("tokens {from} to {last}{figures}{beside}"))?;
            }
            segments.push(json!({
                "from": from,
                "to": to,
                "tokens_scored": tally.tokens,
                "perplexity": tally.perplexity(),
                "nll_mean": tally.nll_mean(),
                "reference_perplexity": again,
            }));
        }
        if !self.as_json {
            let line = format!("{} tokens{}", ids.len(), figures(&total));
            return out::line(&format!("{line}\n{}", summary(&kv)));
        }
        out::json(&json!({
            "mode": "stream",
            "perplexity": total.perplexity(),
            "nll_mean": total.nll_mean(),
            "tokens_scored": total.tokens,
            "reference_perplexity": reference,
            "kl_mean": null,
            "kl_p99": null,
            "top1_agreement": null,
            "kl_floor_int8": null,
            "segments": segments,
            "kv": kv,
            "context": context,
            "memory": self.engine.memory.json(),
        }))
    }

    /// A line of the answer, or of the progress where the answer is one document.
    fn say(&self, line: &str) -> Result<()> {
        if self.as_json {
            out::note(line);
            return Ok(());
        }
        out::line(line)
    }
}

/// What the cache holds, and what became of the context.
fn books(runtime: &Runtime, id: SequenceId) -> Result<(Json, Json)> {
    let (layout, held) = (KvLayout::new(runtime), SequenceUsage::new(runtime, id)?);
    let kv = ledger::kv_json(&layout, &held);
    Ok((kv, ledger::context_json(&layout, &held, 0)))
}

fn sum<'a>(tallies: impl IntoIterator<Item = &'a KlTally>) -> KlTally {
    let mut sum = KlTally::default();
    tallies.into_iter().for_each(|tally| sum.add(tally));
    sum
}

/// Goes on until Ctrl-C.
fn flow(interrupt: &Cooperative) -> ControlFlow<()> {
    match interrupt.raised() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
}

/// One window; Ctrl-C ends it.
fn judge(
    runtime: &mut Runtime,
    reference: Option<&mut Runtime>,
    window: &[u32],
    from: usize,
    progress: &mut dyn FnMut(usize),
) -> Result<KlTally> {
    let interrupt = Cooperative::begin(1);
    let tally = perplexity::window(runtime, reference, window, from, &mut |done| {
        progress(done);
        flow(&interrupt)
    })?;
    tally.ok_or_else(|| anyhow!("interrupted"))
}

/// `  perplexity 12.3456  kl 0.002345 (p99 0.0234)  top-1 98.1 %`
fn figures(tally: &KlTally) -> String {
    let mut text = format!("  perplexity {:.4}", tally.perplexity());
    if let (Some(mean), Some(p99), Some(top1)) =
        (tally.kl_mean(), tally.kl_p99(), tally.top1_agreement())
    {
        let top1 = 100.0 * top1;
        text += &format!("  kl {mean:.6} (p99 {p99:.4})  top-1 {top1:.2} %");
    }
    text
}

/// `kv int4, 4.470 bits a value, 576 of 40000 rows`
fn summary(kv: &Json) -> String {
    let bits = kv["bits_effective"].as_f64().unwrap_or(0.0);
    format!(
        "kv {}, policy {}, {bits:.3} bits a value, {} of {} rows kept",
        kv["codec"].as_str().unwrap_or("-"),
        kv["policy"].as_str().unwrap_or("-"),
        kv["rows_live"],
        kv["tokens_seen"]
    )
}
