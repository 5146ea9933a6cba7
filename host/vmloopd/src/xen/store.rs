// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A client of XenStore: its wire protocol (xen/include/public/io/xs_wire.h
//! and docs/misc/xenstore.txt in Xen's tree) over xenstored's socket or the
//! kernel's device, with watches and transactions.
//!
//! Requests of many tasks share one connection. Events of watches are
//! gathered, each path once, so that a guest that writes without end costs a
//! bounded amount of memory, and its own task's time alone.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::{debug, error, trace};
use vmloop_abi::readiness::readable_and_writable;

/// Longest payload of a message.
pub const PAYLOAD_MAX: usize = 4096;
const HEADER: usize = 16;
/// Paths that wait to be looked at, in one subscription; beyond it all of
/// what it watches counts as changed.
const PENDING_MAX: usize = 512;

/// Kinds of messages, as xs_wire.h numbers them.
pub mod kind {
    /// children of a node
    pub const DIRECTORY: u32 = 1;
    /// value of a node
    pub const READ: u32 = 2;
    /// who may do what with a node
    pub const GET_PERMS: u32 = 3;
    /// tell of changes at and below a node
    pub const WATCH: u32 = 4;
    /// no more
    pub const UNWATCH: u32 = 5;
    /// begin a transaction
    pub const TRANSACTION_START: u32 = 6;
    /// end one
    pub const TRANSACTION_END: u32 = 7;
    /// set a value
    pub const WRITE: u32 = 11;
    /// make an empty node
    pub const MKDIR: u32 = 12;
    /// remove a node with all below it
    pub const RM: u32 = 13;
    /// say who may do what with a node
    pub const SET_PERMS: u32 = 14;
    /// something changed
    pub const WATCH_EVENT: u32 = 15;
    /// the answer to what failed
    pub const ERROR: u32 = 16;
    /// whether xenstored knows a domain
    pub const IS_DOMAIN_INTRODUCED: u32 = 17;
    /// children of a node that has many
    pub const DIRECTORY_PART: u32 = 22;
}

/// Why XenStore did not do something.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It said no, with the name of an error, such as `ENOENT`.
    #[error("XenStore: {1}: {0}")]
    Refused(String, String),
    /// A path or value is too long.
    #[error("XenStore: {0} is too long")]
    TooLong(String),
    /// It sent something that makes no sense.
    #[error("XenStore: {0}: an answer that makes no sense")]
    Answer(String),
    /// It hung up.
    #[error("XenStore hung up")]
    Closed,
}

impl Error {
    fn is(&self, name: &str) -> bool {
        matches!(self, Self::Refused(error, _) if error == name)
    }

    /// There is no such node.
    pub fn is_not_found(&self) -> bool {
        self.is("ENOENT")
    }

    /// The transaction met another one; try it again.
    pub fn is_conflict(&self) -> bool {
        self.is("EAGAIN")
    }
}

type Answer = (u32, Vec<u8>);

#[derive(Default)]
struct State {
    waiting: HashMap<u32, oneshot::Sender<Answer>>,
    subscriptions: HashMap<u64, Weak<Changes>>,
    closed: bool,
}

struct Inner {
    out: mpsc::UnboundedSender<Vec<u8>>,
    next_request: AtomicU32,
    next_subscription: AtomicU64,
    state: Mutex<State>,
    closed: watch::Sender<bool>,
}

/// A connection to XenStore. Clones share it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where XenStore may be, in the order in which to try.
pub fn places() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("XENSTORED_PATH") {
        return vec![path.into()];
    }
    let sockets = ["/run/xenstored/socket", "/var/run/xenstored/socket"];
    let devices = ["/dev/xen/xenbus", "/proc/xen/xenbus"];
    sockets.into_iter().chain(devices).map(PathBuf::from).collect()
}

impl Store {
    /// Connects to the first place where somebody answers.
    ///
    /// # Errors
    /// A text that says what to do.
    pub fn connect() -> anyhow::Result<Self> {
        let mut tried = Vec::new();
        for path in places() {
            match Self::connect_to(&path) {
                Ok(store) => return Ok(store),
                Err(error) => tried.push(format!("{}: {error}", path.display())),
            }
        }
        anyhow::bail!(
            "no XenStore ({})\n  on a Xen host, as root: systemctl start xenstored (Debian: xen)\n  on another host: --hypervisor qemu",
            tried.join("; ")
        )
    }

    /// Connects to a socket, or a device, at a path.
    ///
    /// # Errors
    /// Those of connect(2) or open(2).
    pub fn connect_to(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::FileTypeExt;
        let fd: OwnedFd = if std::fs::metadata(path)?.file_type().is_socket() {
            let socket = UnixStream::connect(path)?;
            socket.set_nonblocking(true)?;
            socket.into()
        } else {
            use rustix::fs::{Mode, OFlags};
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
            rustix::fs::open(path, flags, Mode::empty())?
        };
        Self::new(fd)
    }

    fn new(fd: OwnedFd) -> io::Result<Self> {
        let fd = Arc::new(readable_and_writable(fd)?);
        let (out, queue) = mpsc::unbounded_channel();
        let inner = Arc::new(Inner {
            out,
            next_request: AtomicU32::new(1),
            next_subscription: AtomicU64::new(1),
            state: Mutex::default(),
            closed: watch::channel(false).0,
        });
        let store = Self { inner };
        tokio::spawn(send_all(fd.clone(), queue, Arc::downgrade(&store.inner)));
        tokio::spawn(receive_all(fd, Arc::downgrade(&store.inner)));
        Ok(store)
    }

    /// Returns when XenStore has hung up.
    pub async fn closed(&self) {
        let mut closed = self.inner.closed.subscribe();
        // Fails only if the sender is gone, and we hold it.
        let _ = closed.wait_for(|closed| *closed).await;
    }

    /// Sends a request, without waiting for an answer.
    fn post(
        &self,
        kind: u32,
        transaction: u32,
        payload: &[u8],
        answer: Option<oneshot::Sender<Answer>>,
    ) -> Result<(), Error> {
        let id = self.inner.next_request.fetch_add(1, Ordering::Relaxed);
        let mut message = Vec::with_capacity(HEADER + payload.len());
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        for word in [kind, id, transaction, length] {
            message.extend_from_slice(&word.to_ne_bytes());
        }
        message.extend_from_slice(payload);
        let mut state = lock(&self.inner.state);
        if state.closed {
            return Err(Error::Closed);
        }
        if let Some(answer) = answer {
            state.waiting.insert(id, answer);
        }
        // Under the lock, so that nobody waits for what was never sent.
        self.inner.out.send(message).map_err(|_| Error::Closed)
    }

    async fn request(
        &self,
        kind: u32,
        transaction: u32,
        what: &str,
        payload: &[u8],
    ) -> Result<Vec<u8>, Error> {
        if payload.len() > PAYLOAD_MAX {
            return Err(Error::TooLong(what.into()));
        }
        let began = Instant::now();
        let (answer, answered) = oneshot::channel();
        self.post(kind, transaction, payload, Some(answer))?;
        let (of, payload) = answered.await.map_err(|_| Error::Closed)?;
        trace!(kind, what, ms = began.elapsed().as_millis(), "answered");
        if of == kind {
            return Ok(payload);
        }
        if of == self::kind::ERROR {
            let name = String::from_utf8_lossy(&payload).trim_end_matches('\0').to_owned();
            return Err(Error::Refused(name, what.into()));
        }
        Err(Error::Answer(what.into()))
    }

    /// Value of a node.
    ///
    /// # Errors
    /// [`Error`]; see [`Error::is_not_found`].
    pub async fn read(&self, path: &str) -> Result<Vec<u8>, Error> {
        read(self, 0, path).await
    }

    /// Value of a node as text, of whatever encoding; None if it is not there.
    ///
    /// # Errors
    /// [`Error`], except that there is no such node.
    pub async fn text(&self, path: &str) -> Result<Option<String>, Error> {
        text(self.read(path).await)
    }

    /// Names of a node's children, if they fit one answer; none if it is not
    /// there.
    ///
    /// # Errors
    /// [`Error`], except that there is no such node.
    pub async fn few(&self, path: &str) -> Result<Option<Vec<String>>, Error> {
        match self.request(kind::DIRECTORY, 0, path, &strings(&[path])).await {
            Ok(names) => Ok(Some(split(&names))),
            Err(error) if error.is_not_found() => Ok(Some(Vec::new())),
            Err(error) if error.is("E2BIG") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Names of a node's children, however many; none if it is not there.
    ///
    /// # Errors
    /// [`Error`], except that there is no such node.
    pub async fn directory(&self, path: &str) -> Result<Vec<String>, Error> {
        if let Some(names) = self.few(path).await? {
            return Ok(names);
        }
        // In parts: the number of the directory's state, then names, then an
        // empty one at the end.
        'again: loop {
            let mut names: Vec<u8> = Vec::new();
            let mut state: Option<Vec<u8>> = None;
            loop {
                let offset = names.len().to_string();
                let payload = strings(&[path, &offset]);
                let part = self.request(kind::DIRECTORY_PART, 0, path, &payload).await?;
                let end = part.iter().position(|byte| *byte == 0);
                let (of, rest) = part.split_at(end.ok_or_else(|| Error::Answer(path.into()))?);
                if state.get_or_insert_with(|| of.to_vec()) != of {
                    continue 'again;
                }
                let rest = &rest[1..];
                if rest.is_empty() {
                    return Err(Error::Answer(path.into()));
                }
                if rest == [0] || rest.ends_with(&[0, 0]) {
                    names.extend_from_slice(rest);
                    return Ok(split(&names));
                }
                names.extend_from_slice(rest);
            }
        }
    }

    /// Sets a node's value; makes it, and those above it, if need be.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn write(&self, path: &str, value: &str) -> Result<(), Error> {
        write(self, 0, path, value).await
    }

    /// Removes a node and all below it, if it is there.
    ///
    /// # Errors
    /// [`Error`], except that there is no such node.
    pub async fn remove(&self, path: &str) -> Result<(), Error> {
        remove(self, 0, path).await
    }

    /// Whether a domain lives, as far as xenstored knows.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn is_introduced(&self, domain: u32) -> Result<bool, Error> {
        let number = domain.to_string();
        let answer =
            self.request(kind::IS_DOMAIN_INTRODUCED, 0, "domain", &strings(&[&number])).await?;
        Ok(answer.first() == Some(&b'T'))
    }

    /// Begins a transaction. Without a [`Transaction::commit`] it comes to
    /// nothing.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn begin(&self) -> Result<Transaction, Error> {
        let what = "transaction";
        let answer = self.request(kind::TRANSACTION_START, 0, what, &[0]).await?;
        let id = String::from_utf8_lossy(&answer)
            .trim_end_matches('\0')
            .parse()
            .map_err(|_| Error::Answer(what.into()))?;
        Ok(Transaction { store: self.clone(), id, open: true })
    }

    /// A subscription that watches nothing yet.
    pub fn subscribe(&self) -> Subscription {
        let id = self.inner.next_subscription.fetch_add(1, Ordering::Relaxed);
        let changes = Arc::new(Changes::default());
        lock(&self.inner.state).subscriptions.insert(id, Arc::downgrade(&changes));
        Subscription { store: self.clone(), token: id, changes, paths: Vec::new() }
    }
}

/// Strings with a zero behind each.
fn split(bytes: &[u8]) -> Vec<String> {
    bytes
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .filter_map(|name| String::from_utf8(name.to_vec()).ok())
        .collect()
}

/// Each string with a zero behind it.
fn strings(parts: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts {
        out.extend_from_slice(part.as_bytes());
        out.push(0);
    }
    out
}

async fn read(store: &Store, transaction: u32, path: &str) -> Result<Vec<u8>, Error> {
    store.request(kind::READ, transaction, path, &strings(&[path])).await
}

fn text(value: Result<Vec<u8>, Error>) -> Result<Option<String>, Error> {
    match value {
        Ok(value) => Ok(Some(String::from_utf8_lossy(&value).into_owned())),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

async fn write(store: &Store, transaction: u32, path: &str, value: &str) -> Result<(), Error> {
    let mut payload = strings(&[path]);
    payload.extend_from_slice(value.as_bytes());
    store.request(kind::WRITE, transaction, path, &payload).await.map(drop)
}

async fn remove(store: &Store, transaction: u32, path: &str) -> Result<(), Error> {
    match store.request(kind::RM, transaction, path, &strings(&[path])).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Changes that nobody sees before they are all made.
pub struct Transaction {
    store: Store,
    id: u32,
    open: bool,
}

impl Transaction {
    /// Value of a node. If it changes before the end, so does the node's
    /// list of children, the transaction is a conflict.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn read(&self, path: &str) -> Result<Vec<u8>, Error> {
        read(&self.store, self.id, path).await
    }

    /// The same as text, of whatever encoding; None if it is not there.
    ///
    /// # Errors
    /// [`Error`], except that there is no such node.
    pub async fn text(&self, path: &str) -> Result<Option<String>, Error> {
        text(self.read(path).await)
    }

    /// Whether a node is there.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn exists(&self, path: &str) -> Result<bool, Error> {
        self.text(path).await.map(|found| found.is_some())
    }

    /// Sets a node's value; makes it, and those above it, if need be.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn write(&self, path: &str, value: &str) -> Result<(), Error> {
        write(&self.store, self.id, path, value).await
    }

    /// Makes an empty node, if it is not there.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn make(&self, path: &str) -> Result<(), Error> {
        self.store.request(kind::MKDIR, self.id, path, &strings(&[path])).await.map(drop)
    }

    /// Removes a node and all below it, if it is there.
    ///
    /// # Errors
    /// [`Error`], except that there is no such node.
    pub async fn remove(&self, path: &str) -> Result<(), Error> {
        remove(&self.store, self.id, path).await
    }

    /// Says who may do what: the owner and what others may, then exceptions,
    /// such as `n0` and `r5`.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn permit(&self, path: &str, permissions: &[&str]) -> Result<(), Error> {
        let mut parts = vec![path];
        parts.extend_from_slice(permissions);
        self.store.request(kind::SET_PERMS, self.id, path, &strings(&parts)).await.map(drop)
    }

    /// Makes all changes at once.
    ///
    /// # Errors
    /// [`Error`]; nothing was changed then. See [`Error::is_conflict`].
    pub async fn commit(mut self) -> Result<(), Error> {
        self.open = false;
        let what = "transaction";
        self.store.request(kind::TRANSACTION_END, self.id, what, b"T\0").await.map(drop)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.open {
            // Fails only if XenStore hung up, and then it is over anyway.
            let _ = self.store.post(kind::TRANSACTION_END, self.id, b"F\0", None);
        }
    }
}

#[derive(Default)]
struct Pending {
    paths: BTreeSet<String>,
    all: bool,
}

#[derive(Default)]
struct Changes {
    pending: Mutex<Pending>,
    notify: Notify,
}

/// What is watched together, and which of it changed.
pub struct Subscription {
    store: Store,
    token: u64,
    changes: Arc<Changes>,
    paths: Vec<String>,
}

impl Subscription {
    /// Watches a node and all below it. It counts as changed at once.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn watch(&mut self, path: &str) -> Result<(), Error> {
        let token = self.token.to_string();
        self.store.request(kind::WATCH, 0, path, &strings(&[path, &token])).await?;
        self.paths.push(path.into());
        Ok(())
    }

    /// Returns when something has changed that was not taken yet.
    pub async fn changed(&self) {
        loop {
            let notified = self.changes.notify.notified();
            {
                let pending = lock(&self.changes.pending);
                if pending.all || !pending.paths.is_empty() {
                    return;
                }
            }
            notified.await;
        }
    }

    /// Takes paths that changed, `most` at the most; None if so much changed
    /// that all should be looked at.
    pub fn take(&self, most: usize) -> Option<Vec<String>> {
        let mut pending = lock(&self.changes.pending);
        if std::mem::take(&mut pending.all) {
            pending.paths.clear();
            return None;
        }
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(path) = pending.paths.pop_first()
        {
            taken.push(path);
        }
        Some(taken)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        lock(&self.store.inner.state).subscriptions.remove(&self.token);
        let token = self.token.to_string();
        for path in &self.paths {
            // Fails only if XenStore hung up.
            let _ = self.store.post(kind::UNWATCH, 0, &strings(&[path, &token]), None);
        }
    }
}

/// Marks the connection as ended; everybody who waits hears of it.
fn end(inner: &Weak<Inner>) {
    let Some(inner) = inner.upgrade() else { return };
    {
        let mut state = lock(&inner.state);
        state.closed = true;
        state.waiting.clear();
    }
    inner.closed.send_replace(true);
}

async fn send_all(
    fd: Arc<AsyncFd<OwnedFd>>,
    mut queue: mpsc::UnboundedReceiver<Vec<u8>>,
    inner: Weak<Inner>,
) {
    while let Some(message) = queue.recv().await {
        if let Err(error) = send(&fd, &message).await {
            error!(%error, "XenStore");
            break;
        }
    }
    end(&inner);
}

async fn send(fd: &AsyncFd<OwnedFd>, message: &[u8]) -> io::Result<()> {
    let mut rest = message;
    while !rest.is_empty() {
        // The device never says that it can be written to: try first.
        match rustix::io::write(fd, rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => rest = &rest[n..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let mut ready = fd.writable().await?;
                match ready.try_io(|fd| Ok(rustix::io::write(fd, rest)?)) {
                    Ok(written) => rest = &rest[written?..],
                    Err(_not_yet) => {}
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn receive_all(fd: Arc<AsyncFd<OwnedFd>>, inner: Weak<Inner>) {
    let mut buffer = Vec::new();
    let why = loop {
        let mut bytes = [0; HEADER + PAYLOAD_MAX];
        let Ok(mut ready) = fd.readable().await else { break "cannot be read" };
        let read = match ready.try_io(|fd| Ok(rustix::io::read(fd, &mut bytes)?)) {
            Err(_not_yet) => continue,
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(Err(_)) => break "cannot be read",
            Ok(Ok(0)) => break "hung up",
            Ok(Ok(read)) => read,
        };
        buffer.extend_from_slice(&bytes[..read]);
        let Some(inner) = inner.upgrade() else { return };
        if !deliver(&inner, &mut buffer) {
            break "makes no sense";
        }
    };
    debug!(why, "XenStore");
    end(&inner);
}

/// Hands out whole messages; false if there cannot be any.
fn deliver(inner: &Inner, buffer: &mut Vec<u8>) -> bool {
    let mut start = 0;
    while buffer.len() - start >= HEADER {
        let word = |index: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&buffer[start + 4 * index..start + 4 * index + 4]);
            u32::from_ne_bytes(bytes)
        };
        let (kind, id, length) = (word(0), word(1), word(3) as usize);
        if length > PAYLOAD_MAX {
            return false;
        }
        if buffer.len() - start < HEADER + length {
            break;
        }
        let payload = &buffer[start + HEADER..start + HEADER + length];
        start += HEADER + length;
        if kind == self::kind::WATCH_EVENT {
            event(inner, payload);
            continue;
        }
        // Without anybody who waits it is the answer to an UNWATCH, say.
        if let Some(answer) = lock(&inner.state).waiting.remove(&id) {
            // Fails only if whoever waited does no more.
            let _ = answer.send((kind, payload.to_vec()));
        }
    }
    buffer.drain(..start);
    true
}

fn event(inner: &Inner, payload: &[u8]) {
    let mut parts = payload.split(|byte| *byte == 0);
    let (Some(path), Some(token)) = (parts.next(), parts.next()) else { return };
    let (Ok(path), Ok(token)) = (std::str::from_utf8(path), std::str::from_utf8(token)) else {
        return;
    };
    let Ok(token) = token.parse::<u64>() else { return };
    let Some(changes) = lock(&inner.state).subscriptions.get(&token).and_then(Weak::upgrade) else {
        return;
    };
    {
        let mut pending = lock(&changes.pending);
        if pending.paths.len() >= PENDING_MAX {
            pending.all = true;
            pending.paths.clear();
        }
        if !pending.all {
            pending.paths.insert(path.to_owned());
        }
    }
    changes.notify.notify_one();
}
