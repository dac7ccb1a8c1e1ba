//! Talks of a file, such as a public set:
//! `[{"turns": [[said, answered], …], "asked": [{"question": text, "evidence": [turn, …], "answer": text, "kind": text}, …]}, …]`.
//! An answer may be left out where none is judged, and a kind where all are one.

use crate::Failure;
use haversack_eval::long_talk::{Hardness, LongQuestion, LongTalk};
use serde_json::Value;

const MALFORMED: &str = "not a list of talks";

/// Each talk with the kinds of its questions.
pub fn talks_of(json: &str) -> Result<Vec<(LongTalk, Vec<String>)>, Failure> {
    let text = |value: &Value| value.as_str().map(str::to_owned).ok_or(MALFORMED);
    let list = |value: &Value| value.as_array().cloned().ok_or(MALFORMED);
    let mut talks = Vec::new();
    for talk in list(&serde_json::from_str(json)?)? {
        let turns = list(&talk["turns"])?.into_iter();
        let turns = turns.map(|turn| Ok((text(&turn[0])?, text(&turn[1])?)));
        let turns = turns.collect::<Result<Vec<_>, Failure>>()?;
        let (mut asked, mut kinds) = (Vec::new(), Vec::new());
        for one in list(&talk["asked"])? {
            let evidence = list(&one["evidence"])?.into_iter();
            let turn = |turn: Value| turn.as_u64().map(|turn| turn as usize);
            let evidence = evidence.map(|n| turn(n).filter(|&n| n < turns.len()));
            asked.push(LongQuestion {
                question: text(&one["question"])?,
                hardness: Hardness::Paraphrase,
                evidence: evidence.collect::<Option<_>>().ok_or(MALFORMED)?,
                answer: one["answer"].as_str().unwrap_or_default().to_owned(),
            });
            kinds.push(one["kind"].as_str().unwrap_or("public").to_owned());
        }
        talks.push((LongTalk { turns, asked }, kinds));
    }
    Ok(talks)
}
