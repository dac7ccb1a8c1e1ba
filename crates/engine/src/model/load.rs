//! A loaded model: its configuration, weights, tokenizer and chat template.

use super::config::Config;
use super::error::{LoadError, LoadResult};
use super::residence::Residence;
use super::weights::Weights;
use super::{fingerprint, pack};
use haversack_gguf::Gguf;
use haversack_kernels::threads::ThreadPool;
use haversack_text::template::ChatTemplate;
use haversack_text::tokenizer::Tokenizer;
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
}

pub struct Model {
    config: Config,
    weights: Weights,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    fingerprint: blake3::Hash,
}

impl Model {
    /// Opens a GGUF file. `progress` is given (bytes done, bytes in all) while weights are packed for
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
        let gguf = Gguf::open(path)?;
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
        let mut weights = Weights::find(gguf, &config)?;
        if let Repack::Into(dir) = &options.repack
            && weights.packed_bytes >= pack::WORTH_BYTES
        {
            let pool = ThreadPool::new(options.threads.max(1));
            match pack::open_or_write(&weights, &fingerprint, dir, &pool, progress) {
                Ok(map) => weights.packed = Some(map),
                Err(e) => log::warn!(
                    "no packed copy of the weights in {}: {e}; decoding will be slower",
                    dir.display()
                ),
            }
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
        })
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
}
