//! Random damage to every kind of file that outlives a process: none of it is used, each is named, and each is repaired
//! or can be removed. A few of each here; `HAVERSACK_DAMAGES=500` is the long form.

use crate::common;

use common::{load, session::say};
use haversack_conversations::session::export::SessionExport;
use haversack_conversations::session::{SessionError, SessionOptions, SessionSettings, Sessions};
use haversack_engine::kv_quality::calibrate;
use haversack_engine::model::packing::Packing;
use haversack_engine::{LoadOptions, Model, Repack, Retention, Runtime, RuntimeOptions};
use haversack_testing::models::Spec;
use std::cell::RefCell;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

fn damages() -> u64 {
    let set = std::env::var("HAVERSACK_DAMAGES");
    set.map_or(10, |count| count.parse().unwrap())
}

/// A generator of numbers, the same each time.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// What disks and programs do to files: a bit, a run of zeros, ones or nonsense, half of everything, an early end, two pages
/// that changed places, a longer file where that counts as damage.
fn damaged(whole: &[u8], chance: &mut Chance, longer_too: bool) -> (String, Vec<u8>) {
    loop {
        let mut bytes = whole.to_vec();
        let at = chance.below(bytes.len());
        let longest = 1 << chance.below(16);
        let run = 1 + chance.below(longest);
        let end = (at + run).min(bytes.len());
        let what = match chance.below(8) {
            0 | 1 => {
                bytes[at] ^= 1 << chance.below(8);
                format!("a bit of byte {at}")
            }
            2 => {
                bytes[at..end].fill(0);
                format!("zeros in {at}..{end}")
            }
            3 => {
                bytes[at..end].fill(0xff);
                format!("ones in {at}..{end}")
            }
            4 => {
                bytes[at..end].fill_with(|| chance.next() as u8);
                format!("nonsense in {at}..{end}")
            }
            5 => {
                bytes.truncate(at);
                format!("cut at {at}")
            }
            6 if longer_too => {
                bytes.extend((0..run).map(|_| chance.next() as u8));
                format!("{run} bytes more")
            }
            6 => {
                let half = bytes.len() / 2;
                bytes[half..].fill(0);
                "the second half zero".to_owned()
            }
            _ => {
                let (a, b) = (
                    chance.below(bytes.len() / 64),
                    chance.below(bytes.len() / 64),
                );
                for i in 0..64 {
                    bytes.swap(64 * a + i, 64 * b + i);
                }
                format!("{a} and {b} swapped")
            }
        };
        if bytes != whole {
            return (what, bytes);
        }
    }
}

/// Writes over a file as it is: the same file, other bytes.
fn overwrite(path: &Path, bytes: &[u8]) {
    let mut file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
}

thread_local! {
    static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Keeps what the thread of a test logs.
struct Listener;

impl log::Log for Listener {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        SAID.with_borrow_mut(|said| said.push(record.args().to_string()));
    }

    fn flush(&self) {}
}

/// What was logged by this thread since the last call.
fn said() -> String {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = log::set_logger(&Listener);
        log::set_max_level(log::LevelFilter::Warn);
    });
    SAID.with_borrow_mut(|said| std::mem::take(said).join("\n"))
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// Large enough to be packed.
fn packed_spec() -> Spec {
    Spec {
        dim: 256,
        ffn: 1024,
        ..Spec::named("llama").unwrap()
    }
}

fn only_file(dir: &Path, ending: &str) -> PathBuf {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut found = entries.filter(|path| path.extension().is_some_and(|e| e == ending));
    let path = found.next().unwrap();
    assert!(found.next().is_none(), "{} twice", path.display());
    path
}

fn options(dir: &Path) -> LoadOptions {
    LoadOptions {
        repack: Repack::Into(dir.to_owned()),
        threads: 2,
        ..LoadOptions::default()
    }
}

/// A model that was used once is refused by name after any damage, also where the fingerprint does not look, and runs
/// again once it is whole. Half of a model zeroed ran without a word before.
#[test]
fn of_model_files() {
    let dir = tempfile::tempdir().unwrap();
    let (path, packed) = (dir.path().join("model.gguf"), dir.path().join("packed"));
    Spec::named("llama").unwrap().write_file(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    let load = || Model::load(&path, &options(&packed), &mut |_, _| ()).map(|_| ());
    load().unwrap();
    let mut chance = Chance(1);
    for _ in 0..damages() {
        let (what, bytes) = damaged(&whole, &mut chance, true);
        overwrite(&path, &bytes);
        let error = load().expect_err(&what).to_string();
        assert!(error.contains("model.gguf"), "{what}: {error}");
        let error = Model::verify_content(&path, &packed, 2, false).expect_err(&what);
        assert!(error.to_string().contains("model.gguf"), "{what}: {error}");
        overwrite(&path, &whole);
        load().unwrap_or_else(|error| panic!("restored from {what}: {error}"));
    }
    // Half of it never written is found at the first use too.
    let other = dir.path().join("half.gguf");
    let mut bytes = whole.clone();
    let half = bytes.len() / 2;
    bytes[half..].fill(0);
    fs::write(&other, &bytes).unwrap();
    let error = Model::load(&other, &LoadOptions::default(), &mut |_, _| ());
    let error = error.map(|_| ()).unwrap_err().to_string();
    assert!(
        error.contains("half.gguf") && error.contains("zero"),
        "{error}"
    );
    // A change that was meant is accepted, and another model under the name needs no word.
    let mut changed = whole.clone();
    let last = changed.len() - 1;
    changed[last] ^= 1;
    overwrite(&path, &changed);
    load().unwrap_err();
    Model::verify_content(&path, &packed, 2, true).unwrap();
    load().unwrap();
    let spec = Spec {
        seed: 99,
        ..Spec::named("llama").unwrap()
    };
    spec.write_file(&other).unwrap();
    overwrite(&path, &fs::read(&other).unwrap());
    load().unwrap();
}

/// A damaged packed copy is named and packed again, whatever the damage; what a killed packing left is removed; a model
/// whose samples are those of a packed copy and whose content is not is refused.
#[test]
fn of_packed_copies() {
    let dir = tempfile::tempdir().unwrap();
    let (path, packed) = (dir.path().join("model.gguf"), dir.path().join("packed"));
    packed_spec().write_file(&path).unwrap();
    let load = |path: &Path| Model::load(path, &options(&packed), &mut |_, _| ());
    let left = packed.join("0123.77.tmp");
    fs::create_dir_all(&packed).unwrap();
    fs::write(&left, "half a copy").unwrap();
    load(&path).unwrap();
    assert!(!left.exists(), "an unfinished file was left");
    let copy = only_file(&packed, "packed");
    let whole = fs::read(&copy).unwrap();
    let mut chance = Chance(2);
    for i in 0..damages() {
        said();
        let (what, bytes) = damaged(&whole, &mut chance, true);
        overwrite(&copy, &bytes);
        if i % 2 == 0 {
            let error = Model::verify_content(&path, &packed, 2, false).expect_err(&what);
            let error = error.to_string();
            assert!(error.contains(name(&copy)), "{what}: {error}");
            assert!(!copy.exists(), "{what}: damaged and kept");
            load(&path).unwrap();
        } else {
            load(&path).unwrap();
            let warned = said();
            assert!(warned.contains(name(&copy)), "{what}: {warned}");
        }
        assert!(fs::read(&copy).unwrap() == whole, "{what}: not repaired");
        said();
        load(&path).unwrap();
        assert_eq!(said(), "", "{what}: it is whole again");
    }
    // The same samples, another content: one of both is damaged.
    let other = dir.path().join("other.gguf");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.len() / 2 + 100;
    bytes[at] ^= 1;
    fs::write(&other, &bytes).unwrap();
    let key = |path: &Path| load_key(path);
    if key(&other) == key(&path) {
        let error = load(&other).map(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains("other.gguf") && error.contains(name(&copy)),
            "{error}"
        );
    }
}

/// A packed model of a GGUF file, beside it.
fn pack(path: &Path) -> PathBuf {
    let packed = path.with_extension("packed");
    let packing = Packing::open(path, None, 2).unwrap();
    let mut file = fs::File::create(&packed).unwrap();
    packing.write(&mut file, [7; 32], &mut |_, _| ()).unwrap();
    assert_eq!(file.metadata().unwrap().len(), packing.file_bytes());
    packed
}

/// A packed model is refused by name after any damage, and runs again once it is whole.
#[test]
fn of_packed_models() {
    let dir = tempfile::tempdir().unwrap();
    let (path, known) = (dir.path().join("model.gguf"), dir.path().join("packed"));
    // Fused matrices, and an embedding that stays as it is.
    Spec::named("phi3").unwrap().write_file(&path).unwrap();
    let path = pack(&path);
    let whole = fs::read(&path).unwrap();
    let load = |options: &LoadOptions| Model::load(&path, options, &mut |_, _| ()).map(|_| ());
    load(&options(&known)).unwrap();
    let mut chance = Chance(8);
    for _ in 0..damages() {
        let (what, bytes) = damaged(&whole, &mut chance, true);
        overwrite(&path, &bytes);
        for options in [options(&known), LoadOptions::default()] {
            let error = load(&options).expect_err(&what).to_string();
            assert!(error.contains("model.packed"), "{what}: {error}");
        }
        let error = Model::verify_content(&path, &known, 2, false).expect_err(&what);
        assert!(
            error.to_string().contains("model.packed"),
            "{what}: {error}"
        );
        overwrite(&path, &whole);
        load(&options(&known)).unwrap_or_else(|error| panic!("restored from {what}: {error}"));
    }
}

/// Tables and heads that say anything, with checksums that match it: refused or read, never a panic, and never run as
/// another layout than ours.
#[test]
fn of_forged_packed_models() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    Spec::named("llama-llama3")
        .unwrap()
        .write_file(&path)
        .unwrap();
    let path = pack(&path);
    let whole = fs::read(&path).unwrap();
    let regions = u32::from_le_bytes(whole[12..16].try_into().unwrap()) as usize;
    let table_at = whole.len() - 48 * regions;
    let sign = |bytes: &mut [u8]| {
        let table = *blake3::hash(&bytes[table_at..]).as_bytes();
        bytes[128..160].copy_from_slice(&table);
        let head = *blake3::hash(&bytes[..160]).as_bytes();
        bytes[160..192].copy_from_slice(&head);
    };
    let open = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        Model::load(&path, &LoadOptions::default(), &mut |_, _| ()).map(|_| ())
    };
    let mut again = whole.clone();
    sign(&mut again);
    assert!(again == whole, "signed as it is");
    let mut chance = Chance(9);
    let values = [0, 1, 2, 15, 16, 17, 64, 4096, u32::MAX - 1, u32::MAX];
    for _ in 0..20 * damages() {
        let mut bytes = whole.clone();
        let entry = table_at + 48 * chance.below(regions);
        // Counts and sizes of the head, or tensor, rows and bytes of a region.
        let at = match chance.below(4) {
            0 => 12 + 4 * chance.below(5),
            _ => entry + 4 * chance.below(4),
        };
        let value = match chance.below(2) {
            0 => values[chance.below(values.len())],
            _ => chance.next() as u32 % 64,
        };
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        if bytes == whole {
            continue;
        }
        sign(&mut bytes);
        let error = open(&bytes).expect_err("a forged table").to_string();
        assert!(error.contains("model.packed"), "{at} {value}: {error}");
    }
    // Two matrices of one shape that changed places in the table.
    let mut bytes = whole.clone();
    let entry = |i: usize| table_at + 48 * i..table_at + 48 * i + 48;
    let entries: Vec<Vec<u8>> = (0..regions).map(|i| whole[entry(i)].to_vec()).collect();
    let same = |a: &[u8], b: &[u8]| a[4..16] == b[4..16] && a[..4] != b[..4];
    let pairs = (0..regions).flat_map(|a| (0..a).map(move |b| (a, b)));
    let (a, b) = pairs
        .into_iter()
        .find(|&(a, b)| same(&entries[a], &entries[b]))
        .unwrap();
    for (to, from) in [(a, b), (b, a)] {
        bytes[entry(to)][..4].copy_from_slice(&entries[from][..4]);
    }
    sign(&mut bytes);
    let error = open(&bytes).unwrap_err().to_string();
    assert!(error.contains("matrices"), "{error}");
    open(&whole).unwrap();
}

fn load_key(path: &Path) -> String {
    load(path, Repack::Off).fingerprint().to_hex().to_string()
}

fn runtime(model: &Arc<Model>, cache: &Path) -> Runtime {
    let options = RuntimeOptions {
        threads: 1,
        retention: Retention::managed(),
        cache_dir: Some(cache.to_owned()),
        ..RuntimeOptions::default()
    };
    Runtime::new(model.clone(), &options).unwrap()
}

fn small_model(dir: &Path) -> Arc<Model> {
    let path = dir.join("model.gguf");
    let spec = Spec {
        context: 2048,
        ..Spec::named("llama").unwrap()
    };
    spec.write_file(&path).unwrap();
    load(&path, Repack::Off)
}

/// Statistics of keys that are damaged are named, measured and written again.
#[test]
fn of_key_statistics() {
    let dir = tempfile::tempdir().unwrap();
    let model = small_model(dir.path());
    let cache = dir.path().join("cache");
    runtime(&model, &cache);
    let path = calibrate::file(&model, &cache);
    let whole = fs::read(&path).unwrap();
    let mut chance = Chance(3);
    for _ in 0..damages() {
        said();
        let (what, bytes) = damaged(&whole, &mut chance, true);
        overwrite(&path, &bytes);
        runtime(&model, &cache);
        let warned = said();
        assert!(warned.contains(name(&path)), "{what}: {warned}");
        assert!(fs::read(&path).unwrap() == whole, "{what}: not repaired");
    }
}

/// A damaged session is refused by name, its beginning can be read, and it can be deleted. A damaged prefix file is named
/// and replaced.
#[test]
fn of_sessions_and_prefixes() {
    const OPENING: &str =
        "You keep the log of the harbour, of every ship and of the tide, and of nothing else.";
    let dir = tempfile::tempdir().unwrap();
    let model = small_model(dir.path());
    let mut runtime = runtime(&model, &dir.path().join("cache"));
    let (folder, prefixes) = (dir.path().join("sessions"), dir.path().join("prefixes"));
    let options = SessionOptions {
        dir: Some(folder.clone()),
        prefix_dir: Some(prefixes.clone()),
        settings: SessionSettings {
            capacity: Some(300),
            answer_max: Some(8),
            ..SessionSettings::default()
        },
        ..SessionOptions::default()
    };
    let start = |runtime: &Runtime| Sessions::new(runtime, options.clone()).unwrap();
    let mut sessions = start(&runtime);
    let id = sessions.create(&mut runtime, "anna", OPENING, 1).unwrap();
    for text in ["one", "two", "three"] {
        say(&mut sessions, &mut runtime, id, text);
    }
    sessions.suspend(&mut runtime, id).unwrap();
    let path = folder.join("anna.session");
    let whole = fs::read(&path).unwrap();
    let all = SessionExport::of(&path, None).unwrap();
    assert_eq!((all.turns.len(), &all.damage), (3, &None));
    let prefix = only_file(&prefixes, "prefix");
    let prefix_whole = fs::read(&prefix).unwrap();
    let mut chance = Chance(4);
    for i in 0..damages() {
        let (what, bytes) = damaged(&whole, &mut chance, false);
        overwrite(&path, &bytes);
        let error = sessions.resume(&mut runtime, "anna").expect_err(&what);
        assert!(error.to_string().contains("anna"), "{what}: {error}");
        if let Ok(found) = SessionExport::of(&path, None) {
            assert!(all.turns.starts_with(&found.turns), "{what}");
            assert!(found.damage.is_some(), "{what}: no word of it");
        }
        assert!(matches!(
            sessions.create(&mut runtime, "anna", "", 2),
            Err(SessionError::File { .. })
        ));
        sessions
            .delete("anna")
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(!path.exists());
        fs::write(&path, &whole).unwrap();
        let id = sessions.resume(&mut runtime, "anna").unwrap();
        sessions.close(&mut runtime, id).unwrap();

        // Every session is closed: the file is verified anew.
        let (what, bytes) = damaged(&prefix_whole, &mut chance, false);
        fs::write(&prefix, &bytes).unwrap();
        let mut others = start(&runtime);
        let name = format!("ben-{i}");
        let id = others.create(&mut runtime, &name, OPENING, 1).unwrap();
        let problem = others.prefixes().problem.as_ref().expect(&what);
        assert_eq!(problem.path, prefix, "{what}");
        assert!(
            fs::read(&prefix).unwrap() == prefix_whole,
            "{what}: not replaced"
        );
        others.close(&mut runtime, id).unwrap();
        others.delete(&name).unwrap();
    }
    // The last session that opens with it takes the prefix along.
    assert!(prefix.exists());
    sessions.delete("anna").unwrap();
    assert!(!prefix.exists());
}
