// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The agent's log, where it goes to a file.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The agent; ends with this.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_file_has_no_colours() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    // One that can be read, so that nothing depends on this machine's.
    fs::write(path("vmloopd.toml"), "").expect("a file");
    fs::write(path("policy.toml"), "default = 'deny'\n").expect("a file");
    let log = File::create(path("log")).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmloopd"));
    command.args(["--hypervisor", "qemu", "--log-level", "debug", "--config"]);
    command.arg(path("vmloopd.toml")).arg("--policy").arg(path("policy.toml"));
    command.arg("--socket").arg(path("api.sock")).arg("--state-dir").arg(directory.path());
    // What would have them in it, where it went to a terminal.
    command.env("TERM", "xterm").env_remove("NO_COLOR").env_remove("JOURNAL_STREAM");
    let agent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
    let _agent = Agent(agent.expect("the agent"));
    let deadline = Instant::now() + Duration::from_secs(20);
    let text = loop {
        let text = fs::read_to_string(path("log")).expect("its log");
        if text.contains(" ready ") {
            break text;
        }
        assert!(Instant::now() < deadline, "not ready: {text}");
        sleep(Duration::from_millis(5));
    };
    assert!(text.contains(" INFO ") && !text.contains('\x1b'), "{text:?}");
}
