//! Alerts with hysteresis: raised at one threshold, cleared below a lower one and only after a while. Pure: readings come
//! in with their time, changes go out with a message.

use haversack_engine::device::Thermal;
use std::time::Duration;

/// What an operator should know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alert {
    /// Nearly all of the budget is held or promised.
    Memory,
    /// The queue is nearly full.
    Queue,
    /// A request found no place in the queue.
    Refused,
    /// A request failed through no fault of its own.
    Failed,
    /// The device is hot, and the engine slows down.
    Heat,
    /// The device is short of memory.
    Device,
    /// A turn could not be saved.
    Unsaved,
    /// Turns left memory and are not on disk either.
    Forgotten,
    /// Sessions were removed: they expired, or all together passed their quota.
    Removed,
}

impl Alert {
    /// All of them, in the order of counters.
    pub const ALL: [Alert; 9] = [
        Alert::Memory,
        Alert::Queue,
        Alert::Refused,
        Alert::Failed,
        Alert::Heat,
        Alert::Device,
        Alert::Unsaved,
        Alert::Forgotten,
        Alert::Removed,
    ];

    /// Its name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Alert::Memory => "memory",
            Alert::Queue => "queue",
            Alert::Refused => "refused",
            Alert::Failed => "failed",
            Alert::Heat => "heat",
            Alert::Device => "device",
            Alert::Unsaved => "unsaved",
            Alert::Forgotten => "forgotten",
            Alert::Removed => "removed",
        }
    }
}

/// Percent of the budget: raised at, cleared below.
const MEMORY: (u64, u64) = (95, 85);
/// Percent of the queue's places.
const QUEUE: (u64, u64) = (90, 50);
/// How long a reading must stay low before its alert is cleared.
pub const CALM: Duration = Duration::from_secs(10);

/// The readings. Totals only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Watched {
    /// `None`: without a limit.
    pub budget_bytes: Option<usize>,
    /// Held or promised, without what idle sessions could give up.
    pub bound_bytes: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Requests that may wait.
    pub queue: usize,
    /// How hot the device is, where it says so.
    pub thermal: Option<Thermal>,
    /// The device is short of memory.
    pub is_short: bool,
    /// Sessions whose last turn could not be saved.
    pub unsaved: usize,
    /// Requests that found no place in the queue.
    pub refused_total: u64,
    /// Requests that failed through no fault of their own.
    pub failed_total: u64,
    /// Tokens of turns that are neither in memory nor on disk any more.
    pub forgotten_total: u64,
    /// Sessions that were removed: expired, or over the quota of all together.
    pub removed_total: u64,
}

/// An alert that was raised or cleared.
#[derive(Clone, Debug, PartialEq)]
pub struct AlertChange {
    /// Which one.
    pub alert: Alert,
    /// Raised, or cleared.
    pub is_raised: bool,
    /// The reading in one line.
    pub words: String,
}

/// An alert that is raised.
#[derive(Clone, Debug, PartialEq)]
pub struct RaisedAlert {
    /// Which one.
    pub alert: Alert,
    /// When it was raised.
    pub since: Duration,
    /// The last reading in one line.
    pub words: String,
    /// When the reading was last above the lower threshold.
    seen: Duration,
}

/// Which alerts are raised, from one reading to the next.
#[derive(Debug, Default)]
pub struct AlertWatch {
    raised: Vec<RaisedAlert>,
    last: Watched,
    /// As in [`Alert::ALL`].
    counts: [u64; Alert::ALL.len()],
}

enum Level {
    Over(String),
    Between,
    Under,
}

impl AlertWatch {
    /// Those that are raised now.
    pub fn raised(&self) -> &[RaisedAlert] {
        &self.raised
    }

    /// How often each alert was raised.
    pub fn counts(&self) -> [u64; Alert::ALL.len()] {
        self.counts
    }

    /// Takes a reading; returns what was raised or cleared by it.
    pub fn observe(&mut self, now: Duration, watched: &Watched) -> Vec<AlertChange> {
        let mut changes = Vec::new();
        for (i, alert) in Alert::ALL.into_iter().enumerate() {
            let level = level(alert, watched, &self.last);
            let at = self.raised.iter().position(|r| r.alert == alert);
            match (level, at) {
                (Level::Over(words), Some(at)) => {
                    self.raised[at].seen = now;
                    self.raised[at].words = words;
                }
                (Level::Over(words), None) => {
                    self.counts[i] += 1;
                    self.raised.push(RaisedAlert {
                        alert,
                        since: now,
                        words: words.clone(),
                        seen: now,
                    });
                    changes.push(AlertChange {
                        alert,
                        is_raised: true,
                        words,
                    });
                }
                (Level::Between, Some(at)) => self.raised[at].seen = now,
                (Level::Under, Some(at)) if now >= self.raised[at].seen + CALM => {
                    let since = self.raised.remove(at).since;
                    changes.push(AlertChange {
                        alert,
                        is_raised: false,
                        words: format!("cleared after {} s", (now - since).as_secs()),
                    });
                }
                _ => {}
            }
        }
        self.last = *watched;
        changes
    }
}

fn level(alert: Alert, now: &Watched, last: &Watched) -> Level {
    let share = |part: usize, whole: usize, (over, under): (u64, u64), words: &str| {
        let percent = (part as u64).saturating_mul(100) / (whole as u64).max(1);
        match percent {
            _ if whole == 0 => Level::Under,
            percent if percent >= over => Level::Over(format!("{percent} % {words}")),
            percent if percent >= under => Level::Between,
            _ => Level::Under,
        }
    };
    let more = |now: u64, last: u64, words: &str| match now.saturating_sub(last) {
        0 => Level::Under,
        n => Level::Over(format!("{words}: {n}")),
    };
    let holds = |holds: bool, words: String| match holds {
        true => Level::Over(words),
        false => Level::Under,
    };
    match alert {
        Alert::Memory => {
            let budget = now.budget_bytes.unwrap_or(0);
            let words = "of the memory budget is held or promised; new requests wait";
            share(now.bound_bytes, budget, MEMORY, words)
        }
        Alert::Queue => share(now.waiting, now.queue, QUEUE, "of the queue is full"),
        Alert::Refused => more(
            now.refused_total,
            last.refused_total,
            "requests refused because the queue was full",
        ),
        Alert::Failed => more(now.failed_total, last.failed_total, "requests failed"),
        Alert::Heat => match now.thermal {
            Some(heat @ (Thermal::Serious | Thermal::Critical)) => Level::Over(format!(
                "the device is hot ({}); the engine slows down",
                heat.name()
            )),
            Some(Thermal::Fair) => Level::Between,
            _ => Level::Under,
        },
        Alert::Device => holds(now.is_short, "the device is short of memory".into()),
        Alert::Unsaved => holds(
            now.unsaved > 0,
            format!("sessions that could not be saved: {}", now.unsaved),
        ),
        Alert::Forgotten => more(
            now.forgotten_total,
            last.forgotten_total,
            "tokens of turns lost because a session file is full or cannot be written",
        ),
        Alert::Removed => more(
            now.removed_total,
            last.removed_total,
            "sessions removed because they expired or all together passed their quota",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(changes: &[AlertChange]) -> Vec<(&'static str, bool)> {
        let name = |change: &AlertChange| (change.alert.name(), change.is_raised);
        changes.iter().map(name).collect()
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_share_is_raised_above_and_cleared_below_after_a_while() {
        let mut watch = AlertWatch::default();
        let mut at = |now, bound_bytes| {
            let watched = Watched {
                budget_bytes: Some(1000),
                bound_bytes,
                ..Watched::default()
            };
            names(&watch.observe(seconds(now), &watched))
        };
        assert_eq!(at(0, 949), []);
        assert_eq!(at(1, 950), [("memory", true)]);
        assert_eq!(at(2, 990), []);
        // Between the thresholds it stays raised.
        assert_eq!(at(100, 850), []);
        assert_eq!(at(101, 949), []);
        assert_eq!(at(102, 849), []);
        assert_eq!(at(110, 100), []);
        assert_eq!(at(111, 100), [("memory", false)]);
        assert_eq!(at(112, 900), []);
        assert_eq!(at(113, 950), [("memory", true)]);
        assert_eq!(watch.counts()[0], 2);
    }

    #[test]
    fn an_event_is_raised_until_it_stops_happening() {
        let mut watch = AlertWatch::default();
        let mut at = |now, refused_total| {
            let watched = Watched {
                refused_total,
                ..Watched::default()
            };
            names(&watch.observe(seconds(now), &watched))
        };
        assert_eq!(at(0, 0), []);
        assert_eq!(at(1, 3), [("refused", true)]);
        assert_eq!(at(9, 4), []);
        assert_eq!(at(18, 4), []);
        assert_eq!(at(19, 4), [("refused", false)]);
    }

    /// Each alone, by name; none where nothing is wrong, or there is no budget and no queue.
    #[test]
    fn each_alert_is_raised_by_its_reading() {
        let calm = Watched {
            budget_bytes: Some(100),
            queue: 10,
            thermal: Some(Thermal::Nominal),
            ..Watched::default()
        };
        let each = [
            Watched {
                bound_bytes: 96,
                ..calm
            },
            Watched { waiting: 9, ..calm },
            Watched {
                refused_total: 1,
                ..calm
            },
            Watched {
                failed_total: 1,
                ..calm
            },
            Watched {
                thermal: Some(Thermal::Serious),
                ..calm
            },
            Watched {
                is_short: true,
                ..calm
            },
            Watched { unsaved: 2, ..calm },
            Watched {
                forgotten_total: 40,
                ..calm
            },
            Watched {
                removed_total: 1,
                ..calm
            },
        ];
        for (alert, watched) in Alert::ALL.into_iter().zip(each) {
            let mut watch = AlertWatch::default();
            assert_eq!(watch.observe(seconds(0), &calm), []);
            let changes = watch.observe(seconds(1), &watched);
            assert_eq!(names(&changes), [(alert.name(), true)]);
            assert_eq!(watch.raised()[0].words, changes[0].words);
            assert!(changes[0].words.len() > 10);
        }
        let nothing = Watched {
            bound_bytes: 1 << 40,
            waiting: 7,
            ..Watched::default()
        };
        assert_eq!(AlertWatch::default().observe(seconds(0), &nothing), []);
    }
}
