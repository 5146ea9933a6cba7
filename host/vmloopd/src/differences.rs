// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is new in a guest's directory since the one that the guest has. Pure functions.
//!
//! The directory that the guest has is not kept, since it is large: only the keys of what
//! has changed since then.

use std::collections::{BTreeMap, HashMap, HashSet};

use vmloop_abi::directory::{DirectoryEntry, EntryKey};

/// What makes the latest directory of the one that a guest has: first what goes, then what
/// comes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// entries that are not there any more
    pub gone: Vec<EntryKey>,
    /// entries that are new, or others than before: their indexes
    pub new: Vec<usize>,
}

/// Keys of what has changed since the directory that a guest has.
#[derive(Clone, Debug, Default)]
pub struct News {
    /// Whether the guest has an entry of that key.
    keys: BTreeMap<EntryKey, bool>,
    /// The guest could understand it in another way than the whole, or it is more.
    whole: bool,
}

/// The part in which two directories differ: of entries that are alike, all that are at the
/// beginning and at the end are left out. Most changes are of one entry among many.
fn middle<'a>(
    old: &'a [DirectoryEntry],
    new: &'a [DirectoryEntry],
) -> (&'a [DirectoryEntry], &'a [DirectoryEntry]) {
    let alike = |(a, b): &(&DirectoryEntry, &DirectoryEntry)| a == b;
    let front = old.iter().zip(new).take_while(alike).count();
    let (old, new) = (&old[front..], &new[front..]);
    let back = old.iter().rev().zip(new.iter().rev()).take_while(alike).count();
    (&old[..old.len() - back], &new[..new.len() - back])
}

fn by_key(entries: &[DirectoryEntry]) -> HashMap<EntryKey, &DirectoryEntry> {
    entries.iter().map(|entry| (entry.key(), entry)).collect()
}

/// Whether what these keys name could be understood in another way than a whole directory
/// says it: two entries of one pair of addresses, of which a guest takes the first alone, or
/// two lives of one guest.
fn is_ambiguous(entries: &[DirectoryEntry], keys: &BTreeMap<EntryKey, bool>) -> bool {
    let pairs: HashSet<_> = keys.keys().map(|key| (key.local_mac, key.mac)).collect();
    let mut lives: HashMap<u64, Option<u64>> = keys.keys().map(|key| (key.id, None)).collect();
    let mut seen = HashSet::new();
    entries.iter().any(|entry| {
        let pair = (entry.local_mac, entry.mac);
        let twice = pairs.contains(&pair) && !seen.insert(pair);
        let life = lives.get_mut(&entry.id);
        let another = life.is_some_and(|life| *life.get_or_insert(entry.epoch) != entry.epoch);
        twice || another
    })
}

impl News {
    /// The directory becomes another one.
    pub fn add(&mut self, old: &[DirectoryEntry], new: &[DirectoryEntry]) {
        let (was, is) = middle(old, new);
        if self.whole || (was.is_empty() && is.is_empty()) {
            return;
        }
        let (before, now) = (by_key(was), by_key(is));
        for (key, entry) in &now {
            if before.get(key) != Some(entry) {
                self.keys.entry(*key).or_insert(before.contains_key(key));
            }
        }
        for key in before.keys().filter(|key| !now.contains_key(*key)) {
            self.keys.entry(*key).or_insert(true);
        }
        // Two that were alike beside each other, one of which is not any more.
        self.whole = before.len() < was.len()
            || now.len() < is.len()
            || is_ambiguous(old, &self.keys)
            || is_ambiguous(new, &self.keys)
            // A guest that takes nothing for long.
            || self.keys.len() > old.len() + new.len();
        if self.whole {
            self.keys.clear();
        }
    }

    /// All of it, in a directory that was added last; None where the whole directory says
    /// that better: it is shorter, or a guest could understand the differences in another
    /// way.
    pub fn take(&mut self, latest: &[DirectoryEntry]) -> Option<Differences> {
        let Self { mut keys, whole } = std::mem::take(self);
        let new: Vec<usize> =
            (0..latest.len()).filter(|at| keys.contains_key(&latest[*at].key())).collect();
        for at in &new {
            keys.remove(&latest[*at].key());
        }
        let gone: Vec<EntryKey> =
            keys.into_iter().filter_map(|(key, had)| had.then_some(key)).collect();
        (!whole && gone.len() + new.len() <= latest.len()).then_some(Differences { gone, new })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use vmloop_abi::directory::PeerInterface;

    use super::*;

    fn entry(id: u64, epoch: u64, mac: u8, tag: u32) -> DirectoryEntry {
        let (mac, name, ips) = ([mac; 6], "x".into(), Box::default());
        DirectoryEntry {
            peer: Arc::new(PeerInterface { id, epoch, mac, name, ips }),
            tag,
            tagged: false,
            keep: false,
            without: 0,
            gateway: None,
            local_mac: [1; 6],
            mtu: 1500,
        }
    }

    fn differences(old: &[DirectoryEntry], new: &[DirectoryEntry]) -> Option<Differences> {
        let mut news = News::default();
        news.add(old, new);
        news.take(new)
    }

    /// What a guest has (kernel/core/directory.c): its peers, each with one life, and
    /// their interfaces, of which the first to come keeps a pair of addresses.
    #[derive(Clone, Debug, Default, PartialEq)]
    struct Guest {
        lives: BTreeMap<u64, u64>,
        has: BTreeMap<([u8; 6], [u8; 6]), DirectoryEntry>,
    }

    impl Guest {
        fn place(&mut self, entry: &DirectoryEntry) {
            let pair = (entry.local_mac, entry.mac);
            let life = *self.lives.entry(entry.id).or_insert(entry.epoch);
            let taken = self.has.get(&pair).is_some_and(|other| other.id != entry.id);
            if life == entry.epoch && !taken {
                self.has.insert(pair, entry.clone());
            }
        }

        /// Peers without an interface go.
        fn settle(&mut self) {
            let has = &self.has;
            self.lives.retain(|id, _| has.values().any(|one| one.id == *id));
        }

        fn whole(&mut self, list: &[DirectoryEntry]) {
            self.lives
                .retain(|id, epoch| list.iter().any(|one| one.id == *id && one.epoch == *epoch));
            self.has.retain(|_, old| {
                list.iter().any(|one| one.key() == old.key() && one.epoch == old.epoch)
            });
            list.iter().for_each(|one| self.place(one));
            self.settle();
        }

        fn change(&mut self, latest: &[DirectoryEntry], found: &Differences) {
            for key in &found.gone {
                let pair = (key.local_mac, key.mac);
                if self.has.get(&pair).is_some_and(|one| one.id == key.id) {
                    self.has.remove(&pair);
                }
            }
            for one in found.new.iter().map(|at| &latest[*at]) {
                if self.lives.get(&one.id).is_some_and(|epoch| *epoch != one.epoch) {
                    self.lives.remove(&one.id);
                    self.has.retain(|_, old| old.id != one.id);
                }
            }
            found.new.iter().for_each(|at| self.place(&latest[*at]));
            self.settle();
        }
    }

    #[test]
    fn one_of_many() {
        let old: Vec<_> = (1..=100).map(|id| entry(id, 1, id as u8, 0)).collect();
        let mut new = old.clone();
        new[40].tag = 7;
        let found = |new: &[_]| differences(&old, new).expect("differences");
        assert_eq!(found(&new), Differences { gone: vec![], new: vec![40] });
        new.remove(50);
        assert_eq!(found(&new), Differences { gone: vec![old[50].key()], new: vec![40] });
        new.push(entry(101, 1, 101, 0));
        assert_eq!(found(&new), Differences { gone: vec![old[50].key()], new: vec![40, 99] });
        assert_eq!(found(&old), Differences::default());
    }

    #[test]
    fn several_changes_are_told_as_one() {
        let all: Vec<_> = (1..=4).map(|id| entry(id, 1, id as u8, 0)).collect();
        let mut news = News::default();
        // The first goes and comes again; the fourth comes and goes.
        news.add(&all[..3], &all[1..]);
        news.add(&all[1..], &all[..3]);
        assert_eq!(news.take(&all[..3]), Some(Differences { gone: vec![], new: vec![0] }));
        assert_eq!(news.take(&all[..3]), Some(Differences::default()));
    }

    #[test]
    fn where_the_whole_says_it_better() {
        let old = [entry(1, 1, 1, 0), entry(2, 1, 2, 0)];
        // Shorter.
        assert_eq!(differences(&old, &[]), None);
        let gone = Differences { gone: vec![old[1].key()], new: vec![] };
        assert_eq!(differences(&old, &old[..1]), Some(gone));
        // Two lives of a guest.
        assert_eq!(differences(&old, &[old[0].clone(), old[1].clone(), entry(2, 2, 3, 0)]), None);
        // Two that cannot be told apart: the same addresses in two networks.
        let twins = [old[0].clone(), old[0].clone(), old[1].clone()];
        assert_eq!(differences(&old, &twins), None);
        assert_eq!(differences(&twins, &old), None);
        let mut news = News::default();
        news.add(&twins, &old);
        news.add(&old, &old[..1]);
        assert_eq!(news.take(&old[..1]), None);
    }

    #[test]
    fn what_nobody_takes_is_bounded() {
        let mut news = News::default();
        for id in 1..1000 {
            news.add(&[entry(id, 1, 1, 0)], &[entry(id + 1, 1, 1, 0)]);
            assert!(news.keys.len() <= 2, "{id}");
        }
        assert_eq!(news.take(&[entry(1000, 1, 1, 0)]), None);
        assert_eq!(news.take(&[entry(1000, 1, 1, 0)]), Some(Differences::default()));
    }

    #[test]
    fn a_pair_of_addresses_that_two_guests_have() {
        let (one, two) = (entry(1, 1, 1, 0), entry(2, 1, 1, 0));
        // A guest takes the first alone, and is to get the other when that goes.
        let both = [one.clone(), two.clone()];
        assert_eq!(differences(&both, &both[1..]), None);
        // It moves from one to the other; with a third one, the whole is no shorter.
        let third = entry(3, 1, 3, 0);
        let moved = Differences { gone: vec![one.key()], new: vec![0] };
        assert_eq!(differences(&[one, third.clone()], &[two, third]), Some(moved));
    }

    fn directory() -> impl Strategy<Value = Vec<DirectoryEntry>> {
        // Of few guests, lives and addresses: two may have the same.
        let one = (1u64..5, 1u64..3, 1u8..6, 0u32..2);
        prop::collection::vec(one, 0..10).prop_map(|list| {
            list.into_iter().map(|(id, epoch, mac, tag)| entry(id, epoch, mac, tag)).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn they_say_what_the_whole_says(
            list in prop::collection::vec((directory(), any::<bool>()), 1..6),
        ) {
            let mut news = News::default();
            let mut guest = Guest::default();
            guest.whole(&list[0].0);
            for pair in list.windows(2) {
                let (latest, told) = &pair[1];
                news.add(&pair[0].0, latest);
                if *told {
                    let mut other = guest.clone();
                    other.whole(latest);
                    match news.take(latest) {
                        Some(found) => guest.change(latest, &found),
                        None => guest.whole(latest),
                    }
                    prop_assert_eq!(&guest, &other);
                }
            }
        }
    }
}
