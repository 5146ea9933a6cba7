// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A guest that means harm, for some seconds: all others hear of each arrival, the agent's
//! memory does not grow, and what was refused is counted. How long an arrival takes beside
//! it, and with a thousand guests, is what `make bench-agent` measures.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};
use vmloop_api::Counters;
use vmloop_simulation::flood::{Attack, Flood};
use vmloop_simulation::host::{Host, ip};
use vmloop_simulation::qemu::Hardware;
use vmloop_simulation::run::World;
use vmloop_simulation::usage;

const HOST: Host = Host { guests: 33, bridges: 1 };
const STAY: u32 = 20;
/// Guests that come and go.
const TRAVELLERS: std::ops::Range<u32> = STAY..32;
/// The guest that floods.
const ENEMY: u32 = 32;
const PATIENCE: Duration = Duration::from_secs(60);

/// All guests but the enemy, which is the test's.
async fn world(directory: &Path) -> (World, mpsc::UnboundedReceiver<Hardware>) {
    let program = Path::new(env!("CARGO_BIN_EXE_vmloop-simulation"));
    let mut strangers = vec![(ENEMY, mpsc::unbounded_channel().1)];
    let world = World::start(program, directory, HOST, &mut strangers, PATIENCE).await;
    let world = world.expect("a world");
    let stay: Vec<u32> = (0..STAY).collect();
    world.load(&stay).await.expect("guests");
    world.connect(&stay, 2).await.expect("channels");
    for number in TRAVELLERS {
        let guest = world.guest(number);
        guest.begin();
        world.until("it is told who it is", || guest.id.get() != 0).await.expect("a welcome");
        guest.leave();
    }
    let (_, hardware) = strangers.remove(0);
    (world, hardware)
}

/// Each traveller comes and goes once, and all that stay hear of both.
async fn arrive(world: &World) {
    let (stay, travellers): (Vec<u32>, Vec<u32>) = ((0..STAY).collect(), TRAVELLERS.collect());
    world.arrivals(&travellers, &stay, 1).await.expect("arrivals");
}

fn begin(world: &World, hardware: mpsc::UnboundedReceiver<Hardware>, attack: Attack) -> Flood {
    let peers = (0..STAY).map(|number| (world.guest(number).id.get(), 1)).collect();
    Flood::begin(ENEMY, hardware, attack, (0..STAY).map(ip).collect(), peers)
}

async fn counters(world: &World) -> Counters {
    world.status().await.expect("a status").counters
}

fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(LocalSet::new().run_until(test))
}

#[test]
fn all_attacks_beside_guests_that_come_and_go() {
    run(async {
        let directory = tempfile::tempdir().expect("a directory");
        let (world, hardware) = world(directory.path()).await;
        let before = counters(&world).await;
        let flood = begin(&world, hardware, Attack::All);
        let began = Instant::now();
        // Each attack has had its turn once: rings and the allocator's buffers were used.
        while began.elapsed() < Duration::from_secs(4) {
            arrive(&world).await;
        }
        let rss = usage::memory(world.agent()).expect("its memory").rss_mb;
        let descriptors = usage::descriptors(world.agent()).expect("its descriptors");
        while began.elapsed() < Duration::from_secs(12) {
            arrive(&world).await;
        }
        let grown = usage::memory(world.agent()).expect("its memory").rss_mb - rss;
        assert!(grown < 1.0, "{grown} MB more than {rss}");
        let account = flood.account.clone();
        flood.end();
        let now = counters(&world).await;
        let sum = |one: &Counters| (one.throttled, one.malformed, one.refused, one.control_broken);
        let (is, was) = (sum(&now), sum(&before));
        assert!(is.0 > was.0 && is.1 > was.1 && is.2 > was.2 && is.3 > was.3, "{was:?} {is:?}");
        assert!(account.began.load(Ordering::Relaxed) > 100, "{account:?}");
        // A control device that is being replaced may be there or not.
        let now = usage::descriptors(world.agent()).expect("its descriptors");
        assert!(now.abs_diff(descriptors) <= 8, "{now}, {descriptors} before");
        // Nobody lost a channel by it.
        assert_eq!(world.status().await.expect("a status").channels_up, 2 * STAY as usize);
    });
}

#[test]
fn each_refusal_is_counted() {
    run(async {
        let directory = tempfile::tempdir().expect("a directory");
        let (world, hardware) = world(directory.path()).await;
        let before = counters(&world).await;
        let flood = begin(&world, hardware, Attack::Messages);
        let directories = || world.guest(0).directories.get();
        let told = directories();
        sleep(Duration::from_secs(3)).await;
        flood.hush();
        // Five addresses and a HELLO a second, and 20 and five at once, are news to others.
        assert!(directories() - told <= 60, "{} directories", directories() - told);
        let account = flood.account.clone();
        let read = |what: &AtomicU64| what.load(Ordering::Relaxed);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = counters(&world).await;
            let said = (read(&account.malformed), read(&account.refused));
            let counted = (now.malformed - before.malformed, now.refused - before.refused);
            if said == counted {
                break;
            }
            assert!(Instant::now() < deadline, "said and heard {said:?}, counted {counted:?}");
            sleep(Duration::from_millis(20)).await;
        }
        assert!(read(&account.malformed) > 50 && read(&account.refused) > 50, "{account:?}");
        // It asked for one directory after another, and got some of them.
        assert!((2..100).contains(&read(&account.directories)), "{account:?}");
        flood.end();
    });
}
