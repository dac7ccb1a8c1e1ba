//! Alerts and device changes, told to every subscriber as they happen. A slow subscriber loses the oldest ones.

use crate::alerts::AlertChange;
use crate::channel::{Receiver, Sender, bounded, lock};
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::Duration;

/// What happened, with the time on the clock of [`Client::now`](crate::Client::now).
#[derive(Clone, Debug)]
pub enum Notice {
    /// An alert was raised or cleared.
    Alert(Duration, AlertChange),
    /// What followed from a reading of the device.
    Device(Duration, String),
    /// The subscriber was behind and lost this many.
    Missed(u64),
}

/// Notices a subscriber may be behind.
const BEHIND_MAX: usize = 64;

#[derive(Default)]
pub(crate) struct Notices(Mutex<Vec<Sender<Notice>>>);

/// Notices from the moment of subscribing.
pub struct NoticeReceiver(Receiver<Notice>);

impl Notices {
    pub fn subscribe(&self) -> NoticeReceiver {
        let (sender, receiver) = bounded(BEHIND_MAX);
        lock(&self.0).push(sender);
        NoticeReceiver(receiver)
    }

    pub fn publish(&self, notice: &Notice) {
        lock(&self.0).retain(|subscriber| {
            let stays = !subscriber.is_closed();
            if stays {
                subscriber.send_latest(notice.clone());
            }
            stays
        });
    }

    /// Ends all subscriptions.
    pub fn close(&self) {
        lock(&self.0).clear();
    }
}

impl NoticeReceiver {
    /// `None`: the engine has ended.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Notice>> {
        match self.0.take_lost() {
            0 => self.0.poll_recv(cx),
            lost => Poll::Ready(Some(Notice::Missed(lost))),
        }
    }

    /// [`NoticeReceiver::poll_next`] as a future.
    pub async fn next(&mut self) -> Option<Notice> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }
}
