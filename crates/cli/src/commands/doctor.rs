//! `doctor`: what this device offers, and what is missing.

use crate::out;
use anyhow::Result;
use haversack::kernels::cpu::{Backend, BackendKind};
use haversack::memory::bytes::human;
use haversack::memory::{CgroupLimits, Reading};
use haversack_hub::catalogue::catalogue;
use haversack_hub::fetch::free_bytes;
use haversack_hub::home::Home;
use serde_json::{Value as Json, json};
use std::fs;
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
    out::text(&page)
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
    // The folder may not be there yet; the one above it is as good.
    let existing = home.path().ancestors().find(|path| path.exists());
    let models = catalogue().models.iter().filter(|model| {
        let mut files = model.files.iter();
        files.all(|file| home.fetched(file).exists() || home.fetched_packed(file).exists())
    });
    json!({
        "home": home.path(),
        "free_bytes": existing.and_then(free_bytes),
        "packed_bytes": folder_bytes(&home.packed()),
        "models": out::list(models, |model| json!(model.name)),
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
