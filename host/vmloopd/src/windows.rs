// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The windows of one channel that the host makes. Each has a task ([`crate::window`]).

use std::sync::Arc;

use tokio::task::JoinHandle;
use vmloop_abi::message::{WindowName, WindowState};

use crate::end::{Place, WindowId};
use crate::event::{ChannelKey, Event, News, Post};
use crate::mailbox::{self, mailbox};
use crate::window::{Command, Held, Task};

/// A window whose task may have ended.
struct Window {
    id: WindowId,
    commands: mailbox::Sender<Command>,
    task: JoinHandle<()>,
}

/// See the module.
pub struct Windows {
    tag: u32,
    places: [Arc<dyn Place>; 2],
    held: [Held; 2],
    all: Vec<Window>,
    key: ChannelKey,
    post: Post,
}

impl Windows {
    /// None yet.
    pub fn new(
        tag: u32,
        places: [Arc<dyn Place>; 2],
        held: [Held; 2],
        (key, post): (ChannelKey, Post),
    ) -> Self {
        Self { tag, places, held, all: Vec::new(), key, post }
    }

    /// A side (0 or 1) says how it stands to a window.
    pub async fn hear(&mut self, side: usize, name: WindowName, state: WindowState) {
        self.all.retain(|window| !window.task.is_finished());
        let owner = if name.ours { side } else { 1 - side };
        let id = WindowId { tag: self.tag, owner, number: name.number };
        let tell = |command| {
            if let Some(window) = self.all.iter().find(|window| window.id == id) {
                window.commands.send(command);
            }
        };
        match state {
            WindowState::Here => tell(Command::Here(side)),
            WindowState::Gone => tell(Command::Gone(side)),
            WindowState::Wanted(size) => {
                if !self.begin(id, size) {
                    for news in
                        [News::Window { side, id, size, place: None }, News::WindowGone { id }]
                    {
                        self.post.tell(Event::Channel { key: self.key, news }).await;
                    }
                }
            }
        }
    }

    /// Begins a window, unless its place is taken: as long as either guest may have an end of
    /// the one before.
    fn begin(&mut self, id: WindowId, size: u64) -> bool {
        if self.all.iter().any(|window| window.id.has_place_of(id)) {
            return false;
        }
        let (commands, inbox) = mailbox();
        let task = Task {
            id,
            size,
            places: self.places.clone(),
            held: self.held.clone(),
            key: self.key,
            post: self.post.clone(),
            commands: inbox,
        };
        self.all.push(Window { id, commands, task: tokio::spawn(task.run()) });
        true
    }

    /// Waits until all of them are gone. May be cancelled.
    pub async fn gone(&mut self) {
        while let Some(window) = self.all.last_mut() {
            // Fails only if it has panicked.
            let _ = (&mut window.task).await;
            self.all.pop();
        }
    }

    /// Nobody is left in a side's guest who would say that it is done with its ends.
    pub fn away(&self, side: usize) {
        for window in &self.all {
            window.commands.send(Command::Gone(side));
        }
    }

    /// The channel goes, and they do.
    pub fn end(&self) {
        for window in &self.all {
            window.commands.send(Command::End);
        }
    }
}
