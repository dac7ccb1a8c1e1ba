//! Questions about long talks, answered freely by a model that is shown different turns of them:
//! `cargo run --release -p haversack-eval --example free_answers -- MODEL [NAME=VALUE…]`
//!
//! | name | | usual |
//! |---|---|---|
//! | `encoder` | folder of a sentence encoder | none |
//! | `talks` | how many, or a file of talks (`FILE.json`), or some of either (`0,2`, `FILE.json:1`) | 1 |
//! | `set` | `development`, `held-out` | the first |
//! | `turns` | of a talk | 370 |
//! | `capacity`, `full` | tokens of turns in memory, and of all turns | 1536, 20480 |
//! | `choices` | who chooses what is shown, of `full`, `window`, `words`, `encoder-8`, `session`, `oracle` | all |
//! | `instruction` | where the model is told how to answer: behind the `question`, or at the beginning, as `system` | question |
//! | `threads` | that compute | one for each core |
//! | `rows` | file of a line for each answer; questions that it has are not asked again | none |
//! | `folder` | of the sessions, with which another run goes on | temporary |
//! | `summary` | `text`, `csv` | text |
//!
//! Each talk is read once with all of it in memory and once at the capacity. Each question is asked in a copy of such a
//! session, which is deleted afterwards, so that no question sees another.
//!
//! In place of a model, `http://HOST:PORT` names a server. What its sessions show follows from its flags, so `choices` is the
//! one name that its answers go by, and the last turns of a history were heard with a message after them that was taken back.

mod server;
#[path = "../talk_file/mod.rs"]
mod talk_file;

use haversack_eval::free_answers::choices::TurnChoice;
use haversack_eval::free_answers::library::{InstructionPlace, TalkEngine, TalkListener};
use haversack_eval::free_answers::table::{AnswerSummary, JudgedAnswer, MeanOf};
use haversack_eval::long_talk::{LongTalk, TURNS, TalkSet, long_talk};
use server::ServerTalks;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;
use talk_file::talks_of;

type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "usage: free_answers MODEL|http://HOST:PORT [NAME=VALUE…]";

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let model = args.next().ok_or(USAGE)?;
    let mut said = HashMap::new();
    for arg in args {
        let (name, value) = arg.split_once('=').ok_or(USAGE)?;
        said.insert(name.to_owned(), value.to_owned());
    }
    let number = |name: &str, usual: usize| said.get(name).map_or(Ok(usual), |n| n.parse());
    let text = |name: &str, usual: &'static str| said.get(name).map_or(usual, String::as_str);
    let (capacity, full) = (number("capacity", 1536)?, number("full", 20_480)?);
    let set = match text("set", "development") {
        "development" => TalkSet::Development,
        "held-out" => TalkSet::HeldOut,
        _ => return Err(USAGE.into()),
    };
    let talks = talks_named(text("talks", "1"), set, number("turns", TURNS)?)?;
    let choices = text("choices", "full,window,words,encoder-8,session,oracle").split(',');
    let choices = choices.map(|name| TurnChoice::named(name).ok_or(USAGE));
    let choices = choices.collect::<Result<Vec<_>, _>>()?;
    let instruction = match text("instruction", "question") {
        "question" => InstructionPlace::Question,
        "system" => InstructionPlace::System,
        _ => return Err(USAGE.into()),
    };
    let temporary = std::env::temp_dir().join(format!("haversack-answers-{}", std::process::id()));
    let engine = TalkEngine {
        model: model.clone().into(),
        encoder: said.get("encoder").map(PathBuf::from),
        folder: said.get("folder").map_or(temporary.clone(), PathBuf::from),
        cache: haversack_eval::folder(),
        instruction,
        threads: said.get("threads").map(|n| n.parse()).transpose()?,
    };
    let mut asking = Asking::new(&talks, said.get("rows"))?;
    let asked = match model.strip_prefix("http://") {
        Some(address) => {
            let choice = choices.first().ok_or(USAGE)?;
            let mut server = ServerTalks::new(address, instruction);
            asking.ask_all(&mut server, *choice, "talk")
        }
        None => asking.ask_library(&engine, &choices, (capacity, full)),
    };
    let _ = std::fs::remove_dir_all(temporary);
    asked?;
    print(&asking.judged, &choices, text("summary", "text") == "csv");
    Ok(())
}

/// A talk, and the kinds of its questions.
struct AskedTalk {
    talk: LongTalk,
    /// (question)
    kinds: Vec<String>,
}

/// Talks with their numbers, which stay the same whichever are asked about.
type NumberedTalks = Vec<(usize, AskedTalk)>;

/// `4`, `0,2`, `FILE.json` or `FILE.json:0,2`.
fn talks_named(which: &str, set: TalkSet, turns: usize) -> Result<NumberedTalks, Failure> {
    let numbers = |list: &str| -> Result<Vec<usize>, Failure> {
        Ok(list.split(',').map(str::parse).collect::<Result<_, _>>()?)
    };
    if let Some((file, some)) = which.split_once(".json") {
        let talks = talks_of(&std::fs::read_to_string(format!("{file}.json"))?)?;
        let some = some.strip_prefix(':').map(numbers).transpose()?;
        let is_asked = |i: usize| some.as_ref().is_none_or(|some| some.contains(&i));
        let talks = talks
            .into_iter()
            .map(|(talk, kinds)| AskedTalk { talk, kinds });
        return Ok((0..).zip(talks).filter(|(i, _)| is_asked(*i)).collect());
    }
    let numbers = match which.contains(',') {
        true => numbers(which.trim_end_matches(','))?,
        false => (0..which.parse()?).collect(),
    };
    let made = |number: usize| {
        let talk = long_talk(set, number, turns, &[]);
        let kinds = talk
            .asked
            .iter()
            .map(|asked| asked.hardness.name().to_owned());
        let kinds = kinds.collect();
        (number, AskedTalk { talk, kinds })
    };
    Ok(numbers.into_iter().map(made).collect())
}

/// What was asked so far, and what still is.
struct Asking<'a> {
    talks: &'a NumberedTalks,
    judged: Vec<JudgedAnswer>,
    rows: Option<File>,
    start: Instant,
    /// By this run.
    asked: usize,
}

impl<'a> Asking<'a> {
    fn new(talks: &'a NumberedTalks, rows: Option<&String>) -> Result<Asking<'a>, Failure> {
        let mut judged = Vec::new();
        let rows = match rows {
            None => None,
            Some(path) => {
                let before = std::fs::read_to_string(path).unwrap_or_default();
                // A run that was cut off leaves a part of a line.
                let whole = before.rfind('\n').map_or("", |end| &before[..=end]);
                judged.extend(whole.lines().filter_map(JudgedAnswer::of_line));
                let mut file = OpenOptions::new().create(true).append(true).open(path)?;
                file.set_len(whole.len() as u64)?;
                if whole.is_empty() {
                    writeln!(file, "{}", JudgedAnswer::HEADER)?;
                }
                Some(file)
            }
        };
        Ok(Asking {
            talks,
            judged,
            rows,
            start: Instant::now(),
            asked: 0,
        })
    }

    fn ask_library(
        &mut self,
        engine: &TalkEngine,
        choices: &[TurnChoice],
        (capacity, full): (usize, usize),
    ) -> Result<(), Failure> {
        let is_full = |choice: TurnChoice| choice == TurnChoice::Full;
        let tokens = |choice| if is_full(choice) { full } else { capacity };
        let name = |choice| format!("talk-{}", tokens(choice));
        // Embeddings of turns are made when they are heard.
        let hearing = if choices.iter().any(|&c| !is_full(c)) {
            Some(TurnChoice::Session)
        } else {
            None
        };
        let hearing = hearing.into_iter();
        for choice in hearing.chain(choices.iter().copied().filter(|&c| is_full(c))) {
            let mut listener = engine.start(choice, tokens(choice))?;
            self.hear_all(&mut listener, &name(choice))?;
        }
        for &choice in choices {
            let mut listener = engine.start(choice, tokens(choice))?;
            self.ask_all(&mut listener, choice, &name(choice))?;
        }
        Ok(())
    }

    fn hear_all<L: TalkListener>(&mut self, listener: &mut L, name: &str) -> Result<(), Failure>
    where
        L::Error: Into<Failure>,
    {
        for (number, of) in self.talks {
            eprint!(
                "\r{:6.0} s  {name}-{number} is read        ",
                self.seconds()
            );
            let session = format!("{name}-{number}");
            let heard = listener.hear(&session, &of.talk.turns);
            heard.map_err(Into::into)?;
        }
        eprintln!();
        Ok(())
    }

    fn ask_all<L: TalkListener>(
        &mut self,
        listener: &mut L,
        choice: TurnChoice,
        name: &str,
    ) -> Result<(), Failure>
    where
        L::Error: Into<Failure>,
    {
        for (number, of) in self.talks {
            let session = format!("{name}-{number}");
            let count = of.talk.asked.len();
            let open: Vec<usize> = (0..count)
                .filter(|&question| !self.has(choice, (*number, question)))
                .collect();
            if open.is_empty() {
                continue;
            }
            let heard = listener.hear(&session, &of.talk.turns);
            heard.map_err(Into::into)?;
            for question in open {
                self.ask(listener, choice, &session, (*number, question), of)?;
                eprint!(
                    "\r{:6.0} s  {}: talk {number}, question {} of {count}        ",
                    self.seconds(),
                    choice.name(),
                    question + 1,
                );
            }
        }
        eprintln!();
        Ok(())
    }

    fn ask<L: TalkListener>(
        &mut self,
        listener: &mut L,
        choice: TurnChoice,
        session: &str,
        at: (usize, usize),
        of: &AskedTalk,
    ) -> Result<(), Failure>
    where
        L::Error: Into<Failure>,
    {
        let (talk, kind): (&LongTalk, &str) = (&of.talk, &of.kinds[at.1]);
        let asked = &talk.asked[at.1];
        let given = listener.ask(session, talk, asked).map_err(Into::into)?;
        let judged = JudgedAnswer::new(choice, at, kind, asked, &given);
        if let Some(rows) = &mut self.rows {
            writeln!(rows, "{}", judged.line())?;
        }
        self.judged.push(judged);
        self.asked += 1;
        Ok(())
    }

    fn has(&self, choice: TurnChoice, (talk, question): (usize, usize)) -> bool {
        let mut judged = self.judged.iter();
        judged.any(|a| a.choice == choice && (a.talk, a.question) == (talk, question))
    }

    fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }
}

fn print(judged: &[JudgedAnswer], choices: &[TurnChoice], is_csv: bool) {
    let mut kinds: Vec<&str> = Vec::new();
    for answer in judged {
        if !kinds.contains(&answer.kind.as_str()) {
            kinds.push(&answer.kind);
        }
    }
    let mean = |mean: &MeanOf| match (mean.count, mean.interval) {
        (0, _) => "-".to_owned(),
        (_, None) => format!("{:.3}", mean.mean),
        (_, Some(i)) => format!("{:.3} ({:.3} to {:.3})", mean.mean, i.low, i.high),
    };
    if is_csv {
        println!(
            "choice,kind,questions,f1,f1_low,f1_high,contained,covered,f1_covered,against_full,against_full_low,against_full_high,denied,never,invented,tokens,first_ms,whole_ms"
        );
    }
    for &choice in choices {
        for kind in std::iter::once(None).chain(kinds.iter().copied().map(Some)) {
            let found = AnswerSummary::of(judged, choice, kind);
            let name = kind.unwrap_or("all");
            if is_csv {
                println!("{},{name},{}", choice.name(), values(&found));
            } else if kind.is_none() {
                println!(
                    "{}: F1 {}, contained {}, covered {}, F1 where covered {}, against full {}, denied {}, never said: invented {}; {:.0} tokens, first token {:.0} ms, whole {:.0} ms",
                    choice.name(),
                    mean(&found.f1),
                    mean(&found.contained),
                    mean(&found.covered),
                    mean(&found.f1_covered),
                    mean(&found.against_full),
                    mean(&found.denied),
                    mean(&found.invented),
                    found.tokens,
                    found.first_ms,
                    found.whole_ms,
                );
            } else if found.f1.count > 0 {
                println!(
                    "  {name:10} {:3} questions: F1 {:.3}, contained {:.3}, covered {:.3}, denied {:.3}",
                    found.f1.count,
                    found.f1.mean,
                    found.contained.mean,
                    found.covered.mean,
                    found.denied.mean,
                );
            }
        }
    }
}

/// The columns of a summary after its names.
fn values(found: &AnswerSummary) -> String {
    let mean = |of: &MeanOf| format!("{:.4}", of.mean);
    let both = |of: &MeanOf| {
        let ends = of.interval.map(|i| format!("{:.4},{:.4}", i.low, i.high));
        ends.unwrap_or_else(|| ",".to_owned())
    };
    [
        found.f1.count.to_string(),
        mean(&found.f1),
        both(&found.f1),
        mean(&found.contained),
        mean(&found.covered),
        mean(&found.f1_covered),
        mean(&found.against_full),
        both(&found.against_full),
        mean(&found.denied),
        found.invented.count.to_string(),
        mean(&found.invented),
        format!("{:.0}", found.tokens),
        format!("{:.0}", found.first_ms),
        format!("{:.0}", found.whole_ms),
    ]
    .join(",")
}
