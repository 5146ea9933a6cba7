// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The connection to XenStore, which requests of many tasks share. Events of
//! watches are gathered, each path once, so that a guest that writes without end
//! costs a bounded amount of memory, and its own task's time alone.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::{debug, error, trace};
use vmloop_abi::readiness::readable_and_writable;

use crate::wire::{Error, HEADER, PAYLOAD_MAX, kind, strings};

/// Paths that wait to be looked at, in one subscription; beyond it all of
/// what it watches counts as changed.
const PENDING_MAX: usize = 512;

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

/// A connection. Clones share it.
#[derive(Clone)]
pub(crate) struct Connection {
    inner: Arc<Inner>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// Speaks over a socket, or the kernel's device.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        let fd = Arc::new(readable_and_writable(fd)?);
        let (out, queue) = mpsc::unbounded_channel();
        let inner = Arc::new(Inner {
            out,
            next_request: AtomicU32::new(1),
            next_subscription: AtomicU64::new(1),
            state: Mutex::default(),
            closed: watch::channel(false).0,
        });
        let connection = Self { inner };
        tokio::spawn(send_all(fd.clone(), queue, Arc::downgrade(&connection.inner)));
        tokio::spawn(receive_all(fd, Arc::downgrade(&connection.inner)));
        Ok(connection)
    }

    /// Returns when XenStore has hung up.
    pub(crate) async fn closed(&self) {
        let mut closed = self.inner.closed.subscribe();
        // Fails only if the sender is gone, and we hold it.
        let _ = closed.wait_for(|closed| *closed).await;
    }

    /// Sends a request, without waiting for an answer.
    pub(crate) fn post(
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

    /// Sends a request, and waits for the answer.
    pub(crate) async fn request(
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
        if of == kind::ERROR {
            let name = String::from_utf8_lossy(&payload).trim_end_matches('\0').to_owned();
            return Err(Error::Refused(name, what.into()));
        }
        Err(Error::Answer(what.into()))
    }

    /// A place for changes, and the token by which XenStore tells of them.
    pub(crate) fn register(&self) -> (u64, Arc<Changes>) {
        let token = self.inner.next_subscription.fetch_add(1, Ordering::Relaxed);
        let changes = Arc::new(Changes::default());
        lock(&self.inner.state).subscriptions.insert(token, Arc::downgrade(&changes));
        (token, changes)
    }

    /// Undoes [`Connection::register`].
    pub(crate) fn forget(&self, token: u64) {
        lock(&self.inner.state).subscriptions.remove(&token);
    }

    /// Value of a node.
    pub(crate) async fn read(&self, transaction: u32, path: &str) -> Result<Vec<u8>, Error> {
        self.request(kind::READ, transaction, path, &strings(&[path])).await
    }

    /// Value of a node as text; None if it is not there.
    pub(crate) async fn text(&self, transaction: u32, path: &str) -> Result<Option<String>, Error> {
        match self.read(transaction, path).await {
            Ok(value) => Ok(Some(String::from_utf8_lossy(&value).into_owned())),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets a node's value.
    pub(crate) async fn write(
        &self,
        transaction: u32,
        path: &str,
        value: &str,
    ) -> Result<(), Error> {
        let mut payload = strings(&[path]);
        payload.extend_from_slice(value.as_bytes());
        self.request(kind::WRITE, transaction, path, &payload).await.map(drop)
    }

    /// Removes a node, if it is there.
    pub(crate) async fn remove(&self, transaction: u32, path: &str) -> Result<(), Error> {
        match self.request(kind::RM, transaction, path, &strings(&[path])).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Paths that changed.
#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) paths: BTreeSet<String>,
    pub(crate) all: bool,
}

/// Where changes are gathered, and who waits for them.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) pending: Mutex<Pending>,
    pub(crate) notify: Notify,
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
        if kind == kind::WATCH_EVENT {
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
