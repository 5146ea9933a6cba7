# SPDX-License-Identifier: GPL-2.0
"""The KVM host: inner QEMUs under KVM, with tap devices and vhost-net."""

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from . import accel, kernels, movable, programs
from .errors import GuestFailed, VmlabError
from .kinds import HostKind, Outer, bridge_port
from .process import allowed
from .qemu import MACHINES, QEMU_UID, TCG_APPEND, TCG_CPU, TCG_CPUS, guest_command, linux, outer_command

if TYPE_CHECKING:
    from .machine import Guest

OVER = ("completed", "failed", "cancelled")
"""States in which QEMU does no more about a migration."""


class Kvm(HostKind):
    """A host with KVM, bridge, tap and vhost-net."""

    name = "kvm"
    machines = MACHINES
    guest_console = "ttyS0"
    boot_seconds = 90.0

    def choose_accelerator(self, wanted: str, virtual_time: bool) -> str:
        if virtual_time:
            raise VmlabError("virtual time is for the Xen host: a KVM host is too slow in it to be of use")
        return accel.choose(wanted)

    def outer_command(self, outer: Outer) -> list[str]:
        cpu, append = ["-accel", "kvm", "-cpu", "host", "-smp", "2"], ""
        if outer.accelerator == "tcg":
            cpu, append = ["-accel", "tcg,thread=multi", "-cpu", TCG_CPU, *TCG_CPUS], TCG_APPEND
        initramfs = kernels.build_initramfs(outer.kernel)
        return outer_command(outer, cpu, linux(outer, initramfs, {"init": outer.init}, append))

    def start_script(self, guest: "Guest", kernel: kernels.Kernel, modules: Path, incoming: bool = False) -> str:
        spec = guest.spec
        archive = movable.build(kernel, modules) if spec.movable else programs.build()
        command = guest_command(spec, kernel.image, kernels.build_initramfs(kernel), modules, archive, incoming)
        inside = guest.inside
        # The QEMU that a guest leaves and the one that it moves to live side by side.
        start, log, status = (f"{inside}/{guest.own_file(name)}" for name in ("start.sh", "qemu.log", "status"))
        # The console's file is on the outside, where it outlives everything;
        # it is opened here as QEMU's user may not write there.
        return f"""#!/bin/sh
# Starts guest {spec.name} inside the host.
cd {spec.directory}
if [ "${{1-}}" = run ]; then
    trap '' HUP
    setpriv --reuid={QEMU_UID} --regid={QEMU_UID} --clear-groups \\
        --inh-caps=+dac_read_search --ambient-caps=+dac_read_search \\
        sh -c 'echo $$ >qemu.pid; exec "$@"' sh \\
        {shlex.join(command)} >{log} 2>&1
    echo $? >{status}.new
    ip link del {spec.tap}
    mv {status}.new {status}
    exit
fi
rm -f *.sock qemu.pid {status}
chown {QEMU_UID}:{QEMU_UID} .
[ ! -e /sys/class/net/{spec.tap} ] || ip link del {spec.tap}
ip tuntap add dev {spec.tap} mode tap user {QEMU_UID} vnet_hdr || exit
{bridge_port(spec)}
setsid -f sh {start} run 8>>{inside}/qmp.log 9>>{inside}/console.log >/dev/null 2>&1 </dev/null
tries=0
# vhost's worker is a thread of the kernel up to Linux 6.3, of QEMU's since.
until [ -S agent.sock ] && [ -S qmp.sock ] && pid=$(cat qemu.pid) &&
        {{ worker=$(pgrep -x "vhost-$pid") || grep -q '^vhost-' /proc/$pid/task/*/comm; }}; do
    tries=$((tries + 1))
    if [ $tries -gt 3000 ] || [ -e {status} ]; then
        cat {log} >&2
        exit 1
    fi
    sleep 0.01
done
# The kernel's does not inherit that CPU 0 is out of bounds.
for thread in $worker; do
    taskset -cp "$(taskset -cp $$ | sed 's/.*: //')" $thread
done
"""

    def running(self, guest: "Guest") -> bool:
        return guest.pid is not None

    def kill_command(self, guest: "Guest") -> str:
        pid = guest.pid
        return f"kill -KILL {pid}" if pid is not None else "true"

    def pause(self, guest: "Guest") -> None:
        guest.qmp("stop")

    def unpause(self, guest: "Guest") -> None:
        guest.qmp("cont")

    def stop(self, guest: "Guest") -> None:
        guest.qmp("quit")

    def wait_incoming(self, there: "Guest") -> None:
        there.qmp("query-status")  # it answers once it listens

    def begin_migration(self, guest: "Guest", uri: str, seconds: float) -> None:
        guest.qmp("migrate", {"uri": uri})

    def wait_migrated(self, here: "Guest", there: "Guest", seconds: float) -> float | None:
        deadline = time.monotonic() + allowed(seconds)
        while (found := here.qmp("query-migrate")).get("status") not in OVER:
            if time.monotonic() > deadline:
                here.qmp("migrate_cancel")
                raise GuestFailed(f"{here.name}: not migrated within {allowed(seconds):.0f} s: {found}")
            time.sleep(0.1)
        if found["status"] != "completed":
            raise GuestFailed(f"{here.name} stays on {here.host.name}: {found}")
        # It says that it has completed before it says for how long.
        while here.qmp("query-status")["status"] != "postmigrate":
            if time.monotonic() > deadline:
                raise GuestFailed(f"{here.name} has migrated, and is not done with it within {allowed(seconds):.0f} s")
            time.sleep(0.1)
        return float(here.qmp("query-migrate")["downtime"]) / 1000

    def attach(self, guest: "Guest") -> int:
        from .terminal import attach

        return attach(guest.host.stream(), f"{guest.spec.directory}/console.sock")
