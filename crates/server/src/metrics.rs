//! `/metrics` in the format of Prometheus. Labels have few values: at most [`limits::SESSIONS_NAMED`] session names.

use super::limits;
use super::state::ServerState;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use haversack::alerts::Alert;
use haversack::engine::device::Thermal;
use haversack::scheduler::memory_report::form_name;
use haversack::{MemoryReport, Metrics};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

pub async fn metrics(State(server): State<Arc<ServerState>>) -> Response {
    // A busy server tells what it has rather than let its monitor wait.
    let report = tokio::time::timeout(limits::REPORT_WAIT, server.memory_report()).await;
    let mut lines = Lines::default();
    lines.metrics(&server.engine.metrics());
    if let Ok(Ok(report)) = report {
        lines.memory(&report);
    }
    let kind = "text/plain; version=0.0.4";
    ([(header::CONTENT_TYPE, kind)], lines.0).into_response()
}

/// Labels with their values, and the number.
type Sample<'a> = (Vec<(&'a str, &'a str)>, f64);

#[derive(Default)]
struct Lines(String);

impl Lines {
    fn metric(&mut self, name: &str, kind: &str, help: &str, samples: &[Sample<'_>]) {
        let text = &mut self.0;
        let _ = writeln!(text, "# HELP haversack_{name} {help}");
        let _ = writeln!(text, "# TYPE haversack_{name} {kind}");
        for (labels, value) in samples {
            let labels: Vec<String> = labels
                .iter()
                .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
                .collect();
            let labels = match labels.is_empty() {
                true => String::new(),
                false => format!("{{{}}}", labels.join(",")),
            };
            let _ = writeln!(text, "haversack_{name}{labels} {value}");
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.metric(name, "gauge", help, &[(Vec::new(), value)]);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.metric(name, "counter", help, &[(Vec::new(), value as f64)]);
    }

    /// One metric with one label.
    fn by(&mut self, name: &str, kind: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        let samples: Vec<Sample<'_>> = values
            .iter()
            .map(|&(value, number)| (vec![(label, value)], number as f64))
            .collect();
        self.metric(name, kind, help, &samples);
    }

    fn metrics(&mut self, metrics: &Metrics) {
        let ledger = &metrics.ledger;
        self.by(
            "memory_bytes",
            "gauge",
            "Bytes counted against the budget, by account.",
            "account",
            &[
                ("blocks", ledger.kv_live as u64),
                ("ahead", ledger.kv_ahead as u64),
                ("promised", ledger.kv_promised as u64),
                ("tables", ledger.tables as u64),
                ("scratch", ledger.scratch as u64),
                ("side", ledger.side as u64),
            ],
        );
        let budget = ledger.budget.unwrap_or(0);
        self.gauge(
            "memory_budget_bytes",
            "Memory budget; 0 means no limit.",
            budget as f64,
        );
        self.gauge(
            "memory_peak_bytes",
            "Highest number of bytes held at once.",
            ledger.peak as f64,
        );
        self.gauge(
            "memory_bound_bytes",
            "Bytes held or promised, without what idle sessions could give up.",
            metrics.stats.bound_bytes as f64,
        );
        self.gauge(
            "requests_active",
            "Requests being computed.",
            metrics.active as f64,
        );
        self.gauge(
            "requests_waiting",
            "Requests waiting in the queue.",
            metrics.waiting as f64,
        );
        self.by(
            "requests_total",
            "counter",
            "Finished requests, by outcome.",
            "end",
            &[
                ("done", metrics.completed),
                ("cancelled", metrics.cancelled),
                ("failed", metrics.failed),
                ("no_place", metrics.refused),
            ],
        );
        self.counter(
            "prompt_tokens_total",
            "Prompt tokens of accepted requests.",
            metrics.prompt_tokens,
        );
        let reuse = metrics.prefix_cache;
        self.by(
            "prompts_total",
            "counter",
            "Prompts without a session, by prefix cache result: found, diverged from a cached prompt at an unsaved position, or new.",
            "begins",
            &[
                ("kept", reuse.hits),
                ("parted", reuse.forks),
                ("new", reuse.misses),
            ],
        );
        self.counter(
            "prompts_left_total",
            "Entries evicted from the prefix cache.",
            reuse.evicted,
        );
        self.counter("tokens_total", "Tokens sampled.", metrics.sampled_tokens);
        let [sampled, read] = metrics.speed;
        self.metric(
            "tokens_per_second",
            "gauge",
            "Tokens per second over the last three seconds.",
            &[
                (vec![("of", "sampled")], sampled),
                (vec![("of", "read")], read),
            ],
        );
        self.counter("steps_total", "Forward passes.", metrics.steps);
        self.counter(
            "step_sequences_total",
            "Sequences in all forward passes, summed.",
            metrics.step_sequences,
        );
        self.cache(metrics);
        self.device(metrics);
    }

    /// Hits, misses and evictions.
    fn cache(&mut self, metrics: &Metrics) {
        let (cache, reused) = (&metrics.cache, metrics.prefix_cache.hit_tokens);
        self.counter(
            "cache_hit_tokens_total",
            "Context tokens whose keys and values were cached.",
            cache.hits + reused,
        );
        self.by(
            "cache_miss_tokens_total",
            "counter",
            "Context tokens that had to be computed, by reason.",
            "reason",
            &[
                ("new", cache.new),
                ("no_session", cache.no_session.saturating_sub(reused)),
                ("rows_gone", cache.rows_gone),
            ],
        );
        let [computed, shared, mapped] = metrics.stats.openings;
        self.by(
            "openings_total",
            "counter",
            "Session openings, by source of their keys and values.",
            "how",
            &[("computed", computed), ("memory", shared), ("disk", mapped)],
        );
        let tally = &metrics.stats.tally;
        self.by(
            "evicted_tokens_total",
            "counter",
            "Tokens evicted from memory, by reason.",
            "reason",
            &[
                ("stream_full", tally.left_for_stream),
                ("budget", tally.left_for_budget),
                ("forgotten", tally.forgotten),
                ("window", metrics.window_evictions),
            ],
        );
        self.counter(
            "hidden_tokens_total",
            "Tokens hidden from attention because other turns were more relevant.",
            tally.hidden,
        );
        self.by(
            "recalled_tokens_total",
            "counter",
            "Tokens brought back into memory, by source.",
            "from",
            &[("disk", tally.mounted), ("ids", tally.read_again)],
        );
        let away = &metrics.stats.suspensions;
        self.by(
            "sessions_put_away_total",
            "counter",
            "Idle sessions moved out of memory, by reason.",
            "reason",
            &[("others", away.for_others), ("device", away.for_device)],
        );
    }

    fn device(&mut self, metrics: &Metrics) {
        let states = Thermal::ALL.map(|state| {
            let is_it = metrics.thermal == Some(state);
            (state.name(), u64::from(is_it))
        });
        self.by(
            "thermal",
            "gauge",
            "1 for the current thermal state of the device; all 0 where it is unknown.",
            "state",
            &states,
        );
        self.gauge(
            "rung",
            "Throttle level; 0 means not throttled.",
            f64::from(metrics.throttle_level),
        );
        self.counter(
            "device_changes_total",
            "Changes the engine made because of the device.",
            metrics.device_changes,
        );
        let is_raised = |alert: Alert| metrics.alerts.iter().any(|raised| raised.alert == alert);
        let alerts = Alert::ALL.map(|alert| (alert.name(), u64::from(is_raised(alert))));
        self.by(
            "alert",
            "gauge",
            "1 while the alert is raised.",
            "name",
            &alerts,
        );
        let counts = Alert::ALL
            .map(Alert::name)
            .into_iter()
            .zip(metrics.alert_counts);
        let counts: Vec<(&str, u64)> = counts.collect();
        self.by(
            "alerts_total",
            "counter",
            "How often each alert was raised.",
            "name",
            &counts,
        );
    }

    fn memory(&mut self, report: &MemoryReport) {
        let zones = report.zones.iter();
        let zones: Vec<(&str, String, [usize; 2])> = zones
            .map(|z| (z.zone.name(), form_name(z.form), [z.bytes, z.file_bytes]))
            .collect();
        let samples: Vec<Sample<'_>> = zones
            .iter()
            .flat_map(|(zone, codec, bytes)| {
                ["memory", "file"]
                    .into_iter()
                    .zip(bytes)
                    .map(move |(place, &bytes)| {
                        let labels = vec![("zone", *zone), ("codec", &codec[..]), ("in", place)];
                        (labels, bytes as f64)
                    })
            })
            .collect();
        self.metric(
            "kv_bytes",
            "gauge",
            "Bytes of visible KV blocks, by zone, codec and place; shared blocks count once.",
            &samples,
        );
        let held = by_session(report);
        let samples: Vec<Sample<'_>> = held
            .iter()
            .map(|((session, zone, codec), &bytes)| {
                let labels = vec![
                    ("session", &session[..]),
                    ("zone", *zone),
                    ("codec", &codec[..]),
                ];
                (labels, bytes as f64)
            })
            .collect();
        self.metric(
            "session_bytes",
            "gauge",
            "Bytes of KV blocks of each session; shared blocks count for each. Small sessions are summed as \"other\"; requests without a session are \"\".",
            &samples,
        );
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

/// A label's value, escaped.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_label_stays_on_one_line() {
        let mut lines = Lines::default();
        let samples = [(vec![("session", "a\"b\\c\nd"), ("zone", "rest")], 1.5)];
        lines.metric("x", "gauge", "Help.", &samples);
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
