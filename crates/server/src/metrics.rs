//! `/metrics` in the format of Prometheus. Labels have few values: at most [`limits::SESSIONS_NAMED`]
//! session names, of the owner that asks.

use super::limits;
use super::state::Server;
use axum::Extension;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use haversack::alerts::Alert;
use haversack::engine::device::Thermal;
use haversack::scheduler::memory_report::form_name;
use haversack::session::RemovalCause;
use haversack::{MemoryReport, Metrics, Owner};
use std::collections::BTreeMap;
use std::fmt::Write;

pub async fn metrics(State(server): Server, Extension(owner): Extension<Owner>) -> Response {
    // A busy server tells what it has rather than let its monitor wait.
    let report = server.memory_report(owner);
    let report = tokio::time::timeout(limits::REPORT_WAIT, report).await;
    let mut lines = Lines::default();
    lines.metrics(&server.engine.metrics());
    let counts = server.connections.counts();
    let counts = [
        ("ordinary", counts.ordinary as u64),
        ("reserved", counts.reserved as u64),
    ];
    lines.by(
        "connections",
        "Connections, by kind of place.",
        "place",
        &counts,
    );
    if let Ok(Ok(report)) = report {
        lines.memory(&report);
    }
    let kind = "text/plain; version=0.0.4";
    ([(header::CONTENT_TYPE, kind)], lines.0).into_response()
}

/// Labels as they are written, and the number.
type Sample = (String, f64);

#[derive(Default)]
struct Lines(String);

impl Lines {
    /// A name that ends in `_total` is a counter's.
    fn metric(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = Sample>) {
        let text = &mut self.0;
        let is_counter = name.ends_with("_total");
        let kind = if is_counter { "counter" } else { "gauge" };
        let _ = writeln!(text, "# HELP haversack_{name} {help}");
        let _ = writeln!(text, "# TYPE haversack_{name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(text, "haversack_{name}{labels} {value}");
        }
    }

    fn one(&mut self, name: &str, help: &str, value: u64) {
        self.metric(name, help, [(String::new(), value as f64)]);
    }

    /// One metric with one label.
    fn by(&mut self, name: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        let sample = |&(value, number): &(&str, u64)| (labels(&[(label, value)]), number as f64);
        self.metric(name, help, values.iter().map(sample));
    }

    fn metrics(&mut self, metrics: &Metrics) {
        let (ledger, stats, reuse) = (&metrics.ledger, &metrics.stats, &metrics.prefix_cache);
        let accounts = [
            ("blocks", ledger.kv_live as u64),
            ("ahead", ledger.kv_ahead as u64),
            ("promised", ledger.kv_promised as u64),
            ("tables", ledger.tables as u64),
            ("scratch", ledger.scratch as u64),
            ("side", ledger.side as u64),
            ("heap", ledger.heap as u64),
        ];
        let help = "Bytes counted against the budget, by account.";
        self.by("memory_bytes", help, "account", &accounts);
        let budget = ledger.budget.unwrap_or(0) as u64;
        let help = "Memory budget; 0 means no limit.";
        self.one("memory_budget_bytes", help, budget);
        let help = "Highest number of bytes held at once.";
        self.one("memory_peak_bytes", help, ledger.peak as u64);
        let help = "Bytes held or promised, without what idle sessions could give up.";
        self.one("memory_bound_bytes", help, stats.bound_bytes as u64);
        let help = "Requests being computed.";
        self.one("requests_active", help, metrics.active as u64);
        let help = "Requests waiting in the queue.";
        self.one("requests_waiting", help, metrics.waiting as u64);
        let ends = [
            ("done", metrics.completed),
            ("cancelled", metrics.cancelled),
            ("failed", metrics.failed),
            ("unfollowed", metrics.unfollowed),
            ("no_place", metrics.refused),
        ];
        let help = "Finished requests, by outcome.";
        self.by("requests_total", help, "end", &ends);
        let help = "Prompt tokens of accepted requests.";
        self.one("prompt_tokens_total", help, metrics.prompt_tokens);
        let begins = [
            ("kept", reuse.hits),
            ("parted", reuse.forks),
            ("new", reuse.misses),
        ];
        let help = "Prompts without a session, by prefix cache result: \
                    found, diverged from a cached prompt at an unsaved position, or new.";
        self.by("prompts_total", help, "begins", &begins);
        let help = "Entries evicted from the prefix cache.";
        self.one("prompts_left_total", help, reuse.evicted);
        self.one("tokens_total", "Tokens sampled.", metrics.sampled_tokens);
        let help = "Tokens per second over the last three seconds.";
        let speeds = ["sampled", "read"].map(|of| labels(&[("of", of)]));
        let speeds = speeds.into_iter().zip(metrics.speed);
        self.metric("tokens_per_second", help, speeds);
        self.one("steps_total", "Forward passes.", metrics.steps);
        let help = "Sequences in all forward passes, summed.";
        self.one("step_sequences_total", help, metrics.step_sequences);
        self.cache(metrics);
        self.device(metrics);
    }

    /// Hits, misses and evictions.
    fn cache(&mut self, metrics: &Metrics) {
        let (cache, stats) = (&metrics.cache, &metrics.stats);
        let reused = metrics.prefix_cache.hit_tokens;
        let help = "Context tokens whose keys and values were cached.";
        self.one("cache_hit_tokens_total", help, cache.hits + reused);
        let misses = [
            ("new", cache.new),
            ("no_session", cache.no_session.saturating_sub(reused)),
            ("rows_gone", cache.rows_gone),
        ];
        let help = "Context tokens that had to be computed, by reason.";
        self.by("cache_miss_tokens_total", help, "reason", &misses);
        let [computed, shared, mapped] = stats.openings;
        let openings = [("computed", computed), ("memory", shared), ("disk", mapped)];
        let help = "Session openings, by source of their keys and values.";
        self.by("openings_total", help, "how", &openings);
        let tally = &stats.tally;
        let evicted = [
            ("stream_full", tally.left_for_stream),
            ("budget", tally.left_for_budget),
            ("forgotten", tally.forgotten),
            ("window", metrics.window_evictions),
        ];
        let help = "Tokens evicted from memory, by reason.";
        self.by("evicted_tokens_total", help, "reason", &evicted);
        let help = "Tokens hidden from attention because other turns were more relevant.";
        self.one("hidden_tokens_total", help, tally.hidden);
        let recalled = [("disk", tally.mounted), ("ids", tally.read_again)];
        let help = "Tokens brought back into memory, by source.";
        self.by("recalled_tokens_total", help, "from", &recalled);
        let away = &stats.suspensions;
        let away = [("others", away.for_others), ("device", away.for_device)];
        let help = "Idle sessions moved out of memory, by reason.";
        self.by("sessions_put_away_total", help, "reason", &away);
        let causes = RemovalCause::ALL.map(RemovalCause::name).into_iter();
        let removed: Vec<(&str, u64)> = causes.zip(stats.removed).collect();
        let help =
            "Sessions removed with their files because of a limit of all sessions, by reason.";
        self.by("sessions_removed_total", help, "reason", &removed);
    }

    fn device(&mut self, metrics: &Metrics) {
        let is_current = |state| u64::from(metrics.thermal == Some(state));
        let states = Thermal::ALL.map(|state| (state.name(), is_current(state)));
        let help = "1 for the current thermal state of the device; all 0 where it is unknown.";
        self.by("thermal", help, "state", &states);
        let help = "Throttle level; 0 means not throttled.";
        self.one("rung", help, metrics.throttle_level.into());
        let help = "Changes the engine made because of the device.";
        self.one("device_changes_total", help, metrics.device_changes);
        let is_raised = |alert: Alert| metrics.alerts.iter().any(|raised| raised.alert == alert);
        let alerts = Alert::ALL.map(|alert| (alert.name(), u64::from(is_raised(alert))));
        self.by("alert", "1 while the alert is raised.", "name", &alerts);
        let names = Alert::ALL.map(Alert::name).into_iter();
        let counts: Vec<(&str, u64)> = names.zip(metrics.alert_counts).collect();
        let help = "How often each alert was raised.";
        self.by("alerts_total", help, "name", &counts);
    }

    fn memory(&mut self, report: &MemoryReport) {
        let samples = report.zones.iter().flat_map(|z| {
            let (zone, codec) = (z.zone.name(), form_name(z.form));
            [("memory", z.bytes), ("file", z.file_bytes)].map(|(place, bytes)| {
                let names = labels(&[("zone", zone), ("codec", &codec), ("in", place)]);
                (names, bytes as f64)
            })
        });
        let help =
            "Bytes of visible KV blocks, by zone, codec and place; shared blocks count once.";
        self.metric("kv_bytes", help, samples);
        let held = by_session(report).into_iter();
        let samples = held.map(|((session, zone, codec), bytes)| {
            let names = labels(&[("session", &session), ("zone", zone), ("codec", &codec)]);
            (names, bytes as f64)
        });
        let help = "Bytes of KV blocks of each session; shared blocks count for each. Small sessions are summed as \"other\"; requests without a session are \"\".";
        self.metric("session_bytes", help, samples);
    }
}

/// Bytes by session, zone and codec. Sequences come largest first: the first ones are named.
fn by_session(report: &MemoryReport) -> BTreeMap<(String, &'static str, String), usize> {
    let mut named = 0;
    let mut sums = BTreeMap::new();
    for shown in &report.sequences {
        let session = match shown.owner.session() {
            None => "",
            Some(session) if named < limits::SESSIONS_NAMED => {
                named += 1;
                &session.stats.name
            }
            Some(_) => "other",
        };
        for zone in &shown.zones {
            let key = (session.to_owned(), zone.zone.name(), form_name(zone.form));
            *sums.entry(key).or_default() += zone.bytes + zone.file_bytes;
        }
    }
    sums
}

/// Names with their values, escaped, in braces.
fn labels(of: &[(&str, &str)]) -> String {
    let escaped = |value: &str| value.replace('\\', r"\\").replace('"', "\\\"");
    let label = |(name, value): &(&str, &str)| {
        format!("{name}=\"{}\"", escaped(value).replace('\n', r"\n"))
    };
    format!("{{{}}}", of.iter().map(label).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_label_stays_on_one_line() {
        let mut lines = Lines::default();
        let names = labels(&[("session", "a\"b\\c\nd"), ("zone", "rest")]);
        lines.metric("x", "Help.", [(names, 1.5)]);
        let last = lines.0.lines().last().unwrap();
        assert_eq!(last, r#"haversack_x{session="a\"b\\c\nd",zone="rest"} 1.5"#);
        assert_eq!(lines.0.lines().count(), 3);
    }

    /// Every name once, every number finite.
    #[test]
    fn each_metric_is_listed_once() {
        let mut lines = Lines::default();
        lines.metrics(&Metrics::default());
        let types = lines.0.lines().filter(|line| line.starts_with("# TYPE "));
        let mut names: Vec<&str> = types.filter_map(|line| line.split(' ').nth(2)).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert!(names.len() == all && all > 20, "{names:?}");
        for line in lines.0.lines().filter(|line| !line.starts_with('#')) {
            let (name, number) = line.rsplit_once(' ').unwrap();
            assert!(number.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            let name = name.split('{').next().unwrap();
            assert!(names.binary_search(&name).is_ok(), "{line}");
        }
    }
}
