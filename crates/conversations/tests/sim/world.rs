//! The world of one seed: what happens in each step, and what must hold after it.

use crate::audit::audit;
use crate::common::Dice;
use crate::event_checker::{EventChecker, ReferenceTurn, TurnSpec};
use crate::expected_turns::{self, ExpectedSession, SessionOp, turn_tokens};
use crate::models::{Models, OTHER, one_in, pick};
use crate::reference_request::{
    self, ReferenceRequest, RequestState, invalid_completion, random_completion, random_sampling,
};
use crate::rollback::{Rollback, RollbackRecord};
use crate::seed_settings::{Scenario, SeedSettings};
use haversack_conversations::scheduler::{LongPrompt, RequestId, Scheduler, SubmitError};
use haversack_conversations::session::layout::ChatLayout;
use haversack_conversations::session::turns::TurnPlace;
use haversack_conversations::session::{SessionError, SessionId, Sessions};
use haversack_engine::Runtime;
use haversack_engine::device::Thermal;
use haversack_engine::runtime::GenerateOptions;
use haversack_memory::{Cgroup, Psi, Reading};
use haversack_testing::ArenaFaults;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Steps within which all requests must end once nothing fails or is short any more.
const STEPS_TO_END: usize = 2000;

/// Pairs of the same length, so that one could be mistaken for the other; two of them fill a block.
const OPENINGS: [&str; 4] = [
    "You know dogs.",
    "You know figs.",
    "You know all about dogs and ships.",
    "You know all about figs and plums.",
];
const WORDS: [&str; 6] = ["apple", "bread", "cat", "door", "egg", "fox"];

pub struct World<'a> {
    models: &'a mut Models,
    settings: SeedSettings,
    folder: PathBuf,
    dice: Dice,
    scheduler: Scheduler,
    checker: EventChecker,
    rollback: Option<Rollback>,
    now: Duration,
    names: usize,
    /// Lines of what happened, if wanted.
    trace: Option<Vec<String>>,
}

type Check = Result<(), String>;

/// Runs a seed. The error says what was wrong, and when.
pub fn run(models: &mut Models, seed: u64, trace: &mut Option<Vec<String>>) -> Check {
    let folder = models.folder.join(format!("world-{seed}"));
    // Left over from a run that panicked.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    let mut dice = Dice((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for _ in 0..4 {
        let _ = dice.roll(2);
    }
    let settings = SeedSettings::roll(&mut dice, models, &folder);
    if let Some(trace) = trace {
        trace.push(format!("{settings:?}"));
    }
    let scheduler = settings.scheduler(models, settings.model);
    let ran = scheduler.and_then(|scheduler| {
        let mut world = World {
            checker: EventChecker {
                lines: trace.is_some().then(Vec::new),
                ..EventChecker::default()
            },
            models,
            settings,
            folder: folder.clone(),
            dice,
            scheduler,
            rollback: None,
            now: Duration::ZERO,
            names: 0,
            trace: trace.take(),
        };
        let ran = world.run();
        *trace = world.trace.take();
        ran
    });
    let _ = std::fs::remove_dir_all(&folder);
    ran
}

impl World<'_> {
    fn run(&mut self) -> Check {
        for step in 0..self.settings.steps {
            let ran = self.act().and_then(|()| self.step());
            ran.map_err(|wrong| format!("step {step}: {wrong}"))?;
        }
        self.run_to_the_end()?;
        let rollback = self.rollback.take().map(|d| d.end(&mut self.scheduler));
        let rollback = rollback.transpose()?;
        self.check_tokens(rollback)?;
        self.check_nothing_is_left()
    }

    fn log(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(what());
        }
    }

    /// One or two random actions.
    fn act(&mut self) -> Check {
        for _ in 0..1 + self.dice.roll(2) {
            match (self.settings.kind, self.dice.roll(24)) {
                (Scenario::Sessions, 0..=7) => self.submit_turn()?,
                (Scenario::Sessions, 8..=9) => self.create()?,
                (Scenario::Sessions, 10..=13) => self.change_session()?,
                (Scenario::Sessions, 14) => self.fork()?,
                (Scenario::Sessions, 15) if one_in(&mut self.dice, 3) => self.delete()?,
                (Scenario::Sessions, 16) if one_in(&mut self.dice, 2) => self.restart()?,
                (Scenario::Sessions, 17) if one_in(&mut self.dice, 2) => {
                    self.log(|| "all sessions are suspended".to_owned());
                    self.scheduler.suspend_all();
                }
                (Scenario::Completions, 0..=3) => self.rollback()?,
                (_, 18) => self.invalid_completion()?,
                (_, 19 | 20) => self.cancel()?,
                (_, 21) => self.observe(),
                (Scenario::Sessions, 22 | 23) => self.submit()?,
                (Scenario::Sessions, _) => {}
                (_, 22) if one_in(&mut self.dice, 6) => self.restart()?,
                _ => self.submit()?,
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Check {
        // Short, long and hopeless steps for the portion.
        let took = pick(&mut self.dice, &[5, 30, 60, 1000, 1000]);
        self.now += Duration::from_millis(took);
        let faults_hit = self.faults_hit();
        if one_in(&mut self.dice, 2) {
            self.settings.files.catch_up();
        }
        let checker = &mut self.checker;
        let stepped =
            (self.scheduler).step(self.now, &mut |id, event| checker.check_event(id, event));
        if let Some(lines) = self.checker.lines.as_mut().map(std::mem::take) {
            let now = self.now.as_secs_f64();
            self.log(|| format!("{now:.3} s"));
            self.trace
                .iter_mut()
                .for_each(|trace| trace.extend(lines.iter().cloned()));
        }
        let fails = faults_hit != self.faults_hit();
        if let Err(error) = stepped
            && !fails
        {
            return Err(format!("a step failed: {error}"));
        }
        self.check(fails)
    }

    /// Injected failures so far.
    fn faults_hit(&self) -> usize {
        let disk = self
            .settings
            .disk
            .as_ref()
            .map_or(0, |disk| disk.failures());
        usize::from(self.settings.arena.struck()) + disk
    }

    /// What must hold after every step.
    fn check(&mut self, fails: bool) -> Check {
        if let Some(wrong) = self.checker.wrong.take() {
            return Err(wrong);
        }
        for why in std::mem::take(&mut self.checker.failed) {
            // A turn of a session that was deleted, or lost with a disk.
            let gone = |t: &ExpectedSession| {
                !t.exists && why.starts_with(&format!("session {}: ", t.name))
            };
            let is_gone = why.starts_with("there is no session")
                || self.checker.expected_sessions.iter().any(gone);
            if !fails && !is_gone {
                return Err(format!("a request failed: {why}"));
            }
        }
        audit(self.scheduler.runtime().store())?;
        let ledger = self.scheduler.runtime().ledger();
        if ledger.budget != self.settings.budget {
            return Err(format!("the budget is {:?}", ledger.budget));
        }
        let (waits, active) = (self.scheduler.waiting(), self.scheduler.active());
        let (completions, turns) = self.checker.count(RequestState::Queued);
        if waits != completions + turns || waits > self.settings.scheduler.queue {
            return Err(format!(
                "{waits} are in the queue, {completions} and {turns} wait"
            ));
        }
        let (completions, turns) = self.checker.count(RequestState::Running);
        // Turns that wait for their embedding are not in the batch.
        let is_known = (completions..=completions + turns).contains(&active);
        if !is_known || active > self.settings.scheduler.batch {
            return Err(format!(
                "{active} are active, {completions} and {turns} should be"
            ));
        }
        if let Some(id) = self.checker.overdue(self.now) {
            return Err(format!("{id:?} is overdue"));
        }
        self.check_seen()
    }

    /// Attention sees the facts and exactly the turns that are visible, whole.
    fn check_seen(&self) -> Check {
        let Some(sessions) = self.scheduler.sessions() else {
            return Ok(());
        };
        let store = self.scheduler.runtime().store();
        for expected in self.checker.expected_sessions.iter().filter(|t| t.exists) {
            let Some(id) = sessions.opened(&expected.name) else {
                continue;
            };
            let wrong = |what: String| Err(format!("{}: {what}", expected.name));
            if sessions.is_answering(id).unwrap_or(true) {
                continue;
            }
            let turns = sessions.turns(id).map_err(|e| e.to_string())?;
            let sequence = sessions.sequence(id).map_err(|e| e.to_string())?;
            let position = store.position(sequence).map_err(|e| e.to_string())?;
            let mut visible = BTreeSet::new();
            for turn in turns.iter().filter(|t| t.is_visible) {
                if turn.place != TurnPlace::Live {
                    return wrong(format!("{turn:?} is seen"));
                }
                visible.extend(turn.span.clone());
            }
            if let Some(turn) = turns.iter().find(|t| t.is_pinned && !t.is_visible) {
                return wrong(format!("{turn:?} is pinned"));
            }
            let held: BTreeSet<u64> = turns.iter().flat_map(|t| t.span.clone()).collect();
            for (layer, shape) in store.layers().iter().enumerate() {
                // Positions outside the window of the layer are not seen.
                let passed = shape.window.map_or(0, |w| position.saturating_sub(w - 1));
                let view = store.view(sequence, layer).map_err(|e| e.to_string())?;
                let mut seen = BTreeSet::new();
                for entry in view.entries() {
                    let shown = |i: &u32| entry.hidden >> i & 1 == 0;
                    let rows = (0..entry.rows).filter(shown);
                    seen.extend(rows.map(|i| entry.first_position + u64::from(i)));
                }
                // Facts lie between turns.
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

    fn cancels_after(&mut self) -> Option<usize> {
        one_in(&mut self.dice, 6).then(|| self.dice.roll(4))
    }

    fn submit(&mut self) -> Check {
        let request = random_completion(&mut self.dice, &self.settings, self.now);
        let cancels_after = self.cancels_after();
        let submitted = self.scheduler.submit(request.request());
        self.log(|| {
            let (n, max) = (request.prompt.len(), request.options.tokens_max);
            let rows = request.rows;
            format!("request of {n} and {max:?}, {rows:?}, cancels_after {cancels_after:?}: {submitted:?}")
        });
        match submitted {
            Ok(id) => {
                let completion =
                    ReferenceRequest::new(request, cancels_after, self.scheduler.runtime());
                if self.checker.completions.insert(id, completion).is_some() {
                    return Err(format!("{id:?} is taken already"));
                }
                Ok(())
            }
            Err(SubmitError::QueueFull(_))
                if self.scheduler.waiting() == self.settings.scheduler.queue =>
            {
                Ok(())
            }
            // More than the whole budget.
            Err(SubmitError::TooManyBytes { .. }) if self.settings.budget.is_some() => Ok(()),
            Err(SubmitError::Step(_)) if self.settings.budget.is_some() => Ok(()),
            Err(SubmitError::PromptTooLong { .. }) if self.settings.budget.is_some() => Ok(()),
            Err(SubmitError::PromptTooLong { .. })
                if request
                    .rows
                    .is_some_and(|rows| rows.when_longer == LongPrompt::Refuse) =>
            {
                Ok(())
            }
            // A window larger than the runtime's.
            Err(SubmitError::Step(_)) if self.settings.is_window() => Ok(()),
            Err(refused) => Err(format!("refused: {refused}")),
        }
    }

    fn invalid_completion(&mut self) -> Check {
        let request = invalid_completion(&mut self.dice, &self.settings, self.now);
        self.log(|| "an invalid request".to_owned());
        match self.scheduler.submit(request.request()) {
            Ok(_) => Err("an invalid request was taken".to_owned()),
            Err(_) => Ok(()),
        }
    }

    fn rollback(&mut self) -> Check {
        // It takes memory that was not promised to it.
        if self.settings.budget.is_some() || self.settings.may_fail {
            return self.submit();
        }
        if self.rollback.is_none() {
            self.rollback = Some(Rollback::new(&mut self.dice, &mut self.scheduler)?);
        }
        self.log(|| "rollback".to_owned());
        match &mut self.rollback {
            Some(rollback) => rollback.act(&mut self.dice, &mut self.scheduler),
            None => Ok(()),
        }
    }

    fn cancel(&mut self) -> Check {
        let there = |s: RequestState| matches!(s, RequestState::Queued | RequestState::Running);
        let completions = self
            .checker
            .completions
            .iter()
            .filter(|(_, g)| there(g.state));
        let turns = self.checker.turns.iter().filter(|(_, a)| there(a.state));
        let ids: Vec<RequestId> = completions
            .map(|g| *g.0)
            .chain(turns.map(|a| *a.0))
            .collect();
        if ids.is_empty() {
            return Ok(());
        }
        let id = pick(&mut self.dice, &ids);
        self.log(|| format!("{id:?} is cancelled"));
        self.scheduler.cancel(id).map_err(|e| e.to_string())?;
        if let Some(completion) = self.checker.completions.get_mut(&id) {
            completion.state = RequestState::Dropped;
        }
        if let Some(turn) = self.checker.turns.get_mut(&id) {
            match turn.state {
                RequestState::Queued => turn.state = RequestState::Dropped,
                // Its answer so far becomes part of the session.
                _ => turn.cancels_after = turn.cancels_after.or(Some(usize::MAX)),
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
        let words = self.scheduler.observe(heat, &reading, self.now);
        self.log(|| format!("heat {heat:?}, {mib} MiB: {words:?}"));
    }

    fn room(&self, mib: u64) -> Reading {
        let weights = self.scheduler.runtime().model().weights().bytes_per_token() as u64;
        Reading {
            cgroup: Some(Cgroup {
                limit_bytes: Some(weights + (mib << 20)),
                anon_bytes: Some(0),
                ..Cgroup::default()
            }),
            ..Reading::default()
        }
    }

    /// With nothing failing or short any more, all requests end.
    fn run_to_the_end(&mut self) -> Check {
        for _ in 0..STEPS_TO_END {
            if self.scheduler.is_idle() {
                let (completions, turns) = self.checker.count(RequestState::Running);
                return match completions + turns {
                    0 => Ok(()),
                    n => Err(format!("{n} requests got no last event")),
                };
            }
            let calm = self.room(200);
            self.scheduler
                .observe(Some(Thermal::Nominal), &calm, self.now);
            self.step()
                .map_err(|wrong| format!("at the end: {wrong}"))?;
        }
        let (waits, active) = (self.scheduler.waiting(), self.scheduler.active());
        Err(format!("{waits} wait and {active} run for ever"))
    }

    fn check_tokens(&mut self, rollback: Option<RollbackRecord>) -> Check {
        for (id, completion) in &self.checker.completions {
            reference_request::check_tokens(self.models, &self.settings, completion)
                .map_err(|wrong| format!("{id:?}: {wrong}"))?;
        }
        for completion in &self.checker.past {
            reference_request::check_tokens(self.models, &self.settings, completion)
                .map_err(|wrong| format!("before a restart: {wrong}"))?;
        }
        let dir = self.folder.join("alone");
        for expected in &self.checker.expected_sessions {
            expected_turns::check_tokens(self.models, &self.settings, expected, &dir)?;
        }
        match rollback {
            Some(rollback) => rollback.check_tokens(self.models, &self.settings),
            None => Ok(()),
        }
    }

    /// Nothing is left in memory or on disk.
    fn check_nothing_is_left(&mut self) -> Check {
        let faults_hit = self.faults_hit();
        self.check_records()?;
        self.scheduler.suspend_all();
        audit(self.scheduler.runtime().store())?;
        let names: Vec<String> = self.alive().map(|t| t.name.clone()).collect();
        for name in names {
            if let Err(error) = self.scheduler.delete_session(&name)
                && faults_hit == self.faults_hit()
            {
                return Err(format!("deleting {name}: {error}"));
            }
        }
        let left = self.scheduler.runtime().store().sequences().count();
        if left > 0 {
            return Err(format!("{left} sequences are left"));
        }
        let ledger = self.scheduler.runtime().ledger();
        if ledger.kv_live + ledger.kv_ahead + ledger.kv_promised > 0 {
            return Err(format!("bytes are left: {ledger:?}"));
        }
        let left = files(&self.folder.join("sessions"));
        match left.is_empty() || self.settings.disk.is_some() {
            true => Ok(()),
            false => Err(format!("files are left: {left:?}")),
        }
    }

    /// The saved turns of every session have the tokens of the chat template.
    fn check_records(&mut self) -> Check {
        let layout = ChatLayout::new(self.models.models[self.settings.model].clone());
        let expected_sessions: Vec<ExpectedSession> =
            self.alive().filter(|t| !t.is_lossy).cloned().collect();
        for expected in expected_sessions {
            let faults_hit = self.faults_hit();
            let views = self
                .scheduler
                .with_session(&expected.name, |_, sessions, id| {
                    let turns = sessions.turns(id)?.into_iter().map(|t| t.number);
                    let numbers: Vec<u64> = turns.collect();
                    let views = numbers.into_iter().map(|n| sessions.turn(id, n));
                    views.collect::<Result<Vec<_>, _>>()
                });
            let views = match views {
                Ok(views) => views,
                Err(_) if faults_hit != self.faults_hit() => continue,
                Err(error) => return Err(format!("{}: {error}", expected.name)),
            };
            let turns = expected.turns();
            let numbers: Vec<u64> = views.iter().map(|v| v.turn.number).collect();
            if numbers.len() != turns.len()
                || !turns.iter().map(|t| t.0).eq(numbers.iter().copied())
            {
                let right: Vec<u64> = turns.iter().map(|t| t.0).collect();
                return Err(format!(
                    "{}: turns {numbers:?}, not {right:?}",
                    expected.name
                ));
            }
            for (view, (number, turn)) in views.iter().zip(turns) {
                if view.tokens != turn_tokens(&layout, turn)? {
                    return Err(format!("{}: turn {number} has other tokens", expected.name));
                }
            }
        }
        Ok(())
    }

    fn alive(&self) -> impl Iterator<Item = &ExpectedSession> {
        self.checker.expected_sessions.iter().filter(|t| t.exists)
    }

    fn random_session(&mut self) -> Option<usize> {
        let expected_sessions = self.checker.expected_sessions.iter().enumerate();
        let alive: Vec<usize> = expected_sessions
            .filter(|(_, t)| t.exists)
            .map(|(i, _)| i)
            .collect();
        (!alive.is_empty()).then(|| pick(&mut self.dice, &alive))
    }

    fn text(&mut self, max: usize) -> String {
        let count = 1 + self.dice.roll(max);
        let words: Vec<&str> = (0..count).map(|_| pick(&mut self.dice, &WORDS)).collect();
        words.join(" ")
    }

    fn create(&mut self) -> Check {
        if self.alive().count() >= 4 {
            return self.submit_turn();
        }
        let name = self.name();
        let opening = pick(&mut self.dice, &OPENINGS);
        let faults_hit = self.faults_hit();
        let created = self.scheduler.create_session(&name, "", opening, 0);
        self.log(|| format!("create {name}: {created:?}"));
        match created {
            Ok(_) => {
                let saved = self.is_saved(&name);
                let mut expected = ExpectedSession::new(name, opening);
                expected.saved(saved);
                self.checker.expected_sessions.push(expected);
                Ok(())
            }
            Err(error) => self.may(error, faults_hit),
        }
    }

    /// Whether an open session is saved.
    fn is_saved(&self, name: &str) -> bool {
        let sessions = self.scheduler.sessions();
        let stats = sessions.and_then(|s| s.stats(self.scheduler.runtime(), s.opened(name)?).ok());
        stats.is_some_and(|stats| stats.unsaved.is_none())
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("ta{}", self.names)
    }

    /// Accepts errors that are right: no memory beside promises, an injected failure, a session that is answering.
    fn may(&self, error: SessionError, faults_hit: usize) -> Check {
        let is_short = error.is_cannot_fit();
        match error {
            _ if is_short && self.settings.budget.is_some() => Ok(()),
            _ if faults_hit != self.faults_hit() => Ok(()),
            SessionError::Answering { .. } | SessionError::PersistentFull { .. } => Ok(()),
            error => Err(error.to_string()),
        }
    }

    fn submit_turn(&mut self) -> Check {
        let Some(i) = self.random_session() else {
            return self.create();
        };
        let cancels_after = self.cancels_after();
        let request = TurnSpec {
            session: self.checker.expected_sessions[i].name.clone(),
            text: self.text(6),
            now_ms: 8,
            sample: random_sampling(&mut self.dice),
            options: GenerateOptions {
                tokens_max: pick(&mut self.dice, &[None, Some(2)]),
                ignore_end: !one_in(&mut self.dice, 4),
                ..GenerateOptions::default()
            },
            owner: (self.dice.roll(3) as u64).into(),
            deadline: one_in(&mut self.dice, 15).then(|| self.now + Duration::from_secs(4)),
        };
        let said = self.scheduler.submit(request.request());
        self.log(|| {
            format!(
                "turn of {}: {:?}, cancels_after {cancels_after:?}: {said:?}",
                request.session, request.text
            )
        });
        match said {
            Ok(id) => {
                let turns = ReferenceTurn::new(request, cancels_after);
                match self.checker.turns.insert(id, turns) {
                    None => Ok(()),
                    Some(_) => Err(format!("{id:?} is taken already")),
                }
            }
            Err(SubmitError::QueueFull(_))
                if self.scheduler.waiting() == self.settings.scheduler.queue =>
            {
                Ok(())
            }
            Err(refused) => Err(format!("a turn is refused: {refused}")),
        }
    }

    /// Adds facts; retracts, pins or recalls turns.
    fn change_session(&mut self) -> Check {
        let Some(i) = self.random_session() else {
            return Ok(());
        };
        let text = self.text(4);
        let (what, which) = (self.dice.roll(8), self.dice.roll(8));
        let name = self.checker.expected_sessions[i].name.clone();
        let faults_hit = self.faults_hit();
        let done = self.scheduler.with_session(&name, |runtime, sessions, id| {
            let before = visible(sessions, id)?;
            let op = change(runtime, sessions, id, what, which, &text)?;
            let stats = sessions.stats(runtime, id)?;
            let gone = before.difference(&visible(sessions, id)?).count();
            Ok((op, stats, gone))
        });
        self.log(|| format!("{name}: {done:?}"));
        match done {
            Ok((op, stats, gone)) => {
                let expected = &mut self.checker.expected_sessions[i];
                // A fact may evict a turn where there is no other room.
                expected.is_lossy |=
                    gone > 0 && matches!(op, Some(SessionOp::Fact(_) | SessionOp::Supersede(..)));
                expected.had_evictions |=
                    stats.hidden + stats.spilled + stats.ids + stats.forgotten > 0;
                expected.saved(stats.unsaved.is_none());
                expected.ops.extend(op);
                Ok(())
            }
            Err(error) => {
                let is_fact = what < 4;
                // The attempt to add a fact may have evicted a turn.
                let expected = &mut self.checker.expected_sessions[i];
                expected.is_lossy |= is_fact && self.settings.budget.is_some();
                self.may(error, faults_hit)
            }
        }
    }

    fn fork(&mut self) -> Check {
        let Some(i) = self.random_session() else {
            return Ok(());
        };
        if self.alive().count() >= 5 {
            return Ok(());
        }
        let name = self.name();
        let from = self.checker.expected_sessions[i].name.clone();
        let faults_hit = self.faults_hit();
        let forked = self.scheduler.fork_session(&from, &name);
        self.log(|| format!("fork {name} from {from}: {forked:?}"));
        match forked {
            Ok(_) => {
                let mut expected = self.checker.expected_sessions[i].clone();
                expected.name = name;
                // Recalls stay with the source.
                expected.forget_recalls();
                expected.saved(true);
                self.checker.expected_sessions.push(expected);
                Ok(())
            }
            Err(SessionError::Unsaved { .. }) if self.settings.disk.is_some() => Ok(()),
            Err(error) => self.may(error, faults_hit),
        }
    }

    fn delete(&mut self) -> Check {
        let Some(i) = self.random_session() else {
            return Ok(());
        };
        let name = self.checker.expected_sessions[i].name.clone();
        let faults_hit = self.faults_hit();
        let deleted = self.scheduler.delete_session(&name);
        self.log(|| format!("delete {name}: {deleted:?}"));
        let path = self.folder.join(format!("sessions/{name}.session"));
        match deleted {
            Ok(()) => {
                self.checker.expected_sessions[i].exists = false;
                match path.exists() {
                    true => Err(format!("{name} was deleted and has a file")),
                    false => Ok(()),
                }
            }
            Err(SessionError::NoSuchSession { .. })
                if self.checker.expected_sessions[i].is_unsaved =>
            {
                self.checker.expected_sessions[i].exists = false;
                Ok(())
            }
            Err(error) => {
                // It was suspended instead.
                let failed = faults_hit != self.faults_hit();
                let expected = &mut self.checker.expected_sessions[i];
                expected.is_lossy |= failed;
                expected.exists &= expected.was_saved || !failed;
                // Or its file is gone, but that is not durable.
                expected.exists &= path.exists() || !failed;
                self.may(error, faults_hit)
            }
        }
    }

    /// The process is killed, and another one goes on from the files.
    fn restart(&mut self) -> Check {
        self.log(|| "the process is killed".to_owned());
        self.settings.files.crash();
        self.checker.drop_all();
        self.rollback = None;
        if self.settings.kind == Scenario::Sessions
            && self.settings.disk.is_none()
            && !self.settings.may_fail
        {
            match self.dice.roll(5) {
                0 if self.settings.model == 0 => self.serve_another_model()?,
                1 => self.mix_up_files()?,
                2 | 3 => self.fail_to_restore()?,
                _ => {}
            }
        }
        // Releases the locks of files.
        let idle = self.settings.idle_scheduler(self.models)?;
        drop(std::mem::replace(&mut self.scheduler, idle));
        self.scheduler = self.settings.scheduler(self.models, self.settings.model)?;
        for expected in self
            .checker
            .expected_sessions
            .iter_mut()
            .filter(|t| t.exists)
        {
            expected.is_lossy |= expected.is_unsaved;
            expected.ops.push(SessionOp::Reopen);
            let path = self
                .folder
                .join(format!("sessions/{}.session", expected.name));
            if expected.was_saved && !path.exists() {
                return Err(format!("{} was saved and has no file", expected.name));
            }
            // A session that was never saved is gone.
            expected.exists = expected.was_saved;
        }
        Ok(())
    }

    /// A process with another model of the same shape: no rows of one get into the other.
    fn serve_another_model(&mut self) -> Check {
        self.log(|| "another model".to_owned());
        let idle = self.settings.idle_scheduler(self.models)?;
        drop(std::mem::replace(&mut self.scheduler, idle));
        let mut scheduler = self.settings.scheduler(self.models, OTHER)?;
        for expected in self.alive() {
            match scheduler.with_session(&expected.name, |_, _, _| Ok(())) {
                Err(SessionError::Identity { what: "model", .. }) => {}
                other => return Err(format!("{} with another model: {other:?}", expected.name)),
            }
        }
        let mut checker = EventChecker::default();
        for opening in OPENINGS {
            let name = self.name();
            match scheduler.create_session(&name, "", opening, 0) {
                Ok(_) => checker
                    .expected_sessions
                    .push(ExpectedSession::new(name, opening)),
                Err(error) => return Err(format!("another model: {error}")),
            }
        }
        let mut turns = Vec::new();
        for expected in &checker.expected_sessions {
            let request = TurnSpec {
                session: expected.name.clone(),
                text: "egg".to_owned(),
                ..TurnSpec::default()
            };
            turns.push(request);
        }
        for request in turns {
            let id = scheduler
                .submit(request.request())
                .map_err(|e| e.to_string())?;
            checker.turns.insert(id, ReferenceTurn::new(request, None));
            while !scheduler.is_idle() {
                self.settings.files.catch_up();
                let stepped =
                    scheduler.step(self.now, &mut |id, event| checker.check_event(id, event));
                stepped.map_err(|e| e.to_string())?;
            }
        }
        checker.wrong.map_or(Ok(()), Err)?;
        if !checker.failed.is_empty() {
            return Err(format!("another model: {:?}", checker.failed));
        }
        let form = self.settings.form;
        let mut expected_sessions = checker.expected_sessions.iter();
        let checked = expected_sessions
            .try_for_each(|t| expected_turns::check_as_list(self.models, OTHER, form, t));
        checked.map_err(|wrong| format!("another model: {wrong}"))?;
        for expected in &checker.expected_sessions {
            scheduler
                .delete_session(&expected.name)
                .map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// A process whose allocations fail while it opens sessions: it reports that, and keeps nothing of them.
    fn fail_to_restore(&mut self) -> Check {
        let names: Vec<String> = self.alive().map(|t| t.name.clone()).collect();
        let idle = self.settings.idle_scheduler(self.models)?;
        drop(std::mem::replace(&mut self.scheduler, idle));
        let nth = 1 + self.dice.roll(6) as u64;
        self.log(|| format!("allocation {nth} fails"));
        let faults = ArenaFaults::fail_nth(nth);
        let mut settings = self.settings.clone();
        settings.arena = faults.clone();
        let mut scheduler = settings.scheduler(self.models, settings.model)?;
        for name in names {
            let faults_hit = faults.struck();
            let opened = scheduler.with_session(&name, |_, _, _| Ok(()));
            if let Err(error) = opened
                && faults_hit == faults.struck()
            {
                return Err(format!("{name}: {error}"));
            }
            scheduler.suspend_all();
            audit(scheduler.runtime().store())?;
            let left = scheduler.runtime().store().sequences().count();
            if left > 0 {
                return Err(format!("{left} sequences are left of {name}"));
            }
        }
        Ok(())
    }

    /// Files are swapped between two names: neither is read.
    fn mix_up_files(&mut self) -> Check {
        let names: Vec<String> = self.alive().map(|t| t.name.clone()).collect();
        let [one, two, ..] = &names[..] else {
            return Ok(());
        };
        self.log(|| format!("{one} and {two} are mixed up"));
        let idle = self.settings.idle_scheduler(self.models)?;
        drop(std::mem::replace(&mut self.scheduler, idle));
        let path = |name: &str| self.folder.join(format!("sessions/{name}.session"));
        let swap = || -> std::io::Result<()> {
            let aside = self.folder.join("aside");
            std::fs::rename(path(one), &aside)?;
            std::fs::rename(path(two), path(one))?;
            std::fs::rename(&aside, path(two))
        };
        swap().map_err(|e| e.to_string())?;
        let mut scheduler = self.settings.scheduler(self.models, self.settings.model)?;
        for name in [one, two] {
            match scheduler.with_session(name, |_, _, _| Ok(())) {
                Err(SessionError::Identity {
                    what: "session", ..
                }) => {}
                other => {
                    return Err(format!(
                        "{name} was opened from another session's file: {other:?}"
                    ));
                }
            }
        }
        drop(scheduler);
        swap().map_err(|e| e.to_string())
    }
}

/// One change of a session, if there is something to change.
fn change(
    runtime: &mut Runtime,
    sessions: &mut Sessions,
    id: SessionId,
    what: usize,
    which: usize,
    text: &str,
) -> Result<Option<SessionOp>, SessionError> {
    let facts: Vec<u64> = sessions.facts(id)?.iter().map(|f| f.number).collect();
    let fact = facts[which % facts.len()];
    let turns: Vec<(u64, bool, bool)> = (sessions.turns(id)?.iter())
        .map(|t| (t.number, t.is_pinned, t.place == TurnPlace::Live))
        .collect();
    let turn = turns.get(which % turns.len().max(1)).copied();
    Ok(match (what, turn) {
        (0 | 1, _) => {
            sessions.add_fact(runtime, id, text, 8)?;
            Some(SessionOp::Fact(text.to_owned()))
        }
        (2, _) if fact > 0 => {
            sessions.supersede(runtime, id, fact, text, 8)?;
            Some(SessionOp::Supersede(fact, text.to_owned()))
        }
        (3, _) if fact > 0 => {
            sessions.revoke(runtime, id, fact)?;
            Some(SessionOp::Revoke(fact))
        }
        (4, _) => sessions.retract(runtime, id)?.map(|_| SessionOp::Retract),
        (5, Some((turn, is_pinned, is_live))) => {
            let others = turns.iter().any(|t| t.1 && t.0 != turn);
            if others || !is_live {
                return Ok(None);
            }
            match sessions.pin(runtime, id, turn, !is_pinned) {
                // A long one is more than its share.
                Err(SessionError::TooMuchPinned { .. }) => None,
                pinned => {
                    pinned?;
                    Some(SessionOp::Pin(turn, !is_pinned))
                }
            }
        }
        (6 | 7, Some((turn, ..))) => {
            sessions.recall(id, turn)?;
            Some(SessionOp::Recall(turn))
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
