// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Changes that are made together.

use crate::connection::Connection;
use crate::wire::{Error, kind, strings};

/// Changes that nobody sees before they are all made.
pub struct Transaction {
    connection: Connection,
    id: u32,
    open: bool,
}

impl Transaction {
    /// Begins one. Without a [`Transaction::commit`] it comes to nothing.
    pub(crate) async fn begin(connection: Connection) -> Result<Self, Error> {
        let what = "transaction";
        let answer = connection.request(kind::TRANSACTION_START, 0, what, &[0]).await?;
        let id = String::from_utf8_lossy(&answer)
            .trim_end_matches('\0')
            .parse()
            .map_err(|_| Error::Answer(what.into()))?;
        Ok(Self { connection, id, open: true })
    }

    /// Value of a node. If it changes before the end, so does the node's
    /// list of children, the transaction is a conflict.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn read(&self, path: &str) -> Result<Vec<u8>, Error> {
        self.connection.read(self.id, path).await
    }

    /// The same as text, of whatever encoding; None if it is not there.
    ///
    /// # Errors
    /// [`Error`], except that there is no such node.
    pub async fn text(&self, path: &str) -> Result<Option<String>, Error> {
        self.connection.text(self.id, path).await
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
        self.connection.write(self.id, path, value).await
    }

    /// Makes an empty node, if it is not there.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn make(&self, path: &str) -> Result<(), Error> {
        self.connection.request(kind::MKDIR, self.id, path, &strings(&[path])).await.map(drop)
    }

    /// Removes a node and all below it, if it is there.
    ///
    /// # Errors
    /// [`Error`], except that there is no such node.
    pub async fn remove(&self, path: &str) -> Result<(), Error> {
        self.connection.remove(self.id, path).await
    }

    /// Says who may do what: the owner and what others may, then exceptions,
    /// such as `n0` and `r5`.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn permit(&self, path: &str, permissions: &[&str]) -> Result<(), Error> {
        let mut parts = vec![path];
        parts.extend_from_slice(permissions);
        self.connection.request(kind::SET_PERMS, self.id, path, &strings(&parts)).await.map(drop)
    }

    /// Makes all changes at once.
    ///
    /// # Errors
    /// [`Error`]; nothing was changed then. See [`Error::is_conflict`].
    pub async fn commit(mut self) -> Result<(), Error> {
        self.open = false;
        let what = "transaction";
        self.connection.request(kind::TRANSACTION_END, self.id, what, b"T\0").await.map(drop)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.open {
            // Fails only if XenStore hung up, and then it is over anyway.
            let _ = self.connection.post(kind::TRANSACTION_END, self.id, b"F\0", None);
        }
    }
}
