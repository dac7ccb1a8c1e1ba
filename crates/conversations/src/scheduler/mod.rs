//! Many at once: requests wait until their bytes can be promised, then share every pass over the weights.
//!
//! ```text
//! Scheduler::submit, say ─► queue ─► (bytes promised) ─► active ─► step ─► … ─► done, or saved
//!                       who enters                  plan: who reads, who decodes
//! ```
//!
//! [`queue`], [`plan`] and [`long`] decide and are pure; [`picture`] shows the memory; [`Scheduler`] takes, and the house behind it has the runtime and the
//! sessions and carries out. What a request says does not depend on who else is
//! there, when it entered, or how its prompt was portioned.

pub mod desk;
mod house;
mod job;
pub mod ladder;
pub mod long;
mod past;
pub mod picture;
pub mod plan;
pub mod queue;
pub mod strip;

pub use desk::{
    Held, Request, RequestEvent, RequestId, Scheduler, SchedulerOptions, SubmitError, TurnRequest,
};
pub use ladder::{Ladder, Limits, Rung};
pub use long::{Long, Rows};
pub use past::Reuse;
pub use picture::{Picture, Sight};
pub use plan::{Pace, Priority};
