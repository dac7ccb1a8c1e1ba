//! One seed's world: everything that happens, one step after the other, and what must hold after each.

use crate::common::Dice;
use crate::event_checker::{Asked, Ears, TurnSpec};
use crate::expected_turns::{self, Op, Talk, turn_tokens};
use crate::models::{OTHER, Stage, one_in, pick};
use crate::reference_request::{self, Guest, Standing, ask, ask_wrongly, sampling};
use crate::rollback::{Draft, Heard};
use crate::seed_settings::{Kind, Setting};
use haversack_conversations::scheduler::{LongPrompt, RequestId, Scheduler, SubmitError};
use haversack_conversations::session::layout::Layout;
use haversack_conversations::session::turns::Place;
use haversack_conversations::session::{SessionError, SessionId, Sessions};
use haversack_engine::Runtime;
use haversack_engine::device::Thermal;
use haversack_engine::runtime::GenerateOptions;
use haversack_memory::Faults;
use haversack_memory::zoo::plant;
use haversack_memory::{Cgroup, Psi, Reading};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Steps in which everybody who is there must have come to an end, once nothing stands in the way.
const STEPS_TO_END: usize = 2000;

/// Pairs of the same length, so that one could be taken for another; two of them fill a block.
const OPENINGS: [&str; 4] = [
    "You know dogs.",
    "You know figs.",
    "You know all about dogs and ships.",
    "You know all about figs and plums.",
];
const WORDS: [&str; 6] = ["apple", "bread", "cat", "door", "egg", "fox"];

pub struct World<'a> {
    stage: &'a mut Stage,
    setting: Setting,
    folder: PathBuf,
    dice: Dice,
    desk: Scheduler,
    ears: Ears,
    draft: Option<Draft>,
    now: Duration,
    names: usize,
    /// What happened, if somebody wants to read it.
    story: Option<Vec<String>>,
}

type Check = Result<(), String>;

/// Lives through a seed. The error is what was wrong, and when.
pub fn live(stage: &mut Stage, seed: u64, story: &mut Option<Vec<String>>) -> Check {
    let folder = stage.folder.join(format!("world-{seed}"));
    // One that ended in a panic has left everything.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    let mut dice = Dice((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for _ in 0..4 {
        let _ = dice.roll(2);
    }
    let bug = plant(None);
    let setting = Setting::roll(&mut dice, stage, &folder);
    plant(bug);
    if let Some(story) = story {
        story.push(format!("{setting:?}"));
    }
    let desk = setting.desk(stage, setting.model);
    let lived = desk.and_then(|desk| {
        let mut world = World {
            ears: Ears {
                heard: story.is_some().then(Vec::new),
                ..Ears::default()
            },
            stage,
            setting,
            folder: folder.clone(),
            dice,
            desk,
            draft: None,
            now: Duration::ZERO,
            names: 0,
            story: story.take(),
        };
        let lived = world.live();
        *story = world.story.take();
        lived
    });
    let _ = std::fs::remove_dir_all(&folder);
    lived
}

impl World<'_> {
    fn live(&mut self) -> Check {
        for step in 0..self.setting.steps {
            let lived = self.act().and_then(|()| self.step());
            lived.map_err(|wrong| format!("step {step}: {wrong}"))?;
        }
        self.come_to_an_end()?;
        let draft = self.draft.take().map(|d| d.end(&mut self.desk));
        let draft = draft.transpose()?;
        // What is right is not computed by whoever makes mistakes.
        let bug = plant(None);
        let judged = self.judge(draft);
        plant(bug);
        judged?;
        self.tidy_up()
    }

    fn tell(&mut self, what: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(what());
        }
    }

    /// Something happens, or several things.
    fn act(&mut self) -> Check {
        for _ in 0..1 + self.dice.roll(2) {
            match (self.setting.kind, self.dice.roll(24)) {
                (Kind::Talks, 0..=7) => self.ask_turn()?,
                (Kind::Talks, 8..=9) => self.create()?,
                (Kind::Talks, 10..=13) => self.change_talk()?,
                (Kind::Talks, 14) => self.fork()?,
                (Kind::Talks, 15) if one_in(&mut self.dice, 3) => self.delete()?,
                (Kind::Talks, 16) if one_in(&mut self.dice, 2) => self.restart()?,
                (Kind::Talks, 17) if one_in(&mut self.dice, 2) => {
                    self.tell(|| "all are put away".to_owned());
                    self.desk.suspend_all();
                }
                (Kind::Requests, 0..=3) => self.draft()?,
                (_, 18) => self.ask_wrongly()?,
                (_, 19 | 20) => self.cancel()?,
                (_, 21) => self.observe(),
                (Kind::Talks, 22 | 23) => self.submit()?,
                (Kind::Talks, _) => {}
                (_, 22) if one_in(&mut self.dice, 6) => self.restart()?,
                _ => self.submit()?,
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Check {
        // Short, long and hopeless for a portion of a prompt.
        let took = pick(&mut self.dice, &[5, 30, 60, 1000, 1000]);
        self.now += Duration::from_millis(took);
        let struck = self.struck();
        let ears = &mut self.ears;
        let stepped = (self.desk).step(self.now, &mut |ticket, news| ears.hear(ticket, news));
        if let Some(heard) = self.ears.heard.as_mut().map(std::mem::take) {
            let now = self.now.as_secs_f64();
            self.tell(|| format!("{now:.3} s"));
            self.story
                .iter_mut()
                .for_each(|story| story.extend(heard.iter().cloned()));
        }
        let fails = struck != self.struck();
        if let Err(error) = stepped
            && !fails
        {
            return Err(format!("a step failed: {error}"));
        }
        self.check(fails)
    }

    /// Calls that failed on purpose so far.
    fn struck(&self) -> usize {
        let disk = self.setting.disk.as_ref().map_or(0, |disk| disk.blows());
        usize::from(self.setting.arena.struck()) + disk
    }

    /// What must hold after every step.
    fn check(&mut self, fails: bool) -> Check {
        if let Some(wrong) = self.ears.wrong.take() {
            return Err(wrong);
        }
        for why in std::mem::take(&mut self.ears.failed) {
            // Who waited for a session that was deleted, or lost with a disk.
            let gone = |t: &Talk| !t.exists && why.starts_with(&format!("session {}: ", t.name));
            let is_gone =
                why.starts_with("there is no session") || self.ears.talks.iter().any(gone);
            if !fails && !is_gone {
                return Err(format!("somebody failed: {why}"));
            }
        }
        self.desk.runtime().store().audit()?;
        let ledger = self.desk.runtime().ledger();
        if ledger.budget != self.setting.budget {
            return Err(format!("the budget is {:?}", ledger.budget));
        }
        let (waits, active) = (self.desk.waiting(), self.desk.active());
        let (guests, turns) = self.ears.count(Standing::Waits);
        if waits != guests + turns || waits > self.setting.desk.queue {
            return Err(format!(
                "{waits} are in the queue, {guests} and {turns} wait"
            ));
        }
        let (guests, turns) = self.ears.count(Standing::Active);
        // Turns that are being judged are in no step.
        let is_known = (guests..=guests + turns).contains(&active);
        if !is_known || active > self.setting.desk.batch {
            return Err(format!(
                "{active} are active, {guests} and {turns} should be"
            ));
        }
        if let Some(ticket) = self.ears.overdue(self.now) {
            return Err(format!("{ticket:?} is overdue"));
        }
        self.check_seen()
    }

    /// Attention sees the facts and whole turns, those that are said to be visible and no others.
    fn check_seen(&self) -> Check {
        let Some(sessions) = self.desk.sessions() else {
            return Ok(());
        };
        let store = self.desk.runtime().store();
        for talk in self.ears.talks.iter().filter(|t| t.exists) {
            let Some(id) = sessions.opened(&talk.name) else {
                continue;
            };
            let wrong = |what: String| Err(format!("{}: {what}", talk.name));
            if sessions.is_answering(id).unwrap_or(true) {
                continue;
            }
            let turns = sessions.turns(id).map_err(|e| e.to_string())?;
            let sequence = sessions.sequence(id).map_err(|e| e.to_string())?;
            let position = store.position(sequence).map_err(|e| e.to_string())?;
            let mut visible = BTreeSet::new();
            for turn in turns.iter().filter(|t| t.is_visible) {
                if turn.place != Place::Live {
                    return wrong(format!("{turn:?} is seen"));
                }
                visible.extend(turn.span.clone());
            }
            if let Some(turn) = turns.iter().find(|t| t.is_pinned && !t.is_visible) {
                return wrong(format!("{turn:?} is pinned"));
            }
            let held: BTreeSet<u64> = turns.iter().flat_map(|t| t.span.clone()).collect();
            for (layer, shape) in store.layers().iter().enumerate() {
                // What a window has passed is seen by nobody.
                let passed = shape.window.map_or(0, |w| position.saturating_sub(w - 1));
                let view = store.view(sequence, layer).map_err(|e| e.to_string())?;
                let mut seen = BTreeSet::new();
                for entry in view.entries() {
                    let shown = |i: &u32| entry.hidden >> i & 1 == 0;
                    let rows = (0..entry.rows).filter(shown);
                    seen.extend(rows.map(|i| entry.first_position + u64::from(i)));
                }
                // Facts are everywhere between turns.
                let turns: BTreeSet<u64> = seen.intersection(&held).copied().collect();
                let missing = visible.difference(&turns).find(|p| **p >= passed);
                if let Some(position) = missing {
                    return wrong(format!("position {position} is not seen in layer {layer}"));
                }
                if let Some(position) = turns.difference(&visible).next() {
                    return wrong(format!("position {position} is seen in layer {layer}"));
                }
            }
        }
        Ok(())
    }

    fn leaves(&mut self) -> Option<usize> {
        one_in(&mut self.dice, 6).then(|| self.dice.roll(4))
    }

    fn submit(&mut self) -> Check {
        let request = ask(&mut self.dice, &self.setting, self.now);
        let leaves = self.leaves();
        let submitted = self.desk.submit(request.request());
        self.tell(|| {
            let (n, most) = (request.prompt.len(), request.options.tokens_max);
            let rows = request.rows;
            format!("request of {n} and {most:?}, {rows:?}, leaves {leaves:?}: {submitted:?}")
        });
        match submitted {
            Ok(ticket) => {
                let guest = Guest::new(request, leaves, self.desk.runtime());
                if self.ears.guests.insert(ticket, guest).is_some() {
                    return Err(format!("{ticket:?} is somebody else's"));
                }
                Ok(())
            }
            Err(SubmitError::QueueFull(_)) if self.desk.waiting() == self.setting.desk.queue => {
                Ok(())
            }
            // More than all there is.
            Err(SubmitError::TooManyBytes { .. }) if self.setting.budget.is_some() => Ok(()),
            Err(SubmitError::Step(_)) if self.setting.budget.is_some() => Ok(()),
            Err(SubmitError::PromptTooLong { .. }) if self.setting.budget.is_some() => Ok(()),
            Err(SubmitError::PromptTooLong { .. })
                if request
                    .rows
                    .is_some_and(|rows| rows.when_longer == LongPrompt::Refuse) =>
            {
                Ok(())
            }
            // A window that is larger than the one all have.
            Err(SubmitError::Step(_)) if self.setting.is_window() => Ok(()),
            Err(refused) => Err(format!("refused: {refused}")),
        }
    }

    fn ask_wrongly(&mut self) -> Check {
        let request = ask_wrongly(&mut self.dice, &self.setting, self.now);
        self.tell(|| "a request that nobody can serve".to_owned());
        match self.desk.submit(request.request()) {
            Ok(_) => Err("a wrong request was taken".to_owned()),
            Err(_) => Ok(()),
        }
    }

    fn draft(&mut self) -> Check {
        // It takes memory that nobody promised.
        if self.setting.budget.is_some() || self.setting.may_fail {
            return self.submit();
        }
        if self.draft.is_none() {
            self.draft = Some(Draft::new(&mut self.dice, &mut self.desk)?);
        }
        self.tell(|| "somebody drafts".to_owned());
        match &mut self.draft {
            Some(draft) => draft.act(&mut self.dice, &mut self.desk),
            None => Ok(()),
        }
    }

    fn cancel(&mut self) -> Check {
        let there = |s: Standing| matches!(s, Standing::Waits | Standing::Active);
        let guests = self.ears.guests.iter().filter(|(_, g)| there(g.standing));
        let turns = self.ears.asked.iter().filter(|(_, a)| there(a.standing));
        let tickets: Vec<RequestId> = guests.map(|g| *g.0).chain(turns.map(|a| *a.0)).collect();
        if tickets.is_empty() {
            return Ok(());
        }
        let ticket = pick(&mut self.dice, &tickets);
        self.tell(|| format!("{ticket:?} is cancelled"));
        self.desk.cancel(ticket).map_err(|e| e.to_string())?;
        if let Some(guest) = self.ears.guests.get_mut(&ticket) {
            guest.standing = Standing::Gone;
        }
        if let Some(asked) = self.ears.asked.get_mut(&ticket) {
            match asked.standing {
                Standing::Waits => asked.standing = Standing::Gone,
                // What was said of it is part of the conversation.
                _ => asked.leaves = asked.leaves.or(Some(usize::MAX)),
            }
        }
        Ok(())
    }

    fn observe(&mut self) {
        let heat = pick(
            &mut self.dice,
            &[
                None,
                Some(Thermal::Nominal),
                Some(Thermal::Fair),
                Some(Thermal::Serious),
                Some(Thermal::Critical),
                Some(Thermal::Critical),
            ],
        );
        let mib = pick(&mut self.dice, &[0, 0, 10, 17, 30, 200]);
        let mut reading = self.room(mib);
        if one_in(&mut self.dice, 6) {
            reading.psi = Some(Psi {
                some_avg10: 60.0,
                full_avg10: 40.0,
                full_total_us: 1,
            });
        }
        let words = self.desk.observe(heat, &reading, self.now);
        self.tell(|| format!("heat {heat:?}, {mib} MiB: {words:?}"));
    }

    fn room(&self, mib: u64) -> Reading {
        let weights = self.desk.runtime().model().weights().bytes_per_token() as u64;
        Reading {
            cgroup: Some(Cgroup {
                limit_bytes: Some(weights + (mib << 20)),
                anon_bytes: Some(0),
                ..Cgroup::default()
            }),
            ..Reading::default()
        }
    }

    /// Nothing stands in anybody's way any more: all come to an end.
    fn come_to_an_end(&mut self) -> Check {
        for _ in 0..STEPS_TO_END {
            if self.desk.is_idle() {
                let (guests, turns) = self.ears.count(Standing::Active);
                return match guests + turns {
                    0 => Ok(()),
                    n => Err(format!("{n} never heard of their end")),
                };
            }
            let calm = self.room(200);
            self.desk.observe(Some(Thermal::Nominal), &calm, self.now);
            self.step()
                .map_err(|wrong| format!("at the end: {wrong}"))?;
        }
        let (waits, active) = (self.desk.waiting(), self.desk.active());
        Err(format!("{waits} wait and {active} are active for ever"))
    }

    fn judge(&mut self, draft: Option<Heard>) -> Check {
        for (ticket, guest) in &self.ears.guests {
            reference_request::judge(self.stage, &self.setting, guest)
                .map_err(|wrong| format!("{ticket:?}: {wrong}"))?;
        }
        for guest in &self.ears.past {
            reference_request::judge(self.stage, &self.setting, guest)
                .map_err(|wrong| format!("before a restart: {wrong}"))?;
        }
        let dir = self.folder.join("alone");
        for talk in &self.ears.talks {
            expected_turns::judge(self.stage, &self.setting, talk, &dir)?;
        }
        match draft {
            Some(draft) => draft.judge(self.stage, &self.setting),
            None => Ok(()),
        }
    }

    /// Nothing is left of anybody.
    fn tidy_up(&mut self) -> Check {
        let struck = self.struck();
        self.check_records()?;
        self.desk.suspend_all();
        self.desk.runtime().store().audit()?;
        let names: Vec<String> = self.alive().map(|t| t.name.clone()).collect();
        for name in names {
            if let Err(error) = self.desk.delete_session(&name)
                && struck == self.struck()
            {
                return Err(format!("deleting {name}: {error}"));
            }
        }
        let left = self.desk.runtime().store().open_sequences();
        if left > 0 {
            return Err(format!("{left} sequences are left"));
        }
        let ledger = self.desk.runtime().ledger();
        if ledger.kv_live + ledger.kv_ahead + ledger.kv_promised > 0 {
            return Err(format!("somebody left something: {ledger:?}"));
        }
        let left = files(&self.folder.join("sessions"));
        match left.is_empty() || self.setting.disk.is_some() {
            true => Ok(()),
            false => Err(format!("files are left: {left:?}")),
        }
    }

    /// The turns of every conversation, token by token as the template has them.
    fn check_records(&mut self) -> Check {
        let layout = Layout::new(self.stage.models[self.setting.model].clone());
        let talks: Vec<Talk> = self.alive().filter(|t| !t.is_lossy).cloned().collect();
        for talk in talks {
            let struck = self.struck();
            let views = self.desk.with_session(&talk.name, |_, sessions, id| {
                let turns = sessions.turns(id)?.into_iter().map(|t| t.number);
                let numbers: Vec<u64> = turns.collect();
                let views = numbers.into_iter().map(|n| sessions.turn(id, n));
                views.collect::<Result<Vec<_>, _>>()
            });
            let views = match views {
                Ok(views) => views,
                Err(_) if struck != self.struck() => continue,
                Err(error) => return Err(format!("{}: {error}", talk.name)),
            };
            let turns = talk.turns();
            let numbers: Vec<u64> = views.iter().map(|v| v.turn.number).collect();
            if numbers.len() != turns.len()
                || !turns.iter().map(|t| t.0).eq(numbers.iter().copied())
            {
                let expected: Vec<u64> = turns.iter().map(|t| t.0).collect();
                return Err(format!(
                    "{}: turns {numbers:?}, not {expected:?}",
                    talk.name
                ));
            }
            for (view, (number, turn)) in views.iter().zip(turns) {
                if view.tokens != turn_tokens(&layout, turn)? {
                    return Err(format!("{}: turn {number} has other tokens", talk.name));
                }
            }
        }
        Ok(())
    }

    fn alive(&self) -> impl Iterator<Item = &Talk> {
        self.ears.talks.iter().filter(|t| t.exists)
    }

    fn some_talk(&mut self) -> Option<usize> {
        let talks = self.ears.talks.iter().enumerate();
        let alive: Vec<usize> = talks.filter(|(_, t)| t.exists).map(|(i, _)| i).collect();
        (!alive.is_empty()).then(|| pick(&mut self.dice, &alive))
    }

    fn text(&mut self, most: usize) -> String {
        let count = 1 + self.dice.roll(most);
        let words: Vec<&str> = (0..count).map(|_| pick(&mut self.dice, &WORDS)).collect();
        words.join(" ")
    }

    fn create(&mut self) -> Check {
        if self.alive().count() >= 4 {
            return self.ask_turn();
        }
        let name = self.name();
        let opening = pick(&mut self.dice, &OPENINGS);
        let struck = self.struck();
        let created = self.desk.create_session(&name, "", opening, 0);
        self.tell(|| format!("create {name}: {created:?}"));
        match created {
            Ok(_) => {
                let saved = self.is_saved(&name);
                let mut talk = Talk::new(name, opening);
                talk.saved(saved);
                self.ears.talks.push(talk);
                Ok(())
            }
            Err(error) => self.may(error, struck),
        }
    }

    /// Whether an open session has all it says in its file.
    fn is_saved(&self, name: &str) -> bool {
        let sessions = self.desk.sessions();
        let stats = sessions.and_then(|s| s.stats(self.desk.runtime(), s.opened(name)?).ok());
        stats.is_some_and(|stats| stats.unsaved.is_none())
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("ta{}", self.names)
    }

    /// Errors that are nobody's mistake: no room beside those who were promised theirs, a call that failed, a session
    /// that answers.
    fn may(&self, error: SessionError, struck: usize) -> Check {
        let is_short = error.is_cannot_fit();
        match error {
            _ if is_short && self.setting.budget.is_some() => Ok(()),
            _ if struck != self.struck() => Ok(()),
            SessionError::Answering { .. } | SessionError::PersistentFull { .. } => Ok(()),
            error => Err(error.to_string()),
        }
    }

    fn ask_turn(&mut self) -> Check {
        let Some(i) = self.some_talk() else {
            return self.create();
        };
        let leaves = self.leaves();
        let request = TurnSpec {
            session: self.ears.talks[i].name.clone(),
            text: self.text(6),
            now_ms: 8,
            sample: sampling(&mut self.dice),
            options: GenerateOptions {
                tokens_max: pick(&mut self.dice, &[None, Some(2)]),
                ignore_end: !one_in(&mut self.dice, 4),
                ..GenerateOptions::default()
            },
            owner: self.dice.roll(3) as u64,
            deadline: one_in(&mut self.dice, 15).then(|| self.now + Duration::from_secs(4)),
        };
        let said = self.desk.submit(request.request());
        self.tell(|| {
            format!(
                "say to {}: {:?}, leaves {leaves:?}: {said:?}",
                request.session, request.text
            )
        });
        match said {
            Ok(ticket) => {
                let asked = Asked::new(request, leaves);
                match self.ears.asked.insert(ticket, asked) {
                    None => Ok(()),
                    Some(_) => Err(format!("{ticket:?} is somebody else's")),
                }
            }
            Err(SubmitError::QueueFull(_)) if self.desk.waiting() == self.setting.desk.queue => {
                Ok(())
            }
            Err(refused) => Err(format!("a turn is refused: {refused}")),
        }
    }

    /// Facts, and turns taken back, pinned, asked for.
    fn change_talk(&mut self) -> Check {
        let Some(i) = self.some_talk() else {
            return Ok(());
        };
        let text = self.text(4);
        let (what, which) = (self.dice.roll(8), self.dice.roll(8));
        let name = self.ears.talks[i].name.clone();
        let struck = self.struck();
        let done = self.desk.with_session(&name, |runtime, sessions, id| {
            let before = visible(sessions, id)?;
            let op = change(runtime, sessions, id, what, which, &text)?;
            let stats = sessions.stats(runtime, id)?;
            let gone = before.difference(&visible(sessions, id)?).count();
            Ok((op, stats, gone))
        });
        self.tell(|| format!("{name}: {done:?}"));
        match done {
            Ok((op, stats, gone)) => {
                let talk = &mut self.ears.talks[i];
                // A fact takes the room of a turn where there is no other.
                talk.is_lossy |= gone > 0 && matches!(op, Some(Op::Fact(_) | Op::Supersede(..)));
                talk.has_gaps |= stats.hidden + stats.spilled + stats.ids + stats.forgotten > 0;
                talk.saved(stats.unsaved.is_none());
                talk.ops.extend(op);
                Ok(())
            }
            Err(error) => {
                let is_fact = what < 4;
                // What was tried for a fact may have made a turn leave.
                let talk = &mut self.ears.talks[i];
                talk.is_lossy |= is_fact && self.setting.budget.is_some();
                self.may(error, struck)
            }
        }
    }

    fn fork(&mut self) -> Check {
        let Some(i) = self.some_talk() else {
            return Ok(());
        };
        if self.alive().count() >= 5 {
            return Ok(());
        }
        let name = self.name();
        let from = self.ears.talks[i].name.clone();
        let struck = self.struck();
        let forked = self.desk.fork_session(&from, &name);
        self.tell(|| format!("fork {name} from {from}: {forked:?}"));
        match forked {
            Ok(_) => {
                let mut talk = self.ears.talks[i].clone();
                talk.name = name;
                // Turns that somebody wants to see are wanted in the first one.
                talk.forget_recalls();
                talk.saved(true);
                self.ears.talks.push(talk);
                Ok(())
            }
            Err(SessionError::Unsaved { .. }) if self.setting.disk.is_some() => Ok(()),
            Err(error) => self.may(error, struck),
        }
    }

    fn delete(&mut self) -> Check {
        let Some(i) = self.some_talk() else {
            return Ok(());
        };
        let name = self.ears.talks[i].name.clone();
        let struck = self.struck();
        let deleted = self.desk.delete_session(&name);
        self.tell(|| format!("delete {name}: {deleted:?}"));
        let path = self.folder.join(format!("sessions/{name}.session"));
        match deleted {
            Ok(()) => {
                self.ears.talks[i].exists = false;
                match path.exists() {
                    true => Err(format!("{name} was deleted and has a file")),
                    false => Ok(()),
                }
            }
            Err(SessionError::NoSuchSession { .. }) if self.ears.talks[i].is_unsaved => {
                self.ears.talks[i].exists = false;
                Ok(())
            }
            Err(error) => {
                // It was put away as it was.
                let failed = struck != self.struck();
                let talk = &mut self.ears.talks[i];
                talk.is_lossy |= failed;
                talk.exists &= talk.was_saved || !failed;
                // Or it is gone, and only nobody can promise that it stays so.
                talk.exists &= path.exists() || !failed;
                self.may(error, struck)
            }
        }
    }

    /// The process dies, and another one begins where the files end.
    fn restart(&mut self) -> Check {
        self.tell(|| "the process dies".to_owned());
        self.ears.lose_all();
        self.draft = None;
        if self.setting.kind == Kind::Talks && self.setting.disk.is_none() && !self.setting.may_fail
        {
            match self.dice.roll(5) {
                0 if self.setting.model == 0 => self.serve_another_model()?,
                1 => self.mix_up_files()?,
                2 | 3 => self.fail_to_restore()?,
                _ => {}
            }
        }
        // Locks of files end with it.
        let idle = self.setting.idle_desk(self.stage)?;
        drop(std::mem::replace(&mut self.desk, idle));
        self.desk = self.setting.desk(self.stage, self.setting.model)?;
        for talk in self.ears.talks.iter_mut().filter(|t| t.exists) {
            talk.is_lossy |= talk.is_unsaved;
            talk.ops.push(Op::Reopen);
            let path = self.folder.join(format!("sessions/{}.session", talk.name));
            if talk.was_saved && !path.exists() {
                return Err(format!("{} was saved and has no file", talk.name));
            }
            // One that was never saved is gone with its process.
            talk.exists = talk.was_saved;
        }
        Ok(())
    }

    /// For a while the process has another model of the same shape: nothing of one gets into the other.
    fn serve_another_model(&mut self) -> Check {
        self.tell(|| "another model".to_owned());
        let idle = self.setting.idle_desk(self.stage)?;
        drop(std::mem::replace(&mut self.desk, idle));
        let mut desk = self.setting.desk(self.stage, OTHER)?;
        for talk in self.alive() {
            match desk.with_session(&talk.name, |_, _, _| Ok(())) {
                Err(SessionError::Identity { what: "model", .. }) => {}
                other => return Err(format!("{} with another model: {other:?}", talk.name)),
            }
        }
        let mut ears = Ears::default();
        for opening in OPENINGS {
            let name = self.name();
            match desk.create_session(&name, "", opening, 0) {
                Ok(_) => ears.talks.push(Talk::new(name, opening)),
                Err(error) => return Err(format!("another model: {error}")),
            }
        }
        let mut asked = Vec::new();
        for talk in &ears.talks {
            let request = TurnSpec {
                session: talk.name.clone(),
                text: "egg".to_owned(),
                ..TurnSpec::default()
            };
            asked.push(request);
        }
        for request in asked {
            let ticket = desk.submit(request.request()).map_err(|e| e.to_string())?;
            ears.asked.insert(ticket, Asked::new(request, None));
            while !desk.is_idle() {
                let stepped = desk.step(self.now, &mut |ticket, news| ears.hear(ticket, news));
                stepped.map_err(|e| e.to_string())?;
            }
        }
        ears.wrong.map_or(Ok(()), Err)?;
        if !ears.failed.is_empty() {
            return Err(format!("another model: {:?}", ears.failed));
        }
        let bug = plant(None);
        let form = self.setting.form;
        let mut talks = ears.talks.iter();
        let judged = talks.try_for_each(|t| expected_turns::judge_list(self.stage, OTHER, form, t));
        plant(bug);
        judged.map_err(|wrong| format!("another model: {wrong}"))?;
        for talk in &ears.talks {
            desk.delete_session(&talk.name).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// A process that cannot have what its first sessions need: it says so, and keeps nothing of them.
    fn fail_to_restore(&mut self) -> Check {
        let names: Vec<String> = self.alive().map(|t| t.name.clone()).collect();
        let idle = self.setting.idle_desk(self.stage)?;
        drop(std::mem::replace(&mut self.desk, idle));
        let nth = 1 + self.dice.roll(6) as u64;
        self.tell(|| format!("allocation {nth} fails"));
        let faults = Faults::fail_nth(nth);
        let mut setting = self.setting.clone();
        setting.arena = faults.clone();
        let mut desk = setting.desk(self.stage, setting.model)?;
        for name in names {
            let struck = faults.struck();
            let opened = desk.with_session(&name, |_, _, _| Ok(()));
            if let Err(error) = opened
                && struck == faults.struck()
            {
                return Err(format!("{name}: {error}"));
            }
            desk.suspend_all();
            desk.runtime().store().audit()?;
            let left = desk.runtime().store().open_sequences();
            if left > 0 {
                return Err(format!("{left} sequences are left of {name}"));
            }
        }
        Ok(())
    }

    /// Somebody puts files under each other's names: none of them is read.
    fn mix_up_files(&mut self) -> Check {
        let names: Vec<String> = self.alive().map(|t| t.name.clone()).collect();
        let [one, two, ..] = &names[..] else {
            return Ok(());
        };
        self.tell(|| format!("{one} and {two} are mixed up"));
        let idle = self.setting.idle_desk(self.stage)?;
        drop(std::mem::replace(&mut self.desk, idle));
        let path = |name: &str| self.folder.join(format!("sessions/{name}.session"));
        let swap = || -> std::io::Result<()> {
            let aside = self.folder.join("aside");
            std::fs::rename(path(one), &aside)?;
            std::fs::rename(path(two), path(one))?;
            std::fs::rename(&aside, path(two))
        };
        swap().map_err(|e| e.to_string())?;
        let mut desk = self.setting.desk(self.stage, self.setting.model)?;
        for name in [one, two] {
            match desk.with_session(name, |_, _, _| Ok(())) {
                Err(SessionError::Identity {
                    what: "session", ..
                }) => {}
                other => return Err(format!("{name} is somebody else's: {other:?}")),
            }
        }
        drop(desk);
        swap().map_err(|e| e.to_string())
    }
}

/// One change of a conversation, if there is something to change.
fn change(
    runtime: &mut Runtime,
    sessions: &mut Sessions,
    id: SessionId,
    what: usize,
    which: usize,
    text: &str,
) -> Result<Option<Op>, SessionError> {
    let facts: Vec<u64> = sessions.facts(id)?.iter().map(|f| f.0).collect();
    let fact = facts[which % facts.len()];
    let turns: Vec<(u64, bool, bool)> = (sessions.turns(id)?.iter())
        .map(|t| (t.number, t.is_pinned, t.place == Place::Live))
        .collect();
    let turn = turns.get(which % turns.len().max(1)).copied();
    Ok(match (what, turn) {
        (0 | 1, _) => {
            sessions.add_fact(runtime, id, text, 8)?;
            Some(Op::Fact(text.to_owned()))
        }
        (2, _) if fact > 0 => {
            sessions.supersede(runtime, id, fact, text, 8)?;
            Some(Op::Supersede(fact, text.to_owned()))
        }
        (3, _) if fact > 0 => {
            sessions.revoke(runtime, id, fact)?;
            Some(Op::Revoke(fact))
        }
        (4, _) => sessions.retract(runtime, id)?.map(|_| Op::Retract),
        (5, Some((turn, is_pinned, is_live))) => {
            let others = turns.iter().any(|t| t.1 && t.0 != turn);
            if others || !is_live {
                return Ok(None);
            }
            sessions.pin(runtime, id, turn, !is_pinned)?;
            Some(Op::Pin(turn, !is_pinned))
        }
        (6 | 7, Some((turn, ..))) => {
            sessions.recall(id, turn)?;
            Some(Op::Recall(turn))
        }
        _ => None,
    })
}

fn visible(sessions: &Sessions, id: SessionId) -> Result<BTreeSet<u64>, SessionError> {
    let turns = sessions.turns(id)?;
    let visible = turns.iter().filter(|t| t.is_visible);
    Ok(visible.map(|t| t.number).collect())
}

fn files(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect()
}
