//! Files that are not what was written: one bit, a cut, two pages in each other's place, another model.

use crate::script::{OPENING, say};
use crate::{World, quick_dir};
use haversack_conversations::session::{SessionOptions, Sessions};
use haversack_engine::Runtime;
use haversack_memory::journal::{Journal, JournalOptions};
use std::fs;
use std::path::Path;

/// A session of one turn, as small as they come.
fn small(world: &mut World) -> Vec<u8> {
    world.recent = 0;
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let id = sessions.create(&mut runtime, "small", OPENING, 0).unwrap();
    say(&mut sessions, &mut runtime, id, "hello").unwrap();
    sessions.suspend(&mut runtime, id).unwrap();
    let bytes = fs::read(world.file("small")).unwrap();
    println!("{} bytes", bytes.len());
    assert!(bytes.len() <= 64 << 10);
    bytes
}

struct Tried<'a> {
    world: &'a World,
    runtime: Runtime,
    sessions: Sessions,
    resumed: usize,
}

impl<'a> Tried<'a> {
    fn new(world: &'a World) -> Tried<'a> {
        let runtime = world.runtime();
        Tried {
            world,
            sessions: world.sessions(&runtime),
            runtime,
            resumed: 0,
        }
    }

    /// The whole way, from a file.
    fn resume(&mut self, bytes: &[u8]) -> Result<(), String> {
        fs::write(self.world.file("small"), bytes).unwrap();
        self.resumed += 1;
        match self.sessions.resume(&mut self.runtime, "small") {
            Ok(id) => {
                self.sessions.close(&mut self.runtime, id).unwrap();
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn refuses(&mut self, bytes: &[u8], what: &str) {
        let line = self.resume(bytes).expect_err(what);
        assert!(line.starts_with("session small: "), "{what}: {line}");
        assert!(!line.contains('\n') && line.len() < 200, "{what}: {line}");
    }
}

fn checks(folder: &Path, bytes: &[u8]) -> bool {
    let path = folder.join("checked");
    fs::write(&path, bytes).unwrap();
    Journal::check(&path, &JournalOptions::default()).is_ok()
}

/// All bits go through the verification that `resume` begins with, from a file in memory; those of the head, of the
/// identity and of every 61st byte behind them go the whole way, from a file.
#[test]
fn every_bit() {
    let folder = quick_dir();
    let mut world = World::tiny(folder.path(), 1);
    let mut bytes = small(&mut world);
    let mut tried = Tried::new(&world);
    tried.resume(&bytes).unwrap();
    assert!(checks(folder.path(), &bytes));
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(
            !checks(folder.path(), &bytes),
            "bit {bit} of {} is accepted",
            bytes.len() * 8
        );
        if bit / 8 < 1024 || (bit / 8).is_multiple_of(61) {
            tried.refuses(&bytes, &format!("bit {bit}"));
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    println!(
        "{} bits, {} of them from files",
        bytes.len() * 8,
        tried.resumed - 1
    );
    tried.resume(&bytes).unwrap();
}

#[test]
fn every_length_and_swapped_pages() {
    let folder = quick_dir();
    let mut world = World::tiny(folder.path(), 1);
    let bytes = small(&mut world);
    let mut tried = Tried::new(&world);
    for length in 0..bytes.len() {
        assert!(
            !checks(folder.path(), &bytes[..length]),
            "{length} bytes are accepted"
        );
        if length < 1024 || length.is_multiple_of(61) {
            tried.refuses(&bytes[..length], &format!("{length} bytes"));
        }
    }
    let mut swapped = 0;
    for page in [64, 512, 4096] {
        let count = bytes.len() / page;
        for (a, b) in (0..count).flat_map(|a| (0..a).map(move |b| (a, b))) {
            let of = |i: usize| i * page..(i + 1) * page;
            let mut other = bytes.clone();
            other[of(a)].copy_from_slice(&bytes[of(b)]);
            other[of(b)].copy_from_slice(&bytes[of(a)]);
            if other == bytes {
                continue;
            }
            // The small ones are many.
            if page == 64 && (a * 31 + b) % 97 > 0 {
                continue;
            }
            assert!(!checks(folder.path(), &other), "{page}: {a} and {b}");
            if page == 4096 {
                tried.refuses(&other, &format!("{page}: {a} and {b}"));
            }
            swapped += 1;
        }
    }
    println!(
        "{} lengths, {swapped} swaps, {} files",
        bytes.len(),
        tried.resumed
    );
    // What was appended and not committed is no damage.
    let mut longer = bytes.clone();
    longer.extend([7; 1000]);
    tried.resume(&longer).unwrap();
    assert_eq!(fs::read(world.file("small")).unwrap(), bytes);
}

/// The same architecture, shape and vocabulary; other weights.
#[test]
fn another_model_of_the_same_shape() {
    let folder = quick_dir();
    let mut world = World::tiny(folder.path(), 1);
    small(&mut world);
    let mut other = World::tiny(folder.path(), 2);
    other.recent = 0;
    let print = |world: &World| world.model.fingerprint().to_hex()[..32].to_owned();
    let (mine, theirs) = (print(&world), print(&other));
    assert_ne!(mine, theirs);
    let mut runtime = other.runtime();
    let mut sessions = other.sessions(&runtime);
    let line = sessions.resume(&mut runtime, "small").unwrap_err();
    assert_eq!(
        line.to_string(),
        format!("session small was saved with model {mine}; this is {theirs}")
    );
    // Under another name it is another session; with a key it cannot be opened.
    fs::copy(world.file("small"), world.file("copy")).unwrap();
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let line = sessions.resume(&mut runtime, "copy").unwrap_err();
    assert_eq!(
        line.to_string(),
        "session copy was saved with session small; this is copy"
    );
    let keyed = SessionOptions {
        key: Some([3; 32]),
        ..world.options.clone()
    };
    let mut sessions = Sessions::new(&runtime, keyed).unwrap();
    let line = sessions.resume(&mut runtime, "small").unwrap_err();
    assert_eq!(
        line.to_string(),
        "session small: a key was given, and it is not sealed"
    );
}
