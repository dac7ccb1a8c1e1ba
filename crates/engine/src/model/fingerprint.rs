//! Identifies a model by its content.
//!
//! Hashing every byte would read the whole file at every start. The fingerprint covers all names,
//! types and shapes, all metadata, and from every tensor three samples; two trainings or two
//! quantisations of one model differ in all of them. A packed model carries the fingerprint of the GGUF file it was made of.

use haversack_gguf::Gguf;

/// Bytes hashed at the beginning, the middle and the end of each tensor: one page.
const SAMPLE_BYTES: usize = 4096;

/// The samples of a tensor.
fn samples(bytes: &[u8]) -> [&[u8]; 3] {
    let last = bytes.len().saturating_sub(SAMPLE_BYTES);
    [0, last / 2, last].map(|start| &bytes[start..bytes.len().min(start + SAMPLE_BYTES)])
}

/// Of the samples of each matrix 16 bits, as hex digits.
pub(super) fn sample_tags(g: &Gguf) -> String {
    let matrices = g.tensors().iter().filter(|tensor| tensor.rows() > 1);
    matrices
        .map(|tensor| {
            let mut hasher = blake3::Hasher::new();
            for sample in samples(g.bytes(tensor)) {
                hasher.update(sample);
            }
            hasher.finalize().to_hex()[..4].to_owned()
        })
        .collect()
}

pub(super) fn is_zero_where_sampled(bytes: &[u8]) -> bool {
    samples(bytes)
        .iter()
        .all(|sample| sample.iter().all(|&byte| byte == 0))
}

pub fn fingerprint(g: &Gguf) -> blake3::Hash {
    if let Some(packed) = g.packed() {
        return packed.original.fingerprint.into();
    }
    let mut hasher = blake3::Hasher::new_derive_key("haversack model fingerprint v1");
    let mut add = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    for header in g.headers() {
        add(header);
    }
    for t in g.tensors() {
        add(t.name.as_bytes());
        let bytes = g.bytes(t);
        for sample in samples(bytes) {
            add(sample);
        }
    }
    hasher.finalize()
}
