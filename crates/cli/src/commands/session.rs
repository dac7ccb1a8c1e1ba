//! `session`: lists saved sessions, exports what they hold, searches them, deletes them. A damaged file is exported up to the damage.

use super::session_file;
use super::session_search::{self, Searched};
use crate::args::{SessionArgs, SessionCommand, SessionExportArgs, SessionSearchArgs};
use crate::error::{one_line, usage};
use crate::{out, resolve, save};
use anyhow::{Context, Result, anyhow};
use haversack::ConversationPage;
use haversack::engine::{LoadOptions, Model};
use haversack::memory::bytes::human;
use haversack::session::date::date_of;
use haversack::session::export::{SessionExport, TurnText};
use haversack::session::layout::ChatLayout;
use haversack::session::record::TurnRecord;
use haversack::session::{SessionError, SessionFolder};
use haversack_hub::home::Home;
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};

pub fn session(args: &SessionArgs, as_json: bool) -> Result<()> {
    match &args.command {
        SessionCommand::List => list(as_json),
        SessionCommand::Export(args) => export(args, as_json),
        SessionCommand::Search(args) => search(args, as_json),
        SessionCommand::Delete { names } => delete(names, as_json),
    }
}

/// The saved sessions of this user.
pub fn home_folder() -> Result<SessionFolder> {
    let sessions = Home::find()?.sessions();
    let prefixes = sessions.join("prefixes");
    Ok(SessionFolder::new(sessions, Some(prefixes)))
}

fn list(as_json: bool) -> Result<()> {
    let folder = home_folder()?;
    let (sessions, removed) = (folder.list()?, folder.removed());
    if as_json {
        let sessions = out::list(
            &sessions,
            |one| json!({ "name": one.name, "bytes": one.bytes, "saved_ms": one.saved_ms }),
        );
        let removed = out::list(&removed, |gone| {
            json!({
                "name": gone.name,
                "bytes": gone.bytes,
                "reason": gone.cause.name(),
                "time_ms": gone.time_ms,
            })
        });
        return out::json(&json!({ "sessions": sessions, "removed": removed }));
    }
    for session in sessions {
        out::line(&format!("{:<24} {}", session.name, human(session.bytes)))?;
    }
    for gone in removed {
        out::line(&format!("{gone}"))?;
    }
    Ok(())
}

fn delete(names: &[String], as_json: bool) -> Result<()> {
    let folder = home_folder()?;
    for name in names {
        folder.delete(name).map_err(named)?;
        if !as_json {
            out::note(&format!("session {name} deleted"));
        }
    }
    if as_json {
        out::json(&json!({ "deleted": names }))?;
    }
    Ok(())
}

fn named(error: SessionError) -> anyhow::Error {
    match error {
        SessionError::Name(_) => usage(error.to_string()),
        error => anyhow!("{error}"),
    }
}

/// A path of a session's file, or the name of a session.
fn path_of(session: &str) -> Result<PathBuf> {
    if let Some(path) = session_file::meant(session) {
        return Ok(path.to_owned());
    }
    let path = home_folder()?.path(session).map_err(named)?;
    match path.exists() {
        true => Ok(path),
        false => Err(anyhow!("there is no session {session}")),
    }
}

fn export(args: &SessionExportArgs, as_json: bool) -> Result<()> {
    let path = path_of(&args.session)?;
    let found = SessionExport::of(&path, None).with_context(|| path.display().to_string())?;
    let layout = layout_of(args, &found).with_context(|| path.display().to_string());
    let layout = match layout {
        Ok(layout) => Some(layout),
        // Ids without words are better than nothing.
        Err(error) if as_json => {
            out::note(&format!(
                "no text, token ids only: {}",
                one_line(&format!("{error:#}"))
            ));
            None
        }
        Err(error) => return Err(error),
    };
    let turns: Result<Vec<ExportedTurn>> = (found.turns.iter())
        .map(|turn| {
            let text = layout
                .as_ref()
                .map(|layout| SessionExport::text(layout, turn));
            let text = text.transpose()?;
            Ok(ExportedTurn { turn, text })
        })
        .collect();
    let turns = turns.with_context(|| path.display().to_string())?;
    let document = match as_json {
        true => serde_json::to_string_pretty(&document(&path, &found, &turns))? + "\n",
        false => markdown(&path, &found, &turns),
    };
    match &args.output {
        None => out::text(&document)?,
        Some(output) => save::write_new(output, &document, "remove it, or name another file")?,
    }
    if let Some(damage) = &found.damage {
        out::note(&format!("{}: {}", path.display(), one_line(damage)));
    }
    let (facts, said) = (found.facts.len(), turns.len());
    let part = if found.damage.is_some() {
        " before the damage"
    } else {
        ""
    };
    out::note(&format!("exported: {facts} facts, {said} turns{part}"));
    Ok(())
}

struct ExportedTurn<'a> {
    turn: &'a TurnRecord,
    /// `None` without the model.
    text: Option<TurnText>,
}

/// How the tokens of a model become words.
fn layout(model: Option<&str>) -> Result<ChatLayout> {
    let model = resolve::model(model)?;
    let model = Model::load(&model, &LoadOptions::default(), &mut |_, _| ())?;
    Ok(ChatLayout::new(model))
}

/// The same, for a model that the session was made with.
fn layout_of(args: &SessionExportArgs, found: &SessionExport) -> Result<ChatLayout> {
    let layout = layout(args.model.as_deref())?;
    found.check_model(layout.model())?;
    Ok(layout)
}

fn search(args: &SessionSearchArgs, as_json: bool) -> Result<()> {
    let words = session_search::words(args.words.iter().map(String::as_str))?;
    let folder = home_folder()?;
    let layout = layout(args.model.as_deref())?;
    if !as_json {
        return session_search::print(&folder, &layout, &words);
    }
    let (mut sessions, mut skipped) = (Vec::new(), Vec::new());
    session_search::search(&folder, &layout, &words, |searched| {
        match searched {
            Searched::Found(hit) => sessions.push(json!({
                "name": hit.name,
                "saved_ms": hit.saved_ms,
                "kind": hit.kind,
                "number": hit.number,
                "text": hit.text,
            })),
            Searched::Skipped { name, reason } => {
                skipped.push(json!({ "name": name, "reason": reason }));
            }
        }
        Ok(())
    })?;
    out::json(&json!({ "words": words.words(), "sessions": sessions, "skipped": skipped }))
}

fn markdown(path: &Path, found: &SessionExport, turns: &[ExportedTurn<'_>]) -> String {
    let name = found.identity.iter().find(|(name, _)| name == "session");
    let name = name.map_or("", |(_, name)| name);
    let mut page = ConversationPage::new(&one_line(&format!("Session {name}")));
    if let Some(damage) = &found.damage {
        page.damage(path, &one_line(damage));
    }
    for fact in &found.facts {
        page.fact(fact.number, &fact.text);
    }
    for ExportedTurn { turn, text } in turns {
        let Some(TurnText { question, answer }) = text else {
            continue;
        };
        match answer {
            None => page.state(turn.number, question),
            Some(answer) => {
                let date = turn.is_dated.then(|| date_of(turn.time_ms));
                page.turn(turn.number, date.as_deref(), question, answer);
            }
        }
    }
    page.into_text()
}

fn document(path: &Path, found: &SessionExport, turns: &[ExportedTurn<'_>]) -> Json {
    let facts = out::list(&found.facts, |fact| {
        json!({
            "number": fact.number,
            "time_ms": fact.time_ms,
            "text": fact.text,
            "found_in": fact.found_in,
            "tokens": fact.tokens,
        })
    });
    let turns = out::list(turns, |ExportedTurn { turn, text }| {
        let (asked, answered) = turn.tokens.split_at(turn.question as usize);
        json!({
            "number": turn.number,
            "time_ms": turn.time_ms,
            "is_state": answered.is_empty(),
            "question": text.as_ref().map(|text| &text.question),
            "answer": text.as_ref().and_then(|text| text.answer.as_ref()),
            "question_tokens": asked,
            "answer_tokens": answered,
        })
    });
    json!({
        "path": path,
        "identity": found.identity.iter().cloned().collect::<Json>(),
        "records": found.records,
        "damage": found.damage,
        "facts": facts,
        "turns": turns,
    })
}
