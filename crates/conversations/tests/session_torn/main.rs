//! Sessions on a bad day: processes killed at any moment, files damaged bit by bit, disks that fail, fill and come back.
//!
//! One script of a conversation is told to its end without a fault; what every step answers, and what the session is
//! after it, is the measure. Whatever happens to another telling, it resumes at the last step that was acknowledged or
//! at the one that was under way, and answers the rest with the same tokens.
#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;
mod damage;
mod disk;
mod handles;
mod kill;
mod script;

use common::session::Words;
use haversack_conversations::session::{SessionOptions, SessionSettings, Sessions};
use haversack_engine::{
    Codec, KvForm, KvOptions, Model, Repack, Retention, Runtime, RuntimeOptions,
};
use haversack_testing::models::Spec;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A model and how its sessions are kept.
struct World {
    path: PathBuf,
    model: Arc<Model>,
    options: SessionOptions,
    recent: usize,
}

impl World {
    /// The tiny model of a seed, written to the folder.
    fn tiny(folder: &Path, seed: u64) -> World {
        let path = folder.join(format!("tiny-{seed}.gguf"));
        let spec = Spec {
            context: 2048,
            seed,
            ..Spec::named("llama").unwrap()
        };
        spec.write_file(&path).unwrap();
        World::of(&path, folder.join("sessions"))
    }

    fn of(path: &Path, dir: PathBuf) -> World {
        World {
            path: path.to_owned(),
            model: common::load(path, Repack::Into(common::packed_dir())),
            options: SessionOptions {
                settings: SessionSettings {
                    capacity: Some(300),
                    persistent_max: Some(200),
                    answer_max: Some(8),
                    ..SessionSettings::default()
                },
                dir: Some(dir),
                ..SessionOptions::default()
            },
            recent: 32,
        }
    }

    fn runtime(&self) -> Runtime {
        let options = RuntimeOptions {
            threads: 1,
            kv: KvOptions {
                recent: self.recent,
                ..KvOptions::new(KvForm::both(Codec::Int4.form()))
            },
            retention: Retention::managed(),
            // A process that is killed again and again measures nothing twice.
            cache_dir: Some(common::packed_dir()),
            ..RuntimeOptions::default()
        };
        Runtime::new(self.model.clone(), &options).unwrap()
    }

    fn sessions(&self, runtime: &Runtime) -> Sessions {
        let sessions = Sessions::new(runtime, self.options.clone()).unwrap();
        sessions.with_encoder(Arc::new(Words))
    }

    fn dir(&self) -> &Path {
        self.options.dir.as_deref().unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir().join(format!("{name}.session"))
    }
}

/// A folder in memory where there is one: thousands of files are synced here.
fn quick_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// Numbers that look random and are the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % sides.max(1)
    }
}

/// Long runs are asked for by a variable; a number is how many.
fn asked(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}
