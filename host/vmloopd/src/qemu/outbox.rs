// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What waits to be sent to a guest, and which directory the guest has.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::Instant;
use vmloop_abi::control::{Broken, ControlRegion};
use vmloop_abi::directory::DirectoryEntry;
use vmloop_abi::message::AgentMessage;

use crate::bucket::Bucket;
use crate::differences::Differences;
use crate::latest::Latest;

/// Messages that wait for room in a guest's ring.
const WAITING: usize = 1024;

type Entries = Arc<Vec<DirectoryEntry>>;

/// A directory that is being sent.
struct Sending {
    generation: u64,
    entries: Entries,
    /// what is new in it, and the generation that this is told from; None: all of it is sent
    differences: Option<(Differences, u64)>,
    /// messages that were sent
    sent: usize,
}

impl Sending {
    /// The next message; None if that was all.
    fn message(&self) -> Option<AgentMessage> {
        let generation = self.generation;
        let peer = |at: usize| AgentMessage::DirPeer(Box::new(self.entries[at].clone()));
        let Some(at) = self.sent.checked_sub(1) else {
            return Some(match self.differences {
                Some((_, before)) => AgentMessage::DirChange { generation, before },
                None => AgentMessage::DirBegin(generation),
            });
        };
        let (gone, new) = match &self.differences {
            Some((found, _)) => (found.gone.len(), found.new.len()),
            None => (0, self.entries.len()),
        };
        match &self.differences {
            Some((found, _)) if at < gone => Some(AgentMessage::DirGone(found.gone[at])),
            Some((found, _)) if at < gone + new => Some(peer(found.new[at - gone])),
            None if at < new => Some(peer(at)),
            _ => (at == gone + new).then_some(AgentMessage::DirEnd(generation)),
        }
    }
}

/// What became of [`Outbox::flush`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// Nothing waits.
    All,
    /// The next directory is to be sent then.
    Until(Instant),
    /// The ring is full.
    Full,
}

/// See the module.
pub struct Outbox {
    messages: VecDeque<AgentMessage>,
    /// generation of the directory that the guest has
    told: Option<u64>,
    sending: Option<Sending>,
    /// the guest is to get the latest directory
    waits: bool,
    generation: u64,
    /// Beginnings of directories: at most ten in any second.
    begins: Bucket,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            messages: VecDeque::new(),
            told: None,
            sending: None,
            waits: false,
            generation: 0,
            begins: Bucket::new(7.0, 3.0),
        }
    }
}

impl Outbox {
    /// A message.
    pub fn push(&mut self, message: AgentMessage) {
        if self.messages.len() == WAITING {
            // A guest that does not read misses something; it asks again.
            self.messages.pop_front();
        }
        self.messages.push_back(message);
    }

    /// The answer to a HELLO: the next directory is a whole one.
    pub fn welcome(&mut self, message: AgentMessage) {
        self.push(message);
        self.told = None;
        self.sending = None;
        self.waits = true;
    }

    /// There is another directory. One before it that was not begun is not sent any more.
    pub fn directory(&mut self) {
        self.waits = true;
    }

    /// An empty directory now, in place of all others: the guest is about to leave.
    pub fn nobody(&mut self) {
        self.told = None;
        self.begin(Arc::default(), None);
    }

    /// Forgets what is not sent yet, and what was; the modules began anew.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.told = None;
        self.sending = None;
        self.waits = false;
    }

    fn begin(&mut self, entries: Entries, found: Option<Differences>) {
        self.generation += 1;
        self.waits = false;
        let differences = found.zip(self.told);
        self.sending = Some(Sending { generation: self.generation, entries, differences, sent: 0 });
    }

    /// Sends as much as there is room for, of the latest directory too.
    ///
    /// # Errors
    /// What the guest broke.
    pub fn flush(
        &mut self,
        region: &mut ControlRegion,
        latest: &mut Latest,
    ) -> Result<Flushed, Broken> {
        while let Some(message) = self.messages.front() {
            if !region.send(message)? {
                return Ok(Flushed::Full);
            }
            self.messages.pop_front();
        }
        loop {
            if let Some(sending) = &mut self.sending {
                while let Some(message) = sending.message() {
                    if !region.send(&message)? {
                        return Ok(Flushed::Full);
                    }
                    sending.sent += 1;
                }
                self.told = Some(sending.generation);
                self.sending = None;
            }
            // The first one comes by itself.
            self.waits &= latest.is_there();
            if !self.waits {
                return Ok(Flushed::All);
            }
            if let Err(when) = self.begins.take(Instant::now()) {
                return Ok(Flushed::Until(when));
            }
            let (entries, found) = latest.take();
            self.begin(entries.unwrap_or_default(), found);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use vmloop_abi::control::{FakeGuest, GuestSide};
    use vmloop_abi::directory::PeerInterface;
    use vmloop_abi::shm;

    use super::*;
    use crate::latest::{Teller, latest};

    fn entry(id: u64) -> DirectoryEntry {
        DirectoryEntry {
            peer: Arc::new(PeerInterface {
                id,
                epoch: 1,
                mac: [2, 0, 0, 0, (id >> 8) as u8, id as u8],
                name: "x".into(),
                ips: Box::default(),
            }),
            tag: 0,
            tagged: false,
            keep: false,
            without: 0,
            gateway: None,
            local_mac: [1; 6],
            mtu: 1500,
        }
    }

    struct Ends {
        region: ControlRegion,
        guest: FakeGuest,
        _memory: OwnedFd,
        outbox: Outbox,
        teller: Teller,
        latest: Latest,
        old: Vec<DirectoryEntry>,
    }

    impl Ends {
        fn new() -> Self {
            let (mut region, memory) = ControlRegion::create("test").expect("a region");
            let mut guest = ControlRegion::fake_guest(&memory).expect("its other end");
            guest.begin(1);
            assert_eq!(region.poll(), Ok(GuestSide::Began));
            let (teller, latest) = latest();
            let outbox = Outbox::default();
            Self { region, guest, _memory: memory, outbox, teller, latest, old: Vec::new() }
        }

        /// As the guest's task does.
        fn welcome(&mut self, understands: bool) {
            self.outbox.welcome(AgentMessage::StatsGet { cookie: 1 });
            self.latest.wants_news(understands);
        }

        fn tell(&mut self, entries: &[DirectoryEntry]) {
            self.teller.tell(&self.old, Arc::new(entries.to_vec()));
            self.old = entries.to_vec();
            self.outbox.directory();
        }

        fn flush(&mut self) -> Flushed {
            let done = self.outbox.flush(&mut self.region, &mut self.latest);
            self.region.sent();
            done.expect("an honest guest")
        }

        /// Types of what the guest hears until nothing waits, and how often the ring was full.
        fn hear(&mut self) -> (Vec<u16>, usize) {
            let (mut heard, mut full) = (Vec::new(), 0);
            loop {
                let done = self.flush();
                while let Some((kind, _)) = self.guest.receive() {
                    heard.push(kind);
                }
                match done {
                    Flushed::All => return (heard, full),
                    Flushed::Full => full += 1,
                    Flushed::Until(when) => {
                        std::thread::sleep(when.saturating_duration_since(Instant::now()));
                    }
                }
            }
        }
    }

    const GET: u16 = shm::VMLOOP_MSG_STATS_GET;
    const BEGIN: u16 = shm::VMLOOP_MSG_DIR_BEGIN;
    const PEER: u16 = shm::VMLOOP_MSG_DIR_PEER;
    const END: u16 = shm::VMLOOP_MSG_DIR_END;
    const CHANGE: u16 = shm::VMLOOP_MSG_DIR_CHANGE;
    const GONE: u16 = shm::VMLOOP_MSG_DIR_GONE;

    #[test]
    fn a_directory_larger_than_the_ring() {
        let mut ends = Ends::new();
        ends.tell(&(1..=3000).map(entry).collect::<Vec<_>>());
        let (heard, full) = ends.hear();
        assert!(full > 2);
        assert_eq!(heard.len(), 3002);
        assert_eq!((heard[0], heard[1], heard[3001]), (BEGIN, PEER, END));
    }

    #[test]
    fn what_is_new_and_the_whole() {
        let mut ends = Ends::new();
        let all: Vec<_> = (1..=3).map(entry).collect();
        let hear = |ends: &mut Ends, entries: &[DirectoryEntry]| {
            ends.tell(entries);
            ends.hear().0
        };
        ends.welcome(true);
        assert_eq!(hear(&mut ends, &all), [GET, BEGIN, PEER, PEER, PEER, END]);
        assert_eq!(hear(&mut ends, &all[1..]), [CHANGE, GONE, END]);
        assert_eq!(hear(&mut ends, &all), [CHANGE, PEER, END]);
        // The same again.
        assert_eq!(hear(&mut ends, &all), [CHANGE, END]);
        // It asks again.
        ends.welcome(true);
        assert_eq!(hear(&mut ends, &all[1..]), [GET, BEGIN, PEER, PEER, END]);
        // Its modules are other ones, of before there were differences.
        ends.outbox.clear();
        ends.welcome(false);
        assert_eq!(hear(&mut ends, &all[1..]), [GET, BEGIN, PEER, PEER, END]);
        assert_eq!(hear(&mut ends, &all), [BEGIN, PEER, PEER, PEER, END]);
        ends.outbox.nobody();
        assert_eq!(ends.hear().0, [BEGIN, END]);
    }

    #[test]
    fn what_comes_while_a_directory_is_sent() {
        let mut ends = Ends::new();
        let all: Vec<_> = (1..=3000).map(entry).collect();
        ends.welcome(true);
        ends.tell(&all[..2999]);
        assert_eq!(ends.flush(), Flushed::Full);
        // The guest has not got all of it, and does when it has: then what is new.
        ends.tell(&all[1..2999]);
        ends.tell(&all[1..]);
        let (heard, _) = ends.hear();
        assert_eq!(heard[..3], [GET, BEGIN, PEER]);
        assert_eq!(heard.len(), 1 + 3001 + 4);
        assert_eq!(heard[3001..], [END, CHANGE, GONE, PEER, END]);
    }

    #[test]
    fn no_more_than_ten_in_a_second() {
        let mut ends = Ends::new();
        let began = Instant::now();
        let mut begun = 0;
        let mut last = 0;
        while last == 0 || began.elapsed() < Duration::from_secs(1) {
            last += 1;
            ends.tell(&[entry(last)]);
            ends.flush();
            while let Some((kind, _)) = ends.guest.receive() {
                begun += usize::from(kind == BEGIN);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!((1..=10).contains(&begun), "{begun} directories of {last}");
        // And it is the last that the guest gets in the end.
        assert_eq!(ends.hear().0, [BEGIN, PEER, END]);
        assert_eq!(ends.latest.take().0.expect("a directory")[0].id, last);
    }
}
