// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The broker's loop: hears every event, and has done what follows.

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tracing::warn;
use vmloop_abi::message::{AgentMessage, WindowName, WindowState};
use vmloop_api::EventKind;

use super::Broker;
use super::channels::Stage;
use crate::channel::Command as ChannelCommand;
use crate::end::Failure;
use crate::event::{ChannelKey, Event, News};
use crate::handle::Command;
use crate::machine::Key;
use crate::network::judge::Judge;
use crate::network::links::Links;

/// Events that are heard before what follows is done: they come in bursts.
const BURST: usize = 256;

impl Broker {
    /// Runs until nobody can send events any more.
    pub async fn run(mut self, mut inbox: mpsc::Receiver<Event>) {
        self.recover();
        loop {
            let deadline = self.next_deadline();
            tokio::select! {
                event = inbox.recv() => match event {
                    Some(event) => self.handle(event),
                    None => return,
                },
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {}
            }
            for _ in 0..BURST {
                let Ok(event) = inbox.try_recv() else { break };
                self.handle(event);
            }
            self.deadlines(Instant::now());
            self.tell_due();
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Api(request, reply) => self.api(request, reply),
            Event::Appeared { path, name, reply } => drop(self.attach(path, name, reply, None)),
            Event::Machines { come, gone } => {
                let attached = self.machines(&come, &gone);
                self.recover_found(attached);
            }
            Event::Excluded { key, machine } => self.backend.exclude(key, *machine),
            Event::Renamed { key, name } => self.renamed(key, &name),
            Event::Leaving { key, why } => self.leaving(key, why),
            Event::Offer { key, tag, offer } => {
                self.relay(key, tag, |side| ChannelCommand::Offer(side, offer));
            }
            Event::Fail { key, tag, failure } => {
                self.relay(key, tag, |side| ChannelCommand::Fail(Failure { side, ..failure }));
            }
            Event::Answers { key } => self.answers(key),
            Event::Connected(connected) => self.connected(*connected),
            Event::Attached { key } => self.attached(key),
            Event::Away { key } => self.away(key),
            Event::Guest { key, message } => self.hear(key, message),
            Event::Nics { key, nics } => self.nics(key, nics),
            Event::Arriving { key, name, machine, stop } => {
                self.arriving(key, name, *machine, stop);
            }
            Event::Standby { key, moving } => self.standby(key, moving),
            Event::Returning { key } => self.returning(key),
            Event::Left { key, problem } => self.left(key, problem),
            Event::Channel { key, news } => self.channel_news(key, news),
            Event::Unplugged { key, tag } => self.unplugged(key, tag),
            Event::OrphanGone { key, tag } => {
                if let Some(guest) = self.guests.get_untold(key) {
                    guest.orphans.remove(&tag);
                }
                self.end_gone(key);
            }
            Event::WindowGone { key, id } => {
                if let Some(guest) = self.guests.get_untold(key) {
                    guest.windows_left.retain(|one| *one != id);
                }
                self.end_gone(key);
            }
            Event::Links(links) => self.network_changed(links),
            Event::Reload => drop(self.reload()),
        }
    }

    /// A guest has lost an end of a channel: it may have waited for that.
    fn end_gone(&mut self, guest: Key) {
        self.finish_detach(guest);
        self.finish_prepare(guest);
    }

    /// News of a channel.
    fn channel_news(&mut self, key: ChannelKey, news: News) {
        let Some(channel) = self.channels.get_mut(key) else { return };
        let (a, b, tag) = channel.label();
        match news {
            News::Open => {
                channel.stage = if channel.reason.is_some() { Stage::Closing } else { Stage::Open };
                let early = std::mem::take(&mut channel.early);
                self.post.counters.channels_opened.add(1);
                self.note(EventKind::ChannelOpen, &a, &b, tag, "");
                for (guest, name, size) in early {
                    self.window(guest, name, WindowState::Wanted(size));
                }
            }
            News::Failed(Failure { side, reason, text, hint }) => {
                let guest = channel.sides[side].name.clone();
                warn!(guest, tag, error = text, hint, "channel");
                let text = format!("{guest}: {text}");
                channel.failure.get_or_insert((reason, text.clone()));
                self.post.counters.channels_failed.add(1);
                self.note(EventKind::ChannelFailed, &a, &b, tag, &text);
            }
            News::Unplugging => {
                channel.stage = Stage::Unplugging;
                self.due.some(channel.sides.each_ref().map(|side| side.guest));
            }
            News::Stuck(side) => {
                channel.stuck = true;
                let name = channel.sides[side].name.clone();
                self.note(
                    EventKind::ChannelStuck,
                    &a,
                    &b,
                    tag,
                    &format!("{name} keeps the device"),
                );
            }
            News::SideGone(side) => {
                let revoked = channel.is_revoked();
                channel.sides[side].gone = true;
                let guest = channel.sides[side].guest;
                if revoked {
                    let ids = channel.sides.each_ref().map(|side| side.id);
                    self.tell_again(|id| ids.contains(&id));
                }
                self.end_gone(guest);
            }
            News::Window { side, id, size, place } => {
                let ours = id.owner == side;
                let name = WindowName { tag: id.tag, number: id.number, ours };
                match self.guests.get(channel.sides[side].guest) {
                    Some(guest) if guest.hello.is_some() => {
                        guest.send(AgentMessage::WindowAt { name, place, size });
                    }
                    // Nobody is left who would answer.
                    _ => channel.tell(ChannelCommand::Window(side, name, WindowState::Gone)),
                }
            }
            News::WindowFailed { side, id, text } => {
                let reader = channel.sides[1 - id.owner].name.clone();
                let at = side.map(|side| channel.sides[side].name.clone()).unwrap_or_default();
                let owner = channel.sides[id.owner].guest;
                // A guest may ask for one after the other.
                if let Some(guest) = self.guests.get_untold(owner)
                    && guest.complaints.take(Instant::now()).is_ok()
                {
                    warn!(owner = guest.name, reader, tag, at, error = text, "no window");
                }
            }
            News::WindowGone { id } => channel.windows.retain(|window| window.id != id),
            News::WindowEndGone { side, id } => {
                if let Some(window) = channel.windows.iter_mut().find(|window| window.id == id) {
                    window.ends[side] = false;
                }
            }
            News::Gone => {
                let Some(channel) = self.channels.remove(key) else { return };
                self.gone(&channel);
                for side in &channel.sides {
                    self.end_gone(side.guest);
                }
            }
        }
    }

    /// The host's network changed.
    fn network_changed(&mut self, links: Links) {
        // An interface of a guest may be another one now.
        if links.renamed(&self.links) {
            for (_, guest) in self.guests.iter() {
                guest.tell(Command::Rescan);
            }
        }
        if links.filters != self.links.filters {
            self.judge = Judge::new(&links.filters);
        }
        self.links = links;
        self.told = None;
        self.routes.clear();
        self.have_links = true;
        self.due.all();
    }
}
