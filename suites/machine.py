# SPDX-License-Identifier: GPL-2.0
"""A machine that talks to itself through a peer: both ends of a connection are in one network namespace.

namespace s
va 10.9.0.1 ---- veth pair ---- vb 10.9.0.2
     `------- vmloop_loopback ------'

Test suites have client and server in one process. What a machine sends to an address of its own never leaves the
loopback interface, which has no peers. So in this namespace each address is reached by the other interface: its rules
come before those of local addresses, and both interfaces take what comes from an address of their own.
"""

import json
from pathlib import Path
from types import TracebackType

from vmlab import Host, Lab, paths

HERE, THERE = "10.9.0.1", "10.9.0.2"
"""What connects without a name of its own has the first address; `localhost` is the second."""
MAC = ("02:00:00:00:00:01", "02:00:00:00:00:02")
PARAMETERS = "/sys/module/vmloop_tcp/parameters"
PATIENCE = 60

NAMESPACE = f"""
set -e
mkdir -p /etc/netns/s
printf '%s\\n' '{THERE} localhost' '::1 localhost6' "{HERE} $(hostname)" >/etc/netns/s/hosts
ip netns add s
ip link add va netns s address {MAC[0]} type veth peer name vb netns s address {MAC[1]}
ip -n s link set lo up
for where in all default va vb; do
	ip netns exec s sysctl -qw net.ipv4.conf.$where.accept_local=1 net.ipv4.conf.$where.rp_filter=0
done
ip -n s addr add {HERE}/32 dev va
ip -n s addr add {THERE}/32 dev vb
ip -n s link set va up
ip -n s link set vb up
ip -n s neigh add {THERE} lladdr {MAC[1]} dev va nud permanent
ip -n s neigh add {HERE} lladdr {MAC[0]} dev vb nud permanent
ip -n s route add {THERE} dev va src {HERE} table 100
ip -n s route add {HERE} dev vb src {THERE} table 101
ip -n s rule add pref 10 lookup local
ip -n s rule add pref 1 iif lo to {THERE} lookup 100
ip -n s rule add pref 2 iif lo to {HERE} lookup 101
ip -n s rule del pref 0 lookup local
ip netns exec s sh -c 'echo va,vb >/sys/module/vmloop_net/parameters/interfaces'
"""


class Machine:
    """The machine. A context manager; its end is the end of the lab."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.lab: Lab
        self.host: Host

    def __enter__(self) -> "Machine":
        self.lab = Lab.up("suites", kind="solo", kernel=self.kernel, memory=4096, bound=True)
        try:
            self.host = self.lab.host
            self.modules = paths.OUT / "modules" / self.host.run(["uname", "-r"]).out.strip()
            self.host.run(["insmod", str(self.modules / "vmloop.ko")])
            self.host.run(["insmod", str(self.modules / "vmloop_net.ko")])
            self.host.run(NAMESPACE)
            self.host.run(["insmod", str(self.modules / "vmloop_loopback.ko"), f"interfaces={','.join(MAC)}"])
            self.inside(f"ping -q -c 20 -i 0.1 {THERE}")
        except BaseException:
            self.lab.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lab.down()

    def inside(self, command: str, timeout: float = PATIENCE, check: bool = True) -> str:
        """Run a command in the namespace; its output and what it said of errors."""
        result = self.host.run(["ip", "netns", "exec", "s", "sh", "-c", command], timeout=timeout, check=check)
        return result.out + result.err

    def have_streams(self, wanted: bool) -> None:
        """Have the stream path, with a lane for each connection from its first byte on; or not."""
        self.host.run("rmmod vmloop_tcp", check=False, timeout=2 * PATIENCE)
        if wanted:
            self.host.run(["insmod", str(self.modules / "vmloop_tcp.ko"), "after_bytes=1", "after_calls=1"])

    def counted(self) -> dict[str, int]:
        """The stream path's counters."""
        names = ("taken", "paired", "back", "reset", "tx_bytes", "rx_bytes")
        words = " ".join(f"{PARAMETERS}/{name}" for name in names)
        values = self.host.run(f"cat {words}").out.split()
        return dict(zip(names, map(int, values), strict=True))

    def complaints(self) -> list[str]:
        """Lines of the kernel's log that should not be."""
        words = "BUG:|WARNING:|Oops|detected stall|INFO: task|general protection"
        found = self.host.run(f"dmesg | grep -v 'ommand line' | grep -E '{words}'", check=False)
        return found.out.splitlines()

    def copy(self, path: str) -> Path:
        """A place in the machine's memory for a suite's files."""
        self.host.run(["mkdir", "-p", path])
        return Path(path)


def describe(machine: Machine) -> dict[str, str]:
    """What it was run on."""
    return {"kernel": machine.host.run(["uname", "-r"]).out.strip(), "clocks": json.dumps(machine.lab.clocks)}
