// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is watched, and which of it changed.

use std::sync::Arc;

use crate::connection::{Changes, Connection, lock};
use crate::wire::{Error, kind, strings};

/// What is watched together, and which of it changed.
pub struct Subscription {
    connection: Connection,
    token: u64,
    changes: Arc<Changes>,
    paths: Vec<String>,
}

impl Subscription {
    /// One that watches nothing yet.
    pub(crate) fn new(connection: Connection) -> Self {
        let (token, changes) = connection.register();
        Self { connection, token, changes, paths: Vec::new() }
    }

    /// Watches a node and all below it. It counts as changed at once.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn watch(&mut self, path: &str) -> Result<(), Error> {
        let token = self.token.to_string();
        self.connection.request(kind::WATCH, 0, path, &strings(&[path, &token])).await?;
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
        self.connection.forget(self.token);
        let token = self.token.to_string();
        for path in &self.paths {
            // Fails only if XenStore hung up.
            let _ = self.connection.post(kind::UNWATCH, 0, &strings(&[path, &token]), None);
        }
    }
}
