// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A Xen guest's ends of channels: what stands in its subtree about them. Side 0
//! is told to make the memory, its offer is relayed to side 1; in the end both let
//! go, and the nodes are removed. The memory is the guests'; nothing of it is
//! seen here.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use vmloop_abi::shm;

use super::nodes::{Link, Task};
use crate::end::{
    Failure, GuestEnd, Medium, Offer, Pending, Place, Region, Slow, Spec, WindowEnd, WindowId,
};
use crate::machine::Found;

/// How long a guest may take to let go of a channel. Whoever does not is left
/// alone with its memory, which it keeps until the other side has let go of it,
/// too.
pub const DRAIN: Duration = Duration::from_secs(5);

/// What a channel, or the broker, wants of a guest's subtree.
#[derive(Debug)]
pub enum Order {
    /// What the guest is to do about a channel.
    Set(u32, Link),
    /// A channel is over: remove the node, and say when that is done.
    Clear(u32, oneshot::Sender<()>),
    /// A channel of an earlier agent has lost its other end: have the guest
    /// let go of it, then as `Clear`.
    End(u32, oneshot::Sender<()>),
}

/// Where a domain's task gets its orders.
#[derive(Clone)]
pub struct Subtree {
    /// to the task
    pub orders: mpsc::UnboundedSender<Order>,
}

impl Subtree {
    /// Has something done, and waits for it.
    async fn done(&self, order: impl FnOnce(oneshot::Sender<()>) -> Order + Send) {
        let (done, wait) = oneshot::channel();
        // Either fails only if the guest is gone, and its nodes with it.
        let _ = self.orders.send(order(done));
        let _ = wait.await;
    }
}

impl Place for Subtree {
    fn medium(&self) -> Medium {
        Medium::Guest
    }

    fn making(&self) -> Option<Arc<Semaphore>> {
        None
    }

    fn drain(&self) -> Duration {
        DRAIN
    }

    fn end(&self, spec: Spec) -> Box<dyn GuestEnd> {
        Box::new(End { subtree: self.clone(), spec })
    }

    fn remove<'a>(&'a self, found: &'a Found, _: Slow<'a>) -> Pending<'a, ()> {
        Box::pin(self.done(|done| Order::End(found.tag, done)))
    }

    fn window<'a>(&'a self, _: WindowEnd<'a>) -> Pending<'a, Result<u16, String>> {
        Box::pin(std::future::ready(Err("guests make their windows themselves".to_owned())))
    }

    fn remove_window<'a>(&'a self, _: WindowId, _: Slow<'a>) -> Pending<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}

struct End {
    subtree: Subtree,
    spec: Spec,
}

impl End {
    fn set(&self, task: Task) {
        let Spec { tag, side, peer, .. } = self.spec;
        // Fails only if the guest is gone, and its nodes with it.
        let _ = self.subtree.orders.send(Order::Set(tag, Link { peer, side, task }));
    }
}

impl GuestEnd for End {
    fn open<'a>(&'a mut self, _: Option<&'a Region>) -> Pending<'a, Result<(), Failure>> {
        let Spec { side, layout, bells, .. } = self.spec;
        self.set(if side == 0 { Task::Make(layout, bells) } else { Task::Wait });
        Box::pin(std::future::ready(Ok(())))
    }

    fn adopt(&mut self) {}

    fn take(&mut self, offer: Offer) {
        self.set(Task::Map(offer));
    }

    fn release(&mut self) {
        self.set(Task::Close);
    }

    fn remove<'a>(&'a mut self, _: Slow<'a>) -> Pending<'a, ()> {
        let tag = self.spec.tag;
        Box::pin(self.subtree.done(move |done| Order::Clear(tag, done)))
    }

    fn leave(self: Box<Self>) {}
}

/// Why a guest could not make the memory, or map it, by the number of its error.
pub fn failure(side: usize, errno: u32) -> Failure {
    let reason = match errno {
        // ENOMEM, ENOSPC: out of memory or grants, for a while.
        12 | 28 => shm::VMLOOP_REFUSED_SLOTS,
        // EBUSY: the other side still maps an earlier region.
        16 => shm::VMLOOP_REFUSED_BUSY,
        _ => shm::VMLOOP_REFUSED_FAILED,
    };
    let verb = if side == 0 { "make" } else { "map" };
    let text = format!("it cannot {verb} the memory (error {errno})");
    let hint = match errno {
        12 | 28 => {
            "a smaller ring_size in the policy needs less memory and fewer grants; Xen's gnttab_max_frames and gnttab_max_maptrack_frames allow more"
        }
        16 => "the other side has not let go of an earlier channel yet",
        _ => "see the guest's kernel log",
    };
    Failure { side, reason, text, hint }
}
