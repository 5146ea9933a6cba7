// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The agent's soft state: which QMP sockets it was attached to. Everything
//! else is asked from the QEMUs, so that an agent can be killed at any time.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::machine::{Found, Key};

/// One guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// its QMP socket
    pub qmp: PathBuf,
    /// its name on this host
    pub name: Option<String>,
}

/// Reads the file; nothing if there is none.
///
/// # Errors
/// A file that cannot be read or makes no sense.
pub fn read(path: &Path) -> io::Result<Vec<Saved>> {
    match fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Replaces the file, so that a reader finds the old or the new one.
///
/// # Errors
/// Those of writing and renaming.
pub fn write(path: &Path, guests: &[Saved]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = fs::File::create(&new)?;
    file.write_all(&serde_json::to_vec_pretty(guests)?)?;
    file.write_all(b"\n")?;
    fs::rename(new, path)
}

/// A guest with what was found in it.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// names the attachment
    pub key: Key,
    /// identity
    pub id: u64,
    /// epoch
    pub epoch: u64,
    /// channel devices
    pub found: &'a [Found],
}

/// A channel that has both its ends: its tag and the two guests.
pub type Kept = (u32, Key, Key);
/// A channel device that has lost the other end, and its guest.
pub type Orphan = (Key, Found);

/// Which channels of an earlier agent can stay, and which devices must go.
pub fn match_channels(seen: &[Seen<'_>]) -> (Vec<Kept>, Vec<Orphan>) {
    let mut kept = Vec::new();
    let mut orphans = Vec::new();
    let mut pairs = HashSet::new();
    for guest in seen {
        for found in guest.found {
            let peer = seen.iter().find(|peer| {
                peer.id == found.peer
                    && peer.epoch == found.epoch
                    && peer.key != guest.key
                    && peer.found.iter().any(|back| {
                        back.tag == found.tag && back.peer == guest.id && back.epoch == guest.epoch
                    })
            });
            match peer {
                None => orphans.push((guest.key, found.clone())),
                // Each is seen from both ends. A pair has one channel.
                Some(peer) if guest.id < peer.id => {
                    if pairs.insert((guest.id, peer.id)) {
                        kept.push((found.tag, guest.key, peer.key));
                    } else {
                        orphans.push((guest.key, found.clone()));
                        orphans.push((
                            peer.key,
                            Found { tag: found.tag, peer: guest.id, epoch: guest.epoch },
                        ));
                    }
                }
                Some(_) => {}
            }
        }
    }
    (kept, orphans)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(tag: u32, peer: u64, epoch: u64) -> Found {
        Found { tag, peer, epoch }
    }

    #[test]
    fn what_stays_and_what_goes() {
        // 1 and 2 have channel 3; 1 has one to a 3 that lives again; 2 has one
        // to somebody who is not here; 1 and 3 disagree about a tag.
        let one = [found(3, 2, 20), found(4, 3, 29), found(6, 3, 30)];
        let two = [found(3, 1, 10), found(5, 9, 90)];
        let three = [found(4, 1, 10), found(7, 1, 10)];
        let seen = [
            Seen { key: 101, id: 1, epoch: 10, found: &one },
            Seen { key: 102, id: 2, epoch: 20, found: &two },
            Seen { key: 103, id: 3, epoch: 30, found: &three },
        ];
        let (kept, orphans) = match_channels(&seen);
        assert_eq!(kept, [(3, 101, 102)]);
        let mut tags: Vec<_> = orphans.iter().map(|(key, found)| (*key, found.tag)).collect();
        tags.sort_unstable();
        assert_eq!(tags, [(101, 4), (101, 6), (102, 5), (103, 4), (103, 7)]);
    }

    #[test]
    fn two_channels_of_a_pair() {
        let one = [found(1, 2, 20), found(2, 2, 20)];
        let two = [found(1, 1, 10), found(2, 1, 10)];
        let seen = [
            Seen { key: 7, id: 1, epoch: 10, found: &one },
            Seen { key: 8, id: 2, epoch: 20, found: &two },
        ];
        let (kept, orphans) = match_channels(&seen);
        assert_eq!(kept, [(1, 7, 8)]);
        assert_eq!(orphans, [(7, found(2, 2, 20)), (8, found(2, 1, 10))]);
    }

    #[test]
    fn the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("guests.json");
        assert_eq!(read(&path).expect("no file"), []);
        let guests = [Saved { qmp: "/run/a.sock".into(), name: Some("a".into()) }];
        write(&path, &guests).expect("written");
        assert_eq!(read(&path).expect("a file"), guests);
        fs::write(&path, "[{").expect("written");
        assert!(read(&path).is_err());
    }
}
