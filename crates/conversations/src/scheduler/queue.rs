//! Admission queue: decides which waiting request starts next. Pure.
//!
//! Order: interactive before background, owners round-robin, FIFO within an owner. A request is admitted once its
//! worst-case bytes are available, so an admitted request never fails for memory. A small request may overtake a larger
//! one that does not fit yet, at most [`MAX_OVERTAKES`] times; then the larger one is next, however long that takes.

use super::plan::Priority;
use std::time::Duration;

pub const MAX_OVERTAKES: u32 = 8;

/// A request that has not been admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedRequest<T> {
    pub request: T,
    pub priority: Priority,
    /// Client or tenant.
    pub owner: u64,
    pub worst_case_bytes: u64,
    pub deadline: Option<Duration>,
    overtaken: u32,
}

/// Whether a request may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    Now,
    NoMemory,
    /// It waits for something other than memory, so requests that overtake it take nothing from it.
    Blocked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{waiting} requests are waiting already")]
pub struct QueueFull {
    pub waiting: usize,
}

#[derive(Clone, Debug)]
pub struct Queue<T> {
    /// In order of arrival.
    waiting: Vec<QueuedRequest<T>>,
    max_len: usize,
    /// (owner, admission sequence number of its last request), only of owners that have a request waiting.
    served: Vec<(u64, u64)>,
    admitted: u64,
}

impl<T> Queue<T> {
    pub fn new(max_len: usize) -> Queue<T> {
        Queue {
            waiting: Vec::new(),
            max_len,
            served: Vec::new(),
            admitted: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// In order of arrival.
    pub fn iter(&self) -> impl Iterator<Item = &QueuedRequest<T>> {
        self.waiting.iter()
    }

    pub fn push(
        &mut self,
        request: T,
        priority: Priority,
        owner: u64,
        worst_case_bytes: u64,
        deadline: Option<Duration>,
    ) -> Result<(), QueueFull> {
        let waiting = self.waiting.len();
        if waiting >= self.max_len {
            return Err(QueueFull { waiting });
        }
        self.waiting.push(QueuedRequest {
            request,
            priority,
            owner,
            worst_case_bytes,
            deadline,
            overtaken: 0,
        });
        Ok(())
    }

    /// Removes and returns the first request, in scheduling order, that `admit` accepts.
    pub fn pop_admissible(
        &mut self,
        mut admit: impl FnMut(&QueuedRequest<T>) -> Admit,
    ) -> Option<QueuedRequest<T>> {
        let mut order: Vec<usize> = (0..self.waiting.len()).collect();
        order.sort_by_key(|&i| {
            let queued = &self.waiting[i];
            (queued.priority, self.last_admitted(queued.owner), i)
        });
        let mut chosen = None;
        let mut overtaken = Vec::new();
        for i in order {
            match admit(&self.waiting[i]) {
                Admit::Now => {
                    chosen = Some(i);
                    break;
                }
                Admit::Blocked => {}
                Admit::NoMemory if self.waiting[i].overtaken >= MAX_OVERTAKES => break,
                Admit::NoMemory => overtaken.push(i),
            }
        }
        let chosen = chosen?;
        for i in overtaken {
            self.waiting[i].overtaken += 1;
        }
        let admitted = self.waiting.remove(chosen);
        self.admitted += 1;
        let Queue {
            waiting, served, ..
        } = self;
        served.retain(|&(owner, _)| owner != admitted.owner);
        served.push((admitted.owner, self.admitted));
        served.retain(|(owner, _)| waiting.iter().any(|queued| queued.owner == *owner));
        Some(admitted)
    }

    /// Removes and returns the requests that `is_out` names.
    pub fn remove(
        &mut self,
        mut is_out: impl FnMut(&QueuedRequest<T>) -> bool,
    ) -> Vec<QueuedRequest<T>> {
        self.waiting
            .extract_if(.., |queued| is_out(queued))
            .collect()
    }

    /// Removes requests whose deadline has passed.
    pub fn remove_expired(&mut self, now: Duration) -> Vec<QueuedRequest<T>> {
        self.remove(|queued| queued.deadline.is_some_and(|deadline| deadline <= now))
    }

    /// Admission sequence number of the owner's last request; 0 if none yet.
    fn last_admitted(&self, owner: u64) -> u64 {
        let served = self.served.iter().find(|(served, _)| *served == owner);
        served.map_or(0, |&(_, number)| number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Background, Interactive};

    fn queue(of: &[(char, Priority, u64, u64)]) -> Queue<char> {
        let mut queue = Queue::new(64);
        for &(name, priority, owner, bytes) in of {
            queue.push(name, priority, owner, bytes, None).unwrap();
        }
        queue
    }

    fn pop_all(queue: &mut Queue<char>) -> String {
        let pop = || queue.pop_admissible(|_| Admit::Now).map(|q| q.request);
        std::iter::from_fn(pop).collect()
    }

    #[test]
    fn interactive_requests_come_first_then_arrival_order() {
        let mut queue = queue(&[
            ('b', Background, 1, 1),
            ('c', Interactive, 1, 1),
            ('d', Interactive, 1, 1),
        ]);
        assert_eq!(pop_all(&mut queue), "cdb");
    }

    #[test]
    fn owners_are_served_round_robin() {
        let mut queue = queue(&[
            ('a', Interactive, 1, 1),
            ('b', Interactive, 1, 1),
            ('c', Interactive, 1, 1),
            ('x', Interactive, 2, 1),
            ('y', Interactive, 3, 1),
        ]);
        assert_eq!(pop_all(&mut queue), "axybc");
    }

    /// Small requests overtake the large one `MAX_OVERTAKES` times; then it holds up the queue until it fits.
    #[test]
    fn a_large_request_is_not_starved() {
        let mut queue = queue(&[('L', Interactive, 1, 100)]);
        let mut admitted = String::new();
        for round in 0..20 {
            queue.push('s', Interactive, 2 + round, 1, None).unwrap();
            let free = if round < 15 { 10 } else { 100 };
            let popped = queue.pop_admissible(|q| {
                if q.worst_case_bytes <= free {
                    Admit::Now
                } else {
                    Admit::NoMemory
                }
            });
            admitted.extend(popped.map(|q| q.request));
        }
        assert_eq!(admitted, "ssssssssLssss");
    }

    #[test]
    fn a_blocked_request_holds_up_no_other() {
        let mut queue = queue(&[('w', Interactive, 1, 1)]);
        let mut admitted = String::new();
        for round in 0..20 {
            queue.push('s', Interactive, 2 + round, 1, None).unwrap();
            let popped = queue.pop_admissible(|q| match q.request {
                'w' => Admit::Blocked,
                _ => Admit::Now,
            });
            admitted.extend(popped.map(|q| q.request));
        }
        assert_eq!(admitted, "s".repeat(20));
    }

    #[test]
    fn length_and_deadlines() {
        let mut queue = Queue::new(2);
        let at = |s| Some(Duration::from_secs(s));
        queue.push('a', Interactive, 1, 5, at(3)).unwrap();
        queue.push('b', Interactive, 1, 6, at(9)).unwrap();
        let full = queue.push('c', Interactive, 1, 1, None);
        assert_eq!(full, Err(QueueFull { waiting: 2 }));
        assert!(queue.remove_expired(Duration::from_secs(2)).is_empty());
        let expired = queue.remove_expired(Duration::from_secs(3));
        assert_eq!((expired.len(), expired[0].request), (1, 'a'));
        assert_eq!(queue.remove(|q| q.request == 'b').len(), 1);
        assert!(queue.is_empty() && queue.pop_admissible(|_| Admit::Now).is_none());
    }

    #[test]
    fn owners_without_a_request_are_forgotten() {
        let mut queue = Queue::new(64);
        for round in 0..1000 {
            queue.push('a', Interactive, round, 1, None).unwrap();
            queue.push('b', Interactive, round, 1, None).unwrap();
            queue.pop_admissible(|_| Admit::Now).unwrap();
            queue.pop_admissible(|_| Admit::Now).unwrap();
        }
        assert!(queue.served.is_empty() && queue.is_empty());
    }
}
