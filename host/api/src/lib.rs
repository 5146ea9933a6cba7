// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What `vmloop` and `vmloopd` say to each other: one JSON object a line, over
//! a unix socket that only root can open.
//!
//! A client sends [`Request`]s and gets one [`Reply`] for each, in order.
//! After [`Request::Events`] the agent sends a [`Reply`] with an [`Event`]
//! each time something happens, until the client hangs up.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

mod words;

pub use words::{
    ChannelState, EndState, EventKind, FilterKind, GuestState, Hypervisor, PolicyState, ReasonCode,
};

/// Where the agent listens unless told otherwise.
pub const SOCKET: &str = "/run/vmloop/vmloopd.sock";

/// Longest line in bytes that either side accepts.
pub const LINE_MAX: usize = 16 << 20;

/// What a client asks for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Attach to the machine behind a QMP socket; answers with its [`Guest`].
    Attach {
        /// path of the socket
        qmp: PathBuf,
        /// name to give it; QEMU's own name, or the socket's, if absent
        name: Option<String>,
    },
    /// Let a Xen domain take part again that was detached; answers with its
    /// [`Guest`].
    Include {
        /// name, UUID, identity or number of the domain
        guest: String,
    },
    /// Close a guest's channels, unplug its control device, forget it; on Xen,
    /// leave it alone until [`Request::Include`].
    Detach {
        /// name, UUID or identity
        guest: String,
    },
    /// Make a QEMU guest ready to be migrated or saved: close its channels,
    /// unplug all devices, and wait for what comes; answers with its [`Guest`].
    Prepare {
        /// name, UUID or identity
        guest: String,
    },
    /// Prepare a QEMU guest, and have QEMU migrate it; answers with [`Migrated`]
    /// when it has left, which may take long.
    Migrate {
        /// name, UUID or identity
        guest: String,
        /// where to, as QEMU's command `migrate` wants it: `tcp:HOST:PORT`
        uri: String,
    },
    /// Have a guest take part again that was prepared; cancels a migration that
    /// [`Request::Migrate`] began. Answers with its [`Guest`].
    Resume {
        /// name, UUID or identity
        guest: String,
    },
    /// Close the channel between two guests; they may ask for it again.
    Close {
        /// name, UUID or identity of one
        a: String,
        /// and of the other
        b: String,
    },
    /// Forget that channels between two guests broke or failed: the guests may
    /// ask for another at once.
    Reset {
        /// name, UUID or identity of one
        a: String,
        /// and of the other
        b: String,
    },
    /// Say why two guests have a channel, or have none; answers with [`Explained`].
    Explain {
        /// name, UUID or identity of one
        a: String,
        /// and of the other
        b: String,
    },
    /// Answers with [`Status`].
    Status,
    /// Answers with [`Listing`].
    List,
    /// As List, with the guests' counters, asked for now.
    Stats,
    /// Answers with an [`Event`] at every change.
    Events,
    /// Answers with the text of the policy in force.
    PolicyShow,
    /// Reads the policy again; answers with its text.
    PolicyReload,
}

/// The agent's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// It worked.
    Ok(Value),
    /// It did not.
    Error(Problem),
}

/// What went wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// One of a few words that programs can rely on, such as `no-such-guest`.
    pub code: String,
    /// What went wrong, for people.
    pub message: String,
    /// What to do about it, for people; may be empty.
    #[serde(default)]
    pub hint: String,
}

impl Problem {
    /// A problem without a hint.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), hint: String::new() }
    }

    /// The same with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        if !self.hint.is_empty() {
            write!(f, "\n  {}", self.hint)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

/// The agent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// whose guests these are
    #[serde(default)]
    pub hypervisor: Hypervisor,
    /// of the agent
    pub version: String,
    /// process id
    pub pid: u32,
    /// since the agent started, in seconds
    pub uptime_s: u64,
    /// guests that are attached
    pub guests: usize,
    /// of those, how many run the modules
    pub guests_ready: usize,
    /// channels that carry traffic
    pub channels_up: usize,
    /// channels in any state
    pub channels: usize,
    /// bytes that they may take
    #[serde(default)]
    pub memory: u64,
    /// and how many they may take at most; absent if there is no bound
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_max: Option<u64>,
    /// file of the policy
    pub policy: PathBuf,
    /// which policy is in force
    #[serde(default)]
    pub policy_state: PolicyState,
    /// since when, in seconds since the epoch
    #[serde(default)]
    pub policy_since: f64,
    /// why the file as it stands now is not in force; empty if it is
    pub policy_error: String,
    /// why guests get no channels, where the agent or its host is at fault
    #[serde(default)]
    pub problems: Vec<String>,
    /// still reattaching to the guests of an earlier agent
    pub recovering: bool,
    /// what was counted since the agent started
    pub counters: Counters,
}

/// What the agent counted since it started.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// channels plugged
    pub channels_opened: u64,
    /// channels unplugged
    pub channels_closed: u64,
    /// channels that could not be plugged
    pub channels_failed: u64,
    /// channels that a guest said its peer broke
    #[serde(default)]
    pub channels_broken: u64,
    /// WANT messages
    pub wants: u64,
    /// WANT messages that were refused
    pub refused: u64,
    /// messages ignored, for any reason
    pub malformed: u64,
    /// control devices replaced, as the guest broke the protocol
    pub control_broken: u64,
    /// times that a guest was slowed down, as it said too much
    pub throttled: u64,
    /// channels that were not made, as they would have taken too much memory
    #[serde(default)]
    pub out_of_memory: u64,
    /// guests that went away
    pub guests_gone: u64,
}

/// All guests and channels.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Listing {
    /// by name
    pub guests: Vec<Guest>,
    /// by tag
    pub channels: Vec<Channel>,
    /// pairs whose channels broke, by name
    #[serde(default)]
    pub broken: Vec<Broken>,
}

/// Two guests whose channels broke.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// name of the guest with the lower identity
    pub a: String,
    /// name of the other
    pub b: String,
    /// channels that broke in a row
    pub breaks: u32,
    /// what is known of the last break
    pub reason: String,
    /// they get no channel before [`Request::Reset`] or [`Request::PolicyReload`]
    pub operator: bool,
    /// milliseconds until they may have another channel; 0: now, or see
    /// `operator`
    pub next_ms: u64,
}

/// One guest.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Guest {
    /// its name on this host
    pub name: String,
    /// identity, 16 hexadecimal digits
    pub id: String,
    /// epoch, 16 hexadecimal digits
    pub epoch: String,
    /// of the machine; empty if it has none
    pub uuid: String,
    /// its QMP socket; empty on Xen
    pub qmp: PathBuf,
    /// of its QEMU; 0 on Xen
    pub pid: u32,
    /// QEMU's machine type; on Xen `xen-pv`, `xen-pvh` or `xen-hvm`
    pub machine: String,
    /// what it is doing
    pub state: GuestState,
    /// version of its modules; empty unless ready
    pub version: String,
    /// its kernel; empty unless ready
    pub kernel: String,
    /// its interfaces
    pub nics: Vec<Nic>,
    /// the addresses that it advertised, but for those that are somebody else's
    pub ips: Vec<String>,
    /// addresses that it advertised, and that another guest had before: nobody is
    /// told that they are its own
    #[serde(default)]
    pub disputed_ips: Vec<Disputed>,
    /// of those, the ones by which others reach it through the host's routing
    #[serde(default)]
    pub routed_ips: Vec<String>,
}

/// An address that a guest claims, and another one has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disputed {
    /// the address
    pub ip: String,
    /// name of the guest that has it
    pub owner: String,
}

/// Something on the host that looks at frames, and would not see those that a
/// channel carries; or that says where they go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// what it is
    pub kind: FilterKind,
    /// interface of the host; empty if it is not of one
    pub interface: String,
    /// of a chain: family of its table, as nft(8) calls it
    pub family: String,
    /// of a chain: its table
    pub table: String,
    /// of a chain: its name
    pub chain: String,
    /// all of that, and what it does, for people
    pub text: String,
}

/// One network interface of a guest.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Nic {
    /// as the hypervisor was told
    pub mac: String,
    /// host interface; empty if it is none
    pub tap: String,
    /// bridge of that; empty if there is none
    pub bridge: String,
    /// untagged VLAN on that bridge; 0 if the bridge does not filter
    pub vlan: u16,
    /// the host's hardware address there, if the policy says that the host
    /// routes for this interface; else empty
    #[serde(default)]
    pub gateway: String,
    /// why this interface can have no channels; empty if it can
    pub blocked: String,
}

/// One channel.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Channel {
    /// tag, unique in each of the two guests
    pub tag: u32,
    /// side 0
    pub a: Side,
    /// side 1
    pub b: Side,
    /// what it is doing
    pub state: ChannelState,
    /// why it is closing; empty otherwise
    pub reason: String,
    /// since it was asked for, in seconds
    pub age_s: u64,
    /// of each ring in bytes; 0 if an earlier agent made it
    pub ring_size: u32,
    /// doorbells of each side; 0 if an earlier agent made it, or guests do
    #[serde(default)]
    pub bells: u32,
    /// windows that the host has made for it, or makes, or that are on their way out
    #[serde(default)]
    pub windows: u32,
    /// their bytes
    #[serde(default)]
    pub window_bytes: u64,
}

/// One end of a channel.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Side {
    /// name of the guest
    pub guest: String,
    /// what it said last
    pub state: EndState,
    /// its counters; only in the answer to [`Request::Stats`], if it answered
    pub stats: Option<Stats>,
}

/// Counters of one end of a channel, since the channel began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// frames given to the channel
    pub tx_frames: u64,
    /// their bytes
    pub tx_bytes: u64,
    /// frames received from it
    pub rx_frames: u64,
    /// their bytes
    pub rx_bytes: u64,
    /// doorbells rung
    pub tx_doorbells: u64,
    /// doorbells heard
    pub rx_doorbells: u64,
    /// times that the ring was full
    pub tx_full: u64,
    /// frames dropped
    pub rx_dropped: u64,
}

/// How it stands between two guests, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// name of one
    pub a: String,
    /// name of the other
    pub b: String,
    /// state of their channel
    pub channel: ChannelState,
    /// its tag; 0 if there is none
    pub tag: u32,
    /// why they have none, or will have none any more; empty if they have one
    pub reasons: Vec<Reason>,
    /// the policy has no streams for them: their connections of TCP go as packets
    #[serde(default)]
    pub without_streams: bool,
}

/// Why two guests have no channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// in a word
    pub code: ReasonCode,
    /// in a sentence
    pub why: String,
    /// what to do about it, for people; may be empty
    pub what_to_do: String,
    /// which filter it is, where it is one
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
}

/// A migration that has been.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migrated {
    /// the guest's name on this host
    pub guest: String,
    /// where it went
    pub to: String,
    /// how long its channels took to close and its devices to go
    pub prepare_ms: u64,
    /// how long QEMU took after that
    pub total_ms: u64,
    /// for how long the guest stood still, as QEMU says
    pub downtime_ms: u64,
}

/// Something happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event {
    /// seconds since the epoch
    pub time: f64,
    /// what
    pub event: EventKind,
    /// to which guest
    pub guest: String,
    /// and which other one; may be empty
    pub peer: String,
    /// tag of the channel; 0 if none
    pub tag: u32,
    /// more, for people
    pub detail: String,
}

/// Why a call failed.
#[derive(Debug)]
pub enum CallError {
    /// The agent cannot be reached; also when the connection breaks.
    Io(PathBuf, io::Error),
    /// The agent said no.
    Problem(Problem),
    /// The agent's answer is not what was expected: another version.
    Answer(String),
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(path, error) => {
                let path = path.display();
                match error.kind() {
                    io::ErrorKind::NotFound => write!(
                        f,
                        "no agent at {path}\n  start it with: systemctl start vmloopd (or vmloopd --socket {path})"
                    ),
                    io::ErrorKind::ConnectionRefused => write!(
                        f,
                        "no agent listens at {path} any more\n  start it with: systemctl start vmloopd"
                    ),
                    io::ErrorKind::PermissionDenied => {
                        write!(f, "not allowed to talk to the agent at {path}\n  run this as root")
                    }
                    _ => write!(f, "the agent at {path}: {error}"),
                }
            }
            Self::Problem(problem) => problem.fmt(f),
            Self::Answer(what) => write!(
                f,
                "the agent's answer makes no sense: {what}\n  are vmloop and vmloopd of the same version?"
            ),
        }
    }
}

impl std::error::Error for CallError {}

/// A connection to the agent that waits for each answer.
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// [`CallError::Io`], whose text says what to do.
    pub fn connect(path: &Path) -> Result<Self, CallError> {
        let stream =
            UnixStream::connect(path).map_err(|error| CallError::Io(path.into(), error))?;
        // An attach takes some seconds at worst; nothing takes a minute.
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .map_err(|error| CallError::Io(path.into(), error))?;
        Ok(Self { path: path.into(), stream: BufReader::new(stream) })
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// All of [`CallError`].
    pub fn call<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, CallError> {
        let mut line =
            serde_json::to_vec(request).map_err(|error| CallError::Answer(error.to_string()))?;
        line.push(b'\n');
        self.stream
            .get_mut()
            .write_all(&line)
            .map_err(|error| CallError::Io(self.path.clone(), error))?;
        self.receive()
    }

    /// Waits for the next answer, after [`Request::Events`].
    ///
    /// # Errors
    /// All of [`CallError`].
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T, CallError> {
        let mut line = String::new();
        let read = self
            .stream
            .read_line(&mut line)
            .map_err(|error| CallError::Io(self.path.clone(), error))?;
        if read == 0 {
            let error = io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up");
            return Err(CallError::Io(self.path.clone(), error));
        }
        match serde_json::from_str(&line) {
            Ok(Reply::Ok(value)) => {
                serde_json::from_value(value).map_err(|error| CallError::Answer(error.to_string()))
            }
            Ok(Reply::Error(problem)) => Err(CallError::Problem(problem)),
            Err(error) => Err(CallError::Answer(error.to_string())),
        }
    }

    /// Waits without limit from now on, for [`Request::Events`].
    pub fn wait_forever(&mut self) {
        // Fails only for a duration of zero.
        let _ = self.stream.get_ref().set_read_timeout(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_read_well() {
        let attach = Request::Attach { qmp: "/run/a.sock".into(), name: None };
        assert_eq!(
            serde_json::to_string(&attach).expect("JSON"),
            r#"{"do":"attach","qmp":"/run/a.sock","name":null}"#
        );
        let request: Request = serde_json::from_str(r#"{"do":"policy-show"}"#).expect("JSON");
        assert!(matches!(request, Request::PolicyShow));
        assert!(serde_json::from_str::<Request>(r#"{"do":"detach"}"#).is_err());
    }
}
