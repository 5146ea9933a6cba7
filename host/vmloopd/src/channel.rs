// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One task for each channel: has its two ends made, waits until it is to be
//! closed, lets both guests drain, and has the ends removed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tracing::warn;
use vmloop_abi::shm;

use crate::end::{Failure, GuestEnd, Medium, Offer, Place, Region, Spec};
use crate::event::{ChannelKey, Event, News, Post};

/// How long the guest on side 0 may take to make the memory, if it does.
const OFFER: Duration = Duration::from_secs(10);

/// What the broker tells a channel's task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Close it; the broker has told the guests.
    Close,
    /// A side (0 or 1) is done with it, or is not there any more.
    Closed(usize),
    /// A side has made the memory.
    Offer(usize, Offer),
    /// A side could not make the memory, or map it.
    Fail(Failure),
}

/// A guest, as a channel's task knows it.
pub struct Guest {
    /// identity
    pub id: u64,
    /// epoch
    pub epoch: u64,
    /// where its end is made
    pub place: Arc<dyn Place>,
}

/// A channel's task.
pub struct Task {
    /// names the channel
    pub key: ChannelKey,
    /// its tag
    pub tag: u32,
    /// of each ring in bytes
    pub ring_size: u32,
    /// the guests, the lower identity first
    pub guests: [Guest; 2],
    /// the broker
    pub post: Post,
    /// from the broker
    pub commands: mpsc::UnboundedReceiver<Command>,
}

type Ends = [Box<dyn GuestEnd>; 2];

/// The agent ends, and leaves the channel as it is.
struct Leaving;

impl Task {
    async fn tell(&self, news: News) {
        self.post.tell(Event::Channel { key: self.key, news }).await;
    }

    /// Makes the channel, or takes over one of an earlier agent (`adopted`),
    /// and serves it until it is gone.
    pub async fn run(mut self, adopted: bool) {
        let [a, b] = &self.guests;
        let medium = a.place.medium();
        if medium != b.place.medium() {
            // A host has one hypervisor.
            return self.tell(News::Gone).await;
        }
        let drain = a.place.drain().max(b.place.drain());
        let spec = |side: usize, peer: &Guest| Spec {
            tag: self.tag,
            side,
            peer: peer.id,
            epoch: peer.epoch,
        };
        let mut ends = [a.place.end(spec(0, b)), b.place.end(spec(1, a))];
        if adopted {
            ends.iter_mut().for_each(|end| end.adopt());
        } else if medium == Medium::Host {
            let region = match Region::new(self.ring_size) {
                Ok(region) => region,
                Err(error) => {
                    self.tell(News::Failed(Failure {
                        side: 0,
                        reason: shm::VMLOOP_REFUSED_FAILED,
                        text: error.to_string(),
                        hint: "",
                    }))
                    .await;
                    return self.tell(News::Gone).await;
                }
            };
            if !self.open(&mut ends, Some(region)).await {
                return self.remove(ends).await;
            }
            self.tell(News::Open).await;
        } else if !self.open(&mut ends, None).await {
            return self.remove(ends).await;
        }
        let offer = medium == Medium::Guest;
        if self.serve(&mut ends, offer, adopted, drain).await.is_err() {
            return ends.into_iter().for_each(|end| end.leave());
        }
        self.remove(ends).await;
    }

    /// Opens both ends; false, with everything said, if one cannot be opened.
    async fn open(&self, ends: &mut Ends, region: Option<Region>) -> bool {
        let [a, b] = ends;
        let (a, b) = tokio::join!(a.open(region.as_ref()), b.open(region.as_ref()));
        let mut all = true;
        for failure in [a, b].into_iter().filter_map(Result::err) {
            all = false;
            self.tell(News::Failed(failure)).await;
        }
        all
    }

    /// Waits until the channel is to end, then until both guests have let go of
    /// it, or had their time. `offer`: a guest makes its memory.
    async fn serve(
        &mut self,
        ends: &mut Ends,
        offer: bool,
        adopted: bool,
        drain: Duration,
    ) -> Result<(), Leaving> {
        let mut closed = [false; 2];
        let mut offered = !offer;
        let deadline = Instant::now() + OFFER;
        loop {
            let command = if offered || adopted {
                Ok(self.commands.recv().await)
            } else {
                timeout_at(deadline, self.commands.recv()).await
            };
            match command {
                Ok(None) => return Err(Leaving),
                Ok(Some(Command::Close)) => break,
                Ok(Some(Command::Closed(side))) => closed[side] = true,
                Ok(Some(Command::Offer(0, offer))) if !offered => {
                    offered = true;
                    ends[1].take(offer);
                    if !adopted {
                        self.tell(News::Open).await;
                    }
                }
                Ok(Some(Command::Offer(..))) => {}
                Ok(Some(Command::Fail(failure))) => {
                    // It has nothing that it could let go of.
                    closed[failure.side] = true;
                    self.tell(News::Failed(failure)).await;
                    break;
                }
                Err(_) => {
                    self.tell(News::Failed(Failure {
                        side: 0,
                        reason: shm::VMLOOP_REFUSED_FAILED,
                        text: "it did not make the memory in time".into(),
                        hint: "see the guest's kernel log",
                    }))
                    .await;
                    break;
                }
            }
        }
        ends.iter_mut().for_each(|end| end.release());
        let deadline = Instant::now() + drain;
        while closed != [true; 2] {
            match timeout_at(deadline, self.commands.recv()).await {
                Ok(Some(Command::Closed(side) | Command::Fail(Failure { side, .. }))) => {
                    closed[side] = true;
                }
                Ok(Some(_)) => {}
                Ok(None) => return Err(Leaving),
                Err(_) => break,
            }
        }
        Ok(())
    }

    async fn remove(&self, ends: Ends) {
        self.tell(News::Unplugging).await;
        let [a, b] = ends;
        tokio::join!(self.remove_side(0, a), self.remove_side(1, b));
        self.tell(News::Gone).await;
    }

    async fn remove_side(&self, side: usize, mut end: Box<dyn GuestEnd>) {
        let (events, key, tag) = (&self.post.events, self.key, self.tag);
        let slow = move || {
            warn!(tag, side, "the guest keeps the channel's device; asking again");
            // A full queue loses a remark, nothing else.
            let _ = events.try_send(Event::Channel { key, news: News::Stuck(side) });
        };
        end.remove(Box::new(slow)).await;
        self.tell(News::SideGone(side)).await;
    }
}
