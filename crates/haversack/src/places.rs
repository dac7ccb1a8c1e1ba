//! Places of requests and of commands: a caller that finds none is refused at once.

use crate::channel::lock;
use haversack_conversations::session::Owner;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

#[derive(Clone)]
pub(crate) struct Places(Arc<Counts>);

struct Counts {
    max: usize,
    /// Of one owner.
    owner_max: usize,
    taken: Mutex<BTreeMap<Owner, usize>>,
}

/// One place; free again when this is dropped.
pub(crate) struct Permit {
    places: Places,
    owner: Owner,
}

impl Places {
    /// `owner_max`: of them, for one owner at most.
    pub fn new(max: usize, owner_max: usize) -> Places {
        Places(Arc::new(Counts {
            max,
            owner_max,
            taken: Mutex::default(),
        }))
    }

    pub fn taken(&self) -> usize {
        lock(&self.0.taken).values().sum()
    }

    /// How many an owner could take now.
    pub fn free(&self, owner: Owner) -> usize {
        self.0.free(&lock(&self.0.taken), owner)
    }

    /// All of them or none.
    pub fn try_acquire(&self, owner: Owner, count: usize) -> Option<Vec<Permit>> {
        let mut taken = lock(&self.0.taken);
        if self.0.free(&taken, owner) < count {
            return None;
        }
        *taken.entry(owner).or_default() += count;
        drop(taken);
        let permit = |_| Permit {
            places: self.clone(),
            owner,
        };
        Some((0..count).map(permit).collect())
    }
}

impl Counts {
    fn free(&self, taken: &BTreeMap<Owner, usize>, owner: Owner) -> usize {
        let all: usize = taken.values().sum();
        let its = taken.get(&owner).copied().unwrap_or(0);
        let left = self.max.saturating_sub(all);
        left.min(self.owner_max.saturating_sub(its))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = lock(&self.places.0.taken);
        if let Some(count) = taken.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_together_and_freed_one_by_one() {
        let (places, owner) = (Places::new(3, 3), Owner::default());
        let mut two = places.try_acquire(owner, 2).unwrap();
        assert!(places.try_acquire(owner, 2).is_none());
        let one = places.try_acquire(owner, 1).unwrap();
        assert!(places.try_acquire(owner, 1).is_none());
        two.pop();
        assert!(places.try_acquire(owner, 1).is_some());
        drop((one, two));
        assert_eq!(places.try_acquire(owner, 3).map(|all| all.len()), Some(3));
    }

    #[test]
    fn one_owner_leaves_places_to_others() {
        let (ann, ben) = (Owner::new("ann").unwrap(), Owner::new("ben").unwrap());
        let places = Places::new(8, 6);
        let anns = places.try_acquire(ann, 6).unwrap();
        assert!(places.try_acquire(ann, 1).is_none());
        assert_eq!(
            (places.free(ann), places.free(ben), places.taken()),
            (0, 2, 6)
        );
        let bens = places.try_acquire(ben, 2).unwrap();
        drop(anns);
        assert_eq!((places.free(ann), places.free(ben)), (6, 4));
        drop(bens);
        assert_eq!(places.taken(), 0);
    }
}
