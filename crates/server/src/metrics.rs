//! `/metrics`, as Prometheus reads it. Labels have few values: names of sessions end somewhere, all else is ours.

use haversack::alerts::Alert;
use super::owner::Seen;
use super::{Shared, limits};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use haversack::engine::device::Thermal;
use haversack::scheduler::Picture;
use haversack::scheduler::picture::form_name;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

pub async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    // Whoever watches a server that is busy wants what there is, not to wait.
    let picture = tokio::time::timeout(limits::PICTURE_WAIT, shared.picture()).await;
    let mut lines = Lines::default();
    lines.seen(&shared.hall.seen());
    if let Ok(Some(picture)) = picture {
        lines.picture(&picture);
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

    /// Numbers that one label tells apart.
    fn by(&mut self, name: &str, kind: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        let samples: Vec<Sample<'_>> = values
            .iter()
            .map(|&(value, number)| (vec![(label, value)], number as f64))
            .collect();
        self.metric(name, kind, help, &samples);
    }

    fn seen(&mut self, seen: &Seen) {
        let ledger = &seen.ledger;
        self.by(
            "memory_bytes",
            "gauge",
            "Bytes of the ledger, by account.",
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
            "The ceiling; 0 is none.",
            budget as f64,
        );
        self.gauge(
            "memory_peak_bytes",
            "The most that the ledger has held.",
            ledger.peak as f64,
        );
        self.gauge(
            "memory_bound_bytes",
            "Bytes held or promised, beside what idle sessions would give up.",
            seen.sight.bound_bytes as f64,
        );
        self.gauge(
            "requests_active",
            "Requests that are computed.",
            seen.active as f64,
        );
        self.gauge(
            "requests_waiting",
            "Requests that wait.",
            seen.waiting as f64,
        );
        self.by(
            "requests_total",
            "counter",
            "Requests that ended, by how.",
            "end",
            &[
                ("done", seen.done),
                ("cancelled", seen.cancelled),
                ("failed", seen.failed),
                ("no_place", seen.refused),
            ],
        );
        self.counter(
            "prompt_tokens_total",
            "Tokens of prompts.",
            seen.prompt_tokens,
        );
        let reuse = seen.reuse;
        self.by(
            "prompts_total",
            "counter",
            "Prompts without a session by how they begin: like one that is kept, like one from which they part where nothing is, like none.",
            "begins",
            &[
                ("kept", reuse.found),
                ("parted", reuse.parted),
                ("new", reuse.new),
            ],
        );
        self.counter(
            "prompts_left_total",
            "Prompts and answers that were kept and had to leave.",
            reuse.left,
        );
        self.counter("tokens_total", "Tokens that were sampled.", seen.tokens);
        let [sampled, read] = seen.speed;
        self.metric(
            "tokens_per_second",
            "gauge",
            "Over the last three seconds.",
            &[
                (vec![("of", "sampled")], sampled),
                (vec![("of", "read")], read),
            ],
        );
        self.counter("steps_total", "Passes over the weights.", seen.steps);
        self.counter(
            "step_sequences_total",
            "Sequences in all of them.",
            seen.stepped,
        );
        self.kept(seen);
        self.device(seen);
    }

    /// What was there, what left, and why.
    fn kept(&mut self, seen: &Seen) {
        let (cache, reused) = (&seen.cache, seen.reuse.tokens);
        self.counter(
            "cache_hit_tokens_total",
            "Tokens seen and not computed again.",
            cache.hits + reused,
        );
        self.by(
            "cache_miss_tokens_total",
            "counter",
            "Tokens that had to be computed, by why.",
            "reason",
            &[
                ("new", cache.new),
                ("no_session", cache.no_session.saturating_sub(reused)),
                ("rows_gone", cache.rows_gone),
            ],
        );
        let [computed, shared, mapped] = seen.sight.openings;
        self.by(
            "openings_total",
            "counter",
            "What sessions open with, by how it was come by.",
            "how",
            &[("computed", computed), ("memory", shared), ("disk", mapped)],
        );
        let tally = &seen.sight.tally;
        self.by(
            "evicted_tokens_total",
            "counter",
            "Tokens that left memory, by why.",
            "reason",
            &[
                ("stream_full", tally.left_for_stream),
                ("budget", tally.left_for_budget),
                ("forgotten", tally.forgotten),
                ("window", seen.left_windows),
            ],
        );
        self.counter(
            "hidden_tokens_total",
            "Tokens that were hidden, because others were more relevant.",
            tally.hidden,
        );
        self.by(
            "recalled_tokens_total",
            "counter",
            "Tokens that came back, by where from.",
            "from",
            &[("disk", tally.mounted), ("ids", tally.read_again)],
        );
        let away = &seen.sight.put_away;
        self.by(
            "sessions_put_away_total",
            "counter",
            "Idle sessions that left memory, by why.",
            "reason",
            &[("others", away.for_others), ("device", away.for_device)],
        );
    }

    fn device(&mut self, seen: &Seen) {
        let states = Thermal::ALL.map(|state| {
            let is_it = seen.thermal == Some(state);
            (state.name(), u64::from(is_it))
        });
        self.by(
            "thermal",
            "gauge",
            "1 for the state the device is in; none where nothing says it.",
            "state",
            &states,
        );
        self.gauge(
            "rung",
            "How far down the ladder of heat; 0 is the top.",
            f64::from(seen.rung),
        );
        self.counter(
            "device_changes_total",
            "Changes that the device made necessary.",
            seen.changes,
        );
        let is_raised = |alert: Alert| seen.alerts.iter().any(|raised| raised.alert == alert);
        let alerts = Alert::ALL.map(|alert| (alert.name(), u64::from(is_raised(alert))));
        self.by("alert", "gauge", "1 while it is raised.", "name", &alerts);
        let counts = Alert::ALL
            .map(Alert::name)
            .into_iter()
            .zip(seen.alert_counts);
        let counts: Vec<(&str, u64)> = counts.collect();
        self.by(
            "alerts_total",
            "counter",
            "How often each was raised.",
            "name",
            &counts,
        );
    }

    fn picture(&mut self, picture: &Picture) {
        let zones = picture.zones.iter();
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
            "Blocks that are seen, by zone, codec and where they lie; shared ones once.",
            &samples,
        );
        let held = by_session(picture);
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
            "Blocks of each session in memory; shared ones count for each. The smallest are one, \"other\"; requests without a session are \"\".",
            &samples,
        );
    }
}

/// Bytes by session, zone and codec. Sequences come the largest first: those have their names.
fn by_session(picture: &Picture) -> BTreeMap<(String, &'static str, String), usize> {
    let mut named = 0;
    let mut sums = BTreeMap::new();
    for shown in &picture.sequences {
        let session = match shown.who.session() {
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

/// A label's value as the format wants it.
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
    fn whatever_a_label_says_it_stays_one_line() {
        let mut lines = Lines::default();
        let samples = [(vec![("session", "a\"b\\c\nd"), ("zone", "rest")], 1.5)];
        lines.metric("x", "gauge", "Help.", &samples);
        let last = lines.0.lines().last().unwrap();
        assert_eq!(last, r#"haversack_x{session="a\"b\\c\nd",zone="rest"} 1.5"#);
        assert_eq!(lines.0.lines().count(), 3);
    }

    /// Every name once, every number a number, whatever the server has seen.
    #[test]
    fn each_metric_is_told_once() {
        let mut lines = Lines::default();
        lines.seen(&Seen::default());
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
