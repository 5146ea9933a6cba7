// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where a device can be plugged into a machine.

use std::collections::HashSet;

use serde_json::{Value, json};
use vmloop_qmp::{self as qmp, Qmp};

use super::ids::PREFIX;
use crate::config::Vfio;

/// How devices are plugged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// i440FX: any slot of pci.0
    Pc,
    /// Q35: an empty root port
    Q35,
}

/// What an error says, with QEMU's words, when a device cannot be plugged.
#[derive(Debug, thiserror::Error)]
pub enum NoSlot {
    /// QMP failed.
    #[error(transparent)]
    Qmp(#[from] qmp::Error),
    /// Every place has a device.
    #[error("no free {0}")]
    Full(&'static str),
    /// Empty root ports there are, and their windows are too small for so many bytes.
    #[error("no root port with room for {0} bytes")]
    Small(u64),
    /// It has this device of the host's own, and such machines are refused.
    #[error("the host's device {0}")]
    Vfio(String),
    /// Firmware has not given the machine's devices their addresses, since it
    /// was started or reset.
    #[error("the machine is still booting")]
    Booting,
}

/// Slots of a PCI bus.
const BUS_SLOTS: usize = 32;

/// Where to plug a device with a BAR of `size` bytes: the id of a root port on
/// Q35, None (QEMU finds a slot) on PC. All is asked in one go, as a QEMU that has
/// just begun to run a machine that arrived is slow to answer each command, and a
/// neighbour waits for the device. `spare`: how many more places must be free.
///
/// # Errors
/// [`NoSlot`]
pub async fn free_slot(
    qmp: &Qmp,
    kind: Kind,
    vfio: Vfio,
    size: u64,
    spare: usize,
) -> Result<Option<String>, NoSlot> {
    let named = qmp.ask_list("/machine/peripheral").await?;
    let nameless = qmp.ask_list("/machine/peripheral-anon").await?;
    let buses = qmp.ask("query-pci", json!({}), None).await?;
    let (named, nameless) = (named.list().await?, nameless.list().await?);
    let buses = buses.answer().await?;
    if vfio == Vfio::Refuse
        && let Some((device, _)) =
            named.iter().chain(&nameless).find(|(_, kind)| kind.starts_with("child<vfio-"))
    {
        return Err(NoSlot::Vfio(device.clone()));
    }
    let port = match kind {
        Kind::Pc if used_slots(&buses).len() + spare >= BUS_SLOTS => {
            return Err(NoSlot::Full("PCI slot"));
        }
        Kind::Pc => None,
        Kind::Q35 => Some(free_port(qmp, named, &buses, size, spare).await?),
    };
    let is_set_up =
        buses.as_array().is_some_and(|all| all.iter().any(|bus| any_mapped(&bus["devices"])));
    if is_set_up { Ok(port) } else { Err(NoSlot::Booting) }
}

async fn free_port(
    qmp: &Qmp,
    named: Vec<(String, String)>,
    buses: &Value,
    size: u64,
    spare: usize,
) -> Result<String, NoSlot> {
    // Before firmware has numbered the buses, query-pci shows them empty.
    let mut asked = Vec::new();
    for (port, kind) in named {
        if kind.starts_with("child<") && kind.contains("root-port") {
            let bus = qmp.ask_list(&format!("/machine/peripheral/{port}/{port}")).await?;
            asked.push((port, bus));
        }
    }
    let mut ports = Vec::new();
    for (port, bus) in asked {
        if !bus.list().await?.iter().any(|(name, _)| name.starts_with("child[")) {
            ports.push(port);
        }
    }
    choose_port(buses, &ports, size, spare)
}

/// The slots of a PC's bus that have a device.
fn used_slots(buses: &Value) -> HashSet<u64> {
    let devices = buses[0]["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
    devices.iter().filter_map(|device| device["slot"].as_u64()).collect()
}

/// The empty root port with the smallest prefetchable window that is large enough, but none of
/// the `spare` largest. Firmware may still be about to set a window: where none of the others
/// is large enough, one without any may become so.
fn choose_port(buses: &Value, ports: &[String], size: u64, spare: usize) -> Result<String, NoSlot> {
    let full = NoSlot::Full("PCI Express root port");
    // By the room, less one; 0 where nothing is known of it.
    let mut empty: Vec<(u64, &str)> = Vec::new();
    let buses = buses.as_array().map(Vec::as_slice).unwrap_or_default();
    for device in buses.iter().filter_map(|bus| bus["devices"].as_array()).flatten() {
        let name = device["qdev_id"].as_str().unwrap_or_default();
        let bridge = &device["pci_bridge"];
        let is_empty = bridge["devices"].as_array().is_none_or(Vec::is_empty);
        if !bridge.is_object() || !is_empty || !ports.iter().any(|port| port == name) {
            continue;
        }
        let window = &bridge["bus"]["prefetchable_range"];
        let base = window["base"].as_u64().unwrap_or(0);
        let limit = window["limit"].as_u64().unwrap_or(0);
        empty.push((limit.saturating_sub(base), name));
    }
    // Of those with the same room the first one first.
    empty.sort_by_key(|(room, _)| *room);
    let fits = |room: u64| room >= size - 1;
    let most = empty.last().map_or(0, |(room, _)| *room);
    empty.truncate(empty.len().saturating_sub(spare));
    let found = empty.iter().find(|(room, _)| *room > 0 && fits(*room));
    match found.or_else(|| empty.first().filter(|(room, _)| *room == 0)) {
        Some((_, name)) => Ok((*name).to_owned()),
        // Those that are kept would do.
        None if empty.is_empty() || fits(most) => Err(full),
        None => Err(NoSlot::Small(size)),
    }
}

/// Whether any of these devices, or one behind them, answers at an address.
/// Ours do not count: nobody has to give them one for that.
fn any_mapped(devices: &Value) -> bool {
    devices.as_array().is_some_and(|devices| {
        devices.iter().any(|device| {
            let name = device["qdev_id"].as_str().unwrap_or_default();
            let regions = device["regions"].as_array().map(Vec::as_slice).unwrap_or_default();
            // An address of -1 is none.
            let mapped = regions.iter().any(|one| one["address"].as_i64().is_some_and(|at| at > 0));
            (mapped && !name.starts_with(PREFIX)) || any_mapped(&device["pci_bridge"]["devices"])
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_two_functions_has_one_slot() {
        let device = |slot: u64, function: u64| json!({"slot": slot, "function": function});
        let buses = json!([{"bus": 0, "devices": [device(0, 0), device(1, 0), device(1, 1)]},
            {"bus": 1, "devices": [device(7, 0)]}]);
        assert_eq!(used_slots(&buses), HashSet::from([0, 1]));
    }

    #[test]
    fn firmware_is_done_when_a_device_of_the_machine_has_an_address() {
        let device = |name: &str, address: i64| json!({"qdev_id": name, "regions": [{"bar": 0, "address": address}]});
        let behind = |device: Value| json!({"qdev_id": "rp1", "regions": [], "pci_bridge": {"devices": [device]}});
        for (devices, done) in [
            (json!([]), false),
            (json!([device("", -1), device("n0", -1)]), false),
            (json!([device("", -1), device("n0", 0xfebc_0000)]), true),
            (json!([device("", -1), device("vmloop-ctl", 0xfebc_0000)]), false),
            (json!([device("", -1), behind(device("n0", -1))]), false),
            (json!([device("", -1), behind(device("n0", 0xc000))]), true),
        ] {
            assert_eq!(any_mapped(&devices), done, "{devices}");
        }
    }

    #[test]
    fn ports() {
        let port = |name: &str, base: u64, limit: u64, devices: Value| {
            json!({"qdev_id": name, "pci_bridge": {
                "bus": {"prefetchable_range": {"base": base, "limit": limit}}, "devices": devices}})
        };
        let buses = json!([{"bus": 0, "devices": [
            {"qdev_id": "net0"},
            port("rp0", 0, 0xfff_ffff, json!([{"qdev_id": "disk"}])),
            port("other", 0, 0xfff_ffff, json!([])),
            port("rp1", 0, 0, json!([])),
            port("rp2", 0x10_0000_0000, 0x10_03ff_ffff, json!([])),
            port("rp3", 0x20_0000_0000, 0x20_00ff_ffff, json!([])),
        ]}]);
        let ports = ["rp0", "rp1", "rp2", "rp3"].map(str::to_owned);
        let choose = |ports, size| choose_port(&buses, ports, size, 0);
        // What larger ones have room for is left to what needs it.
        assert_eq!(choose(&ports, 16 << 20).expect("a port"), "rp3");
        assert_eq!(choose(&ports, 64 << 20).expect("a port"), "rp2");
        // What rp1 will have is not known yet; that rp2 is too small is.
        assert_eq!(choose(&ports, 128 << 20).expect("a port"), "rp1");
        assert!(matches!(choose(&ports[2..], 128 << 20), Err(NoSlot::Small(_))));
        assert!(matches!(choose(&ports[..1], 1), Err(NoSlot::Full(_))));
        // A window takes none of the two with most room.
        let beside = |size| choose_port(&buses, &ports, size, 2);
        assert_eq!(beside(16 << 20).expect("a port"), "rp1", "it may become large enough");
        let known = |size, spare| choose_port(&buses, &ports[2..], size, spare);
        assert_eq!(known(16 << 20, 1).expect("a port"), "rp3");
        assert!(
            matches!(known(64 << 20, 1), Err(NoSlot::Full(_))),
            "the one that would do is kept"
        );
        assert!(matches!(known(128 << 20, 1), Err(NoSlot::Small(_))));
        assert!(matches!(known(1, 2), Err(NoSlot::Full(_))));
    }
}
