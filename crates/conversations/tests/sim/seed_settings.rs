//! What a seed decides before anything happens: the model, how it keeps its rows, how little memory there is, who fails.

use crate::common::Dice;
use crate::models::{FORMS, MODELS, Make, OTHER, Quick, Stage, one_in, pick};
use haversack_conversations::scheduler::{Scheduler, SchedulerOptions};
use haversack_conversations::session::{SessionOptions, Sessions};
use haversack_engine::runtime::options::Slabs;
use haversack_engine::{Policy, Retention, Runtime};
use haversack_memory::{Faults, journal};
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Requests, and somebody who drafts.
    Requests,
    /// Conversations, and requests between them.
    Talks,
    /// Requests over windows that follow the device.
    Windows { anchors: usize, window: usize },
}

#[derive(Clone, Debug)]
pub struct Setting {
    pub kind: Kind,
    pub model: usize,
    pub form: usize,
    pub budget: Option<usize>,
    pub desk: SchedulerOptions,
    chunk: Option<usize>,
    slab_bytes: usize,
    /// The arena call that fails, counted over all runtimes of the seed.
    pub arena: Faults,
    /// There is one.
    pub may_fail: bool,
    /// Calls to the disk that fail.
    pub disk: Option<journal::Faults>,
    pub sessions: SessionOptions,
    pub is_judged: bool,
    pub steps: usize,
}

impl Setting {
    pub fn roll(dice: &mut Dice, stage: &Stage, folder: &Path) -> Setting {
        let kind = match dice.roll(8) {
            0..=2 => Kind::Requests,
            3..=6 => Kind::Talks,
            _ => Kind::Windows {
                anchors: pick(dice, &[0, 4, 40]),
                window: 65 + dice.roll(80),
            },
        };
        let model = match dice.roll(MODELS) {
            OTHER => 0,
            model => model,
        };
        let may_fail = one_in(dice, 4);
        let arena = match may_fail {
            true => Faults::fail_nth(1 + dice.roll(60) as u64),
            false => Faults::never(),
        };
        let disk = (kind == Kind::Talks && one_in(dice, 5)).then(|| {
            let blow = pick(dice, &[journal::Blow::Full, journal::Blow::Broken]);
            journal::Faults::burst(1 + dice.roll(120), 1 + dice.roll(6), blow)
        });
        let prefix_dir = one_in(dice, 2).then(|| folder.join("prefixes"));
        let mut setting = Setting {
            kind,
            model,
            form: dice.roll(FORMS),
            budget: None,
            desk: SchedulerOptions {
                batch: 1 + dice.roll(5),
                queue: pick(dice, &[3, 8, 64]),
                reuse: pick(dice, &[0, 1, 5]),
                // As the runtime has it, below.
                chunk: usize::MAX,
            },
            chunk: pick(dice, &[None, Some(17), Some(64), Some(200), Some(200)]),
            slab_bytes: pick(dice, &[1, 4 << 10, 16 << 10]),
            arena,
            may_fail,
            sessions: SessionOptions {
                dir: Some(folder.join("sessions")),
                prefix_dir,
                capacity: pick(dice, &[128, 160]),
                persistent_max: 96,
                answer_max: 6,
                last: 1 + dice.roll(2),
                reread_max: 64,
                faults: disk.clone(),
                ..SessionOptions::default()
            },
            disk,
            is_judged: one_in(dice, 2),
            steps: 15 + dice.roll(35),
        };
        if !one_in(dice, 3) {
            setting.budget = Some(setting.tight(dice, stage));
        }
        setting
    }

    /// Room for so many of the largest there may be, and hardly more.
    fn tight(&self, dice: &mut Dice, stage: &Stage) -> usize {
        let free = self.runtime_with(stage, None).unwrap();
        let (rows, beside) = match self.kind {
            Kind::Requests => (128, 0),
            Kind::Windows { anchors, window } => (anchors + window + 32, 0),
            // What is told beside turns, and lists of four sessions.
            Kind::Talks => (96 + 48 + self.sessions.capacity + 256, 4 * (20 << 10)),
        };
        let one = free.sequence_bytes(rows);
        let ledger = free.ledger();
        let kept = ledger.side + ledger.tables + free.scratch_bytes(2, 64, rows);
        // A conversation that is cut short by the budget itself says something else than with all the memory there is.
        let first = match self.kind {
            Kind::Talks => 6,
            _ => 4,
        } + dice.roll(12);
        for quarters in first..64 {
            let budget = kept + beside + one * quarters / 4 + 2048;
            let Ok(runtime) = self.runtime_with(stage, Some(budget)) else {
                continue;
            };
            let fits = match self.kind {
                Kind::Talks => Sessions::new(&runtime, self.sessions.clone())
                    .is_ok_and(|s| s.options().capacity == self.sessions.capacity),
                _ => true,
            };
            if fits {
                return budget;
            }
        }
        kept + beside + 16 * one
    }

    pub fn is_window(&self) -> bool {
        self.window().is_some()
    }

    pub fn window(&self) -> Option<(usize, usize)> {
        match self.kind {
            Kind::Windows { anchors, window } => Some((anchors, window)),
            _ => None,
        }
    }

    pub fn retention(&self) -> Retention {
        match self.kind {
            Kind::Requests => Retention::full(),
            Kind::Talks => Retention::managed(),
            Kind::Windows { anchors, window } => Retention {
                policy: Policy::Window,
                anchors: Some(anchors),
                window: Some(window),
                ..Retention::default()
            },
        }
    }

    fn runtime_with(&self, stage: &Stage, budget: Option<usize>) -> Result<Runtime, String> {
        self.runtime_of(stage, self.model, budget, None)
    }

    fn runtime_of(
        &self,
        stage: &Stage,
        model: usize,
        budget: Option<usize>,
        faults: Option<Faults>,
    ) -> Result<Runtime, String> {
        stage.runtime(&Make {
            model,
            form: self.form,
            retention: self.retention(),
            budget,
            chunk: self.chunk,
            slabs: Slabs {
                bytes: Some(self.slab_bytes),
                faults,
            },
        })
    }

    /// A process that serves this model.
    pub fn desk(&self, stage: &Stage, model: usize) -> Result<Scheduler, String> {
        let runtime = self.runtime_of(stage, model, self.budget, Some(self.arena.clone()))?;
        let sessions = match self.kind {
            Kind::Talks => Some(self.sessions(&runtime)?),
            _ => None,
        };
        let desk = Scheduler::new(runtime, self.desk);
        Ok(match sessions {
            Some(sessions) => desk.with_sessions(sessions),
            None => desk,
        })
    }

    /// A process that does nothing and has no file open.
    pub fn idle_desk(&self, stage: &Stage) -> Result<Scheduler, String> {
        Ok(Scheduler::new(self.runtime_with(stage, None)?, self.desk))
    }

    pub fn sessions(&self, runtime: &Runtime) -> Result<Sessions, String> {
        self.sessions_in(runtime, self.sessions.clone())
    }

    /// For whoever computes alone: files of its own, on a disk that works.
    pub fn sessions_alone(&self, runtime: &Runtime, dir: PathBuf) -> Result<Sessions, String> {
        let options = SessionOptions {
            dir: Some(dir),
            prefix_dir: None,
            faults: None,
            ..self.sessions.clone()
        };
        self.sessions_in(runtime, options)
    }

    fn sessions_in(&self, runtime: &Runtime, options: SessionOptions) -> Result<Sessions, String> {
        let sessions = Sessions::new(runtime, options).map_err(|e| e.to_string())?;
        Ok(match self.is_judged {
            true => sessions.with_encoder(Arc::new(Quick)),
            false => sessions,
        })
    }
}
