//! Log lines on stderr, for `--log`.

use crate::args::LogLevel;
use crate::out::note;
use log::{LevelFilter, Log, Metadata, Record};

struct Stderr;

static STDERR: Stderr = Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata) -> bool {
        // Other people's crates speak too; only ours is asked for.
        metadata.target().starts_with("haversack")
    }

    fn log(&self, record: &Record) {
        if self.enabled(record.metadata()) {
            let level = record.level().as_str().to_ascii_lowercase();
            note(&format!("{level}: {}", record.args()));
        }
    }

    fn flush(&self) {}
}

pub fn install(level: Option<LogLevel>) {
    let level = match level.unwrap_or(LogLevel::Warn) {
        LogLevel::Off => LevelFilter::Off,
        LogLevel::Error => LevelFilter::Error,
        LogLevel::Warn => LevelFilter::Warn,
        LogLevel::Info => LevelFilter::Info,
        LogLevel::Debug => LevelFilter::Debug,
        LogLevel::Trace => LevelFilter::Trace,
    };
    if log::set_logger(&STDERR).is_ok() {
        log::set_max_level(level);
    }
}
