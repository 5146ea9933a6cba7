// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The agent as a process of its own, on a host whose bridges have hundreds of
//! guests; and these guests, in another process: QEMUs without machines and modules
//! without kernels, which say over QMP and in control regions what real ones say.
//! For `make bench-agent`, and for tests of a guest that means harm.

pub mod agent;
pub mod flood;
pub mod guest;
pub mod host;
pub mod qemu;
pub mod run;
pub mod usage;
