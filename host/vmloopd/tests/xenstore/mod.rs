// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A xenstored without Xen: nodes with owners and permissions, watches and
//! transactions, spoken over a unix socket as dom0 does; and guests' modules
//! that follow section 8 of docs/protocol.md.
//!
//! With the path of a real xenstored's socket in VMLOOP_XENSTORED that one is
//! used (one test at a time; it loses its domains 1 to 9). All is done as dom0
//! there, so that permissions are not seen.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use vmloop_xenstore::kind;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    value: Vec<u8>,
    /// The owner and what others may, then exceptions.
    permissions: Vec<String>,
    generation: u64,
}

#[derive(Clone, Debug)]
enum Change {
    Write(String, Vec<u8>),
    Make(String),
    Remove(String),
    Permit(String, Vec<String>),
}

impl Change {
    fn path(&self) -> &str {
        match self {
            Self::Write(path, _)
            | Self::Make(path)
            | Self::Remove(path)
            | Self::Permit(path, _) => path,
        }
    }
}

struct Transaction {
    nodes: BTreeMap<String, Node>,
    /// What was seen, and when it had changed last; None: not there.
    seen: HashMap<String, Option<u64>>,
    changes: Vec<Change>,
}

struct Watch {
    connection: u64,
    path: String,
    token: String,
}

#[derive(Default)]
pub struct State {
    nodes: BTreeMap<String, Node>,
    introduced: BTreeSet<u32>,
    watches: Vec<Watch>,
    connections: HashMap<u64, UnixStream>,
    transactions: HashMap<u32, Transaction>,
    next: u64,
    /// So many transactions of the agent's come to nothing.
    pub conflicts: u32,
    /// Writes of the agent's fail with this.
    pub full: Option<&'static str>,
    /// All that was written to nodes, and to which.
    pub written: Vec<(String, String)>,
    /// Watches fire late: not at all.
    pub mute: bool,
    /// Children of a node that fit one answer.
    pub wide: Option<usize>,
    /// Transactions of the agent's that took effect.
    pub commits: u32,
    /// Requests of the agent's to read.
    pub reads: u64,
}

type Answer = Result<Vec<u8>, &'static str>;

fn above(path: &str) -> Option<&str> {
    let (parent, _) = path.rsplit_once('/')?;
    if parent.is_empty() { (path != "/").then_some("/") } else { Some(parent) }
}

fn is_below(path: &str, root: &str) -> bool {
    path == root || path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'))
}

/// What a domain may do with a node: read, write.
fn may(node: &Node, domain: u32) -> (bool, bool) {
    let number = |text: &str| text[1..].parse::<u32>().expect("a domain");
    let letter = |text: &str| match &text[..1] {
        "n" => (false, false),
        "r" => (true, false),
        "w" => (false, true),
        "b" => (true, true),
        other => panic!("permission {other}"),
    };
    if domain == 0 || number(&node.permissions[0]) == domain {
        return (true, true);
    }
    let exception = node.permissions[1..].iter().find(|entry| number(entry) == domain);
    letter(exception.unwrap_or(&node.permissions[0]))
}

impl State {
    fn children(nodes: &BTreeMap<String, Node>, path: &str) -> Vec<String> {
        let root = format!("{}/", path.trim_end_matches('/'));
        nodes
            .range(root.clone()..)
            .take_while(|(path, _)| path.starts_with(&root))
            .map(|(path, _)| path[root.len()..].to_owned())
            .filter(|name| !name.is_empty() && !name.contains('/'))
            .collect()
    }

    /// Makes a node and those above it, with the permissions of the nearest
    /// one that there is; a guest owns what it makes.
    fn make(&mut self, path: &str, domain: u32) -> Result<(), &'static str> {
        if self.nodes.contains_key(path) {
            return Ok(());
        }
        let parent = above(path).ok_or("EINVAL")?.to_owned();
        if !self.nodes.contains_key(&parent) {
            self.make(&parent, domain)?;
        }
        self.next += 1;
        let generation = self.next;
        let above = self.nodes.get_mut(&parent).expect("its parent");
        if !may(above, domain).1 {
            return Err("EACCES");
        }
        let mut permissions = above.permissions.clone();
        if domain != 0 {
            permissions[0] = format!("{}{domain}", &permissions[0][..1]);
        }
        above.generation = generation;
        self.nodes.insert(path.into(), Node { value: Vec::new(), permissions, generation });
        Ok(())
    }

    fn apply(&mut self, change: &Change, domain: u32) -> Result<(), &'static str> {
        self.next += 1;
        let generation = self.next;
        let writable = |node: &Node| if may(node, domain).1 { Ok(()) } else { Err("EACCES") };
        let path = match change {
            Change::Make(path) => {
                self.make(path, domain)?;
                path
            }
            Change::Write(path, value) => {
                if let Some(node) = self.nodes.get(path) {
                    writable(node)?;
                }
                self.make(path, domain)?;
                let node = self.nodes.get_mut(path).expect("the node");
                node.value.clone_from(value);
                node.generation = generation;
                let text = String::from_utf8_lossy(value).into_owned();
                self.written.push((path.clone(), text));
                path
            }
            Change::Permit(path, permissions) => {
                let node = self.nodes.get_mut(path).ok_or("ENOENT")?;
                writable(node)?;
                node.permissions.clone_from(permissions);
                node.generation = generation;
                path
            }
            Change::Remove(path) => {
                writable(self.nodes.get(path).ok_or("ENOENT")?)?;
                let parent = above(path).expect("not the root").to_owned();
                self.nodes.get_mut(&parent).expect("its parent").generation = generation;
                let gone: Vec<_> =
                    self.nodes.keys().filter(|other| is_below(other, path)).cloned().collect();
                for other in &gone {
                    self.nodes.remove(other);
                }
                for other in gone {
                    // Of those below only exact watches hear.
                    self.fire(&other, other == *path);
                }
                return Ok(());
            }
        };
        let path = path.clone();
        self.fire(&path, true);
        Ok(())
    }

    fn fire(&mut self, path: &str, below: bool) {
        if self.mute {
            return;
        }
        let events: Vec<_> = self
            .watches
            .iter()
            .filter(|watch| watch.path == path || (below && is_below(path, &watch.path)))
            .map(|watch| (watch.connection, watch.token.clone()))
            .collect();
        for (connection, token) in events {
            self.event(connection, path, &token);
        }
    }

    fn event(&mut self, connection: u64, path: &str, token: &str) {
        if let Some(stream) = self.connections.get_mut(&connection) {
            let payload = format!("{path}\0{token}\0");
            // Its reader notices if it is gone.
            let _ = stream.write_all(&message(kind::WATCH_EVENT, 0, 0, payload.as_bytes()));
        }
    }

    /// Guests look only when the generation is another one than before.
    fn check_generation(&self, path: &str, then: &BTreeMap<String, Node>) {
        let parts: Vec<&str> = path.split('/').collect();
        if let ["", "local", "domain", domain, "vmloop", ..] = parts[..] {
            let page = format!("/local/domain/{domain}/vmloop/page/0");
            let head = |nodes: &BTreeMap<String, Node>| {
                let page = nodes.get(&page)?;
                page.value.split(|byte| *byte == b'\n').next().map(<[u8]>::to_vec)
            };
            assert_ne!(head(then), head(&self.nodes), "{path}");
        }
    }

    /// Outside of a transaction only a page is changed that is the only one,
    /// before and after.
    fn check_alone(&self, change: &Change) {
        let path = change.path();
        let Some((root, below)) = path.split_once("/vmloop") else { return };
        let Change::Write(_, value) = change else { panic!("{path} is not only written") };
        assert_eq!(below, "/page/0", "changed outside of a transaction");
        let head = |value: &[u8]| {
            let head = value.split(|byte| *byte == b'\n').next().unwrap_or_default();
            String::from_utf8_lossy(head).into_owned()
        };
        assert!(head(value).ends_with(" 1"), "{path}: {}", head(value));
        // The domain may have gone meanwhile.
        if let Some(now) = self.nodes.get(path) {
            assert!(head(&now.value).ends_with(" 1"), "{path}: {}", head(&now.value));
            assert_ne!(head(value), head(&now.value), "{path}");
        }
        assert!(!self.nodes.contains_key(&format!("{root}/vmloop/page/1")), "{path}");
    }

    /// A request of dom0's.
    fn serve(&mut self, connection: u64, of: u32, transaction: u32, payload: &[u8]) -> Answer {
        let parts: Vec<&str> = payload
            .split(|byte| *byte == 0)
            .map(|part| std::str::from_utf8(part).unwrap_or("?"))
            .collect();
        let path = parts[0].to_owned();
        if let (Some(error), kind::WRITE) = (self.full, of) {
            return Err(error);
        }
        let change = match of {
            kind::WRITE => {
                let value = payload[path.len() + 1..].to_vec();
                Some(Change::Write(path.clone(), value))
            }
            kind::MKDIR => Some(Change::Make(path.clone())),
            kind::RM => Some(Change::Remove(path.clone())),
            kind::SET_PERMS => {
                let list = parts[1..].iter().filter(|part| !part.is_empty());
                Some(Change::Permit(path.clone(), list.map(|part| (*part).to_owned()).collect()))
            }
            _ => None,
        };
        if let Some(change) = change {
            if transaction == 0 {
                self.check_alone(&change);
                self.apply(&change, 0)?;
                return Ok(b"OK\0".to_vec());
            }
            // It works on a copy, and is done again at the end.
            let open = self.transactions.get_mut(&transaction).ok_or("EINVAL")?;
            let mut copy = State { nodes: std::mem::take(&mut open.nodes), ..State::default() };
            let result = copy.apply(&change, 0);
            open.nodes = copy.nodes;
            open.changes.push(change);
            return result.map(|()| b"OK\0".to_vec());
        }
        match of {
            kind::READ | kind::DIRECTORY | kind::DIRECTORY_PART => {
                self.reads += 1;
                let nodes = match transaction {
                    0 => &self.nodes,
                    _ => {
                        let open = self.transactions.get_mut(&transaction).ok_or("EINVAL")?;
                        // What it made itself, nobody else has changed.
                        if !open.changes.iter().any(|change| is_below(change.path(), &path)) {
                            // As it was at the beginning, for that is what it sees.
                            let then = open.nodes.get(&path).map(|node| node.generation);
                            open.seen.entry(path.clone()).or_insert(then);
                        }
                        &open.nodes
                    }
                };
                let node = nodes.get(&path).ok_or("ENOENT")?;
                if of == kind::READ {
                    return Ok(node.value.clone());
                }
                let names = Self::children(nodes, &path);
                let all: Vec<u8> =
                    names.iter().flat_map(|name| format!("{name}\0").into_bytes()).collect();
                let most = self.wide.unwrap_or(4096);
                if of == kind::DIRECTORY {
                    return if all.len() > most { Err("E2BIG") } else { Ok(all) };
                }
                let offset: usize = parts[1].parse().map_err(|_| "EINVAL")?;
                let mut out = format!("{}\0", node.generation).into_bytes();
                let rest = &all[offset..];
                let mut end = rest.len();
                while end > most {
                    end = rest[..end - 1].iter().rposition(|byte| *byte == 0).ok_or("E2BIG")? + 1;
                }
                out.extend_from_slice(&rest[..end]);
                if end == rest.len() {
                    out.push(0);
                }
                Ok(out)
            }
            kind::WATCH => {
                let token = parts[1].to_owned();
                let again = self.watches.iter().any(|watch| {
                    watch.connection == connection && watch.path == path && watch.token == token
                });
                if again {
                    return Err("EEXIST");
                }
                self.watches.push(Watch { connection, path: path.clone(), token: token.clone() });
                Ok(b"OK\0".to_vec())
            }
            kind::UNWATCH => {
                let before = self.watches.len();
                self.watches.retain(|watch| {
                    watch.connection != connection || watch.path != path || watch.token != parts[1]
                });
                if self.watches.len() == before { Err("ENOENT") } else { Ok(b"OK\0".to_vec()) }
            }
            kind::TRANSACTION_START => {
                self.next += 1;
                let id = self.next as u32;
                let open = Transaction {
                    nodes: self.nodes.clone(),
                    seen: HashMap::new(),
                    changes: Vec::new(),
                };
                self.transactions.insert(id, open);
                Ok(format!("{id}\0").into_bytes())
            }
            kind::TRANSACTION_END => {
                let open = self.transactions.remove(&transaction).ok_or("ENOENT")?;
                if path == "F" {
                    return Ok(b"OK\0".to_vec());
                }
                let same = open
                    .seen
                    .iter()
                    .all(|(path, then)| self.nodes.get(path).map(|node| node.generation) == *then);
                if self.conflicts > 0 {
                    self.conflicts -= 1;
                    return Err("EAGAIN");
                }
                if !same {
                    return Err("EAGAIN");
                }
                self.commits += 1;
                for change in &open.changes {
                    self.check_generation(change.path(), &open.nodes);
                }
                for change in &open.changes {
                    // It worked on the copy.
                    let _ = self.apply(change, 0);
                }
                Ok(b"OK\0".to_vec())
            }
            kind::IS_DOMAIN_INTRODUCED => {
                let domain: u32 = path.parse().map_err(|_| "EINVAL")?;
                let is = self.introduced.contains(&domain);
                Ok(if is { b"T\0".to_vec() } else { b"F\0".to_vec() })
            }
            other => panic!("the agent asked for {other}"),
        }
    }
}

fn message(of: u32, id: u32, transaction: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [of, id, transaction, payload.len() as u32] {
        out.extend_from_slice(&word.to_ne_bytes());
    }
    out.extend_from_slice(payload);
    out
}

fn talk(mut stream: UnixStream, connection: u64, state: &Mutex<State>) -> std::io::Result<()> {
    loop {
        let mut header = [0; 16];
        stream.read_exact(&mut header)?;
        let word = |at: usize| {
            u32::from_ne_bytes(header[4 * at..4 * at + 4].try_into().expect("four bytes"))
        };
        let (of, id, transaction) = (word(0), word(1), word(2));
        let mut payload = vec![0; word(3) as usize];
        assert!(payload.len() <= 4096, "the agent sent {} bytes", payload.len());
        stream.read_exact(&mut payload)?;
        let mut state = state.lock().expect("no panic");
        let answer = match state.serve(connection, of, transaction, &payload) {
            Ok(answer) => message(of, id, transaction, &answer),
            Err(error) => message(kind::ERROR, id, transaction, format!("{error}\0").as_bytes()),
        };
        // Under the lock: events and answers come in order.
        stream.write_all(&answer)?;
        if of == kind::WATCH {
            let parts: Vec<_> = payload.split(|byte| *byte == 0).collect();
            let (path, token) =
                (String::from_utf8_lossy(parts[0]), String::from_utf8_lossy(parts[1]));
            state.event(connection, &path, &token);
        }
    }
}

/// A connection to a real xenstored.
struct Real(UnixStream);

impl Real {
    fn ask(&mut self, of: u32, payload: &[u8]) -> Answer {
        self.0.write_all(&message(of, 1, 0, payload)).expect("a xenstored");
        let mut header = [0; 16];
        self.0.read_exact(&mut header).expect("an answer");
        let word = |at: usize| {
            u32::from_ne_bytes(header[4 * at..4 * at + 4].try_into().expect("four bytes"))
        };
        let mut answer = vec![0; word(3) as usize];
        self.0.read_exact(&mut answer).expect("an answer");
        match (word(0) == kind::ERROR, &*answer) {
            (false, _) => Ok(answer),
            (_, b"ENOENT\0") => Err("ENOENT"),
            (_, b"EINVAL\0") => Err("EINVAL"),
            (_, other) => panic!("{}", String::from_utf8_lossy(other)),
        }
    }

    fn children(&mut self, path: &str) -> Vec<String> {
        let answer = self.ask(kind::DIRECTORY, format!("{path}\0").as_bytes());
        let names = String::from_utf8(answer.unwrap_or_default()).expect("names");
        names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    fn below(&mut self, path: &str) -> Vec<String> {
        if self.ask(kind::READ, format!("{path}\0").as_bytes()).is_err() {
            return Vec::new();
        }
        let mut all = vec![path.to_owned()];
        for child in self.children(path) {
            all.extend(self.below(&format!("{path}/{child}")));
        }
        all
    }
}

/// The store.
pub struct Xenstored {
    pub path: PathBuf,
    state: Arc<Mutex<State>>,
    real: Option<Mutex<Real>>,
}

impl Xenstored {
    pub fn start(directory: &Path) -> Self {
        if let Some(path) = std::env::var_os("VMLOOP_XENSTORED").map(PathBuf::from) {
            let real = Real(UnixStream::connect(&path).expect("a xenstored"));
            let store = Self { path, state: Arc::default(), real: Some(Mutex::new(real)) };
            for domain in 1..=9 {
                store.introduce(domain, false);
                for path in [
                    format!("/local/domain/0/backend/vif/{domain}"),
                    format!("/local/domain/{domain}"),
                ] {
                    // Absent, as a rule.
                    let _ = store.remove(0, &path);
                }
            }
            return store;
        }
        let path = directory.join("xenstored");
        let listener = UnixListener::bind(&path).expect("a socket");
        let state = Arc::new(Mutex::new(State::default()));
        let root = Node { value: Vec::new(), permissions: vec!["n0".to_owned()], generation: 0 };
        state.lock().expect("no panic").nodes.insert("/".into(), root);
        let shared = state.clone();
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let shared = shared.clone();
                let connection = {
                    let mut state = shared.lock().expect("no panic");
                    state.next += 1;
                    let number = state.next;
                    state.connections.insert(number, stream.try_clone().expect("a stream"));
                    number
                };
                thread::spawn(move || {
                    // Ends when the agent hangs up.
                    let _ = talk(stream, connection, &shared);
                    let mut state = shared.lock().expect("no panic");
                    state.connections.remove(&connection);
                    state.watches.retain(|watch| watch.connection != connection);
                });
            }
        });
        let store = Self { path, state, real: None };
        store.dom0("/local/domain/0/name", "Domain-0");
        store
    }

    /// Whether it is a real one.
    pub fn is_real(&self) -> bool {
        self.real.is_some()
    }

    fn real(&self) -> Option<MutexGuard<'_, Real>> {
        self.real.as_ref().map(|real| real.lock().expect("no panic"))
    }

    /// What only a pretended one knows.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    /// Says that a domain is there, or not any more.
    fn introduce(&self, domain: u32, there: bool) {
        if let Some(mut real) = self.real() {
            // Fails for a domain that is not there.
            let _ = if there {
                real.ask(8, format!("{domain}\x001\x00{}\0", 100 + domain).as_bytes())
            } else {
                real.ask(9, format!("{domain}\0").as_bytes())
            };
            return;
        }
        if there {
            self.state().introduced.insert(domain);
            self.state().fire("@introduceDomain", true);
        } else {
            self.state().introduced.remove(&domain);
            self.state().fire("@releaseDomain", true);
        }
    }

    fn change(&self, domain: u32, change: &Change) -> Result<(), &'static str> {
        let Some(mut real) = self.real() else { return self.state().apply(change, domain) };
        let path = change.path();
        match change {
            Change::Write(_, value) => {
                let mut payload = format!("{path}\0").into_bytes();
                payload.extend_from_slice(value);
                real.ask(kind::WRITE, &payload)
            }
            Change::Make(_) => real.ask(kind::MKDIR, format!("{path}\0").as_bytes()),
            Change::Remove(_) => real.ask(kind::RM, format!("{path}\0").as_bytes()),
            Change::Permit(_, list) => {
                let payload = format!("{path}\0{}\0", list.join("\0"));
                real.ask(kind::SET_PERMS, payload.as_bytes())
            }
        }
        .map(drop)
    }

    /// Writes as the toolstack does.
    pub fn dom0(&self, path: &str, value: &str) {
        self.write(0, path, value.as_bytes()).expect("dom0 may");
    }

    pub fn write(&self, domain: u32, path: &str, value: &[u8]) -> Result<(), &'static str> {
        self.change(domain, &Change::Write(path.into(), value.into()))
    }

    pub fn permit(&self, path: &str, permissions: &[String]) {
        self.change(0, &Change::Permit(path.into(), permissions.to_vec())).expect("dom0 may");
    }

    pub fn remove(&self, domain: u32, path: &str) -> Result<(), &'static str> {
        self.change(domain, &Change::Remove(path.into()))
    }

    pub fn read(&self, domain: u32, path: &str) -> Result<String, &'static str> {
        if let Some(mut real) = self.real() {
            let value = real.ask(kind::READ, format!("{path}\0").as_bytes())?;
            return Ok(String::from_utf8_lossy(&value).into_owned());
        }
        let state = self.state();
        let node = state.nodes.get(path).ok_or("ENOENT")?;
        if !may(node, domain).0 {
            return Err("EACCES");
        }
        Ok(String::from_utf8_lossy(&node.value).into_owned())
    }

    /// The owner of a node and what others may, then exceptions.
    pub fn permissions(&self, path: &str) -> String {
        if let Some(mut real) = self.real() {
            let list = real.ask(kind::GET_PERMS, format!("{path}\0").as_bytes());
            let list = String::from_utf8(list.expect("a node")).expect("text");
            return list.trim_end_matches('\0').replace('\0', " ");
        }
        self.state().nodes[path].permissions.join(" ")
    }

    /// All nodes at and below a path.
    pub fn below(&self, path: &str) -> Vec<String> {
        if let Some(mut real) = self.real() {
            return real.below(path);
        }
        self.state().nodes.keys().filter(|other| is_below(other, path)).cloned().collect()
    }

    /// How many watches the agent has.
    pub fn watches(&self) -> usize {
        self.state().watches.len()
    }

    /// Makes a domain as xl does, with one interface.
    pub fn create(&self, domain: u32, name: &str) {
        self.restore(domain, name, domain);
    }

    /// Makes a domain of one that was saved, with its UUID and interface.
    pub fn restore(&self, domain: u32, name: &str, was: u32) {
        let home = format!("/local/domain/{domain}");
        self.dom0(&home, "");
        self.permit(&home, &["n0".into(), format!("r{domain}")]);
        self.dom0(&format!("{home}/name"), name);
        let uuid = format!("00000000-0000-4000-8000-{was:012}");
        self.dom0(&format!("{home}/vm"), &format!("/vm/{uuid}"));
        self.dom0(&format!("/libxl/{domain}/type"), "pvh");
        for own in ["data", "control/shutdown"] {
            self.dom0(&format!("{home}/{own}"), "");
            self.permit(&format!("{home}/{own}"), &[format!("n{domain}")]);
        }
        self.introduce(domain, true);
        self.plug_as(domain, 0, &mac(was, 0));
    }

    /// Plugs an interface.
    pub fn plug(&self, domain: u32, number: u32) {
        self.plug_as(domain, number, &mac(domain, number));
    }

    fn plug_as(&self, domain: u32, number: u32, mac: &str) {
        let vif = format!("/local/domain/0/backend/vif/{domain}/{number}");
        self.dom0(&format!("{vif}/bridge"), "xenbr0");
        self.dom0(&format!("{vif}/mac"), mac);
    }

    /// Destroys a domain as xl does.
    pub fn destroy(&self, domain: u32) {
        for path in [
            format!("/local/domain/0/backend/vif/{domain}"),
            format!("/libxl/{domain}"),
            format!("/local/domain/{domain}"),
        ] {
            self.remove(0, &path).expect("it was there");
        }
        self.introduce(domain, false);
    }

    /// The toolstack has it suspend itself, and it takes note.
    pub fn suspend(&self, domain: u32) {
        let path = format!("/local/domain/{domain}/control/shutdown");
        self.dom0(&path, "suspend");
        self.write(domain, &path, b"").expect("its own");
    }

    /// It has suspended itself: something has changed, though it is still there.
    pub fn suspended(&self) {
        self.state().fire("@releaseDomain", true);
    }

    /// It dies, and nobody has removed its nodes yet.
    pub fn die(&self, domain: u32) {
        self.introduce(domain, false);
    }
}

pub fn mac(domain: u32, number: u32) -> String {
    format!("00:16:3e:00:{number:02x}:{domain:02x}")
}

/// The modules of a guest.
pub struct Modules<'a> {
    pub store: &'a Xenstored,
    pub domain: u32,
    pub incarnation: u64,
    /// Answers `make`, `map` and `close`.
    pub polite: bool,
    /// What `make` and `map` are answered with instead.
    pub fail: Option<u32>,
    /// what this guest does about each channel
    pub channels: BTreeMap<u32, String>,
    /// channels that were up once
    pub were_up: Vec<u32>,
    answered: Option<String>,
}

impl<'a> Modules<'a> {
    pub fn load(store: &'a Xenstored, domain: u32, incarnation: u64) -> Self {
        let modules = Self {
            store,
            domain,
            incarnation,
            polite: true,
            fail: None,
            channels: BTreeMap::new(),
            were_up: Vec::new(),
            answered: None,
        };
        // Absent at first.
        let _ = store.remove(domain, &modules.own(""));
        modules.say("hello", &format!("1 1 {incarnation:016x} 5 0.1.0 6.12.57-amd64"));
        modules.advertise(&[&format!("{} 10.0.0.{domain}/24", mac(domain, 0))]);
        modules
    }

    pub fn unload(self) {
        self.store.remove(self.domain, &self.own("")).expect("its own");
    }

    fn own(&self, path: &str) -> String {
        format!("/local/domain/{}/data/vmloop/{path}", self.domain).trim_end_matches('/').to_owned()
    }

    pub fn say(&self, path: &str, value: &str) {
        self.store.write(self.domain, &self.own(path), value.as_bytes()).expect("its own");
    }

    pub fn advertise(&self, addresses: &[&str]) {
        let mut nodes = addresses.chunks(16).map(|some| some.join(" ")).enumerate();
        let first = nodes.next().map(|(_, some)| some).unwrap_or_default();
        for (at, some) in nodes {
            self.say(&format!("address/{at}"), &some);
        }
        self.say("address", format!("{} {first}", addresses.len()).trim_end());
    }

    /// What the agent wrote for it, by first words.
    pub fn lines(&self) -> BTreeMap<String, String> {
        let root = format!("/local/domain/{}/vmloop/page", self.domain);
        loop {
            let page = |number| self.store.read(self.domain, &format!("{root}/{number}"));
            let Ok(first) = page(0) else { return BTreeMap::new() };
            let (head, _) = first.split_once('\n').unwrap_or((&first, ""));
            let count: usize = head.split(' ').nth(1).expect("a count").parse().expect("a number");
            let all: Vec<_> = (0..count).map(page).collect();
            // Of another state of them: it has just been written.
            if !all.iter().flatten().all(|page| page.lines().next() == Some(head))
                || all.iter().any(Result::is_err)
            {
                continue;
            }
            let lines = all.iter().flatten().flat_map(|page| page.lines().skip(1));
            let two = lines.map(|line| line.split_once(' ').expect("two words"));
            return two.map(|(word, rest)| (word.to_owned(), rest.to_owned())).collect();
        }
    }

    /// Which state of its pages it is.
    pub fn generation(&self) -> Option<String> {
        let page = format!("/local/domain/{}/vmloop/page/0", self.domain);
        let page = self.store.read(self.domain, &page).ok()?;
        page.split(' ').next().map(str::to_owned)
    }

    /// One line of that.
    pub fn told(&self, word: &str) -> Option<String> {
        self.lines().remove(word)
    }

    /// What follows `about/` in the first words.
    pub fn list(&self, about: &str) -> Vec<String> {
        let name = |word: &String| {
            let name = word.strip_prefix(about)?.strip_prefix('/')?;
            (!name.contains('/')).then(|| name.to_owned())
        };
        self.lines().keys().filter_map(name).collect()
    }

    /// Words of `agent`, if it answers this incarnation.
    pub fn agent(&self) -> Option<Vec<String>> {
        let agent = self.told("agent")?;
        let words: Vec<String> = agent.split(' ').map(str::to_owned).collect();
        assert_eq!(words.len(), 9, "{agent}");
        let echo = u64::from_str_radix(&words[5], 16).expect("hexadecimal digits");
        (echo == self.incarnation).then_some(words)
    }

    pub fn peers(&self) -> Vec<String> {
        if self.agent().is_some() { self.list("peer") } else { Vec::new() }
    }

    /// Epoch and tag of a peer.
    pub fn peer(&self, peer: u32) -> Option<(u64, u32)> {
        let text = self.told(&format!("peer/{peer}"))?;
        let words: Vec<&str> = text.split(' ').collect();
        let epoch = u64::from_str_radix(words[0], 16).expect("hexadecimal digits");
        Some((epoch, words[1].parse().expect("a tag")))
    }

    pub fn want(&self, peer: u32) {
        let (epoch, _) = self.peer(peer).expect("a peer");
        self.say(&format!("want/{peer}"), &format!("{epoch:016x} 1"));
    }

    pub fn refused(&self, peer: u32) -> Option<(u32, u32)> {
        let text = self.told(&format!("refused/{peer}"))?;
        let words: Vec<u32> = text.split(' ').map(|word| word.parse().expect("a number")).collect();
        Some((words[0], words[2]))
    }

    /// Does what the agent says, as its worker would after a watch fired.
    pub fn work(&mut self) {
        if let Some(cookie) = self.told("stats")
            && self.answered.as_ref() != Some(&cookie)
        {
            for tag in self.channels.keys() {
                self.say(&format!("stats/{cookie}/{tag}"), "1 42 2 43 3 4 5 6");
            }
            self.say("stats", &cookie);
            self.answered = Some(cookie);
        }
        let tags: Vec<u32> =
            self.list("channel").iter().map(|tag| tag.parse().expect("a tag")).collect();
        let over: Vec<u32> =
            self.channels.keys().filter(|tag| !tags.contains(tag)).copied().collect();
        for tag in over {
            self.channels.remove(&tag);
            // It may never have answered.
            let _ = self.store.remove(self.domain, &self.own(&format!("channel/{tag}")));
        }
        for tag in tags {
            let Some(text) = self.told(&format!("channel/{tag}")) else { continue };
            let words: Vec<&str> = text.split(' ').collect();
            let before = self.channels.get(&tag).map(String::as_str);
            let answer = match words[2] {
                _ if !self.polite => continue,
                "make" | "map" if self.fail.is_some() => {
                    format!("fail {}", self.fail.unwrap_or_default())
                }
                "make" if before.is_none() => {
                    format!("offer {} {}", 1000 + tag, ports(tag).join(" "))
                }
                "map" if before.is_none() => {
                    assert_eq!(words[3], (1000 + tag).to_string());
                    assert_eq!(words[4..], ports(tag));
                    "up".into()
                }
                "close" if before != Some("closed") => "closed".into(),
                _ => continue,
            };
            if answer == "up" {
                self.were_up.push(tag);
            }
            self.say(&format!("channel/{tag}"), &answer);
            self.channels.insert(tag, answer);
        }
    }

    /// Sees in the region that the other side has let go.
    pub fn let_go(&mut self, tag: u32) {
        self.say(&format!("channel/{tag}"), "closed");
        self.channels.insert(tag, "closed".into());
    }

    /// Side 0 sees side 1 in the region.
    pub fn up(&mut self, tag: u32) {
        self.say(&format!("channel/{tag}"), "up");
        self.channels.insert(tag, "up".into());
        self.were_up.push(tag);
    }
}

/// The event channels of a channel: as many as there can be, and fewer.
pub fn ports(tag: u32) -> Vec<String> {
    (0..=tag % 9).map(|number| (20 + tag + number).to_string()).collect()
}

/// Waits for something that must happen soon.
#[track_caller]
pub fn wait(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !happened() {
        assert!(Instant::now() < deadline, "no {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
