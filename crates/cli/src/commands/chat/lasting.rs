//! A conversation saved to disk under a name, and the commands that only such sessions have.

use super::partner::{Last, Partner, Showing, Slash, TEMPERATURE};
use crate::args;
use crate::engine::{self, LoadedModel, per_second};
use crate::error::{one_line, usage};
use crate::ledger::{self, Holding};
use crate::out;
use anyhow::{Context as _, Result};
use haversack::engine::runtime::{Finish, GenerateOptions};
use haversack::engine::sample::Sampler;
use haversack::memory::bytes::human;
use haversack::memory::clock::now_ms;
use haversack::session::turns::TurnPlace;
use haversack::session::{SessionId, SessionOptions, Sessions, TurnAnswer};
use haversack_hub::home::Home;
use std::sync::Arc;

pub struct Lasting {
    engine: LoadedModel,
    sessions: Sessions,
    id: SessionId,
    name: String,
    system: String,
    sampler: Sampler,
    options: GenerateOptions,
    last: Option<Last>,
    context: Option<haversack::session::ContextReport>,
    question: Option<String>,
    show_stats: bool,
    explain: bool,
}

impl Lasting {
    /// `Err(engine)` where the budget or the context has no room for two streams.
    pub fn new(
        engine: LoadedModel,
        args: &args::ChatArgs,
        home: &Home,
    ) -> Result<Result<Lasting, LoadedModel>> {
        let sampler = engine::sampler(&args.sampling, TEMPERATURE, engine.model.config().vocab)?;
        let stop = engine.model.template().stop_strings();
        let options = SessionOptions {
            dir: Some(home.sessions()),
            prefix_dir: Some(home.sessions().join("prefixes")),
            relevance: args.relevance.unwrap_or_default(),
            ..SessionOptions::default()
        };
        let answer_max = args.max_tokens.unwrap_or(options.answer_max);
        let options = SessionOptions {
            answer_max,
            ..options
        };
        let mut sessions = match Sessions::new(&engine.runtime, options) {
            Ok(sessions) => sessions,
            // A named session must not be replaced by an unsaved chat.
            Err(error) if args.session.is_some() => return Err(named(error)),
            Err(_) => return Ok(Err(engine)),
        };
        match engine::encoder(home)? {
            Some(encoder) => sessions = sessions.with_encoder(Arc::new(encoder)),
            None => out::note(
                "no sentence encoder: answers see every turn in memory (get one with: haversack pull minilm)",
            ),
        }
        let mut engine = engine;
        let system = args.system.clone().unwrap_or_default();
        let name = match &args.session {
            Some(name) => name.clone(),
            None => fresh_name(&sessions)?,
        };
        let exists = sessions.list()?.iter().any(|listed| listed.name == name);
        let id = match exists {
            true => sessions.resume(&mut engine.runtime, &name),
            false => sessions.create(&mut engine.runtime, &name, &system, now_ms()),
        };
        let id = id.map_err(named)?;
        if exists && args.system.is_some() {
            out::note("this session already has a system message; /fact adds to it");
        }
        Ok(Ok(Lasting {
            sessions,
            id,
            name,
            system,
            sampler,
            options: GenerateOptions {
                tokens_max: Some(answer_max),
                stop: stop.iter().map(|text| text.to_string()).collect(),
                ignore_end: false,
            },
            last: None,
            context: None,
            question: None,
            show_stats: args.stats,
            explain: args.explain,
            engine,
        }))
    }

    pub fn greeting(&self) -> Result<String> {
        let options = self.sessions.options();
        let turns = self.sessions.turns(self.id)?;
        let said = match turns.iter().filter(|turn| !turn.is_state).count() {
            0 => "new".to_owned(),
            1 => "1 turn so far".to_owned(),
            turns => format!("{turns} turns so far"),
        };
        Ok(format!(
            "session {}, {said}; {} tokens in memory at a time, no end, {} keys and values. /help for help.",
            self.name,
            options.persistent_max + options.capacity,
            self.engine.runtime.kv().name()
        ))
    }

    /// Puts the session away and says how to go on with it. One that got its name here and in which nothing was said
    /// leaves no file.
    pub fn end(mut self) -> Result<()> {
        // Fact 0 is the text it was made with.
        let told = self
            .sessions
            .facts(self.id)?
            .iter()
            .any(|&(number, _)| number > 0);
        let silent = !told && self.sessions.turns(self.id)?.is_empty();
        self.sessions
            .suspend(&mut self.engine.runtime, self.id)
            .map_err(named)?;
        match silent && number(&self.name).is_some() {
            true => self.sessions.delete(&self.name).map_err(named)?,
            false => out::note(&format!(
                "saved; continue with: haversack chat --session {}",
                self.name
            )),
        }
        Ok(())
    }

    fn tell(&mut self, answer: TurnAnswer, before: u64) -> Result<()> {
        match answer.finish {
            Finish::Cancelled => out::note("(stopped)"),
            Finish::Length => {
                out::note("(stopped at the token limit of an answer; set it with -n)")
            }
            Finish::Stop => {}
        }
        if let Some(reason) = &answer.context.unsaved {
            out::note(&format!("(not saved: {})", one_line(&reason.to_string())));
        }
        let position = self.sessions.stats(&self.engine.runtime, self.id)?.position;
        self.last = Some(Last {
            prompt: (position - before) as usize
                - answer.tokens.len().min((position - before) as usize),
            reused: 0,
            generation: answer.generation,
        });
        self.context = Some(answer.context);
        if self.show_stats {
            out::note(&self.stats()?);
        }
        if self.explain {
            out::note(&self.explained()?);
        }
        Ok(())
    }

    fn list(&self) -> Result<()> {
        for listed in self.sessions.list()? {
            let mark = if listed.name == self.name { '*' } else { ' ' };
            out::line(&format!(
                "{mark} {:<24} {}",
                listed.name,
                human(listed.bytes)
            ))?;
        }
        Ok(())
    }

    fn open(&mut self, name: Option<&str>) -> Result<()> {
        let name = name.ok_or_else(|| usage("/open needs a session name; /sessions lists them"))?;
        if name == self.name {
            return Ok(());
        }
        if !self.sessions.list()?.iter().any(|l| l.name == name) {
            return Err(usage(format!(
                "there is no session {}; /sessions lists them",
                one_line(name)
            )));
        }
        let runtime = &mut self.engine.runtime;
        let id = self.sessions.resume(runtime, name).map_err(named)?;
        self.switch(id, name)
    }

    fn begin(&mut self, name: Option<&str>) -> Result<()> {
        let name = match name {
            Some(name) => name.to_owned(),
            None => fresh_name(&self.sessions)?,
        };
        let runtime = &mut self.engine.runtime;
        let id = self.sessions.create(runtime, &name, &self.system, now_ms());
        self.switch(id.map_err(named)?, &name)
    }

    fn fork(&mut self, name: Option<&str>) -> Result<()> {
        let name = match name {
            Some(name) => name.to_owned(),
            None => fresh_name(&self.sessions)?,
        };
        let runtime = &mut self.engine.runtime;
        let id = self.sessions.fork(runtime, self.id, &name).map_err(named)?;
        self.switch(id, &name)
    }

    fn switch(&mut self, id: SessionId, name: &str) -> Result<()> {
        let runtime = &mut self.engine.runtime;
        if let Err(error) = self.sessions.suspend(runtime, self.id) {
            // What is not saved is not left behind.
            self.sessions.close(runtime, id)?;
            return Err(named(error));
        }
        self.id = id;
        self.name = name.to_owned();
        (self.last, self.context, self.question) = (None, None, None);
        out::note(&self.greeting()?);
        Ok(())
    }

    fn fact(&mut self, text: Option<&str>) -> Result<()> {
        let Some(text) = text else {
            let facts = self.sessions.facts(self.id)?;
            for (number, text) in facts.into_iter().filter(|(_, text)| !text.is_empty()) {
                out::line(&format!("{number:>4}  {}", one_line(text)))?;
            }
            return Ok(());
        };
        // `/fact 3 TEXT` takes the place of fact 3.
        let (number, rest) = match text
            .split_once(' ')
            .map(|(n, rest)| (n.parse::<u64>(), rest))
        {
            Some((Ok(number), rest)) => (Some(number), rest.trim()),
            _ => (None, text),
        };
        let (sessions, runtime) = (&mut self.sessions, &mut self.engine.runtime);
        let number = match number {
            Some(old) => sessions.supersede(runtime, self.id, old, rest, now_ms()),
            None => sessions.add_fact(runtime, self.id, text, now_ms()),
        };
        out::note(&format!("fact {}", number.map_err(named)?));
        Ok(())
    }

    fn state(&mut self, text: Option<&str>) -> Result<()> {
        let turns = self.sessions.turns(self.id)?;
        let mut states = Vec::new();
        for turn in turns.iter().filter(|turn| turn.is_state) {
            let view = self.sessions.turn(self.id, turn.number).map_err(named)?;
            states.push((turn.number, view.text));
        }
        let Some(text) = text else {
            for (_, text) in states {
                out::line(&one_line(&text))?;
            }
            return Ok(());
        };
        let (name, value) = text
            .split_once(':')
            .ok_or_else(|| usage("/state NAME: TEXT"))?;
        let mut known = states.iter().filter_map(|(number, text)| {
            let (known, _) = text.split_once(':')?;
            (known.trim() == name.trim()).then_some(*number)
        });
        let (old, name) = (known.next(), name.trim());
        let (sessions, runtime) = (&mut self.sessions, &mut self.engine.runtime);
        match (value.trim(), old) {
            ("", None) => return Err(usage(format!("there is no state {name}"))),
            ("", Some(old)) => sessions.drop_state(runtime, self.id, old).map_err(named)?,
            (value, old) => {
                let text = format!("{name}: {value}");
                let told = sessions.tell_state(runtime, self.id, &text, now_ms(), old);
                told.map(drop).map_err(named)?;
            }
        }
        out::note(&format!("state {name}"));
        Ok(())
    }

    fn forget(&mut self, number: Option<&str>) -> Result<()> {
        let number = number_of("/forget", number)?;
        let (sessions, runtime) = (&mut self.sessions, &mut self.engine.runtime);
        sessions.revoke(runtime, self.id, number).map_err(named)?;
        out::note(&format!("fact {number} deleted"));
        Ok(())
    }

    fn turns(&self) -> Result<()> {
        for turn in self.sessions.turns(self.id)? {
            let place = match (turn.place, turn.is_visible) {
                (TurnPlace::Live, true) if turn.is_state => "state",
                (TurnPlace::Live, true) => "visible",
                (TurnPlace::Live, false) => "hidden",
                (TurnPlace::Spilled, _) => "on disk",
                (TurnPlace::Ids, _) => "ids",
            };
            let view = self.sessions.turn(self.id, turn.number).map_err(named)?;
            let text: String = one_line(&view.text).chars().take(60).collect();
            out::line(&format!(
                "{:>5}  {place:<8} {:>5} tokens  {text}",
                turn.number,
                turn.tokens()
            ))?;
        }
        Ok(())
    }

    /// The last turn is taken back and asked again, or another in its place.
    fn regenerate(&mut self, text: Option<&str>) -> Result<()> {
        let text = match (text, &self.question) {
            (Some(text), _) => text.to_owned(),
            (None, Some(text)) => text.clone(),
            (None, None) => return Err(usage("there is no question to regenerate")),
        };
        self.sessions.retract(&mut self.engine.runtime, self.id)?;
        self.answer(&text)
    }

    fn set_system(&mut self, text: Option<&str>) -> Result<()> {
        let text = text.unwrap_or_default();
        self.system = text.to_owned();
        if text.is_empty() {
            out::note("new sessions start without a system message; this one keeps its own");
            return Ok(());
        }
        self.fact(Some(text))
    }

    fn stats(&self) -> Result<String> {
        let sequence = self.sessions.sequence(self.id)?;
        let holding = Holding::of(&self.engine.runtime, sequence)?;
        let stats = self.sessions.stats(&self.engine.runtime, self.id)?;
        let mut text = match &self.last {
            Some(last) => format!(
                "{} tokens at {:.1}/s; prompt {} tokens at {:.1}/s; ",
                last.generation.tokens.len(),
                per_second(
                    last.generation.tokens.len().saturating_sub(1),
                    last.generation.decode
                ),
                last.prompt,
                per_second(last.prompt, last.generation.prefill),
            ),
            None => String::new(),
        };
        text.push_str(&format!(
            "{} turns: {} tokens visible, {} hidden, {} on disk, {} as ids, {} forgotten; {} persistent; file {}\n{}",
            stats.turns,
            stats.visible,
            stats.hidden,
            stats.spilled,
            stats.ids,
            stats.forgotten,
            stats.persistent,
            human(stats.file_bytes),
            ledger::bar(&self.engine.runtime, &holding)
        ));
        Ok(text)
    }

    fn explained(&self) -> Result<String> {
        let Some(context) = &self.context else {
            return Ok("there is no answer yet".to_owned());
        };
        let recalled: Vec<String> = context.recalled.iter().map(u64::to_string).collect();
        let recalled = match recalled.is_empty() {
            true => "none".to_owned(),
            false => recalled.join(", "),
        };
        let mut text = format!(
            "context: kept {}, masked {}, spilled {}, evicted {}, cached {}, recomputed {}; turns recalled: {recalled}; {}",
            context.kept,
            context.masked,
            context.spilled,
            context.evicted,
            context.cached,
            context.recomputed,
            context.plan
        );
        if context.unjudged {
            text.push_str("; no sentence encoder, so every turn in memory is visible");
        }
        Ok(text)
    }
}

impl Partner for Lasting {
    fn answer(&mut self, text: &str) -> Result<()> {
        let mut showing = Showing::new(None);
        let before = self.sessions.stats(&self.engine.runtime, self.id)?.position;
        let result = self.sessions.say(
            &mut self.engine.runtime,
            self.id,
            text,
            now_ms(),
            &mut self.sampler,
            &self.options,
            &mut |event| showing.show(event),
        );
        showing.end()?;
        let answer = result.with_context(|| self.engine.name())?;
        out::text("\n")?;
        self.question = Some(text.to_owned());
        self.tell(answer, before)
    }

    fn command(&mut self, slash: &Slash<'_>) -> Result<bool> {
        match *slash {
            Slash::Sessions => self.list()?,
            Slash::Open(name) => self.open(name)?,
            Slash::New(name) => self.begin(name)?,
            Slash::Fork(name) => self.fork(name)?,
            Slash::Fact(text) => self.fact(text)?,
            Slash::State(text) => self.state(text)?,
            Slash::Forget(number) => self.forget(number)?,
            Slash::Turns => self.turns()?,
            Slash::Recall(number) => {
                let number = number_of("/recall", number)?;
                self.sessions.recall(self.id, number).map_err(named)?;
                out::note(&format!("the next answer sees turn {number}"));
            }
            Slash::Context => out::line(&self.explained()?)?,
            Slash::Regenerate => self.regenerate(None)?,
            Slash::Edit(text) => {
                let text = text.ok_or_else(|| {
                    usage("/edit TEXT asks another question in place of the last")
                })?;
                self.regenerate(Some(text))?;
            }
            Slash::Clear => {
                while self
                    .sessions
                    .retract(&mut self.engine.runtime, self.id)?
                    .is_some()
                {}
                (self.last, self.context, self.question) = (None, None, None);
            }
            Slash::System(text) => self.set_system(text)?,
            Slash::Stats => out::line(&self.stats()?)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Name of a session that was started without one.
fn number(name: &str) -> Option<u64> {
    name.strip_prefix("chat-")?.parse().ok()
}

/// A name of which there is no session: `chat-1`, `chat-2`, …
fn fresh_name(sessions: &Sessions) -> Result<String> {
    let listed = sessions.list()?;
    let last = listed.iter().filter_map(|l| number(&l.name)).max();
    Ok(format!("chat-{}", last.unwrap_or(0).saturating_add(1)))
}

fn number_of(command: &str, argument: Option<&str>) -> Result<u64> {
    let number = argument.and_then(|text| text.parse().ok());
    number.ok_or_else(|| usage(format!("{command} NUMBER; /turns and /fact list them")))
}

/// What the user named and cannot be had is a usage error.
fn named(error: haversack::session::SessionError) -> anyhow::Error {
    use haversack::session::SessionError as E;
    match error {
        E::Name(_) | E::PersistentFull { .. } | E::NoSuchFact { .. } | E::NoSuchTurn { .. } => {
            usage(error.to_string())
        }
        // It says what is below it already.
        _ => anyhow::anyhow!("{error}"),
    }
}
