//! The fuzz targets with their corpora and a number of changes that follow from a seed. libFuzzer looks further
//! (`.ci/long fuzz-targets`); what it finds becomes a file of the corpus.
#![cfg(target_os = "linux")]

#[path = "../../../fuzz/src/lib.rs"]
mod targets;

use std::path::Path;
use targets::{TARGETS, Target};

/// Changes of each file of a corpus.
const CHANGES: [(&str, usize); 7] = [
    ("model", 20),
    ("tokenizer", 200),
    ("template", 300),
    ("schema", 12),
    ("session", 12),
    ("http", 12),
    ("calls", 4),
];

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % sides.max(1)
    }
}

/// What libFuzzer does to an input: bits, bytes, numbers at the ends of their ranges, parts of others.
fn change(dice: &mut Dice, input: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..1 + dice.roll(4) {
        let at = dice.roll(input.len() + 1);
        let end = (at + 1 + dice.roll(16)).min(input.len());
        match dice.roll(7) {
            0 if at < input.len() => input[at] ^= 1 << dice.roll(8),
            1 if at < input.len() => input[at] = [0, 1, 0x7f, 0x80, 0xff][dice.roll(5)],
            2 => drop(input.drain(at.min(end)..end)),
            3 => {
                let copied = input[at.min(end)..end].to_vec();
                input.splice(at..at, copied);
            }
            4 => {
                let from = dice.roll(other.len() + 1);
                let part = &other[from..(from + 1 + dice.roll(32)).min(other.len()).max(from)];
                drop(input.splice(at..at, part.iter().copied()));
            }
            5 => {
                let number = [0, 1, u32::MAX, i32::MAX as u32, 1 << 31][dice.roll(5)];
                let number = number.to_le_bytes();
                drop(input.splice(at.min(end)..end.min(at + 4).max(at.min(end)), number));
            }
            _ => input.insert(at, dice.roll(256) as u8),
        }
    }
}

fn run(name: &str, target: Target) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let files = std::fs::read_dir(corpus.join(name)).unwrap();
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let inputs: Vec<Vec<u8>> = files.iter().map(|f| std::fs::read(f).unwrap()).collect();
    assert!(inputs.len() >= 3, "{name}: a corpus");
    let changes = CHANGES.iter().find(|(of, _)| *of == name).unwrap().1;
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for (file, input) in files.iter().zip(&inputs) {
        for round in 0..=changes {
            let mut input = input.clone();
            if round > 0 {
                let other = &inputs[dice.roll(inputs.len())];
                change(&mut dice, &mut input, other);
            }
            let done = std::panic::catch_unwind(|| target(&input));
            let escaped = || input.escape_ascii().to_string();
            assert!(done.is_ok(), "{name}, {}: {}", file.display(), escaped());
        }
    }
}

#[test]
fn targets_survive_their_corpora() {
    std::thread::scope(|scope| {
        for (name, target) in TARGETS {
            scope.spawn(move || run(name, target));
        }
    });
    targets::tidy();
}
