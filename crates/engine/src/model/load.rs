//! A loaded model: its configuration, weights, tokenizer and chat template.

use super::config::Config;
use super::content::{self, ContentRecord};
use super::error::{LoadError, LoadResult};
use super::pack::{PackError, PackSource};
use super::residence::Residence;
use super::weights::Weights;
use super::{fingerprint, pack, sampling};
use crate::sample::{SampleOptions, SamplingValues, effective};
use haversack_gguf::Gguf;
use haversack_kernels::threads::ThreadPool;
use haversack_memory::FileMap;
use haversack_memory::file::{remove_unfinished, remove_unfinished_of};
use haversack_text::template::ChatTemplate;
use haversack_text::tokenizer::Tokenizer;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whether to keep a packed copy of the weights on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Repack {
    /// In this directory; written at first use, mapped afterwards. Costs disk, about the model's size.
    Into(PathBuf),
    /// Pack on the fly: no disk, slower decoding, the same results.
    #[default]
    Off,
}

#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Positions to use at most; `None` = what the model was trained for.
    pub context: Option<usize>,
    pub repack: Repack,
    pub residence: Residence,
    pub threads: usize,
    /// How the model is best sampled, where its file does not say so.
    pub sampling: SamplingValues,
}

pub struct Model {
    config: Config,
    weights: Weights,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    fingerprint: blake3::Hash,
    sampling: SamplingValues,
}

impl Model {
    /// Opens a GGUF file, or a packed model. `progress` is given (bytes done, bytes in all) while weights are packed for
    /// the first time.
    pub fn load(
        path: &Path,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> LoadResult<Arc<Model>> {
        let model = Model::read(path, options, progress);
        model.map(Arc::new).map_err(|e| e.at(path))
    }

    fn read(
        path: &Path,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> LoadResult<Model> {
        if options.repack != Repack::Off {
            remove_unfinished_of(path);
        }
        let gguf = Gguf::open(path)?;
        let is_packed = gguf.packed().is_some();
        if is_packed {
            check_packed(&gguf, options)?;
        }
        let config = Config::read(&gguf, options.context)?;
        let tokenizer = Tokenizer::from_gguf(&gguf)?;
        let special = |id: Option<u32>| {
            let piece = id.and_then(|id| tokenizer.piece_raw(id));
            String::from_utf8_lossy(piece.unwrap_or_default()).into_owned()
        };
        // Without its template a model can still complete text.
        let template = match gguf.str("tokenizer.chat_template") {
            Ok(source) => {
                ChatTemplate::new(source, &special(tokenizer.bos()), &special(tokenizer.eos()))
            }
            Err(e) => ChatTemplate::unusable(&e.to_string()),
        };
        let fingerprint = fingerprint::fingerprint(&gguf);
        let sampling = sampling::from_metadata(&gguf).or(&options.sampling);
        if !is_packed {
            content::refuse_zeros(&gguf)?;
        }
        let mut weights = Weights::find(gguf, &config)?;
        if let Repack::Into(dir) = &options.repack
            && !is_packed
        {
            weights.packed = packed(&weights, &fingerprint, dir, options.threads, progress)?;
        }
        let reading = haversack_memory::Reading::now();
        let bytes = weights.bytes_per_token() as u64;
        let residence = options.residence.choose(bytes, &reading);
        weights.reside(residence).map_err(|error| LoadError::Lock {
            path: PathBuf::new(),
            error,
        })?;
        Ok(Model {
            config,
            weights,
            tokenizer,
            template,
            fingerprint,
            sampling,
        })
    }

    /// Reads every byte of a model that was used before, and of its packed copy, and compares them with what is known
    /// of both in `dir`. Returns the path of the packed copy, if there is one. With `accept` the model's content is taken
    /// as it is from now on; a damaged packed copy is removed, so that the next use packs again.
    pub fn verify_content(
        path: &Path,
        dir: &Path,
        threads: usize,
        accept: bool,
    ) -> LoadResult<Option<PathBuf>> {
        let check = || {
            let gguf = Gguf::open(path)?;
            let pool = ThreadPool::new(threads.max(1));
            if gguf.packed().is_some() {
                gguf.check_packed(&pool)?;
                return Ok(None);
            }
            let config = Config::read(&gguf, None)?;
            let fingerprint = fingerprint::fingerprint(&gguf);
            let mut record = match accept {
                true => ContentRecord::default(),
                false => ContentRecord::read(&gguf, dir),
            };
            let content = record.check_all(&gguf, &pool)?;
            let written = || fs::create_dir_all(dir).and_then(|()| record.write(&gguf, dir));
            if accept && let Err(error) = written() {
                return Err(LoadError::field("content", error.to_string()));
            }
            let weights = Weights::find(gguf, &config)?;
            let source = PackSource {
                weights: &weights,
                key: &fingerprint,
                content: &content,
                pool: &pool,
            };
            let packed = pack::path(dir, &fingerprint);
            match source.check(dir) {
                Ok(found) => Ok(found),
                // Of the model as it was.
                Err(PackError::Content { .. }) if accept && fs::remove_file(&packed).is_ok() => {
                    Ok(None)
                }
                Err(error) => {
                    let is_damaged = matches!(error, PackError::Damaged(_));
                    // Where it cannot be removed, the next use finds the damage itself.
                    let what = match is_damaged && fs::remove_file(&packed).is_ok() {
                        true => format!("{error}; removed, the next use packs it again"),
                        false => error.to_string(),
                    };
                    Err(LoadError::Packed { packed, what })
                }
            }
        };
        check().map_err(|error| error.at(path))
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    pub fn fingerprint(&self) -> blake3::Hash {
        self.fingerprint
    }

    /// How the model is best sampled: what its file says, then what it was loaded with. Most files say nothing.
    pub fn sampling(&self) -> &SamplingValues {
        &self.sampling
    }

    /// How `chat` and the server sample answers of this model where nothing is requested. The library's own default is
    /// greedy.
    pub fn sampling_defaults(&self) -> SampleOptions {
        effective(&SamplingValues::default(), &self.sampling)
    }
}

/// Refuses a packed model that is damaged. Where there is a folder to note that it was whole, it is read again only after
/// its stamp has changed, else each time.
fn check_packed(gguf: &Gguf, options: &LoadOptions) -> LoadResult {
    let pool = ThreadPool::new(options.threads.max(1));
    let Repack::Into(dir) = &options.repack else {
        return Ok(gguf.check_packed(&pool)?);
    };
    let before = ContentRecord::read(gguf, dir);
    let mut record = before.clone();
    record.check_packed(gguf, &pool)?;
    let written = || fs::create_dir_all(dir).and_then(|()| record.write(gguf, dir));
    if record != before
        && let Err(error) = written()
    {
        log::debug!("{}: {error}", dir.display());
    }
    Ok(())
}

/// The packed copy, for a model whose content is what it was. Without a folder that can be written to, decoding is slower
/// and nothing is known of the content.
fn packed(
    weights: &Weights,
    fingerprint: &blake3::Hash,
    dir: &Path,
    threads: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> LoadResult<Option<FileMap>> {
    let pool = ThreadPool::new(threads.max(1));
    let slower = |error: &dyn std::fmt::Display| {
        let dir = dir.display();
        log::warn!("no packed copy of the weights in {dir}: {error}; decoding will be slower");
    };
    if let Err(error) = fs::create_dir_all(dir) {
        slower(&error);
        return Ok(None);
    }
    remove_unfinished(dir);
    let before = ContentRecord::read(&weights.gguf, dir);
    let mut record = before.clone();
    let content = record.check(&weights.gguf, &pool)?;
    let mut map = None;
    if weights.packed_bytes >= pack::WORTH_BYTES {
        let source = PackSource {
            weights,
            key: fingerprint,
            content: &content,
            pool: &pool,
        };
        match source.open_or_write(dir, &mut record.packed, progress) {
            Ok(found) => map = Some(found),
            Err(error @ PackError::Content { .. }) => {
                return Err(LoadError::field("content", error.to_string()));
            }
            Err(error) => slower(&error),
        }
    }
    if record != before
        && let Err(error) = record.write(&weights.gguf, dir)
    {
        log::debug!("{}: {error}", dir.display());
    }
    Ok(map)
}
