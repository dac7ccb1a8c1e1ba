//! Conversations that last: a session has a persistent stream that stays in memory, turns that come and go, and a file
//! that survives the process.
//!
//! A session is one sequence of the cache whose positions only grow, and a transcript that says which positions are facts
//! and which are turns. Nothing is cut out of the sequence: rows that an answer should not see are hidden, hidden rows
//! that are saved may be dropped, and dropped rows can be mounted at their old positions.
//!
//! ```text
//! positions   0 ─────────── opening ┬ turn 0 ┬ turn 1 ┬ fact ┬ turn 2 ┬ …
//! persistent  ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓│        │        │▓▓▓▓▓▓│        │    always visible, condensed when it is long
//! ephemeral                         │spilled │ hidden │      │ visible│    its capacity in memory, the rest in the file
//! ```
//!
//! The life of a session: [`Sessions`] creates it, or resumes it from its file, and gives it a [`SessionId`]. The opening
//! comes from a file that all sessions with the same opening share (`prefix`). A question begins a [`TurnInProgress`]:
//! [`plan`] and [`relevance`] decide which turns the answer sees, the residency hides, spills and mounts rows, and the
//! answer is generated, by [`Sessions::say`] or in the scheduler's batch. [`Sessions::end`] adds question and answer to
//! the transcript and appends them to the session's log; dropping the turn undoes it. A persistent stream over its limit
//! is condensed in the background (`rebuild`). Suspending closes the session; its file has everything.
//!
//! What this is not: it neither steps a model nor batches ([`haversack_engine::runtime`] does), and reads no clock; the
//! caller passes the time.
//!
//! Invariants: a turn is visible, hidden, spilled or forgotten as a whole; the opening, facts that hold and the latest
//! turns are visible at every step; a turn that was reported as saved is saved; a session that cannot save reports it and
//! goes on; an error in the middle of a turn leaves the session as it was before.
//!
//! ```no_run
//! use haversack_engine::runtime::GenerateOptions;
//! use haversack_engine::sample::{SampleOptions, Sampler};
//! use haversack_conversations::session::{SessionOptions, Sessions};
//! use haversack_engine::{LoadOptions, Model, Retention, Runtime, RuntimeOptions};
//! use std::ops::ControlFlow;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::load("model.gguf".as_ref(), &LoadOptions::default(), &mut |_, _| ())?;
//! let retention = Retention::managed();
//! let mut runtime = Runtime::new(model, &RuntimeOptions { retention, ..Default::default() })?;
//! let options = SessionOptions { dir: Some("sessions".into()), ..Default::default() };
//! let mut sessions = Sessions::new(&runtime, options)?;
//! let anna = sessions.create(&mut runtime, "anna", "You answer in one sentence.", 0)?;
//! let mut sampler = Sampler::new(SampleOptions::default())?;
//! let answer = sessions.say(
//!     &mut runtime, anna, "My cat is called Miso.", 0, &mut sampler, &GenerateOptions::default(),
//!     &mut |_| ControlFlow::Continue(()),
//! )?;
//! println!("{} ({})", answer.text, answer.context.plan);
//! sessions.suspend(&mut runtime, anna)?;
//! let anna = sessions.resume(&mut runtime, "anna")?;
//! # let _ = anna;
//! # Ok(())
//! # }
//! ```

pub mod condense;
mod condensing;
pub mod date;
mod embed;
mod error;
pub mod export;
mod files;
mod folder;
mod grants;
mod identity;
pub mod inspect;
pub mod layout;
pub mod limits;
mod log;
pub mod names;
mod open_session;
mod options;
mod owner;
pub mod paged_vec;
mod parts;
pub mod plan;
mod prefix;
mod ranking;
mod reading;
mod rebuild;
mod recall;
pub mod record;
pub mod relevance;
mod replay;
pub mod report;
mod residency;
pub mod scoring;
pub mod search;
mod sessions;
mod slots;
mod stems;
mod texts;
mod transcript;
mod turn;
mod turn_index;
pub mod turns;
mod undo;
pub mod words;

pub(crate) use condensing::{AWAITED_TOKENS_MAX, RebuildShare};
pub use condensing::{CondenseOutcome, RebuildError, RebuildProgress, STEP_TOKENS_MAX};
pub(crate) use embed::embed_later;
pub use embed::{Embed, QuestionEmbedding};
pub use error::{SessionError, SessionResult, SharedError};
pub use folder::{RemovalCause, RemovedSession, SessionFolder};
pub use identity::Identity;
pub use limits::{CapacityChange, LimitError, SessionLimits, SessionSettings};
pub(crate) use open_session::ResumeMode;
pub use options::{FolderLimits, SessionOptions};
pub use owner::{Owner, Requester, SessionName};
pub use prefix::{PrefixError, PrefixProblem, PrefixStats};
pub use reading::{BegunRead, ReadInProgress, SessionRead};
pub use report::{
    ContextReport, FactView, ListedSession, SessionCounters, SessionReport, SessionStats,
    TurnAnswer, TurnReport, TurnView,
};
pub use scoring::{Rank, RankedQuestion, Ranking};
pub use sessions::Sessions;
pub use slots::SessionId;
pub use texts::{HISTORY_TOKENS_MAX, HISTORY_TURNS_MAX, Opening, SessionTexts, ToldText, ToldTurn};
pub use turn::{AskedQuestion, EndedTurn, TurnInProgress};
