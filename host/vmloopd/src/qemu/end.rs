// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A QEMU guest's ends of channels: devices, on memory and doorbells that the
//! host makes.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use vmloop_abi::shm;

use super::conversation::Spec as Device;
use super::device::{Error, Plugged, Slots};
use super::ids::{channel_chardev, channel_device};
use crate::end::{
    Failure, GuestEnd, Medium, Offer, Pending, Place, Region, Slow, Spec, WindowEnd, WindowId,
};
use crate::machine::Found;
use crate::relayed;

/// How long a guest may drain a channel that is to be closed.
const DRAIN: Duration = Duration::from_millis(500);

impl Place for Slots {
    fn medium(&self) -> Medium {
        if relayed::is_wanted() { Medium::Relay } else { Medium::Host }
    }

    fn making(&self) -> Option<Arc<Semaphore>> {
        Some(self.making.clone())
    }

    fn drain(&self) -> Duration {
        DRAIN
    }

    fn end(&self, spec: Spec) -> Box<dyn GuestEnd> {
        Box::new(End { slots: self.clone(), spec, plugged: None })
    }

    fn remove<'a>(&'a self, found: &'a Found, slow: Slow<'a>) -> Pending<'a, ()> {
        let Found { tag, peer, epoch } = *found;
        let plugged = Plugged::found(channel_device(tag), channel_chardev(tag, peer, epoch));
        Box::pin(self.unplug(plugged, slow))
    }

    fn window<'a>(&'a self, end: WindowEnd<'a>) -> Pending<'a, Result<u16, String>> {
        Box::pin(async move {
            // Other hints are about channels.
            self.plug_window(end).await.map_err(|error| match &error {
                Error::Kept(_) | Error::Vfio(_) => format!("{error}: {}", error.hint()),
                _ => error.to_string(),
            })
        })
    }

    fn remove_window<'a>(&'a self, id: WindowId, slow: Slow<'a>) -> Pending<'a, ()> {
        Box::pin(self.unplug_window(id, slow))
    }
}

struct End {
    slots: Slots,
    spec: Spec,
    plugged: Option<Plugged>,
}

impl End {
    fn device(&self) -> String {
        channel_device(self.spec.tag)
    }

    fn chardev(&self) -> String {
        channel_chardev(self.spec.tag, self.spec.peer, self.spec.epoch)
    }

    async fn plug(&mut self, region: &Region) -> Result<(), Failure> {
        let Spec { tag, side, .. } = self.spec;
        let id = |side: usize| (2 * tag + side as u32) as u16;
        let device = Device {
            device: self.device(),
            chardev: self.chardev(),
            memory: region.memory.as_fd(),
            size: region.size,
            own: (id(side), &region.doorbells[side]),
            other: (id(1 - side), &region.doorbells[1 - side]),
        };
        // The control device was plugged before it: another place is likely.
        let plugged = self.slots.plug_likely(device).await;
        self.plugged = Some(plugged.map_err(|error| failure(side, &error))?);
        Ok(())
    }
}

fn failure(side: usize, error: &Error) -> Failure {
    let reason = match error {
        Error::Slots(_) | Error::Small(_) => shm::VMLOOP_REFUSED_SLOTS,
        _ => shm::VMLOOP_REFUSED_FAILED,
    };
    Failure { side, reason, text: error.to_string(), hint: error.hint() }
}

impl GuestEnd for End {
    fn open<'a>(&'a mut self, region: Option<&'a Region>) -> Pending<'a, Result<(), Failure>> {
        Box::pin(async move {
            match region {
                Some(region) => self.plug(region).await,
                // Never, as the host makes the memory.
                None => Ok(()),
            }
        })
    }

    fn adopt(&mut self) {
        self.plugged = Some(Plugged::found(self.device(), self.chardev()));
    }

    fn take(&mut self, _: Offer) {}

    fn release(&mut self) {}

    fn remove<'a>(&'a mut self, slow: Slow<'a>) -> Pending<'a, ()> {
        Box::pin(async move {
            if let Some(plugged) = self.plugged.take() {
                self.slots.unplug(plugged, slow).await;
            }
        })
    }

    fn leave(self: Box<Self>) {}
}
