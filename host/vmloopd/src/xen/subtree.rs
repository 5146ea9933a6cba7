// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the agent says to a domain: what should stand in its subtree, and how it
//! comes to stand there, each change at once.

use std::time::Duration;

use tokio::join;
use tokio::time::sleep;
use tracing::warn;
use vmloop_abi::directory::DirectoryEntry;
use vmloop_xenstore::{Error, Transaction};

use super::nodes::{self, Lines};
use super::pages::{Draft, Written};
use super::present::Failed;
use super::serving::{Refusal, Serving};

/// How often a transaction is tried that meets others.
const TRIES: u32 = 10;

impl Serving {
    /// Whether enough is known: a guest that was there before the agent must
    /// not find its directory empty in between, and the broker is about to answer
    /// one that has just begun.
    pub(super) fn may_flush(&self) -> bool {
        self.entries.is_some() && (self.incarnation == 0 || self.welcomed)
    }

    fn desired(&self) -> Lines {
        let mut all = Lines::new();
        let epoch = self.epoch;
        let echo = if self.welcomed { self.incarnation } else { 0 };
        all.insert("epoch".into(), format!("{epoch:016x} {echo:016x}"));
        if let Some((idle_ms, ring_size)) = self.agent {
            let agent = nodes::Agent {
                agent: self.task.post.agent,
                id: self.task.domain.into(),
                epoch,
                echo,
                idle_ms,
                ring_size,
                name: self.name.clone(),
            };
            all.insert("agent".into(), agent.to_string());
        }
        // Who has not spoken does not read.
        if !self.welcomed {
            return all;
        }
        for (tag, link) in &self.links {
            if !self.dead.contains(tag) {
                all.insert(format!("channel/{tag}"), link.to_string());
            }
        }
        if let Some(entries) = &self.entries {
            // A channel that these modules do not know is none.
            let known = |entry: &DirectoryEntry| {
                let tag = if self.dead.contains(&entry.tag) { 0 } else { entry.tag };
                DirectoryEntry { tag, ..entry.clone() }
            };
            let entries: Vec<_> = entries.iter().map(known).collect();
            nodes::directory(&entries, &mut all);
        }
        for Refusal { peer, reason, retry_ms, sequence } in &self.refused {
            all.insert(format!("refused/{peer}"), format!("{reason} {retry_ms} {sequence}"));
        }
        if let Some(cookie) = self.cookie {
            all.insert("stats".into(), cookie.to_string());
        }
        all
    }

    /// Has what should stand there stand there.
    pub(super) async fn flush(&mut self) -> Result<(), Failed> {
        let desired = self.desired();
        if !self.flushed || desired != self.written.lines {
            match self.replace(desired).await {
                Ok(written) => self.written = written,
                Err(failed) => {
                    // It may be there all the same: no other state has its number.
                    self.written.generation = self.written.generation.wrapping_add(1);
                    return Err(failed);
                }
            }
        }
        self.flushed = true;
        self.dirty = false;
        Ok(())
    }

    /// Has its pages say something else, all at once.
    async fn replace(&self, lines: Lines) -> Result<Written, Failed> {
        let root = format!("{}/vmloop", self.home);
        let draft = Draft::new(self.written.generation.wrapping_add(1), lines);
        if self.flushed && draft.is_only(&self.written) {
            self.write_only(&root, &draft).await?;
            return Ok(draft.written());
        }
        let mut attempt = 0;
        loop {
            match self.write(&root, &draft).await {
                Err(Failed::Store(error)) if error.is_conflict() && attempt < TRIES => {
                    // Others get their turn.
                    sleep(Duration::from_millis(1 << attempt.min(6))).await;
                    attempt += 1;
                }
                other => return other.map(|()| draft.written()),
            }
        }
    }

    async fn write_only(&self, root: &str, draft: &Draft) -> Result<(), Failed> {
        let store = &self.task.store;
        let (written, there) = join!(biased; draft.write_only(store, root), store.few(&self.home));
        // It has brought back what the end of the domain had removed.
        if there?.is_some_and(|names| names == ["vmloop"]) {
            store.remove(&self.home).await?;
            return Err(Failed::Gone);
        }
        Ok(written?)
    }

    async fn write(&self, root: &str, draft: &Draft) -> Result<(), Failed> {
        let transaction = self.task.store.begin().await?;
        let writing = async {
            if !self.flushed {
                self.make(&transaction, root).await?;
            }
            draft.write(&transaction, root, &self.written).await
        };
        // A write would bring back what the end of the domain has removed.
        // XenStore does one thing after the other, so both may be on their way.
        let (there, written) = join!(biased; transaction.exists(&self.home), writing);
        if !there? {
            return Err(Failed::Gone);
        }
        written?;
        Ok(transaction.commit().await?)
    }

    /// Makes what the guest and we write below.
    async fn make(&self, transaction: &Transaction, root: &str) -> Result<(), Error> {
        // What is made below it later has the same permissions.
        let reader = format!("r{}", self.task.domain);
        transaction.make(root).await?;
        transaction.permit(root, &["n0", &reader]).await?;
        // The toolstack has made this one already, as a rule.
        let data = format!("{}/data", self.home);
        if !transaction.exists(&data).await? {
            let owner = format!("n{}", self.task.domain);
            transaction.make(&data).await?;
            transaction.permit(&data, &[&owner]).await?;
        }
        Ok(())
    }

    /// Leaves only the note that the guest is to be left alone.
    pub(super) async fn leave(&mut self) {
        let epoch = format!("{:016x} {:016x}", self.epoch, 0);
        let lines = Lines::from([("epoch".into(), epoch), ("detached".into(), "1".into())]);
        match self.replace(lines).await {
            Ok(_) | Err(Failed::Gone) => {}
            Err(Failed::Store(error)) => warn!(guest = self.name, %error, "detach"),
        }
    }
}
