//! Bounded channel: many senders, one receiver that a thread or a future can wait on.
//!
//! Std only, so the library is bound to no async runtime. A sender is told when the queue is full or the receiver is
//! gone; the receiver drains what is queued after the last sender is gone.

use crate::error::Error;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct State<T> {
    queue: VecDeque<T>,
    capacity: usize,
    senders: usize,
    has_receiver: bool,
    /// Of the future that waits for the next value.
    waker: Option<Waker>,
    /// Values that [`Sender::send_latest`] pushed out since the receiver last looked.
    lost: u64,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
}

impl<T> Shared<T> {
    fn notify(&self, mut state: MutexGuard<'_, State<T>>) {
        let waker = state.waker.take();
        drop(state);
        self.ready.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

pub(crate) struct Sender<T>(Arc<Shared<T>>);

pub(crate) struct Receiver<T>(Arc<Shared<T>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrySendError {
    Full,
    Closed,
}

pub(crate) fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            queue: VecDeque::new(),
            capacity,
            senders: 1,
            has_receiver: true,
            waker: None,
            lost: 0,
        }),
        ready: Condvar::new(),
    });
    (Sender(shared.clone()), Receiver(shared))
}

impl<T> Sender<T> {
    pub fn try_send(&self, value: T) -> Result<(), TrySendError> {
        let mut state = lock(&self.0.state);
        if !state.has_receiver {
            return Err(TrySendError::Closed);
        }
        if state.queue.len() >= state.capacity {
            return Err(TrySendError::Full);
        }
        state.queue.push_back(value);
        self.0.notify(state);
        Ok(())
    }

    /// Waits while the queue is full. Never [`TrySendError::Full`].
    pub fn send(&self, value: T) -> Result<(), TrySendError> {
        let mut state = lock(&self.0.state);
        while state.has_receiver && state.queue.len() >= state.capacity {
            let waited = self.0.ready.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        self.try_send(value)
    }

    /// Pushes the oldest value out where the queue is full.
    pub fn send_latest(&self, value: T) {
        let mut state = lock(&self.0.state);
        if state.queue.len() >= state.capacity {
            state.queue.pop_front();
            state.lost += 1;
        }
        state.queue.push_back(value);
        self.0.notify(state);
    }

    /// The receiver is gone.
    pub fn is_closed(&self) -> bool {
        !lock(&self.0.state).has_receiver
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        lock(&self.0.state).senders += 1;
        Sender(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.senders -= 1;
        if state.senders == 0 {
            self.0.notify(state);
        }
    }
}

impl<T> Receiver<T> {
    /// Blocks until there is a value; `None` once all senders are gone and the queue is empty.
    pub fn recv(&mut self) -> Option<T> {
        let mut state = lock(&self.0.state);
        loop {
            if let Some(value) = state.queue.pop_front() {
                self.0.ready.notify_one();
                return Some(value);
            }
            if state.senders == 0 {
                return None;
            }
            let waited = self.0.ready.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = lock(&self.0.state);
        match state.queue.pop_front() {
            Some(value) => {
                self.0.ready.notify_one();
                Poll::Ready(Some(value))
            }
            None if state.senders == 0 => Poll::Ready(None),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// [`Receiver::recv`] as a future.
    pub async fn next(&mut self) -> Option<T> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Values lost since the last call.
    pub fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut lock(&self.0.state).lost)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.has_receiver = false;
        let queue = std::mem::take(&mut state.queue);
        self.0.ready.notify_one();
        drop(state);
        // What is queued may hold senders of this channel.
        drop(queue);
    }
}

/// What the engine's thread answers to one command: a future, or [`Reply::wait`] on a thread that may block.
#[must_use = "the reply says whether it worked"]
pub struct Reply<T>(Receiver<Result<T, Error>>);

/// The engine's side of a [`Reply`].
pub(crate) struct ReplyTo<T>(Sender<Result<T, Error>>);

pub(crate) fn reply<T>() -> (ReplyTo<T>, Reply<T>) {
    let (sender, receiver) = bounded(1);
    (ReplyTo(sender), Reply(receiver))
}

impl<T> ReplyTo<T> {
    /// The caller has stopped waiting.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// A caller that stopped waiting misses nothing it asked to hear.
    pub fn send<E: Into<Error>>(self, result: Result<T, E>) {
        let _ = self.0.try_send(result.map_err(Into::into));
    }
}

impl<T> Reply<T> {
    /// Blocks until the engine has answered; [`Error::Closed`] where it has ended.
    pub fn wait(mut self) -> Result<T, Error> {
        self.0.recv().unwrap_or(Err(Error::Closed))
    }
}

impl<T> Future for Reply<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T, Error>> {
        let polled = self.0.poll_recv(cx);
        polled.map(|value| value.unwrap_or(Err(Error::Closed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_full_queue_refuses_and_a_gone_receiver_closes() {
        let (sender, mut receiver) = bounded(2);
        assert_eq!(sender.try_send(1), Ok(()));
        assert_eq!(sender.try_send(2), Ok(()));
        assert_eq!(sender.try_send(3), Err(TrySendError::Full));
        assert_eq!(receiver.recv(), Some(1));
        assert_eq!(sender.try_send(3), Ok(()));
        let other = sender.clone();
        drop(sender);
        assert_eq!((receiver.recv(), receiver.recv()), (Some(2), Some(3)));
        assert!(!other.is_closed());
        drop(receiver);
        assert!(other.is_closed());
        assert_eq!(other.try_send(4), Err(TrySendError::Closed));
    }

    #[test]
    fn what_is_queued_is_received_after_the_last_sender_is_gone() {
        let (sender, mut receiver) = bounded(2);
        assert_eq!(sender.try_send("last"), Ok(()));
        drop(sender);
        assert_eq!(receiver.recv(), Some("last"));
        assert_eq!(receiver.recv(), None);
    }

    #[test]
    fn the_latest_values_stay_and_the_lost_ones_are_counted() {
        let (sender, mut receiver) = bounded(2);
        (0..5).for_each(|n| sender.send_latest(n));
        assert_eq!(receiver.take_lost(), 3);
        assert_eq!((receiver.recv(), receiver.recv()), (Some(3), Some(4)));
        assert_eq!(receiver.take_lost(), 0);
    }

    #[test]
    fn a_waiting_future_is_woken_by_a_value_and_by_the_last_sender() {
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let cx = &mut Context::from_waker(&waker);
        let (sender, mut receiver) = bounded(1);
        assert_eq!(receiver.poll_recv(cx), Poll::Pending);
        assert_eq!(sender.try_send(1), Ok(()));
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        assert_eq!(receiver.poll_recv(cx), Poll::Ready(Some(1)));
        assert_eq!(receiver.poll_recv(cx), Poll::Pending);
        drop(sender);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 2);
        assert_eq!(receiver.poll_recv(cx), Poll::Ready(None));
    }

    #[test]
    fn a_thread_that_waits_gets_what_another_sends() {
        let (to, reply) = reply();
        let thread = std::thread::spawn(move || to.send(Ok::<u32, Error>(7)));
        assert_eq!(reply.wait().unwrap(), 7);
        thread.join().unwrap();
        let (to, reply) = self::reply::<u32>();
        drop(to);
        assert!(matches!(reply.wait(), Err(Error::Closed)));
    }
}
