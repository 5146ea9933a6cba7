// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Reads the host's network, and reads it again after each change. The kernel's events
//! tell of all but a few switches, which are looked at now and then.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::LinkExtentMask;
use rtnetlink::{IpVersion, MulticastGroup};
use rustix::io::Errno;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, error, info, warn};

use super::filters::{self, Filters};
use super::links::Links;
use super::nft::socket::Events;
use super::routes;
use super::ruleset::{Chain, Ruleset};

/// Changes come in bursts: look when it was quiet for this long.
const QUIET: Duration = Duration::from_millis(30);
/// Or after this, if it never is.
const LATEST: Duration = Duration::from_millis(300);
/// So often it is looked at what no event tells of.
const LOOK: Duration = Duration::from_secs(2);

/// So often in a row the network may not be readable; the agent gives up then, and
/// whoever has started it may start it again. All channels stay.
const TRIES: u32 = 8;
/// How long after the first time it is tried again; twice as long each further time.
const RETRY: Duration = Duration::from_millis(200);

/// Reads all interfaces.
///
/// # Errors
/// Those of rtnetlink.
pub async fn read(handle: &rtnetlink::Handle) -> Result<Links, rtnetlink::Error> {
    let mut links = Links::default();
    let mut dump = handle.link().get().execute();
    while let Some(message) = dump.try_next().await? {
        links.take(message);
    }
    let mut dump = handle
        .link()
        .get()
        .set_filter_mask(AddressFamily::Bridge, vec![LinkExtentMask::Brvlan])
        .execute();
    while let Some(message) = dump.try_next().await? {
        links.take_vlans(&message);
    }
    let mut dump = handle.qdisc().get().execute();
    while let Some(message) = dump.try_next().await? {
        links.take_qdisc(&message);
    }
    for family in [IpVersion::V4, IpVersion::V6] {
        match routing(handle, family).await {
            Ok(unusual) => links.filters.routing = links.filters.routing.or(unusual),
            Err(error) if is_unknown(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(links)
}

/// A rule of routing that the kernel does not have by itself.
async fn routing(
    handle: &rtnetlink::Handle,
    family: IpVersion,
) -> Result<Option<String>, rtnetlink::Error> {
    let mut dump = handle.rule().get(family).execute();
    let mut found = None;
    while let Some(message) = dump.try_next().await? {
        found = found.or_else(|| routes::unusual(&message));
    }
    Ok(found)
}

/// Whether an error says that this kernel has no such rules, as where IPv6 is off.
fn is_unknown(error: &rtnetlink::Error) -> bool {
    let rtnetlink::Error::NetlinkError(message) = error else { return false };
    let code = -message.raw_code();
    [Errno::AFNOSUPPORT, Errno::OPNOTSUPP].iter().any(|one| one.raw_os_error() == code)
}

/// Whether an event is about the host's routes.
fn is_route<T>((message, _): &(NetlinkMessage<RouteNetlinkMessage>, T)) -> bool {
    use RouteNetlinkMessage::{DelRoute, NewRoute};
    matches!(message.payload, NetlinkPayload::InnerMessage(NewRoute(_) | DelRoute(_)))
}

/// Sends all interfaces at first and after each change, also of routes, until
/// nobody receives. A dump that fails, as it may while interfaces come and go, is
/// begun again; meanwhile what was sent last holds.
///
/// # Errors
/// Those of rtnetlink, if they come [`TRIES`] times in a row.
pub async fn watch(to: mpsc::Sender<Links>) -> anyhow::Result<()> {
    let mut seen = Seen::default();
    let mut failures = Failures::default();
    loop {
        let mut is_useful = false;
        let Err(error) = watch_until_error(&to, &mut seen, &mut is_useful).await else {
            return Ok(());
        };
        let Some(wait) = failures.wait(is_useful) else { return Err(error) };
        warn!(%error, ?wait, "the host's network cannot be read; trying again");
        sleep(wait).await;
    }
}

/// How often in a row the network could not be read.
#[derive(Default)]
struct Failures(u32);

impl Failures {
    /// How long to wait after one more, before which it was read (`is_useful`) or
    /// not; none after too many.
    fn wait(&mut self, is_useful: bool) -> Option<Duration> {
        self.0 = if is_useful { 1 } else { self.0 + 1 };
        (self.0 < TRIES).then(|| RETRY * 2_u32.pow(self.0 - 1))
    }
}

/// What is kept from one watch to the next.
#[derive(Default)]
struct Seen {
    last: Option<Links>,
    routes: u64,
    rules: Rules,
}

/// The host's rules, as they were read last.
#[derive(Default)]
struct Rules {
    events: Option<Events>,
    nftables: Vec<Chain>,
    legacy: Vec<Chain>,
    /// what follows from both, but for rules of routing, which come with the interfaces
    filters: Filters,
}

impl Rules {
    /// Reads what has changed of the rules, or may have: those of nftables if that is
    /// `stale`, and all that no event tells of.
    async fn read(&mut self, stale: bool) {
        self.filters.br_netfilter = filters::br_netfilter();
        let before = self.filters.unreadable.take();
        let mut changed = false;
        if stale || self.events.is_none() || before.is_some() {
            match self.read_nftables().await {
                Ok(chains) => {
                    changed |= self.nftables != chains;
                    self.nftables = chains;
                }
                Err(why) => self.filters.unreadable = Some(why),
            }
        }
        match filters::legacy().await {
            Ok(chains) => {
                if self.legacy != chains {
                    debug!(chains = chains.len(), "tables of the old kind");
                    changed = true;
                }
                self.legacy = chains;
            }
            Err(why) => self.filters.unreadable = Some(why),
        }
        if changed {
            let chains = self.nftables.iter().chain(&self.legacy);
            self.filters.rules = Arc::new(Ruleset::new(chains.cloned().collect()));
        }
        match &self.filters.unreadable {
            Some(why) if before.as_ref() != Some(why) => {
                error!(
                    "the host's filters cannot be read, and no guest gets a channel unless the policy says filters = \"ignore\": {why}"
                );
            }
            None if before.is_some() => info!("the host's filters can be read again"),
            _ => {}
        }
    }

    /// Hears of changes from now on, if it does not yet, and reads all chains of nftables.
    async fn read_nftables(&mut self) -> Result<Vec<Chain>, String> {
        if self.events.is_none() {
            self.events = Events::new().unwrap_or_else(|error| {
                // The rules are read every few seconds then, if they can be.
                debug!(%error, "nftables' events");
                None
            });
        }
        let began = Instant::now();
        let read = filters::nftables().await;
        let chains = read.as_ref().map_or(0, Vec::len);
        debug!(chains, took = ?began.elapsed(), "nftables");
        read
    }

    /// Waits for a change.
    async fn changed(&mut self) {
        let Some(events) = &mut self.events else { return pending().await };
        if let Err(error) = events.next().await {
            warn!(%error, "nftables' events");
            self.events = None;
        }
    }
}

/// What has to be read again.
#[derive(Clone, Copy)]
struct Stale {
    links: bool,
    rules: bool,
}

/// Watches until nobody receives; says in `is_useful` that it has read the network.
async fn watch_until_error(
    to: &mpsc::Sender<Links>,
    Seen { last, routes, rules }: &mut Seen,
    is_useful: &mut bool,
) -> anyhow::Result<()> {
    let (connection, handle, mut events) = rtnetlink::new_multicast_connection(&[
        MulticastGroup::Link,
        MulticastGroup::Ipv4Route,
        MulticastGroup::Ipv6Route,
        MulticastGroup::Ipv4Rule,
        MulticastGroup::Ipv6Rule,
        MulticastGroup::Tc,
    ])?;
    tokio::spawn(connection);
    let mut links = Links::default();
    let mut stale = Stale { links: true, rules: true };
    loop {
        if stale.links {
            links = read(&handle).await?;
            *is_useful = true;
        }
        rules.read(stale.rules).await;
        links.routes = *routes;
        let routing = links.filters.routing.take();
        links.filters = Filters { routing, ..rules.filters.clone() };
        if last.as_ref() != Some(&links) {
            *last = Some(links.clone());
            if to.send(links.clone()).await.is_err() {
                return Ok(());
            }
        }
        stale = Stale { links: false, rules: false };
        // Quiet is the time to look, and late is as good.
        let (mut until, mut latest) = (Instant::now() + LOOK, None);
        loop {
            tokio::select! {
                biased;
                () = sleep_until(until) => break,
                event = events.next() => {
                    let Some(event) = event else { anyhow::bail!("rtnetlink ended") };
                    *routes += u64::from(is_route(&event));
                    stale.links = true;
                }
                () = rules.changed() => stale.rules = true,
            }
            let latest = *latest.get_or_insert_with(|| Instant::now() + LATEST);
            until = latest.min(Instant::now() + QUIET);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_that_fails_is_begun_again() {
        // As often as it likes, if it works in between.
        let mut failures = Failures::default();
        for _ in 0..3 * TRIES {
            assert_eq!(failures.wait(true), Some(RETRY));
        }
        assert_eq!(failures.wait(false), Some(2 * RETRY));
        assert_eq!(failures.wait(true), Some(RETRY));

        // And in a row for some 25 s.
        let mut failures = Failures::default();
        let waits: Vec<Duration> = std::iter::from_fn(|| failures.wait(false)).collect();
        assert_eq!(waits.len(), 7);
        assert_eq!(waits.iter().sum::<Duration>(), RETRY * 127);
    }

    #[tokio::test]
    async fn this_machine() {
        let (connection, handle, _) = rtnetlink::new_connection().expect("rtnetlink");
        tokio::spawn(connection);
        let links = read(&handle).await.expect("a dump");
        assert!(links.has("lo"));
    }
}
