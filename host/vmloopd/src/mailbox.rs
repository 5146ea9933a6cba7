// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A queue between two tasks that takes memory only while something is in it. Each of
//! ten thousand channels has three, which are nearly always empty; a queue of tokio's
//! has room for 32 things from the beginning.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

struct State<T> {
    queue: VecDeque<T>,
    /// One of the two ends is gone.
    ended: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    news: Notify,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where things are put.
pub struct Sender<T>(Arc<Shared<T>>);

/// Where they come out.
pub struct Receiver<T>(Arc<Shared<T>>);

/// An empty one.
pub fn mailbox<T>() -> (Sender<T>, Receiver<T>) {
    let state = Mutex::new(State { queue: VecDeque::new(), ended: false });
    let shared = Arc::new(Shared { state, news: Notify::new() });
    (Sender(shared.clone()), Receiver(shared))
}

impl<T> Sender<T> {
    /// Puts something; it is lost if nobody receives any more.
    pub fn send(&self, what: T) {
        let mut state = self.0.lock();
        if !state.ended {
            state.queue.push_back(what);
        }
        drop(state);
        self.0.news.notify_one();
    }
}

impl<T> Receiver<T> {
    /// Takes what was put first; None once the sender is gone and all was taken. May be
    /// cancelled.
    pub async fn recv(&mut self) -> Option<T> {
        loop {
            {
                let mut state = self.0.lock();
                if let Some(what) = state.queue.pop_front() {
                    if state.queue.is_empty() {
                        state.queue = VecDeque::new();
                    }
                    return Some(what);
                }
                if state.ended {
                    return None;
                }
            }
            self.0.news.notified().await;
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.news.notify_one();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.ended = true;
        state.queue = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn in_order_and_to_the_end() {
        let (sender, mut receiver) = mailbox();
        let taking = tokio::spawn(async move {
            let mut all = Vec::new();
            while let Some(number) = receiver.recv().await {
                all.push(number);
            }
            all
        });
        tokio::task::yield_now().await;
        for number in 0..100 {
            sender.send(number);
        }
        tokio::task::yield_now().await;
        sender.send(100);
        drop(sender);
        assert_eq!(taking.await.expect("a task"), (0..=100).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn nothing_is_kept() {
        let (sender, mut receiver) = mailbox();
        sender.send(1);
        assert_eq!(receiver.recv().await, Some(1));
        assert_eq!(sender.0.lock().queue.capacity(), 0);
        drop(receiver);
        sender.send(2);
        assert!(sender.0.lock().queue.is_empty());
    }
}
