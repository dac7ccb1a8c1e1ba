//! Measurements kept with where they come from: CPU, compiler, command and commit in every line.

use super::BenchRow;
use super::roofline::Roofline;
use crate::args;
use crate::commands::doctor::cpu_model;
use anyhow::{Context, Result};
use haversack::kernels::cpu::Backend;
use serde_json::{Value as Json, json};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const HEADER: &str = "name,value,unit,against,ratio,model,threads,activations,roofline_fraction,roofline_fraction_against,read_bandwidth_gbs,weight_bytes_per_token,cpu,table,compiler,commit,command,kv\n";

pub struct Setting {
    model: String,
    threads: usize,
    activations: &'static str,
    kv: String,
    cpu: String,
    commit: String,
    command: String,
}

impl Setting {
    pub fn now(model: &Path, threads: usize, kv: &str, args: &args::BenchArgs) -> Setting {
        let words = std::env::args().skip(1);
        let words: Vec<String> = words.map(|word| without_folder(&word)).collect();
        let model = model.file_name().unwrap_or_default();
        Setting {
            model: model.to_string_lossy().into_owned(),
            threads,
            activations: args.compute.activations.unwrap_or_default().name(),
            kv: kv.to_owned(),
            cpu: cpu_model().unwrap_or_else(|| "unknown".into()),
            commit: commit().unwrap_or_else(|| "unknown".into()),
            command: format!("haversack {}", words.join(" ")),
        }
    }

    pub fn json(&self) -> Json {
        json!({
            "model": self.model,
            "threads": self.threads,
            "activations": self.activations,
            "kv": self.kv,
            "cpu": self.cpu,
            "table": Backend::best().name(),
            "compiler": env!("HAVERSACK_COMPILER"),
            "commit": self.commit,
            "command": self.command,
        })
    }
}

/// A record is read on other machines: of a path only its last part means anything there.
fn without_folder(word: &str) -> String {
    let path = Path::new(word);
    match path.file_name() {
        Some(name) if path.is_absolute() => name.to_string_lossy().into_owned(),
        _ => word.to_owned(),
    }
}

/// The commit of the working folder, `+` if files differ from it.
fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        let output = git.args(arguments).stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|text| !text.is_empty());
    Some(format!("{commit}{}", if changed { "+" } else { "" }))
}

/// Appends the rows, with a header if the file is new.
pub fn append(
    path: &Path,
    setting: &Setting,
    rows: &[BenchRow],
    roofline: &Roofline,
) -> Result<()> {
    let name = || format!("cannot write {}", path.display());
    let file = OpenOptions::new().create(true).append(true).open(path);
    let mut file = file.with_context(name)?;
    let mut text = String::new();
    if file.metadata().with_context(name)?.len() == 0 {
        text.push_str(HEADER);
    }
    for row in rows {
        let decode = row.name == "decode_d0";
        let number = |value: Option<f64>| value.map(|v| format!("{v:.3}")).unwrap_or_default();
        let cells = [
            row.name.to_owned(),
            format!("{:.2}", row.value),
            "tokens/s".to_owned(),
            number(row.against),
            number(row.ratio()),
            setting.model.clone(),
            setting.threads.to_string(),
            setting.activations.to_owned(),
            number(roofline.fraction.filter(|_| decode)),
            number(roofline.against_fraction.filter(|_| decode)),
            format!("{:.2}", roofline.read_bandwidth_gbs),
            roofline.weight_bytes_per_token.to_string(),
            setting.cpu.clone(),
            Backend::best().name().to_owned(),
            env!("HAVERSACK_COMPILER").to_owned(),
            setting.commit.clone(),
            setting.command.clone(),
            // Last: files that were begun without it keep their columns.
            setting.kv.clone(),
        ];
        let cells = cells.map(|cell| quoted(&cell)).join(",");
        text.push_str(&format!("{cells}\n"));
    }
    file.write_all(text.as_bytes()).with_context(name)
}

fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_and_paths() {
        assert_eq!(quoted("a b"), "a b");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(without_folder("bench"), "bench");
        assert_eq!(without_folder("-n"), "-n");
        #[cfg(unix)]
        assert_eq!(without_folder("/some/where/llama-bench"), "llama-bench");
        assert_eq!(HEADER.trim_end().split(',').count(), 18);
    }
}
