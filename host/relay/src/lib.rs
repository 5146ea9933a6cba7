// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A relay stands between two guests that share no memory with each other. It shares a
//! channel of version 2 with each of them, is the other side of both, and copies lanes
//! from one to the other; docs/protocol.md, section 9, *Relays*.
//!
//! - [`Relay`]: both channels, turn by turn;
//! - `lane`: one lane's number: who has opened it, and how far both are;
//! - `flow`: one direction of a lane that is open: what is copied, and given back;
//! - `places`: which place of one ring is which of the other;
//! - [`Doorbells`]: what the program around it provides.
//!
//! It knows of a lane's kind only whether rings have records or bytes ([`Kinds`]), and
//! looks into neither. What a guest has written it reads once and checks, by the same C
//! files as the guests' modules. A guest that breaks the protocol loses its channel; the
//! other one's lanes are closed.
//!
//! Memory: a lane's rings are those of the two regions; beside them some hundred bytes a
//! lane. Time: a turn looks at [`LANES_A_TURN`] lanes at most, and copies a bounded part
//! of each, so a guest that does much does not hold up lanes of others.

mod bells;
mod flow;
mod kinds;
mod lane;
mod places;
mod relay;
mod side;

pub use bells::Doorbells;
pub use kinds::Kinds;
pub use relay::{LANES_A_TURN, NotTwo, Outcome, Relay, Turn};
pub use side::Break;
