//! `completions`: what a shell reads to complete commands and flags.

use crate::args::{Cli, CompletionsArgs};
use crate::out;
use anyhow::Result;
use clap::CommandFactory;
use serde_json::json;

pub fn completions(args: &CompletionsArgs, as_json: bool) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "haversack", &mut script);
    let script = String::from_utf8(script)?;
    if as_json {
        return out::json(&json!({ "shell": args.shell.to_string(), "script": script }));
    }
    out::text(&script)
}
