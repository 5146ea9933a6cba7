// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A client of the QEMU Machine Protocol.
//!
//! Small and our own, as it must pass file descriptors with a command
//! (`getfd`), notice at once that QEMU is gone, and say why a socket is not
//! what the operator thinks it is. Written after
//! docs/interop/qmp-spec in QEMU's tree.

mod events;

pub use events::{Event, Events, Missed};

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};

use events::Listeners;

/// How long QEMU may take to greet.
const GREETING: Duration = Duration::from_secs(2);
/// Most bytes that may come up to the end of the greeting.
const GREETING_MAX: u64 = 64 << 10;
/// How long QEMU may take to answer a command. Its main loop can stand still
/// for a while, for instance while it writes to a slow disk.
const ANSWER: Duration = Duration::from_secs(10);
/// Bytes that are read at once, and room in bytes for a line that is kept: of a
/// thousand QEMUs hardly one says something at any time.
const BUFFER: usize = 512;
/// Longest line in bytes that is accepted.
const LINE_MAX: u64 = 16 << 20;

/// What can go wrong with a QMP socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such file.
    #[error("{0}: no such file")]
    NotFound(PathBuf),
    /// The path is something else than a socket.
    #[error("{0} is not a socket")]
    NotSocket(PathBuf),
    /// The file is there, the program behind it is not.
    #[error("nobody listens on {0}")]
    Refused(PathBuf),
    /// Any other failure to connect.
    #[error("{0}: {1}")]
    Connect(PathBuf, io::Error),
    /// Connected, but no greeting came.
    #[error("{0} accepts connections but says nothing")]
    Busy(PathBuf),
    /// What came is not a greeting.
    #[error("{0} does not speak QMP: it said {1:?}")]
    NotQmp(PathBuf, String),
    /// QEMU hung up.
    #[error("QEMU is gone")]
    Closed,
    /// QEMU did not answer in time.
    #[error("QEMU did not answer {0} within {secs} s", secs = ANSWER.as_secs())]
    Timeout(String),
    /// QEMU refused a command.
    #[error("{command}: {desc}")]
    Command {
        /// the command
        command: String,
        /// QEMU's class of the error
        class: String,
        /// QEMU's text
        desc: String,
    },
    /// QEMU's answer is not what the command should give.
    #[error("{0}: unexpected answer {1}")]
    Answer(String, Value),
}

impl Error {
    /// What the operator can do about it; may be empty.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NotFound(_) => {
                "give the path of QEMU's QMP socket; QEMU makes one with -qmp unix:PATH,server=on,wait=off"
            }
            Self::NotSocket(_) => {
                "give the socket that QEMU was started with: -qmp unix:PATH,server=on,wait=off"
            }
            Self::Refused(_) => {
                "the QEMU that made this socket has ended; start it, or remove the file"
            }
            Self::Busy(_) => {
                "is another client connected? QEMU talks to one at a time; give vmloopd a QMP socket of its own: -qmp unix:PATH,server=on,wait=off"
            }
            Self::NotQmp(..) => {
                "this is the socket of something else, perhaps QEMU's human monitor or a console; give the one of -qmp"
            }
            Self::Connect(_, error) if error.kind() == io::ErrorKind::PermissionDenied => {
                "vmloopd must be allowed to connect to it; see the permissions of the socket and of the directories above"
            }
            _ => "",
        }
    }

    /// Whether QEMU says that a device or object is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Command { class, desc, .. }
            if class == "DeviceNotFound" || desc.contains("not found"))
    }
}

/// Who waits for which answer: a value, or QEMU's class and text of an error.
type Waiting = HashMap<u64, oneshot::Sender<Result<Value, (String, String)>>>;
type Pending = Mutex<Waiting>;

struct Inner {
    stream: tokio::net::unix::OwnedWriteHalf,
    pending: Arc<Pending>,
    events: Weak<Listeners>,
    closed: Arc<watch::Sender<bool>>,
    next: AtomicU64,
    sending: tokio::sync::Mutex<()>,
}

/// A connection to a QEMU; clones share it.
#[derive(Clone)]
pub struct Qmp {
    inner: Arc<Inner>,
}

/// The place of an answer among those that are waited for, until nobody waits.
struct Awaited {
    qmp: Qmp,
    id: u64,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.qmp.pending().remove(&self.id);
    }
}

/// A command that was sent. One that is dropped is carried out all the same.
pub struct Asked {
    command: String,
    began: Instant,
    answer: oneshot::Receiver<Result<Value, (String, String)>>,
    _awaited: Awaited,
}

impl Asked {
    /// Waits for the answer: as long as for that of one command, from now on, since QEMU
    /// carries out those before it first.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub async fn answer(self) -> Result<Value, Error> {
        let Self { command, began, answer, _awaited } = self;
        let answer = timeout(ANSWER, answer).await;
        tracing::trace!(command, ms = began.elapsed().as_millis(), "answered");
        match answer {
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err((class, desc)))) => Err(Error::Command { command, class, desc }),
            Ok(Err(_)) => Err(Error::Closed),
            Err(_) => Err(Error::Timeout(command)),
        }
    }

    /// Waits for the answer to qom-list: names and types of what an object has;
    /// nothing if it is not there.
    ///
    /// # Errors
    /// As [`Qmp::execute`], other than that.
    pub async fn list(self) -> Result<Vec<(String, String)>, Error> {
        let value = match self.answer().await {
            Ok(value) => value,
            Err(Error::Command { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let entries = value.as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(entries
            .iter()
            .filter_map(|entry| {
                Some((
                    entry.get("name")?.as_str()?.to_owned(),
                    entry.get("type")?.as_str()?.to_owned(),
                ))
            })
            .collect())
    }
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// process id of whoever listens on the socket
    pub pid: u32,
    /// its user id
    pub uid: u32,
}

fn classify(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => Error::NotFound(path.into()),
        io::ErrorKind::ConnectionRefused => {
            use std::os::unix::fs::FileTypeExt;
            match std::fs::metadata(path) {
                Ok(meta) if !meta.file_type().is_socket() => Error::NotSocket(path.into()),
                _ => Error::Refused(path.into()),
            }
        }
        _ => Error::Connect(path.into(), error),
    }
}

impl Qmp {
    /// Connects, waits for the greeting, and leaves negotiation mode.
    ///
    /// # Errors
    /// [`Error`], with a hint for the operator.
    pub async fn connect(path: &Path) -> Result<(Self, Process), Error> {
        let stream = UnixStream::connect(path).await.map_err(|error| classify(path, error))?;
        let cred = stream.peer_cred().map_err(|error| Error::Connect(path.into(), error))?;
        let process = Process {
            pid: cred.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0),
            uid: cred.uid(),
        };
        let (read, write) = stream.into_split();
        let mut reader = BufReader::with_capacity(BUFFER, read);

        let mut first = Vec::new();
        match timeout(GREETING, greeting(&mut reader, &mut first)).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) | Err(_) if !first.is_empty() => {
                let said: String = String::from_utf8_lossy(&first).chars().take(40).collect();
                return Err(Error::NotQmp(path.into(), said.trim_end().into()));
            }
            Ok(Ok(false)) => return Err(Error::Refused(path.into())),
            Ok(Err(error)) => return Err(Error::Connect(path.into(), error)),
            Err(_) => return Err(Error::Busy(path.into())),
        }

        let closed = Arc::new(watch::Sender::new(false));
        let events = Arc::<Listeners>::default();
        let listeners = Arc::downgrade(&events);
        let pending = Arc::new(Pending::default());
        tokio::spawn(read_all(reader, pending.clone(), events, closed.clone()));
        let qmp = Self {
            inner: Arc::new(Inner {
                stream: write,
                pending,
                events: listeners,
                closed,
                next: AtomicU64::new(1),
                sending: tokio::sync::Mutex::new(()),
            }),
        };
        qmp.execute("qmp_capabilities", json!({})).await?;
        Ok((qmp, process))
    }

    /// Runs a command.
    ///
    /// # Errors
    /// [`Error::Command`] if QEMU refuses it, [`Error::Closed`] or
    /// [`Error::Timeout`] if it does not answer.
    pub async fn execute(&self, command: &str, arguments: Value) -> Result<Value, Error> {
        self.run(command, arguments, None).await
    }

    /// Runs a command with a file descriptor.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub async fn execute_with_fd(
        &self,
        command: &str,
        arguments: Value,
        fd: BorrowedFd<'_>,
    ) -> Result<Value, Error> {
        self.run(command, arguments, Some(fd)).await
    }

    async fn run(
        &self,
        command: &str,
        arguments: Value,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Value, Error> {
        self.ask(command, arguments, fd).await?.answer().await
    }

    /// Sends a command, perhaps with a descriptor, and waits for no answer: more can be
    /// sent before it comes. QEMU carries out in order what one caller sends, also
    /// after a command that it refuses.
    ///
    /// # Errors
    /// [`Error::Closed`] or [`Error::Timeout`]
    pub async fn ask(
        &self,
        command: &str,
        arguments: Value,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Asked, Error> {
        let id = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let (tx, answer) = oneshot::channel();
        self.pending().insert(id, tx);
        let awaited = Awaited { qmp: self.clone(), id };
        if *self.inner.closed.borrow() {
            return Err(Error::Closed);
        }
        let began = Instant::now();
        let mut line = json!({"execute": command, "arguments": arguments, "id": id}).to_string();
        line.push('\n');
        match timeout(ANSWER, self.send(line.as_bytes(), fd)).await {
            Ok(Ok(())) => Ok(Asked { command: command.into(), began, answer, _awaited: awaited }),
            Ok(Err(_)) => Err(Error::Closed),
            Err(_) => Err(Error::Timeout(command.into())),
        }
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.inner.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a line; the descriptor travels with its first byte.
    async fn send(&self, line: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let _turn = self.inner.sending.lock().await;
        let stream: &UnixStream = self.inner.stream.as_ref();
        let mut done = 0;
        while done < line.len() {
            done += stream
                .async_io(Interest::WRITABLE, || {
                    let fds: Vec<BorrowedFd<'_>> =
                        fd.iter().filter(|_| done == 0).copied().collect();
                    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                    let mut control = SendAncillaryBuffer::new(&mut space);
                    if !fds.is_empty() {
                        control.push(SendAncillaryMessage::ScmRights(&fds));
                    }
                    Ok(rustix::net::sendmsg(
                        stream.as_fd(),
                        &[IoSlice::new(&line[done..])],
                        &mut control,
                        SendFlags::NOSIGNAL,
                    )?)
                })
                .await?;
        }
        Ok(())
    }

    /// What QEMU says unasked, from now on.
    pub fn events(&self) -> Events {
        self.inner.events.upgrade().unwrap_or_default().listen()
    }

    /// Returns when QEMU has hung up.
    pub async fn closed(&self) {
        let mut closed = self.inner.closed.subscribe();
        // An error means that the reader is gone, which is the same.
        let _ = closed.wait_for(|closed| *closed).await;
    }

    /// Whether QEMU has hung up.
    pub fn is_closed(&self) -> bool {
        *self.inner.closed.borrow()
    }

    /// Holds QEMU for gone, whatever the socket says.
    pub fn abandon(&self) {
        self.inner.closed.send_replace(true);
        self.pending().clear();
    }

    /// A property of an object.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub async fn get(&self, path: &str, property: &str) -> Result<Value, Error> {
        self.execute("qom-get", json!({"path": path, "property": property})).await
    }

    /// A property of an object that is text; empty if it is not there.
    ///
    /// # Errors
    /// As [`Qmp::execute`], other than that.
    pub async fn get_text(&self, path: &str, property: &str) -> Result<String, Error> {
        match self.get(path, property).await {
            Ok(value) => Ok(value.as_str().unwrap_or_default().to_owned()),
            Err(Error::Command { .. }) => Ok(String::new()),
            Err(error) => Err(error),
        }
    }

    /// Names and types of what an object has; nothing if it is not there.
    ///
    /// # Errors
    /// As [`Qmp::execute`], other than that.
    pub async fn list(&self, path: &str) -> Result<Vec<(String, String)>, Error> {
        self.ask_list(path).await?.list().await
    }

    /// The same without waiting for it: [`Asked::list`] does.
    ///
    /// # Errors
    /// As [`Qmp::ask`].
    pub async fn ask_list(&self, path: &str) -> Result<Asked, Error> {
        self.ask("qom-list", json!({"path": path}), None).await
    }
}

/// Reads until QEMU greets; false if what comes is something else, or ends.
/// `first` is the line that decided it, and keeps what came of it when the
/// caller no longer waits.
///
/// An event may come before the greeting, and the answer to a command of an
/// earlier client: QEMU lets a new one in before it forgets the last one.
async fn greeting(reader: &mut BufReader<OwnedReadHalf>, first: &mut Vec<u8>) -> io::Result<bool> {
    let mut reader = reader.take(GREETING_MAX);
    loop {
        first.clear();
        reader.read_until(b'\n', first).await?;
        let Ok(message) = serde_json::from_slice::<Value>(first) else { return Ok(false) };
        if message.get("QMP").is_some() {
            return Ok(true);
        }
        if !["event", "return", "error"].iter().any(|key| message.get(key).is_some()) {
            return Ok(false);
        }
    }
}

/// Reads what QEMU says until it hangs up.
async fn read_all(
    mut reader: BufReader<OwnedReadHalf>,
    pending: Arc<Pending>,
    events: Arc<Listeners>,
    closed: Arc<watch::Sender<bool>>,
) {
    let mut line = Vec::new();
    loop {
        line.clear();
        line.shrink_to(BUFFER);
        match (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => break,
            Ok(_) if !line.ends_with(b"\n") => break,
            Ok(_) => {}
        }
        let Ok(mut message) = serde_json::from_slice::<Value>(&line) else {
            tracing::debug!("QMP: a line that is not JSON");
            continue;
        };
        if let Some(name) = message.get("event").and_then(Value::as_str) {
            let event = Event {
                name: name.to_owned(),
                data: message.get("data").cloned().unwrap_or(Value::Null),
            };
            events.tell(&event);
            continue;
        }
        let Some(id) = message.get("id").and_then(Value::as_u64) else { continue };
        let sender = pending.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        let Some(sender) = sender else { continue };
        let text = |error: &Value, key: &str| {
            error.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        // An error means that the caller gave up.
        let _ = sender.send(match message.get("error") {
            Some(error) => Err((text(error, "class"), text(error, "desc"))),
            None => Ok(message.get_mut("return").map_or(Value::Null, Value::take)),
        });
    }
    closed.send_replace(true);
    pending.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
