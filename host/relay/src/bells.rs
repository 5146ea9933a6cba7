// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Doorbells, whatever they are made of.

use std::io;
use std::time::Duration;

/// How the guests are rung, and heard.
pub trait Doorbells {
    /// Rings guest 0 or 1.
    fn ring(&mut self, guest: usize);

    /// Waits until either guest has rung, `at_most` so long. May return early.
    ///
    /// # Errors
    /// If it cannot hear them any more.
    fn wait(&mut self, at_most: Duration) -> io::Result<()>;
}
