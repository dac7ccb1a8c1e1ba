//! Connections: who gets a place, and what ends one that holds it for nothing.
//!
//! There are ordinary places, at most [`limits::PER_ADDRESS`] of them for one address, and a few in reserve for when
//! those are taken, for which a connection waits a while. A connection of the reserve has to send the head of its request at
//! once, must know a key (`/health` needs none), and ends with its answer. So clients without a key, however many, do not
//! keep the others out.
//!
//! A client that does not read what it asked for is not read from either, and its connection ends after
//! [`limits::WRITE_TIME`].

use super::limits;
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

/// A request that came through the reserve.
#[derive(Clone, Copy, Debug)]
pub struct Reserved;

/// Connections at present, by kind of place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    pub ordinary: usize,
    pub reserved: usize,
}

pub struct Connections {
    /// Of all connections, those that wait for the reserve included.
    places: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    ordinary: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A place of any kind, taken before a connection is accepted.
pub struct FreePlace {
    connections: Arc<Connections>,
    _permit: OwnedSemaphorePermit,
}

/// The place of one connection; free again when this is dropped.
pub struct ConnectionPlace {
    free: FreePlace,
    kind: PlaceKind,
}

enum PlaceKind {
    Ordinary(IpAddr),
    Reserved { _permit: OwnedSemaphorePermit },
}

impl Default for Connections {
    fn default() -> Connections {
        let places = limits::CONNECTIONS + limits::RESERVE + limits::RESERVE_WAITING;
        Connections {
            places: Arc::new(Semaphore::new(places)),
            reserve: Arc::new(Semaphore::new(limits::RESERVE)),
            taken: Mutex::default(),
        }
    }
}

impl Connections {
    pub fn counts(&self) -> ConnectionCounts {
        ConnectionCounts {
            ordinary: self.taken().ordinary,
            reserved: limits::RESERVE - self.reserve.available_permits(),
        }
    }

    /// Waits until there is a place of either kind. `None`: never again.
    pub async fn free_place(self: &Arc<Connections>) -> Option<FreePlace> {
        let permit = self.places.clone().acquire_owned().await;
        Some(FreePlace {
            connections: self.clone(),
            _permit: permit.ok()?,
        })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FreePlace {
    /// The place for a connection from this address. `None`: there was none, ordinary or reserved, for a while.
    pub async fn take(self, address: IpAddr) -> Option<ConnectionPlace> {
        let kind = match self.take_ordinary(address) {
            true => PlaceKind::Ordinary(address),
            false => {
                let permit = self.connections.reserve.clone().acquire_owned();
                let permit = tokio::time::timeout(limits::RESERVE_WAIT, permit).await;
                PlaceKind::Reserved {
                    _permit: permit.ok()?.ok()?,
                }
            }
        };
        Some(ConnectionPlace { free: self, kind })
    }

    fn take_ordinary(&self, address: IpAddr) -> bool {
        let mut taken = self.connections.taken();
        let its = taken.by_address.get(&address).copied().unwrap_or(0);
        let is_free = taken.ordinary < limits::CONNECTIONS && its < limits::PER_ADDRESS;
        if is_free {
            taken.ordinary += 1;
            taken.by_address.insert(address, its + 1);
        }
        is_free
    }
}

impl ConnectionPlace {
    pub fn is_reserved(&self) -> bool {
        matches!(self.kind, PlaceKind::Reserved { .. })
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let PlaceKind::Ordinary(address) = self.kind else {
            return;
        };
        let mut taken = self.free.connections.taken();
        taken.ordinary -= 1;
        if let Some(its) = taken.by_address.get_mut(&address) {
            *its -= 1;
            if *its == 0 {
                taken.by_address.remove(&address);
            }
        }
    }
}

/// A stream that fails when its output makes no progress, and takes no input meanwhile.
pub struct WatchedStream<S> {
    stream: S,
    /// How long output may be blocked.
    patience: Duration,
    blocked: Option<Blocked>,
    /// Input was asked for while output was blocked.
    is_read_due: bool,
}

/// Output that the other side does not take.
struct Blocked {
    until: Pin<Box<Sleep>>,
    /// Written since.
    bytes: usize,
}

impl<S> WatchedStream<S> {
    pub fn new(stream: S, patience: Duration) -> WatchedStream<S> {
        WatchedStream {
            stream,
            patience,
            blocked: None,
            is_read_due: false,
        }
    }

    /// What came of an attempt to write.
    fn after_write(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                if let Some(blocked) = &mut self.blocked {
                    blocked.bytes += bytes;
                    // A reader of a few bytes now and then would hold its place for ever.
                    if blocked.bytes >= limits::WRITE_PROGRESS {
                        self.unblock(cx);
                    }
                }
                written
            }
            Poll::Ready(Err(_)) => written,
            Poll::Pending => {
                let blocked = self.blocked.get_or_insert_with(|| Blocked {
                    until: Box::pin(tokio::time::sleep(self.patience)),
                    bytes: 0,
                });
                match blocked.until.as_mut().poll(cx) {
                    Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                    Poll::Pending => Poll::Pending,
                }
            }
        }
    }

    fn unblock(&mut self, cx: &mut Context<'_>) {
        self.blocked = None;
        if std::mem::take(&mut self.is_read_due) {
            cx.waker().wake_by_ref();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.blocked.is_some() {
            self.is_read_due = true;
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.after_write(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.after_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called when all that was there to write is written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.unblock(cx);
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::net::Ipv4Addr;
    use tokio::net::{TcpListener, TcpStream};

    pub fn run(test: impl Future<Output = ()>) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(test);
    }

    pub async fn is_pending<F: Future>(mut future: Pin<&mut F>) -> bool {
        poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
    }

    fn address(n: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, n).into()
    }

    #[test]
    fn one_address_leaves_places_for_others() {
        run(async {
            let connections = Arc::new(Connections::default());
            let mut places = Vec::new();
            let take = async |n: u8| {
                let free = connections.free_place().await.unwrap();
                free.take(address(n)).await.unwrap()
            };
            for _ in 0..limits::PER_ADDRESS + limits::RESERVE {
                places.push(take(1).await);
            }
            let reserved = places.iter().filter(|place| place.is_reserved()).count();
            assert_eq!(reserved, limits::RESERVE);
            // It has its places and the reserve: its next one waits, and there are ordinary ones for others.
            let mut next = Box::pin(take(1));
            assert!(is_pending(next.as_mut()).await);
            for _ in limits::PER_ADDRESS..limits::CONNECTIONS {
                places.push(take(2).await);
            }
            let reserved = places.iter().filter(|place| place.is_reserved()).count();
            assert_eq!(reserved, limits::RESERVE);
            places.retain(|place| !place.is_reserved());
            assert!(next.await.is_reserved());
            places.clear();
            assert_eq!(connections.counts(), ConnectionCounts::default());
            assert!(connections.taken().by_address.is_empty());
        });
    }

    async fn pair(patience: Duration) -> (WatchedStream<TcpStream>, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (ours, _) = listener.accept().await.unwrap();
        (WatchedStream::new(ours, patience), theirs.unwrap())
    }

    /// Writes until the other side takes no more.
    async fn fill(stream: &mut WatchedStream<TcpStream>) -> io::Error {
        let chunk = [0; 64 << 10];
        loop {
            let written = poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, &chunk)).await;
            if let Err(error) = written {
                return error;
            }
        }
    }

    #[test]
    fn output_that_is_not_taken_ends_the_stream_and_holds_up_input() {
        run(async {
            let (mut ours, theirs) = pair(Duration::from_millis(50)).await;
            theirs.try_write(b"more").unwrap();
            assert_eq!(fill(&mut ours).await.kind(), io::ErrorKind::TimedOut);
            let mut buffer = [0; 4];
            let read = poll_fn(|cx| {
                let mut into = ReadBuf::new(&mut buffer);
                Poll::Ready(Pin::new(&mut ours).poll_read(cx, &mut into))
            });
            assert!(
                read.await.is_pending(),
                "not read from while it does not read"
            );
            // It reads again: all is written, and there is input.
            ours.blocked = None;
            let mut into = ReadBuf::new(&mut buffer);
            poll_fn(|cx| Pin::new(&mut ours).poll_read(cx, &mut into))
                .await
                .unwrap();
            assert_eq!(into.filled(), b"more");
        });
    }

    /// A few bytes now and then are no progress.
    #[test]
    fn only_progress_counts() {
        run(async {
            let (mut ours, _theirs) = pair(Duration::from_secs(60)).await;
            poll_fn(|cx| {
                let mut write = |written| {
                    let _ = ours.after_write(cx, written);
                    ours.blocked.is_some()
                };
                let bytes = |n| Poll::Ready(Ok(n));
                assert!(!write(bytes(1)));
                assert!(write(Poll::Pending));
                assert!(write(bytes(limits::WRITE_PROGRESS - 1)));
                assert!(!write(bytes(1)));
                Poll::Ready(())
            })
            .await;
        });
    }
}
