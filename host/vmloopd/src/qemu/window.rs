// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A QEMU guest's ends of windows: devices without doorbells (`ivshmem-plain`), on memory
//! that the host makes and the guest may write to, or only read.
//!
//! Memory comes to QEMU as a descriptor in a set of its own (`add-fd`), and is opened
//! again from there, for reading only where the guest may only read: QEMU's
//! `memory-backend-file` opens a path itself (`file_ram_open()` in its physmem.c), and knows
//! no descriptor sets. QEMU must be allowed to open it: memory of memfd_create(2) can be
//! opened by everybody who has a descriptor of it.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use vmloop_qmp as qmp;

use super::device::{Deleted, Error, Slots};
use super::ids::window_device;
use crate::end::{WindowEnd, WindowId};

/// Places for devices that windows leave to channels, and to the control device.
const SPARE: usize = 2;

impl Slots {
    /// Plugs an end of a window, and says where: bus, device and function in one number,
    /// as the guest knows it. After an error [`Slots::unplug_window`] undoes what there is of
    /// it. Must run to its end: spawn it where it could be cancelled.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn plug_window(&self, end: WindowEnd<'_>) -> Result<u16, Error> {
        let _turn = self.turn.lock().await;
        if !end.wanted.load(Ordering::Relaxed) {
            return Err(Error::Unwanted);
        }
        let bus = self.place_beside(end.size, SPARE).await.map_err(|error| match error {
            Error::Slots(what) => Error::Kept(what),
            other => other,
        })?;
        self.make_window(&window_device(end.id), &end, bus).await
    }

    async fn make_window(
        &self,
        id: &str,
        end: &WindowEnd<'_>,
        bus: Option<String>,
    ) -> Result<u16, Error> {
        let added = self.qmp.execute_with_fd("add-fd", json!({"opaque": id}), end.memory).await?;
        let path = format!("/proc/self/fd/{}", added["fd"]);
        let memory = json!({"qom-type": "memory-backend-file", "id": id, "mem-path": path,
            "size": end.size, "share": true, "readonly": !end.writes});
        let made = self.qmp.execute("object-add", memory).await;
        // QEMU has opened it again by now.
        let set = json!({"fdset-id": added["fdset-id"]});
        let removed = self.qmp.execute("remove-fd", set).await;
        made?;
        removed?;
        let mut device =
            json!({"driver": "ivshmem-plain", "id": id, "memdev": id, "master": "off"});
        if let Some(bus) = bus {
            device["bus"] = Value::from(bus);
        }
        self.qmp.execute("device_add", device).await?;
        let buses = self.qmp.execute("query-pci", json!({})).await?;
        buses
            .as_array()
            .into_iter()
            .flatten()
            .find_map(|bus| address(&bus["devices"], id))
            .ok_or(Error::Nowhere)
    }

    /// Unplugs an end of a window, as often as it takes, and removes its memory. Returns when
    /// they are gone, or the machine is. `slow` is called once, when the guest takes its time.
    pub async fn unplug_window(&self, id: WindowId, slow: impl FnOnce()) {
        let id = window_device(id);
        let mut slow = Some(slow);
        loop {
            // Others wait no longer than it is asked once.
            let _turn = self.turn.lock().await;
            match self.remove_once(&id).await {
                Deleted::Yes => return self.remove_memory(&id).await,
                Deleted::MachineGone => return,
                Deleted::NotYet => {
                    if let Some(slow) = slow.take() {
                        slow();
                    }
                }
            }
        }
    }

    /// Removes the memory of a device that is gone, and a descriptor that was to become one.
    async fn remove_memory(&self, id: &str) {
        match self.qmp.execute("object-del", json!({"id": id})).await {
            Err(error) if !error.is_not_found() && !matches!(error, qmp::Error::Closed) => {
                tracing::warn!(id, %error, "memory of a window left behind");
            }
            _ => {}
        }
        let sets = loop {
            match self.qmp.execute("query-fdsets", json!({})).await {
                Ok(sets) => break sets,
                // A QEMU that stands still answers when it goes on.
                Err(qmp::Error::Timeout(_)) => {}
                Err(_) => return,
            }
        };
        for set in sets.as_array().into_iter().flatten() {
            let fds = set["fds"].as_array().map(Vec::as_slice).unwrap_or_default();
            if fds.iter().any(|fd| fd["opaque"] == id) {
                let set = json!({"fdset-id": set["fdset-id"]});
                // It may be on its way out already.
                let _ = self.qmp.execute("remove-fd", set).await;
            }
        }
    }
}

/// Where a device is, among these and what is behind them.
fn address(devices: &Value, id: &str) -> Option<u16> {
    devices.as_array()?.iter().find_map(|device| {
        if device["qdev_id"] != id {
            return address(&device["pci_bridge"]["devices"], id);
        }
        let number = |key: &str, most: u64| device[key].as_u64().filter(|number| *number <= most);
        Some((number("bus", 255)? << 8 | number("slot", 31)? << 3 | number("function", 7)?) as u16)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let device = |id: &str, bus: u64, slot: u64| json!({"qdev_id": id, "bus": bus, "slot": slot, "function": 0});
        let mut port = device("rp1", 0, 2);
        port["pci_bridge"] = json!({"devices": [device("behind", 5, 0)]});
        let devices = json!([device("", 0, 0), port, device("w", 0, 31), device("far", 256, 0)]);
        assert_eq!(address(&devices, "w"), Some(0xf8));
        assert_eq!(address(&devices, "behind"), Some(0x500));
        assert_eq!([address(&devices, "far"), address(&devices, "none")], [None, None]);
    }
}
