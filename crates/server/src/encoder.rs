//! The sentence encoder of `/v1/embeddings`: opened by its first request, computing one request at a time.

use super::fail::Fail;
use super::limits;
use axum::http::StatusCode;
use haversack::engine::encoder::{Embedding, Encoder, EncoderOptions};
use haversack_hub::home::Home;
use std::sync::{Arc, Weak};
use tokio::sync::{Mutex, Semaphore};

pub struct SharedEncoder {
    /// The request that holds the lock computes.
    encoder: Arc<Mutex<Option<Arc<Encoder>>>>,
    places: Semaphore,
}

impl Default for SharedEncoder {
    fn default() -> SharedEncoder {
        SharedEncoder {
            encoder: Arc::default(),
            places: Semaphore::new(limits::EMBEDDERS),
        }
    }
}

impl SharedEncoder {
    /// Embeddings of the texts, and how many tokens they have.
    pub async fn embed(&self, texts: Vec<String>) -> Result<(Vec<Embedding>, usize), Fail> {
        let place = self.places.try_acquire();
        let _place = place.map_err(|_| Fail::busy())?;
        let mut encoder = self.encoder.clone().lock_owned().await;
        // Dropped with this future: the work stops when the client leaves.
        let wanted = Arc::new(());
        let still = Arc::downgrade(&wanted);
        let computed = tokio::task::spawn_blocking(move || {
            let encoder = match &*encoder {
                Some(encoder) => encoder.clone(),
                None => encoder.insert(Arc::new(open()?)).clone(),
            };
            compute(&encoder, &texts, &still)
        });
        computed.await.map_err(|_| Fail::stopping())?
    }
}

fn open() -> Result<Encoder, Fail> {
    let fail = |why| Fail::status(StatusCode::NOT_IMPLEMENTED, why);
    let dir = Home::find().map(|home| home.encoder()).ok();
    let Some(dir) = dir.filter(|dir| dir.is_dir()) else {
        let why = "this server has no sentence encoder; `haversack pull minilm` fetches one";
        return Err(fail(why));
    };
    Encoder::open(&dir, &EncoderOptions::default()).map_err(|error| {
        // A client need not know the path.
        log::error!("{}: {error}", dir.display());
        fail("the sentence encoder cannot be opened; `haversack pull minilm` fetches it again")
    })
}

fn compute(
    encoder: &Encoder,
    texts: &[String],
    still: &Weak<()>,
) -> Result<(Vec<Embedding>, usize), Fail> {
    let mut tokens = 0;
    let mut embedded = Vec::with_capacity(texts.len());
    for text in texts {
        if still.strong_count() == 0 {
            return Err(Fail::internal("the client has left"));
        }
        tokens += encoder.tokens(text).len();
        let embedding = encoder.embed(text);
        embedded.push(embedding.map_err(|error| Fail::internal(error.to_string()))?);
    }
    Ok((embedded, tokens))
}
