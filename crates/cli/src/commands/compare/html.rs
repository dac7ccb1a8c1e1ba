//! The report as one page: plots, maps of what was kept, the table. Nothing is loaded from elsewhere, nothing is
//! a script.

use super::Exam;
use super::contest::Contest;
use super::rows::CompareRow;
use super::run::at_kl;
use super::state::{State, as_bytes};
use super::svg::{Point, Scale, Series, escape, heat, plot, short};
use haversack_eval::task::Task;
use serde_json::Value as Json;

const STYLE: &str = "
:root { color-scheme: light dark; --bg: #fff; --fg: #1c1e21; --soft: #d8dbe0; --gone: #eceef1; --kept: #1f6fb2;
  --s0: #1f6fb2; --s1: #c4472d; --s2: #2b8a4b; --s3: #8a4fb5; --s4: #b07a10; --s5: #0f8a8a; --s6: #b8407f; --s7: #5c6470; }
@media (prefers-color-scheme: dark) {
  :root { --bg: #15171a; --fg: #e4e6e9; --soft: #3a3e44; --gone: #24272b; --kept: #6db3f0;
    --s0: #6db3f0; --s1: #f08a70; --s2: #73cf94; --s3: #c49af0; --s4: #e6b858; --s5: #5fd0d0; --s6: #f08cc0; --s7: #a9b1bd; } }
body { background: var(--bg); color: var(--fg); font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2em; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.1em 1em; } dt { opacity: 0.7; } dd { margin: 0; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 1em; }
.maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)); gap: 1em; }
svg { width: 100%; height: auto; } svg text { fill: currentColor; font: 12px system-ui, sans-serif; } svg .title { font-weight: 600; }
.grid { stroke: var(--soft); stroke-width: 1; } .line { fill: none; stroke-width: 2; } .thin { stroke-width: 1; opacity: 0.6; } .dashed { stroke-dasharray: 5 4; }
.gone { fill: var(--gone); } .kept { fill: var(--kept); }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; white-space: nowrap; }
th, td { padding: 0.2em 0.7em; border-bottom: 1px solid var(--soft); text-align: right; } th { position: sticky; top: 0; background: var(--bg); }
td:nth-child(-n+2), th:nth-child(-n+2) { text-align: left; }
";

pub fn page(
    about: &[(&'static str, String)],
    exam: &Exam,
    contests: &[Contest],
    rows: &[CompareRow],
    state: &State,
) -> String {
    let mut page = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" content=\"width=device-width\"/><title>What a cache keeps</title>\n<style>",
    );
    page.push_str(STYLE);
    for i in 0..super::svg::COLOURS {
        page.push_str(&format!(
            ".line.s{i} {{ stroke: var(--s{i}); }} .dot.s{i} {{ fill: var(--s{i}); }}\n"
        ));
    }
    page.push_str("</style></head><body>\n<h1>What a cache keeps</h1>\n<dl>");
    for (name, value) in about {
        page.push_str(&format!("<dt>{name}</dt><dd>{}</dd>\n", escape(value)));
    }
    page.push_str("</dl>\n<p>Distances are from a full f16 cache of the same model on the same text. Vertical lines are 95 % intervals. Lower is better for KL, higher for the others.</p>\n");
    for contest in contests {
        for (number, text) in exam.texts.iter().enumerate() {
            let is_own = |row: &&CompareRow| {
                row.number("context") == Some(contest.context as f64)
                    && row.get("text").as_str() == Some(&text.name)
            };
            let own: Vec<&CompareRow> = rows.iter().filter(is_own).collect();
            let (context, name) = (contest.context, escape(&text.name));
            page.push_str(&format!("<h2>{context} tokens of {name}</h2>\n"));
            page.push_str(&plots(exam, &own));
            if exam.has_kl && number == 0 {
                page.push_str(&maps(contest, state));
            }
        }
    }
    page.push_str("<h2>All figures</h2>\n");
    page.push_str(&table(rows));
    page.push_str("</body></html>\n");
    page
}

fn plots(exam: &Exam, rows: &[&CompareRow]) -> String {
    let mut text = String::from("<div class=\"plots\">\n");
    let mut draw = |title: &str, label: &str, column: &str| {
        let scale = match column {
            DISTANCE => Scale::Log,
            _ => Scale::Linear,
        };
        text.push_str(&plot(title, label, &series(rows, column), scale));
    };
    if exam.has_kl {
        draw("KL from the full cache", "mean KL, nats", DISTANCE);
        let title = "The same likeliest token";
        draw(title, "share of tokens", "top1_agreement");
    }
    for task in &exam.tasks {
        let title = match task {
            Task::Needles => "Needles: the right code among ten",
            Task::Lookups => "Lookups: the right value among ten",
            Task::Recall => "Recall: what was told early",
            Task::Arithmetic => "Arithmetic: the right sum among ten",
        };
        let column = format!("{}_logprob", task.column());
        draw(title, "mean log-probability", &column);
    }
    if !exam.instructions.is_empty() {
        let title = "Free answers: BLEU-4 with the full cache's";
        draw(title, "BLEU", "answers_bleu");
        let title = "Free answers as the full cache judges them";
        draw(title, "NLL, of its own answers'", "answers_nll_ratio");
    }
    text.push_str("</div>\n");
    text
}

/// The column on a logarithmic scale.
const DISTANCE: &str = "kl_mean";

/// One line for each policy and codec.
fn series(rows: &[&CompareRow], column: &str) -> Vec<Series> {
    let mut lines: Vec<Series> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for row in rows {
        let name = row.series();
        let known = names.iter().position(|known| *known == name);
        let colour = known.unwrap_or(names.len());
        if known.is_none() {
            names.push(name.clone());
        }
        let (Some(x), Some(y)) = (row.number("bytes_fraction"), row.number(column)) else {
            continue;
        };
        let end = |which: &str| row.number(&format!("{column}_{which}"));
        let interval = end("low").zip(end("high"));
        let point = Point { x, y, interval };
        // A distance of nothing has no place on a logarithm, and needs none.
        if column == DISTANCE && y <= 0.0 {
            continue;
        }
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Series {
                name,
                colour,
                points: vec![point],
            }),
        }
    }
    lines
}

/// What each contender kept of the first window.
fn maps(contest: &Contest, state: &State) -> String {
    let mut text = String::from(
        "<h3>What was kept at the end of the first window</h3>\n<p>Layers from top to bottom, positions from left to right; the darker, the more of them are left.</p>\n<div class=\"maps\">\n",
    );
    for contender in &contest.contenders {
        let Some(entrant) = contest.setups.get(contender.setup) else {
            continue;
        };
        let result = state.get(&at_kl(contest.context, 0, 0, &entrant.key));
        let kept = result.and_then(|result| {
            let layers = result["kept"].as_array()?.iter();
            layers.map(as_bytes).collect::<Option<Vec<Vec<u8>>>>()
        });
        if let Some(kept) = kept {
            let share = contender.share.map(|share| short(100.0 * share));
            let share = share.map_or(String::new(), |share| format!(" in {share} %"));
            let title = format!("{} {}{share}", contender.policy, contender.codec);
            text.push_str(&format!("<div>{}</div>\n", heat(&title, &kept)));
        }
    }
    text.push_str("</div>\n");
    text
}

fn table(rows: &[CompareRow]) -> String {
    // Columns that hold a value in at least one row.
    let names = rows.first().into_iter().flat_map(CompareRow::columns);
    let is_said = |name: &&str| rows.iter().any(|row| !row.get(name).is_null());
    let said: Vec<&str> = names.filter(is_said).collect();
    let mut text = String::from("<div class=\"table\"><table><thead><tr>");
    for name in &said {
        text.push_str(&format!("<th>{}</th>", escape(name)));
    }
    text.push_str("</tr></thead><tbody>\n");
    for row in rows {
        text.push_str("<tr>");
        for name in &said {
            let cell = match row.get(name) {
                Json::Null => "–".to_owned(),
                Json::String(text) => escape(text),
                value => match value.as_f64().filter(|_| value.is_f64()) {
                    Some(number) => short(number),
                    None => value.to_string(),
                },
            };
            text.push_str(&format!("<td>{cell}</td>"));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody></table></div>\n");
    text
}
