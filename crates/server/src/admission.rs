//! What a request waits for before it is a request of the scheduler: a place for its body, then memory, then a thread that
//! works on it.
//!
//! Whatever waits here is a future: where the client leaves, it is dropped and nothing is done for it.

use crate::limits;
use haversack::Error;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub struct Admission {
    /// For requests whose bodies are read or worked on.
    bodies: Arc<Semaphore>,
    /// Threads that parse bodies and make tokens of texts.
    workers: Arc<Semaphore>,
    /// The thread that compiles schemas and regular expressions: a slow one holds up others of its kind only.
    compilers: Arc<Semaphore>,
}

impl Default for Admission {
    fn default() -> Admission {
        let places = |count| Arc::new(Semaphore::new(count));
        Admission {
            bodies: places(limits::BODIES),
            workers: places(limits::WORKERS),
            compilers: places(1),
        }
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

    /// Runs `work` on a thread that may block, once there is one for it.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        run_on(&self.workers, work).await
    }

    /// The same for work that compiles what an answer must look like.
    pub async fn compile<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        run_on(&self.compilers, work).await
    }
}

async fn run_on<T: Send + 'static>(
    threads: &Arc<Semaphore>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let thread = tokio::time::timeout(limits::WORKER_WAIT, threads.clone().acquire_owned());
    let thread = thread.await.map_err(|_| Error::Busy)?;
    // Held by the work, not by the client: a client that leaves does not free a thread that still works.
    let worked = tokio::task::spawn_blocking(move || {
        let _thread = thread;
        work()
    });
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
            assert!(admission.run(|| true).await.unwrap());
            go.send(()).unwrap();
            assert!(slow.await.unwrap());
        });
    }
}
