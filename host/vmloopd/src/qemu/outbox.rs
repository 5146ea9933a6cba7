// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What waits to be sent to a guest.

use std::collections::VecDeque;
use std::sync::Arc;

use vmloop_abi::control::{Broken, ControlRegion};
use vmloop_abi::message::{AgentMessage, DirectoryEntry};

/// Messages that wait for room in a guest's ring.
const WAITING: usize = 1024;
/// What waits to be sent to a guest.
#[derive(Default)]
pub struct Outbox {
    messages: VecDeque<AgentMessage>,
    directory: Option<(u64, Arc<Vec<DirectoryEntry>>, usize)>,
    generation: u64,
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

    /// A directory, in place of one that is not sent yet.
    pub fn start_directory(&mut self, entries: Arc<Vec<DirectoryEntry>>) {
        self.generation += 1;
        self.directory = Some((self.generation, entries, 0));
    }

    /// Forgets what is not sent yet; the modules began anew.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.directory = None;
    }

    /// Sends as much as there is room for; whether all was sent.
    ///
    /// # Errors
    /// What the guest broke.
    pub fn flush(&mut self, region: &mut ControlRegion) -> Result<bool, Broken> {
        while let Some(message) = self.messages.front() {
            if !region.send(message)? {
                return Ok(false);
            }
            self.messages.pop_front();
        }
        while let Some((generation, entries, next)) = &mut self.directory {
            let message = if *next == 0 {
                AgentMessage::DirBegin(*generation)
            } else if let Some(entry) = entries.get(*next - 1) {
                AgentMessage::DirPeer(Box::new(entry.clone()))
            } else {
                AgentMessage::DirEnd(*generation)
            };
            if !region.send(&message)? {
                return Ok(false);
            }
            *next += 1;
            if *next == entries.len() + 2 {
                self.directory = None;
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use vmloop_abi::control::GuestSide;

    use super::*;

    #[test]
    fn a_directory_larger_than_the_ring() {
        let (mut region, fd) = ControlRegion::create("test").expect("a region");
        let mut guest = ControlRegion::fake_guest(&fd).expect("its other end");
        guest.begin(1);
        assert_eq!(region.poll(), Ok(GuestSide::Began));
        let entry = DirectoryEntry {
            id: 1,
            epoch: 1,
            tag: 0,
            tagged: false,
            keep: false,
            gateway: None,
            local_mac: [1; 6],
            mac: [2; 6],
            mtu: 1500,
            name: "x".into(),
            ips: Arc::default(),
        };
        let mut outbox = Outbox::default();
        outbox.start_directory(Arc::new(vec![entry; 3000]));
        let mut heard = Vec::new();
        let mut rounds = 0;
        loop {
            let done = outbox.flush(&mut region).expect("an honest guest");
            region.sent();
            while let Some((kind, _)) = guest.receive() {
                heard.push(kind);
            }
            rounds += 1;
            if done {
                break;
            }
        }
        assert!(rounds > 2);
        assert_eq!(heard.len(), 3002);
        assert_eq!((heard[0], heard[1], heard[3001]), (33, 34, 35));
    }
}
