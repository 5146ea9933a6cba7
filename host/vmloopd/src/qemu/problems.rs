// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What stands in the way of attaching to a QEMU, for the API.

use vmloop_api::Problem;
use vmloop_qmp as qmp;

use super::{device, machine};

/// Of QMP.
pub fn qmp_problem(error: &qmp::Error) -> Problem {
    let code = match error {
        qmp::Error::NotFound(_) => "qmp-not-found",
        qmp::Error::NotSocket(_) => "qmp-not-a-socket",
        qmp::Error::Refused(_) => "qmp-nobody-listens",
        qmp::Error::Busy(_) => "qmp-busy",
        qmp::Error::NotQmp(..) => "qmp-not-qmp",
        _ => "qmp-failed",
    };
    Problem::new(code, error.to_string()).hint(error.hint())
}

/// Of the machine.
pub fn machine_problem(error: &machine::Error) -> Problem {
    let code = match error {
        machine::Error::Qmp(error) => return qmp_problem(error),
        machine::Error::NoIvshmem(_) => "no-ivshmem",
        machine::Error::Machine(_) => "machine-type",
        machine::Error::Replicated(_) => "replicated",
        machine::Error::Process(..) => "process",
    };
    Problem::new(code, error.to_string()).hint(error.hint())
}

/// Of its control device.
pub fn device_problem(error: &device::Error) -> Problem {
    let code = match error {
        device::Error::Slots(_) | device::Error::Kept(_) | device::Error::Small(_) => "no-slot",
        device::Error::Vfio(_) => "vfio",
        device::Error::Booting => "booting",
        device::Error::Qmp(error) => return qmp_problem(error),
        device::Error::Io(_) | device::Error::Nowhere | device::Error::Unwanted => "failed",
    };
    Problem::new(code, format!("control device: {error}")).hint(error.hint())
}
