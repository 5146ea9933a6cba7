// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A channel between two Xen guests: side 0 is told to make the region, its
//! offer is relayed to side 1; in the end both let go, and the nodes are
//! removed. The memory is the guests'; nothing of it is seen here.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use vmloop_abi::shm;

use super::guest::Place;
use super::nodes;
use crate::channel::{Command, Failure, News, Task};

/// How long side 0 may take to make the region.
const OFFER: Duration = Duration::from_secs(10);
/// How long guests may take to let go. Whoever does not is left alone with its
/// memory, which it keeps until the other side has let go of it, too.
const DRAIN: Duration = Duration::from_secs(5);

fn failure(side: usize, errno: u32) -> Failure {
    let reason = match errno {
        // ENOMEM, ENOSPC: out of memory or grants, for a while.
        12 | 28 => shm::VMLOOP_REFUSED_SLOTS,
        // EBUSY: the other side still maps an earlier region.
        16 => shm::VMLOOP_REFUSED_BUSY,
        _ => shm::VMLOOP_REFUSED_FAILED,
    };
    let verb = if side == 0 { "make" } else { "map" };
    let text = match errno {
        0 => "it did not make the memory in time".into(),
        _ => format!("it cannot {verb} the memory (error {errno})"),
    };
    let hint = match errno {
        12 | 28 => {
            "a smaller ring_size in the policy needs less memory and fewer grants; Xen's gnttab_max_frames and gnttab_max_maptrack_frames allow more"
        }
        16 => "the other side has not let go of an earlier channel yet",
        _ => "see the guest's kernel log",
    };
    Failure { side, reason, text, hint }
}

/// Makes the channel, or takes over one of an earlier agent, and serves it
/// until it is gone.
pub async fn run(mut task: Task, places: [Place; 2], adopted: bool) {
    let tag = task.tag;
    let mut closed = [false; 2];
    let mut offered = false;
    if !adopted {
        for (side, place) in places.iter().enumerate() {
            let todo = if side == 0 { nodes::Task::Make } else { nodes::Task::Wait };
            place.set(tag, nodes::Link { peer: task.ends[1 - side].id, side, task: todo });
        }
    }
    let deadline = Instant::now() + OFFER;
    loop {
        let command = if offered || adopted {
            Ok(task.commands.recv().await)
        } else {
            timeout_at(deadline, task.commands.recv()).await
        };
        match command {
            // The agent ends: the channel stays.
            Ok(None) => return,
            Ok(Some(Command::Close)) => break,
            Ok(Some(Command::Closed(side))) => closed[side] = true,
            Ok(Some(Command::Offer { side: 0, gref, port })) if !offered => {
                offered = true;
                let todo = nodes::Task::Map(gref, port);
                places[1].set(tag, nodes::Link { peer: task.ends[0].id, side: 1, task: todo });
                if !adopted {
                    task.tell(News::Open).await;
                }
            }
            Ok(Some(Command::Offer { .. })) => {}
            Ok(Some(Command::Fail { side, errno })) => {
                // It has nothing that it could let go of.
                closed[side] = true;
                task.tell(News::Failed(failure(side, errno.max(1)))).await;
                break;
            }
            Err(_) => {
                task.tell(News::Failed(failure(0, 0))).await;
                break;
            }
        }
    }

    for (side, place) in places.iter().enumerate() {
        let peer = task.ends[1 - side].id;
        place.set(tag, nodes::Link { peer, side, task: nodes::Task::Close });
    }
    let deadline = Instant::now() + DRAIN;
    while closed != [true; 2] {
        match timeout_at(deadline, task.commands.recv()).await {
            Ok(Some(Command::Closed(side))) => closed[side] = true,
            Ok(Some(Command::Fail { side, .. })) => closed[side] = true,
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(_) => break,
        }
    }
    task.tell(News::Unplugging).await;
    let [a, b] = &places;
    tokio::join!(remove(&task, 0, a), remove(&task, 1, b));
    task.tell(News::Gone).await;
}

async fn remove(task: &Task, side: usize, place: &Place) {
    place.clear(task.tag).await;
    task.tell(News::SideGone(side)).await;
}
