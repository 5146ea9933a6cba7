// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The API's socket: JSON lines, for root only.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{broadcast, mpsc, oneshot};
use tracing::{debug, warn};
use vmloop_api::{Event as Change, Problem, Reply, Request};

use crate::answer::Answer;
use crate::event::Event;

/// Longest request in bytes.
const REQUEST_MAX: u64 = 64 << 10;

/// Listens on `path`, which only its owner can open. A socket that an earlier
/// agent left is replaced; one that somebody listens on is not.
///
/// # Errors
/// Those of bind(2); `AddrInUse` if another agent runs.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Nobody may connect before the permissions are as they must be.
    let umask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(umask);
    let listener = listener?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves clients for ever.
pub async fn serve(
    listener: UnixListener,
    broker: mpsc::Sender<Event>,
    log: broadcast::Sender<Change>,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(client(stream, broker.clone(), log.clone()));
            }
            Err(error) => {
                warn!(%error, "API");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

/// Whether a user may use the API: root, and whoever runs the agent.
fn is_allowed(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

async fn client(stream: UnixStream, broker: mpsc::Sender<Event>, log: broadcast::Sender<Change>) {
    let allowed = stream.peer_cred().is_ok_and(|cred| is_allowed(cred.uid()));
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut read).take(REQUEST_MAX).read_until(b'\n', &mut line).await {
            Ok(n) if n > 0 && line.ends_with(b"\n") => {}
            _ => return,
        }
        let answer = match serde_json::from_slice(&line) {
            _ if !allowed => Err(Problem::new("permission", "only root may use this")),
            Err(error) => Err(Problem::new("bad-request", error.to_string())),
            Ok(Request::Events) => {
                tell_changes(&mut read, &mut write, log.subscribe()).await;
                return;
            }
            Ok(request) => match ask(&broker, request).await {
                Ok(answer) => serde_json::to_value(answer)
                    .map_err(|error| Problem::new("failed", error.to_string())),
                Err(problem) => Err(problem),
            },
        };
        if say(&mut write, answer).await.is_err() {
            return;
        }
    }
}

/// Asks the broker.
///
/// # Errors
/// The broker's.
pub async fn ask(broker: &mpsc::Sender<Event>, request: Request) -> Result<Answer, Problem> {
    let (reply, answer) = oneshot::channel();
    let ending = || Problem::new("ending", "the agent is ending");
    broker.send(Event::Api(request, reply)).await.map_err(|_| ending())?;
    answer.await.map_err(|_| ending())?
}

async fn say(
    write: &mut tokio::net::unix::OwnedWriteHalf,
    answer: Result<serde_json::Value, Problem>,
) -> io::Result<()> {
    let reply = match answer {
        Ok(value) => Reply::Ok(value),
        Err(problem) => Reply::Error(problem),
    };
    let mut line = serde_json::to_vec(&reply)?;
    line.push(b'\n');
    write.write_all(&line).await
}

async fn tell_changes(
    read: &mut BufReader<tokio::net::unix::OwnedReadHalf>,
    write: &mut tokio::net::unix::OwnedWriteHalf,
    mut changes: broadcast::Receiver<Change>,
) {
    let mut nothing = [0; 64];
    loop {
        tokio::select! {
            got = read.read(&mut nothing) => if !matches!(got, Ok(n) if n > 0) { return },
            change = changes.recv() => {
                let answer = match change {
                    Ok(change) => serde_json::to_value(change)
                        .map_err(|error| Problem::new("failed", error.to_string())),
                    Err(broadcast::error::RecvError::Lagged(missed)) => {
                        debug!(missed, "a slow client");
                        continue;
                    }
                    Err(broadcast::error::RecvError::Closed) => return,
                };
                if say(write, answer).await.is_err() {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_socket_is_private_and_exclusive() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let first = listen(&path).expect("a socket");
        let mode = std::fs::metadata(&path).expect("its mode").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(listen(&path).expect_err("another one").kind(), io::ErrorKind::AddrInUse);
        drop(first);
        listen(&path).expect("a socket in place of a dead one");
    }

    #[tokio::test]
    async fn nonsense_is_answered() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let listener = listen(&path).expect("a socket");
        let (broker, _inbox) = mpsc::channel(1);
        tokio::spawn(serve(listener, broker, broadcast::channel(1).0));
        let mut stream = UnixStream::connect(&path).await.expect("a connection");
        stream.write_all(b"{\"do\":\"dance\"}\n").await.expect("sent");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).await.expect("an answer");
        assert!(line.contains("bad-request"), "{line}");
    }
}
