#![forbid(unsafe_code)]
//! The `haversack` command: arguments in, one answer out.
//!
//! What lives here: commands, fetching, progress, the terminal, JSON. What does not: anything about
//! tokens, models or memory, which is the library's. The command line is a contract (exit codes,
//! JSON fields, one-line errors); `tests/` holds it.

mod answer;
mod args;
mod commands;
mod config;
mod default_model;
mod encoder;
mod engine;
mod error;
mod fit;
mod input;
mod interrupt;
mod ledger;
mod logger;
mod machine;
mod markdown;
mod out;
mod policy_file;
mod progress;
mod resolve;
mod save;
mod screen;

use anyhow::Result;
use args::{Cli, Command};
use clap::Parser;
use haversack::memory::heap::{self, CountedHeap};
use std::ffi::OsString;
use std::panic::{self, AssertUnwindSafe};
use std::process::exit;
use std::sync::Mutex;

/// The ceiling of `--memory` covers the heap, so it is counted.
#[global_allocator]
static HEAP: CountedHeap = CountedHeap;

fn main() {
    heap::configure();
    catch_panics();
    interrupt::install();
    haversack::memory::lost_map::report();
    let words: Vec<OsString> = std::env::args_os().collect();
    let result = panic::catch_unwind(AssertUnwindSafe(|| parse(&words).and_then(|cli| run(&cli))));
    let code = match result {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => {
            let (code, line) = error::ending(&error);
            if let Some(line) = line {
                out::note(&line);
            }
            code
        }
        Err(_) => {
            let what = PANIC.lock().ok().and_then(|mut what| what.take());
            out::note(&what.unwrap_or_else(|| "error: internal error".into()));
            1
        }
    };
    exit(code);
}

fn run(cli: &Cli) -> Result<()> {
    logger::install(cli.global.log);
    let json = cli.global.json;
    match &cli.command {
        Command::Pull(args) => commands::pull::pull(args, json),
        Command::Models => commands::models::models(json),
        Command::Rm(args) => commands::rm::rm(args, json),
        Command::Pack(args) => commands::pack::pack(args, json),
        Command::Unpack(args) => commands::pack::unpack(args, json),
        Command::Inspect(args) => commands::inspect::inspect(args, json),
        Command::Tokenize(args) => commands::tokenize::tokenize(args, json),
        Command::Detokenize(args) => commands::tokenize::detokenize(args, json),
        Command::Verify(args) => commands::verify::verify(args, json),
        Command::Run(args) => commands::run::run(args, json),
        Command::Chat(args) => commands::chat::chat(args, json),
        Command::Score(args) => commands::score::score(args, json),
        Command::Bench(args) => commands::bench::bench(args, json),
        Command::Perplexity(args) => commands::perplexity::perplexity(args, json),
        Command::Compare(args) => commands::compare::compare(args, json),
        Command::Plan(args) => commands::plan::plan(args, json),
        Command::Serve(args) => commands::serve::serve(args, json),
        Command::Session(args) => commands::session::session(args, json),
        Command::Doctor => commands::doctor::doctor(json),
        Command::Completions(args) => commands::completions::completions(args, json),
        Command::Man(args) => commands::man::man(args, json),
    }
}

fn parse(words: &[OsString]) -> Result<Cli> {
    if words.len() <= 1 {
        commands::start::start()?;
        exit(0);
    }
    match Cli::try_parse_from(words) {
        Ok(cli) => config::apply(cli, words),
        // Help and version are answers, not errors.
        Err(error) if !error.use_stderr() => {
            out::text(&error.render().to_string())?;
            exit(0);
        }
        Err(error) => {
            let line = args::one_line(&error);
            Err(error::usage(line.trim_start_matches("error: ")))
        }
    }
}

static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// A panic is a bug of ours, and still one line. On the main thread it is only noted: it arrives in
/// `main`. The thread that renders templates contains its panics itself. On any other thread it would
/// go unreported, so it ends the program here.
fn catch_panics() {
    panic::set_hook(Box::new(|info| {
        let place = info.location().map_or(String::new(), |at| {
            format!(" at {}:{}", at.file(), at.line())
        });
        let what = info.payload_as_str().unwrap_or("panic");
        let line = format!("error: internal error: {}{place}", error::one_line(what));
        match std::thread::current().name() {
            Some("main") => {
                if let Ok(mut slot) = PANIC.lock() {
                    *slot = Some(line);
                }
            }
            Some("template") => log::debug!("{line}"),
            _ => {
                out::note(&line);
                exit(1);
            }
        }
    }));
}
