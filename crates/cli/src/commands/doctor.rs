//! `doctor`: what this device offers, what is missing, and what to do next.

use crate::default_model::{self, free_bytes_of};
use crate::out;
use anyhow::Result;
use haversack::kernels::cpu::{Backend, BackendKind};
use haversack::memory::bytes::human;
use haversack::memory::{CgroupLimits, Reading};
use haversack_hub::catalogue::{CatalogueModel, catalogue};
use haversack_hub::home::{ENCODER, Home};
use haversack_hub::installed;
use serde_json::{Value as Json, json};
use std::fs;
use std::iter;
use std::path::Path;
use std::process::{Command, Stdio};

pub fn doctor(as_json: bool) -> Result<()> {
    let report = report();
    if as_json {
        return out::json(&report);
    }
    let mut page = String::new();
    for (section, values) in report.as_object().into_iter().flatten() {
        page.push_str(&format!("{section}\n"));
        for (name, value) in values.as_object().into_iter().flatten() {
            let value = match value {
                Json::Null => "-".into(),
                Json::Number(number) if name.ends_with("_bytes") => {
                    human(number.as_u64().unwrap_or(0))
                }
                Json::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
                other => plain(other),
            };
            let name = name.trim_end_matches("_bytes").replace('_', " ");
            page.push_str(&format!("  {name:20} {value}\n"));
        }
    }
    page.push_str("next\n");
    for step in Found::here().next_steps() {
        page.push_str(&format!("  {step}\n"));
    }
    out::text(&page)
}

/// Free memory that a small model, its keys and values and the program take together.
const MEMORY_MIN_BYTES: u64 = 512 << 20;
/// Lines of advice.
const STEPS_MAX: usize = 3;

/// What decides what to do next.
struct Found {
    /// Models of the catalogue that were downloaded, but for the encoder.
    models: usize,
    has_encoder: bool,
    has_packed_copy: bool,
    /// Of the default model.
    model_bytes: u64,
    /// Where models go.
    free_bytes: Option<u64>,
    /// Memory that a program may still take.
    available_bytes: Option<u64>,
}

impl Found {
    fn here() -> Found {
        let home = Home::find().ok();
        let is_here = |model: &&CatalogueModel| {
            home.as_ref()
                .is_some_and(|home| installed::is_here(home, model))
        };
        let is_packed = |home: &Home| {
            let mut models = catalogue()
                .models
                .iter()
                .flat_map(|model| model.files.first());
            models.any(|file| home.fetched_packed(file).exists())
                || folder_bytes(&home.packed()) > 0
        };
        let reading = Reading::now();
        let room = reading.cgroup.and_then(|group| group.room_bytes());
        let default = home
            .as_ref()
            .and_then(|home| default_model::current(home).ok());
        let model = default.and_then(|default| catalogue().find(&default.model));
        Found {
            models: catalogue()
                .models
                .iter()
                .filter(is_here)
                .filter(|model| model.name != ENCODER)
                .count(),
            has_encoder: home.as_ref().is_some_and(|home| home.encoder().exists()),
            has_packed_copy: home.as_ref().is_some_and(is_packed),
            model_bytes: model.map_or(0, CatalogueModel::bytes),
            free_bytes: home.as_ref().and_then(free_bytes_of),
            available_bytes: reading.mem_available_bytes.into_iter().chain(room).min(),
        }
    }

    /// The most urgent first. Pure.
    fn next_steps(&self) -> Vec<String> {
        let memory = self.available_bytes.filter(|&bytes| bytes < MEMORY_MIN_BYTES).map(|bytes| {
            format!(
                "memory is tight ({} left): close other programs, or see what fits with haversack plan --ram {}M",
                human(bytes),
                bytes >> 20
            )
        });
        // The model, and its packed copy.
        let needed = 2 * self.model_bytes;
        let is_first = self.models == 0;
        let disk = self.free_bytes.filter(|&bytes| is_first && bytes < needed).map(|bytes| {
            format!(
                "the disk has {} left, a model and its packed copy need {}: free some, or set HAVERSACK_HOME to a folder on another disk",
                human(bytes),
                human(needed)
            )
        });
        let begin = match (is_first, self.has_packed_copy) {
            (true, _) => format!(
                "no model yet: haversack chat downloads one ({}) and begins; haversack models shows others",
                human(self.model_bytes)
            ),
            (false, false) => {
                "begin with: haversack chat (the first start packs the weights for this CPU, once)"
                    .to_owned()
            }
            (false, true) => "begin with: haversack chat".to_owned(),
        };
        let encoder = (!is_first && !self.has_encoder).then(|| {
            "no sentence encoder: haversack pull minilm lets long chats find earlier turns by their meaning, not only by their words".to_owned()
        });
        let steps = memory
            .into_iter()
            .chain(disk)
            .chain(iter::once(begin))
            .chain(encoder);
        steps.take(STEPS_MAX).collect()
    }
}

fn plain(value: &Json) -> String {
    let text = value.as_str();
    text.map_or_else(|| value.to_string(), str::to_owned)
}

fn report() -> Json {
    let available: Vec<&str> = Backend::available().map(Backend::name).collect();
    let all = BackendKind::ALL.iter().map(|kind| kind.name());
    let other: Vec<&str> = all.filter(|name| !available.contains(name)).collect();
    let cgroup = CgroupLimits::now();
    let reading = Reading::now();
    json!({
        "cpu": {
            "model": cpu_model(),
            "cores": std::thread::available_parallelism().map(|count| count.get()).ok(),
            "tables": available,
            "used": Backend::best().name(),
            "tables_not_here": other,
        },
        "memory": {
            "total_bytes": reading.mem_total_bytes,
            "available_bytes": reading.mem_available_bytes,
            "cgroup_version": cgroup.map(|group| group.version),
            "cgroup_limit_bytes": cgroup.and_then(|group| group.max_bytes),
            "cgroup_high_bytes": cgroup.and_then(|group| group.high_bytes),
            "cgroup_used_bytes": cgroup.and_then(|group| group.used_bytes),
            "cgroup_anonymous_bytes": reading.cgroup.and_then(|group| group.anon_bytes),
            "cgroup_room_bytes": reading.cgroup.and_then(|group| group.room_bytes()),
            "huge_pages": chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
            "huge_pages_shared": chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
            "same_page_merging": ksm(),
            "pressure_stall": reading.psi.is_some(),
            "stalled_some_percent": reading.psi.map(|psi| psi.some_avg10),
            "stalled_all_percent": reading.psi.map(|psi| psi.full_avg10),
            "locked_limit_bytes": locked_limit(),
        },
        "storage": storage(),
        "fetching": {
            "hub": crate::progress::fetch_options().hub,
            "python": version("python3", &["--version"]),
            "pip": version("python3", &["-m", "pip", "--version"]),
        },
        "haversack": {
            "version": env!("CARGO_PKG_VERSION"),
            "compiler": env!("HAVERSACK_COMPILER"),
            "system": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            "optimised": !cfg!(debug_assertions),
        },
    })
}

fn storage() -> Json {
    let Ok(home) = Home::find() else {
        return json!({ "home": null });
    };
    let models = catalogue()
        .models
        .iter()
        .filter(|model| installed::is_here(&home, model));
    let default = default_model::current(&home).ok();
    json!({
        "home": home.path(),
        "free_bytes": free_bytes_of(&home),
        "packed_bytes": folder_bytes(&home.packed()),
        "models": out::list(models, |model| json!(model.name)),
        "default_model": default.map(|default| default.model),
    })
}

fn folder_bytes(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let found = entries.flat_map(|entry| entry.metadata());
    found.map(|metadata| metadata.len()).sum()
}

/// The CPU as its maker calls it.
pub fn cpu_model() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let is_model = |line: &&str| line.starts_with("model name") || line.starts_with("Model");
    let line = text.lines().find(is_model)?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// `always [madvise] never` → `madvise`.
fn chosen(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

fn ksm() -> Option<&'static str> {
    let text = fs::read_to_string("/sys/kernel/mm/ksm/run").ok()?;
    Some(if text.trim() == "1" { "on" } else { "off" })
}

/// What `--weights locked` may lock; the largest number where there is no limit.
#[cfg(unix)]
fn locked_limit() -> Option<u64> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
    Some(limit.current.unwrap_or(i64::MAX as u64))
}

#[cfg(not(unix))]
fn locked_limit() -> Option<u64> {
    None
}

fn version(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    let output = command.args(arguments).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    // pip goes on with the folder it lives in.
    let line = text.lines().next()?.split(" from ").next()?.trim();
    (output.status.success() && !line.is_empty()).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_short_and_the_most_urgent_first() {
        let ready = || Found {
            models: 1,
            has_encoder: true,
            has_packed_copy: true,
            model_bytes: 100 << 20,
            free_bytes: Some(1 << 40),
            available_bytes: Some(1 << 40),
        };
        let first = |found: Found| found.next_steps().remove(0);
        assert_eq!(ready().next_steps(), ["begin with: haversack chat"]);
        let found = Found {
            has_packed_copy: false,
            has_encoder: false,
            ..ready()
        };
        let steps = found.next_steps();
        assert!(
            steps[0].contains("packs the weights") && steps[1].contains("pull minilm"),
            "{steps:?}"
        );
        let found = Found {
            models: 0,
            has_encoder: false,
            ..ready()
        };
        let steps = found.next_steps();
        assert!(
            steps.len() == 1 && steps[0].contains("chat downloads one (100.0 MiB)"),
            "{steps:?}"
        );
        assert!(
            first(Found {
                models: 0,
                free_bytes: Some(1 << 20),
                ..ready()
            })
            .contains("HAVERSACK_HOME")
        );
        let found = Found {
            available_bytes: Some(300 << 20),
            has_encoder: false,
            ..ready()
        };
        assert_eq!(found.next_steps().len(), 3);
        assert!(first(found).contains("plan --ram 300M"));
        let none = Found {
            models: 0,
            free_bytes: None,
            available_bytes: None,
            ..ready()
        };
        assert!(first(none).starts_with("no model yet"));
    }
}
