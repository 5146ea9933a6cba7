# SPDX-License-Identifier: GPL-2.0
"""QEMU command lines: the outer machine's, and the inner ones'."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import VmlabError
from .paths import REPO

if TYPE_CHECKING:
    from .kinds import Outer

PROGRAM = "qemu-system-x86_64"
MACHINES = ("pc", "q35")
ROOT_PORTS = 8
QEMU_UID = 64055
"""User of the inner QEMUs inside the host (the number that Debian's libvirt uses)."""

# AVX and XSAVE under TCG went with rare crashes of programs; rep movsb is
# emulated byte by byte, so erms and fsrm must not invite it. Of the family that
# QEMU's "max" had until 8.0, Linux knows that rep movsq is good; of the present
# one it does not, and copies and clears memory two to three times slower.
# Without CX16: each CMPXCHG16B would stop all other CPUs (docs/lab.md).
TCG_CPU = "max,family=15,model=107,stepping=1,-cx16,-erms,-fsrm,-rdtscp,-xsave,-avx,-avx2"
TCG_CPU_CX16 = TCG_CPU.replace(",-cx16", "")  # the same with it

# Under TCG every FXRSTOR of any CPU rewrites a word of CPU 0's state
# (cpu_clear_ignne() on first_cpu, no lock) that also holds the flags of VMRUN:
# what CPU 0 has just cleared at #VMEXIT can come back, and guest or host dies of
# it, about once in five boots. So CPU 0 stays out: nothing is scheduled there.
TCG_CPUS = ["-smp", "3"]
TCG_APPEND = "isolcpus=0 irqaffinity=1-2"

BASE_APPEND = [
    # A serial console is slow: during boot it shows warnings and worse only.
    "loglevel=5",
    # A machine that is broken ends; one on a busy outside is not broken.
    "panic_on_oops=1", "panic=1", "rcupdate.rcu_cpu_stall_timeout=60", "watchdog_thresh=30",
    # Looking for AGP bridges takes an emulated AMD machine 6 s.
    "pci=noearly", "cryptomgr.notests",
]  # fmt: skip

GUEST_DIR = "/run/vmlab"

FIRST_HOST = "host"
MIGRATION_PORT = 49152
LAN = "fd=LAN"
"""Stands in an outer machine's command for the line to the other host; the switch has the number."""


@dataclass
class GuestSpec:
    """What defines an inner machine. Sizes in MiB."""

    name: str
    index: int
    kernel: str = "6.1"
    machine: str = "pc"
    memory: int = 0
    """0 stands for what the kernel needs: the debug kernel's checks take memory."""
    cpus: int = 2
    mtu: int = 1500
    bridge: str = "br0"
    vlan: int | None = None
    subnet: int = 0
    modules: str | None = None
    root_ports: int = ROOT_PORTS
    """Hotplug ports of a q35 machine, rp1 and up."""
    extra_args: list[str] = field(default_factory=list)
    extra_append: str = ""
    host: str = FIRST_HOST
    """Where it is now."""
    movable: bool = False
    """Has its root in memory: no machine that uses 9p is migrated by QEMU, or restored by Xen."""

    def __post_init__(self) -> None:
        """Fill in what depends on the kernel."""
        if not self.memory:
            self.memory = 1024 if self.kernel == "debug" else 512

    @property
    def boot_seconds(self) -> float:
        """How long its boot may take, on a busy outside too."""
        return 400 if self.kernel == "debug" else 150

    @property
    def mac(self) -> str:
        """The Ethernet address of eth0."""
        return f"52:54:00:77:{self.subnet:02x}:{self.index:02x}"

    @property
    def ip(self) -> str:
        """The IPv4 address of eth0."""
        return f"10.77.{self.subnet}.{10 + self.index}"

    @property
    def ip6(self) -> str:
        """The IPv6 address of eth0."""
        return f"fd77:0:0:{self.subnet:x}::{10 + self.index}" if self.subnet else f"fd77::{10 + self.index}"

    @property
    def uuid(self) -> str:
        """The same at each start, as a management program would have it."""
        return f"77770000-0000-4000-8000-{self.subnet:04x}{self.index:08x}"

    @property
    def migration_port(self) -> int:
        """The port on which a host waits for it."""
        return MIGRATION_PORT + self.index

    @property
    def tap(self) -> str:
        """Name of the tap device in the host."""
        return f"tap-{self.name}"[:15]

    def in_memory(self, archive: Path) -> dict[str, object]:
        """How /init is told what to have in memory: its root, or a layer over it."""
        return {"movable" if self.movable else "programs": archive}

    @property
    def directory(self) -> str:
        """Working directory inside the host."""
        return f"{GUEST_DIR}/{self.name}"


def append_line(settings: dict[str, object], extra: str, console: str = "ttyS0") -> str:
    """A kernel command line; ``settings`` reach /init as vmlab.KEY=VALUE."""
    words = [f"vmlab.{key}={value}" for key, value in settings.items() if value not in (None, "")]
    if any(" " in word for word in words):
        raise VmlabError("the checkout's path has a space: move it, the lab cannot use it there")
    return " ".join([f"console={console}", *BASE_APPEND, *words, *extra.split()])


def smp(cpus: int) -> str:
    """Value of QEMU's -smp for a number of CPUs: a single possible one would make TCG leave out memory barriers."""
    return str(cpus) if cpus > 1 else "1,maxcpus=2"


def outer_devices(lab_dir: Path, run_dir: Path, name: str = FIRST_HOST) -> list[str]:
    """An outer machine's console, its agent's port, and what it sees of the outside."""
    return [
        "-chardev", f"socket,id=con,path={run_dir}/console.sock,server=on,wait=off,"
        f"logfile={lab_dir}/{name}/console.log,logappend=on",
        "-serial", "chardev:con",
        "-qmp", f"unix:{run_dir}/qmp.sock,server=on,wait=off",
        "-device", "virtio-serial-pci",
        "-chardev", f"socket,id=agent,path={run_dir}/agent.sock,server=on,wait=off",
        "-device", "virtserialport,chardev=agent,name=vmlab.agent",
        "-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap",
        "-virtfs", f"local,path={REPO},mount_tag=repo,security_model=none,readonly=on,multidevs=remap",
        "-virtfs", f"local,path={lab_dir},mount_tag=lab,security_model=none,multidevs=remap",
    ]  # fmt: skip


def outer_network(lan: int) -> list[str]:
    """An outer machine's line to the other one; ``lan`` is its number, 0 if it is alone."""
    if not lan:
        return []
    return [
        "-netdev", f"socket,id=lan,{LAN}",
        "-device", f"virtio-net-pci,netdev=lan,mac=52:54:00:77:ff:{lan:02x},romfile=",
    ]  # fmt: skip


def outer_command(outer: "Outer", cpu: list[str], boot: list[str]) -> list[str]:
    """An outer machine, which has these CPUs and boots this."""
    return [
        *outer.emulator.command, "-name", f"vmlab-{outer.lab}-{outer.host}" if outer.lan else f"vmlab-{outer.lab}",
        "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", *cpu, "-m", str(outer.memory), *boot,
        *outer_devices(outer.lab_dir, outer.run_dir, outer.host), *outer_network(outer.lan),
    ]  # fmt: skip


def linux(outer: "Outer", initramfs: Path, settings: dict[str, object], append: str) -> list[str]:
    """What an outer machine boots that runs Linux itself."""
    told = {"role": "host", "name": outer.host, "repo": REPO, "modules": outer.modules, **settings}
    line = append_line(told, f"tsc=reliable mitigations=off nokaslr {append}")
    return ["-kernel", str(outer.kernel.image), "-initrd", str(initramfs), "-append", line]


def guest_command(
    spec: GuestSpec, kernel: Path, initramfs: Path, modules: Path, archive: Path, incoming: bool = False
) -> list[str]:
    """An inner machine's QEMU, to be run inside the host.

    ``archive`` is what it has in memory: the programs that are run most, or all
    that a movable one has. ``incoming``: it waits for the machine instead of
    booting it.
    """
    if spec.machine not in MACHINES:
        raise VmlabError(f"no machine {spec.machine!r}: choose one of {', '.join(MACHINES)}")
    here = spec.directory
    # TCG's VMRUN forgets the shadow of STI: an interrupt can slip between the STI
    # and the HLT of an idle vCPU, whose wake-up is then lost until its next tick.
    # So guests keep ticking when idle, and lose 4 ms at most.
    # Addresses are the same in all guests, so that one can tell what those of another are: silence.py.
    append = f"nohz=off nokaslr {spec.extra_append}"
    settings: dict[str, object] = {
        "role": "guest", "name": spec.name, "repo": REPO, "modules": modules, "mtu": spec.mtu,
        "net": f"{spec.ip}/24,{spec.ip6}/64", "gw": f"10.77.{spec.subnet}.1", **spec.in_memory(archive),
    }  # fmt: skip
    # The end of an interrupt leaves the guest, so that none is delivered twice much later (docs/lab.md). An exit
    # more for each, and only needed where two hosts share the CPUs.
    cpu = "host,kvm-pv-eoi=off" if spec.movable else "host"
    outside = "/run/vmlab/outside"
    command = [
        PROGRAM, "-name", spec.name, "-uuid", spec.uuid,
        "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        "-machine", spec.machine, "-accel", "kvm", "-cpu", cpu, "-smp", smp(spec.cpus), "-m", str(spec.memory),
        # By way of the root mount, which is cached, unlike the checkout's.
        "-kernel", f"{outside}{kernel}", "-initrd", f"{outside}{initramfs}",
        "-append", append_line(settings, append),
        "-add-fd", "fd=9,set=1",
        "-chardev", "socket,id=con,path=console.sock,server=on,wait=off,logfile=/dev/fdset/1,logappend=on",
        "-serial", "chardev:con",
        "-qmp", f"unix:{here}/lab-qmp.sock,server=on,wait=off",
        # What QEMU tells the host's agent is evidence.
        "-add-fd", "fd=8,set=2",
        "-chardev", f"socket,id=qmp,path={here}/qmp.sock,server=on,wait=off,logfile=/dev/fdset/2,logappend=on",
        "-mon", "chardev=qmp,mode=control",
        "-device", "virtio-serial-pci",
        "-chardev", f"socket,id=agent,path={here}/agent.sock,server=on,wait=off",
        "-device", "virtserialport,chardev=agent,name=vmlab.agent",
        "-virtfs", f"local,path={outside},mount_tag=root,security_model=none,readonly=on,multidevs=remap",
        "-virtfs", f"local,path={REPO},mount_tag=repo,security_model=none,readonly=on,multidevs=remap",
        "-netdev", f"tap,id=net0,ifname={spec.tap},script=no,downscript=no,vhost=on",
        "-device", f"virtio-net-pci,netdev=net0,mac={spec.mac},romfile=",
    ]  # fmt: skip
    if spec.machine == "q35":
        for n in range(1, spec.root_ports + 1):
            # A plain port would leave the shared memory's BAR unassigned.
            port = f"pcie-root-port,id=rp{n},bus=pcie.0,chassis={n},slot={n},pref64-reserve=64M"
            command += ["-device", port]
    if incoming:
        command += ["-incoming", f"tcp:0:{spec.migration_port}"]
    return command + spec.extra_args
