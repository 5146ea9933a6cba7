// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Devices without doorbells, in a QEMU without a machine: their memory is opened as the
//! real one does it, by a path to a descriptor.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};

use serde_json::{Value, json};

use super::Answer;

/// Memory of a device.
#[allow(dead_code)]
pub struct Memory {
    /// opened by QEMU
    pub file: File,
    /// its bytes
    pub size: u64,
    /// whether the guest can only read it
    pub readonly: bool,
}

/// See the module.
#[derive(Default)]
pub struct Plain {
    sets: BTreeMap<u64, (OwnedFd, String)>,
    next: u64,
    /// by id
    pub memory: BTreeMap<String, Memory>,
    /// ids of devices, and of their memory
    plugged: BTreeMap<String, String>,
}

impl Plain {
    pub fn devices(&self) -> impl Iterator<Item = &String> {
        self.plugged.keys()
    }

    pub fn memories(&self) -> impl Iterator<Item = &String> {
        self.memory.keys()
    }

    /// Whether nothing of it is left.
    #[allow(dead_code)]
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.memory.is_empty() && self.plugged.is_empty()
    }

    /// As query-pci has them: slots from 4 on.
    pub fn pci(&self) -> impl Iterator<Item = Value> {
        self.plugged.keys().zip(4..).map(|(id, slot)| {
            json!({"qdev_id": id, "bus": 0, "slot": slot, "function": 0, "regions": []})
        })
    }

    pub fn plug(&mut self, id: &str, memory: &str) {
        assert!(self.memory.contains_key(memory), "a device of no memory");
        assert!(self.plugged.insert(id.into(), memory.into()).is_none(), "the id is taken");
    }

    pub fn unplug(&mut self, id: &str) -> bool {
        self.plugged.remove(id).is_some()
    }

    pub fn add_fd(&mut self, fd: OwnedFd, opaque: &str) -> Value {
        let answer = json!({"fdset-id": self.next, "fd": fd.as_raw_fd()});
        self.sets.insert(self.next, (fd, opaque.into()));
        self.next += 1;
        answer
    }

    pub fn remove_fd(&mut self, set: &Value) -> Answer {
        match self.sets.remove(&set.as_u64().expect("a number")) {
            Some(_) => Ok(json!({})),
            None => Err(("GenericError", "File descriptor named 'fdset-id' not found".into())),
        }
    }

    pub fn sets(&self) -> Value {
        let sets = self.sets.iter();
        sets.map(|(id, (fd, opaque))| {
            json!({"fdset-id": id, "fds": [{"fd": fd.as_raw_fd(), "opaque": opaque}]})
        })
        .collect()
    }

    pub fn object_add(&mut self, arguments: &Value) -> Answer {
        assert_eq!(arguments["qom-type"], "memory-backend-file");
        assert_eq!(arguments["share"], true);
        let path = arguments["mem-path"].as_str().expect("a path");
        let readonly = arguments["readonly"].as_bool().expect("readonly");
        let size = arguments["size"].as_u64().expect("a size");
        let file = OpenOptions::new().read(true).write(!readonly).open(path);
        let file = file.map_err(|error| ("GenericError", error.to_string()))?;
        assert_eq!(file.metadata().expect("a size").len(), size);
        let id = arguments["id"].as_str().expect("an id").to_owned();
        let old = self.memory.insert(id, Memory { file, size, readonly });
        assert!(old.is_none(), "the id is taken");
        Ok(json!({}))
    }

    pub fn object_del(&mut self, id: &str) -> Answer {
        if self.plugged.values().any(|memory| memory == id) {
            return Err(("GenericError", format!("object '{id}' is in use, can not be deleted")));
        }
        match self.memory.remove(id) {
            Some(_) => Ok(json!({})),
            None => Err(("GenericError", format!("object '{id}' not found"))),
        }
    }
}
