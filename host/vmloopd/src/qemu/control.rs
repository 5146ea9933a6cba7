// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A guest's control device, and our ends of it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::slice;

use tokio::io::unix::AsyncFd;
use vmloop_abi::control::ControlRegion;
use vmloop_abi::memory::CONTROL_SIZE;
use vmloop_abi::readiness::readable;

use super::conversation::Spec;
use super::device::{self, Plugged, Ready, Slots};
use super::ids::CONTROL;
use crate::end::doorbell;

/// What a control device is made of, and our ends of it.
struct Parts {
    region: ControlRegion,
    memory: OwnedFd,
    heard: AsyncFd<OwnedFd>,
    ring: OwnedFd,
}

impl Parts {
    fn new() -> io::Result<Self> {
        let (region, memory) = ControlRegion::create("vmloop-control")?;
        let (heard, ring) = (readable(doorbell()?)?, doorbell()?);
        Ok(Self { region, memory, heard, ring })
    }

    fn spec(&self) -> Spec<'_> {
        Spec {
            device: CONTROL.into(),
            chardev: CONTROL.into(),
            memory: self.memory.as_fd(),
            size: CONTROL_SIZE,
            own: (1, slice::from_ref(&self.ring)),
            other: (0, slice::from_ref(self.heard.get_ref())),
        }
    }

    fn plugged(self, plugged: Plugged) -> Control {
        let Self { region, heard, ring, .. } = self;
        Control { region, heard, ring, plugged }
    }
}

/// A control device that only needs to be plugged.
pub struct ReadyControl {
    parts: Parts,
    ready: Ready,
}

impl ReadyControl {
    /// Makes one.
    ///
    /// # Errors
    /// Those of [`Slots::prepare`].
    pub async fn new(slots: &Slots) -> Result<Self, device::Error> {
        let parts = Parts::new()?;
        let ready = slots.prepare(parts.spec()).await?;
        Ok(Self { parts, ready })
    }
}

/// A control device that is plugged.
pub struct Control {
    /// its memory
    pub region: ControlRegion,
    heard: AsyncFd<OwnedFd>,
    ring: OwnedFd,
    /// its device
    pub plugged: Plugged,
}

impl Control {
    /// Plugs what is ready, or a new one.
    ///
    /// # Errors
    /// Those of [`Slots::plug`].
    pub async fn plug(slots: &Slots, ready: Option<ReadyControl>) -> Result<Self, device::Error> {
        if let Some(ReadyControl { parts, ready }) = ready {
            return Ok(parts.plugged(slots.plug_ready(ready).await?));
        }
        let parts = Parts::new()?;
        let plugged = slots.plug(parts.spec()).await?;
        Ok(parts.plugged(plugged))
    }

    /// Rings at the guest.
    pub fn ring(&self) {
        // Fails only if the counter is full, and then it rings already.
        let _ = rustix::io::write(&self.ring, &1u64.to_ne_bytes());
    }

    /// Waits until the guest rings.
    ///
    /// # Errors
    /// Those of read(2).
    pub async fn heard(&self) -> io::Result<()> {
        let mut ready = self.heard.readable().await?;
        let mut count = [0; 8];
        match rustix::io::read(self.heard.get_ref(), &mut count) {
            Ok(_) => Ok(()),
            Err(rustix::io::Errno::AGAIN) => {
                ready.clear_ready();
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Ends what was prepared and is not to be plugged.
pub async fn discard(slots: &Slots, control: Option<ReadyControl>) {
    if let Some(control) = control {
        slots.discard(control.ready).await;
    }
}
