//! `chat`: a conversation in the terminal, or over pipes.
//!
//! A person's chat is saved as a session ([`lasting`]). Otherwise the whole conversation is rendered by the model's
//! template at every turn, and the engine reads what differs from what it has read: the next question costs its own
//! tokens, and `/system` or `/clear` just make more of it differ. What has been read can be cut back only while its exact
//! state is there; where it is not any more, the whole conversation is read again, so that an answer never depends on what
//! was said and taken back. Ctrl-C stops an answer, which is then kept as far as it came.

mod files;
mod lasting;
mod lines;
mod partner;
mod remember;

use super::{session, session_search};
use crate::answer::Shown;
use crate::args::{self, Switch};
use crate::engine::{self, Habits, LoadedModel};
use crate::error::{Closed, one_line, usage};
use crate::{encoder, ledger, out};
use anyhow::{Context, Result, bail};
use files::{Attachments, SaveAs};
use haversack::engine::Model;
use haversack::engine::runtime::{KvLayout, SequenceUsage};
use haversack::engine::sample::SampleOptions;
use haversack::scheduler::RequestReport;
use haversack::session::layout::ChatLayout;
use haversack::session::names;
use haversack::text::template::Message;
use haversack::{ConversationPage, Engine};
use haversack_hub::home::Home;
use lasting::Lasting;
use lines::{Input, Lines};
use partner::{Partner, Slash, next_sample};
use std::fmt;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;

const HELP: &str = "\
/help          show this list
/system TEXT   set the system message; without TEXT remove it
/clear         delete the conversation and start over
/file PATH [QUESTION]   attach a text file to the next message, or ask about it at once
/copy FILE [N|code]     save the last answer, its N-th code block, or its last one
/export FILE   save the conversation as Markdown; /export! and /copy! replace a file
/search WORDS  find saved sessions that contain all words
/stats         speed of the last answer, memory use
/quit          leave (or Ctrl-D)

In a session (chat in a terminal, or --session NAME):
/sessions      list saved sessions    /open NAME    switch to another session
/new [NAME]    start a session        /fork [NAME]  copy this session and continue in the copy
/fact [TEXT]   add a fact that is never evicted, or list facts; /fact N TEXT replaces fact N
/forget N      delete fact N
/state [NAME: TEXT]   set a value that may change, or list them; /state NAME: deletes it
/turns         list turns and where each is stored   /recall N  make the next answer see turn N
/pin N         every answer sees turn N, or no longer has to   /exclude N  no answer sees turn N, or may again
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
    let is_first = history.as_deref().is_some_and(is_first_chat);
    let mut lines = Lines::new(history)?;
    if let Some(home) = keeps(args, &lines)? {
        if is_first && !args.sessions.no_encoder {
            offer_encoder(&mut lines, &home)?;
        }
        let finds_facts = lines.is_terminal() && !args.no_auto_facts;
        let loaded = load(args, &args.compute, Habits::SESSION)?;
        match Lasting::new(loaded, args, &home, finds_facts)? {
            Some(mut lasting) => {
                if is_first && lines.is_terminal() && io::stdout().is_terminal() {
                    introduce(lasting.name(), &home);
                }
                out::note(&lasting.greeting()?);
                converse(&mut lines, &mut lasting)?;
                return lasting.end();
            }
            None => out::note(
                "--memory is too small for a session; this conversation will not be saved",
            ),
        }
    }
    let compute = profiled(args, &mut lines)?;
    let loaded = load(args, &compute, Habits::TALK)?;
    loaded.check_fits(1)?;
    let mut conversation = Unsaved::new(loaded, args)?;
    if lines.is_terminal() {
        out::note(&conversation.greeting());
    }
    converse(&mut lines, &mut conversation)
}

/// Neither a saved session nor a line that was typed before.
fn is_first_chat(history: &Path) -> bool {
    let listed = session::home_folder().and_then(|folder| Ok(folder.list()?));
    !history.exists() && listed.is_ok_and(|listed| listed.is_empty())
}

/// Before the first session: a person is asked, others are told.
fn offer_encoder(lines: &mut Lines, home: &Home) -> Result<()> {
    let Some(model) = encoder::missing(home) else {
        return Ok(());
    };
    if !lines.is_terminal() {
        encoder::note(model);
        return Ok(());
    }
    out::note(&format!(
        "Long chats recall what was said by its words. A sentence encoder ({}) recalls it by its meaning; haversack pull minilm gets it later.",
        encoder::size(model)
    ));
    if lines.confirm("Download it now? [y/N] ")? {
        encoder::pull(model, home);
    }
    Ok(())
}

/// Three lines for a person who has not chatted here before. The history file, empty so far, says that they were shown.
fn introduce(name: &str, home: &Home) {
    out::note(&format!(
        "This chat is saved after every answer. Continue it later with: haversack chat --session {name}"
    ));
    out::note(
        "A line that begins with / is a command: /file notes.txt attaches a file, /help lists them all.",
    );
    out::note("Ctrl-C stops an answer; Ctrl-D or /quit ends the chat.\n");
    // Where it cannot be written there is no history either, and the lines come again.
    let _ = fs::create_dir_all(home.path());
    let mut options = fs::OpenOptions::new();
    options.append(true).create(true);
    // As the line editor makes it.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let _ = options.open(home.chat_history());
}

fn converse(lines: &mut Lines, partner: &mut dyn Partner) -> Result<()> {
    let mut attached = Attachments::default();
    loop {
        partner.waits(&mut || lines.printer());
        let input = lines.next();
        partner.goes_on();
        let text = match input? {
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
            Some(slash) => follow(&slash, partner, &mut attached),
            None => partner.answer(&attached.with(&text)),
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

/// Does what a command says.
fn follow(slash: &Slash<'_>, partner: &mut dyn Partner, attached: &mut Attachments) -> Result<()> {
    match *slash {
        Slash::File(argument) => {
            if let Some(message) = attached.command(argument)? {
                partner.answer(&message)?;
            }
        }
        Slash::Copy(argument, replaces) => {
            SaveAs { argument, replaces }.copy(partner.last_answer()?)?;
        }
        Slash::Export(argument, replaces) => {
            SaveAs { argument, replaces }.export(|| partner.page())?;
        }
        Slash::Search(argument) => {
            let words = session_search::words(argument.unwrap_or_default().split_whitespace())?;
            let layout = ChatLayout::new(partner.model().clone());
            session_search::print(&session::home_folder()?, &layout, &words)?;
        }
        _ => {
            if matches!(slash, Slash::Clear) {
                attached.clear();
            }
            if !partner.command(slash)? {
                out::note(
                    "this command needs a session: chat in a terminal, or use --session NAME",
                );
            }
        }
    }
    Ok(())
}

/// `--profile auto` looks at the system message and the first message, which is read before the model is loaded.
fn profiled(args: &args::ChatArgs, lines: &mut Lines) -> Result<args::ComputeArgs> {
    if !engine::wants_profile(&args.compute) {
        return Ok(args.compute.clone());
    }
    let first = lines.look_ahead(|text| command(text).is_none())?;
    let system = args.system.as_deref().unwrap_or_default();
    let text = format!("{system}\n{first}");
    Ok(engine::with_profile_of(&args.compute, &text))
}

fn load(args: &args::ChatArgs, compute: &args::ComputeArgs, habits: Habits) -> Result<LoadedModel> {
    let engine = engine::load(
        args.model.as_deref(),
        compute,
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
        "/pin" => Slash::Pin(argument),
        "/exclude" => Slash::Exclude(argument),
        "/context" => Slash::Context,
        "/regenerate" => Slash::Regenerate,
        "/edit" => Slash::Edit(argument),
        "/file" => Slash::File(argument),
        "/copy" => Slash::Copy(argument, false),
        "/copy!" => Slash::Copy(argument, true),
        "/export" => Slash::Export(argument, false),
        "/export!" => Slash::Export(argument, true),
        "/search" => Slash::Search(argument),
        "/quit" | "/exit" | "/bye" => Slash::Quit,
        _ => Slash::Unknown(name),
    })
}

/// A conversation in memory. The engine goes on from what it has read of it.
struct Unsaved {
    engine: Engine,
    name: String,
    sample: SampleOptions,
    stop_repetition: bool,
    max_tokens: usize,
    system: Option<String>,
    turns: Vec<Message>,
    /// The last answer, and the tokens of its prompt.
    last: Option<(Shown, usize)>,
    show_stats: bool,
    explain: bool,
    /// Answers are shown without styles.
    is_plain: bool,
}

impl Unsaved {
    fn new(loaded: LoadedModel, args: &args::ChatArgs) -> Result<Unsaved> {
        let vocabulary = loaded.model.config().vocab;
        let usual = loaded.model.sampling();
        let sample = engine::sample_options(&args.sampling, vocabulary, Some(usual))?;
        loaded.note_budget();
        Ok(Unsaved {
            sample,
            stop_repetition: args.stop_repetition != Some(Switch::Off),
            name: loaded.name(),
            max_tokens: loaded.tokens_max(args.max_tokens),
            engine: loaded.start(None, 1)?.0,
            system: args.system.clone(),
            turns: Vec::new(),
            last: None,
            show_stats: args.stats,
            explain: args.explain,
            is_plain: args.plain,
        })
    }

    fn layout(&self) -> &KvLayout {
        self.engine.client().layout()
    }

    fn greeting(&self) -> String {
        let config = self.engine.model().config();
        let name = if config.name.is_empty() {
            config.arch.name()
        } else {
            &config.name
        };
        let bounds = &self.layout().bounds;
        let length = match bounds.end() {
            Some(room) => format!("{room} tokens"),
            None => format!("{} tokens at a time, no end", bounds.rows_max),
        };
        format!(
            "{}, {length}, {} keys and values. /help for help.",
            one_line(name),
            self.layout().kv.name()
        )
    }

    /// Asks for an answer to the turns so far.
    fn ask(&mut self) -> Result<(Shown, usize)> {
        let system = self.system.iter().map(|text| Message::new("system", text));
        let messages: Vec<Message> = system.chain(self.turns.iter().cloned()).collect();
        let chat = engine::chat_ids(self.engine.model(), &self.name, &messages, false)?;
        let tokens = chat.ids.len();
        if let Some(room) = self.layout().bounds.end().filter(|&room| tokens >= room) {
            return Err(Full { tokens, room }.into());
        }
        let stop = self.engine.model().template().stop_strings().iter();
        let prompt = self
            .engine
            .complete_tokens(chat.ids)
            .continues()
            .borders(chat.borders)
            .messages(chat.messages)
            .max_tokens(self.max_tokens)
            .stop_repetition(self.stop_repetition)
            .sample(next_sample(&mut self.sample))
            .stops(stop.map(|text| text.to_string()));
        let shown = partner::show(prompt, self.is_plain).with_context(|| self.name.clone())?;
        Ok((shown, tokens))
    }

    fn held(&self) -> RequestReport {
        let held = self.last.as_ref().map(|(shown, _)| shown.held());
        held.unwrap_or_else(|| RequestReport {
            usage: SequenceUsage {
                window: self.layout().bounds.window,
                ledger: self.engine.metrics().ledger,
                ..SequenceUsage::default()
            },
            ..RequestReport::default()
        })
    }

    fn stats(&self) -> String {
        let held = self.held();
        let speed = self.last.as_ref().map(|(shown, prompt)| {
            let words = format!("{prompt} tokens ({} reused)", held.reused);
            partner::speed(shown, &words, prompt - held.reused)
        });
        format!(
            "{}{} of {} tokens seen are kept\n{}",
            speed.unwrap_or_default(),
            held.usage.rows,
            held.usage.tokens_seen,
            ledger::bar(self.layout(), &held.usage)
        )
    }
}

impl Partner for Unsaved {
    fn answer(&mut self, text: &str) -> Result<()> {
        self.turns.push(Message::new("user", text));
        let result = self.ask();
        match &result {
            Ok((shown, _)) if !shown.text.is_empty() => {
                let text = shown.text.trim_end();
                self.turns.push(Message::new("assistant", text));
            }
            _ => drop(self.turns.pop()),
        }
        let (shown, prompt) = self.last.insert(result?);
        out::text("\n")?;
        let (held, finish, prompt) = (shown.held(), shown.finish, *prompt);
        let room = self.layout().bounds.end();
        partner::note_end(
            finish,
            room.filter(|&room| held.usage.tokens_seen >= room as u64),
        );
        if self.show_stats {
            out::note(&self.stats());
        }
        if self.explain {
            held.plans.iter().for_each(|plan| out::note(plan));
            let (usage, reused) = (&held.usage, held.reused);
            let text = ledger::explain(self.layout(), usage, reused, prompt - reused);
            out::note(&text);
        }
        Ok(())
    }

    fn command(&mut self, slash: &Slash<'_>) -> Result<bool> {
        match *slash {
            Slash::Clear => {
                self.turns.clear();
                self.last = None;
            }
            Slash::System(text) => self.system = text.map(str::to_owned),
            Slash::Stats => out::line(&self.stats())?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn last_answer(&self) -> Result<Option<String>> {
        let mut turns = self.turns.iter().rev();
        let answer = turns.find(|message| message.role == "assistant");
        Ok(answer.map(|message| message.content.clone()))
    }

    fn page(&self) -> Result<String> {
        let mut page = ConversationPage::new(&one_line(&format!("Chat with {}", self.name)));
        page.fact(0, self.system.as_deref().unwrap_or_default());
        for (number, turn) in self.turns.chunks(2).enumerate() {
            if let [question, answer] = turn {
                page.turn(number as u64 + 1, None, &question.content, &answer.content);
            }
        }
        Ok(page.into_text())
    }

    fn model(&self) -> &Arc<Model> {
        self.engine.model()
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
        assert_eq!(
            command("/copy! a.txt 2"),
            Some(Slash::Copy(Some("a.txt 2"), true))
        );
        assert_eq!(command("/frob x"), Some(Slash::Unknown("/frob")));
        for text in ["hello", "/", "/ x", "/1", " /help", "/help\nme", ""] {
            assert_eq!(command(text), None, "{text:?}");
        }
    }
}
