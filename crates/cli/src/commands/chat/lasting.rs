//! A conversation saved to disk under a name, and the commands that only such sessions have.

use super::lines::Print;
use super::partner::{self, Partner, Slash, next_sample};
use super::remember::Remembering;
use crate::answer::Shown;
use crate::args::{self, Switch};
use crate::engine::{self, LoadedModel};
use crate::error::{one_line, usage};
use crate::{encoder, ledger, out};
use anyhow::{Context as _, Result};
use haversack::engine::Model;
use haversack::engine::sample::SampleOptions;
use haversack::memory::bytes::human;
use haversack::memory::clock::now_ms;
use haversack::session::turns::{Turn, TurnPlace};
use haversack::session::{
    ContextReport, LimitError, SessionError, SessionOptions, Sessions, TurnView,
};
use haversack::{ContextSeen, Conversation, ConversationBuilder, Engine, Error, Owner};
use haversack_hub::home::Home;
use std::sync::Arc;

pub struct Lasting {
    engine: Engine,
    conversation: Conversation,
    /// Of the model, for errors.
    model: String,
    /// Of its streams together, in tokens.
    in_memory: usize,
    system: String,
    sample: SampleOptions,
    /// As the user asked.
    max_tokens: Option<usize>,
    stop_repetition: bool,
    /// The last question and its answer, and the tokens that were read for it.
    last: Option<(String, Shown, usize)>,
    show_stats: bool,
    explain: bool,
    /// Answers are shown without styles.
    is_plain: bool,
    /// New sessions have the date before messages.
    has_dates: bool,
    /// `None`: facts are only told.
    remembering: Option<Remembering>,
}

/// Requests whose prompts are kept: a search asks about a sentence, then compares it with three older ones.
const SEARCH_PREFIXES: usize = 4;

impl Lasting {
    /// `None` where the budget or the context has no room for two streams.
    pub fn new(
        loaded: LoadedModel,
        args: &args::ChatArgs,
        home: &Home,
        finds_facts: bool,
    ) -> Result<Option<Lasting>> {
        let vocabulary = loaded.model.config().vocab;
        let usual = loaded.model.sampling();
        let sample = engine::sample_options(&args.sampling, vocabulary, Some(usual))?;
        let options = SessionOptions {
            dir: Some(home.sessions()),
            prefix_dir: Some(home.sessions().join("prefixes")),
            settings: args.sessions.settings(args.max_tokens),
            limits: args.limits.folder(),
            ..SessionOptions::default()
        };
        let mut sessions = match Sessions::new(&loaded.runtime, options) {
            Ok(sessions) => sessions,
            Err(error @ SessionError::Limit(LimitError::Setting { .. })) => {
                let text = format!("--session-{error}");
                let text = text.replacen("--session-answer", "--max-tokens", 1);
                return Err(usage(text));
            }
            // A named session must not be replaced by an unsaved chat.
            Err(error) if args.session.is_some() => return Err(named(error.into())),
            Err(_) => return Ok(None),
        };
        for gone in sessions.keep_limits(now_ms())? {
            out::note(&gone.to_string());
        }
        let sessions = encoder::give(sessions, home, args.sessions.no_encoder)?;
        let (model, limits) = (loaded.name(), sessions.limits());
        let in_memory = limits.persistent_max + limits.capacity;
        loaded.note_budget();
        let prefixes = if finds_facts { SEARCH_PREFIXES } else { 0 };
        let (engine, _) = loaded.start(Some(sessions), prefixes)?;
        let name = match &args.session {
            Some(name) => name.clone(),
            None => fresh_name(&engine)?,
        };
        let system = args.system.clone().unwrap_or_default();
        let list = engine.client().list(Owner::default()).wait()?;
        let exists = list.sessions.iter().any(|listed| listed.name == name);
        if let Some(gone) = list
            .removed
            .iter()
            .rfind(|gone| gone.name == name && !exists)
        {
            out::note(&format!("{gone}; this one is new"));
        }
        let conversation = engine.conversation(name).system(&system);
        let has_dates = args.sessions.dates;
        let conversation = dated(conversation, has_dates).open();
        let conversation = conversation.map_err(named)?;
        if exists && args.system.is_some() {
            out::note("this session already has a system message; /fact adds to it");
        }
        Ok(Some(Lasting {
            engine,
            conversation,
            model,
            in_memory,
            system,
            sample,
            max_tokens: args.max_tokens,
            stop_repetition: args.stop_repetition != Some(Switch::Off),
            last: None,
            show_stats: args.stats,
            explain: args.explain,
            is_plain: args.plain,
            has_dates,
            remembering: finds_facts.then(Remembering::default),
        }))
    }

    pub fn greeting(&self) -> Result<String> {
        let turns = self.conversation.view(usize::MAX)?.turns;
        let said = match turns.iter().filter(|view| is_answered(view)).count() {
            0 => "new".to_owned(),
            1 => "1 turn so far".to_owned(),
            turns => format!("{turns} turns so far"),
        };
        Ok(format!(
            "session {}, {said}; {} tokens in memory at a time, no end, {} keys and values. /help for help.",
            self.conversation.name(),
            self.in_memory,
            self.engine.client().layout().kv.name()
        ))
    }

    pub fn name(&self) -> &str {
        self.conversation.name()
    }

    /// Puts the session away and says how to go on with it. One that got its name here and in which nothing was said
    /// leaves no file.
    pub fn end(self) -> Result<()> {
        let view = self.conversation.view(1)?;
        // Fact 0 is the text it was made with.
        let told = view.facts.iter().any(|fact| fact.number > 0);
        let silent = !told && view.turns.is_empty();
        self.conversation.suspend().map_err(named)?;
        let name = self.conversation.name();
        match silent && number(name).is_some() {
            true => self.conversation.delete().map_err(named),
            false => {
                out::note(&format!(
                    "saved; continue with: haversack chat --session {name}"
                ));
                Ok(())
            }
        }
    }

    fn list(&self) -> Result<()> {
        let list = self.engine.client().list(Owner::default()).wait()?;
        for listed in &list.sessions {
            let is_this = listed.name == self.conversation.name();
            let mark = if is_this { '*' } else { ' ' };
            out::line(&format!(
                "{mark} {:<24} {}",
                listed.name,
                human(listed.bytes)
            ))?;
        }
        for gone in &list.removed {
            out::line(&format!("  {gone}"))?;
        }
        Ok(())
    }

    fn open(&mut self, name: Option<&str>) -> Result<()> {
        let name = name.ok_or_else(|| usage("/open needs a session name; /sessions lists them"))?;
        if name == self.conversation.name() {
            return Ok(());
        }
        if !is_listed(&self.engine, name)? {
            return Err(usage(format!(
                "there is no session {}; /sessions lists them",
                one_line(name)
            )));
        }
        let opened = self.engine.conversation(name).open().map_err(named)?;
        self.switch(opened)
    }

    fn begin(&mut self, name: Option<&str>) -> Result<()> {
        let name = self.name_or_fresh(name)?;
        let begun = self.engine.conversation(name).system(&self.system);
        let begun = dated(begun, self.has_dates).begin();
        self.switch(begun.map_err(named)?)
    }

    fn fork(&mut self, name: Option<&str>) -> Result<()> {
        let name = self.name_or_fresh(name)?;
        let fork = self.conversation.fork(name).map_err(named)?;
        self.switch(fork)
    }

    fn name_or_fresh(&self, name: Option<&str>) -> Result<String> {
        match name {
            Some(name) => Ok(name.to_owned()),
            None => fresh_name(&self.engine),
        }
    }

    /// Stays where it is if what was said here cannot be saved.
    fn switch(&mut self, to: Conversation) -> Result<()> {
        self.conversation.suspend().map_err(named)?;
        self.conversation = to;
        self.last = None;
        self.look_through_no_more();
        out::note(&self.greeting()?);
        Ok(())
    }

    fn fact(&mut self, text: Option<&str>) -> Result<()> {
        let Some(text) = text else {
            let facts = self.conversation.facts()?;
            for fact in facts.iter().filter(|fact| !fact.text.is_empty()) {
                let source = fact.found_in.map(|turn| format!("  (turn {turn})"));
                let text = one_line(&fact.text);
                out::line(&format!(
                    "{:>4}  {text}{}",
                    fact.number,
                    source.unwrap_or_default()
                ))?;
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
        let number = match number {
            Some(old) => self.conversation.replace_fact(old, rest),
            None => self.conversation.add_fact(text),
        };
        out::note(&format!("fact {}", number.map_err(named)?));
        Ok(())
    }

    fn state(&mut self, text: Option<&str>) -> Result<()> {
        let turns = self.conversation.view(usize::MAX)?.turns;
        let states: Vec<(u64, String)> = turns
            .into_iter()
            .filter(|view| view.turn.is_state)
            .map(|view| (view.turn.number, view.text))
            .collect();
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
        let done = match (value.trim(), old) {
            ("", None) => return Err(usage(format!("there is no state {name}"))),
            ("", Some(old)) => self.conversation.delete_state(old),
            (value, old) => (self.conversation).set_state(format!("{name}: {value}"), old),
        };
        done.map_err(named)?;
        out::note(&format!("state {name}"));
        Ok(())
    }

    fn forget(&mut self, number: Option<&str>) -> Result<()> {
        let number = number_of("/forget", number)?;
        self.conversation.revoke_fact(number).map_err(named)?;
        out::note(&format!("fact {number} deleted"));
        Ok(())
    }

    fn turns(&self) -> Result<()> {
        for view in self.conversation.view(usize::MAX)?.turns {
            let turn = &view.turn;
            let place = match (turn.place, turn.is_visible) {
                _ if turn.is_excluded => "excluded",
                (TurnPlace::Live, true) if turn.is_state => "state",
                (TurnPlace::Live, true) if turn.is_pinned => "pinned",
                (TurnPlace::Live, true) => "visible",
                (TurnPlace::Live, false) => "hidden",
                (TurnPlace::Spilled, _) => "on disk",
                (TurnPlace::Ids, _) => "ids",
            };
            let text: String = one_line(&view.text).chars().take(60).collect();
            out::line(&format!(
                "{:>5}  {place:<8} {:>5} tokens  {text}",
                turn.number,
                turn.tokens()
            ))?;
        }
        Ok(())
    }

    /// A turn by the number that a person gave.
    fn turn(&self, number: u64) -> Result<Turn> {
        let turns = self.conversation.view(usize::MAX)?.turns;
        let found = turns.into_iter().find(|view| view.turn.number == number);
        found
            .map(|view| view.turn)
            .ok_or_else(|| usage(format!("there is no turn {number}; /turns lists them")))
    }

    /// The last turn is taken back and asked again, or another in its place.
    fn regenerate(&mut self, text: Option<&str>) -> Result<()> {
        let text = match (text, &self.last) {
            (Some(text), _) => text.to_owned(),
            (None, Some((question, ..))) => question.clone(),
            (None, None) => return Err(usage("there is no question to regenerate")),
        };
        self.look_through_no_more();
        self.conversation.retract()?;
        self.answer(&text)
    }

    /// Turns that were not looked through for facts are no longer there.
    fn look_through_no_more(&mut self) {
        if let Some(remembering) = &mut self.remembering {
            remembering.clear();
        }
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
        let view = self.conversation.view(0)?;
        let stats = view.stats;
        let speed = self.last.as_ref().map(|(_, shown, prompt)| {
            let words = format!("{prompt} tokens");
            partner::speed(shown, &words, *prompt)
        });
        Ok(format!(
            "{}{} turns: {} tokens visible, {} hidden, {} on disk, {} as ids, {} forgotten; {} persistent; file {}\n{}",
            speed.unwrap_or_default(),
            stats.turns,
            stats.visible,
            stats.hidden,
            stats.spilled,
            stats.ids,
            stats.forgotten,
            stats.persistent,
            human(stats.file_bytes),
            ledger::bar(self.engine.client().layout(), &view.usage)
        ))
    }

    fn context(&self) -> Option<&ContextReport> {
        match &self.last.as_ref()?.1.report.context {
            ContextSeen::Turn { context, .. } => Some(context),
            ContextSeen::Completion(_) => None,
        }
    }

    fn explained(&self) -> String {
        let Some(context) = self.context() else {
            return "there is no answer yet".to_owned();
        };
        let turns = context.recalled.iter().zip(&context.recalled_by);
        let recalled: Vec<String> = turns
            .map(|(turn, rank)| match rank {
                Some(rank) => format!("{turn} (by {}, {:.2})", rank.by, rank.similarity),
                None => turn.to_string(),
            })
            .collect();
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
        if context.parts > 0 {
            text += &format!(
                "; the message did not fit and was read in {} parts",
                context.parts
            );
        }
        for change in &context.changes {
            let (turn, capacity, reason) = (change.turn, change.capacity, &change.reason);
            text += &format!("; capacity {capacity} from turn {turn} on, {reason}");
        }
        if let Some(condensed) = &context.condensed {
            text += &format!("; persistent text condensed: {condensed}");
        }
        if context.unjudged {
            text.push_str("; no sentence encoder, so turns come back by their words");
        }
        text
    }
}

impl Partner for Lasting {
    fn answer(&mut self, text: &str) -> Result<()> {
        let before = self.conversation.stats()?.position;
        let prompt = self
            .conversation
            .say(text)
            .max_tokens(self.max_tokens)
            .stop_repetition(self.stop_repetition)
            .sample(next_sample(&mut self.sample));
        let shown = partner::show(prompt, self.is_plain).with_context(|| self.model.clone())?;
        out::text("\n")?;
        partner::note_end(shown.finish, None);
        let read = self.conversation.stats()?.position.saturating_sub(before) as usize;
        let prompt_tokens = read.saturating_sub(shown.tokens.len());
        let turn = match shown.report.context {
            ContextSeen::Turn { number, .. } => number,
            ContextSeen::Completion(_) => None,
        };
        if let (Some(remembering), Some(turn)) = (&mut self.remembering, turn) {
            remembering.add(turn);
        }
        self.last = Some((text.to_owned(), shown, prompt_tokens));
        if let Some(reason) = self.context().and_then(|context| context.unsaved.as_ref()) {
            out::note(&format!("(not saved: {})", one_line(&reason.to_string())));
        }
        if let Some(parts) = self
            .context()
            .map(|context| context.parts)
            .filter(|n| *n > 0)
        {
            let spilled = self.context().map_or(0, |context| context.spilled);
            out::note(&format!(
                "(the message did not fit as a whole: read in {parts} parts; {spilled} tokens of the conversation are on disk only)"
            ));
        }
        if self.show_stats {
            out::note(&self.stats()?);
        }
        if self.explain {
            out::note(&self.explained());
        }
        Ok(())
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
                self.conversation.recall(number).map_err(named)?;
                out::note(&format!("the next answer sees turn {number}"));
            }
            Slash::Pin(number) => {
                let number = number_of("/pin", number)?;
                let is_pinned = !self.turn(number)?.is_pinned;
                match is_pinned {
                    true => self.conversation.pin(number).map_err(named)?,
                    false => self.conversation.unpin(number).map_err(named)?,
                }
                out::note(&match is_pinned {
                    true => format!("every answer sees turn {number}; /pin {number} ends that"),
                    false => format!("turn {number} may leave memory again"),
                });
            }
            Slash::Exclude(number) => {
                let number = number_of("/exclude", number)?;
                let is_excluded = !self.turn(number)?.is_excluded;
                match is_excluded {
                    true => self.conversation.exclude(number).map_err(named)?,
                    false => self.conversation.include(number).map_err(named)?,
                }
                out::note(&match is_excluded {
                    true => format!("no answer sees turn {number}; /exclude {number} ends that"),
                    false => format!("answers may see turn {number} again"),
                });
            }
            Slash::Context => out::line(&self.explained())?,
            Slash::Regenerate => self.regenerate(None)?,
            Slash::Edit(text) => {
                let text = text.ok_or_else(|| {
                    usage("/edit TEXT asks another question in place of the last")
                })?;
                self.regenerate(Some(text))?;
            }
            Slash::Clear => {
                self.look_through_no_more();
                while self.conversation.retract()?.is_some() {}
                self.last = None;
            }
            Slash::System(text) => self.set_system(text)?,
            Slash::Stats => out::line(&self.stats()?)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn last_answer(&self) -> Result<Option<String>> {
        if let Some((_, shown, _)) = &self.last {
            return Ok(Some(shown.text.clone()));
        }
        // Of an earlier process.
        let turns = self.conversation.view(usize::MAX)?.turns;
        let answered = turns.into_iter().rev().find(is_answered);
        Ok(answered.map(|view| view.answer))
    }

    fn page(&self) -> Result<String> {
        Ok(self.conversation.export()?)
    }

    fn model(&self) -> &Arc<Model> {
        self.engine.model()
    }

    fn waits(&mut self, printer: &mut dyn FnMut() -> Option<Print>) {
        if let Some(remembering) = &mut self.remembering {
            remembering.begin(&self.conversation, printer);
        }
    }

    fn goes_on(&mut self) {
        if let Some(remembering) = &mut self.remembering {
            remembering.end();
        }
    }
}

/// What a flag asks for is noted in a new session; without it nothing is.
fn dated(conversation: ConversationBuilder, has_dates: bool) -> ConversationBuilder {
    match has_dates {
        true => conversation.dates(true),
        false => conversation,
    }
}

/// Whether a turn is a question with its answer, rather than a state or a part of a long message.
fn is_answered(view: &TurnView) -> bool {
    !view.turn.is_state && !view.turn.is_part
}

/// Name of a session that was started without one.
fn number(name: &str) -> Option<u64> {
    name.strip_prefix("chat-")?.parse().ok()
}

/// A name of which there is no session: `chat-1`, `chat-2`, …
fn fresh_name(engine: &Engine) -> Result<String> {
    let listed = engine.conversations()?;
    let last = listed.iter().filter_map(|l| number(&l.name)).max();
    Ok(format!("chat-{}", last.unwrap_or(0).saturating_add(1)))
}

fn is_listed(engine: &Engine, name: &str) -> Result<bool> {
    Ok(engine.conversations()?.iter().any(|l| l.name == name))
}

fn number_of(command: &str, argument: Option<&str>) -> Result<u64> {
    let number = argument.and_then(|text| text.parse().ok());
    number.ok_or_else(|| usage(format!("{command} NUMBER; /turns and /fact list them")))
}

/// What the user named and cannot be had is a usage error.
fn named(error: Error) -> anyhow::Error {
    use haversack::session::SessionError as E;
    let is_named = matches!(&error, Error::Session(error) if matches!(
        **error,
        E::Name(_) | E::PersistentFull { .. } | E::NoSuchFact { .. } | E::NoSuchState { .. }
            | E::TooMuchState { .. } | E::NoSuchTurn { .. } | E::IsState { .. } | E::NotInMemory { .. }
            | E::TooMuchPinned { .. }
    ));
    let is_damaged = matches!(&error, Error::Session(error) if error.is_damage());
    match is_named {
        true => usage(error.to_string()),
        false if is_damaged => anyhow::anyhow!(
            "{error}; haversack session export saves what comes before the damage, session delete removes it"
        ),
        // It says what is below it already.
        false => anyhow::anyhow!("{error}"),
    }
}
