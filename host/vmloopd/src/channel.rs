// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One task for each channel: has its two ends made, waits until it is to be
//! closed, lets both guests drain, and has the ends removed.
//!
//! The two sides do not wait for each other: what one guest, or its QEMU, does not
//! do keeps nothing in the other.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tracing::warn;
use vmloop_abi::memory::Layout;
use vmloop_abi::message::{WindowName, WindowState};
use vmloop_abi::shm;

use crate::end::{Failure, GuestEnd, Medium, Offer, Pending, Place, Region, Spec};
use crate::event::{ChannelKey, Event, News, Post};
use crate::mailbox;
use crate::relayed::Relayed;
use crate::window::Held;
use crate::windows::Windows;

/// How long the guest on side 0 may take to make the memory, if it does.
const OFFER: Duration = Duration::from_secs(10);

/// How long a guest may keep a window of a channel whose device it has given back, before
/// that is said.
const KEPT: Duration = Duration::from_secs(15);

/// What the broker tells a channel's task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Close it; the broker has told the guests.
    Close,
    /// A side (0 or 1) is done with it, or is not there any more.
    Closed(usize),
    /// A side has made the memory.
    Offer(usize, Offer),
    /// A side could not make the memory, or map it.
    Fail(Failure),
    /// How a side stands to a window.
    Window(usize, WindowName, WindowState),
    /// Nobody is left in a side's guest who could say that it is done with its windows.
    Away(usize),
}

/// A guest, as a channel's task knows it.
pub struct Guest {
    /// identity
    pub id: u64,
    /// epoch
    pub epoch: u64,
    /// where its end is made
    pub place: Arc<dyn Place>,
}

/// A channel's task.
pub struct Task {
    /// names the channel
    pub key: ChannelKey,
    /// its tag
    pub tag: u32,
    /// of each ring of packets in bytes
    pub ring_size: u32,
    /// doorbells of each side; at most, where guests make them
    pub bells: u32,
    /// what both guests know
    pub layout: Layout,
    /// the guests, the lower identity first
    pub guests: [Guest; 2],
    /// the broker
    pub post: Post,
    /// from the broker
    pub commands: mailbox::Receiver<Command>,
}

impl Task {
    /// Makes the channel, or takes over one of an earlier agent (`adopted`),
    /// and serves it until it is gone.
    ///
    /// A block, as an async function would keep what it is given twice, in each of ten
    /// thousand channels.
    #[expect(clippy::manual_async_fn, reason = "a block keeps what it is given once")]
    pub fn run(mut self, adopted: bool) -> impl Future<Output = ()> + Send {
        async move { self.serve(adopted).await }
    }

    async fn serve(&mut self, adopted: bool) {
        let Self { key, tag, ring_size, bells, layout, guests, post, commands } = self;
        let (key, tag, ring_size, bells, layout) = (*key, *tag, *ring_size, *bells, *layout);
        let voice = Voice { post, key, tag };
        let [a, b] = &*guests;
        let medium = a.place.medium();
        if medium != b.place.medium() {
            // A host has one hypervisor.
            return voice.tell(News::Gone).await;
        }
        // What is made takes descriptors until the guests have theirs.
        let mut making = None;
        if let Some(places) = a.place.making().zip(b.place.making()).filter(|_| !adopted) {
            match Box::pin(turn(places, commands)).await {
                Turn::Ours(permits) => making = Some(Arc::new(permits)),
                Turn::Never => {
                    // No guest knows of it yet.
                    for news in [News::Unplugging, News::SideGone(0), News::SideGone(1), News::Gone]
                    {
                        voice.tell(news).await;
                    }
                    return;
                }
                Turn::Leaving => return,
            }
        }
        let made = match medium {
            Medium::Guest => None,
            Medium::Host | Medium::Relay if adopted => None,
            Medium::Host | Medium::Relay => {
                match Made::new(medium, tag, ring_size, bells, layout) {
                    Ok(made) => Some(made),
                    Err(error) => {
                        voice.failed(error.to_string(), "").await;
                        return voice.tell(News::Gone).await;
                    }
                }
            }
        };
        let (regions, _relay) = made.map_or((None, None), |made| (Some(made.regions), made.relay));
        let held: [Held; 2] = Default::default();
        let side = |number: usize| {
            let peer = &guests[1 - number];
            let (peer, epoch) = (peer.id, peer.epoch);
            let spec = Spec { tag, side: number, peer, epoch, layout, bells };
            let ((orders, inbox), (opened, is_open)) = (mailbox::mailbox(), oneshot::channel());
            let end = guests[number].place.end(spec);
            let windows = &held[number];
            let side = Side { number, end, orders: inbox, opened, windows, voice: &voice };
            let region = regions.as_ref().map(|regions| Arc::clone(&regions[number]));
            (side.run(region.zip(making.clone()), adopted), orders, is_open)
        };
        let ((one, to_one, one_opened), (two, to_two, two_opened)) = (side(0), side(1));
        drop((regions, making));
        let decider = Decider {
            voice: &voice,
            commands,
            orders: [to_one, to_two],
            medium,
            adopted,
            places: [&a.place, &b.place],
            held: &held,
            windows: None,
            drain: a.place.drain().max(b.place.drain()),
            closed: [false; 2],
            close_by: None,
        };
        // The sides first: where guests make the memory, both are open at once.
        let (left, ..) = tokio::join!(biased; one, two, decider.run([one_opened, two_opened]));
        if left == Left::Gone {
            voice.tell(News::Gone).await;
        }
    }
}

/// What the host has made for a channel.
struct Made {
    /// For each side; the same, or one each with a relay.
    regions: [Arc<Region>; 2],
    relay: Option<Relayed>,
}

impl Made {
    fn new(
        medium: Medium,
        tag: u32,
        ring_size: u32,
        bells: u32,
        layout: Layout,
    ) -> io::Result<Self> {
        // A relay hears one, and rings one.
        let bells = if medium == Medium::Relay { 1 } else { bells };
        let region = || Region::new(ring_size, bells, layout).map(Arc::new);
        let one = region()?;
        if medium == Medium::Host || layout != Layout::Table {
            return Ok(Self { regions: [Arc::clone(&one), one], relay: None });
        }
        let other = region()?;
        let relay = Some(Relayed::start(tag, [&one, &other])?);
        Ok(Self { regions: [one, other], relay })
    }
}

/// Leave to make an end in both guests.
type Permits = [OwnedSemaphorePermit; 2];

/// What became of waiting for it.
enum Turn {
    Ours(Permits),
    /// It is to be closed already.
    Never,
    /// The agent ends.
    Leaving,
}

/// Waits until both guests have fewer channels in the making than they may: what is
/// made takes descriptors of the agent's. The lower identity first, so that nobody
/// waits in a circle.
async fn turn(
    places: (Arc<Semaphore>, Arc<Semaphore>),
    commands: &mut mailbox::Receiver<Command>,
) -> Turn {
    let both = async {
        let one = places.0.acquire_owned().await.ok()?;
        Some([one, places.1.acquire_owned().await.ok()?])
    };
    tokio::pin!(both);
    loop {
        tokio::select! {
            biased;
            permits = &mut both => return permits.map_or(Turn::Leaving, Turn::Ours),
            command = commands.recv() => match command {
                None => return Turn::Leaving,
                Some(Command::Close) => return Turn::Never,
                // No guest knows of it yet.
                Some(
                    Command::Closed(_)
                    | Command::Offer(..)
                    | Command::Fail(_)
                    | Command::Window(..)
                    | Command::Away(_),
                ) => {}
            },
        }
    }
}

/// Tells the broker of a channel.
struct Voice<'a> {
    post: &'a Post,
    key: ChannelKey,
    tag: u32,
}

impl Voice<'_> {
    /// Boxed: what is told takes much more room than a channel that is only used.
    fn tell(&self, news: News) -> Pending<'_, ()> {
        Box::pin(self.post.tell(Event::Channel { key: self.key, news }))
    }

    /// Side 0 could not be made.
    async fn failed(&self, text: impl Into<String>, hint: &'static str) {
        let reason = shm::VMLOOP_REFUSED_FAILED;
        self.tell(News::Failed(Failure { side: 0, reason, text: text.into(), hint })).await;
    }
}

/// What a side is to do.
enum Order {
    /// The other side has made the memory.
    Take(Offer),
    /// Have the guest let go of it.
    Release,
    /// Remove the end.
    Remove,
}

/// What became of a side's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// It is gone, or was never there.
    Gone,
    /// The agent ends, and it stays.
    There,
}

/// One side of a channel.
struct Side<'a> {
    /// 0 or 1
    number: usize,
    end: Box<dyn GuestEnd>,
    orders: mailbox::Receiver<Order>,
    /// where it says whether its end could be opened
    opened: oneshot::Sender<bool>,
    /// held as long as the guest may have an end of a window
    windows: &'a Held,
    voice: &'a Voice<'a>,
}

impl Side<'_> {
    /// Opens the end, carries out orders, and tells when the end is gone.
    ///
    /// A block, as an async function would keep what it is given twice.
    #[expect(clippy::manual_async_fn, reason = "a block keeps what it is given once")]
    fn run(
        mut self,
        made: Option<(Arc<Region>, Arc<Permits>)>,
        adopted: bool,
    ) -> impl Future<Output = Left> {
        async move {
            let voice = self.voice;
            if adopted {
                self.end.adopt();
            } else if let Err(failure) = self.end.open(made.as_ref().map(|(one, _)| &**one)).await {
                voice.tell(News::Failed(failure)).await;
                // Fails only if nobody waits for it any more.
                let _ = self.opened.send(false);
                voice.tell(News::SideGone(self.number)).await;
                return Left::Gone;
            }
            drop(made);
            // As above.
            let _ = self.opened.send(true);
            loop {
                match self.orders.recv().await {
                    Some(Order::Take(offer)) => self.end.take(offer),
                    Some(Order::Release) => self.end.release(),
                    Some(Order::Remove) => break,
                    None => {
                        self.end.leave();
                        return Left::There;
                    }
                }
            }
            let (key, tag, side) = (voice.key, voice.tag, self.number);
            let slow = move || {
                warn!(tag, side, "the guest keeps the channel's device; asking again");
                // A full queue loses a remark, nothing else.
                let _ = voice.post.events.try_send(Event::Channel { key, news: News::Stuck(side) });
            };
            self.end.remove(Box::new(slow)).await;
            // Windows go at the same time, and what is left of one is memory that both share.
            let mut waited = false;
            while timeout(KEPT, async { *self.windows.write().await = true }).await.is_err() {
                if !std::mem::replace(&mut waited, true) {
                    warn!(tag, side, "the guest keeps the device of a window");
                    voice.tell(News::Stuck(side)).await;
                }
            }
            voice.tell(News::SideGone(side)).await;
            Left::Gone
        }
    }
}

/// The agent ends, and leaves the channel as it is.
struct Leaving;

/// Decides what both sides do, by what the broker says. Once it is dropped, a side
/// that was not told to remove its end leaves it as it is.
struct Decider<'a> {
    voice: &'a Voice<'a>,
    commands: &'a mut mailbox::Receiver<Command>,
    orders: [mailbox::Sender<Order>; 2],
    medium: Medium,
    adopted: bool,
    places: [&'a Arc<dyn Place>; 2],
    held: &'a [Held; 2],
    /// None before the first.
    windows: Option<Box<Windows>>,
    drain: Duration,
    /// sides that are done with it
    closed: [bool; 2],
    /// It is to be closed: until when guests may drain it.
    close_by: Option<Instant>,
}

impl Decider<'_> {
    /// A block, as [`Side::run`].
    #[expect(clippy::manual_async_fn, reason = "a block keeps what it is given once")]
    fn run(mut self, opened: [oneshot::Receiver<bool>; 2]) -> impl Future<Output = ()> {
        async move {
            // Boxed, as it is only waited for while the ends are made.
            let is_open = match self.adopted {
                true => Ok(true),
                false => Box::pin(self.opening(opened)).await,
            };
            if let Ok(is_open) = is_open {
                // Fails only when the agent ends.
                let _ = self.decide(is_open).await;
            }
            // What is said from now on is nobody's.
            *self.commands = mailbox::mailbox().1;
        }
    }

    async fn decide(&mut self, is_open: bool) -> Result<(), Leaving> {
        if is_open {
            self.serve().await?;
            self.order(|| Order::Release);
            Box::pin(self.drain()).await?;
        }
        self.voice.tell(News::Unplugging).await;
        let mut windows = self.windows.take();
        if let Some(windows) = &windows {
            windows.end();
        }
        self.order(|| Order::Remove);
        if let Some(windows) = &mut windows {
            Box::pin(self.end_windows(windows)).await?;
        }
        Ok(())
    }

    /// Passes on what guests say of windows until all of those are gone.
    async fn end_windows(&mut self, windows: &mut Windows) -> Result<(), Leaving> {
        loop {
            tokio::select! {
                () = windows.gone() => return Ok(()),
                command = self.commands.recv() => match command {
                    None => return Err(Leaving),
                    Some(Command::Window(side, name, state @ WindowState::Gone)) => {
                        windows.hear(side, name, state).await;
                    }
                    Some(Command::Away(side)) => windows.away(side),
                    Some(_) => {}
                },
            }
        }
    }

    /// Tells both sides.
    fn order(&self, order: impl Fn() -> Order) {
        for side in &self.orders {
            side.send(order());
        }
    }

    fn close(&mut self) {
        let drain = self.drain;
        self.close_by.get_or_insert_with(|| Instant::now() + drain);
    }

    /// Waits until both ends are open. False if one cannot be opened, or is not
    /// when the channel should be gone already.
    async fn opening(&mut self, opened: [oneshot::Receiver<bool>; 2]) -> Result<bool, Leaving> {
        let [mut one, mut two] = opened;
        let mut open = [false; 2];
        while open != [true; 2] {
            let (close_by, never) = (self.close_by, Instant::now());
            let (side, is_open) = tokio::select! {
                biased;
                is_open = &mut one, if !open[0] => (0, is_open),
                is_open = &mut two, if !open[1] => (1, is_open),
                command = self.commands.recv() => {
                    match command {
                        None => return Err(Leaving),
                        Some(Command::Close) => self.close(),
                        Some(Command::Closed(side)) => self.closed[side] = true,
                        // The broker lets none begin before it is open.
                        Some(
                            Command::Offer(..)
                            | Command::Fail(_)
                            | Command::Window(..)
                            | Command::Away(_),
                        ) => {}
                    }
                    continue;
                }
                () = sleep_until(close_by.unwrap_or(never)), if close_by.is_some() => {
                    return Ok(false);
                }
            };
            if !is_open.is_ok_and(|is_open| is_open) {
                return Ok(false);
            }
            open[side] = true;
        }
        if self.medium != Medium::Guest {
            self.voice.tell(News::Open).await;
        }
        Ok(true)
    }

    /// Waits until the channel is to be closed, for whatever reason.
    async fn serve(&mut self) -> Result<(), Leaving> {
        let mut offered = self.medium != Medium::Guest;
        let deadline = Instant::now() + OFFER;
        while self.close_by.is_none() {
            let command = if offered || self.adopted {
                Ok(self.commands.recv().await)
            } else {
                Box::pin(timeout_at(deadline, self.commands.recv())).await
            };
            match command {
                Ok(None) => return Err(Leaving),
                Ok(Some(Command::Close)) => self.close(),
                Ok(Some(Command::Closed(side))) => self.closed[side] = true,
                Ok(Some(Command::Offer(0, offer))) if !offered => {
                    offered = true;
                    self.orders[1].send(Order::Take(offer));
                    if !self.adopted {
                        self.voice.tell(News::Open).await;
                    }
                }
                Ok(Some(Command::Offer(..))) => {}
                Ok(Some(Command::Window(side, name, state))) => {
                    Box::pin(self.hear_window(side, name, state)).await;
                }
                Ok(Some(Command::Away(side))) => self.away(side),
                Ok(Some(Command::Fail(failure))) => {
                    // It has nothing that it could let go of.
                    self.closed[failure.side] = true;
                    self.voice.tell(News::Failed(failure)).await;
                    self.close();
                }
                Err(_) => {
                    let hint = "see the guest's kernel log";
                    self.voice.failed("it did not make the memory in time", hint).await;
                    self.close();
                }
            }
        }
        Ok(())
    }

    fn away(&self, side: usize) {
        if let Some(windows) = &self.windows {
            windows.away(side);
        }
    }

    async fn hear_window(&mut self, side: usize, name: WindowName, state: WindowState) {
        let windows = self.windows.get_or_insert_with(|| {
            let places = self.places.map(Arc::clone);
            let task = (self.voice.key, self.voice.post.clone());
            Box::new(Windows::new(self.voice.tag, places, self.held.clone(), task))
        });
        windows.hear(side, name, state).await;
    }

    /// Waits until both guests have let go of it, or had their time.
    async fn drain(&mut self) -> Result<(), Leaving> {
        let deadline = self.close_by.unwrap_or_else(Instant::now);
        while self.closed != [true; 2] {
            match timeout_at(deadline, self.commands.recv()).await {
                Ok(Some(Command::Closed(side) | Command::Fail(Failure { side, .. }))) => {
                    self.closed[side] = true;
                }
                Ok(Some(Command::Window(side, name, state @ WindowState::Gone))) => {
                    if let Some(windows) = &mut self.windows {
                        Box::pin(windows.hear(side, name, state)).await;
                    }
                }
                Ok(Some(Command::Away(side))) => self.away(side),
                Ok(Some(_)) => {}
                Ok(None) => return Err(Leaving),
                Err(_) => break,
            }
        }
        Ok(())
    }
}
