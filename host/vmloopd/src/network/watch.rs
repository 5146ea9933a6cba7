// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Reads the host's network, and reads it again after each change that the kernel's
//! events tell of.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::LinkExtentMask;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::links::Links;

/// Changes come in bursts: look when it was quiet for this long.
const QUIET: Duration = Duration::from_millis(30);
/// Or after this, if it never is.
const LATEST: Duration = Duration::from_millis(300);

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
    Ok(links)
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
}

/// Watches until nobody receives; says in `is_useful` that it has read the network.
async fn watch_until_error(
    to: &mpsc::Sender<Links>,
    Seen { last, routes }: &mut Seen,
    is_useful: &mut bool,
) -> anyhow::Result<()> {
    let (connection, handle, mut events) = rtnetlink::new_multicast_connection(&[
        MulticastGroup::Link,
        MulticastGroup::Ipv4Route,
        MulticastGroup::Ipv6Route,
        MulticastGroup::Tc,
    ])?;
    tokio::spawn(connection);
    loop {
        let mut links = read(&handle).await?;
        *is_useful = true;
        links.routes = *routes;
        if last.as_ref() != Some(&links) {
            *last = Some(links.clone());
            if to.send(links).await.is_err() {
                return Ok(());
            }
        }
        let Some(event) = events.next().await else { anyhow::bail!("rtnetlink ended") };
        *routes += u64::from(is_route(&event));
        let quiet = async {
            while let Ok(Some(event)) = timeout(QUIET, events.next()).await {
                *routes += u64::from(is_route(&event));
            }
        };
        // Late is as good as quiet.
        let _ = timeout(LATEST, quiet).await;
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
