//! What a seed decides before the first step: the model, the KV form, the budget, and which calls fail.

use crate::common::Dice;
use crate::models::{FORMS, MODELS, Make, Models, OTHER, QuickEncoder, one_in, pick};
use haversack_conversations::scheduler::{Scheduler, SchedulerOptions};
use haversack_conversations::session::condense::{
    Condense, CondenseError, CondenseRequest, Condensed,
};
use haversack_conversations::session::{SessionOptions, SessionSettings, Sessions};
use haversack_engine::runtime::options::Slabs;
use haversack_engine::{Policy, Retention, Runtime};
use haversack_testing::{ArenaFaults, DiskFault, JournalFaults};
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Completions, and a sequence that speculates.
    Completions,
    /// Sessions, and completions between their turns.
    Sessions,
    /// Completions with windows that follow the device.
    Windows { anchors: usize, window: usize },
}

#[derive(Clone, Debug)]
pub struct SeedSettings {
    pub kind: Scenario,
    pub model: usize,
    pub form: usize,
    pub budget: Option<usize>,
    pub scheduler: SchedulerOptions,
    chunk: Option<usize>,
    slab_bytes: usize,
    /// The arena call that fails, counted over all runtimes of the seed.
    pub arena: ArenaFaults,
    /// `arena` has one.
    pub may_fail: bool,
    /// Calls to the disk that fail.
    pub disk: Option<JournalFaults>,
    /// How files are written: a save ends when [`JournalFaults::catch_up`] lets it.
    pub files: JournalFaults,
    pub sessions: SessionOptions,
    pub has_encoder: bool,
    pub steps: usize,
}

impl SeedSettings {
    pub fn roll(dice: &mut Dice, models: &Models, folder: &Path) -> SeedSettings {
        let kind = match dice.roll(8) {
            0..=2 => Scenario::Completions,
            3..=6 => Scenario::Sessions,
            _ => Scenario::Windows {
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
            true => ArenaFaults::fail_nth(1 + dice.roll(60) as u64),
            false => ArenaFaults::never(),
        };
        let disk = (kind == Scenario::Sessions && one_in(dice, 5)).then(|| {
            let fault = pick(dice, &[DiskFault::Full, DiskFault::Broken]);
            JournalFaults::burst(1 + dice.roll(120), 1 + dice.roll(6), fault)
        });
        let files = disk.clone().unwrap_or_else(JournalFaults::never).late();
        let prefix_dir = one_in(dice, 2).then(|| folder.join("prefixes"));
        let mut settings = SeedSettings {
            kind,
            model,
            form: dice.roll(FORMS),
            budget: None,
            scheduler: SchedulerOptions {
                batch: 1 + dice.roll(5),
                owner_batch: usize::MAX,
                queue: pick(dice, &[3, 8, 64]),
                reuse: pick(dice, &[0, 1, 5]),
                // The runtime's own, below.
                chunk: usize::MAX,
            },
            chunk: pick(dice, &[None, Some(17), Some(64), Some(200), Some(200)]),
            slab_bytes: pick(dice, &[1, 4 << 10, 16 << 10]),
            arena,
            may_fail,
            sessions: SessionOptions {
                settings: SessionSettings {
                    capacity: Some(pick(dice, &[128, 160])),
                    persistent_max: Some(96),
                    answer_max: Some(6),
                    ..SessionSettings::default()
                },
                dir: Some(folder.join("sessions")),
                prefix_dir,
                last: 1 + dice.roll(2),
                reread_max: 64,
                journal_io: Some(files.io()),
                ..SessionOptions::default()
            },
            disk,
            files,
            has_encoder: one_in(dice, 2),
            steps: 15 + dice.roll(35),
        };
        if !one_in(dice, 3) {
            settings.budget = Some(settings.tight(dice, models));
        }
        settings
    }

    /// A budget for a few of the largest requests, and hardly more.
    fn tight(&self, dice: &mut Dice, models: &Models) -> usize {
        let free = self.runtime_with(models, None).unwrap();
        let (rows, beside) = match self.kind {
            Scenario::Completions => (128, 0),
            Scenario::Windows { anchors, window } => (anchors + window + 32, 0),
            // With facts, and the lists of four sessions.
            Scenario::Sessions => (
                96 + 48 + self.sessions.settings.capacity.unwrap() + 256,
                4 * (20 << 10),
            ),
        };
        let one = free.sequence_bytes(rows);
        let ledger = free.ledger();
        let kept = ledger.side + ledger.tables + free.scratch_bytes_counting(2, 0, 64, rows);
        // A session that the budget alone forces to evict would differ from its reference without a budget.
        let first = match self.kind {
            Scenario::Sessions => 6,
            _ => 4,
        } + dice.roll(12);
        for quarters in first..64 {
            let budget = kept + beside + one * quarters / 4 + 2048;
            let Ok(runtime) = self.runtime_with(models, Some(budget)) else {
                continue;
            };
            let fits = match self.kind {
                Scenario::Sessions => Sessions::new(&runtime, self.sessions.clone()).is_ok(),
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
            Scenario::Windows { anchors, window } => Some((anchors, window)),
            _ => None,
        }
    }

    pub fn retention(&self) -> Retention {
        match self.kind {
            Scenario::Completions => Retention::full(),
            Scenario::Sessions => Retention::managed(),
            Scenario::Windows { anchors, window } => Retention {
                policy: Policy::Window,
                anchors: Some(anchors),
                window: Some(window),
                ..Retention::default()
            },
        }
    }

    fn runtime_with(&self, models: &Models, budget: Option<usize>) -> Result<Runtime, String> {
        self.runtime_of(models, self.model, budget, None)
    }

    fn runtime_of(
        &self,
        models: &Models,
        model: usize,
        budget: Option<usize>,
        faults: Option<ArenaFaults>,
    ) -> Result<Runtime, String> {
        models.runtime(&Make {
            model,
            form: self.form,
            retention: self.retention(),
            budget,
            chunk: self.chunk,
            slabs: Slabs {
                bytes: Some(self.slab_bytes),
                io: faults.map(|faults| faults.io()),
            },
        })
    }

    /// A process with this model.
    pub fn scheduler(&self, models: &Models, model: usize) -> Result<Scheduler, String> {
        let runtime = self.runtime_of(models, model, self.budget, Some(self.arena.clone()))?;
        let sessions = match self.kind {
            Scenario::Sessions => Some(self.sessions(&runtime)?),
            _ => None,
        };
        let scheduler = Scheduler::new(runtime, self.scheduler);
        Ok(match sessions {
            Some(sessions) => scheduler.with_sessions(sessions),
            None => scheduler,
        })
    }

    /// A process without sessions, which has no file open.
    pub fn idle_scheduler(&self, models: &Models) -> Result<Scheduler, String> {
        Ok(Scheduler::new(
            self.runtime_with(models, None)?,
            self.scheduler,
        ))
    }

    pub fn sessions(&self, runtime: &Runtime) -> Result<Sessions, String> {
        self.sessions_in(runtime, self.sessions.clone())
    }

    /// For reference answers: in its own folder, on a disk that works.
    pub fn sessions_alone(&self, runtime: &Runtime, dir: PathBuf) -> Result<Sessions, String> {
        let options = SessionOptions {
            dir: Some(dir),
            prefix_dir: None,
            journal_io: None,
            ..self.sessions.clone()
        };
        self.sessions_in(runtime, options)
    }

    fn sessions_in(&self, runtime: &Runtime, options: SessionOptions) -> Result<Sessions, String> {
        let sessions = Sessions::new(runtime, options).map_err(|e| e.to_string())?;
        let sessions = sessions.with_condenser(Arc::new(NoCondenser));
        Ok(match self.has_encoder {
            true => sessions.with_encoder(Arc::new(QuickEncoder)),
            false => sessions,
        })
    }
}

/// Condenses nothing: the thread that judges would end at a step that no seed determines.
struct NoCondenser;

impl Condense for NoCondenser {
    fn condense(&self, _: &CondenseRequest<'_>) -> Result<Condensed, CondenseError> {
        Err(CondenseError::Died)
    }
}
