// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Metrics in Prometheus' text format, over HTTP.
//!
//! What it takes of HTTP/1.1 is one request and one answer, so that is all
//! there is: no connection is kept, no header is looked at.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::warn;
use vmloop_api::{Broken, ChannelState, Listing, PolicyState, Request, Stats, Status};

use crate::answer::Answer;
use crate::event::Event;
use crate::server::ask;

/// A client that takes longer than this is cut off.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves metrics at `127.0.0.1:PORT`, `[::1]:PORT` or `unix:PATH`, for ever.
///
/// # Errors
/// An address that is not one, or not of this host alone; those of bind(2).
pub async fn listen(address: &str, broker: mpsc::Sender<Event>) -> anyhow::Result<()> {
    if let Some(path) = address.strip_prefix("unix:") {
        let listener: UnixListener =
            crate::server::listen(path.as_ref()).with_context(|| format!("metrics: {path}"))?;
        tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => drop(tokio::spawn(answer(stream, broker.clone()))),
                    Err(error) => pause(&error).await,
                }
            }
        });
        return Ok(());
    }
    let socket: std::net::SocketAddr = address.parse().with_context(|| {
        format!("metrics: {address:?} is not an address; write 127.0.0.1:9479 or unix:/run/vmloop/metrics.sock")
    })?;
    anyhow::ensure!(
        socket.ip().is_loopback(),
        "metrics: {address} can be reached from outside; write 127.0.0.1:{} or unix:/run/vmloop/metrics.sock",
        socket.port()
    );
    let listener =
        TcpListener::bind(socket).await.with_context(|| format!("metrics: {address}"))?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(tokio::spawn(answer(stream, broker.clone()))),
                Err(error) => pause(&error).await,
            }
        }
    });
    Ok(())
}

async fn pause(error: &std::io::Error) {
    warn!(%error, "metrics");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, broker: mpsc::Sender<Event>) {
    let work = async {
        let mut head = Vec::new();
        let mut buffer = [0; 1024];
        while !head.windows(4).any(|four| four == b"\r\n\r\n") {
            let n = stream.read(&mut buffer).await.ok().filter(|n| *n > 0)?;
            head.extend_from_slice(&buffer[..n]);
            if head.len() > 16 << 10 {
                return None;
            }
        }
        let (code, body) = if head.starts_with(b"GET /metrics ") || head.starts_with(b"GET / ") {
            match collect(&broker).await {
                Some(body) => ("200 OK", body),
                None => ("503 Service Unavailable", String::new()),
            }
        } else {
            ("404 Not Found", "metrics are at /metrics\n".into())
        };
        let text = format!(
            "HTTP/1.1 {code}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(text.as_bytes()).await.ok()?;
        stream.shutdown().await.ok()
    };
    // Whoever asked has gone, or is too slow: nobody is left to tell.
    let _ = timeout(PATIENCE, work).await;
}

async fn collect(broker: &mpsc::Sender<Event>) -> Option<String> {
    let Answer::Status(status) = ask(broker, Request::Status).await.ok()? else { return None };
    let Answer::Listing(listing) = ask(broker, Request::Stats).await.ok()? else { return None };
    Some(render(&status, &listing))
}

/// Escapes the value of a label.
fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// All metrics as text.
pub fn render(status: &Status, listing: &Listing) -> String {
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, u64)]| {
        // Writing to a String does not fail.
        let _ = writeln!(out, "# HELP vmloop_{name} {help}\n# TYPE vmloop_{name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(out, "vmloop_{name}{labels} {value}");
        }
    };
    let one = |value: u64| [(String::new(), value)];
    let counters = &status.counters;
    family("uptime_seconds", "gauge", "Since the agent started.", &one(status.uptime_s));
    family("guests", "gauge", "Guests that are attached.", &one(status.guests as u64));
    family(
        "guests_ready",
        "gauge",
        "Guests that run the modules.",
        &one(status.guests_ready as u64),
    );
    family("channels", "gauge", "Channels in any state.", &one(status.channels as u64));
    family("channels_up", "gauge", "Channels that carry traffic.", &one(status.channels_up as u64));
    family("memory_bytes", "gauge", "What all channels may take.", &one(status.memory));
    if let Some(most) = status.memory_max {
        family("memory_max_bytes", "gauge", "And how much they may take at most.", &one(most));
    }
    family(
        "policy_valid",
        "gauge",
        "Whether the policy file is in force as it stands.",
        &one(u64::from(status.policy_error.is_empty())),
    );
    let states: Vec<_> =
        [PolicyState::File, PolicyState::None, PolicyState::LastGood, PolicyState::Denied]
            .into_iter()
            .map(|state| {
                (format!("{{state=\"{state}\"}}"), u64::from(status.policy_state == state))
            })
            .collect();
    family("policy_state", "gauge", "Which policy is in force.", &states);
    family(
        "policy_since_seconds",
        "gauge",
        "When the policy in force was read, since the epoch.",
        &one(status.policy_since as u64),
    );
    family(
        "problems",
        "gauge",
        "What keeps guests from channels, and is no fault of theirs.",
        &one(status.problems.len() as u64),
    );
    for (name, help, value) in [
        ("channels_opened_total", "Channels plugged.", counters.channels_opened),
        ("channels_closed_total", "Channels unplugged.", counters.channels_closed),
        ("channels_failed_total", "Devices that could not be plugged.", counters.channels_failed),
        (
            "channels_broken_total",
            "Channels that a guest said its peer broke.",
            counters.channels_broken,
        ),
        ("wants_total", "Requests for a channel.", counters.wants),
        ("refused_total", "Requests that were refused.", counters.refused),
        ("malformed_total", "Messages of guests that were ignored.", counters.malformed),
        (
            "control_broken_total",
            "Control devices replaced after nonsense.",
            counters.control_broken,
        ),
        (
            "throttled_total",
            "Messages of guests, and looks at what they wrote, that had to wait.",
            counters.throttled,
        ),
        (
            "out_of_memory_total",
            "Channels refused, as they would have taken too much memory.",
            counters.out_of_memory,
        ),
        ("guests_gone_total", "Guests that ended.", counters.guests_gone),
    ] {
        family(name, "counter", help, &one(value));
    }

    let pairs = |value: fn(&Broken) -> u64| -> Vec<_> {
        let labels =
            |one: &Broken| format!("{{guest=\"{}\",peer=\"{}\"}}", label(&one.a), label(&one.b));
        listing.broken.iter().map(|one| (labels(one), value(one))).collect()
    };
    family(
        "pair_breaks",
        "gauge",
        "Channels of two guests that broke in a row.",
        &pairs(|one| one.breaks.into()),
    );
    family(
        "pair_retry_seconds",
        "gauge",
        "Until two guests whose channel broke may have another.",
        &pairs(|one| one.next_ms.div_ceil(1000)),
    );
    family(
        "pair_needs_operator",
        "gauge",
        "Whether two guests get no channel before vmloop reset or a reload of the policy.",
        &pairs(|one| one.operator.into()),
    );

    let revoked =
        listing.channels.iter().filter(|channel| channel.state == ChannelState::Revoked).count();
    family(
        "channels_revoked",
        "gauge",
        "Channels that the policy has taken from two guests which keep them.",
        &one(revoked as u64),
    );

    type Of = fn(&Stats) -> u64;
    let of_side: [(&str, &str, Of); 8] = [
        ("channel_transmit_frames_total", "Frames given to a channel.", |s| s.tx_frames),
        ("channel_transmit_bytes_total", "Bytes given to a channel.", |s| s.tx_bytes),
        ("channel_receive_frames_total", "Frames received from a channel.", |s| s.rx_frames),
        ("channel_receive_bytes_total", "Bytes received from a channel.", |s| s.rx_bytes),
        ("channel_doorbells_rung_total", "Doorbells rung.", |s| s.tx_doorbells),
        ("channel_doorbells_heard_total", "Doorbells heard.", |s| s.rx_doorbells),
        ("channel_full_total", "Times that the ring was full.", |s| s.tx_full),
        ("channel_dropped_total", "Frames dropped by the receiver.", |s| s.rx_dropped),
    ];
    for (name, help, value) in of_side {
        let mut samples = Vec::new();
        for channel in &listing.channels {
            for (side, peer) in [(&channel.a, &channel.b), (&channel.b, &channel.a)] {
                let Some(stats) = &side.stats else { continue };
                let labels =
                    format!("{{guest=\"{}\",peer=\"{}\"}}", label(&side.guest), label(&peer.guest));
                samples.push((labels, value(stats)));
            }
        }
        family(name, "counter", help, &samples);
    }
    out
}

#[cfg(test)]
mod tests {
    use vmloop_api::{Channel, Side};

    use super::*;

    #[test]
    fn text() {
        let side = |guest: &str, bytes| Side {
            guest: guest.into(),
            stats: Some(Stats { tx_bytes: bytes, ..Stats::default() }),
            ..Side::default()
        };
        let listing = Listing {
            channels: vec![Channel { a: side("a\"b", 5), b: side("c", 7), ..Channel::default() }],
            broken: vec![Broken {
                a: "a".into(),
                b: "c".into(),
                breaks: 3,
                next_ms: 3001,
                ..Broken::default()
            }],
            ..Listing::default()
        };
        let text = render(&Status { guests: 2, ..Status::default() }, &listing);
        assert!(text.contains("\nvmloop_guests 2\n"));
        assert!(
            text.contains("vmloop_channel_transmit_bytes_total{guest=\"a\\\"b\",peer=\"c\"} 5\n")
        );
        assert!(text.contains("vmloop_channels_revoked 0\n"));
        assert!(text.contains("vmloop_pair_breaks{guest=\"a\",peer=\"c\"} 3\n"));
        assert!(text.contains("vmloop_pair_retry_seconds{guest=\"a\",peer=\"c\"} 4\n"));
        assert!(text.contains("vmloop_pair_needs_operator{guest=\"a\",peer=\"c\"} 0\n"));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (_, value) = line.rsplit_once(' ').expect("a value");
            value.parse::<u64>().expect("a number");
        }
    }

    #[tokio::test]
    async fn addresses() {
        let (broker, _inbox) = mpsc::channel(1);
        for (address, expect) in
            [("0.0.0.0:0", "can be reached from outside"), ("here", "is not an address")]
        {
            let error = listen(address, broker.clone()).await.expect_err(address);
            assert!(format!("{error:#}").contains(expect), "{error:#}");
        }
        listen("127.0.0.1:0", broker).await.expect("a listener");
    }
}
