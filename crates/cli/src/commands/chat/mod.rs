//! `chat`: a conversation in the terminal, or over pipes.
//!
//! The whole conversation is rendered by the model's template at every turn, and only what differs
//! from what the model has already read is fed: the next question costs its own tokens, and
//! `/system` or `/clear` just make more of it differ. What has been read can be cut back only while
//! its exact state is there; where it is not any more, the whole conversation is read again, so that
//! an answer never depends on what was said and taken back. Ctrl-C stops an answer, which is then kept
//! as far as it came.

mod lasting;
mod lines;
mod partner;

use crate::args;
use crate::engine::{self, Habits, LoadedModel, per_second};
use crate::error::{Closed, one_line, usage};
use crate::ledger::{self, Holding};
use crate::out;
use anyhow::{Context, Result, bail};
use haversack::engine::StepError;
use haversack::engine::runtime::{Finish, GenerateOptions, Generation, generate};
use haversack::engine::sample::Sampler;
use haversack::session::names;
use haversack::text::template::Message;
use haversack_hub::home::Home;
use lasting::Lasting;
use lines::{Input, Lines};
use partner::{Last, Partner, Showing, Slash, TEMPERATURE};
use std::fmt;

const HELP: &str = "\
/help          show this list
/system TEXT   set the system message; without TEXT remove it
/clear         delete the conversation and start over
/stats         speed of the last answer, memory use
/quit          leave (or Ctrl-D)

In a session (chat in a terminal, or --session NAME):
/sessions      list saved sessions    /open NAME    switch to another session
/new [NAME]    start a session        /fork [NAME]  copy this session and continue in the copy
/fact [TEXT]   add a fact that is never evicted, or list facts; /fact N TEXT replaces fact N
/forget N      delete fact N
/state [NAME: TEXT]   set a value that may change, or list them; /state NAME: deletes it
/turns         list turns and where each is stored   /recall N  make the next answer see turn N
/context       what the last answer saw
/regenerate    answer the last question again        /edit TEXT  replace the last question

End a line with \\ to continue it; put \"\"\" around text of several lines.
Ctrl-C stops an answer.";

pub fn chat(args: &args::ChatArgs, as_json: bool) -> Result<()> {
    if as_json {
        return Err(usage("chat has no --json; use run --json"));
    }
    let history = if args.no_save {
        None
    } else {
        Home::find().ok().map(|home| home.chat_history())
    };
    let mut lines = Lines::new(history)?;
    if let Some(home) = keeps(args, &lines)? {
        let engine = load(args, Habits::SESSION)?;
        match Lasting::new(engine, args, &home)? {
            Ok(mut lasting) => {
                out::note(&lasting.greeting()?);
                converse(&mut lines, &mut lasting)?;
                return lasting.end();
            }
            Err(_) => out::note(
                "--memory is too small for a session; this conversation will not be saved",
            ),
        }
    }
    let engine = load(args, Habits::TALK)?;
    engine.check_fits(1)?;
    let mut conversation = Conversation::new(engine, args)?;
    if lines.is_terminal() {
        out::note(&conversation.greeting());
    }
    converse(&mut lines, &mut conversation)
}

fn converse(lines: &mut Lines, partner: &mut dyn Partner) -> Result<()> {
    loop {
        let text = match lines.next()? {
            Input::Text(text) => text,
            Input::Nothing => continue,
            Input::End => return Ok(()),
        };
        let done = match command(&text) {
            Some(Slash::Quit) => return Ok(()),
            Some(Slash::Help) => out::line(HELP),
            Some(Slash::Unknown(name)) => {
                out::note(&format!("no command {name}; /help lists them"));
                Ok(())
            }
            Some(slash) => partner.command(&slash).map(|known| {
                if !known {
                    out::note(
                        "this command needs a session: chat in a terminal, or use --session NAME",
                    );
                }
            }),
            None => partner.answer(&text),
        };
        match done {
            Ok(()) => {}
            Err(error) if error.is::<Full>() => out::note(&format!("({error})")),
            // A person may try something else; a pipe cannot.
            Err(error) if lines.is_terminal() && !error.is::<Closed>() => {
                out::note(&format!("error: {}", one_line(&format!("{error:#}"))));
            }
            Err(error) => return Err(error),
        }
    }
}

fn load(args: &args::ChatArgs, habits: Habits) -> Result<LoadedModel> {
    let engine = engine::load(
        args.model.as_deref(),
        &args.compute,
        habits.explaining(args.explain),
    )?;
    if args.explain {
        engine
            .plan_in_words()
            .iter()
            .for_each(|line| out::note(line));
    }
    if let Some(error) = engine.model.template().source_error() {
        bail!("{}: tokenizer.chat_template: {error}", engine.name());
    }
    Ok(engine)
}

/// Where the conversation is kept, if it is: by name, or because a person is talking.
fn keeps(args: &args::ChatArgs, lines: &Lines) -> Result<Option<Home>> {
    let plain = !args.compute.cache.is_of_turns();
    match &args.session {
        Some(_) if plain => Err(usage(
            "--session works with --policy auto or turns, without --anchors and --window",
        )),
        Some(name) => {
            names::check(name).map_err(|error| usage(format!("--session: {error}")))?;
            Ok(Some(Home::find()?))
        }
        None if plain || args.no_save || !lines.is_terminal() => Ok(None),
        None => Ok(Home::find().ok()),
    }
}

/// The conversation does not fit any more. It is as it was before the question.
#[derive(Debug)]
struct Full {
    tokens: usize,
    room: usize,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Full { tokens, room } = self;
        write!(
            f,
            "the conversation would need {tokens} tokens, the context has {room}; /clear starts over"
        )
    }
}

impl std::error::Error for Full {}

/// A line that begins with `/` and a letter is a command; `/ ` or a path in a text block is not.
fn command(text: &str) -> Option<Slash<'_>> {
    let rest = text.strip_prefix('/')?;
    if text.contains('\n') || !rest.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return None;
    }
    let (name, argument) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let argument = Some(argument.trim()).filter(|text| !text.is_empty());
    Some(match name {
        "/help" => Slash::Help,
        "/system" => Slash::System(argument),
        "/clear" => Slash::Clear,
        "/stats" => Slash::Stats,
        "/sessions" => Slash::Sessions,
        "/open" => Slash::Open(argument),
        "/new" => Slash::New(argument),
        "/fork" => Slash::Fork(argument),
        "/fact" => Slash::Fact(argument),
        "/state" => Slash::State(argument),
        "/forget" => Slash::Forget(argument),
        "/turns" => Slash::Turns,
        "/recall" => Slash::Recall(argument),
        "/context" => Slash::Context,
        "/regenerate" => Slash::Regenerate,
        "/edit" => Slash::Edit(argument),
        "/quit" | "/exit" | "/bye" => Slash::Quit,
        _ => Slash::Unknown(name),
    })
}

struct Conversation {
    engine: LoadedModel,
    sequence: haversack::engine::runtime::SequenceId,
    sampler: Sampler,
    options: GenerateOptions,
    system: Option<String>,
    turns: Vec<Message>,
    /// What the model has read, token by token.
    read: Vec<u32>,
    last: Option<Last>,
    show_stats: bool,
    explain: bool,
}

impl Conversation {
    fn new(mut engine: LoadedModel, args: &args::ChatArgs) -> Result<Conversation> {
        let sampler = engine::sampler(&args.sampling, TEMPERATURE, engine.model.config().vocab)?;
        let stop = engine.model.template().stop_strings();
        let options = GenerateOptions {
            tokens_max: Some(engine.tokens_max(args.max_tokens)),
            stop: stop.iter().map(|text| text.to_string()).collect(),
            ignore_end: false,
        };
        Ok(Conversation {
            sequence: engine.runtime.open()?,
            engine,
            sampler,
            options,
            system: args.system.clone(),
            turns: Vec::new(),
            read: Vec::new(),
            last: None,
            show_stats: args.stats,
            explain: args.explain,
        })
    }

    fn greeting(&self) -> String {
        let config = self.engine.model.config();
        let kv = self.engine.runtime.kv().name();
        let name = if config.name.is_empty() {
            config.arch.name()
        } else {
            &config.name
        };
        let length = match self.engine.room() {
            Some(room) => format!("{room} tokens"),
            None => format!(
                "{} tokens at a time, no end",
                self.engine.runtime.bounds().rows_max
            ),
        };
        format!(
            "{}, {length}, {kv} keys and values. /help for help.",
            one_line(name)
        )
    }

    fn clear(&mut self) {
        // What was read stays until the next turn shows what of it still holds.
        self.turns.clear();
        self.last = None;
    }

    fn generate(&mut self) -> Result<Generation> {
        let ids = self.prompt()?;
        let tokens = ids.len();
        if let Some(room) = self.engine.room().filter(|&room| tokens >= room) {
            return Err(Full { tokens, room }.into());
        }
        let reused = self.rewind(&ids)?;
        let new = &ids[reused..];

        let mut showing = Showing::new(Some(new.len()));
        let result = generate(
            &mut self.engine.runtime,
            self.sequence,
            new,
            &mut self.sampler,
            &self.options,
            &mut |event| showing.show(event),
        );
        let writing = showing.end();

        // Whatever happened, what has been read is a prefix of this.
        self.read.truncate(reused);
        self.read.extend_from_slice(new);
        if let Ok(generation) = &result {
            self.read.extend_from_slice(&generation.tokens);
        }
        let position = self.engine.runtime.stats(self.sequence)?.position;
        self.read.truncate(usize::try_from(position)?);
        writing?;
        let generation = result.with_context(|| self.engine.name())?;
        self.last = Some(Last {
            prompt: ids.len(),
            reused,
            generation: generation.clone(),
        });
        Ok(generation)
    }

    fn prompt(&self) -> Result<Vec<u32>> {
        let system = self.system.iter().map(|text| Message::new("system", text));
        let messages: Vec<Message> = system.chain(self.turns.iter().cloned()).collect();
        self.engine.chat_ids(&messages, false)
    }

    /// Forgets what the prompt does not begin with; returns how much of it has been read already.
    /// At least one token is left to feed, because the next one comes from its logits.
    fn rewind(&mut self, ids: &[u32]) -> Result<usize> {
        let same = self
            .read
            .iter()
            .zip(ids)
            .take_while(|(read, id)| read == id)
            .count();
        let reused = same.min(ids.len().saturating_sub(1));
        match self.engine.runtime.truncate(self.sequence, reused as u64) {
            Ok(()) => {}
            // The state of then is gone: what is left of it would answer differently.
            Err(StepError::Cache(_)) => {
                self.read.clear();
                self.engine.runtime.close(self.sequence)?;
                self.sequence = self.engine.runtime.open()?;
                return Ok(0);
            }
            Err(error) => return Err(error.into()),
        }
        self.read.truncate(reused);
        Ok(reused)
    }

    /// The room, if it is used up.
    fn full_at(&self) -> Option<usize> {
        let room = self.engine.room()?;
        let stats = self.engine.runtime.stats(self.sequence).ok()?;
        (stats.position >= room as u64).then_some(room)
    }

    fn stats(&self) -> Result<String> {
        let holding = self.holding()?;
        let mut text = match &self.last {
            Some(last) => format!(
                "{} tokens at {:.1}/s; prompt {} tokens ({} reused) at {:.1}/s; ",
                last.generation.tokens.len(),
                per_second(
                    last.generation.tokens.len().saturating_sub(1),
                    last.generation.decode
                ),
                last.prompt,
                last.reused,
                per_second(last.prompt - last.reused, last.generation.prefill),
            ),
            None => String::new(),
        };
        text.push_str(&format!(
            "{} of {} tokens seen are kept\n{}",
            holding.rows_live,
            holding.tokens_seen,
            ledger::bar(&self.engine.runtime, &holding)
        ));
        Ok(text)
    }

    fn context(&self) -> Result<String> {
        let (reused, computed) = self
            .last
            .as_ref()
            .map_or((0, 0), |last| (last.reused, last.prompt - last.reused));
        let holding = self.holding()?;
        Ok(ledger::explain(
            &self.engine.runtime,
            &holding,
            reused,
            computed,
        ))
    }

    fn holding(&self) -> Result<Holding> {
        Holding::of(&self.engine.runtime, self.sequence)
    }
}

impl Partner for Conversation {
    fn answer(&mut self, text: &str) -> Result<()> {
        self.turns.push(Message::new("user", text));
        let result = self.generate();
        let keep = matches!(&result, Ok(generation) if !generation.text.is_empty());
        if !keep {
            self.turns.pop();
        }
        let generation = result?;
        let finish = generation.finish;
        if keep {
            self.turns
                .push(Message::new("assistant", generation.text.trim_end()));
        }
        out::text("\n")?;
        match finish {
            Finish::Cancelled => out::note("(stopped)"),
            Finish::Length => match self.full_at() {
                Some(room) => out::note(&format!(
                    "(the context of {room} tokens is full; /clear starts over)"
                )),
                None => out::note("(stopped at the token limit of an answer; set it with -n)"),
            },
            Finish::Stop => {}
        }
        if self.show_stats {
            out::note(&self.stats()?);
        }
        if self.explain {
            let plans = self.engine.runtime.plans();
            plans.iter().for_each(|plan| out::note(plan));
            out::note(&self.context()?);
        }
        Ok(())
    }

    fn command(&mut self, slash: &Slash<'_>) -> Result<bool> {
        match *slash {
            Slash::Clear => self.clear(),
            Slash::System(text) => self.system = text.map(str::to_owned),
            Slash::Stats => out::line(&self.stats()?)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slash_commands() {
        assert_eq!(command("/help"), Some(Slash::Help));
        assert_eq!(
            command("/system  Be brief. "),
            Some(Slash::System(Some("Be brief.")))
        );
        assert_eq!(command("/system"), Some(Slash::System(None)));
        assert_eq!(command("/exit"), Some(Slash::Quit));
        assert_eq!(command("/frob x"), Some(Slash::Unknown("/frob")));
        for text in ["hello", "/", "/ x", "/1", " /help", "/help\nme", ""] {
            assert_eq!(command(text), None, "{text:?}");
        }
    }
}
