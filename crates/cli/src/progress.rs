//! Progress on stderr: a bar on a terminal, a line now and then in a log.

use crate::out::note;
use haversack::memory::bytes::human;
use haversack_hub::progress::FetchProgress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// In a log, a line each time this share more is done, but not more often than [`LOG_EVERY`].
const LOG_STEPS: u64 = 10;
const LOG_EVERY: Duration = Duration::from_secs(2);

/// A bar on a terminal; it goes away with this value.
struct Bar(Option<ProgressBar>);

impl Bar {
    fn new(total: u64, template: &str) -> Bar {
        Bar(io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar
        }))
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Progress through a known number of bytes, with speed and time left.
pub struct Bytes {
    total: u64,
    done: u64,
    /// When the first position was said, and what it was: a resumed download did not begin at 0.
    began: Option<(Instant, u64)>,
    bar: Bar,
    step_logged: u64,
    logged_at: Instant,
}

impl Bytes {
    pub fn new(total: u64) -> Bytes {
        let template = "  {bar:20} {binary_bytes:>11} of {binary_total_bytes} {binary_bytes_per_sec:>12} {eta:>4} {wide_msg}";
        let bar = Bar::new(total, template);
        if let Some(bar) = &bar.0 {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Bytes {
            total,
            done: 0,
            began: None,
            bar,
            step_logged: 0,
            logged_at: Instant::now(),
        }
    }

    /// What is happening now, shown beside the bar.
    pub fn say(&mut self, message: &'static str) {
        if let Some(bar) = &self.bar.0 {
            bar.set_message(message);
        }
    }

    /// So much is done, absolutely: a download that starts again moves the bar back.
    pub fn set(&mut self, done: u64) {
        self.done = done.min(self.total);
        let is_first = self.began.is_none();
        let (began, from) = *self.began.get_or_insert((Instant::now(), self.done));
        if let Some(bar) = &self.bar.0 {
            bar.set_position(self.done);
            if is_first {
                bar.reset_eta();
            }
            return;
        }
        let step = self.done.saturating_mul(LOG_STEPS);
        let step = step.checked_div(self.total).unwrap_or(0);
        let due = self.logged_at.elapsed() >= LOG_EVERY || step == LOG_STEPS;
        if step > self.step_logged && due {
            self.step_logged = step;
            self.logged_at = Instant::now();
            let (percent, total) = (step * (100 / LOG_STEPS), human(self.total));
            let moved = self.done.saturating_sub(from);
            let speed = speed(moved, self.total - self.done, began.elapsed());
            note(&format!("  {percent:3} % of {total}{speed}"));
        }
    }
}

/// `, 3.2 MiB/s, 2:05 left`, where it can be said.
fn speed(moved: u64, left: u64, elapsed: Duration) -> String {
    let per_second = moved as f64 / elapsed.as_secs_f64();
    if !per_second.is_finite() || per_second < 1.0 {
        return String::new();
    }
    let seconds = (left as f64 / per_second) as u64;
    let speed = human(per_second as u64);
    match seconds {
        0 => format!(", {speed}/s"),
        _ => format!(", {speed}/s, {}:{:02} left", seconds / 60, seconds % 60),
    }
}

/// Progress through a number of things, on a terminal only: in a log it would say nothing new.
pub struct Count(Bar);

impl Count {
    pub fn new(total: usize, what: &'static str) -> Count {
        let bar = Bar::new(total as u64, "  {bar:20} {pos} of {len} {msg}");
        if let Some(bar) = &bar.0 {
            bar.set_message(what);
        }
        Count(bar)
    }

    /// For a prompt, if it is one that takes a while.
    pub fn of_prompt(tokens: usize) -> Option<Count> {
        (tokens >= PROMPT_TOKENS).then(|| Count::new(tokens, "tokens of the prompt"))
    }

    pub fn set(&mut self, done: usize) {
        if let Some(bar) = &self.0.0 {
            bar.set_position(done as u64);
        }
    }
}

/// Shorter prompts are read in about a second even by a large model.
const PROMPT_TOKENS: usize = 256;

/// What takes longer than this is explained.
const LATE: Duration = Duration::from_millis(300);

/// A line for something that cannot say how far it is: printed once it takes a while, so that what
/// is quick, or refused at once, stays silent.
pub struct Late(#[allow(dead_code, reason = "dropping it is what counts")] Sender<()>);

impl Late {
    pub fn new(line: &'static str) -> Late {
        let (alive, gone) = channel();
        // Without a thread there is no line; the work goes on.
        let _ = thread::Builder::new().name("late".into()).spawn(move || {
            if gone.recv_timeout(LATE) == Err(RecvTimeoutError::Timeout) {
                note(line);
            }
        });
        Late(alive)
    }
}

/// A fetch on the terminal.
#[derive(Default)]
pub struct Terminal(Mutex<Option<Bytes>>);

impl fmt::Debug for Terminal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Terminal")
    }
}

impl FetchProgress for Terminal {
    fn note(&self, line: &str) {
        note(line);
    }

    fn bytes(&self, done: u64, total: u64, phase: &'static str) {
        let mut bar = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bar = bar.get_or_insert_with(|| Bytes::new(total));
        bar.set(done);
        bar.say(phase);
    }

    fn bytes_end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// How the commands fetch: with the hub of the environment, shown on the terminal.
pub fn fetch_options() -> haversack_hub::fetch::FetchOptions {
    haversack_hub::fetch::FetchOptions::from_environment(Arc::new(Terminal::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_and_time_left() {
        let of = |moved, left, ms| speed(moved, left, Duration::from_millis(ms));
        assert_eq!(of(10 << 20, 20 << 20, 2000), ", 5.0 MiB/s, 0:04 left");
        assert_eq!(of(1 << 20, 1 << 30, 1000), ", 1.0 MiB/s, 17:04 left");
        assert_eq!(of(1 << 20, 0, 1000), ", 1.0 MiB/s");
        assert_eq!(of(0, 5, 1000), "");
        assert_eq!(of(5, 5, 0), "");
        assert!(of(1, u64::MAX, u64::MAX).is_empty());
    }
}
