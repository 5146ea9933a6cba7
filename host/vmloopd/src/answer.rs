// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a client of the API is answered.

use serde::Serialize;
use tokio::sync::oneshot;
use vmloop_api as api;

/// An answer; in JSON as `vmloop_api::Request` says for each request.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// It is done, and there is nothing to say about it.
    Nothing,
    /// a guest
    Guest(Box<api::Guest>),
    /// how a migration was
    Migrated(api::Migrated),
    /// the agent
    Status(Box<api::Status>),
    /// guests and channels
    Listing(api::Listing),
    /// how it stands between two guests
    Explained(Box<api::Explained>),
    /// the policy
    Text(String),
}

/// Where the answer to one request goes.
pub type Reply = oneshot::Sender<Result<Answer, api::Problem>>;

/// Answers a client.
pub fn answer(reply: Reply, answer: Result<Answer, api::Problem>) {
    // Fails only if the client hung up.
    let _ = reply.send(answer);
}
