// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The agent's descriptors do not grow with the number of channels: one process may have
//! so many, and an operator's guests have ten thousand channels.

use std::path::Path;
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};
use vmloop_simulation::host::Host;
use vmloop_simulation::run::World;
use vmloop_simulation::usage;

const HOST: Host = Host { guests: 24, bridges: 1 };
const PATIENCE: Duration = Duration::from_secs(60);
/// host/vmloopd/src/limits.rs: what a guest takes.
const OF_A_GUEST: usize = 4;

/// Waits until the agent has at most so many descriptors; returns how many it has.
async fn at_most(agent: u32, most: usize) -> usize {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = usage::descriptors(agent).expect("its descriptors");
        if now <= most {
            return now;
        }
        assert!(Instant::now() < deadline, "{now} descriptors, at most {most} expected");
        sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn open_channels_take_no_descriptors() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(LocalSet::new().run_until(async {
        let directory = tempfile::tempdir().expect("a directory");
        let program = Path::new(env!("CARGO_BIN_EXE_vmloop-simulation"));
        let world = World::start(program, directory.path(), HOST, &mut [], PATIENCE).await;
        let world = world.expect("a world");
        let all: Vec<u32> = (0..HOST.guests).collect();
        world.load(&all).await.expect("guests");
        let guests = all.len();
        // An agent without guests has some twenty.
        let before = at_most(world.agent(), OF_A_GUEST * guests + 30).await;
        let channels = world.connect(&all, 5).await.expect("channels");
        assert_eq!(channels, 5 * guests);
        at_most(world.agent(), before).await;
    }));
}
