//! `man`: a manual page for every command.

use crate::args::{Cli, ManArgs};
use crate::out;
use anyhow::{Context, Result};
use clap::CommandFactory;
use serde_json::json;
use std::fs;

pub fn man(args: &ManArgs, as_json: bool) -> Result<()> {
    let folder = &args.folder;
    fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
        .with_context(|| format!("cannot write manual pages to {}", folder.display()))?;
    if as_json {
        return out::json(&json!({ "folder": folder }));
    }
    out::line(&format!("man -l {}", folder.join("haversack.1").display()))
}
