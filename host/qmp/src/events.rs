// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a QEMU says unasked, for all who listen. A queue takes memory only while
//! something is in it: an agent has a thousand that are nearly always empty.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde_json::Value;
use tokio::sync::Notify;

/// Most events that wait for one listener.
const WAITING: usize = 256;
/// Room for so many is kept when a queue is empty.
const KEPT: usize = 4;

/// Something that QEMU said unasked.
#[derive(Clone, Debug)]
pub struct Event {
    /// such as `DEVICE_DELETED`
    pub name: String,
    /// what comes with it; null if nothing
    pub data: Value,
}

/// Why there is no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// The listener was too slow: some were lost.
    Lagged,
    /// QEMU has hung up.
    Closed,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Event>,
    lagged: bool,
    closed: bool,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    news: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All who listen. Once it is dropped they hear that QEMU has hung up.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<Vec<Weak<Queue>>>);

impl Listeners {
    pub(crate) fn listen(&self) -> Events {
        let queue = Arc::<Queue>::default();
        let mut all = lock(&self.0);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&queue));
        Events(queue)
    }

    pub(crate) fn tell(&self, event: &Event) {
        for queue in lock(&self.0).iter().filter_map(Weak::upgrade) {
            let mut state = lock(&queue.state);
            if state.queue.len() == WAITING {
                state.queue.pop_front();
                state.lagged = true;
            }
            state.queue.push_back(event.clone());
            drop(state);
            queue.news.notify_one();
        }
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        for queue in lock(&self.0).iter().filter_map(Weak::upgrade) {
            lock(&queue.state).closed = true;
            queue.news.notify_one();
        }
    }
}

/// What QEMU says unasked, from when this was made.
pub struct Events(Arc<Queue>);

impl Events {
    /// The next event. May be cancelled.
    ///
    /// # Errors
    /// [`Missed`]; after [`Missed::Lagged`] come those that were not lost.
    pub async fn recv(&mut self) -> Result<Event, Missed> {
        loop {
            if let Some(next) = self.next() {
                return next;
            }
            self.0.news.notified().await;
        }
    }

    fn next(&self) -> Option<Result<Event, Missed>> {
        let mut state = lock(&self.0.state);
        if std::mem::take(&mut state.lagged) {
            return Some(Err(Missed::Lagged));
        }
        let event = state.queue.pop_front();
        if state.queue.is_empty() && state.queue.capacity() > KEPT {
            state.queue = VecDeque::new();
        }
        match event {
            Some(event) => Some(Ok(event)),
            None => state.closed.then_some(Err(Missed::Closed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(number: usize) -> Event {
        Event { name: "X".into(), data: json!(number) }
    }

    #[tokio::test]
    async fn everybody_hears_everything() {
        let all = Listeners::default();
        all.tell(&event(0));
        let (mut one, mut two) = (all.listen(), all.listen());
        for number in 1..=3 {
            all.tell(&event(number));
        }
        drop(all);
        for listener in [&mut one, &mut two] {
            for number in 1..=3 {
                assert_eq!(listener.recv().await.expect("an event").data, number);
            }
            assert_eq!(listener.recv().await.err(), Some(Missed::Closed));
            assert!(lock(&listener.0.state).queue.capacity() <= KEPT);
        }
    }

    #[tokio::test]
    async fn one_that_is_slow_hears_that_it_was() {
        let all = Listeners::default();
        let mut one = all.listen();
        for number in 0..=WAITING + 9 {
            all.tell(&event(number));
        }
        assert_eq!(one.recv().await.err(), Some(Missed::Lagged));
        for number in 10..=WAITING + 9 {
            assert_eq!(one.recv().await.expect("an event").data, number);
        }
        let waiting = tokio::spawn(async move { one.recv().await.expect("an event").data });
        tokio::task::yield_now().await;
        all.tell(&event(7));
        assert_eq!(waiting.await.expect("a task"), 7);
        assert!(lock(&all.0)[0].upgrade().is_none());
    }
}
