//! The models known by name, from `catalogue.toml`, which is part of the binary.

use serde::Deserialize;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::LazyLock;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    #[serde(rename = "model")]
    pub models: Vec<CatalogueModel>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueModel {
    pub name: String,
    #[serde(default)]
    pub aliases: Vec<String>,
    #[serde(default)]
    pub default: bool,
    pub title: String,
    pub licence: String,
    /// A sentence the licence asks to be shown.
    pub notice: Option<String>,
    /// How the model's makers say that it is best sampled.
    pub sampling: Option<CatalogueSampling>,
    /// The first file is the model; others belong beside it.
    #[serde(rename = "file")]
    pub files: Vec<CatalogueFile>,
}

/// Values that are left out are no business of this model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueSampling {
    pub temperature: Option<f32>,
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueFile {
    /// Below the `models` folder.
    pub name: String,
    pub bytes: u64,
    /// Lower-case hexadecimal.
    pub sha256: String,
    #[serde(rename = "source")]
    pub sources: Vec<DownloadSource>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum DownloadSource {
    Hub {
        hub: String,
        path: String,
        #[serde(default = "main_revision")]
        revision: String,
    },
    /// The file is these members put end to end.
    Wheels { wheels: Vec<Wheel> },
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wheel {
    pub package: String,
    pub version: String,
    /// Of the wheel: what the progress bar runs against.
    pub bytes: u64,
    pub member: String,
    pub member_bytes: u64,
}

fn main_revision() -> String {
    "main".into()
}

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    // The text is a constant of this binary and a test parses it; an empty catalogue, which says
    // of every name that it is not known, is all that could be left to do.
    toml::from_str(include_str!("../catalogue.toml")).unwrap_or(Catalogue { models: Vec::new() })
});

/// The catalogue of this build.
pub fn catalogue() -> &'static Catalogue {
    &CATALOGUE
}

impl Catalogue {
    /// The model of that name or alias, in any case.
    pub fn find(&self, name: &str) -> Option<&CatalogueModel> {
        self.models.iter().find(|model| {
            std::iter::once(&model.name)
                .chain(&model.aliases)
                .any(|known| known.eq_ignore_ascii_case(name))
        })
    }

    /// What is used when no model is named.
    pub fn default(&self) -> Option<&CatalogueModel> {
        self.models.iter().find(|model| model.default)
    }

    /// For messages: `a, b, c`.
    pub fn names(&self) -> String {
        let names = self.models.iter().map(|model| model.name.as_str());
        names.collect::<Vec<_>>().join(", ")
    }

    /// How the model whose file is called like `path` is best sampled, if there is one and it says so.
    pub fn sampling_of(&self, path: &Path) -> Option<CatalogueSampling> {
        let model = self.models.iter().find(|m| m.has_file_named(path))?;
        model.sampling
    }

    /// The entry whose file is called like `path`, if there is one.
    pub fn file_named(&self, path: &Path) -> Option<&CatalogueFile> {
        let name = path.file_name()?;
        let mut files = self.models.iter().flat_map(|model| &model.files);
        files.find(|file| Path::new(&file.name).file_name() == Some(name))
    }
}

impl CatalogueModel {
    /// Whether one of its files is called like `path`, or was before it was packed.
    fn has_file_named(&self, path: &Path) -> bool {
        let stem = |path: &Path| path.file_stem().map(OsStr::to_owned);
        let mut files = self.files.iter();
        files.any(|file| stem(Path::new(&file.name)) == stem(path))
    }

    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_catalogue_of_this_build_is_whole() {
        let catalogue: Catalogue = toml::from_str(include_str!("../catalogue.toml")).unwrap();
        assert_eq!(catalogue.models.iter().filter(|m| m.default).count(), 1);
        let mut names = HashSet::new();
        for model in &catalogue.models {
            for name in std::iter::once(&model.name).chain(&model.aliases) {
                assert!(names.insert(name.to_lowercase()), "{name} twice");
            }
            assert!(!model.files.is_empty());
            let of = model.sampling.unwrap_or_default();
            assert!(of.temperature.is_none_or(|t| (0.0..=2.0).contains(&t)));
            let shares = [of.top_p, of.min_p].into_iter().flatten();
            assert!(shares.into_iter().all(|p| (0.0..=1.0).contains(&p)));
            for file in &model.files {
                assert!(names.insert(file.name.clone()), "{} twice", file.name);
                assert!(
                    file.name
                        .split('/')
                        .all(|part| !part.is_empty() && part != "..")
                );
                assert_eq!(file.sha256.len(), 64);
                assert!(
                    file.sha256
                        .bytes()
                        .all(|b| b"0123456789abcdef".contains(&b))
                );
                assert!(!file.sources.is_empty());
                for source in &file.sources {
                    if let DownloadSource::Wheels { wheels } = source {
                        let members: u64 = wheels.iter().map(|w| w.member_bytes).sum();
                        assert_eq!(members, file.bytes, "{}", file.name);
                    }
                }
            }
        }
        assert_eq!(catalogue.default().unwrap().name, "smollm2-135m-instruct");
        assert_eq!(
            catalogue.find("SmolLM2").unwrap().name,
            "smollm2-135m-instruct"
        );
        assert!(catalogue.find("no-such-model").is_none());
    }
}
