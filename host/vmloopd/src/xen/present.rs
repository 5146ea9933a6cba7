// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What stands in XenStore about a domain before its task says anything.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::join;
use vmloop_xenstore::{Error, Store};

use super::domain::{Domain, home};
use super::nodes::{self, Hello, Lines, Link};
use super::pages::{self, Written};
use crate::mac::parse_mac;
use crate::machine::{Machine, Nic};

/// What stands in XenStore about a domain.
pub struct Present {
    /// what the domain is
    pub machine: Machine,
    /// what an earlier agent wrote
    pub written: Written,
    /// what its modules said last
    pub hello: Option<Hello>,
}

/// Why something cannot be read or written.
pub enum Failed {
    /// The domain is not there any more.
    Gone,
    /// XenStore failed.
    Store(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

fn random() -> u64 {
    let mut number = [0; 8];
    // Fails never on a kernel that is up; a number by the clock is no worse
    // than a guest that keeps its channels.
    if rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty()).is_err() {
        number = (now().as_nanos() as u64).to_ne_bytes();
    }
    u64::from_ne_bytes(number).max(1)
}

/// Time since the epoch.
pub fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Interfaces of a domain, from their backends, which only dom0 can write.
///
/// # Errors
/// Those of XenStore.
pub async fn nics(store: &Store, domain: Domain) -> Result<Vec<Nic>, Error> {
    let path = format!("/local/domain/0/backend/vif/{domain}");
    let mut names = store.directory(&path).await?;
    names.sort_by_key(|name| nodes::number::<u32>(name));
    let mut nics = Vec::new();
    for name in names {
        let (mac, given) = (format!("{path}/{name}/mac"), format!("{path}/{name}/vifname"));
        let (mac, given) = join!(biased; store.text(&mac), store.text(&given));
        let Some(mac) = mac?.as_deref().and_then(parse_mac) else { continue };
        let tap = given?.filter(|given| !given.is_empty());
        let tap = tap.unwrap_or_else(|| format!("vif{domain}.{name}"));
        nics.push(Nic { mac, tap, unknown: None });
    }
    Ok(nics)
}

/// Whether a path says what a domain is: its name, or its interfaces. What else
/// is below their backends the drivers write, a dozen times while they connect.
pub fn is_what_it_is(path: &str) -> bool {
    let Some((_, below)) = path.split_once("/backend/vif/") else { return true };
    let mut parts = below.split('/').skip(2);
    matches!((parts.next(), parts.next()), (None | Some("mac" | "vifname"), None))
}

/// Reads `epoch`: the domain's epoch, and the incarnation that was welcomed.
pub fn parse_epoch(lines: &Lines) -> Option<(u64, u64)> {
    let (epoch, incarnation) = lines.get("epoch")?.split_once(' ')?;
    Some((nodes::random(epoch).filter(|epoch| *epoch != 0)?, nodes::random(incarnation)?))
}

/// Channels in a guest's pages.
pub fn parse_links(lines: &Lines) -> BTreeMap<u32, Link> {
    lines
        .iter()
        .filter_map(|(word, rest)| {
            Some((nodes::tag(word.strip_prefix("channel/")?)?, Link::parse(rest)?))
        })
        .collect()
}

/// Epoch of a peer, as the guest was told it.
pub fn peer_epoch(lines: &Lines, peer: u64) -> Option<u64> {
    nodes::random(lines.get(&format!("peer/{peer}"))?.split(' ').next()?)
}

/// Reads all of it.
///
/// # Errors
/// [`Failed`]
pub async fn present(store: &Store, domain: Domain) -> Result<Present, Failed> {
    let home = home(domain);
    let Some(name) = store.text(&format!("{home}/name")).await? else {
        return Err(Failed::Gone);
    };
    let uuid = store.text(&format!("{home}/vm")).await?.unwrap_or_default();
    let uuid = uuid.trim_start_matches("/vm/").to_ascii_lowercase();
    let uuid = uuid.chars().any(|c| c.is_ascii_hexdigit() && c != '0').then_some(uuid);
    let kind = store.text(&format!("/libxl/{domain}/type")).await?;
    let written = pages::read(&store.begin().await?, &format!("{home}/vmloop")).await?;
    let hello = match store.read(&format!("{home}/data/vmloop/hello")).await {
        Ok(value) => Hello::parse(&value),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error.into()),
    };
    let machine = Machine {
        bells: 0,
        uuid,
        name,
        kind_name: format!("xen-{}", kind.as_deref().unwrap_or("domain")),
        pid: 0,
        number: Some(domain),
        id: domain.into(),
        epoch: parse_epoch(&written.lines).map_or_else(random, |(epoch, _)| epoch),
        nics: nics(store, domain).await?,
    };
    Ok(Present { machine, written, hello })
}
