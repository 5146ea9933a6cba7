// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Classes of names of interfaces that the host's rules cannot tell apart.

use std::collections::HashMap;

use super::ruleset::{Pattern, Ruleset};

/// Puts names into classes: rules cannot tell those of one class apart.
#[derive(Debug, Default)]
pub struct Classes {
    whole: HashMap<Pattern, u32>,
    beginnings: Vec<Pattern>,
    sets: HashMap<Vec<bool>, u32>,
}

impl Classes {
    /// For the rules of a host.
    pub fn new(rules: &Ruleset) -> Self {
        let mut all = Self::default();
        for pattern in rules.patterns() {
            if pattern.is_whole() {
                let next = all.whole.len() as u32;
                all.whole.entry(pattern.clone()).or_insert(next);
            } else if !all.beginnings.contains(pattern) {
                all.beginnings.push(pattern.clone());
            }
        }
        all
    }

    /// The class of a name.
    pub fn of(&mut self, name: &str) -> u32 {
        if let Some(class) = self.whole.get(&Pattern::name(name)) {
            return *class;
        }
        let set = self.beginnings.iter().map(|one| one.fits(name)).collect();
        let next = (self.whole.len() + self.sets.len()) as u32;
        *self.sets.entry(set).or_insert(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::ruleset::{Chain, Family, Rule, Step, Which};

    #[test]
    fn classes() {
        let named = |which, pattern| Rule {
            handle: 1,
            steps: vec![Step::Name { which, pattern, equal: true }, Step::Harm("drop".into())],
        };
        let chain = Chain {
            source: vmloop_api::FilterKind::Nftables,
            family: Family::Bridge,
            table: "t".into(),
            name: "c".into(),
            base: None,
            rules: vec![
                named(Which::In, Pattern::name("tap1")),
                named(Which::Out, Pattern::new(b"vif")),
            ],
        };
        let mut classes = Classes::new(&Ruleset::new(vec![chain]));
        let mut class = |name: &str| classes.of(name);
        assert_eq!(class("tap2"), class("tap3"));
        assert_ne!(class("tap1"), class("tap2"));
        assert_eq!(class("vif1.0"), class("vif2.0"));
        assert_ne!(class("vif1.0"), class("tap2"));
        assert_eq!(class("tap1"), class("tap1"));
    }
}
