//! The rows a sequence may keep, from budget, context and options. Pure; the one place that finds out that something
//! cannot fit before anything is computed.

use super::options::{Policy, Retention};
use haversack_cache::size::largest_that_fits;
use haversack_kernels::attention::BLOCK_SLOTS;

/// What a sequence may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub policy: Policy,
    /// Rows at most, in the fullest layer.
    pub rows_max: usize,
    /// First tokens that are never evicted.
    pub anchors: usize,
    /// Last tokens that are kept; `None`: nothing is evicted, and `rows_max` is the end.
    pub window: Option<usize>,
}

impl Bounds {
    /// Tokens after which a sequence ends; `None` where rows are evicted in time.
    pub fn end(&self) -> Option<usize> {
        let ends = self.window.is_none() && self.policy != Policy::Streams;
        ends.then_some(self.rows_max)
    }

    pub fn policy_name(&self) -> &'static str {
        match (self.policy, self.window) {
            (Policy::Streams, _) => Policy::Streams.name(),
            (_, None) => Policy::Full.name(),
            (policy, _) if policy.chooses() => policy.name(),
            _ => Policy::Window.name(),
        }
    }

    /// Rows beside the recent ones that a window needs where rows are chosen: those about to leave the recent zone, a
    /// step, and some to choose from.
    pub const CHOICE: usize = 6 * BLOCK_SLOTS;

    /// The same where rows are chosen one by one, outside of the `recent` ones: the window is whole blocks, and
    /// there is something to choose from.
    pub fn chosen(self, recent: usize) -> Result<Bounds, BoundsError> {
        let window = self.window.unwrap_or(0);
        let recent = recent.next_multiple_of(BLOCK_SLOTS);
        // An adaptive plan has a minimum of its own.
        let choice = match self.policy {
            Policy::Adaptive => BLOCK_SLOTS,
            _ => Bounds::CHOICE,
        };
        let min = recent.saturating_add(choice);
        if window < min {
            return Err(BoundsError::TooNarrow { window, min });
        }
        let window = Some(window / BLOCK_SLOTS * BLOCK_SLOTS);
        Ok(Bounds { window, ..self })
    }
}

/// Why no sequence can be kept with these options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoundsError {
    #[error("the budget of {budget_bytes} bytes is too small; accepted: at least {min_bytes}")]
    Budget {
        budget_bytes: usize,
        min_bytes: usize,
    },
    #[error(
        "anchors {anchors} and window {window} with one block more are {rows} rows, which take {min_bytes} bytes; the budget is {budget_bytes}, accepted: at least {min_bytes}"
    )]
    Window {
        anchors: usize,
        window: usize,
        rows: usize,
        budget_bytes: usize,
        min_bytes: usize,
    },
    #[error(
        "anchors {anchors} and window {window} with one block more are {rows} rows, more than the context; accepted: together at most {max}"
    )]
    Context {
        anchors: usize,
        window: usize,
        rows: usize,
        max: usize,
    },
    #[error("a window of {window} tokens leaves no rows to choose from; accepted: at least {min}")]
    TooNarrow { window: usize, min: usize },
    #[error("anchors {anchors} leave no room for a window; accepted: at most {max}")]
    Anchors { anchors: usize, max: usize },
    #[error("a window of {window} cannot be replayed; accepted: 1 to {max}")]
    Replay { window: usize, max: usize },
    #[error("layer {layer} does not exist; the model has layers 0 to {last}")]
    NoSuchLayer { layer: usize, last: usize },
}

/// `need(rows)` is what a sequence of `rows` rows takes at most, everything counted, with prompts
/// read in the smallest steps; it grows with rows.
pub fn bounds(
    context: usize,
    retention: &Retention,
    budget_bytes: Option<usize>,
    need: &dyn Fn(usize) -> usize,
) -> Result<Bounds, BoundsError> {
    let bounds = of_retention(context, retention, budget_bytes, need)?;
    // The bytes were computed for windows up to this one.
    let max = bounds.window.unwrap_or(usize::MAX);
    let mut windows = retention.replay.iter().map(|&(_, window)| window);
    match windows.find(|window| !(1..=max).contains(window)) {
        Some(window) => Err(BoundsError::Replay { window, max }),
        None => Ok(bounds),
    }
}

fn of_retention(
    context: usize,
    retention: &Retention,
    budget_bytes: Option<usize>,
    need: &dyn Fn(usize) -> usize,
) -> Result<Bounds, BoundsError> {
    let fits = |rows: usize| budget_bytes.is_none_or(|budget| need(rows) <= budget);
    let min = BLOCK_SLOTS.min(context);
    if let Some(budget_bytes) = budget_bytes
        && !fits(min)
    {
        return Err(BoundsError::Budget {
            budget_bytes,
            min_bytes: need(min),
        });
    }
    let capacity = || capacity(context, &fits);

    let (policy, window) = (retention.policy, retention.window);
    let keeping = |rows_max, anchors, window| Bounds {
        policy,
        rows_max,
        anchors,
        window,
    };
    if matches!(policy, Policy::Full | Policy::Streams) {
        return Ok(keeping(capacity(), 0, None));
    }
    if let Some(window) = window {
        let anchors = retention.anchors.unwrap_or(Retention::ANCHORS);
        let rows = anchors.saturating_add(window).saturating_add(BLOCK_SLOTS);
        if rows > context {
            return Err(BoundsError::Context {
                anchors,
                window,
                rows,
                max: context.saturating_sub(BLOCK_SLOTS),
            });
        }
        // Blocks are kept whole: the last anchor and the oldest of the window may cost one each.
        let slots = anchors.next_multiple_of(BLOCK_SLOTS)
            + (window + BLOCK_SLOTS).next_multiple_of(BLOCK_SLOTS);
        if let Some(budget_bytes) = budget_bytes
            && !fits(slots)
        {
            return Err(BoundsError::Window {
                anchors,
                window,
                rows,
                budget_bytes,
                min_bytes: need(slots),
            });
        }
        return Ok(keeping(rows, anchors, Some(window)));
    }

    let rows_max = capacity();
    let room = rows_max.saturating_sub(BLOCK_SLOTS);
    let usual = match policy {
        Policy::Adaptive => Retention::ADAPTIVE_ANCHORS,
        _ => Retention::ANCHORS,
    };
    let usual = usual.min(room / 4 / BLOCK_SLOTS * BLOCK_SLOTS);
    let anchors = retention.anchors.unwrap_or(usual);
    match room.checked_sub(anchors) {
        Some(window) if window > 0 => Ok(keeping(rows_max, anchors, Some(window))),
        // A context of hardly a block: there is no room for a window behind anchors.
        _ if policy == Policy::Auto && retention.anchors.is_none() => {
            Ok(keeping(rows_max, 0, None))
        }
        _ => Err(BoundsError::Anchors {
            anchors,
            max: room.saturating_sub(1),
        }),
    }
}

/// The largest number of rows that fit: whole blocks, or the context itself.
fn capacity(context: usize, fits: &dyn Fn(usize) -> bool) -> usize {
    if fits(context) {
        return context;
    }
    let below = context.saturating_sub(1) / BLOCK_SLOTS;
    let blocks = largest_that_fits(below as u64, |blocks| fits(blocks as usize * BLOCK_SLOTS));
    blocks as usize * BLOCK_SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thousand bytes a row and ten thousand beside them.
    fn need(rows: usize) -> usize {
        10_000 + 1000 * rows
    }

    fn window(anchors: usize, window: usize) -> Retention {
        Retention {
            policy: Policy::Window,
            anchors: Some(anchors),
            window: Some(window),
            ..Retention::default()
        }
    }

    #[test]
    fn a_window_is_taken_as_it_is_or_refused_with_the_minimum() {
        let found = bounds(8192, &window(64, 512), Some(618_000), &need).unwrap();
        assert_eq!(found.rows_max, 608);
        let error = bounds(8192, &window(64, 512), Some(617_999), &need).unwrap_err();
        assert!(error.to_string().ends_with("at least 618000"), "{error}");
        let error = bounds(512, &window(64, 512), None, &need).unwrap_err();
        assert!(error.to_string().ends_with("at most 480"), "{error}");
        let replay = |window| Retention {
            replay: vec![(100, 256), (200, window)],
            ..self::window(64, 512)
        };
        assert!(bounds(8192, &replay(512), None, &need).is_ok());
        for window in [0, 513] {
            let error = bounds(8192, &replay(window), None, &need).unwrap_err();
            assert_eq!(error, BoundsError::Replay { window, max: 512 });
        }
        let error = bounds(512, &window(usize::MAX, 512), None, &need).unwrap_err();
        assert!(matches!(error, BoundsError::Context { .. }));
    }

    #[test]
    fn auto_takes_what_fits() {
        let auto = Retention::default();
        let all = bounds(8192, &auto, None, &need).unwrap();
        assert_eq!((all.rows_max, all.anchors), (8192, 64));
        assert_eq!(all.window, Some(8192 - 64 - 32));
        let some = bounds(8192, &auto, Some(10_000 + 1000 * 1000), &need).unwrap();
        assert_eq!(some.rows_max, 992);
        assert!(need(some.rows_max) <= 1_010_000);
        let error = bounds(8192, &auto, Some(41_999), &need).unwrap_err();
        assert_eq!(
            error,
            BoundsError::Budget {
                budget_bytes: 41_999,
                min_bytes: 42_000
            }
        );
    }

    #[test]
    fn a_tiny_context_keeps_everything() {
        let found = bounds(32, &Retention::default(), None, &need).unwrap();
        assert_eq!((found.rows_max, found.window), (32, None));
        assert_eq!(found.policy_name(), "full");
    }

    #[test]
    fn full_ends_where_budget_or_context_end() {
        let full = Retention::full();
        assert_eq!(bounds(100, &full, None, &need).unwrap().rows_max, 100);
        let found = bounds(8192, &full, Some(100_000), &need).unwrap();
        assert_eq!(found.rows_max, 64);
    }
}
