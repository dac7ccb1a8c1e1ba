//! Who waits, and who enters next. Pure.
//!
//! A request enters when the most it may come to hold is free, or can be made free; then it is never failed half way.
//! Those who somebody waits for come before the background, owners take turns, and one owner's requests keep their
//! order. A small request may pass a large one that has no room yet, but only [`PASSES_MAX`] times: then the large one is
//! next, however long that takes.

use super::plan::Priority;
use std::time::Duration;

/// Requests that may enter before one that came earlier.
pub const PASSES_MAX: u32 = 8;

/// A request that has not entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedRequest<T> {
    pub what: T,
    pub priority: Priority,
    /// Whose it is: a client, or a tenant.
    pub owner: u64,
    /// Bytes that it holds at most.
    pub bytes: u64,
    /// When it is of no use any more.
    pub deadline: Option<Duration>,
    passed: u32,
}

/// Whether a request may enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    Now,
    /// There is no room for it now.
    NoMemory,
    /// It waits for something else: whoever passes it takes nothing from it.
    Blocked,
}

impl Admit {
    pub fn if_room(has_room: bool) -> Admit {
        match has_room {
            true => Admit::Now,
            false => Admit::NoMemory,
        }
    }
}

/// The queue is as long as it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{waiting} requests are waiting already")]
pub struct QueueFull {
    pub waiting: usize,
}

#[derive(Clone, Debug)]
pub struct Queue<T> {
    /// In the order they came.
    waiting: Vec<QueuedRequest<T>>,
    most: usize,
    /// Owners, and when one of theirs entered last. Those without a request are forgotten.
    served: Vec<(u64, u64)>,
    entered: u64,
}

impl<T> Queue<T> {
    pub fn new(most: usize) -> Queue<T> {
        Queue {
            waiting: Vec::new(),
            most,
            served: Vec::new(),
            entered: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes that those who wait will hold at most.
    pub fn bytes(&self) -> u64 {
        let bytes = self.waiting.iter().map(|w| w.bytes);
        bytes.fold(0, u64::saturating_add)
    }

    pub fn iter(&self) -> impl Iterator<Item = &QueuedRequest<T>> {
        self.waiting.iter()
    }

    pub fn push(
        &mut self,
        what: T,
        priority: Priority,
        owner: u64,
        bytes: u64,
        deadline: Option<Duration>,
    ) -> Result<(), QueueFull> {
        if self.waiting.len() >= self.most {
            let waiting = self.waiting.len();
            return Err(QueueFull { waiting });
        }
        self.waiting.push(QueuedRequest {
            what,
            priority,
            owner,
            bytes,
            deadline,
            passed: 0,
        });
        Ok(())
    }

    /// The next to enter, of those that may now. Whoever is asked and may is the one.
    pub fn pop(
        &mut self,
        mut may: impl FnMut(&QueuedRequest<T>) -> Admit,
    ) -> Option<QueuedRequest<T>> {
        let mut order: Vec<usize> = (0..self.waiting.len()).collect();
        order.sort_by_key(|&i| {
            let waiting = &self.waiting[i];
            (waiting.priority, self.turn_of(waiting.owner), i)
        });
        let mut chosen = None;
        let mut passed = Vec::new();
        for i in order {
            match may(&self.waiting[i]) {
                Admit::Now => {
                    chosen = Some(i);
                    break;
                }
                Admit::Blocked => {}
                Admit::NoMemory if self.waiting[i].passed >= PASSES_MAX => break,
                Admit::NoMemory => passed.push(i),
            }
        }
        let i = chosen?;
        for passed in passed {
            self.waiting[passed].passed += 1;
        }
        let entering = self.waiting.remove(i);
        self.entered += 1;
        self.served.retain(|&(owner, _)| owner != entering.owner);
        if self.waiting.iter().any(|w| w.owner == entering.owner) {
            self.served.push((entering.owner, self.entered));
        }
        let Queue {
            waiting, served, ..
        } = self;
        served.retain(|(owner, _)| waiting.iter().any(|w| w.owner == *owner));
        Some(entering)
    }

    /// Takes out whoever is no longer wanted.
    pub fn take(
        &mut self,
        mut is_out: impl FnMut(&QueuedRequest<T>) -> bool,
    ) -> Vec<QueuedRequest<T>> {
        self.waiting.extract_if(.., |w| is_out(w)).collect()
    }

    /// Takes out those whose time is over.
    pub fn expired(&mut self, now: Duration) -> Vec<QueuedRequest<T>> {
        self.take(|waiting| waiting.deadline.is_some_and(|deadline| deadline <= now))
    }

    /// When an owner was served last; never comes first.
    fn turn_of(&self, owner: u64) -> u64 {
        let served = self.served.iter().find(|(served, _)| *served == owner);
        served.map_or(0, |&(_, when)| when)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Background, Interactive};

    fn queue(of: &[(char, Priority, u64, u64)]) -> Queue<char> {
        let mut queue = Queue::new(64);
        for &(what, priority, owner, bytes) in of {
            queue.push(what, priority, owner, bytes, None).unwrap();
        }
        queue
    }

    fn all(queue: &mut Queue<char>) -> String {
        std::iter::from_fn(|| queue.pop(|_| Admit::Now).map(|w| w.what)).collect()
    }

    #[test]
    fn first_come_first_served() {
        let mut queue = queue(&[
            ('b', Background, 1, 1),
            ('c', Interactive, 1, 1),
            ('d', Interactive, 1, 1),
        ]);
        assert_eq!(all(&mut queue), "cdb");
    }

    #[test]
    fn owners_take_turns() {
        let mut queue = queue(&[
            ('a', Interactive, 1, 1),
            ('b', Interactive, 1, 1),
            ('c', Interactive, 1, 1),
            ('x', Interactive, 2, 1),
            ('y', Interactive, 3, 1),
        ]);
        assert_eq!(all(&mut queue), "axybc");
    }

    /// The large one is passed so often and no more; then it holds up everybody until it has room.
    #[test]
    fn the_large_one_gets_its_turn() {
        let mut queue = queue(&[('L', Interactive, 1, 100)]);
        let mut entered = String::new();
        for round in 0..20 {
            queue.push('s', Interactive, 2 + round, 1, None).unwrap();
            let room = if round < 15 { 10 } else { 100 };
            entered.extend(
                queue
                    .pop(|w| Admit::if_room(w.bytes <= room))
                    .map(|w| w.what),
            );
        }
        assert_eq!(entered, "ssssssssLssss");
    }

    /// Whoever waits for something else than room holds nobody up.
    #[test]
    fn not_yet_is_not_no_room() {
        let mut queue = queue(&[('w', Interactive, 1, 1)]);
        let mut entered = String::new();
        for round in 0..20 {
            queue.push('s', Interactive, 2 + round, 1, None).unwrap();
            let may = |w: &QueuedRequest<char>| match w.what {
                'w' => Admit::Blocked,
                _ => Admit::Now,
            };
            entered.extend(queue.pop(may).map(|w| w.what));
        }
        assert_eq!(entered, "s".repeat(20));
    }

    #[test]
    fn limits() {
        let mut queue = Queue::new(2);
        let at = |s| Some(Duration::from_secs(s));
        queue.push('a', Interactive, 1, 5, at(3)).unwrap();
        queue.push('b', Interactive, 1, 6, at(9)).unwrap();
        let full = queue.push('c', Interactive, 1, 1, None);
        assert_eq!(full, Err(QueueFull { waiting: 2 }));
        assert_eq!(queue.bytes(), 11);
        assert!(queue.expired(Duration::from_secs(2)).is_empty());
        let expired = queue.expired(Duration::from_secs(3));
        assert_eq!((expired.len(), expired[0].what), (1, 'a'));
        assert_eq!(queue.take(|w| w.what == 'b').len(), 1);
        assert!(queue.is_empty() && queue.pop(|_| Admit::Now).is_none());
    }

    /// Served owners are not remembered for ever.
    #[test]
    fn nothing_stays() {
        let mut queue = Queue::new(64);
        for round in 0..1000 {
            queue.push('a', Interactive, round, 1, None).unwrap();
            queue.push('b', Interactive, round, 1, None).unwrap();
            queue.pop(|_| Admit::Now).unwrap();
            queue.pop(|_| Admit::Now).unwrap();
        }
        assert!(queue.served.is_empty() && queue.is_empty());
    }
}
