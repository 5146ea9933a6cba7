// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The latest directory of a guest, between the broker, which makes it, and the guest's
//! task, which sends it; with what is new since the task took it last.
//!
//! What is new is found when the broker has both directories at hand. So the one that the
//! guest has is kept by nobody: a thousand guests that are slow to take theirs would double
//! what all directories take.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use vmloop_abi::directory::DirectoryEntry;

use crate::differences::{Differences, News};

/// A directory, shared between the broker and a guest's task; None while the
/// broker does not know enough yet.
pub type Directory = Option<Arc<Vec<DirectoryEntry>>>;

/// What is new; None while the task wants whole directories.
type Shared = Arc<Mutex<Option<News>>>;

fn lock(news: &Shared) -> MutexGuard<'_, Option<News>> {
    news.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The broker's end.
pub struct Teller {
    directory: watch::Sender<Directory>,
    news: Shared,
}

/// The task's end.
pub struct Latest {
    directory: watch::Receiver<Directory>,
    news: Shared,
}

/// Both ends, without a directory.
pub fn latest() -> (Teller, Latest) {
    let (sender, receiver) = watch::channel(None);
    let news = Shared::default();
    (Teller { directory: sender, news: news.clone() }, Latest { directory: receiver, news })
}

impl Teller {
    /// There is another directory than `old`, the one before; or the same, to be sent again.
    pub fn tell(&self, old: &[DirectoryEntry], new: Arc<Vec<DirectoryEntry>>) {
        let mut news = lock(&self.news);
        if let Some(news) = &mut *news {
            news.add(old, &new);
        }
        // Under the lock: who takes the one takes the other.
        self.directory.send_replace(Some(new));
    }
}

impl Latest {
    /// Waits for another directory than the one that was taken; false if there will be none.
    /// May be cancelled.
    pub async fn changed(&mut self) -> bool {
        self.directory.changed().await.is_ok()
    }

    /// Whether there is a directory.
    pub fn is_there(&self) -> bool {
        self.directory.borrow().is_some()
    }

    /// Says whether from now on what is new is to be known; what was is forgotten.
    pub fn wants_news(&mut self, wants: bool) {
        *lock(&self.news) = wants.then(News::default);
    }

    /// Takes the directory; with what is new since it was taken last, unless the whole says
    /// that better, or it was not wanted.
    pub fn take(&mut self) -> (Directory, Option<Differences>) {
        let mut news = lock(&self.news);
        let directory = self.directory.borrow_and_update().clone();
        let entries = directory.as_deref().map(Vec::as_slice).unwrap_or_default();
        let found = news.as_mut().and_then(|news| news.take(entries));
        (directory, found)
    }
}
