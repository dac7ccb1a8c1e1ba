//! Places of requests and of commands, counted without a lock: a caller that finds none is refused at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone)]
pub(crate) struct Places(Arc<AtomicUsize>);

/// One place; free again when this is dropped.
pub(crate) struct Permit(Places);

impl Places {
    pub fn new(count: usize) -> Places {
        Places(Arc::new(AtomicUsize::new(count)))
    }

    pub fn free(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// All of them or none.
    pub fn try_acquire(&self, count: usize) -> Option<Vec<Permit>> {
        let take = |free: usize| free.checked_sub(count);
        let taken = (self.0).fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        taken.ok()?;
        Some((0..count).map(|_| Permit(self.clone())).collect())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_together_and_freed_one_by_one() {
        let places = Places::new(3);
        let mut two = places.try_acquire(2).unwrap();
        assert!(places.try_acquire(2).is_none());
        let one = places.try_acquire(1).unwrap();
        assert!(places.try_acquire(1).is_none());
        two.pop();
        assert!(places.try_acquire(1).is_some());
        drop((one, two));
        assert_eq!(places.try_acquire(3).map(|all| all.len()), Some(3));
    }
}
