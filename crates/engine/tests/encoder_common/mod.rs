//! Made-up encoders for tests: the right tensors with noise in them, and a vocabulary of a few words.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

pub const VOCAB: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\none\ntwo\nthree\nfour\n,\n";
pub const PIECES: usize = 9;

/// Tensors by name: type, shape.
pub type Tensors = BTreeMap<String, (String, Vec<usize>)>;

pub struct Shape {
    pub tensors: Tensors,
}

impl Default for Shape {
    /// What all-MiniLM-L6-v2 has, with a small vocabulary.
    fn default() -> Shape {
        let mut tensors = Tensors::new();
        let mut add = |name: String, shape: &[usize]| {
            tensors.insert(name, ("F32".into(), shape.to_vec()));
        };
        add("embeddings.word_embeddings.weight".into(), &[PIECES, 384]);
        add("embeddings.position_embeddings.weight".into(), &[512, 384]);
        add("embeddings.token_type_embeddings.weight".into(), &[2, 384]);
        let mut pairs = vec![("embeddings.LayerNorm".to_string(), vec![384])];
        for layer in 0..6 {
            for (name, shape) in [
                ("attention.self.query", vec![384, 384]),
                ("attention.self.key", vec![384, 384]),
                ("attention.self.value", vec![384, 384]),
                ("attention.output.dense", vec![384, 384]),
                ("attention.output.LayerNorm", vec![384]),
                ("intermediate.dense", vec![1536, 384]),
                ("output.dense", vec![384, 1536]),
                ("output.LayerNorm", vec![384]),
            ] {
                pairs.push((format!("encoder.layer.{layer}.{name}"), shape));
            }
        }
        for (name, shape) in pairs {
            add(format!("{name}.bias"), &shape[..1]);
            add(format!("{name}.weight"), &shape);
        }
        Shape { tensors }
    }
}

impl Shape {
    /// The header as text, and the bytes of data it describes.
    pub fn header(&self) -> (String, u64) {
        let mut at = 0u64;
        let mut items = vec![r#""__metadata__":{"format":"pt"}"#.to_string()];
        for (name, (dtype, shape)) in &self.tensors {
            let width = if dtype == "F16" { 2 } else { 4 };
            let end = at + width * shape.iter().map(|d| *d as u64).product::<u64>();
            items.push(format!(
                r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{at},{end}]}}"#
            ));
            at = end;
        }
        (format!("{{{}}}", items.join(",")), at)
    }
}

/// A whole model in a folder.
pub fn write_model(dir: &Path, shape: &Shape, seed: u64) {
    let (header, bytes) = shape.header();
    let mut out = BufWriter::new(File::create(dir.join("model.safetensors")).unwrap());
    out.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    out.write_all(header.as_bytes()).unwrap();
    // Noise of a prime length, over and over: no two rows are the same.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let noise: Vec<u8> = (0..99_991)
        .flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let x = (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
            (x * 0.2).to_le_bytes()
        })
        .collect();
    let mut left = bytes as usize;
    while left > 0 {
        let n = left.min(noise.len());
        out.write_all(&noise[..n]).unwrap();
        left -= n;
    }
    out.flush().unwrap();
    std::fs::write(dir.join("vocab.txt"), VOCAB).unwrap();
}

/// A file with this header and as many bytes of zeros behind it, which take no room on the disk.
pub fn write_sparse(dir: &Path, length: u64, header: &[u8], data: u64) {
    let mut file = File::create(dir.join("model.safetensors")).unwrap();
    file.write_all(&length.to_le_bytes()).unwrap();
    file.write_all(header).unwrap();
    file.set_len(8 + header.len() as u64 + data).unwrap();
    std::fs::write(dir.join("vocab.txt"), VOCAB).unwrap();
}
