//! docs/reference/command-line.md and the program name the same commands and flags.

use crate::common;

use common::Sandbox;
use std::collections::BTreeSet;

const REFERENCE: &str = include_str!("../../../docs/reference/command-line.md");

/// `--words-like-this` in a text.
fn flags(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let pieces = text.split(|c: char| !is_part(c));
    let flags = pieces.filter(|piece| piece.starts_with("--") && piece.len() > 3);
    flags.map(str::to_owned).collect()
}

/// First words of the lines between `Commands:` and the next empty line.
fn commands(help: &str) -> BTreeSet<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.trim().is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// Flags a help text defines: those that begin a line.
fn defined(help: &str) -> BTreeSet<String> {
    let lines = help.lines().map(str::trim_start);
    let lines = lines.filter(|line| line.starts_with('-'));
    let heads = lines.map(|line| line.split("  ").next().unwrap_or(line));
    heads.flat_map(flags).collect()
}

/// Flags that the first column of a table defines, without those that no help shows.
fn documented() -> BTreeSet<String> {
    let rows = REFERENCE.lines().filter(|line| line.starts_with("| `-"));
    let rows = rows.filter(|row| !row.contains("not in `--help`"));
    rows.flat_map(|row| flags(row.split(" | ").next().unwrap_or(row)))
        .collect()
}

#[test]
fn the_reference_names_every_command_and_flag() {
    let sandbox = Sandbox::shared();
    let help = |arguments: &[&str]| sandbox.run(arguments).stdout;
    let commands = commands(&help(&["--help"]));
    assert!(commands.len() > 10, "{commands:?}");
    let mut in_program = defined(&help(&["--help"]));
    for command in &commands {
        assert!(
            REFERENCE.contains(&format!("| [`{command}`](#")),
            "{command} is not in the table of commands"
        );
        let page = help(&[command, "--help"]);
        in_program.extend(defined(&page));
        for nested in self::commands(&page) {
            in_program.extend(defined(&help(&[command, &nested, "--help"])));
        }
    }
    let in_reference = documented();
    let missing: Vec<_> = in_program.difference(&in_reference).collect();
    let stale: Vec<_> = in_reference.difference(&in_program).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "not in the reference: {missing:?}; not in the program: {stale:?}"
    );
}
