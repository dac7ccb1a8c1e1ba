//! Wheels: packages of the Python index that carry a model file, or a part of one.
//!
//! They are fetched by name with the user's own `pip download`, so that mirrors, proxies and
//! credentials are those the user has configured, and no index address is written here. pip reports
//! nothing we could rely on; but it writes into `TMPDIR`, which we choose, so the size of that
//! folder is the progress.

use super::part::{PartialFile, copy};
use super::scratch::{self, ScratchFolder};
use super::{FetchOptions, free_bytes};
use crate::catalogue::Wheel;
use crate::error::{Doing, FetchFailure, HubError};
use crate::home::create;
use crate::progress::{DownloadMeter, FetchProgress};
use crate::tidy::Process;
use haversack_memory::bytes::human;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;
use zip::ZipArchive;

/// What Python is called with, before what to download.
const PIP: &str = "-m pip download --no-deps --only-binary :all: --ignore-requires-python --no-cache-dir \
    --no-input --disable-pip-version-check --progress-bar off --retries 2";

const POLL: Duration = Duration::from_millis(100);

#[cfg(windows)]
const PYTHONS: [&str; 3] = ["py", "python", "python3"];
#[cfg(not(windows))]
const PYTHONS: [&str; 2] = ["python3", "python"];

/// The wheels downloaded during one fetch. Files of one model may share a wheel.
pub struct WheelStore {
    parent: PathBuf,
    /// Beyond the user's own environment, for pip.
    environment: Vec<(String, String)>,
    progress: Arc<dyn FetchProgress>,
    scratch: Option<ScratchFolder>,
    wheels: HashMap<String, PathBuf>,
}

impl WheelStore {
    /// Nothing is created before the first wheel is needed.
    pub fn new(parent: PathBuf, options: &FetchOptions) -> WheelStore {
        WheelStore {
            parent,
            environment: options.pip_environment.clone(),
            progress: options.progress.clone(),
            scratch: None,
            wheels: HashMap::new(),
        }
    }

    /// Completes `part` from the members of `wheels`, in order, skipping those it has already.
    /// A wheel is kept only while `needed` says that another file wants it.
    pub fn fetch(
        &mut self,
        wheels: &[Wheel],
        part: &mut PartialFile,
        needed: &dyn Fn(&str) -> bool,
    ) -> Result<(), FetchFailure> {
        let mut start = 0;
        let mut missing = Vec::new();
        for wheel in wheels {
            let end = start + wheel.member_bytes;
            if part.len() < end {
                missing.push((start, wheel));
            }
            start = end;
        }

        let to_come = missing.iter().map(|(_, wheel)| *wheel);
        let to_come = to_come.filter(|wheel| !self.wheels.contains_key(&wheel.package));
        let reports = self.progress.clone();
        let mut progress = DownloadMeter::new(&*reports, to_come.map(|wheel| wheel.bytes).sum());
        let mut done = 0;
        for (start, wheel) in missing {
            part.truncate(start)?;
            let is_here = self.wheels.contains_key(&wheel.package);
            let path = self.download(wheel, &mut progress, done)?;
            done += if is_here { 0 } else { wheel.bytes };
            progress.set(done);
            progress.phase("unpacking");
            unpack(&path, wheel, part)?;
            progress.phase("");
            if !needed(&wheel.package) {
                let _ = fs::remove_file(path);
                self.wheels.remove(&wheel.package);
            }
        }
        Ok(())
    }

    fn download(
        &mut self,
        wheel: &Wheel,
        progress: &mut DownloadMeter<'_>,
        done: u64,
    ) -> Result<PathBuf, FetchFailure> {
        if let Some(path) = self.wheels.get(&wheel.package) {
            return Ok(path.clone());
        }
        let scratch = match &mut self.scratch {
            Some(scratch) => scratch,
            none => none.insert(ScratchFolder::new(&self.parent)?),
        };
        if let Some(free) = free_bytes(scratch.path())
            && free < wheel.bytes
        {
            let (needed, free) = (human(wheel.bytes), human(free));
            let doing = format!(
                "disk full: package {} needs {needed} and {free} is free",
                wheel.package
            );
            return Err(disk_full(doing));
        }
        let path = pip_download(scratch.path(), wheel, &self.environment, |bytes| {
            progress.set(done + bytes.min(wheel.bytes));
        })?;
        self.wheels.insert(wheel.package.clone(), path.clone());
        Ok(path)
    }
}

fn pip_download(
    scratch: &Path,
    wheel: &Wheel,
    environment: &[(String, String)],
    mut tell: impl FnMut(u64),
) -> Result<PathBuf, FetchFailure> {
    let folder = scratch.join(&wheel.package);
    let (temporary, destination) = (folder.join("tmp"), folder.join("wheel"));
    create(&temporary)?;
    create(&destination)?;

    let child = spawn(wheel, environment, &temporary, &destination)?;
    let status = loop {
        if let Some(status) = child.poll().doing(|| "cannot wait for pip".into())? {
            break status;
        }
        tell(scratch::size(&temporary) + scratch::size(&destination));
        sleep(POLL);
    };
    if !status.success() {
        return Err(why(status, &child.complaint()));
    }
    let mut paths = scratch::entries(&destination).map(|entry| entry.path());
    let found = paths.find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    found.ok_or_else(|| FetchFailure::Source("pip downloaded no wheel".into()))
}

fn spawn(
    wheel: &Wheel,
    environment: &[(String, String)],
    temporary: &Path,
    destination: &Path,
) -> Result<Process, FetchFailure> {
    for python in PYTHONS {
        let mut command = Command::new(python);
        command
            .args(PIP.split_whitespace())
            .arg("--dest")
            .arg(destination)
            .arg(format!("{}=={}", wheel.package, wheel.version))
            .envs(["TMPDIR", "TMP", "TEMP"].map(|name| (name, temporary)))
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        match Process::spawn(&mut command) {
            Ok(child) => return Ok(child),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let reason = format!("cannot start {python}: {error}");
                return Err(FetchFailure::Source(reason));
            }
        }
    }
    let reason = format!(
        "it needs Python with pip, and there is no {}",
        PYTHONS.join(" or ")
    );
    Err(FetchFailure::Source(reason))
}

fn disk_full(doing: String) -> FetchFailure {
    let error = io::ErrorKind::StorageFull.into();
    FetchFailure::Local(HubError::Io { doing, error })
}

/// pip's own words, shortened to the one that helps.
fn why(status: ExitStatus, log: &str) -> FetchFailure {
    if log.contains("No space left on device") {
        return disk_full("disk full while pip was downloading".into());
    }
    if log.contains("No module named pip") {
        return FetchFailure::Source("it needs pip, which this Python does not have".into());
    }
    let unreachable = [
        "NewConnectionError",
        "NameResolutionError",
        "ConnectTimeoutError",
        "ProxyError",
        "Max retries exceeded",
    ];
    if unreachable.iter().any(|sign| log.contains(sign)) {
        return FetchFailure::Source("pip cannot reach a package index (no network?)".into());
    }
    let line = log
        .lines()
        .rev()
        .find(|line| line.starts_with("ERROR:"))
        .or_else(|| log.lines().rev().find(|line| !line.trim().is_empty()));
    FetchFailure::Source(match line {
        Some(line) => {
            let words = line.trim_start_matches("ERROR:").split_whitespace();
            format!("pip: {}", words.collect::<Vec<_>>().join(" "))
        }
        None => format!("pip ended with {status}"),
    })
}

fn unpack(path: &Path, wheel: &Wheel, part: &mut PartialFile) -> Result<(), FetchFailure> {
    let bad = |reason: String| FetchFailure::Source(format!("package {}: {reason}", wheel.package));
    let file = File::open(path).doing(|| format!("cannot read {}", path.display()))?;
    let mut archive = ZipArchive::new(file).map_err(|error| bad(error.to_string()))?;
    let name = &wheel.member;
    let member = archive.by_name(name);
    let mut member = member.map_err(|error| bad(format!("{name}: {error}")))?;
    let (found, wanted) = (member.size(), wheel.member_bytes);
    if found != wanted {
        return Err(bad(format!("{name} has {found} bytes instead of {wanted}")));
    }
    copy(&mut member, part, |_| {}).map_err(|failure| match failure {
        FetchFailure::Cut(error) => bad(format!("{name}: {error}")),
        failure => failure,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pip_is_quoted_in_one_useful_line() {
        let ended = Command::new(PYTHONS[0]).arg("-c").arg("exit(1)").status();
        let Ok(status) = ended else {
            println!("SKIPPED: no {}", PYTHONS[0]);
            return;
        };
        let text = |log: &str| match why(status, log) {
            FetchFailure::Local(error) => format!("local: {error:#}"),
            failure => failure.to_string(),
        };
        assert_eq!(text("WARNING: a\nERROR: b  c\nhint\n"), "pip: b c");
        assert_eq!(text("x\nboom\n\n"), "pip: boom");
        assert!(
            text("WARNING: Retrying (...) NewConnectionError(...)\nERROR: No matching")
                .contains("no network")
        );
        assert!(text("ERROR: [Errno 28] No space left on device").starts_with("local: disk full"));
        assert!(text("/usr/bin/python3: No module named pip").contains("needs pip"));
        assert!(text("").starts_with("pip ended with"));
    }
}
