// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What an earlier agent left in a QEMU.

use serde_json::json;
use vmloop_qmp::{self as qmp, Qmp};

use super::ids::{PREFIX, parse_channel, parse_window};
use crate::end::WindowId;
use crate::machine::Found;

/// Asks for what an earlier agent left: its channels, and whether there is a
/// control device. Devices with its prefix that make no sense, and character
/// devices without a device, come back as leftovers (device ids, chardev ids).
///
/// # Errors
/// Those of [`Qmp::execute`].
pub async fn left_behind(qmp: &Qmp) -> Result<LeftBehind, qmp::Error> {
    let mut left = LeftBehind::default();
    let mut used = Vec::new();
    for (name, kind) in qmp.list("/machine/peripheral").await? {
        if kind == "child<ivshmem-plain>" {
            left.windows.extend(parse_window(&name));
        }
        if !name.starts_with(PREFIX) || kind != "child<ivshmem-doorbell>" {
            continue;
        }
        let chardev = qmp.get_text(&format!("/machine/peripheral/{name}"), "chardev").await?;
        match parse_channel(&name, &chardev) {
            Some(found) => left.channels.push(found),
            None => left.devices.push((name, chardev.clone())),
        }
        used.push(chardev);
    }
    for (name, _) in qmp.list("/objects").await? {
        left.windows.extend(parse_window(&name).filter(|one| !left.windows.contains(one)));
    }
    let sets = qmp.execute("query-fdsets", json!({})).await?;
    for set in sets.as_array().into_iter().flatten() {
        for fd in set["fds"].as_array().into_iter().flatten() {
            let window = parse_window(fd["opaque"].as_str().unwrap_or_default());
            left.windows.extend(window.filter(|one| !left.windows.contains(one)));
        }
    }
    let chardevs = qmp.execute("query-chardev", json!({})).await?;
    for entry in chardevs.as_array().map(Vec::as_slice).unwrap_or_default() {
        let label = entry["label"].as_str().unwrap_or_default();
        if label.starts_with(PREFIX) && !used.iter().any(|used| used == label) {
            left.chardevs.push(label.to_owned());
        }
    }
    Ok(left)
}

/// See [`left_behind`].
#[derive(Clone, Debug, Default)]
pub struct LeftBehind {
    /// channels
    pub channels: Vec<Found>,
    /// ids of other devices, such as the control device, and of their chardevs
    pub devices: Vec<(String, String)>,
    /// chardevs without a device
    pub chardevs: Vec<String>,
    /// windows of channels
    pub windows: Vec<WindowId>,
}
