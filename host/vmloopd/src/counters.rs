// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the agent counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts `n` more.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// How many there were.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($name:ident)*) => {
        /// All counters, since the agent started; see [`vmloop_api::Counters`].
        #[derive(Debug, Default)]
        pub struct Counters { $(#[doc = stringify!($name)] pub $name: Counter,)* }

        impl Counters {
            /// Their values.
            pub fn get(&self) -> vmloop_api::Counters {
                vmloop_api::Counters { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    channels_opened channels_closed channels_failed channels_broken wants refused malformed control_broken
    throttled out_of_memory guests_gone
}
