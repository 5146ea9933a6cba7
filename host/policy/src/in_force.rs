// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which policy is in force, and why that one.
//!
//! A file that was named, or was there once, and cannot be read, opens nothing:
//! at the start nobody may talk then, and at a reload the last good policy stays.

use std::ops::Deref;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::file::Invalid;
use crate::policy::Policy;

/// Where the policy is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// file
    pub path: PathBuf,
    /// Whether somebody named it. The file of the default path may be absent.
    pub named: bool,
}

impl Source {
    /// A file that somebody named.
    pub fn named(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), named: true }
    }

    /// The file of the default path.
    pub fn default_path(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), named: false }
    }

    /// The policy; None if there is none and need be none.
    fn read(&self) -> Result<Option<Policy>, Invalid> {
        if !self.named && self.path.try_exists().is_ok_and(|exists| !exists) {
            return Ok(None);
        }
        Policy::read(&self.path).map(Some)
    }
}

/// Which policy is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The file as it stands, or stood when it was read last.
    File,
    /// The default one: there is no file, and none was named.
    None,
    /// The last one that could be read.
    LastGood,
    /// Nobody may talk: no file could be read since the agent started.
    Denied,
}

/// The policy in force.
#[derive(Debug)]
pub struct InForce {
    source: Source,
    policy: Policy,
    state: State,
    since: SystemTime,
    error: String,
}

impl InForce {
    /// Reads the policy for the first time.
    pub fn start(source: Source) -> Self {
        let (policy, state, error) = match source.read() {
            Ok(Some(policy)) => (policy, State::File, String::new()),
            Ok(None) => (Policy::default(), State::None, String::new()),
            Err(error) => (Policy::deny(), State::Denied, error.to_string()),
        };
        Self { source, policy, state, since: SystemTime::now(), error }
    }

    /// Reads the policy again; if that fails, the one in force stays.
    ///
    /// # Errors
    /// [`Invalid`], with what to do.
    pub fn reload(&mut self) -> Result<(), Invalid> {
        let found = match (self.source.read(), self.state) {
            (Ok(Some(policy)), _) => Ok((policy, State::File)),
            (Ok(None), State::None) => Ok((Policy::default(), State::None)),
            (Ok(None), _) => Err(Invalid::missing(&self.source.path)),
            (Err(error), _) => Err(error),
        };
        match found {
            Ok((policy, state)) => {
                (self.policy, self.state, self.since) = (policy, state, SystemTime::now());
                self.error.clear();
                Ok(())
            }
            Err(error) => {
                self.state = match self.state {
                    State::Denied => State::Denied,
                    _ => State::LastGood,
                };
                self.error = error.to_string();
                Err(error)
            }
        }
    }

    /// Where it is.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Which one it is.
    pub fn state(&self) -> State {
        self.state
    }

    /// Since when it is in force.
    pub fn since(&self) -> SystemTime {
        self.since
    }

    /// Why the file as it stands is not in force; empty if it is.
    pub fn error(&self) -> &str {
        &self.error
    }
}

impl Deref for InForce {
    type Target = Policy;

    fn deref(&self) -> &Policy {
        &self.policy
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::guests::Who;

    fn allows(policy: &InForce) -> bool {
        let who = |name| Who { name, uuid: "" };
        policy.allows(who("a"), who("b"))
    }

    #[test]
    fn a_named_file_that_cannot_be_read_denies() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("policy.toml");
        for text in [None, Some(""), Some(" \n"), Some("default = 'same-bridge'"), Some("x = 1\n")]
        {
            if let Some(text) = text {
                fs::write(&path, text).expect("written");
            }
            let policy = InForce::start(Source::named(&path));
            assert!(!allows(&policy), "{text:?}");
            assert_eq!(policy.state(), State::Denied, "{text:?}");
            assert!(policy.error().contains("policy.toml"), "{}", policy.error());
        }
        // A directory can be opened, and not read.
        assert_eq!(InForce::start(Source::named(directory.path())).state(), State::Denied);
    }

    #[test]
    fn without_any_file_the_default_is_in_force() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("policy.toml");
        let mut policy = InForce::start(Source::default_path(&path));
        assert_eq!((allows(&policy), policy.state()), (true, State::None));
        policy.reload().expect("still none");
        fs::write(&path, "default = 'deny'\n").expect("written");
        policy.reload().expect("one");
        assert_eq!((allows(&policy), policy.state()), (false, State::File));
        // It was there once: that it is gone opens nothing.
        fs::remove_file(&path).expect("removed");
        policy.reload().expect_err("gone");
        assert_eq!((allows(&policy), policy.state()), (false, State::LastGood));
        // Where the default file is, it is read.
        fs::write(&path, "default = 'den'\n").expect("written");
        assert_eq!(InForce::start(Source::default_path(&path)).state(), State::Denied);
    }

    #[test]
    fn a_reload_that_fails_changes_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("policy.toml");
        fs::write(&path, "[[group]]\nname = 'x'\nmembers = ['c*']\n").expect("written");
        let mut policy = InForce::start(Source::named(&path));
        let since = policy.since();
        for text in ["", "[[group]]\nname = 'x'\nmem", "default = 'same-bridge'"] {
            fs::write(&path, text).expect("written");
            policy.reload().expect_err(text);
            assert_eq!((allows(&policy), policy.state()), (false, State::LastGood), "{text}");
            assert_eq!(policy.since(), since);
            assert!(!policy.error().is_empty());
        }
        fs::write(&path, "default = 'same-bridge'\n").expect("written");
        policy.reload().expect("good");
        assert_eq!((allows(&policy), policy.state()), (true, State::File));
        assert!(policy.error().is_empty() && policy.since() >= since);

        // An agent that could read none takes the first good one.
        fs::write(&path, "x").expect("written");
        let mut policy = InForce::start(Source::named(&path));
        policy.reload().expect_err("still bad");
        assert_eq!(policy.state(), State::Denied);
        fs::write(&path, "default = 'same-bridge'\n").expect("written");
        policy.reload().expect("good");
        assert_eq!((allows(&policy), policy.state()), (true, State::File));
    }
}
