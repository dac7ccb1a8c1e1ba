//! What tests of sessions share: an encoder of words, a turn, and what attention sees.

use haversack_conversations::session::{Answer, Embed, SessionError, SessionId, Sessions};
use haversack_engine::Runtime;
use haversack_engine::encoder::{DIMENSIONS, Embedding, EncoderError};
use haversack_engine::runtime::{GenerateEvent, GenerateOptions};
use haversack_engine::sample::{SampleOptions, Sampler};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Words as directions: texts that share words are similar. Nothing like the real encoder, and enough to be chosen by.
pub struct Words;

impl Embed for Words {
    fn embed(&self, text: &str) -> Result<Embedding, EncoderError> {
        let mut direction = [0.001; DIMENSIONS];
        let words = text.split(|c: char| !c.is_alphanumeric());
        for word in words.filter(|word| !word.is_empty()) {
            let hash = word.bytes().fold(7u64, |h, b| {
                (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
            });
            direction[(hash >> 20) as usize % DIMENSIONS] += 1.0;
        }
        Embedding::of(direction).ok_or(EncoderError::NoDirection)
    }
}

/// One turn, the likeliest answer.
pub fn try_say(
    sessions: &mut Sessions,
    runtime: &mut Runtime,
    id: SessionId,
    text: &str,
) -> Result<Answer, SessionError> {
    let mut sampler = Sampler::new(SampleOptions {
        temperature: 0.0,
        ..SampleOptions::default()
    })
    .unwrap();
    let mut go_on = |_: GenerateEvent<'_>| ControlFlow::Continue(());
    let options = GenerateOptions::default();
    sessions.say(runtime, id, text, 8, &mut sampler, &options, &mut go_on)
}

pub fn say(sessions: &mut Sessions, runtime: &mut Runtime, id: SessionId, text: &str) -> Answer {
    try_say(sessions, runtime, id, text).unwrap()
}

/// Positions that attention sees in every layer, from the store's own books.
pub fn seen(runtime: &Runtime, sessions: &Sessions, id: SessionId) -> BTreeSet<u64> {
    let sequence = sessions.sequence(id).unwrap();
    let store = runtime.store();
    let mut all: Option<BTreeSet<u64>> = None;
    for layer in 0..store.layers().len() {
        let view = store.view(sequence, layer).unwrap();
        let shown = |e: &haversack_cache::BlockEntry| {
            let (first, hidden) = (e.first_position, e.hidden);
            (0..e.rows)
                .filter(move |i| hidden >> i & 1 == 0)
                .map(move |i| first + u64::from(i))
        };
        let seen: BTreeSet<u64> = view.entries().iter().flat_map(shown).collect();
        let first = all.get_or_insert_with(|| seen.clone());
        assert_eq!(first, &seen, "layer {layer}");
    }
    all.unwrap_or_default()
}
