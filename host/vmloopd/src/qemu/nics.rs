// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Network interfaces of a machine: which address each has, as QEMU was told,
//! and which interface of the host is behind it.

use std::fs;
use std::io;

use serde_json::json;
use vmloop_qmp::{self as qmp, Qmp};

use crate::mac::parse_mac;
use crate::machine::{Nic, NoTaps};

/// Asks for the network interfaces; `taps` are those of the process.
///
/// # Errors
/// Those of [`Qmp::execute`].
pub async fn nics(qmp: &Qmp, taps: Taps) -> Result<Vec<Nic>, qmp::Error> {
    let info =
        qmp.execute("human-monitor-command", json!({"command-line": "info network"})).await?;
    let backends = parse_info_network(info.as_str().unwrap_or_default());

    let mut nics = Vec::new();
    for container in ["/machine/peripheral", "/machine/peripheral-anon", "/machine/unattached"] {
        for (child, kind) in qmp.list(container).await? {
            // Devices on the main board are many; interfaces among them, made
            // by -nic or -net nic, are few and known.
            let network = ["net", "e1000", "rtl8139", "vmxnet", "ne2k", "tulip", "i8255"];
            let unattached = container.ends_with("unattached");
            if !kind.starts_with("child<")
                || (unattached && !network.iter().any(|name| kind.contains(name)))
            {
                continue;
            }
            let path = format!("{container}/{child}");
            let Some(mac) = parse_mac(&qmp.get_text(&path, "mac").await?) else { continue };
            let netdev = qmp.get_text(&path, "netdev").await?;
            let backend = backends.iter().find(|backend| backend.name == netdev);
            let (tap, unknown) = match (&taps, backend) {
                (Ok(taps), Some(backend)) => (backend.interface(taps), None),
                (Err(why), Some(backend)) if backend.kind == "tap" => (None, Some(why.clone())),
                _ => (None, None),
            };
            nics.push(Nic { mac, tap: tap.unwrap_or_default(), unknown });
        }
    }
    Ok(nics)
}

/// A network backend as `info network` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Backend {
    name: String,
    kind: String,
    ifname: Option<String>,
    fd: Option<u32>,
}

impl Backend {
    /// Name of the host interface behind it, one of `taps`: those that the
    /// process has open now, by descriptor. QEMU's own word is not enough: its
    /// interface may have been deleted, and another one may have the name.
    fn interface(&self, taps: &[(u32, String)]) -> Option<String> {
        if self.kind != "tap" {
            return None;
        }
        let mut fitting = taps.iter().filter(|(fd, name)| {
            self.ifname.as_ref().is_none_or(|ifname| ifname == name)
                && self.fd.is_none_or(|own| own == *fd)
        });
        let (_, name) = fitting.next()?;
        // Of a tap that a helper made, QEMU says nothing more. If the process
        // has a single one, it is that.
        fitting.all(|(_, other)| other == name).then(|| name.clone())
    }
}

/// Taps that a process has open: descriptors and names.
pub type Taps = Result<Vec<(u32, String)>, NoTaps>;

/// Looks for the taps of a process.
///
/// # Errors
/// [`NoTaps`], also if it lives in another network namespace.
pub fn taps(pid: u32) -> Taps {
    let namespace = |whose: &str| {
        let path = format!("/proc/{whose}/ns/net");
        fs::read_link(&path).map_err(|error| NoTaps::new(&path, &error))
    };
    if namespace("self")? != namespace(&pid.to_string())? {
        return Err(NoTaps::Elsewhere(pid));
    }
    let path = format!("/proc/{pid}/fdinfo");
    let failed = |error| NoTaps::new(&path, &error);
    let mut taps = Vec::new();
    for entry in fs::read_dir(&path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let info = match fs::read_to_string(entry.path()) {
            Ok(info) => info,
            // It was closed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(error)),
        };
        let fd = entry.file_name().to_str().and_then(|fd| fd.parse().ok());
        taps.extend(fd.zip(parse_fdinfo(&info)));
    }
    Ok(taps)
}

/// The `iff:` line of a tap's fdinfo.
fn parse_fdinfo(info: &str) -> Option<String> {
    let name = info.lines().find_map(|line| line.strip_prefix("iff:"))?.trim();
    (!name.is_empty() && name.len() < 16 && !name.contains('/')).then(|| name.to_owned())
}

/// Lines look like ` \ hn0: index=0,type=tap,ifname=tap0,script=no,...`; the
/// first backend of a name counts, as those of further queues repeat it.
fn parse_info_network(text: &str) -> Vec<Backend> {
    let mut backends: Vec<Backend> = Vec::new();
    for line in text.lines() {
        let line = line.trim_start_matches([' ', '\\']).trim_end();
        // Names of devices may contain colons; ": index=" ends them.
        let Some((name, rest)) = line.split_once(": index=") else { continue };
        let Some((_, rest)) = rest.split_once(",type=") else { continue };
        let mut words = rest.split(',');
        let kind = words.next().unwrap_or_default();
        if kind == "nic" || backends.iter().any(|backend| backend.name == name) {
            continue;
        }
        let value =
            |key: &str| rest.split(',').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        backends.push(Backend {
            name: name.to_owned(),
            kind: kind.to_owned(),
            ifname: value("ifname").map(str::to_owned),
            fd: value("fd").and_then(|fd| fd.parse().ok()),
        });
    }
    backends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_network_of_qemu() {
        let text = "virtio-net-pci.0: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:77:00:01\r\n \\ hn0: index=0,type=tap,ifname=tap0,script=no,downscript=no\r\nn1: index=0,type=nic,model=e1000,macaddr=52:54:00:77:00:02\r\n \\ hn1: index=0,type=tap,fd=17\r\nmq: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:77:00:03\r\n \\ hn2: index=0,type=tap,fd=20\r\n \\ hn2: index=1,type=tap,fd=21\r\nhlp: index=0,type=tap,helper=/usr/lib/qemu/qemu-bridge-helper,br=br0\r\nu0: index=0,type=user,net=10.0.2.0,restrict=off\r\n";
        let backends = parse_info_network(text);
        let tap = |name: &str, ifname: Option<&str>, fd| Backend {
            name: name.into(),
            kind: "tap".into(),
            ifname: ifname.map(str::to_owned),
            fd,
        };
        assert_eq!(
            backends,
            [
                tap("hn0", Some("tap0"), None),
                tap("hn1", None, Some(17)),
                tap("hn2", None, Some(20)),
                tap("hlp", None, None),
                Backend { name: "u0".into(), kind: "user".into(), ifname: None, fd: None },
            ]
        );
        assert_eq!(parse_info_network("nonsense\n: index=,type=\n"), {
            vec![Backend { name: String::new(), kind: String::new(), ifname: None, fd: None }]
        });
    }

    #[test]
    fn interfaces_of_backends() {
        let backend = |ifname: Option<&str>, fd| Backend {
            name: "hn0".into(),
            kind: "tap".into(),
            ifname: ifname.map(str::to_owned),
            fd,
        };
        let taps = [(17, "tap0".to_owned()), (18, "tap0".to_owned()), (20, "tap1".to_owned())];
        let of = |ifname, fd| backend(ifname, fd).interface(&taps);
        assert_eq!(of(Some("tap1"), None).as_deref(), Some("tap1"));
        assert_eq!(of(None, Some(17)).as_deref(), Some("tap0"));
        assert_eq!(of(Some("tap2"), None), None, "deleted meanwhile");
        assert_eq!(of(None, Some(3)), None);
        assert_eq!(of(None, None), None, "one of several");
        assert_eq!(backend(None, None).interface(&taps[..2]).as_deref(), Some("tap0"));
        let user = Backend { kind: "user".into(), ..backend(None, None) };
        assert_eq!(user.interface(&taps[..1]), None);
    }

    #[test]
    fn taps_that_cannot_be_looked_for() {
        assert_eq!(taps(std::process::id()), Ok(Vec::new()));
        let Err(gone) = taps(u32::MAX) else { panic!("no such process") };
        assert!(matches!(gone, NoTaps::Unreadable(..)) && gone.is_a_fault(), "{gone}");
        let error = io::ErrorKind::PermissionDenied.into();
        let forbidden = NoTaps::new("/proc/7/ns/net", &error).to_string();
        assert!(forbidden.contains("/proc/7/ns/net: permission denied"), "{forbidden}");
        assert!(forbidden.contains("CAP_SYS_PTRACE"), "{forbidden}");
        assert!(!NoTaps::Elsewhere(7).is_a_fault());
    }

    #[test]
    fn fdinfo_of_a_tap() {
        let info = "pos:\t104\nflags:\t0104002\nmnt_id:\t15\nino:\t96\niff:\tvnet3\n";
        assert_eq!(parse_fdinfo(info).as_deref(), Some("vnet3"));
        assert_eq!(parse_fdinfo("pos:\t0\n"), None);
        assert_eq!(parse_fdinfo("iff:\t../../etc\n"), None);
    }
}
