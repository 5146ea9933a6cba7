// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What directories are made of: all guests as others see them. Kept while nothing of
//! it changes, as it takes long to make.

use std::collections::HashMap;
use std::sync::Arc;

use vmloop_policy::{Filters, Policy};

use crate::directory::{Index, Member, View, affected};
use crate::machine::Key;
use crate::network::judge::Judge;

/// What the host has on the way between two guests, unless the policy ignores that.
pub(super) fn heeded<'a>(policy: &Policy, judge: &'a Judge) -> Option<&'a Judge> {
    (policy.filters == Filters::Respect).then_some(judge)
}

/// See the module.
pub(super) struct Scene {
    /// Guests in the order in which they came; then those that are about to.
    pub(super) members: Vec<Member>,
    /// Who they are.
    pub(super) keys: Vec<Key>,
    places: HashMap<Key, usize>,
    index: Arc<Index>,
}

impl Scene {
    /// Of these members; what did not change is taken from the one `before`.
    pub(super) fn new(
        members: Vec<Member>,
        keys: Vec<Key>,
        policy: &Policy,
        judge: Option<&Judge>,
        before: Option<&Self>,
    ) -> Self {
        let places = keys.iter().copied().zip(0..).collect();
        let before = before.map(|one| (&*one.members, &*one.index));
        let index = Arc::new(Index::new(&members, policy, judge, before));
        Self { members, keys, places, index }
    }

    /// Where among the members a guest is.
    pub(super) fn at(&self, key: Key) -> Option<usize> {
        self.places.get(&key).copied()
    }

    /// Which members are to be told again, if all were told what was so `before`.
    pub(super) fn affected(&self, before: Option<&Self>, policy: &Policy) -> Vec<bool> {
        let all = || vec![true; self.members.len()];
        before.map_or_else(all, |before| affected(&self.members, &before.members, policy))
    }

    /// Who sees whom.
    pub(super) fn view<'a>(&'a self, policy: &'a Policy, judge: &'a Judge) -> View<'a> {
        View::of(&self.members, policy, heeded(policy, judge), self.index.clone())
    }
}
