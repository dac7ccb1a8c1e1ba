//! Admission queue: decides which waiting request starts next. Pure.
//!
//! Order: interactive before background, owners round-robin, users of an owner round-robin, FIFO within a user. A request is admitted once its
//! worst-case bytes are available, so an admitted request never fails for memory. A small request may overtake a larger
//! one that does not fit yet, at most [`MAX_OVERTAKES`] times; then the larger one is next, however long that takes.

use super::plan::Priority;
use crate::session::{Owner, Requester};
use std::time::Duration;

pub const MAX_OVERTAKES: u32 = 8;

/// A request that has not been admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedRequest<T> {
    pub request: T,
    pub priority: Priority,
    pub owner: Requester,
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
    owners: Served<Owner>,
    users: Served<Requester>,
    admitted: u64,
}

impl<T> Queue<T> {
    pub fn new(max_len: usize) -> Queue<T> {
        Queue {
            waiting: Vec::new(),
            max_len,
            owners: Served(Vec::new()),
            users: Served(Vec::new()),
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
        owner: Requester,
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
            let owner = self.owners.last(queued.owner.owner);
            (queued.priority, owner, self.users.last(queued.owner), i)
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
        let waiting = || self.waiting.iter().map(|queued| queued.owner);
        let (owner, number) = (admitted.owner, self.admitted);
        self.users.note(owner, number, waiting());
        let owners = waiting().map(|waiting| waiting.owner);
        self.owners.note(owner.owner, number, owners);
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
}

/// The admission number of the last request of each, only of those that have a request waiting.
#[derive(Clone, Debug)]
struct Served<K>(Vec<(K, u64)>);

impl<K: Copy + PartialEq> Served<K> {
    /// 0 if none yet.
    fn last(&self, of: K) -> u64 {
        let served = self.0.iter().find(|(served, _)| *served == of);
        served.map_or(0, |&(_, number)| number)
    }

    fn note(&mut self, of: K, number: u64, waiting: impl Iterator<Item = K> + Clone) {
        self.0.retain(|&(served, _)| served != of);
        self.0.push((of, number));
        let is_waiting = |served: K| waiting.clone().any(|waiting| waiting == served);
        self.0.retain(|&(served, _)| is_waiting(served));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Background, Interactive};

    fn queue(of: &[(char, Priority, u64, u64)]) -> Queue<char> {
        let mut queue = Queue::new(64);
        for &(name, priority, owner, bytes) in of {
            queue
                .push(name, priority, owner.into(), bytes, None)
                .unwrap();
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

    /// An owner with many users waits like one with a single user.
    #[test]
    fn owners_are_served_before_their_users() {
        let mut queue = Queue::new(64);
        let (anna, ben) = (Owner::new("anna").unwrap(), Owner::new("ben").unwrap());
        for (name, from) in [
            ('a', anna.user(1)),
            ('b', anna.user(2)),
            ('c', anna.user(3)),
            ('d', anna.user(1)),
            ('x', ben.user(1)),
            ('y', ben.user(1)),
        ] {
            queue.push(name, Interactive, from, 1, None).unwrap();
        }
        assert_eq!(pop_all(&mut queue), "axbycd");
    }

    /// Small requests overtake the large one `MAX_OVERTAKES` times; then it holds up the queue until it fits.
    #[test]
    fn a_large_request_is_not_starved() {
        let mut queue = queue(&[('L', Interactive, 1, 100)]);
        let mut admitted = String::new();
        for round in 0..20 {
            let owner = Requester::from(2 + round);
            queue.push('s', Interactive, owner, 1, None).unwrap();
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
            let owner = Requester::from(2 + round);
            queue.push('s', Interactive, owner, 1, None).unwrap();
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
        let one = Requester::from(1);
        queue.push('a', Interactive, one, 5, at(3)).unwrap();
        queue.push('b', Interactive, one, 6, at(9)).unwrap();
        let full = queue.push('c', Interactive, one, 1, None);
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
            let owner = Owner::new(&format!("o{round}")).unwrap().user(round);
            queue.push('a', Interactive, owner, 1, None).unwrap();
            queue.push('b', Interactive, owner, 1, None).unwrap();
            queue.pop_admissible(|_| Admit::Now).unwrap();
            queue.pop_admissible(|_| Admit::Now).unwrap();
        }
        assert!(queue.owners.0.is_empty() && queue.users.0.is_empty() && queue.is_empty());
    }
}
