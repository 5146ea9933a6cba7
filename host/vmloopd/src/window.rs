// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One task for each window of a channel that the host makes: has its memory made, and an
//! end of it in both guests, and has the ends removed.
//!
//! The owner's end comes first, as memory is sealed against new writers before the reader's
//! guest, or its QEMU, has it. What the device is the reader is told first: an owner that
//! is told offers it to the reader at once.
//!
//! Each end has a task of its own: what one guest, or its QEMU, does not do keeps nothing in
//! the other. The window ends when both of its ends are gone; until then its name is taken,
//! and its memory counts.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedRwLockReadGuard, RwLock, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tracing::{debug, warn};
use vmloop_abi::memory::{create_window, seal_window};

use crate::end::{Place, WindowEnd, WindowId};
use crate::event::{ChannelKey, Event, News, Post};
use crate::mailbox;

/// How long the reader may take to find its device.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a guest may take to say that it has forgotten where its device is; it does so by
/// itself after 10 s. Then another device may be plugged there.
const FORGET: Duration = Duration::from_secs(12);

/// How long an owner may keep a window that its peer has given up: that is told to it by the
/// window's lane.
const ALONE: Duration = Duration::from_secs(30);

/// As long as somebody reads it, a guest may have an end of a window; true once it is to get
/// no other one.
pub type Held = Arc<RwLock<bool>>;

/// What a window's task is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// A side (0 or 1) has its device.
    Here(usize),
    /// A side is done with it, or never wanted it.
    Gone(usize),
    /// The channel goes.
    End,
}

/// An end whose task has begun.
struct End {
    /// Cleared once it is not wanted any more.
    wanted: Arc<AtomicBool>,
    /// Where it is, or why there is none.
    plugged: oneshot::Receiver<Result<u16, String>>,
    /// Told, it removes the end; dropped, it leaves the end as it is.
    over: Option<oneshot::Sender<()>>,
    /// The guest knows where it is, and has not said that it is done with it.
    told: bool,
    task: JoinHandle<()>,
}

/// Why a window's task goes no further.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// The window ends.
    Over,
    /// The agent does. The next one removes what is left.
    Leaving,
}

/// A window's task.
pub struct Task {
    /// which window
    pub id: WindowId,
    /// its bytes
    pub size: u64,
    /// where the ends of both sides are made
    pub places: [Arc<dyn Place>; 2],
    /// what tells others that a guest may have an end
    pub held: [Held; 2],
    /// names the channel
    pub key: ChannelKey,
    /// the broker
    pub post: Post,
    /// from the channel
    pub commands: mailbox::Receiver<Command>,
}

impl Task {
    /// Makes the window and serves it until its owner is done with it, or the channel goes.
    pub async fn run(mut self) {
        let mut ends = [None, None];
        if self.serve(&mut ends).await == Stop::Leaving
            || self.take_back(&mut ends).await == Stop::Leaving
        {
            return;
        }
        let Self { id, key, post, commands, .. } = self;
        // What is said from now on is nobody's.
        drop(commands);
        for end in ends.into_iter().flatten() {
            // Fails only if it has panicked.
            let _ = end.task.await;
        }
        post.tell(Event::Channel { key, news: News::WindowGone { id } }).await;
    }

    async fn serve(&mut self, ends: &mut [Option<End>; 2]) -> Stop {
        let (owner, reader) = (self.id.owner, 1 - self.id.owner);
        let places = match self.make(ends).await {
            Ok(places) => places,
            Err(stop) => return stop,
        };
        self.show(reader, places[reader], ends).await;
        let mut waits_until = Some(Instant::now() + PATIENCE);
        let mut owner_until = None;
        loop {
            let command = match waits_until.or(owner_until) {
                Some(until) => timeout_at(until, self.commands.recv()).await,
                None => Ok(self.commands.recv().await),
            };
            match command {
                Ok(Some(Command::Here(side))) if side == reader && waits_until.is_some() => {
                    waits_until = None;
                    self.show(owner, places[owner], ends).await;
                }
                Ok(Some(Command::Here(_))) => {}
                Ok(Some(Command::Gone(side))) => {
                    if let Some(end) = &mut ends[side] {
                        end.release();
                    }
                    if side == owner {
                        return Stop::Over;
                    }
                    if waits_until.is_some() {
                        break;
                    }
                    owner_until.get_or_insert(Instant::now() + ALONE);
                }
                Ok(Some(Command::End)) => return Stop::Over,
                Ok(None) => return Stop::Leaving,
                Err(_) if waits_until.is_none() => return Stop::Over,
                Err(_) => break,
            }
        }
        debug!(window = ?self.id, "the reader does not find its device, or does not want it");
        self.say(owner, None).await;
        Stop::Over
    }

    /// Has both ends removed, each when its guest knows of no device there any more, or has had
    /// its time.
    async fn take_back(&mut self, ends: &mut [Option<End>; 2]) -> Stop {
        for side in [0, 1] {
            match &mut ends[side] {
                Some(end) if end.told => self.say(side, None).await,
                Some(end) => end.release(),
                // It was never begun.
                None => {
                    let news = News::WindowEndGone { side, id: self.id };
                    self.post.tell(Event::Channel { key: self.key, news }).await;
                }
            }
        }
        let until = Instant::now() + FORGET;
        while ends.iter().flatten().any(|end| end.told) {
            match timeout_at(until, self.commands.recv()).await {
                Ok(Some(Command::Gone(side))) => {
                    if let Some(end) = &mut ends[side] {
                        end.release();
                    }
                }
                Ok(Some(Command::Here(_) | Command::End)) => {}
                Ok(None) => return Stop::Leaving,
                Err(_) => ends.iter_mut().flatten().for_each(End::release),
            }
        }
        Stop::Over
    }

    /// Has the memory made, and both ends: where they are.
    async fn make(&mut self, ends: &mut [Option<End>; 2]) -> Result<[u16; 2], Stop> {
        let (owner, reader) = (self.id.owner, 1 - self.id.owner);
        let (memory, size) = match create_window(self.size) {
            Ok((memory, size)) => (Arc::new(memory), size),
            Err(error) => return Err(self.failed(None, &error.to_string()).await),
        };
        let mut places = [0; 2];
        for side in [owner, reader] {
            let Some(end) = self.begin(side, Arc::clone(&memory), size) else {
                return Err(self.failed(Some(side), "its end of the channel goes").await);
            };
            let end = ends[side].insert(end);
            match self.plugged(end).await? {
                Ok(place) => places[side] = place,
                Err(error) => return Err(self.failed(Some(side), &error).await),
            }
            if side == owner
                && let Err(error) = seal_window(&*memory)
            {
                return Err(self.failed(None, &error.to_string()).await);
            }
        }
        Ok(places)
    }

    /// Begins an end; None if its side is to get no other one.
    fn begin(&self, side: usize, memory: Arc<OwnedFd>, size: u64) -> Option<End> {
        let held = Arc::clone(&self.held[side]).try_read_owned().ok().filter(|is_over| !**is_over);
        let wanted = Arc::new(AtomicBool::new(true));
        let (tell, plugged) = oneshot::channel();
        let (over, is_over) = oneshot::channel();
        let making = Making {
            id: self.id,
            key: self.key,
            post: self.post.clone(),
            side,
            size,
            place: Arc::clone(&self.places[side]),
            wanted: Arc::clone(&wanted),
            held: held?,
        };
        let task = tokio::spawn(making.run(memory, tell, is_over));
        Some(End { wanted, plugged, over: Some(over), told: false, task })
    }

    /// Waits until an end is plugged, or could not be.
    async fn plugged(&mut self, end: &mut End) -> Result<Result<u16, String>, Stop> {
        let owner = self.id.owner;
        loop {
            tokio::select! {
                plugged = &mut end.plugged => {
                    return Ok(plugged.unwrap_or_else(|_| Err("its task has ended".into())));
                }
                command = self.commands.recv() => match command {
                    None => return Err(Stop::Leaving),
                    Some(Command::End) => return Err(Stop::Over),
                    Some(Command::Gone(side)) if side == owner => return Err(Stop::Over),
                    // It has not been told of it.
                    Some(Command::Gone(_) | Command::Here(_)) => {}
                },
            }
        }
    }

    /// Tells a guest where its end is.
    async fn show(&self, side: usize, place: u16, ends: &mut [Option<End>; 2]) {
        if let Some(end) = &mut ends[side] {
            end.told = true;
        }
        self.say(side, Some(place)).await;
    }

    async fn failed(&self, side: Option<usize>, error: &str) -> Stop {
        let news = News::WindowFailed { side, id: self.id, text: error.to_owned() };
        self.post.tell(Event::Channel { key: self.key, news }).await;
        self.say(self.id.owner, None).await;
        Stop::Over
    }

    async fn say(&self, side: usize, place: Option<u16>) {
        let (id, size) = (self.id, self.size);
        let news = News::Window { side, id, size, place };
        self.post.tell(Event::Channel { key: self.key, news }).await;
    }
}

impl End {
    /// Has it removed, in the background.
    fn release(&mut self) {
        self.told = false;
        self.wanted.store(false, Ordering::Relaxed);
        if let Some(over) = self.over.take() {
            // Fails only if there is none.
            let _ = over.send(());
        }
    }
}

/// What an end's task needs.
struct Making {
    id: WindowId,
    key: ChannelKey,
    post: Post,
    side: usize,
    size: u64,
    place: Arc<dyn Place>,
    wanted: Arc<AtomicBool>,
    held: OwnedRwLockReadGuard<bool>,
}

impl Making {
    async fn run(
        self,
        memory: Arc<OwnedFd>,
        plugged: oneshot::Sender<Result<u16, String>>,
        is_over: oneshot::Receiver<()>,
    ) {
        let Self { id, key, post, side, size, place, wanted, held } = self;
        let end = WindowEnd {
            id,
            memory: memory.as_fd(),
            size,
            writes: side == id.owner,
            wanted: &wanted,
        };
        let result = place.window(end).await;
        drop(memory);
        let is_there = result.is_ok();
        // Fails only if nobody waits for it any more.
        let _ = plugged.send(result);
        if is_there && is_over.await.is_err() {
            return;
        }
        let slow = move || warn!(window = ?id, side, "the guest keeps the window's device");
        place.remove_window(id, Box::new(slow)).await;
        post.tell(Event::Channel { key, news: News::WindowEndGone { side, id } }).await;
        drop(held);
    }
}
