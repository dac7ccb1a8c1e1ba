//! Reference requests: random completions, what each has received, and its tokens computed alone by the shortest way.

use crate::common::Dice;
use crate::models::{CONTEXT, Make, Models, fingerprint, one_in, pick};
use crate::seed_settings::SeedSettings;
use haversack_conversations::scheduler::{LongPrompt, Priority, Request, RequestKind, RowLimit};
use haversack_conversations::session::Requester;
use haversack_engine::Retention;
use haversack_engine::device::WindowChange;
use haversack_engine::runtime::completion::Completed;
use haversack_engine::runtime::{Finish, GenerateOptions, Runtime, SequenceRetention};
use haversack_engine::sample::{SampleOptions, Sampler};
use std::ops::ControlFlow;
use std::time::Duration;

/// State of a request as its events tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    Queued,
    Running,
    /// Its last event was delivered.
    Ended,
    /// It was cancelled, or its process killed: no event may follow.
    Dropped,
}

/// A token, and the hash of its logits.
pub type TokenHash = (u32, u64);

/// A completion to submit.
#[derive(Clone, Debug)]
pub struct CompletionSpec {
    pub prompt: Vec<u32>,
    pub rows: Option<RowLimit>,
    pub sample: SampleOptions,
    pub options: GenerateOptions,
    pub priority: Priority,
    pub owner: Requester,
    pub deadline: Option<Duration>,
}

impl CompletionSpec {
    pub fn request(&self) -> Request {
        let spec = self.clone();
        Request {
            sample: spec.sample,
            options: spec.options,
            priority: spec.priority,
            owner: spec.owner,
            deadline: spec.deadline,
            ..Request::new(RequestKind::Completion {
                prompt: spec.prompt,
                rows: spec.rows,
            })
        }
    }
}

#[derive(Debug)]
pub struct ReferenceRequest {
    pub request: CompletionSpec,
    /// Cancels after this many tokens; 0 = while the prompt is read.
    pub cancels_after: Option<usize>,
    pub state: RequestState,
    pub tokens: Vec<TokenHash>,
    pub done: Option<Completed>,
    /// How its window followed the device.
    pub changes: Vec<WindowChange>,
    /// Row limit of a sequence that sets none.
    max: usize,
}

impl ReferenceRequest {
    pub fn new(
        request: CompletionSpec,
        cancels_after: Option<usize>,
        runtime: &Runtime,
    ) -> ReferenceRequest {
        ReferenceRequest {
            request,
            cancels_after,
            max: runtime.bounds().rows_max.min(CONTEXT),
            state: RequestState::Queued,
            tokens: Vec::new(),
            done: None,
            changes: Vec::new(),
        }
    }

    /// What its sequence keeps, independent of the runtime's default.
    fn keep(&self, settings: &SeedSettings) -> SequenceRetention {
        match (&self.request.rows, settings.window()) {
            (Some(rows), _) => rows.keep(usize::MAX),
            (None, Some((anchors, window))) => SequenceRetention::Window { anchors, window },
            (None, None) => SequenceRetention::All { tokens: self.max },
        }
    }

    /// Whether the client cancels now.
    pub fn flow(&self) -> ControlFlow<()> {
        match self.cancels_after {
            Some(after) if self.tokens.len() >= after => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}

pub fn random_sampling(dice: &mut Dice) -> SampleOptions {
    SampleOptions {
        temperature: pick(dice, &[0.0, 1.0, 2.0]),
        repetition_penalty: pick(dice, &[1.0, 1.1]),
        seed: dice.roll(1 << 20) as u64,
        ..SampleOptions::default()
    }
}

/// A valid request, though memory may be too small for it.
pub fn random_completion(
    dice: &mut Dice,
    settings: &SeedSettings,
    now: Duration,
) -> CompletionSpec {
    let long = settings.is_window() || one_in(dice, 4);
    let length = match long {
        true => 60 + dice.roll(100),
        false => 1 + dice.roll(40),
    };
    let anchors = pick(dice, &[0, 4, 33]);
    let spare = dice.roll(40);
    let kind = pick(
        dice,
        &[
            None,
            None,
            Some(LongPrompt::Refuse),
            Some(LongPrompt::Truncate),
            Some(LongPrompt::Window),
            Some(LongPrompt::Reread {
                every: 1 + spare / 2,
            }),
        ],
    );
    let rows = kind.map(|when_longer| RowLimit {
        max_rows: anchors
            + 64
            + spare
            + usize::from(matches!(when_longer, LongPrompt::Reread { .. })) * 21,
        anchors,
        when_longer,
    });
    // Some share a beginning.
    let alike = pick(dice, &[0, 0, 40, 75]).min(length);
    let prompt = (0..length).map(|i| match i < alike {
        true => 3 + (i as u32 * 7) % 310,
        false => 3 + dice.roll(310) as u32,
    });
    let prompt = prompt.collect();
    CompletionSpec {
        prompt,
        sample: random_sampling(dice),
        options: GenerateOptions {
            tokens_max: Some(pick(dice, &[0, 1, 2, 5, 12])),
            ignore_end: !one_in(dice, 4),
            ..GenerateOptions::default()
        },
        rows,
        priority: pick(dice, &[Priority::Interactive, Priority::Background]),
        owner: (dice.roll(3) as u64).into(),
        deadline: one_in(dice, 12).then(|| now + Duration::from_secs(1 + dice.roll(12) as u64)),
    }
}

/// A request that `submit` must refuse.
pub fn invalid_completion(
    dice: &mut Dice,
    settings: &SeedSettings,
    now: Duration,
) -> CompletionSpec {
    let mut request = random_completion(dice, settings, now);
    match dice.roll(4) {
        0 => request.prompt.clear(),
        1 => request.prompt.push(u32::MAX - dice.roll(9) as u32),
        2 => {
            request.prompt = vec![5; CONTEXT + 1];
            request.rows = None;
            if settings.is_window() {
                request.prompt.clear();
            }
        }
        // As from a client that sends -1.
        _ => {
            request.rows = Some(RowLimit {
                max_rows: pick(dice, &[0, 1, 40]),
                anchors: pick(dice, &[2, 41, usize::MAX]),
                when_longer: pick(dice, &[LongPrompt::Window, LongPrompt::Truncate]),
            });
        }
    }
    request
}

fn ignore() -> impl FnMut(usize) -> ControlFlow<()> {
    |_| ControlFlow::Continue(())
}

/// Compares a completion with the same computed alone. An answer that was cut off is compared as far as it goes.
pub fn check_tokens(
    models: &mut Models,
    settings: &SeedSettings,
    completion: &ReferenceRequest,
) -> Result<(), String> {
    let ReferenceRequest {
        request,
        tokens,
        done,
        changes,
        ..
    } = completion;
    if let Some(done) = done {
        let tokens: Vec<u32> = tokens.iter().map(|t| t.0).collect();
        if done.tokens != tokens {
            return Err(format!("tokens {tokens:?}, had {:?}", done.tokens));
        }
        check_end(models, settings, completion, done)?;
    }
    // How a window followed the device is reported with the last event.
    let is_known = done.is_some() || !settings.is_window();
    if tokens.is_empty() || !is_known {
        return Ok(());
    }
    let logits = match changes.is_empty() {
        true => {
            let keep = completion.keep(settings);
            let runtime = models.alone(settings.model, settings.form, false);
            alone(runtime, keep, request, tokens)?
        }
        false => {
            let retention = Retention {
                replay: changes.iter().map(|c| (c.position, c.window)).collect(),
                ..settings.retention()
            };
            let make = Make {
                model: settings.model,
                form: settings.form,
                retention,
                ..Make::default()
            };
            let keep = match &request.rows {
                Some(rows) => rows.keep(usize::MAX),
                None => SequenceRetention::Default,
            };
            alone(&mut models.runtime(&make)?, keep, request, tokens)?
        }
    };
    let vocabulary = models.models[settings.model].config().vocab;
    let mut sampler = Sampler::new(request.sample.clone()).map_err(|e| e.to_string())?;
    let mut history = read_of(request);
    if request.rows.is_some_and(|rows| rows.rereads()) {
        history = request.prompt.clone();
    }
    for (i, (row, (token, hash))) in logits.chunks_exact(vocabulary).zip(tokens).enumerate() {
        if fingerprint(row) != *hash {
            return Err(format!("token {i} was drawn from other logits"));
        }
        let drawn = sampler.sample(row, &history).map_err(|e| e.to_string())?;
        if drawn != *token {
            return Err(format!("token {i} is {token}, alone it is {drawn}"));
        }
        history.push(drawn);
    }
    Ok(())
}

fn check_end(
    models: &Models,
    settings: &SeedSettings,
    completion: &ReferenceRequest,
    done: &Completed,
) -> Result<(), String> {
    let request = &completion.request;
    let max = request.options.tokens_max.unwrap();
    let room = match completion.keep(settings) {
        SequenceRetention::All { tokens } if !request.rows.is_some_and(|r| r.rereads()) => {
            tokens.saturating_sub(read_of(request).len()) + 1
        }
        _ => usize::MAX,
    };
    let count = done.tokens.len();
    let tokenizer = models.models[settings.model].tokenizer();
    let ended = |token: &u32| tokenizer.is_end(*token) && !request.options.ignore_end;
    let is_right = match done.finish {
        Finish::Length => count == max.min(room),
        Finish::Stop => done.tokens.last().is_some_and(ended),
        // No request of the simulation asks for it.
        Finish::Repetition => false,
        Finish::Cancelled => completion.cancels_after.is_some() || request.deadline.is_some(),
    };
    match is_right {
        true => Ok(()),
        false => Err(format!("{count} tokens of {max} and {:?}", done.finish)),
    }
}

fn read_of(request: &CompletionSpec) -> Vec<u32> {
    let max = request.options.tokens_max.unwrap();
    match &request.rows {
        Some(rows) => rows
            .prompt_to_read(&request.prompt, max)
            .unwrap_or_default(),
        None => request.prompt.clone(),
    }
}

/// (token, vocab): the logits of each token, computed alone: all at once, or, for a request that re-reads, from all its rows
/// for each token.
fn alone(
    runtime: &mut Runtime,
    keep: SequenceRetention,
    request: &CompletionSpec,
    tokens: &[TokenHash],
) -> Result<Vec<f32>, String> {
    let vocabulary = runtime.model().config().vocab;
    let ids: Vec<u32> = tokens.iter().map(|t| t.0).collect();
    let wrong = |e: haversack_engine::StepError| e.to_string();
    if let Some(rows) = request.rows.filter(RowLimit::rereads) {
        let mut all = Vec::new();
        for i in 0..ids.len() {
            let history = [&request.prompt[..], &ids[..i]].concat();
            let id = runtime.open_with(keep).map_err(wrong)?;
            let fed = runtime.feed(id, &rows.rows_after(&history), &mut ignore());
            let fed = fed.map(|logits| logits.unwrap_or_default().to_vec());
            runtime.close(id).map_err(wrong)?;
            all.extend(fed.map_err(wrong)?);
        }
        return Ok(all);
    }
    let read = read_of(request);
    let tokens = [&read[..], &ids[..ids.len() - 1]].concat();
    let id = runtime.open_with(keep).map_err(wrong)?;
    let all = runtime.all_logits(id, &tokens);
    runtime.close(id).map_err(wrong)?;
    Ok(all.map_err(wrong)?.split_off((read.len() - 1) * vocabulary))
}
