//! What a request waits for before it is a request of the scheduler: a place for its body, then memory, then a thread that
//! works on it.
//!
//! Whatever waits here is a future: where the client leaves, it is dropped and nothing is done for it.

use crate::limits;
use haversack::memory::background::{self, BackgroundThread};
use haversack::{Error, Owner};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub struct Admission {
    /// For requests whose bodies are read or worked on.
    bodies: Arc<Semaphore>,
    /// Threads that make tokens of texts.
    workers: Arc<Semaphore>,
    /// The thread that parses long bodies and makes tokens of long texts.
    long_worker: Arc<Semaphore>,
    /// The thread that compiles schemas and regular expressions: a slow one holds up others of its kind only.
    compilers: Arc<Semaphore>,
}

impl Default for Admission {
    fn default() -> Admission {
        let places = |count| Arc::new(Semaphore::new(count));
        Admission {
            bodies: places(limits::BODIES),
            workers: places(limits::WORKERS),
            long_worker: places(1),
            compilers: places(1),
        }
    }
}

/// Places for clients of `/v1/events`. With several owners each has three quarters of them at most.
pub struct Subscribers {
    all: Arc<Semaphore>,
    /// Empty if there is one owner.
    of_owner: HashMap<Owner, Arc<Semaphore>>,
}

/// A place of a subscriber, free again when it is dropped.
pub struct SubscriberPlace {
    _of_owner: Option<OwnedSemaphorePermit>,
    _of_all: OwnedSemaphorePermit,
}

impl Subscribers {
    pub fn new(owners: impl IntoIterator<Item = Owner>) -> Subscribers {
        let share = limits::SUBSCRIBERS / 4 * 3;
        let of_owner = owners.into_iter();
        let of_owner = of_owner.map(|owner| (owner, Arc::new(Semaphore::new(share))));
        let of_owner: HashMap<_, _> = of_owner.collect();
        let several = of_owner.len() > 1;
        Subscribers {
            all: Arc::new(Semaphore::new(limits::SUBSCRIBERS)),
            of_owner: if several { of_owner } else { HashMap::new() },
        }
    }

    /// A place, at once or not at all.
    pub fn place(&self, owner: Owner) -> Result<SubscriberPlace, Error> {
        let take = |places: &Arc<Semaphore>| {
            let place = places.clone().try_acquire_owned();
            place.map_err(|_| Error::Busy)
        };
        Ok(SubscriberPlace {
            _of_owner: self.of_owner.get(&owner).map(take).transpose()?,
            _of_all: take(&self.all)?,
        })
    }
}

impl Admission {
    /// A place for a body, at once or not at all.
    pub fn body(&self) -> Result<OwnedSemaphorePermit, Error> {
        self.bodies
            .clone()
            .try_acquire_owned()
            .map_err(|_| Error::Busy)
    }

    /// Works on a text of this many bytes on a thread that may block, once there is one for it.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        if is_long(bytes) {
            return run_slowly(&self.long_worker, work).await;
        }
        let thread = place(&self.workers).await?;
        let worked = tokio::task::spawn_blocking(move || {
            let _thread = thread;
            work()
        });
        worked.await.map_err(|_| Error::Closed)
    }

    /// The same for work that compiles what an answer must look like.
    pub async fn compile<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        run_slowly(&self.compilers, work).await
    }
}

pub fn is_long(bytes: usize) -> bool {
    bytes > limits::LONG_BYTES
}

/// A thread's place. The work holds it, not the client: a client that leaves does not free a thread that still works.
async fn place(threads: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Error> {
    let place = tokio::time::timeout(limits::WORKER_WAIT, threads.clone().acquire_owned());
    let place = place.await.map_err(|_| Error::Busy)?;
    place.map_err(|_| Error::Closed)
}

/// On a thread of its own, which runs when no other wants its core, and after a second has a share of it: other programs may
/// leave none. A priority cannot be raised again, so no other work runs there.
async fn run_slowly<T: Send + 'static>(
    threads: &Arc<Semaphore>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let place = place(threads).await?;
    let (done, mut worked) = tokio::sync::oneshot::channel();
    let (tell, told) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("long request".to_owned());
    let spawned = thread.spawn(move || {
        let _ = tell.send(BackgroundThread::here());
        background::lower_priority();
        let _place = place;
        let _ = done.send(work());
    });
    let spawned = spawned.map_err(Error::Thread)?;
    if let Ok(worked) = tokio::time::timeout(limits::IDLE_TIME, &mut worked).await {
        return worked.map_err(|_| Error::Closed);
    }
    if let Ok(thread) = told.await
        && !spawned.is_finished()
    {
        thread.take_share();
    }
    worked.await.map_err(|_| Error::Closed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::tests::{is_pending, run};
    use std::pin::pin;
    use std::sync::mpsc;

    #[test]
    fn bodies_have_so_many_places() {
        let admission = Admission::default();
        let mut places: Vec<_> = (0..limits::BODIES)
            .map(|_| admission.body().unwrap())
            .collect();
        assert!(matches!(admission.body(), Err(Error::Busy)));
        places.pop();
        assert!(admission.body().is_ok());
    }

    #[test]
    fn an_owner_leaves_places_for_others() {
        let [anna, ben] = ["anna", "ben"].map(|name| Owner::new(name).unwrap());
        let take = |subscribers: &Subscribers, owner| {
            let place = || subscribers.place(owner).ok();
            std::iter::from_fn(place).collect::<Vec<_>>()
        };
        let two = Subscribers::new([anna, ben]);
        let places = take(&two, anna);
        assert_eq!(places.len(), 24);
        assert_eq!(take(&two, ben).len(), 8);
        drop(places);
        assert_eq!(take(&two, ben).len(), 24);
        for owners in [vec![], vec![anna]] {
            let one = Subscribers::new(owners);
            assert_eq!(take(&one, anna).len(), limits::SUBSCRIBERS);
        }
    }

    /// Work that waits for its thread is dropped with its client, and one kind of work does not hold up the other.
    #[test]
    fn work_for_a_client_that_left_is_not_done() {
        run(async {
            let admission = Admission::default();
            let (go, wait) = mpsc::channel::<()>();
            let mut slow = pin!(admission.compile(move || wait.recv().is_ok()));
            assert!(is_pending(slow.as_mut()).await);
            let done = Arc::new(());
            {
                let its = done.clone();
                let mut left = pin!(admission.compile(move || drop(its)));
                assert!(is_pending(left.as_mut()).await);
            }
            assert_eq!(Arc::strong_count(&done), 1);
            assert!(admission.run(9, || true).await.unwrap());
            assert!(admission.run(limits::BODY_BYTES, || true).await.unwrap());
            go.send(()).unwrap();
            assert!(slow.await.unwrap());
        });
    }
}
