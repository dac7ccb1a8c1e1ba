//! What everybody hears, and what nobody may: news of somebody unknown, before its time, twice, or after the last.

use crate::expected_turns::{Talk, Turn};
use crate::models::fingerprint;
use crate::reference_request::{Guest, Standing, Told};
use haversack_conversations::scheduler::{Request, RequestEvent, RequestId, RequestKind};
use haversack_conversations::session::Answer;
use haversack_engine::runtime::GenerateOptions;
use haversack_engine::sample::SampleOptions;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

/// A turn to ask for.
#[derive(Clone, Debug, Default)]
pub struct TurnSpec {
    pub session: String,
    pub text: String,
    pub now_ms: u64,
    pub sample: SampleOptions,
    pub options: GenerateOptions,
    pub owner: u64,
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
                embedding: None,
                now_ms: spec.now_ms,
            })
        }
    }
}

/// A turn that was asked for.
#[derive(Debug)]
pub struct Asked {
    pub request: TurnSpec,
    pub leaves: Option<usize>,
    pub standing: Standing,
    told: Vec<Told>,
}

impl Asked {
    pub fn new(request: TurnSpec, leaves: Option<usize>) -> Asked {
        Asked {
            request,
            leaves,
            standing: Standing::Waits,
            told: Vec::new(),
        }
    }
}

#[derive(Default)]
pub struct Ears {
    pub guests: BTreeMap<RequestId, Guest>,
    pub asked: BTreeMap<RequestId, Asked>,
    /// Guests of processes that are gone.
    pub past: Vec<Guest>,
    pub talks: Vec<Talk>,
    /// Who failed in this step, and why.
    pub failed: Vec<String>,
    pub wrong: Option<String>,
    /// What was heard, for whoever reads a trace.
    pub heard: Option<Vec<String>>,
}

impl Ears {
    pub fn hear(&mut self, ticket: RequestId, news: RequestEvent<'_>) -> ControlFlow<()> {
        if let Some(heard) = &mut self.heard {
            let word = match &news {
                RequestEvent::Token { sampled, .. } => format!("token {}", sampled.id),
                RequestEvent::Completed(done, _) => format!("done {:?}", done.finish),
                RequestEvent::TurnSaved(answer) => {
                    format!("said turn {:?} {:?}", answer.turn, answer.context)
                }
                news => format!("{news:?}"),
            };
            heard.push(format!("    {ticket:?} {word}"));
        }
        if let (RequestEvent::Admitted, Some(passed)) = (&news, self.passed_by(ticket)) {
            self.wrong
                .get_or_insert(format!("{ticket:?} passes {passed:?} of its session"));
        }
        let heard = match (self.guests.get_mut(&ticket), self.asked.get_mut(&ticket)) {
            (Some(guest), _) => of_guest(guest, news, &mut self.failed),
            (None, Some(asked)) => of_turn(asked, news, &mut self.failed, &mut self.talks),
            (None, None) => Err("nobody has this ticket".to_owned()),
        };
        heard.unwrap_or_else(|wrong| {
            self.wrong.get_or_insert(format!("{ticket:?}: {wrong}"));
            ControlFlow::Continue(())
        })
    }

    /// A turn of the same session that came earlier and waits.
    fn passed_by(&self, ticket: RequestId) -> Option<RequestId> {
        let session = &self.asked.get(&ticket)?.request.session;
        let mut earlier = self.asked.range(..ticket);
        let waits = |a: &Asked| a.standing == Standing::Waits && a.request.session == *session;
        earlier.find(|(_, a)| waits(a)).map(|(t, _)| *t)
    }

    /// How many are in a state.
    pub fn count(&self, standing: Standing) -> (usize, usize) {
        let guests = self.guests.values().filter(|g| g.standing == standing);
        let asked = self.asked.values().filter(|a| a.standing == standing);
        (guests.count(), asked.count())
    }

    /// Their process is gone.
    pub fn lose_all(&mut self) {
        self.asked.clear();
        let guests = std::mem::take(&mut self.guests);
        self.past.extend(guests.into_values());
    }

    /// Somebody whose time is over and who was not told.
    pub fn overdue(&self, now: Duration) -> Option<RequestId> {
        let is_there = |s: Standing| matches!(s, Standing::Waits | Standing::Active);
        let is_late = |deadline: Option<Duration>| deadline.is_some_and(|d| d <= now);
        let guests = self.guests.iter();
        let mut late = guests.filter(|(_, g)| is_there(g.standing) && is_late(g.request.deadline));
        late.next().map(|(ticket, _)| *ticket)
    }
}

fn enter(standing: &mut Standing) -> Result<(), String> {
    match standing {
        Standing::Waits => *standing = Standing::Active,
        _ => return Err(format!("enters, and is {standing:?}")),
    }
    Ok(())
}

fn is_active(standing: Standing, what: &str) -> Result<(), String> {
    match standing {
        Standing::Active => Ok(()),
        _ => Err(format!("{what}, and is {standing:?}")),
    }
}

fn end(standing: &mut Standing, what: &str) -> Result<(), String> {
    match standing {
        Standing::Waits | Standing::Active => *standing = Standing::Ended,
        _ => return Err(format!("{what}, and is {standing:?}")),
    }
    Ok(())
}

fn of_guest(
    guest: &mut Guest,
    news: RequestEvent<'_>,
    failed: &mut Vec<String>,
) -> Result<ControlFlow<()>, String> {
    match news {
        RequestEvent::Admitted => {
            enter(&mut guest.standing)?;
            // Who has left by now hears nothing more.
            if guest.flow().is_break() {
                guest.standing = Standing::Gone;
            }
        }
        RequestEvent::PromptRead { done, total } => {
            is_active(guest.standing, "reads")?;
            if done > total {
                return Err(format!("{done} tokens read of {total}"));
            }
        }
        RequestEvent::Token { sampled, logits } => {
            is_active(guest.standing, "is told a token")?;
            guest.told.push((sampled.id, fingerprint(logits)));
        }
        RequestEvent::Completed(completed, held) => {
            end(&mut guest.standing, "is done")?;
            guest.done = Some(completed);
            guest.changes = held.changes;
            return Ok(ControlFlow::Continue(()));
        }
        RequestEvent::Failed(why) => {
            end(&mut guest.standing, "failed")?;
            failed.push(why.to_string());
        }
        RequestEvent::TurnSaved(_) => return Err("hears a turn".to_owned()),
    }
    Ok(guest.flow())
}

fn of_turn(
    asked: &mut Asked,
    news: RequestEvent<'_>,
    failed: &mut Vec<String>,
    talks: &mut [Talk],
) -> Result<ControlFlow<()>, String> {
    match news {
        RequestEvent::Admitted => enter(&mut asked.standing)?,
        RequestEvent::PromptRead { .. } => is_active(asked.standing, "reads")?,
        RequestEvent::Token { sampled, logits } => {
            is_active(asked.standing, "is told a token")?;
            asked.told.push((sampled.id, fingerprint(logits)));
        }
        RequestEvent::Completed(completed, _) => {
            end(&mut asked.standing, "is done")?;
            let late = asked.request.deadline.is_some();
            if !late || !completed.tokens.is_empty() {
                return Err("a turn ends like a request".to_owned());
            }
        }
        RequestEvent::TurnSaved(answer) => {
            end(&mut asked.standing, "was said")?;
            part_of(asked, &answer, talks)?;
        }
        RequestEvent::Failed(why) => {
            end(&mut asked.standing, "failed")?;
            // As with a question that was never answered, below.
            let name = &asked.request.session;
            let talk = talks.iter_mut().find(|t| t.exists && t.name == *name);
            talk.into_iter().for_each(|talk| talk.is_lossy = true);
            failed.push(why.to_string());
        }
    }
    Ok(match asked.leaves {
        Some(after) if asked.told.len() >= after => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    })
}

/// The turn has become part of its conversation.
fn part_of(asked: &Asked, answer: &Answer, talks: &mut [Talk]) -> Result<(), String> {
    let tokens: Vec<u32> = asked.told.iter().map(|t| t.0).collect();
    if answer.tokens != tokens {
        return Err(format!("told {tokens:?}, said {:?}", answer.tokens));
    }
    if answer.turn.is_some() == tokens.is_empty() {
        return Err(format!("{} tokens, turn {:?}", tokens.len(), answer.turn));
    }
    let name = &asked.request.session;
    let talk = talks.iter_mut().find(|t| t.exists && t.name == *name);
    let talk = talk.ok_or(format!("{name} is no conversation"))?;
    let turn = Turn {
        text: asked.request.text.clone(),
        sample: asked.request.sample.clone(),
        options: asked.request.options.clone(),
        told: asked.told.clone(),
        finish: answer.finish,
        spilled: answer.context.spilled,
    };
    match answer.turn {
        Some(_) => talk.said(turn, answer),
        // A question that was never answered is none. What was done to turns for it stays done, and shows if they were
        // seen: nobody can say then what comes next.
        None => talk.is_lossy |= answer.context.plan != "nothing changes",
    }
    Ok(())
}
