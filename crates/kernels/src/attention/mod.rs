//! Attention over blocks of keys and values.
//!
//! It computes, for each query row and head: scores against every slot the query may see, their
//! softmax, the weighted sum of the values; and optionally how much attention each slot got ([`Mass`]).
//! It neither ropes nor projects, stores nothing and knows no session; it reads blocks through
//! [`KvView`].
//!
//! # The order of every sum
//!
//! A *span* is the blocks of 256 positions, counted from position 0, so that it holds the same blocks
//! whether or not the blocks before it were evicted. A *group* is the dimensions that share a scale. For
//! one query row and head:
//!
//! ```text
//! q             the query of the block's segment, in the blocks' basis, times the scale
//! bias          q · mean: sixteen lanes of fused multiply-adds and their tree; 0 without a mean
//! score[slot]   codes    quantised q times levels, exact, rounded to f32 for each group; groups in
//!                        order, the first times its scale, the others fused: sum * scale + score;
//!                        then fused: score * row scale of q + bias
//!               floats   fused multiply-adds over dimensions, in order from 0; plus bias
//!               sinks    sixteen lanes of fused multiply-adds and their tree; plus bias
//! m             the greatest score
//! p[slot]       exp(score - m), 0 where the query must not look or the slot is hidden
//! sum           per span: sixteen lanes and their tree; spans added in order from 0
//! o[dim]        per span, from 0: sinks, fused multiply-adds in order; then forms in order,
//!               codes    quantised p * scale[group of dim] times levels, exact over the blocks of
//!                        the form, rounded to f32; fused: sum * row scale + o
//!               floats   fused multiply-adds over slots, in order
//!               spans added in order from 0
//! out           o * (1 / sum), in the model's basis
//! ```
//!
//! A quantised row is integers and one *row scale*: [`kernel`] says how it is rounded.
//!
//! Nothing in this depends on other rows, on how rows were grouped, on the thread count or on which
//! of the two paths ran. The form in which a query sees a block depends only on the query's
//! block of 32 positions, and no unit crosses one. A slot that a query must not see, because of its
//! position or because it is hidden ([`Block::hidden`]), adds an exact zero, so skipping blocks and
//! spans that no query sees changes no bit.
//!
//! # Two paths
//!
//! *Tiles*: a unit is some queries of one KV head from first to last step ([`tile`]). *Split*: one
//! query at depth: scores, values and the rest are three regions whose units are single spans with all
//! their heads, so that memory is read in its order ([`split`]).

mod block;
mod cast;
mod job;
mod kernel;
mod query;
mod scratch;
mod span;
mod split;
mod step;
mod tile;

pub use crate::format::kv::BLOCK_SLOTS;
pub use block::{Block, Coded, KvView, Sinks};
pub use job::{AttentionJob, Mass, MassStatistic, SPAN_BLOCKS, SPAN_SLOTS, SoftmaxSum};
pub use scratch::{AttentionLimits, AttentionScratch};

use crate::Exec;

/// Spans from which splitting pays for its three regions.
const SPLIT_SPANS: usize = 3;

/// Attention of all sequences of a batch. Never allocates: `scratch` was reserved for these jobs.
pub fn attend(exec: Exec<'_>, scratch: &mut AttentionScratch, jobs: &mut [AttentionJob<'_>]) {
    for job in jobs.iter() {
        job.check();
    }
    let at_once = scratch.jobs_max();
    for jobs in jobs.chunks_mut(at_once) {
        if prefers_split(jobs) && scratch.fits_split(jobs) {
            split::run(exec, scratch, jobs);
        } else {
            tile::run(exec, scratch, jobs);
        }
    }
}

/// Single queries at depth. Changes how long a step takes, never its bits.
fn prefers_split(jobs: &[AttentionJob<'_>]) -> bool {
    let spans = jobs.iter().map(AttentionJob::spans).max().unwrap_or(0);
    spans >= SPLIT_SPANS && jobs.iter().all(|job| job.rows() == 1)
}
