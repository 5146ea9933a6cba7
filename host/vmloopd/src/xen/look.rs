// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a domain is and what its modules say: looked at when it changes, up to a
//! limit.

use tokio::join;
use tokio::time::Instant;
use tracing::warn;
use vmloop_abi::message::GuestMessage;
use vmloop_abi::shm;
use vmloop_xenstore::Error;

use super::end::failure;
use super::nodes::{self, Hello, Said};
use super::present::{Failed, nics};
use super::serving::Serving;
use crate::event::Event;

/// Nodes of a guest that are read in one look.
pub const BATCH: usize = 32;
/// Addresses of a guest that are read.
const ADDRESSES: usize = shm::VMLOOP_ADVERTISE_MAX;
/// Questions of a guest for a channel that are read when all is looked at.
const WANTS: usize = 64;
/// Channels of a guest whose counters are read.
const COUNTED: usize = 256;

impl Serving {
    /// Looks at its name and its interfaces.
    pub(super) async fn look_at_ours(&mut self) -> Result<(), Failed> {
        let store = self.task.store.clone();
        let name = format!("{}/name", self.home);
        let (name, nics) = join!(biased; store.text(&name), nics(&store, self.task.domain));
        let Some(name) = name? else {
            return match store.read(&self.home).await {
                Err(error) if error.is_not_found() => Err(Failed::Gone),
                _ => Ok(()),
            };
        };
        self.tell(Event::Renamed { key: self.task.key, name }).await;
        let nics = nics?;
        if self.nics != nics {
            self.nics.clone_from(&nics);
            self.tell(Event::Nics { key: self.task.key, nics }).await;
        }
        Ok(())
    }

    /// Looks at what changed below the guest's own nodes, up to a limit.
    pub(super) async fn look(&mut self) -> Result<(), Error> {
        let root = format!("{}/data/vmloop", self.home);
        let shutdown = format!("{}/control/shutdown", self.home);
        let changed = self.theirs.take(BATCH);
        let mut all = changed.is_none();
        let mut hello = all;
        let mut addresses = all;
        let mut stats = false;
        let mut leaving = all;
        let mut wants = Vec::new();
        let mut tags = Vec::new();
        for path in changed.unwrap_or_default() {
            if path == shutdown {
                leaving = true;
                continue;
            }
            let Some(rest) = path.strip_prefix(&root) else { continue };
            let parts: Vec<&str> = rest.trim_start_matches('/').splitn(3, '/').collect();
            match parts[..] {
                [""] => all = true,
                ["hello"] => hello = true,
                ["address"] => addresses = true,
                ["stats"] => stats = true,
                ["want", peer] => match nodes::number::<u64>(peer).filter(|peer| *peer != 0) {
                    Some(peer) => wants.push(peer),
                    None => self.malformed("want"),
                },
                ["channel", tag] => match nodes::tag(tag) {
                    Some(tag) => tags.push(tag),
                    None => self.malformed("channel"),
                },
                // What leads to others, and what a count or cookie tells of.
                ["want" | "channel"] | ["address", _] | ["stats", ..] => {}
                _ => self.malformed("a path"),
            }
        }
        if leaving {
            self.look_at_shutdown(&shutdown).await?;
        }
        let mut address = None;
        if all || hello {
            let (hello, said) = (format!("{root}/hello"), format!("{root}/address"));
            let store = self.task.store.clone();
            // Whoever begins says its addresses before, if it knows them.
            let (hello, said) = join!(biased; store.read(&hello), store.read(&said));
            let hello = self.accept(hello)?;
            address = Some(self.accept(said)?);
            let before = self.announced.then_some(self.incarnation);
            self.look_at_hello(hello).await;
            // Whoever begins has said nothing else yet.
            addresses |= self.announced && before != Some(self.incarnation);
        }
        if self.incarnation == 0 {
            return Ok(());
        }
        if all || addresses {
            let address = match address {
                Some(address) => address,
                None => self.read("address").await?,
            };
            self.look_at_addresses(address).await?;
        }
        if all {
            tags = self.links.keys().copied().collect();
        }
        for tag in tags {
            self.look_at_channel(tag).await?;
        }
        if all {
            // What is there was not answered yet.
            let listed = self.task.store.few(&format!("{root}/want")).await?;
            let listed = listed.unwrap_or_default();
            wants = listed.iter().filter_map(|peer| nodes::number(peer)).take(WANTS).collect();
        }
        for peer in wants {
            self.look_at_want(peer).await?;
        }
        if all || stats {
            self.look_at_stats().await?;
        }
        Ok(())
    }

    async fn look_at_shutdown(&mut self, path: &str) -> Result<(), Error> {
        let value = match self.task.store.read(path).await {
            Ok(value) => value,
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => return Err(error),
        };
        let known = ["suspend", "poweroff", "halt", "reboot"];
        let value = known.iter().find(|word| word.as_bytes() == value).unwrap_or(&"");
        if *value != self.shutdown {
            (*value).clone_into(&mut self.shutdown);
            if !value.is_empty() {
                self.tell(Event::Leaving { key: self.task.key, why: value }).await;
            }
        }
        Ok(())
    }

    async fn look_at_hello(&mut self, value: Option<Vec<u8>>) {
        let mut hello = value.as_deref().and_then(Hello::parse);
        if value.is_some() && hello.is_none() {
            self.malformed("hello");
        }
        if let Some(Hello { major, .. }) = hello
            && major != shm::VMLOOP_SHM_MAJOR
        {
            if self.complaints.take(Instant::now()).is_ok() {
                warn!(
                    guest = self.name,
                    major, "its modules speak another version of the protocol"
                );
            }
            hello = None;
        }
        let incarnation = hello.as_ref().map_or(0, |hello| hello.incarnation);
        if incarnation != self.incarnation {
            // These modules know nothing of what the ones before did. What is
            // there before the first ones was begun for them.
            if std::mem::replace(&mut self.has_spoken, true) {
                self.dead.extend(self.links.keys());
            }
            self.said.clear();
            self.refused.clear();
            self.cookie = None;
            self.counting = false;
            self.welcomed = false;
            self.incarnation = incarnation;
            self.dirty = true;
            if std::mem::take(&mut self.announced) {
                self.tell(Event::Away { key: self.task.key }).await;
            }
        }
        if let Some(Hello { major, minor, features, version, kernel, .. }) = hello
            && !self.announced
        {
            self.announced = true;
            // Guests make the doorbells, and know how many they want.
            let cpus = 0;
            self.hear(GuestMessage::Hello { major, minor, cpus, features, version, kernel }).await;
        }
    }

    async fn look_at_addresses(&mut self, value: Option<Vec<u8>>) -> Result<(), Error> {
        let Some(value) = value else { return Ok(()) };
        let Some((count, mut list)) = nodes::addresses(&value) else {
            self.malformed("address");
            return Ok(());
        };
        let count = count.min(ADDRESSES);
        for at in 1..count.div_ceil(nodes::ADDRESSES) {
            let Some(value) = self.read(&format!("address/{at}")).await? else { continue };
            match nodes::more_addresses(&value) {
                Some(more) => list.extend(more),
                None => self.malformed("addresses"),
            }
        }
        list.truncate(count);
        self.hear(GuestMessage::Advertise(list)).await;
        Ok(())
    }

    async fn look_at_want(&mut self, peer: u64) -> Result<(), Error> {
        let Some(value) = self.read(&format!("want/{peer}")).await? else {
            return Ok(());
        };
        match nodes::want(&value) {
            Some((epoch, attempt)) => {
                self.hear(GuestMessage::Want { peer, epoch, attempt }).await;
            }
            None => self.malformed("want"),
        }
        Ok(())
    }

    async fn look_at_channel(&mut self, tag: u32) -> Result<(), Error> {
        let Some(link) = self.links.get(&tag).copied() else { return Ok(()) };
        if self.dead.contains(&tag) {
            return Ok(());
        }
        let Some(value) = self.read(&format!("channel/{tag}")).await? else { return Ok(()) };
        if self.said.get(&tag) == Some(&value) {
            return Ok(());
        }
        let key = self.task.key;
        match Said::parse(&value) {
            Some(Said::State(state)) => self.hear(GuestMessage::State { tag, state }).await,
            Some(Said::Offer(offer)) if link.side == 0 => {
                self.tell(Event::Offer { key, tag, offer }).await;
            }
            Some(Said::Fail(errno)) => {
                let failure = failure(link.side, errno.max(1));
                self.tell(Event::Fail { key, tag, failure }).await;
            }
            Some(Said::Offer(..)) | None => self.malformed("channel"),
        }
        self.said.insert(tag, value);
        Ok(())
    }

    async fn look_at_stats(&mut self) -> Result<(), Error> {
        let Some(cookie) = self.cookie.filter(|_| self.counting) else { return Ok(()) };
        let value = self.read("stats").await?;
        let answered = value.as_deref().and_then(nodes::words);
        if answered.and_then(|words| nodes::number::<u32>(words.first()?)) != Some(cookie) {
            return Ok(());
        }
        self.counting = false;
        let tags: Vec<u32> = self.links.keys().copied().take(COUNTED).collect();
        for tag in tags {
            let Some(value) = self.read(&format!("stats/{cookie}/{tag}")).await? else { continue };
            match nodes::counters(&value) {
                Some(counters) => self.hear(GuestMessage::Stats { cookie, tag, counters }).await,
                None => self.malformed("stats"),
            }
        }
        let counters = vmloop_abi::message::Counters::default();
        self.hear(GuestMessage::Stats { cookie, tag: 0, counters }).await;
        Ok(())
    }
}
