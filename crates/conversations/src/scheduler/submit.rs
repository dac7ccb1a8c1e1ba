//! Checks a request before it is queued, so that whatever could never be served is refused at once.

use super::protection;
use super::request::{RequestKind, SubmitError};
use super::resources::{Resources, promisable};
use super::row_limit::RowLimit;
use super::running::{CompletionWork, PreparedRead, PreparedTurn, PreparedWork};
use crate::session::{Requester, SessionError, SessionRead};
use haversack_cache::{Annotation, annotation_bytes};
use haversack_engine::runtime::completion::Completion;
use haversack_engine::runtime::options::{Policy, RowPolicy};
use haversack_engine::runtime::{GenerateOptions, Runtime, SequenceRetention};
use haversack_text::chat::MessageSpan;
use std::cell::Cell;

/// The work of a request and its worst-case bytes. Those of a session's request depend on
/// the session, so admission asks for them later: 0.
pub(super) fn prepare(
    resources: &Resources,
    kind: RequestKind,
    options: GenerateOptions,
    owner: Requester,
    messages: &[MessageSpan],
) -> Result<(PreparedWork, u64), SubmitError> {
    match kind {
        RequestKind::Completion { prompt, rows } => {
            let runtime = &resources.runtime;
            let (mut work, bytes) = completion(runtime, &prompt, rows, &options, owner)?;
            work.annotations = annotations(runtime, &work, messages)?;
            let bytes = bytes + annotation_bytes(work.annotations.len());
            Ok((PreparedWork::Completion(Box::new(work)), bytes as u64))
        }
        RequestKind::Turn {
            session,
            text,
            tokens,
            embedding,
            now_ms,
        } => {
            let sessions = resources.sessions()?;
            if !sessions.exists(owner.owner.session(&session)) {
                return Err(SessionError::NoSuchSession { name: session }.into());
            }
            sessions.check_turn(&session, options.tokens_max)?;
            let question = match tokens {
                Some(tokens) => tokens,
                None => sessions.texts().question(&text)?,
            };
            // Finds bad stop strings now, not when the turn begins.
            Completion::within(&[], &options, None)?;
            let turn = PreparedTurn {
                owner: owner.owner,
                session,
                text,
                question,
                embedding,
                now_ms,
                options,
                no_memory_at: Cell::new(None),
            };
            Ok((PreparedWork::Turn(Box::new(turn)), 0))
        }
        RequestKind::Read {
            session,
            read,
            now_ms,
        } => {
            let is_new = matches!(read, SessionRead::Create { .. });
            let name = owner.owner.session(&session);
            if !is_new && !resources.sessions()?.exists(name) {
                return Err(SessionError::NoSuchSession { name: session }.into());
            }
            let read = PreparedRead {
                owner: owner.owner,
                session,
                read,
                now_ms,
                no_memory_at: Cell::new(None),
                has_waited: Cell::new(false),
            };
            Ok((PreparedWork::Read(Box::new(read)), 0))
        }
    }
}

fn completion(
    runtime: &Runtime,
    prompt: &[u32],
    rows: Option<RowLimit>,
    options: &GenerateOptions,
    owner: Requester,
) -> Result<(CompletionWork, usize), SubmitError> {
    let tokens = prompt.len();
    if tokens == 0 {
        return Err(SubmitError::EmptyPrompt);
    }
    let vocabulary = runtime.model().config().vocab;
    let is_unknown = |&&token: &&u32| token as usize >= vocabulary;
    if let Some(&token) = prompt.iter().find(is_unknown) {
        return Err(SubmitError::UnknownToken { token, vocabulary });
    }
    let answer = options.tokens_max.unwrap_or(usize::MAX);
    let keep = match &rows {
        Some(rows) => {
            rows.check()?;
            rows.keep(tokens.saturating_add(answer))
        }
        None => default_keep(runtime),
    };
    let end = runtime.end_with(keep)?;
    let max = end.unwrap_or(usize::MAX);
    let read = match &rows {
        Some(rows) => rows.prompt_to_read(prompt, answer),
        None => (tokens <= max).then(|| prompt.to_vec()),
    };
    let read = read.ok_or(SubmitError::PromptTooLong { tokens, max })?;
    let max_tokens = read.len().saturating_add(answer).min(max);
    let reread = rows.filter(RowLimit::rereads);
    let completion = if reread.is_some() {
        // What it reads again depends on the whole prompt.
        let mut whole = Completion::within(prompt, options, None)?;
        whole.read_again(read);
        whole
    } else {
        let room = end.map(|end| end.saturating_sub(read.len()) as u64);
        Completion::within(&read, options, room)?
    };
    let max_rows = runtime.rows_with(keep, max_tokens)?;
    let bytes = runtime.sequence_bytes_with(keep, max_rows)?;
    let counts_attention = runtime.row_policy(keep)?.is_some();
    if let Some(max) = promisable(runtime, 1, usize::from(counts_attention), max_rows)
        && bytes > max
    {
        return Err(SubmitError::TooManyBytes { bytes, max });
    }
    let work = CompletionWork {
        completion,
        keep,
        reread,
        max_rows,
        owner,
        continues: false,
        reused: 0,
        checkpoints: Vec::new(),
        annotations: Vec::new(),
        counts_attention,
    };
    Ok((work, bytes))
}

/// What its messages mean for the policy that evicts its rows: as many annotations as have room beside a request that is
/// alone, so that other requests never change them.
fn annotations(
    runtime: &Runtime,
    work: &CompletionWork,
    messages: &[MessageSpan],
) -> Result<Vec<Annotation>, SubmitError> {
    let Some(policy) = runtime.row_policy(work.keep)? else {
        return Ok(Vec::new());
    };
    let prompt = work.completion.prompt().len() as u64;
    let mut found = match policy {
        RowPolicy::Turns(_) => protection::whole_turns(messages, prompt),
        _ => protection::markers(messages, prompt),
    };
    if let Some(budget) = runtime.ledger().budget {
        let room = budget.saturating_sub(runtime.needs_bytes(work.max_rows));
        while annotation_bytes(found.len()) > room {
            found.pop();
        }
    }
    Ok(found)
}

/// Of a completion without a row limit. Where sessions manage their rows it keeps all that there is room for.
fn default_keep(runtime: &Runtime) -> SequenceRetention {
    let context = runtime.model().config().context;
    match runtime.retention().policy {
        Policy::Streams => SequenceRetention::All {
            tokens: runtime.bounds().rows_max.min(context),
        },
        _ => SequenceRetention::Default,
    }
}
