# SPDX-License-Identifier: GPL-2.0
"""A machine that talks to itself through a peer: both ends of a connection are in one network namespace.

namespace s
va 10.99.0.1 ---- veth pair ---- vb 10.99.0.2
     `------- vmloop_loopback ------'

Test suites have client and server in one process. What a machine sends to an address of its own never leaves the
loopback interface, which has no peers. So in this namespace each address is reached by the other interface: its rules
come before those of local addresses, and both interfaces take what comes from an address of their own.
"""

from pathlib import Path

from vmlab import Lab, console, paths

HERE, THERE = "10.99.0.1", "10.99.0.2"
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
    """The machine, in its lab."""

    def __init__(self, lab: Lab) -> None:
        self.host = lab.host
        self.way = "tcp"
        self.release = self.host.run(["uname", "-r"]).out.strip()
        self._load("vmloop")
        self._load("vmloop_net")
        self.host.run(NAMESPACE)
        self._load("vmloop_loopback", f"interfaces={','.join(MAC)}")
        self.inside(f"ping -q -c 20 -i 0.1 {THERE}")

    def _load(self, module: str, *parameters: str) -> None:
        path = paths.OUT / "modules" / self.release / f"{module}.ko"
        self.host.run(["insmod", str(path), *parameters])

    def inside(self, command: str, timeout: float = PATIENCE) -> str:
        """Run a command in the namespace; its output."""
        return self.host.run(["ip", "netns", "exec", "s", "sh", "-c", command], timeout=timeout).out

    def unpack(self, archive: Path, to: str) -> None:
        """Have what an archive of the outside's holds in a directory of the machine's memory."""
        self.inside(f"rm -rf {to} && mkdir {to} && tar -xf {archive} -C {to}", timeout=10 * PATIENCE)

    def keep(self, suite: str, text: str) -> str:
        """Have what a suite said in out/suites/, for people; returns it."""
        log = paths.OUT / "suites" / f"{suite.replace(' ', '-').replace('/', '-')}.{self.way}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(text)
        return text

    def have_streams(self, wanted: bool) -> None:
        """Have the stream path, with which each connection asks for a lane with its first byte; or not."""
        self.host.run("! grep -q ^vmloop_tcp /proc/modules || rmmod vmloop_tcp", timeout=2 * PATIENCE)
        self.way = "streams" if wanted else "tcp"
        if wanted:
            self._load("vmloop_tcp", "after_bytes=1", "after_turns=1")

    def counted(self) -> dict[str, int]:
        """The stream path's counters."""
        names = ("taken", "paired", "back", "reset", "tx_bytes", "rx_bytes")
        words = " ".join(f"{PARAMETERS}/{name}" for name in names)
        values = self.host.run(f"cat {words}").out.split()
        return dict(zip(names, map(int, values), strict=True))

    def complaints(self) -> list[str]:
        """Lines of the kernel's log that should not be; each is said once."""
        return [one.line for one in console.scan(self.host.name, self.host.run("dmesg -c").out)]
