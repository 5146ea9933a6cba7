// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A client of XenStore: its wire protocol (xen/include/public/io/xs_wire.h
//! and docs/misc/xenstore.txt in Xen's tree) over xenstored's socket or the
//! kernel's device, with watches and transactions.

mod connection;
mod subscription;
mod transaction;
mod wire;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use connection::Connection;
pub use subscription::Subscription;
pub use transaction::Transaction;
pub use wire::{Error, PAYLOAD_MAX, kind};
use wire::{split, strings};

/// A connection to XenStore. Clones share it.
#[derive(Clone)]
pub struct Store {
    connection: Connection,
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
        Ok(Self { connection: Connection::new(fd)? })
    }

    /// Returns when XenStore has hung up.
    pub async fn closed(&self) {
        self.connection.closed().await;
    }

    /// Value of a node.
    ///
    /// # Errors
    /// [`Error`]; see [`Error::is_not_found`].
    pub async fn read(&self, path: &str) -> Result<Vec<u8>, Error> {
        self.connection.read(0, path).await
    }

    /// Value of a node as text, of whatever encoding; None if it is not there.
    ///
    /// # Errors
    /// [`Error`], except that there is no such node.
    pub async fn text(&self, path: &str) -> Result<Option<String>, Error> {
        self.connection.text(0, path).await
    }

    /// Names of a node's children, if they fit one answer; none if it is not
    /// there.
    ///
    /// # Errors
    /// [`Error`], except that there is no such node.
    pub async fn few(&self, path: &str) -> Result<Option<Vec<String>>, Error> {
        match self.connection.request(kind::DIRECTORY, 0, path, &strings(&[path])).await {
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
                let part = self.connection.request(kind::DIRECTORY_PART, 0, path, &payload).await?;
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
        self.connection.write(0, path, value).await
    }

    /// Removes a node and all below it, if it is there.
    ///
    /// # Errors
    /// [`Error`], except that there is no such node.
    pub async fn remove(&self, path: &str) -> Result<(), Error> {
        self.connection.remove(0, path).await
    }

    /// Whether a domain lives, as far as xenstored knows.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn is_introduced(&self, domain: u32) -> Result<bool, Error> {
        let number = domain.to_string();
        let answer = self
            .connection
            .request(kind::IS_DOMAIN_INTRODUCED, 0, "domain", &strings(&[&number]))
            .await?;
        Ok(answer.first() == Some(&b'T'))
    }

    /// Begins a transaction. Without a [`Transaction::commit`] it comes to
    /// nothing.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn begin(&self) -> Result<Transaction, Error> {
        Transaction::begin(self.connection.clone()).await
    }

    /// A subscription that watches nothing yet.
    pub fn subscribe(&self) -> Subscription {
        Subscription::new(self.connection.clone())
    }
}
