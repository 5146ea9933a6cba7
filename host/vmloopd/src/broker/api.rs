// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What clients of the API ask for.

use std::collections::HashSet;

use tokio::time::Instant;
use vmloop_abi::message::AgentMessage;
use vmloop_abi::shm;
use vmloop_api::{EventKind, Problem, Request};
use vmloop_policy::in_force::State;

use super::waiters::Waiter;
use super::{Broker, Collecting, say_policy};
use crate::answer::{Answer, Reply, answer};
use crate::machine::Key;

impl Broker {
    /// Answers a request, or sees to it that it is answered later.
    pub(super) fn api(&mut self, request: Request, reply: Reply) {
        let found = match request {
            Request::Attach { qmp, name } => {
                self.attach(qmp, name, reply, None);
                return;
            }
            Request::Include { guest } => return self.include(&guest, reply),
            Request::Detach { guest } => match self.guests.find(&guest) {
                Ok(key) => return self.detach(key, reply),
                Err(_) if self.turn_away(&guest) => Ok(Answer::Nothing),
                Err(problem) => Err(problem),
            },
            Request::Prepare { guest } => match self.guests.find(&guest) {
                Ok(key) => return self.prepare(key, Waiter { uri: None, reply }),
                Err(problem) => Err(problem),
            },
            Request::Migrate { guest, uri } => match self.guests.find(&guest) {
                Ok(key) => return self.prepare(key, Waiter { uri: Some(uri), reply }),
                Err(problem) => Err(problem),
            },
            Request::Resume { guest } => match self.guests.find(&guest) {
                Ok(key) => return self.resume(key, reply),
                Err(problem) => Err(problem),
            },
            Request::Close { a, b } => self.close_between(&a, &b),
            Request::Reset { a, b } => self.reset(&a, &b),
            Request::Explain { a, b } => self.explain(&a, &b),
            Request::Status => Ok(Answer::Status(Box::new(self.status()))),
            Request::List => Ok(Answer::Listing(self.listing(None))),
            Request::Stats => return self.collect(reply),
            Request::Events => Err(Problem::new("events", "not here")),
            Request::PolicyShow => Ok(Answer::Text(self.policy.text.clone())),
            Request::PolicyReload => self.reload().map(|()| Answer::Text(self.policy.text.clone())),
        };
        answer(reply, found);
    }

    /// Closes the channel between two guests.
    fn close_between(&mut self, a: &str, b: &str) -> Result<Answer, Problem> {
        let (a, b) = (self.guests.find(a)?, self.guests.find(b)?);
        let channel = self
            .channels
            .between(a, b)
            .ok_or_else(|| Problem::new("no-channel", "there is no channel between the two"))?;
        self.close(channel, shm::VMLOOP_CLOSE_DETACH);
        Ok(Answer::Nothing)
    }

    /// Lets a pair ask for a channel again that had to wait.
    fn reset(&mut self, a: &str, b: &str) -> Result<Answer, Problem> {
        let (a, b) = (self.guests.find(a)?, self.guests.find(b)?);
        let pair = self.pair(a, b).filter(|_| a != b).ok_or_else(|| {
            Problem::new("no-such-guest", "a pair are two guests").hint("see vmloop ls")
        })?;
        self.breaks.forget(pair);
        self.back_off.forget(pair);
        self.tell_again(|id| id == pair.0 || id == pair.1);
        Ok(Answer::Nothing)
    }

    /// Asks guests for their counters.
    fn collect(&mut self, reply: Reply) {
        if let Some(collecting) = &mut self.collecting {
            collecting.replies.push(reply);
            return;
        }
        let cookie = self.next_cookie;
        self.next_cookie = self.next_cookie.wrapping_add(1);
        let mut waiting = HashSet::new();
        for (key, guest) in self.guests.iter() {
            if guest.hello.is_some() && !self.channels.of(key).is_empty() {
                guest.send(AgentMessage::StatsGet { cookie });
                waiting.insert(key);
            }
        }
        self.collecting = Some(Collecting {
            cookie,
            waiting,
            deadline: Instant::now() + self.capabilities.stats,
            replies: vec![reply],
        });
    }

    /// Answers those who asked for counters, if all have come or will not.
    pub(super) fn try_collected(&mut self, now: Instant) {
        let is_over = |one: &Collecting| one.waiting.is_empty() || one.deadline <= now;
        let Some(collecting) = self.collecting.take_if(|collecting| is_over(collecting)) else {
            return;
        };
        let listing = self.listing(Some(collecting.cookie));
        for reply in collecting.replies {
            answer(reply, Ok(Answer::Listing(listing.clone())));
        }
    }

    /// Reads the policy again.
    pub(super) fn reload(&mut self) -> Result<(), Problem> {
        let before = (self.policy.idle_ms, self.policy.ring_size);
        let result = self.policy.reload();
        self.told = None;
        say_policy(&self.policy);
        if let Err(error) = result {
            let stays = match self.policy.state() {
                State::Denied => "nobody may talk before a good one is there",
                _ => "the last good policy stays in force",
            };
            self.note(EventKind::PolicyRefused, "", "", 0, &format!("{error}; {stays}"));
            return Err(Problem::new("policy", error.to_string())
                .hint(format!("{stays}; try the file with: vmloop policy check FILE")));
        }
        let file = self.policy.source().path.display().to_string();
        self.note(EventKind::PolicyLoaded, "", "", 0, &file);
        // The operator has looked at it: who had to wait may ask at once.
        self.back_off.forget_all();
        let ids: HashSet<u64> =
            self.breaks.forget_all().into_iter().flat_map(|(a, b)| [a, b]).collect();
        self.tell_again(|id| ids.contains(&id));
        if before != (self.policy.idle_ms, self.policy.ring_size) {
            let ready = self.guests.iter().filter(|(_, guest)| guest.hello.is_some());
            let ready: Vec<Key> = ready.map(|(key, _)| key).collect();
            ready.into_iter().for_each(|key| self.welcome(key));
        }
        self.due.all();
        Ok(())
    }
}
