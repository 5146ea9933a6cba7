// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Rules of the stream path, which connections may have lanes: `vmloop stream`.
//! docs/netlink/vmloop_tcp.yaml is the specification of what the module takes and says, and
//! the numbers here follow it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use netlink_packet_core::{DefaultNla, NLM_F_DUMP};

use super::genl::{Connection, Message, ip, kind, number, value};
use super::rule_file;
use crate::options::{Carrier, Ports, Rule as Wanted, Stream as Command};
use crate::table::{Table, dash};

const RULE_GET: u8 = 2;
const RULE_ADD: u8 = 3;
const RULE_REMOVE: u8 = 4;

const ID: u16 = 1;
const LANES: u16 = 2;
const PORT_FIRST: u16 = 3;
const PORT_LAST: u16 = 4;
const ADDRESS: u16 = 5;
const PREFIX: u16 = 6;
const CGROUP: u16 = 7;
const NETNS: u16 = 8;
const BEFORE: u16 = 9;

/// More rules the module does not take.
const RULES_MAX: usize = 256;

/// Where cgroups of version 2 are, alone or beside those of version 1.
const CGROUPS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Where `ip netns` has names of network namespaces.
const NAMESPACES: &str = "/run/netns";

/// A rule: the first that matches a connection decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Rule {
    /// its number
    pub id: u64,
    /// connections may have lanes; else they stay on TCP
    pub lanes: bool,
    /// first and last of the ports, of either end
    pub ports: Option<(u64, u64)>,
    /// the other end's address is in it, such as 10.1.0.0/16; empty if any may be
    pub address: String,
    /// number of the cgroup in which the socket was made, or below which
    pub cgroup: Option<u64>,
    /// its path below the root of cgroups; empty if there is none of that number any more
    pub cgroup_path: String,
    /// number of the network namespace
    pub netns: Option<u64>,
    /// its name; empty if it has none
    pub netns_name: String,
}

impl Rule {
    fn from(message: &Message) -> Self {
        let mut rule = Self::default();
        let (mut first, mut last, mut prefix) = (0, 0, 0);
        let mut address = String::new();
        for attribute in &message.attributes {
            let number = number(attribute);
            match kind(attribute) {
                ID => rule.id = number,
                LANES => rule.lanes = number != 0,
                PORT_FIRST => first = number,
                PORT_LAST => last = number,
                ADDRESS => address = ip(&value(attribute)),
                PREFIX => prefix = number,
                CGROUP => rule.cgroup = Some(number),
                NETNS => rule.netns = Some(number),
                _ => {}
            }
        }
        rule.ports = (first != 0).then_some((first, last));
        if !address.is_empty() {
            rule.address = format!("{address}/{prefix}");
        }
        rule
    }

    /// Which ports, for people.
    fn ports(&self) -> String {
        match self.ports {
            None => "-".into(),
            Some((first, last)) if first == last => first.to_string(),
            Some((first, last)) => format!("{first}-{last}"),
        }
    }
}

/// A name, or else the number that it stands for; `-` without.
fn named(name: &str, number: Option<u64>) -> String {
    match number {
        Some(number) if name.is_empty() => format!("gone or unnamed ({number})"),
        _ => dash(name),
    }
}

/// What is asked of the module, and does not need to be looked up.
fn attributes(wanted: &Wanted) -> Vec<DefaultNla> {
    let mut found = vec![DefaultNla::new(LANES, vec![u8::from(wanted.by == Carrier::Lanes)])];
    let mut put = |kind, value: &[u8]| found.push(DefaultNla::new(kind, value.to_vec()));
    if let Some(Ports { first, last }) = wanted.port {
        put(PORT_FIRST, &first.to_ne_bytes());
        put(PORT_LAST, &last.to_ne_bytes());
    }
    if let Some((address, bits)) = wanted.address.map(|range| range.parts()) {
        match address {
            IpAddr::V4(address) => put(ADDRESS, &address.octets()),
            IpAddr::V6(address) => put(ADDRESS, &address.octets()),
        }
        put(PREFIX, &[bits]);
    }
    if let Some(before) = wanted.before {
        put(BEFORE, &before.to_ne_bytes());
    }
    found
}

/// The number of what a file stands for.
fn inode(path: &Path, what: &str) -> anyhow::Result<u64> {
    let found = path.metadata().with_context(|| format!("no {what}: {}", path.display()))?;
    Ok(found.ino())
}

/// The number of a network namespace's file; where a namespace is not bound, it is another file.
fn namespace_inode(path: &Path) -> anyhow::Result<u64> {
    let found = inode(path, "network namespace")?;
    let ours = Path::new("/proc/self/ns/net").metadata()?;
    anyhow::ensure!(
        path.metadata()?.dev() == ours.dev(),
        "{} is no network namespace",
        path.display()
    );
    Ok(found)
}

/// The cgroup with a path, which is the one in the file system, or the one below its root.
fn cgroup(path: &Path) -> anyhow::Result<u64> {
    let below = path.strip_prefix("/").unwrap_or(path);
    let root = CGROUPS.iter().map(Path::new).find(|root| root.join("cgroup.procs").exists());
    let root = root.context("no cgroups of version 2 are mounted at /sys/fs/cgroup")?;
    let found = if path.starts_with(root) { path.to_path_buf() } else { root.join(below) };
    let number = inode(&found, "cgroup")?;
    anyhow::ensure!(found.join("cgroup.procs").exists(), "{} is no cgroup", found.display());
    Ok(number)
}

/// The network namespace with a name of `ip netns`, or of a process with that number.
fn netns(name: &str) -> anyhow::Result<u32> {
    let mut path = Path::new(NAMESPACES).join(name);
    if !path.exists() && name.parse::<u32>().is_ok() {
        path = PathBuf::from(format!("/proc/{name}/ns/net"));
    }
    u32::try_from(namespace_inode(&path)?).context("network namespace")
}

/// Paths of the cgroups with these numbers.
fn cgroup_paths(root: &Path, wanted: &[u64]) -> BTreeMap<u64, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(path) = left.pop() {
        if found.len() == wanted.len() {
            break;
        }
        // It goes meanwhile: then no rule is about it any more.
        let Ok(metadata) = path.metadata() else { continue };
        if wanted.contains(&metadata.ino()) {
            let below = path.strip_prefix(root).unwrap_or(&path);
            found.insert(metadata.ino(), format!("/{}", below.display()));
        }
        let entries = path.read_dir().into_iter().flatten().flatten();
        left.extend(
            entries
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path()),
        );
    }
    found
}

/// Names of the network namespaces that `ip netns` knows.
fn namespaces() -> BTreeMap<u64, String> {
    let entries = Path::new(NAMESPACES).read_dir().into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let inode = entry.path().metadata().ok()?.ino();
            Some((inode, entry.file_name().to_string_lossy().into_owned()))
        })
        .collect()
}

fn explain(error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            anyhow::anyhow!(
                "rules are seen and changed in the guest's first network namespace only, not in a container, nor by ip netns exec; only root may change them"
            )
        }
        io::ErrorKind::NotFound => {
            anyhow::anyhow!("there is no rule of that number\n  see vmloop stream rules")
        }
        io::ErrorKind::StorageFull => {
            anyhow::anyhow!(
                "there are as many rules as there may be\n  remove some: vmloop stream remove ID"
            )
        }
        io::ErrorKind::Unsupported => anyhow::anyhow!(
            "the stream module that is loaded is older, and has no rules\n  load the new ones, all of them: /usr/share/doc/vmloop/stream.md, \"Upgrade and remove it\""
        ),
        _ => error.into(),
    }
}

fn list(module: &mut Connection) -> anyhow::Result<Vec<Rule>> {
    let replies = module.ask(RULE_GET, Vec::new(), NLM_F_DUMP).map_err(explain)?;
    let mut rules: Vec<Rule> = replies.iter().map(Rule::from).collect();
    let wanted: Vec<u64> = rules.iter().filter_map(|rule| rule.cgroup).collect();
    let mut paths = BTreeMap::new();
    for root in CGROUPS.iter().filter(|_| !wanted.is_empty()) {
        paths.extend(cgroup_paths(Path::new(root), &wanted));
    }
    let names = namespaces();
    for rule in &mut rules {
        let of = |names: &BTreeMap<u64, String>, number: Option<u64>| {
            number.and_then(|number| names.get(&number)).cloned().unwrap_or_default()
        };
        rule.cgroup_path = of(&paths, rule.cgroup);
        rule.netns_name = of(&names, rule.netns);
    }
    Ok(rules)
}

/// All that is asked of the module for a rule.
fn whole(wanted: &Wanted) -> anyhow::Result<Vec<DefaultNla>> {
    let mut attributes = attributes(wanted);
    if let Some(path) = &wanted.cgroup {
        attributes.push(DefaultNla::new(CGROUP, cgroup(path)?.to_ne_bytes().to_vec()));
    }
    if let Some(name) = &wanted.netns {
        attributes.push(DefaultNla::new(NETNS, netns(name)?.to_ne_bytes().to_vec()));
    }
    Ok(attributes)
}

/// Adds a rule; returns its number.
fn add(module: &mut Connection, attributes: Vec<DefaultNla>) -> anyhow::Result<u32> {
    let replies = module.ask(RULE_ADD, attributes, 0).map_err(explain)?;
    let rule = replies.first().map(Rule::from).context("the module said no number")?;
    u32::try_from(rule.id).context("a rule's number")
}

fn remove(module: &mut Connection, id: u32) -> anyhow::Result<()> {
    let id = DefaultNla::new(ID, id.to_ne_bytes().to_vec());
    module.ask(RULE_REMOVE, vec![id], 0).map_err(explain)?;
    Ok(())
}

/// Removes rules, in that order. Somebody else may have removed one.
fn drop_all(module: &mut Connection, ids: Vec<u32>) -> anyhow::Result<()> {
    let mut wrong = None;
    for id in ids {
        let id = DefaultNla::new(ID, id.to_ne_bytes().to_vec());
        match module.ask(RULE_REMOVE, vec![id], 0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => wrong = Some(error),
            _ => {}
        }
    }
    wrong.map_or(Ok(()), |error| {
        Err(explain(error).context("old rules hold beside new ones: see vmloop stream rules"))
    })
}

/// Has the rules of a file instead of those that there are; returns which were left out, as their
/// cgroup or namespace is not there.
///
/// # Errors
/// The file cannot be read, a line is wrong, or the module refuses a rule: the rules are as before.
fn replace(module: &mut Connection, path: &Path) -> anyhow::Result<Vec<String>> {
    let mut left_out = Vec::new();
    let mut wanted = Vec::new();
    for (line, rule) in rule_file::read(path)? {
        match whole(&rule) {
            Ok(attributes) => wanted.push((line, attributes)),
            Err(error) => left_out.push(format!("line {line}: {error:#}")),
        }
    }
    let before = list(module)?;
    anyhow::ensure!(
        before.len() + wanted.len() <= RULES_MAX,
        "{}\n  there may be {RULES_MAX} rules, and those that there are hold until the new ones do: remove some (vmloop stream remove), or have fewer",
        path.display()
    );
    let mut added = Vec::new();
    for (line, attributes) in wanted {
        match add(module, attributes) {
            Ok(id) => added.push(id),
            Err(error) => {
                drop_all(module, added)?;
                return Err(error.context(format!("{}, line {line}", path.display())));
            }
        }
    }
    drop_before(module, &before)?;
    Ok(left_out)
}

/// Removes rules that there were. From the last one on: at each moment a connection has its old
/// rule or its new one.
fn drop_before(module: &mut Connection, before: &[Rule]) -> anyhow::Result<()> {
    let old = before.iter().rev().map(|rule| u32::try_from(rule.id));
    drop_all(module, old.collect::<Result<_, _>>().context("a rule's number")?)
}

/// Has one rule instead of those that there are: all connections stay on TCP.
fn close(module: &mut Connection) -> anyhow::Result<()> {
    let mut before = list(module)?;
    if before.len() >= RULES_MAX {
        drop_before(module, &before.split_off(RULES_MAX - 1))?;
    }
    let mut attributes = vec![DefaultNla::new(LANES, vec![0])];
    if let Some(first) = before.first() {
        let first = u32::try_from(first.id).context("a rule's number")?;
        attributes.push(DefaultNla::new(BEFORE, first.to_ne_bytes().to_vec()));
    }
    add(module, attributes)?;
    drop_before(module, &before)
}

/// `vmloop stream load`. With `closed`, a file that cannot be loaded opens nothing.
fn load(module: &mut Connection, path: &Path, closed: bool) -> anyhow::Result<()> {
    let left_out = match replace(module, path) {
        Ok(left_out) => left_out,
        Err(error) if closed => {
            close(module).context("the rules are as before")?;
            return Err(error
                .context("all connections stay on TCP, until a file without mistakes is loaded"));
        }
        Err(error) => return Err(error.context("the rules are as before")),
    };
    anyhow::ensure!(
        left_out.is_empty(),
        "{}: these rules were left out, all others hold\n  {}",
        path.display(),
        left_out.join("\n  ")
    );
    Ok(())
}

/// Runs a command.
///
/// # Errors
/// What failed, and what to do.
pub fn run(command: &Command) -> anyhow::Result<()> {
    let mut module = Connection::open("vmloop_tcp").context("generic netlink")?.context(
        "the stream path is not loaded\n  load it in both guests, before servers start: modprobe vmloop_tcp (/usr/share/doc/vmloop/stream.md)",
    )?;
    match command {
        Command::Rules { json } => {
            let rules = list(&mut module)?;
            let out = &mut io::stdout().lock();
            if *json { crate::host::print_json(out, &rules) } else { Ok(show(out, &rules)?) }
        }
        Command::Add(wanted) => {
            let id = add(&mut module, whole(wanted)?)?;
            Ok(writeln!(io::stdout(), "{id}")?)
        }
        Command::Load { file, closed } => load(&mut module, file, *closed),
        Command::Remove { id } => remove(&mut module, *id),
    }
}

fn show(out: &mut dyn Write, rules: &[Rule]) -> io::Result<()> {
    let mut table = Table::new(&["RULE", "BY", "PORT", "ADDRESS", "CGROUP", "NETNS"]);
    for rule in rules {
        table.row([
            rule.id.to_string(),
            if rule.lanes { "lanes".into() } else { "tcp".into() },
            rule.ports(),
            dash(&rule.address),
            named(&rule.cgroup_path, rule.cgroup),
            named(&rule.netns_name, rule.netns),
        ]);
    }
    if table.is_empty() {
        return writeln!(out, "no rules: each connection to a peer may have a lane");
    }
    table.write(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Wanted {
        Wanted {
            by: Carrier::Tcp,
            port: Some(Ports { first: 5432, last: 5433 }),
            address: Some("10.1.2.0/23".parse().expect("a network")),
            cgroup: None,
            netns: None,
            before: None,
        }
    }

    #[test]
    fn there_and_back() {
        let mut attributes = attributes(&wanted());
        attributes.push(DefaultNla::new(ID, 7u32.to_ne_bytes().to_vec()));
        attributes.push(DefaultNla::new(NETNS, 12u32.to_ne_bytes().to_vec()));
        let rule = Rule::from(&Message { command: RULE_GET, attributes });
        assert_eq!((rule.id, rule.lanes, rule.ports), (7, false, Some((5432, 5433))));
        assert_eq!(rule.address, "10.1.2.0/23");
        assert_eq!((rule.cgroup, rule.netns), (None, Some(12)));
        let mut out = Vec::new();
        show(&mut out, &[rule]).expect("written");
        let text = String::from_utf8_lossy(&out);
        assert!(
            text.contains("7     tcp  5432-5433  10.1.2.0/23  -       gone or unnamed (12)"),
            "{text}"
        );
    }

    #[test]
    fn only_what_was_said() {
        let all = Wanted { port: None, address: None, by: Carrier::Lanes, ..wanted() };
        let attributes = attributes(&all);
        assert_eq!(attributes.len(), 1);
        let rule = Rule::from(&Message { command: RULE_GET, attributes });
        assert_eq!(rule, Rule { lanes: true, ..Rule::default() });
    }

    #[test]
    fn names_of_cgroups() {
        let root = std::env::temp_dir().join(format!("vmloop-rules-{}", std::process::id()));
        let below = root.join("system.slice/db.service");
        std::fs::create_dir_all(&below).expect("a directory");
        let number = inode(&below, "cgroup").expect("a number");
        let found = cgroup_paths(&root, &[number, 1]);
        std::fs::remove_dir_all(&root).expect("gone");
        assert_eq!(found, BTreeMap::from([(number, "/system.slice/db.service".into())]));
    }

    #[test]
    fn what_is_not_there() {
        assert!(netns("vmloop-none").expect_err("none").to_string().contains("/run/netns/"));
        assert!(netns("self").is_err());
        assert_eq!(
            u64::from(netns(&std::process::id().to_string()).expect("ours")),
            inode(Path::new("/proc/self/ns/net"), "namespace").expect("ours")
        );
    }
}
