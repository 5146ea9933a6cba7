// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A policy that was checked, and what follows from it.

use std::net::IpAddr;
use std::path::Path;

use vmloop_abi::lanes::VMLOOP_PACKET_LANES;
use vmloop_abi::memory::{RING_MAX, RING_MIN};

use crate::file::{At, Fallback, File, FileRouted, Filters, Invalid, Streams, all, one, some};
use crate::guests::{Guests, Who};
use crate::pattern::Pattern;
use crate::prefix::Prefix;

/// Bytes of each ring of a channel, unless the policy says otherwise.
pub const RING_SIZE: u32 = 4 << 20;
/// After how many milliseconds without traffic a channel is closed.
pub const IDLE_MS: u32 = 60_000;

#[derive(Clone, Debug)]
struct Group {
    name: String,
    members: Vec<Guests>,
    streams: Option<Streams>,
}

impl Group {
    fn has(&self, who: Who<'_>) -> bool {
        self.members.iter().any(|member| member.has(who))
    }
}

#[derive(Clone, Debug)]
struct GuestRule {
    matches: Guests,
    allow_ips: Option<Vec<Prefix>>,
}

/// Guests between whose subnets this host routes.
#[derive(Clone, Debug)]
struct Routed {
    name: String,
    members: Vec<Guests>,
    /// bridges, or interfaces of guests that are in none; None for all
    interfaces: Option<Vec<Pattern>>,
    allow_ips: Vec<Prefix>,
}

/// A policy that was checked.
#[derive(Clone, Debug)]
pub struct Policy {
    default: Fallback,
    groups: Vec<Group>,
    routed: Vec<Routed>,
    guests: Vec<GuestRule>,
    /// what the host's own filters mean
    pub filters: Filters,
    /// whether connections may go by lanes, where no group says so
    streams: Streams,
    /// bytes of each ring of new channels
    pub ring_size: u32,
    /// doorbells of each side of new channels, at most
    pub doorbells: u32,
    /// channels without traffic for so many milliseconds are closed; 0: never
    pub idle_ms: u32,
    /// channels that one guest can have
    pub max_channels: u32,
    /// bytes that all channels of the host may take together; None
    /// for the agent's own bound
    pub max_memory: Option<u64>,
    /// the text that it was read from
    pub text: String,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            default: Fallback::SameBridge,
            groups: Vec::new(),
            routed: Vec::new(),
            guests: Vec::new(),
            filters: Filters::Respect,
            streams: Streams::Allow,
            ring_size: RING_SIZE,
            doorbells: 1,
            idle_ms: IDLE_MS,
            max_channels: MAX_CHANNELS,
            max_memory: None,
            text: "# no policy file: guests on the same bridge and VLAN may talk\n".into(),
        }
    }
}

const MAX_CHANNELS: u32 = 256;
/// One for all lanes, and one for each lane that packets are spread over.
pub const DOORBELLS_MAX: u32 = 1 + VMLOOP_PACKET_LANES;

impl Routed {
    fn parse(raw: FileRouted, others: &[Self], at: At<'_>) -> Result<Self, Invalid> {
        let name_at = raw.name.span();
        let name = raw.name.into_inner();
        if others.iter().any(|other| other.name == name) {
            return Err(at(
                name_at,
                format!("there are two [[routed]] {name:?}; give one another name"),
            ));
        }
        let members = some(raw.members, &format!("[[routed]] {name:?} has no members"), at)?;
        let interfaces = raw
            .interfaces
            .map(|list| some(list, &format!("[[routed]] {name:?} has no interfaces"), at))
            .transpose()?;
        let ips_at = raw.allow_ips.span();
        let allow_ips = all(raw.allow_ips.into_inner(), at)?;
        if allow_ips.is_empty() {
            return Err(at(
                ips_at,
                format!(
                    "[[routed]] {name:?} allows no addresses; write the subnets of its members, as in [\"10.1.0.0/16\"]"
                ),
            ));
        }
        Ok(Self { name, members, interfaces, allow_ips })
    }
}

impl Policy {
    /// Reads a policy from text; `file` is what messages call it.
    ///
    /// # Errors
    /// [`Invalid`], with file, line, and what to do.
    pub fn parse(text: &str, file: &str) -> Result<Self, Invalid> {
        let at = |span: std::ops::Range<usize>, what: String| {
            let line = text[..span.start.min(text.len())].matches('\n').count() + 1;
            Invalid(format!("{file}:{line}: {what}"))
        };
        let invalid = |error: toml::de::Error| {
            at(error.span().unwrap_or(0..0), error.message().trim().replace('\n', "; "))
        };
        // Half a file, or one that is still being written, must not open everything.
        if toml::from_str::<toml::Table>(text).map_err(invalid)?.is_empty() {
            return Err(at(
                0..0,
                "it says nothing; to let guests on the same bridge and VLAN talk, write: default = \"same-bridge\"".into(),
            ));
        }
        let raw: File = toml::from_str(text).map_err(invalid)?;

        let ring_size = match raw.ring_size {
            None => RING_SIZE,
            Some(size) => {
                let span = size.span();
                u32::try_from(size.into_inner().0)
                    .ok()
                    .filter(|size| size.is_power_of_two() && (RING_MIN..=RING_MAX).contains(size))
                    .ok_or_else(|| {
                        at(span, "ring_size must be a power of two from \"64K\" to \"1G\"; \"4M\" is a good one".into())
                    })?
            }
        };
        let doorbells = match raw.doorbells {
            None => 1,
            Some(most) => {
                let span = most.span();
                let most = most.into_inner();
                if !(1..=DOORBELLS_MAX).contains(&most) {
                    return Err(at(
                        span,
                        format!(
                            "doorbells must be from 1 to {DOORBELLS_MAX}: one for all lanes, and one more for each packet lane that is to have its own"
                        ),
                    ));
                }
                most
            }
        };
        let max_channels = match raw.max_channels {
            None => MAX_CHANNELS,
            Some(most) => {
                let span = most.span();
                let most = most.into_inner();
                if most > vmloop_abi::message::TAG_MAX {
                    return Err(at(
                        span,
                        format!("max_channels must be at most {}", vmloop_abi::message::TAG_MAX),
                    ));
                }
                most
            }
        };
        let mut groups: Vec<Group> = Vec::new();
        for group in raw.group {
            let name_at = group.name.span();
            let name = group.name.into_inner();
            if groups.iter().any(|other| other.name == name) {
                return Err(at(
                    name_at,
                    format!("there are two groups {name:?}; merge their members"),
                ));
            }
            let members = some(group.members, &format!("group {name:?} has no members"), &at)?;
            groups.push(Group { name, members, streams: group.streams });
        }
        let mut routed = Vec::new();
        for raw in raw.routed {
            routed.push(Routed::parse(raw, &routed, &at)?);
        }
        let mut guests = Vec::new();
        for guest in raw.guest {
            let allow_ips = guest.allow_ips.map(|list| all(list, &at)).transpose()?;
            guests.push(GuestRule { matches: one(guest.matches, &at)?, allow_ips });
        }
        Ok(Self {
            default: raw.default,
            groups,
            routed,
            guests,
            filters: raw.filters,
            streams: raw.streams,
            ring_size,
            doorbells,
            idle_ms: raw.idle_ms.unwrap_or(IDLE_MS),
            max_channels,
            max_memory: raw.max_memory.map(|size| size.0),
            text: text.to_owned(),
        })
    }

    /// Reads a policy file. One that is empty, or whose last line has no end,
    /// is taken for one that is being written.
    ///
    /// # Errors
    /// [`Invalid`], also if the file cannot be read.
    pub fn read(path: &Path) -> Result<Self, Invalid> {
        let name = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|error| Invalid(format!("{name}: {error}")))?;
        if text.trim().is_empty() {
            return Err(Invalid(format!(
                "{name}: it is empty, as one that is being written; to let all talk on the same bridge, write: default = \"same-bridge\""
            )));
        }
        let policy = Self::parse(&text, &name)?;
        if !text.ends_with('\n') {
            let line = text.lines().count();
            return Err(Invalid(format!(
                "{name}:{line}: the last line has no end, as in a file that is being written; end it with a newline"
            )));
        }
        Ok(policy)
    }

    /// A policy by which nobody may talk.
    pub fn deny() -> Self {
        Self {
            default: Fallback::Deny,
            text: "# no policy could be read: nobody may talk\n".into(),
            ..Self::default()
        }
    }

    /// What it is about, in a few words.
    pub fn summary(&self) -> String {
        match (self.groups.len(), self.default) {
            (0, Fallback::SameBridge) => "all guests on the same bridge and VLAN may talk".into(),
            (0, Fallback::Deny) => "nobody may talk".into(),
            (1, _) => "members of one group may talk".into(),
            (groups, _) => format!("members of a common one of {groups} groups may talk"),
        }
    }

    /// Whether two guests may talk, if the network lets them.
    pub fn allows(&self, a: Who<'_>, b: Who<'_>) -> bool {
        if self.groups.is_empty() {
            return self.default == Fallback::SameBridge;
        }
        self.groups.iter().any(|group| group.has(a) && group.has(b))
    }

    /// Whether connections of TCP between two guests may go by lanes of their own. The first
    /// common group that says so decides; without one the file's first part.
    pub fn allows_streams(&self, a: Who<'_>, b: Who<'_>) -> bool {
        let says = |group: &&Group| group.streams.is_some() && group.has(a) && group.has(b);
        self.groups.iter().find(says).and_then(|group| group.streams).unwrap_or(self.streams)
            == Streams::Allow
    }

    /// Whether a guest may use an address. The first rule that is about the
    /// guest and has `allow_ips` decides; without one, any address.
    pub fn allows_ip(&self, who: Who<'_>, ip: IpAddr) -> bool {
        self.guests
            .iter()
            .filter(|rule| rule.matches.has(who))
            .find_map(|rule| rule.allow_ips.as_ref())
            .is_none_or(|list| list.iter().any(|prefix| prefix.contains(ip)))
    }

    /// Whether there is any `[[routed]]`.
    pub fn routes(&self) -> bool {
        !self.routed.is_empty()
    }

    /// Which `[[routed]]` an interface of a guest belongs to: the first with the
    /// guest and with one of the names that its place in the host has. Two are
    /// routed if it is the same.
    pub fn routed(&self, who: Who<'_>, places: &[&str]) -> Option<usize> {
        self.routed.iter().position(|routed| {
            routed.members.iter().any(|member| member.has(who))
                && routed.interfaces.as_ref().is_none_or(|list| {
                    list.iter().any(|one| places.iter().any(|place| one.matches(place)))
                })
        })
    }

    /// Whether a guest may be reached by an address in that `[[routed]]`.
    pub fn allows_routed_ip(&self, who: Who<'_>, routed: usize, ip: IpAddr) -> bool {
        self.allows_ip(who, ip)
            && self
                .routed
                .get(routed)
                .is_some_and(|routed| routed.allow_ips.iter().any(|prefix| prefix.contains(ip)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn who(name: &str) -> Who<'_> {
        Who { name, uuid: "" }
    }

    fn parse(text: &str) -> Result<Policy, String> {
        Policy::parse(text, "p").map_err(|error| error.to_string())
    }

    #[test]
    fn without_groups() {
        let policy = parse("default = 'same-bridge'").expect("a policy");
        assert!(policy.allows(who("a"), who("b")));
        assert_eq!((policy.ring_size, policy.idle_ms), (RING_SIZE, IDLE_MS));
        assert!(!parse("default = \"deny\"").expect("deny").allows(who("a"), who("b")));
    }

    #[test]
    fn filters() {
        assert_eq!(parse("idle_ms = 0").expect("a policy").filters, Filters::Respect);
        assert_eq!(parse("filters = 'ignore'").expect("a policy").filters, Filters::Ignore);
        assert!(parse("filters = 'some'").is_err());
    }

    #[test]
    fn streams() {
        let (a, b, c) = (who("web1"), who("web2"), who("db"));
        assert!(parse("idle_ms = 0").expect("a policy").allows_streams(a, b));
        assert!(!parse("streams = 'deny'").expect("a policy").allows_streams(a, b));
        assert!(parse("streams = 'some'").is_err());
        let groups = "[[group]]\nname = 'all'\nmembers = ['*']\n\
             [[group]]\nname = 'web'\nmembers = ['web*']\nstreams = ";
        let policy = parse(&format!("streams = 'deny'\n{groups}'allow'")).expect("a policy");
        assert_eq!((policy.allows_streams(a, b), policy.allows_streams(a, c)), (true, false));
        let policy = parse(&format!("{groups}'deny'")).expect("a policy");
        assert_eq!((policy.allows_streams(a, b), policy.allows_streams(a, c)), (false, true));
        // The first that says so.
        let last = "[[group]]\nname = 'last'\nmembers = ['*']\nstreams = 'allow'\n";
        let policy = parse(&format!("{groups}'deny'\n{last}")).expect("a policy");
        assert_eq!((policy.allows_streams(a, b), policy.allows_streams(a, c)), (false, true));
    }

    #[test]
    fn a_file_that_says_nothing() {
        for text in ["", "\n", "# default = 'deny'\n"] {
            let error = parse(text).expect_err("nothing is no policy");
            assert!(error.starts_with("p:1: it says nothing"), "{error}");
        }
    }

    #[test]
    fn groups() {
        let policy = parse(
            "[[group]]\nname = 'web'\nmembers = ['web*', 'uuid:B7A9BF05-*']\n\
             [[group]]\nname = 'db'\nmembers = ['web1', 'db?']\n",
        )
        .expect("a policy");
        assert!(policy.allows(who("web1"), who("web2")));
        assert!(policy.allows(who("web1"), who("db1")));
        assert!(!policy.allows(who("web2"), who("db1")));
        assert!(!policy.allows(who("web1"), who("db10")));
        assert!(!policy.allows(who("x"), who("y")));
        let by_uuid = Who { name: "x", uuid: "b7a9bf05-b0c5-4e0e-9a3a-6d4a2dbf6c01" };
        assert!(policy.allows(by_uuid, who("web9")));
    }

    #[test]
    fn names_do_not_stand_for_uuids() {
        // A stranger whose UUID begins like a name.
        let stranger = Who { name: "x", uuid: "db000000-b0c5-4e0e-9a3a-6d4a2dbf6c01" };
        for (members, admits) in [
            ("'db*'", false),
            ("'name:db*'", false),
            ("'*0*'", false),
            ("'uuid:db*'", true),
            ("'uuid:DB000000-b0c5-4e0e-9a3a-6d4a2dbf6c01'", true),
            ("'uuid:db000000-b0c5-4e0e-9a3a-6d4a2dbf6c02'", false),
        ] {
            let policy = parse(&format!("[[group]]\nname = 'g'\nmembers = [{members}, 'db1']\n"))
                .expect(members);
            assert_eq!(policy.allows(stranger, who("db1")), admits, "{members}");
            let rule = format!("[[guest]]\nmatch = {members}\nallow_ips = ['10.1.0.0/16']\n");
            let restricts = !parse(&rule)
                .expect(members)
                .allows_ip(stranger, "10.2.0.1".parse().expect("an address"));
            assert_eq!(restricts, admits, "{members}");
            let routed = format!(
                "[[routed]]\nname = 'r'\nmembers = [{members}]\nallow_ips = ['10.1.0.0/16']\n"
            );
            let is_routed = parse(&routed).expect(members).routed(stranger, &["br1"]).is_some();
            assert_eq!(is_routed, admits, "{members}");
        }
        // Nor UUIDs for names.
        let named = Who { name: "db000000", uuid: "" };
        let policy = parse("[[group]]\nname = 'g'\nmembers = ['uuid:db*', 'a']\n").expect("one");
        assert!(!policy.allows(named, who("a")));
        // A name that begins like a kind is written with its own.
        let policy = parse("[[group]]\nname = 'g'\nmembers = ['name:uuid:x', 'a']\n").expect("one");
        assert!(policy.allows(who("uuid:x"), who("a")));
    }

    #[test]
    fn addresses() {
        let policy = parse(
            "[[guest]]\nmatch = 'web*'\nallow_ips = ['10.1.0.0/16', 'fd00::/9', '192.0.2.1']\n",
        )
        .expect("a policy");
        let allows = |name, ip: &str| policy.allows_ip(who(name), ip.parse().expect("an address"));
        for ip in ["10.1.255.1", "fd7f::1", "192.0.2.1"] {
            assert!(allows("web1", ip), "{ip}");
        }
        for ip in ["10.2.0.1", "fe80::1", "192.0.2.2"] {
            assert!(!allows("web1", ip), "{ip}");
            assert!(allows("db", ip), "{ip}");
        }
    }

    #[test]
    fn routed() {
        let policy = parse(
            "[[routed]]\nname = 'a'\nmembers = ['web*']\ninterfaces = ['br1', 'vif*']\nallow_ips = ['10.1.0.0/16']\n\
             [[routed]]\nname = 'b'\nmembers = ['web*', 'db']\nallow_ips = ['10.0.0.0/8', 'fd00::/8']\n\
             [[guest]]\nmatch = 'db'\nallow_ips = ['10.2.0.0/24']\n",
        )
        .expect("a policy");
        assert_eq!(policy.routed(who("web1"), &["br1"]), Some(0));
        assert_eq!(policy.routed(who("web1"), &["vif7.0"]), Some(0));
        assert_eq!(policy.routed(who("web1"), &["br0", "br0.5"]), Some(1));
        assert_eq!(policy.routed(who("db"), &["br1"]), Some(1));
        assert_eq!(policy.routed(who("x"), &["br1"]), None);
        let allows = |name, routed, ip: &str| {
            policy.allows_routed_ip(who(name), routed, ip.parse().expect("an address"))
        };
        assert!(allows("web1", 0, "10.1.0.1") && !allows("web1", 0, "10.2.0.1"));
        assert!(allows("web1", 1, "fd00::1") && !allows("web1", 1, "192.0.2.1"));
        assert!(allows("db", 1, "10.2.0.1") && !allows("db", 1, "10.1.0.1"));
        assert_eq!(Policy::default().routed(who("web1"), &["br1"]), None);
    }

    #[test]
    fn sizes() {
        for (text, size) in [("'64K'", 64 << 10), ("'1MiB'", 1 << 20), ("2097152", 2 << 20)] {
            assert_eq!(parse(&format!("ring_size = {text}")).expect(text).ring_size, size);
        }
    }

    #[test]
    fn doorbells() {
        assert_eq!(parse("idle_ms = 1").expect("none").doorbells, 1);
        for most in [1, 9] {
            assert_eq!(parse(&format!("doorbells = {most}")).expect("some").doorbells, most);
        }
    }

    #[test]
    fn errors_name_the_line() {
        for (text, expect) in [
            ("\ndoorbells = 0", "p:2: doorbells must be from 1 to 9"),
            ("doorbells = 10", "p:1: doorbells must be from 1 to 9"),
            ("\nring_size = '3M'", "p:2: ring_size must be a power of two"),
            ("ring_size = '4X'", "p:1: \"4X\" is not a size"),
            ("\n\nrinsize = 1", "p:3: unknown field `rinsize`"),
            ("default = 'maybe'", "p:1: unknown variant `maybe`"),
            ("a = = 1", "p:1: "),
            ("[[group]]\nname='x'\nmembers=[]", "p:3: group \"x\" has no members"),
            (
                "[[group]]\nname='x'\nmembers=['a']\n[[group]]\nname='x'\nmembers=['a']",
                "p:5: there are two groups",
            ),
            (
                "[[guest]]\nmatch='x'\nallow_ips=['10.0.0.0/8',\n'10.0.0.0/33']",
                "p:4: \"10.0.0.0/33\": the length",
            ),
            (
                "[[routed]]\nname='x'\nmembers=['a']\nallow_ips=[]",
                "p:4: [[routed]] \"x\" allows no addresses",
            ),
            (
                "[[routed]]\nname='x'\nmembers=[]\nallow_ips=['10.0.0.0/8']",
                "p:3: [[routed]] \"x\" has no members",
            ),
            (
                "[[routed]]\nname='x'\nmembers=['a']\ninterfaces=[]\nallow_ips=['10.0.0.0/8']",
                "p:4: [[routed]] \"x\" has no interfaces",
            ),
            (
                "[[routed]]\nname='x'\nmembers=['a']\nallow_ips=['10.0.0.0/8',\n'10.0/8']",
                "p:5: \"10.0/8\" is not an address",
            ),
            ("[[routed]]\nname='x'\nmembers=['a']", "p:1: missing field `allow_ips`"),
            (
                "[[routed]]\nname='x'\nmembers=['a']\nallow_ips=['::/0']\n[[routed]]\nname='x'\nmembers=['a']\nallow_ips=['::/0']",
                "p:6: there are two [[routed]] \"x\"",
            ),
            // As earlier versions took UUIDs.
            (
                "[[group]]\nname='x'\nmembers=['a',\n'b7a9bf05-b0c5-4e0e-9a3a-6d4a2dbf6c01']",
                "p:4: \"b7a9bf05-b0c5-4e0e-9a3a-6d4a2dbf6c01\" could be a UUID or a name",
            ),
            ("[[guest]]\nmatch='B7A9BF05-*'", "p:2: \"B7A9BF05-*\" could be a UUID or a name"),
            ("[[guest]]\nmatch='uuid:web1'", "p:2: \"uuid:web1\" is no UUID"),
            ("[[guest]]\nmatch='uuid:b7a9bf05'", "p:2: \"uuid:b7a9bf05\" is no UUID"),
            ("[[guest]]\nmatch='uuid:'", "p:2: \"uuid:\" is no UUID"),
            ("[[guest]]\nmatch='x'\nallow_ips=['example']", "p:3: \"example\" is not an address"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.starts_with(expect), "{error}");
        }
    }

    proptest! {
        #[test]
        fn text_never_upsets_the_parser(text in "[a-z_=\\[\\]'\"0-9\n ./]{0,200}") {
            let _ = parse(&text);
        }
    }
}
