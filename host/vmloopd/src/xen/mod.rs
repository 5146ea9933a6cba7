// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The Xen side of the agent, in dom0: finds guests, and speaks with their
//! modules through XenStore (docs/protocol.md, section 8).
//!
//! Nothing is polled: domains that come and go, guests' nodes and the
//! backends of their interfaces are watched. A guest's own subtree can hold
//! anything; its task reads it a bounded number of times.

pub mod channel;
pub mod guest;
pub mod nodes;
pub mod pages;

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{debug, warn};
use vmloop_xenstore::{Error, Store};

use crate::broker::Event;

/// How long the end of the agent may wait for XenStore.
const GOODBYE: Duration = Duration::from_secs(2);

/// A domain's number.
pub type Domain = u32;

/// Whether this is the control domain of a Xen host.
pub fn is_here() -> bool {
    std::fs::read_to_string("/proc/xen/capabilities").is_ok_and(|text| text.contains("control_d"))
}

/// Path of a domain.
pub fn home(domain: Domain) -> String {
    format!("/local/domain/{domain}")
}

/// All domains but our own that are there and alive.
async fn domains(store: &Store) -> Result<BTreeSet<Domain>, Error> {
    let mut all = BTreeSet::new();
    for name in store.directory("/local/domain").await? {
        let Some(domain) = nodes::number::<Domain>(&name).filter(|domain| *domain != 0) else {
            continue;
        };
        if store.is_introduced(domain).await? {
            all.insert(domain);
        }
    }
    Ok(all)
}

/// Tells the broker of domains as they come and go; at first of all.
///
/// # Errors
/// Those of XenStore.
pub async fn find(store: Store, events: mpsc::Sender<Event>) -> Result<(), Error> {
    let mut changes = store.subscribe();
    changes.watch("@introduceDomain").await?;
    changes.watch("@releaseDomain").await?;
    let mut known = BTreeSet::new();
    let mut first = true;
    loop {
        // What changes from here on is looked at again.
        changes.take(usize::MAX);
        let now = domains(&store).await?;
        let come: Vec<_> = now.difference(&known).copied().collect();
        let gone: Vec<_> = known.difference(&now).copied().collect();
        known = now;
        if first || !come.is_empty() || !gone.is_empty() {
            first = false;
            debug!(?come, ?gone, "domains");
            if events.send(Event::Domains { come, gone }).await.is_err() {
                return Ok(());
            }
        }
        tokio::select! {
            () = changes.changed() => {}
            () = store.closed() => return Err(Error::Closed),
        }
    }
}

/// Says to all guests that there is no agent any more. Channels stay.
pub async fn goodbye(store: &Store) {
    let all = async {
        for domain in domains(store).await? {
            let root = format!("{}/vmloop", home(domain));
            let transaction = store.begin().await?;
            let now = pages::read(&transaction, &root).await?;
            let mut lines = now.lines.clone();
            if lines.remove("agent").is_none() {
                continue;
            }
            // Far from what its task may write at the same time.
            let generation = now.generation.wrapping_add(1000);
            pages::Draft::new(generation, lines).write(&transaction, &root, &now).await?;
            match transaction.commit().await {
                // A domain that ends, or an agent that was about to write.
                Err(error) if error.is_conflict() => {}
                other => other?,
            }
        }
        Ok::<_, Error>(())
    };
    match timeout(GOODBYE, all).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(%error, "saying goodbye"),
        Err(_) => warn!("XenStore does not answer"),
    }
}
