//! Models of the hub that the catalogue does not have: `hf:owner/repo[/file][@revision]`.
//!
//! Such a model becomes a [`CatalogueModel`] like any other: what the hub says of the repository gives sizes and sha256, pinned to
//! one commit, so that fetching, resuming and checking are the same. A file without a stated sha256 is refused.

use crate::catalogue::{CatalogueFile, CatalogueModel, DownloadSource};
use crate::error::{FetchFailure, HubError};
use crate::fetch::{FetchOptions, get};
use serde::Deserialize;
use std::fmt;
use std::path::{Path, PathBuf};

pub const PREFIX: &str = "hf:";

/// The longest description of a repository that is read: tens of thousands of files.
const DESCRIPTION_BYTES_MAX: usize = 8 << 20;
/// Files named in a message.
const NAMED_MAX: usize = 12;
/// Of a name from the hub that is shown.
const LICENCE_CHARS_MAX: usize = 60;
/// Parts of one split model.
const PARTS_MAX: usize = 999;

/// Endings of files where a repository has several and none is named, the one to take first.
const QUANTISATIONS: [&str; 14] = [
    "q4_k_m", "q4_k_s", "q4_1", "q4_0", "iq4_xs", "iq4_nl", "q5_k_m", "q5_k_s", "q6_k", "q8_0",
    "q3_k_m", "bf16", "f16", "f32",
];

/// `hf:owner/repo[/file][@revision]`, checked: no part leaves the folder it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    owner: String,
    repo: String,
    file: Option<String>,
    revision: String,
}

impl HubName {
    /// `None` where `text` does not begin like one.
    pub fn parse(text: &str) -> Option<Result<HubName, HubError>> {
        let rest = text.strip_prefix(PREFIX)?;
        Some(HubName::read(rest).ok_or_else(|| HubError::HubName(text.to_owned())))
    }

    fn read(text: &str) -> Option<HubName> {
        let (path, revision) = text.rsplit_once('@').unwrap_or((text, "main"));
        let mut parts = path.split('/');
        let name = HubName {
            owner: parts.next()?.to_owned(),
            repo: parts.next()?.to_owned(),
            file: Some(parts.collect::<Vec<_>>().join("/")).filter(|file| !file.is_empty()),
            revision: revision.to_owned(),
        };
        let file = name.file.as_deref().unwrap_or("x.gguf");
        let is_good = [&name.owner, &name.repo]
            .into_iter()
            .all(|part| is_plain(part))
            && name.revision.split('/').all(is_plain)
            && is_model_path(file)
            && !path.ends_with('/');
        is_good.then_some(name)
    }

    /// `owner/repo`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.owner, self.repo)
    }

    /// The file it names, below its repository.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// What the hub says of the model: its files with their sizes and sha256.
    pub fn look_up(&self, options: &FetchOptions) -> Result<CatalogueModel, HubError> {
        let repository = self.repository();
        let error = |reason: String| HubError::Repository {
            repository: repository.clone(),
            reason,
        };
        let base = format!(
            "{}/api/models/{repository}",
            options.hub.trim_end_matches('/')
        );
        let about = format!("{base}/revision/{}", self.revision);
        let about = read(&about, options).map_err(|failure| error(failure.to_string()))?;
        let about: About = serde_json::from_slice(&about).map_err(|e| error(not_understood(&e)))?;
        if !is_plain(&about.sha) {
            return Err(error("the hub names no commit".into()));
        }
        let tree = format!("{base}/tree/{}?recursive=true", about.sha);
        let tree = read(&tree, options).map_err(|failure| error(failure.to_string()))?;
        let tree: Vec<TreeEntry> =
            serde_json::from_slice(&tree).map_err(|e| error(not_understood(&e)))?;
        let files = self.chosen(&tree).map_err(error)?;
        let licence = about.card.and_then(|card| card.license);
        let licence = licence.as_ref().and_then(|licence| licence.as_str());
        let name = files.first().map_or("", |file| &file.path);
        Ok(CatalogueModel {
            name: format!("{PREFIX}{repository}/{name}"),
            aliases: Vec::new(),
            default: false,
            title: name.to_owned(),
            licence: licence.map_or("not stated by the hub".into(), shown),
            notice: None,
            sampling: None,
            architecture: about.gguf.and_then(|gguf| gguf.architecture),
            shape: None,
            files: files
                .into_iter()
                .map(|file| self.catalogued(file, &about.sha))
                .collect::<Result<_, String>>()
                .map_err(error)?,
        })
    }

    fn catalogued(&self, entry: &TreeEntry, commit: &str) -> Result<CatalogueFile, String> {
        let sha256 = entry.lfs.as_ref().map(|lfs| lfs.oid.to_ascii_lowercase());
        let is_sha256 =
            |text: &String| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let path = shown(&entry.path);
        let sha256 = sha256.filter(is_sha256).ok_or_else(|| {
            format!("the hub states no sha256 for {path}, so it could not be checked")
        })?;
        if entry.size == 0 {
            return Err(format!("{path} is empty"));
        }
        Ok(CatalogueFile {
            name: format!("{}/{}", self.repository(), entry.path),
            bytes: entry.size,
            sha256,
            sources: vec![DownloadSource::Hub {
                hub: self.repository(),
                path: entry.path.clone(),
                revision: commit.to_owned(),
            }],
        })
    }

    /// The file that is meant, with the other parts if it is split.
    fn chosen<'a>(&self, tree: &'a [TreeEntry]) -> Result<Vec<&'a TreeEntry>, String> {
        let find = |path: &str| tree.iter().find(|entry| entry.path == path);
        let mut models: Vec<&TreeEntry> = tree
            .iter()
            .filter(|entry| is_model_path(&entry.path) && is_first_of_model(&entry.path))
            .collect();
        models.sort_by_key(|entry| quantisation(&entry.path));
        let first = match (&self.file, models[..].first()) {
            (Some(file), _) => {
                find(file).ok_or_else(|| format!("it has no file {file}{}", among(&models)))?
            }
            (None, None) => return Err("it has no GGUF file".into()),
            (None, Some(best)) => {
                let is_known = quantisation(&best.path) < QUANTISATIONS.len();
                if !is_known && models.len() > 1 {
                    return Err(format!(
                        "it has several files{}; name one after it",
                        among(&models)
                    ));
                }
                best
            }
        };
        let Some((stem, parts)) = split_of(&first.path) else {
            return Ok(vec![first]);
        };
        let names = (1..=parts).map(|i| part_name(stem, i, parts));
        let parts = names.map(|name| find(&name).ok_or_else(|| format!("it has no file {name}")));
        parts.collect()
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}/{}", self.owner, self.repo)?;
        self.file
            .as_ref()
            .map_or(Ok(()), |file| write!(f, "/{file}"))
    }
}

#[derive(Deserialize)]
struct About {
    sha: String,
    #[serde(rename = "cardData")]
    card: Option<Card>,
    gguf: Option<GgufSummary>,
}

/// What the hub has read of the repository's files.
#[derive(Deserialize)]
struct GgufSummary {
    architecture: Option<String>,
}

#[derive(Deserialize)]
struct Card {
    license: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct TreeEntry {
    path: String,
    #[serde(default)]
    size: u64,
    lfs: Option<LargeFile>,
}

/// The sha256 of a file that is kept beside the repository.
#[derive(Deserialize)]
struct LargeFile {
    oid: String,
}

fn read(url: &str, options: &FetchOptions) -> Result<Vec<u8>, FetchFailure> {
    get(url, DESCRIPTION_BYTES_MAX, options)
}

fn not_understood(error: &serde_json::Error) -> String {
    format!("what the hub says of it is not understood: {error}")
}

/// One part of a path or address that means itself everywhere.
fn is_plain(part: &str) -> bool {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
    (1..=200).contains(&part.len()) && part.chars().all(is_good) && !part.starts_with('.')
}

fn is_model_path(path: &str) -> bool {
    path.to_ascii_lowercase().ends_with(".gguf") && path.split('/').all(is_plain)
}

/// Whether a file is a model, or the first part of one; projectors for images are none.
pub(crate) fn is_first_of_model(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    let is_later = split_of(&name).is_some() && !name.contains("-00001-of-");
    let is_model = name.ends_with(".gguf") || name.ends_with(".packed");
    is_model && !is_later && !name.starts_with("mmproj")
}

/// `a/b-00001-of-00003.gguf` gives `(a/b, 3)`.
fn split_of(path: &str) -> Option<(&str, usize)> {
    let rest = path.strip_suffix(".gguf")?;
    let (rest, parts) = rest.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let number = |text: &str| text.parse().ok().filter(|_| text.len() == 5);
    number(part)?;
    Some((stem, number(parts)?)).filter(|&(_, parts)| (1..=PARTS_MAX).contains(&parts))
}

/// The parts of a split model beside its first one; of another, itself.
pub(crate) fn parts_beside(first: &Path) -> Vec<PathBuf> {
    let split = first
        .file_name()
        .and_then(|name| name.to_str())
        .and_then(split_of);
    match split {
        Some((stem, parts)) => (1..=parts)
            .map(|i| first.with_file_name(part_name(stem, i, parts)))
            .collect(),
        None => vec![first.to_path_buf()],
    }
}

fn part_name(stem: &str, part: usize, parts: usize) -> String {
    format!("{stem}-{part:05}-of-{parts:05}.gguf")
}

/// How soon a file is taken: its place in [`QUANTISATIONS`].
fn quantisation(path: &str) -> usize {
    let name = path.to_ascii_lowercase();
    let stem = split_of(&name).map_or(name.trim_end_matches(".gguf"), |(stem, _)| stem);
    let ends = |quantisation: &&str| {
        let rest = stem.strip_suffix(*quantisation);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with(['-', '.', '_']))
    };
    QUANTISATIONS
        .iter()
        .position(ends)
        .unwrap_or(QUANTISATIONS.len())
}

fn among(models: &[&TreeEntry]) -> String {
    let names: Vec<String> = models
        .iter()
        .take(NAMED_MAX)
        .map(|entry| shown(&entry.path))
        .collect();
    let more = if models.len() > NAMED_MAX {
        ", …"
    } else {
        ""
    };
    if names.is_empty() {
        String::new()
    } else {
        format!(": {}{more}", names.join(", "))
    }
}

/// What the hub wrote, safe to be shown.
fn shown(text: &str) -> String {
    let kept = text.chars().filter(|c| !c.is_control());
    kept.take(LICENCE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HubName {
        HubName::parse(text).unwrap().unwrap()
    }

    fn entry(path: &str) -> TreeEntry {
        let path = path.to_owned();
        TreeEntry {
            path,
            size: 1,
            lfs: None,
        }
    }

    fn chosen(text: &str, paths: &[&str]) -> Result<Vec<String>, String> {
        let tree: Vec<TreeEntry> = paths.iter().map(|path| entry(path)).collect();
        let chosen = name(text).chosen(&tree)?;
        Ok(chosen.iter().map(|entry| entry.path.clone()).collect())
    }

    #[test]
    fn names_stay_in_their_folder() {
        assert_eq!(name("hf:a/b").file, None);
        let full = name("hf:a/b/c/d.gguf@v1");
        assert_eq!(
            (full.file.as_deref(), &full.revision[..]),
            (Some("c/d.gguf"), "v1")
        );
        assert!(HubName::parse("a/b").is_none());
        for bad in [
            "",
            "a",
            "a/",
            "/b",
            "a/b/",
            "../b",
            "a/..",
            "a/b/../c.gguf",
            "a/b/.c.gguf",
            "a/b//c.gguf",
            "a/b/c.bin",
            "a b/c",
            "a/b@",
            "a/b@../x",
            "a/b/c\\d.gguf",
            "a/b/c?.gguf",
            "a/b/\u{1b}.gguf",
        ] {
            let bad = format!("hf:{bad}");
            assert!(HubName::parse(&bad).unwrap().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_file_that_is_meant() {
        let paths = [
            "README.md",
            "m-Q8_0.gguf",
            "m-Q4_K_M.gguf",
            "mmproj-F16.gguf",
            "IQ4_XS.gguf",
        ];
        assert_eq!(chosen("hf:a/b", &paths).unwrap(), ["m-Q4_K_M.gguf"]);
        assert_eq!(
            chosen("hf:a/b/m-Q8_0.gguf", &paths).unwrap(),
            ["m-Q8_0.gguf"]
        );
        let missing = chosen("hf:a/b/x.gguf", &paths).unwrap_err();
        assert!(
            missing.contains("m-Q4_K_M.gguf, IQ4_XS.gguf, m-Q8_0.gguf"),
            "{missing}"
        );
        assert!(!missing.contains("mmproj"), "{missing}");
        assert_eq!(chosen("hf:a/b", &["only.gguf"]).unwrap(), ["only.gguf"]);
        assert!(
            chosen("hf:a/b", &["x.gguf", "y.gguf"])
                .unwrap_err()
                .contains("x.gguf, y.gguf")
        );
        assert!(
            chosen("hf:a/b", &["x.safetensors"])
                .unwrap_err()
                .contains("no GGUF")
        );
    }

    #[test]
    fn all_parts_of_a_split_model_or_none() {
        let parts = [
            "d/m-Q4_K_M-00001-of-00002.gguf",
            "d/m-Q4_K_M-00002-of-00002.gguf",
        ];
        assert_eq!(chosen("hf:a/b", &parts).unwrap(), parts);
        assert!(
            chosen("hf:a/b", &parts[..1])
                .unwrap_err()
                .contains("00002-of-00002")
        );
        assert_eq!(split_of("m-00001-of-00000.gguf"), None);
        assert_eq!(split_of("m-1-of-2.gguf"), None);
    }
}
