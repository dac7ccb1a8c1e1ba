//! Checks the events of each request: none of an unknown request, none out of order, none twice, none after the last.

use crate::expected_turns::{ExpectedSession, ExpectedTurn};
use crate::models::fingerprint;
use crate::reference_request::{ReferenceRequest, RequestState, TokenHash};
use haversack_conversations::scheduler::{Request, RequestEvent, RequestId, RequestKind};
use haversack_conversations::session::{Requester, TurnAnswer};
use haversack_engine::runtime::GenerateOptions;
use haversack_engine::sample::SampleOptions;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

/// A turn to submit.
#[derive(Clone, Debug, Default)]
pub struct TurnSpec {
    pub session: String,
    pub text: String,
    pub now_ms: u64,
    pub sample: SampleOptions,
    pub options: GenerateOptions,
    pub owner: Requester,
    pub deadline: Option<Duration>,
}

impl TurnSpec {
    pub fn request(&self) -> Request {
        let spec = self.clone();
        Request {
            sample: spec.sample,
            options: spec.options,
            owner: spec.owner,
            deadline: spec.deadline,
            ..Request::new(RequestKind::Turn {
                session: spec.session,
                text: spec.text,
                tokens: None,
                embedding: None,
                now_ms: spec.now_ms,
            })
        }
    }
}

/// A submitted turn and what it has received.
#[derive(Debug)]
pub struct ReferenceTurn {
    pub request: TurnSpec,
    pub cancels_after: Option<usize>,
    pub state: RequestState,
    tokens: Vec<TokenHash>,
}

impl ReferenceTurn {
    pub fn new(request: TurnSpec, cancels_after: Option<usize>) -> ReferenceTurn {
        ReferenceTurn {
            request,
            cancels_after,
            state: RequestState::Queued,
            tokens: Vec::new(),
        }
    }
}

#[derive(Default)]
pub struct EventChecker {
    pub completions: BTreeMap<RequestId, ReferenceRequest>,
    pub turns: BTreeMap<RequestId, ReferenceTurn>,
    /// Completions of processes that were killed.
    pub past: Vec<ReferenceRequest>,
    pub expected_sessions: Vec<ExpectedSession>,
    /// Why requests failed in this step.
    pub failed: Vec<String>,
    pub wrong: Option<String>,
    /// Lines for the trace, if one is wanted.
    pub lines: Option<Vec<String>>,
}

impl EventChecker {
    pub fn check_event(&mut self, id: RequestId, event: RequestEvent<'_>) -> ControlFlow<()> {
        if let Some(lines) = &mut self.lines {
            let word = match &event {
                RequestEvent::Token { sampled, .. } => format!("token {}", sampled.id),
                RequestEvent::Completed(done, _) => format!("done {:?}", done.finish),
                RequestEvent::TurnSaved(answer) => {
                    format!("said turn {:?} {:?}", answer.turn, answer.context)
                }
                event => format!("{event:?}"),
            };
            lines.push(format!("    {id:?} {word}"));
        }
        if let (RequestEvent::Admitted, Some(passed)) = (&event, self.first_overtaken(id)) {
            self.wrong
                .get_or_insert(format!("{id:?} overtakes {passed:?} of its session"));
        }
        let checked = match (self.completions.get_mut(&id), self.turns.get_mut(&id)) {
            (Some(completion), _) => check_completion_event(completion, event, &mut self.failed),
            (None, Some(turn)) => {
                check_turn_event(turn, event, &mut self.failed, &mut self.expected_sessions)
            }
            (None, None) => Err("an unknown request".to_owned()),
        };
        checked.unwrap_or_else(|wrong| {
            self.wrong.get_or_insert(format!("{id:?}: {wrong}"));
            ControlFlow::Continue(())
        })
    }

    /// An earlier turn of the same session that is still queued.
    fn first_overtaken(&self, id: RequestId) -> Option<RequestId> {
        let session = &self.turns.get(&id)?.request.session;
        let mut earlier = self.turns.range(..id);
        let waits =
            |a: &ReferenceTurn| a.state == RequestState::Queued && a.request.session == *session;
        earlier.find(|(_, a)| waits(a)).map(|(t, _)| *t)
    }

    /// Completions and turns in a state.
    pub fn count(&self, state: RequestState) -> (usize, usize) {
        let completions = self.completions.values().filter(|g| g.state == state);
        let turns = self.turns.values().filter(|a| a.state == state);
        (completions.count(), turns.count())
    }

    /// The process was killed.
    pub fn drop_all(&mut self) {
        self.turns.clear();
        let completions = std::mem::take(&mut self.completions);
        self.past.extend(completions.into_values());
    }

    /// A completion whose deadline has passed without an event.
    pub fn overdue(&self, now: Duration) -> Option<RequestId> {
        let is_there = |s: RequestState| matches!(s, RequestState::Queued | RequestState::Running);
        let is_late = |deadline: Option<Duration>| deadline.is_some_and(|d| d <= now);
        let completions = self.completions.iter();
        let mut late =
            completions.filter(|(_, g)| is_there(g.state) && is_late(g.request.deadline));
        late.next().map(|(id, _)| *id)
    }
}

fn admit(state: &mut RequestState) -> Result<(), String> {
    match state {
        RequestState::Queued => *state = RequestState::Running,
        _ => return Err(format!("admitted, but is {state:?}")),
    }
    Ok(())
}

fn expect_running(state: RequestState, what: &str) -> Result<(), String> {
    match state {
        RequestState::Running => Ok(()),
        _ => Err(format!("{what}, but is {state:?}")),
    }
}

fn expect_end(state: &mut RequestState, what: &str) -> Result<(), String> {
    match state {
        RequestState::Queued | RequestState::Running => *state = RequestState::Ended,
        _ => return Err(format!("{what}, but is {state:?}")),
    }
    Ok(())
}

fn check_completion_event(
    completion: &mut ReferenceRequest,
    event: RequestEvent<'_>,
    failed: &mut Vec<String>,
) -> Result<ControlFlow<()>, String> {
    match event {
        RequestEvent::Admitted => {
            admit(&mut completion.state)?;
            // Cancelled on admission: no event may follow.
            if completion.flow().is_break() {
                completion.state = RequestState::Dropped;
            }
        }
        RequestEvent::PromptRead { done, total } => {
            expect_running(completion.state, "reads")?;
            if done > total {
                return Err(format!("{done} tokens read of {total}"));
            }
        }
        RequestEvent::Token { sampled, logits } => {
            expect_running(completion.state, "gets a token")?;
            completion.tokens.push((sampled.id, fingerprint(logits)));
        }
        RequestEvent::Completed(completed, held) => {
            expect_end(&mut completion.state, "is done")?;
            completion.done = Some(completed);
            completion.changes = held.usage.changes;
            return Ok(ControlFlow::Continue(()));
        }
        RequestEvent::Failed(why) => {
            expect_end(&mut completion.state, "failed")?;
            failed.push(why.to_string());
        }
        RequestEvent::TurnSaved(_) | RequestEvent::SessionRead { .. } => {
            return Err("a completion is saved as a turn".to_owned());
        }
    }
    Ok(completion.flow())
}

fn check_turn_event(
    turn: &mut ReferenceTurn,
    event: RequestEvent<'_>,
    failed: &mut Vec<String>,
    expected_sessions: &mut [ExpectedSession],
) -> Result<ControlFlow<()>, String> {
    match event {
        RequestEvent::Admitted => admit(&mut turn.state)?,
        RequestEvent::PromptRead { .. } => expect_running(turn.state, "reads")?,
        RequestEvent::Token { sampled, logits } => {
            expect_running(turn.state, "gets a token")?;
            turn.tokens.push((sampled.id, fingerprint(logits)));
        }
        RequestEvent::Completed(completed, _) => {
            expect_end(&mut turn.state, "is done")?;
            let late = turn.request.deadline.is_some();
            if !late || !completed.tokens.is_empty() {
                return Err("a turn ends like a completion".to_owned());
            }
        }
        RequestEvent::SessionRead { .. } => return Err("a turn is read".to_owned()),
        RequestEvent::TurnSaved(answer) => {
            expect_end(&mut turn.state, "was said")?;
            add_saved_turn(turn, &answer, expected_sessions)?;
        }
        RequestEvent::Failed(why) => {
            expect_end(&mut turn.state, "failed")?;
            // As with a question that was not answered, below.
            let name = &turn.request.session;
            let expected = expected_sessions
                .iter_mut()
                .find(|t| t.exists && t.name == *name);
            expected
                .into_iter()
                .for_each(|expected| expected.is_lossy = true);
            failed.push(why.to_string());
        }
    }
    Ok(match turn.cancels_after {
        Some(after) if turn.tokens.len() >= after => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    })
}

/// Adds a saved turn to what is expected of its session.
fn add_saved_turn(
    turn: &ReferenceTurn,
    answer: &TurnAnswer,
    expected_sessions: &mut [ExpectedSession],
) -> Result<(), String> {
    let tokens: Vec<u32> = turn.tokens.iter().map(|t| t.0).collect();
    if answer.tokens != tokens {
        return Err(format!("tokens {tokens:?}, said {:?}", answer.tokens));
    }
    if answer.turn.is_some() == tokens.is_empty() {
        return Err(format!("{} tokens, turn {:?}", tokens.len(), answer.turn));
    }
    let name = &turn.request.session;
    let expected = expected_sessions
        .iter_mut()
        .find(|t| t.exists && t.name == *name);
    let expected = expected.ok_or(format!("{name} is no session"))?;
    let saved = ExpectedTurn {
        text: turn.request.text.clone(),
        sample: turn.request.sample.clone(),
        options: turn.request.options.clone(),
        tokens: turn.tokens.clone(),
        finish: answer.finish,
        spilled: answer.context.spilled,
    };
    match answer.turn {
        Some(_) => expected.said(saved, answer),
        // A question without an answer is no turn. But turns that were evicted for it stay evicted, so later answers cannot be
        // predicted.
        None => expected.is_lossy |= answer.context.plan != "nothing changes",
    }
    Ok(())
}
