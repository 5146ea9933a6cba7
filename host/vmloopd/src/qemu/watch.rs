// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Attaches to machines as their QMP sockets appear: those that the
//! configuration names, and those that match its patterns.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{EventKind, RecursiveMode, Watcher};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};
use vmloop_policy::pattern::Pattern;

use crate::config::GuestConfig;
use crate::event::Event;

/// Changes come in bursts: look when it was quiet for this long, or at the
/// latest after [`LATEST`].
const QUIET: Duration = Duration::from_millis(20);
const LATEST: Duration = Duration::from_millis(500);
/// A socket exists before somebody listens on it: how often to try, waiting
/// 100 ms, 200 ms and so on in between.
const TRIES: u32 = 6;
/// A machine that cannot be attached to now may be later: it boots, or somebody
/// else has its QMP. It is tried again after so long, twice as long each further
/// time, and at the latest after [`RETRY_MAX`].
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Directories that one pattern may lead to.
const DIRECTORIES_MAX: usize = 4096;

/// Directories that a pattern leads through, as far as they exist, and the
/// sockets that match it.
fn expand(pattern: &str) -> (BTreeSet<PathBuf>, BTreeSet<PathBuf>) {
    let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty()).collect();
    let mut directories = BTreeSet::new();
    let mut sockets = BTreeSet::new();
    let mut level = vec![PathBuf::from("/")];
    for (index, part) in parts.iter().enumerate() {
        let last = index + 1 == parts.len();
        let literal = !part.contains(['*', '?']);
        let mut next = Vec::new();
        for directory in level {
            // What is to be, or may be, made here is noticed by a watch here;
            // where the part exists already, the watch below it is enough.
            let here = directory.join(part);
            if literal && !last && here.is_dir() {
                next.push(here);
                continue;
            }
            if directories.len() < DIRECTORIES_MAX {
                directories.insert(directory.clone());
            }
            let found: Vec<PathBuf> = if literal {
                vec![here]
            } else {
                let wanted = Pattern::new(part);
                let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
                entries
                    .filter(|entry| {
                        entry.file_name().to_str().is_some_and(|name| wanted.matches(name))
                    })
                    .map(|entry| entry.path())
                    .collect()
            };
            for path in found {
                if last {
                    if path.metadata().is_ok_and(|meta| meta.file_type().is_socket()) {
                        sockets.insert(path);
                    }
                } else if path.is_dir() {
                    next.push(path);
                }
            }
        }
        level = next;
    }
    (directories, sockets)
}

/// Device, inode, and time of the last change.
type Incarnation = (u64, u64, i64, i64);

/// What makes a socket another one than that of the same name before.
fn incarnation(path: &Path) -> Option<Incarnation> {
    let meta = path.metadata().ok()?;
    Some((meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec()))
}

/// Watches for ever.
///
/// # Errors
/// Those of inotify at the start.
pub async fn run(
    patterns: Vec<String>,
    guests: Vec<GuestConfig>,
    broker: mpsc::Sender<Event>,
) -> anyhow::Result<()> {
    let names: HashMap<PathBuf, Option<String>> =
        guests.iter().map(|guest| (guest.qmp.clone(), guest.name.clone())).collect();
    let mut all = patterns;
    all.extend(guests.iter().map(|guest| guest.qmp.to_string_lossy().into_owned()));
    if all.is_empty() {
        return Ok(());
    }

    let (changes, mut changed) = mpsc::channel(16);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let reading = matches!(&event, Ok(event) if matches!(event.kind, EventKind::Access(_)));
        if !reading {
            // Full means that a look is due anyway.
            let _ = changes.try_send(());
        }
    })?;
    let mut watched = BTreeSet::new();
    let mut tried: HashMap<PathBuf, Incarnation> = HashMap::new();
    loop {
        let mut sockets = BTreeSet::new();
        let mut more = false;
        for pattern in &all {
            let (directories, found) = expand(pattern);
            sockets.extend(found);
            for directory in directories {
                if watched.contains(&directory) {
                    continue;
                }
                match watcher.watch(&directory, RecursiveMode::NonRecursive) {
                    Ok(()) => {
                        watched.insert(directory);
                        // Something may have been made before the watch was.
                        more = true;
                    }
                    Err(error) => {
                        debug!(directory = %directory.display(), %error, "watch");
                    }
                }
            }
        }
        watched.retain(|directory| {
            let stays = directory.is_dir();
            if !stays {
                // It went with the directory.
                let _ = watcher.unwatch(directory);
            }
            stays
        });
        let seen: HashSet<PathBuf> = sockets.iter().cloned().collect();
        tried.retain(|path, _| seen.contains(path));
        for path in sockets {
            let Some(now) = incarnation(&path) else { continue };
            if tried.insert(path.clone(), now) == Some(now) {
                continue;
            }
            let name = names.get(&path).cloned().flatten();
            tokio::spawn(attach(path, now, name, broker.clone()));
        }
        if more {
            continue;
        }
        if changed.recv().await.is_none() {
            anyhow::bail!("inotify ended");
        }
        let quiet = async { while timeout(QUIET, changed.recv()).await.is_ok() {} };
        // Late is as good as quiet.
        let _ = timeout(LATEST, quiet).await;
    }
}

/// Asks to be attached to a machine until it is, or its socket is another one.
async fn attach(
    path: PathBuf,
    socket: Incarnation,
    name: Option<String>,
    broker: mpsc::Sender<Event>,
) {
    let mut deaf = 0;
    let mut wait = RETRY;
    let mut said = String::new();
    while incarnation(&path) == Some(socket) {
        let (reply, answer) = oneshot::channel();
        let event = Event::Appeared { path: path.clone(), name: name.clone(), reply };
        if broker.send(event).await.is_err() {
            return;
        }
        let Ok(Err(problem)) = answer.await else { return };
        match problem.code.as_str() {
            "attached-already" => return,
            "qmp-nobody-listens" if deaf + 1 < TRIES => {
                sleep(Duration::from_millis(100 << deaf)).await;
                deaf += 1;
            }
            // A socket that the QEMU before left.
            "qmp-nobody-listens" | "qmp-not-found" => {
                info!(socket = %path.display(), "nobody listens; waiting for another one");
                return;
            }
            _ => {
                // Once for each reason: it may stay as it is for days.
                let again = problem.to_string();
                if again != said {
                    warn!(socket = %path.display(), %problem, "cannot attach; trying again");
                    said = again;
                }
                sleep(wait).await;
                wait = (2 * wait).min(RETRY_MAX);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use vmloop_api::Problem;

    use crate::answer::Answer;

    use super::*;

    #[test]
    fn patterns() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path().canonicalize().expect("its path");
        let pattern = root.join("*/qmp?.sock").display().to_string();
        let (directories, sockets) = expand(&pattern);
        assert!(directories.contains(&root) && sockets.is_empty());

        std::fs::create_dir(root.join("a")).expect("a directory");
        std::fs::write(root.join("a/qmp1.sock"), "").expect("a file that is no socket");
        let socket = root.join("a/qmp2.sock");
        let _listener = UnixListener::bind(&socket).expect("a socket");
        let (directories, sockets) = expand(&pattern);
        assert!(directories.contains(&root.join("a")));
        assert_eq!(sockets.into_iter().collect::<Vec<_>>(), [socket]);

        let missing = root.join("not/yet/qmp.sock").display().to_string();
        let (directories, _) = expand(&missing);
        assert_eq!(directories.into_iter().collect::<Vec<_>>(), [root]);
    }

    #[tokio::test]
    async fn a_machine_that_was_refused_is_tried_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().canonicalize().expect("its path").join("g1.sock");
        let _listener = UnixListener::bind(&path).expect("a socket");
        let (broker, mut inbox) = mpsc::channel(4);
        let asking = tokio::spawn(run(vec![path.display().to_string()], Vec::new(), broker));
        let in_time = Duration::from_secs(10);
        for answer in [Err(Problem::new("booting", "it boots")), Ok(Answer::Nothing)] {
            let event = timeout(in_time, inbox.recv()).await.expect("in time");
            let Some(Event::Appeared { reply, .. }) = event else { panic!("not an event") };
            reply.send(answer).expect("somebody waits");
        }
        // It is attached to: nobody asks any more.
        assert!(timeout(3 * RETRY, inbox.recv()).await.is_err());
        asking.abort();
    }

    #[tokio::test]
    async fn a_socket_that_appears() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path().canonicalize().expect("its path");
        let (broker, mut inbox) = mpsc::channel(4);
        let pattern = root.join("run/*.sock").display().to_string();
        tokio::spawn(run(vec![pattern], Vec::new(), broker));
        std::fs::create_dir(root.join("run")).expect("a directory");
        let mut listeners = Vec::new();
        for life in 0..2 {
            let socket = root.join("run/g1.sock");
            // Absent in the first life.
            let _ = std::fs::remove_file(&socket);
            if life == 1 {
                sleep(Duration::from_millis(100)).await;
            }
            listeners.push(UnixListener::bind(&socket).expect("a socket"));
            let event = timeout(Duration::from_secs(10), inbox.recv()).await.expect("in time");
            let Some(Event::Appeared { path, reply, .. }) = event else { panic!("not an event") };
            assert_eq!(path, socket);
            drop(reply);
        }
    }
}
