// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Chains of rules that a frame passes on the host, and whether they could do
//! something to it. Of a rule's conditions only those are looked at that compare
//! the name of an interface; any other may hold. What may drop, refuse, queue or
//! change a frame is harm here, whatever else it is.

use std::collections::HashMap;
use std::sync::Arc;

use vmloop_api::{Filter, FilterKind};

/// Length of an interface's name in the kernel, its zero included.
pub const NAME_MAX: usize = 16;
/// Targets of iptables and ebtables that let a frame as it is.
pub const HARMLESS_TARGETS: [&str; 12] = [
    "LOG",
    "NFLOG",
    "ULOG",
    "MARK",
    "CONNMARK",
    "CT",
    "NOTRACK",
    "TRACE",
    "AUDIT",
    "SECMARK",
    "CONNSECMARK",
    "CLASSIFY",
];
/// Chains that may call each other: the kernel's own bound is 16.
const DEPTH: usize = 16;

/// Which frames a table sees. The numbers are the kernel's (`NFPROTO_`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4 and IPv6
    Inet = 1,
    /// IPv4
    Ip = 2,
    /// ARP
    Arp = 3,
    /// of one interface
    Netdev = 5,
    /// of a bridge
    Bridge = 7,
    /// IPv6
    Ip6 = 10,
}

impl Family {
    /// The name that nft(8) has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Ip => "ip",
            Self::Arp => "arp",
            Self::Netdev => "netdev",
            Self::Bridge => "bridge",
            Self::Ip6 => "ip6",
        }
    }

    /// The family of a number; None for one that is not known.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Inet, Self::Ip, Self::Arp, Self::Netdev, Self::Bridge, Self::Ip6]
            .into_iter()
            .find(|family| *family as u8 == number)
    }
}

/// A name that a rule can compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// of the interface that a frame came in by
    In,
    /// of the interface that it leaves by
    Out,
    /// of the bridge of the first
    InBridge,
    /// of the bridge of the second
    OutBridge,
}

/// What the name of an interface is compared with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern(Vec<u8>);

impl Pattern {
    /// From what the kernel compares: the first bytes of a name that is filled up
    /// with zeros. So one that ends with a zero is a whole name.
    pub fn new(bytes: &[u8]) -> Self {
        let end = bytes.iter().position(|byte| *byte == 0).map_or(bytes.len(), |zero| zero + 1);
        Self(bytes[..end].to_vec())
    }

    /// A whole name.
    pub fn name(name: &str) -> Self {
        Self(name.bytes().chain([0]).collect())
    }

    /// Whether it is a whole name, and not the beginning of some.
    pub fn is_whole(&self) -> bool {
        self.0.last() == Some(&0)
    }

    /// Whether it fits a name.
    pub fn fits(&self, name: &str) -> bool {
        match self.0.split_last() {
            Some((0, whole)) => whole == name.as_bytes(),
            _ => name.as_bytes().starts_with(&self.0),
        }
    }
}

/// One step of a rule, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The rule goes on if a name fits, or (`equal` is false) does not fit.
    Name {
        /// whose name
        which: Which,
        /// what it is compared with
        pattern: Pattern,
        /// whether it must fit
        equal: bool,
    },
    /// The rule may go on.
    Maybe,
    /// It does something to the frame, or may; what, as a verb.
    Harm(String),
    /// The hook is over, and the frame passes.
    Accept,
    /// The chain is over.
    Return,
    /// Another chain comes first, by its name in the table.
    Jump(String),
    /// Another chain comes instead.
    Goto(String),
}

/// A rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// its number in the table (`nft -a`); 0 if it has none
    pub handle: u64,
    /// what it does
    pub steps: Vec<Step>,
}

/// Where frames come to a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// the kernel's number of the hook within the family
    pub hook: u32,
    /// whether what no rule decides is dropped
    pub drops: bool,
    /// of those families that have chains of single interfaces: which
    pub devices: Vec<Pattern>,
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// program that an operator sees it with
    pub source: FilterKind,
    /// of its table
    pub family: Family,
    /// its table
    pub table: Arc<str>,
    /// its name
    pub name: String,
    /// None if only other chains lead to it
    pub base: Option<Base>,
    /// in order; rules that do nothing to frames may be left out
    pub rules: Vec<Rule>,
}

/// What is known of the interfaces that a frame passes; None if it is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Names<'a> {
    /// that it came in by
    pub iif: Option<&'a str>,
    /// that it leaves by
    pub oif: Option<&'a str>,
    /// bridge of the first
    pub ibr: Option<&'a str>,
    /// bridge of the second
    pub obr: Option<&'a str>,
}

/// What a chain may do to a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Harm {
    /// the chain at whose hook it happens, and what
    pub filter: Filter,
    /// Whether a name that is not known may have had a say.
    pub guessed: bool,
}

/// Rules of a chain by the whole names that they begin with: the others need not be
/// looked at for a frame whose names are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Named {
    /// those that are for one interface to come in by
    by_in: HashMap<Pattern, Vec<usize>>,
    /// of the others, those that are for one to leave by
    by_out: HashMap<Pattern, Vec<usize>>,
    /// all others
    rest: Vec<usize>,
}

impl Named {
    fn new(rules: &[Rule]) -> Self {
        let mut named = Self::default();
        for (at, rule) in rules.iter().enumerate() {
            let conditions = rule
                .steps
                .iter()
                .take_while(|step| matches!(step, Step::Name { .. } | Step::Maybe));
            let find = |wanted| {
                conditions.clone().find_map(|step| match step {
                    Step::Name { which, pattern, equal: true } if *which == wanted => {
                        pattern.is_whole().then_some(pattern)
                    }
                    _ => None,
                })
            };
            let list = match (find(Which::In), find(Which::Out)) {
                (Some(name), _) => named.by_in.entry(name.clone()).or_default(),
                (None, Some(name)) => named.by_out.entry(name.clone()).or_default(),
                (None, None) => &mut named.rest,
            };
            list.push(at);
        }
        named
    }

    /// Those that may be for a frame, in order.
    fn rules(&self, names: &Names<'_>) -> Vec<usize> {
        let mut all = self.rest.clone();
        for (lists, name) in [(&self.by_in, names.iif), (&self.by_out, names.oif)] {
            match name {
                Some(name) => all.extend(lists.get(&Pattern::name(name)).into_iter().flatten()),
                None => all.extend(lists.values().flatten()),
            }
        }
        all.sort_unstable();
        all
    }
}

/// All chains of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    chains: Vec<Chain>,
    /// the rules of each
    named: Vec<Named>,
    /// by table and name
    index: HashMap<(FilterKind, Family, Arc<str>), HashMap<String, usize>>,
}

/// How a chain ends for a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The frame passes the hook for sure.
    Accepted,
    /// The caller goes on, or may go on.
    Open,
    /// This rule of this chain may do harm.
    Harm(usize, usize),
}

impl Ruleset {
    /// From all chains.
    pub fn new(chains: Vec<Chain>) -> Self {
        let mut index: HashMap<_, HashMap<_, _>> = HashMap::new();
        for (at, chain) in chains.iter().enumerate() {
            let key = (chain.source, chain.family, chain.table.clone());
            let table = index.entry(key).or_default();
            table.insert(chain.name.clone(), at);
        }
        let named = chains.iter().map(|chain| Named::new(&chain.rules)).collect();
        Self { chains, named, index }
    }

    /// The chain of a name in the table of another one.
    fn find(&self, chain: &Chain, name: &str) -> Option<usize> {
        let key = (chain.source, chain.family, chain.table.clone());
        self.index.get(&key)?.get(name).copied()
    }

    /// Chains at which frames begin, with numbers for [`Ruleset::harm`].
    pub fn bases(&self) -> impl Iterator<Item = (usize, &Chain, &Base)> {
        self.chains.iter().enumerate().filter_map(|(at, one)| Some((at, one, one.base.as_ref()?)))
    }

    /// All that names are compared with.
    pub fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        let rules = self.chains.iter().flat_map(|chain| &chain.rules);
        let named = rules.flat_map(|rule| &rule.steps).filter_map(|step| match step {
            Step::Name { pattern, .. } => Some(pattern),
            _ => None,
        });
        named.chain(self.bases().flat_map(|(_, _, base)| &base.devices))
    }

    /// What a chain that frames come to may do to one; None if it lets it pass.
    pub fn harm(&self, number: usize, names: &Names<'_>) -> Option<Harm> {
        let chain = self.chains.get(number)?;
        let drops = chain.base.as_ref().is_some_and(|base| base.drops);
        let mut walk = Walk { rules: self, names, known: HashMap::new(), guessed: false };
        let what = match walk.chain(number, 0) {
            End::Accepted => return None,
            End::Open if !drops => return None,
            End::Open => "policy drop".to_owned(),
            End::Harm(at, rule) => self.what(number, at, rule),
        };
        let (source, family) = (chain.source, chain.family.name());
        let text =
            format!("{source}: {family} table {}, chain {}: {what}", chain.table, chain.name);
        let filter = Filter {
            kind: source,
            interface: String::new(),
            family: family.into(),
            table: chain.table.to_string(),
            chain: chain.name.clone(),
            text,
        };
        Some(Harm { filter, guessed: walk.guessed })
    }

    /// What a rule may do, for people; it may be in another chain than frames came to.
    fn what(&self, number: usize, at: usize, rule: usize) -> String {
        let (chain, rule) = (&self.chains[at], &self.chains[at].rules[rule]);
        let verb = rule.steps.iter().find_map(|step| match step {
            Step::Harm(verb) => Some(verb.as_str()),
            _ => None,
        });
        let place = if at == number { String::new() } else { format!(" in chain {}", chain.name) };
        let handle = if rule.handle == 0 { String::new() } else { format!(" {}", rule.handle) };
        format!("rule{handle}{place} may {}", verb.unwrap_or("call too many chains"))
    }
}

/// One walk through chains.
struct Walk<'a> {
    rules: &'a Ruleset,
    names: &'a Names<'a>,
    /// how chains end that were walked through already
    known: HashMap<usize, End>,
    /// a name was asked for that is not known
    guessed: bool,
}

impl Walk<'_> {
    /// Whether a comparison holds; None if that is not known.
    fn holds(&mut self, which: Which, pattern: &Pattern, equal: bool) -> Option<bool> {
        let name = match which {
            Which::In => self.names.iif,
            Which::Out => self.names.oif,
            Which::InBridge => self.names.ibr,
            Which::OutBridge => self.names.obr,
        };
        self.guessed |= name.is_none();
        name.map(|name| pattern.fits(name) == equal)
    }

    fn chain(&mut self, number: usize, depth: usize) -> End {
        if let Some(end) = self.known.get(&number) {
            return *end;
        }
        let end = self.walk(number, depth);
        self.known.insert(number, end);
        end
    }

    fn walk(&mut self, number: usize, depth: usize) -> End {
        let rules = self.rules;
        let chain = &rules.chains[number];
        // Whether the chain may be over before, with the caller going on.
        let mut left = false;
        'rules: for at in rules.named[number].rules(self.names) {
            let mut sure = true;
            let rule = &chain.rules[at];
            for step in &rule.steps {
                let (target, returns) = match step {
                    Step::Name { which, pattern, equal } => {
                        match self.holds(*which, pattern, *equal) {
                            Some(true) => {}
                            Some(false) => continue 'rules,
                            None => sure = false,
                        }
                        continue;
                    }
                    Step::Maybe => {
                        sure = false;
                        continue;
                    }
                    Step::Harm(_) => return End::Harm(number, at),
                    Step::Accept if sure && !left => return End::Accepted,
                    Step::Accept if sure => return End::Open,
                    Step::Accept => continue 'rules,
                    Step::Return if sure => return End::Open,
                    Step::Return => {
                        left = true;
                        continue 'rules;
                    }
                    Step::Jump(name) => (name, false),
                    Step::Goto(name) => (name, true),
                };
                let Some(found) = rules.find(chain, target).filter(|_| depth < DEPTH) else {
                    return End::Harm(number, at);
                };
                match self.chain(found, depth + 1) {
                    End::Harm(chain, rule) => return End::Harm(chain, rule),
                    End::Accepted if sure && !left => return End::Accepted,
                    End::Accepted if sure => return End::Open,
                    End::Open if returns && sure => return End::Open,
                    End::Open => left |= returns,
                    End::Accepted => {}
                }
                continue 'rules;
            }
        }
        End::Open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(which: Which, name: &str) -> Step {
        Step::Name { which, pattern: Pattern::name(name), equal: true }
    }

    fn is_not(which: Which, name: &str) -> Step {
        Step::Name { which, pattern: Pattern::name(name), equal: false }
    }

    fn begins(which: Which, name: &str) -> Step {
        Step::Name { which, pattern: Pattern::new(name.as_bytes()), equal: true }
    }

    fn drops() -> Step {
        Step::Harm("drop".into())
    }

    fn chain(name: &str, base: Option<bool>, rules: &[&[Step]]) -> Chain {
        let rule =
            |(at, steps): (usize, &&[Step])| Rule { handle: at as u64 + 1, steps: steps.to_vec() };
        Chain {
            source: FilterKind::Nftables,
            family: Family::Bridge,
            table: "t".into(),
            name: name.into(),
            base: base.map(|drops| Base { hook: 2, drops, devices: Vec::new() }),
            rules: rules.iter().enumerate().map(rule).collect(),
        }
    }

    const NAMES: Names<'_> =
        Names { iif: Some("tap1"), oif: Some("tap2"), ibr: Some("br0"), obr: Some("br0") };

    /// What the first chain does to a frame from tap1 to tap2.
    fn harm(chains: &[Chain]) -> Option<String> {
        let rules = Ruleset::new(chains.to_vec());
        rules.harm(0, &NAMES).map(|harm| harm.filter.text)
    }

    fn of(drops: bool, rules: &[&[Step]]) -> Option<String> {
        harm(&[chain("c", Some(drops), rules)])
    }

    #[test]
    fn policies() {
        assert_eq!(of(false, &[]), None);
        let text = of(true, &[]).expect("a filter");
        assert_eq!(text, "nftables: bridge table t, chain c: policy drop");
        assert_eq!(of(true, &[&[Step::Accept]]), None, "nothing comes to the policy");
        assert!(of(true, &[&[Step::Maybe, Step::Accept]]).is_some());
        assert_eq!(of(true, &[&[is(Which::In, "tap1"), Step::Accept]]), None);
        assert!(of(true, &[&[is(Which::In, "tap2"), Step::Accept]]).is_some());
        assert!(of(true, &[&[Step::Maybe, Step::Return], &[Step::Accept]]).is_some());
        assert!(of(true, &[&[Step::Return], &[Step::Accept]]).is_some());
    }

    #[test]
    fn names() {
        let all = [
            (is(Which::In, "tap1"), is(Which::In, "tap")),
            (is(Which::Out, "tap2"), is(Which::Out, "tap1")),
            (is(Which::InBridge, "br0"), is(Which::InBridge, "br1")),
            (is_not(Which::OutBridge, "br1"), is_not(Which::OutBridge, "br0")),
            (begins(Which::In, "tap"), begins(Which::In, "vif")),
            (begins(Which::In, "tap1"), begins(Which::In, "tap10")),
        ];
        for (holds, does_not) in all {
            let why = of(false, &[&[holds.clone(), drops()]]).expect("a filter");
            assert!(why.ends_with("chain c: rule 1 may drop"), "{why}");
            assert_eq!(of(false, &[&[does_not.clone(), drops()]]), None, "{does_not:?}");
            // One of two that must hold does not.
            assert_eq!(of(false, &[&[holds, Step::Maybe, does_not, drops()]]), None);
        }
        // What comes before a condition is done whatever that says.
        assert!(of(false, &[&[drops(), is(Which::In, "other")]]).is_some());
        assert_eq!(of(false, &[&[Step::Maybe, Step::Accept], &[Step::Maybe, Step::Return]]), None);
        assert!(of(false, &[&[Step::Accept], &[drops()]]).is_none(), "never comes there");
        assert!(of(false, &[&[Step::Maybe, Step::Accept], &[drops()]]).is_some());
    }

    #[test]
    fn other_chains() {
        let to = |steps: Vec<Step>, rules: &[&[Step]], policy| {
            harm(&[chain("c", Some(policy), &[&steps]), chain("sub", None, rules)])
        };
        let jump = Step::Jump("sub".into());
        let goto = Step::Goto("sub".into());
        let why = to(vec![jump.clone()], &[&[], &[drops()]], false).expect("a filter");
        assert!(why.ends_with("chain c: rule 2 in chain sub may drop"), "{why}");
        assert_eq!(to(vec![is(Which::In, "other"), jump.clone()], &[&[drops()]], false), None);
        assert_eq!(to(vec![jump.clone()], &[&[is(Which::In, "other"), drops()]], false), None);
        for step in [&jump, &goto] {
            assert_eq!(to(vec![step.clone()], &[&[Step::Accept]], true), None);
            assert!(to(vec![Step::Maybe, step.clone()], &[&[Step::Accept]], true).is_some());
            assert!(to(vec![step.clone()], &[&[Step::Return], &[Step::Accept]], true).is_some());
            let perhaps: &[&[Step]] = &[&[Step::Maybe, Step::Return], &[Step::Accept]];
            assert!(to(vec![step.clone()], perhaps, true).is_some());
        }
        // Behind a jump the chain goes on, behind a goto it does not.
        let two = |first: &Step| {
            let rules = [std::slice::from_ref(first), &[drops()]];
            harm(&[chain("c", Some(false), &rules), chain("sub", None, &[])])
        };
        assert!(two(&jump).is_some());
        assert_eq!(two(&goto), None);
        assert!(to(vec![Step::Jump("gone".into())], &[], false).is_some(), "no such chain");
        // The kernel allows no circle; one would be harm, and no end of the agent.
        let circle = Step::Jump("c".into());
        assert!(harm(&[chain("c", Some(false), &[&[circle]])]).is_some());
    }

    #[test]
    fn a_name_that_is_not_known_may_be_any() {
        let rules: &[&[Step]] = &[&[is(Which::Out, "tap9"), drops()]];
        let rules = Ruleset::new(vec![chain("c", Some(false), rules)]);
        assert_eq!(rules.harm(0, &NAMES), None);
        let found = rules.harm(0, &Names { oif: None, ..NAMES }).expect("a filter");
        assert!(found.guessed);
        let rules: &[&[Step]] = &[&[drops()], &[is(Which::Out, "tap9"), drops()]];
        let rules = Ruleset::new(vec![chain("c", Some(false), rules)]);
        assert!(!rules.harm(0, &Names { oif: None, ..NAMES }).expect("a filter").guessed);
    }

    #[test]
    fn rules_for_other_names_are_not_looked_at() {
        let rules: &[&[Step]] = &[
            &[is(Which::In, "tap1"), is(Which::Out, "tap9"), drops()],
            &[Step::Maybe, is(Which::Out, "tap1"), drops()],
            &[begins(Which::In, "tap"), Step::Accept],
            &[is(Which::In, "tap2"), drops()],
            &[drops(), is(Which::In, "tap9")],
        ];
        let named = Named::new(&chain("c", Some(false), rules).rules);
        let of = |iif, oif| named.rules(&Names { iif, oif, ..NAMES });
        assert_eq!(of(Some("tap1"), Some("tap2")), [0, 2, 4]);
        assert_eq!(of(Some("tap2"), Some("tap1")), [1, 2, 3, 4]);
        assert_eq!(of(Some("tap3"), Some("tap3")), [2, 4]);
        assert_eq!(of(None, Some("tap3")), [0, 2, 3, 4]);
        assert_eq!(of(None, None), [0, 1, 2, 3, 4]);
    }
}
