//! Work that waits for the disk, beside the caller.

use super::io::JournalIo;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type Work<T> = Box<dyn FnOnce() -> T + Send>;

/// Work that another thread runs, or the one that waits for it if it has not begun.
#[must_use]
pub(super) struct BesideTask<T>(Arc<Slot<T>>);

struct Slot<T> {
    state: Mutex<State<T>>,
    ended: Condvar,
}

enum State<T> {
    Waiting(Work<T>),
    Running,
    /// `None`: it panicked.
    Ended(Option<T>),
}

impl<T: Send + 'static> BesideTask<T> {
    pub fn start(io: &Arc<dyn JournalIo>, work: Work<T>) -> BesideTask<T> {
        let task = BesideTask(Arc::new(Slot {
            state: Mutex::new(State::Waiting(work)),
            ended: Condvar::new(),
        }));
        let slot = task.0.clone();
        if !io.run_beside(Box::new(move || slot.run())) {
            task.0.run();
        }
        task
    }

    pub fn has_ended(&self) -> bool {
        matches!(*self.0.state(), State::Ended(_))
    }

    /// Waits for its end, at most this long.
    pub fn wait_for(&self, time: Duration) {
        let state = self.0.state();
        let is_open = |state: &mut State<T>| !matches!(state, State::Ended(_));
        let waited = self.0.ended.wait_timeout_while(state, time, is_open);
        drop(waited);
    }

    /// Waits for its end, or runs it here if it has not begun. `None`: it panicked.
    pub fn wait(self) -> Option<T> {
        self.0.run();
        let mut state = self.0.state();
        loop {
            match mem::replace(&mut *state, State::Running) {
                State::Ended(outcome) => return outcome,
                other => *state = other,
            }
            let woken = self.0.ended.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Slot<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the work, if no other thread does.
    fn run(&self) {
        let mut state = self.state();
        let work = match mem::replace(&mut *state, State::Running) {
            State::Waiting(work) => work,
            other => {
                *state = other;
                return;
            }
        };
        drop(state);
        let mut end = EndOnDrop {
            slot: self,
            outcome: None,
        };
        end.outcome = Some(work());
    }
}

/// Work that panics has ended, too.
struct EndOnDrop<'a, T> {
    slot: &'a Slot<T>,
    outcome: Option<T>,
}

impl<T> Drop for EndOnDrop<'_, T> {
    fn drop(&mut self) {
        *self.slot.state() = State::Ended(self.outcome.take());
        self.slot.ended.notify_all();
    }
}
