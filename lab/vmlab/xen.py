# SPDX-License-Identifier: GPL-2.0
"""The Xen host: Debian's hypervisor and tools, a Linux dom0, PV and PVH guests.

Xen's packages are downloaded and unpacked into the cache; nothing is installed.
dom0 sees them as a layer over the outside's root.
"""

import fcntl
import gzip
import hashlib
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from . import accel, kernels, movable, programs
from .errors import CommandFailed, GuestFailed, VmlabError
from .kinds import HostKind, Outer, bridge_port
from .paths import CACHE, RELAY, REPO
from .process import environment
from .qemu import TCG_CPU, TCG_CPU_CX16, GuestSpec, append_line, outer_command

if TYPE_CHECKING:
    from .machine import Guest

VERSION = "4.17"
TOP = CACHE / "xen"
PACKAGES = (
    f"xen-hypervisor-{VERSION}-amd64", f"xen-utils-{VERSION}", "xen-utils-common", "xenstore-utils", "qemu-system-xen",
    "libxencall1", "libxendevicemodel1", "libxenevtchn1", "libxenforeignmemory1", "libxengnttab1", "libxenhypfs1",
    f"libxenmisc{VERSION}", "libxenstore4", "libxentoolcore1", "libxentoollog1", "libyajl2",
)  # fmt: skip

GUEST_BOOT_MODULES = ("xen_netfront", "9pnet_xen", "9p", "overlay")
"""What a guest's /init needs before it has the outside's root, and the network."""
MOVABLE_BOOT_MODULES = GUEST_BOOT_MODULES[:1]
"""The same for one that never sees the outside."""

TOOLS = f"/usr/lib/xen-{VERSION}/bin"
XL = f"{TOOLS}/xl"
"""The line between two xl, run inside dom0."""
ARRIVED = "vmlab: it has arrived"
"""In xl's log at the destination: the guest runs there."""
LAYER = "/run/vmlab/xen"
"""Where dom0 has Xen's packages for guests to mount."""

# Without smap=0 smep=0 an emulated dom0 dies of its first page fault.
XEN_APPEND = (
    "console=com1 com1=115200,8n1 dom0_max_vcpus=1 smap=0 smep=0 spec-ctrl=no loglvl=warning guest_loglvl=warning"
)
CLOCK = "clocksource=xen"
"""Linux would find that out by itself, some minutes into a test."""

# With CX16, though each CMPXCHG16B stops all other CPUs where they have threads
# of their own. A kernel without it takes the two words of its allocator with
# interrupts off instead, by CLI: to Xen that is a privileged instruction of a PV
# guest, and it does nothing (validate() in Xen's pv/emul-priv-op.c, "cli / sti").
# An event between the two words gives one piece of memory out twice, and dom0
# dies of it some time later.
PV_TCG_CPU = TCG_CPU_CX16

# A CPU whose clock counts instructions must know before an instruction that it
# reads the clock. QEMU 10 knows that of MMIO and of RDTSC, not of RDMSR: where
# Xen reads the APIC's timer by x2APIC, it ends with "Bad icount read".
VIRTUAL_TIME_CPU = PV_TCG_CPU + ",-x2apic"

# What stops a CPU that runs a PVH guest may have it take an interrupt twice
# (docs/lab.md), so a host of such guests has no CX16. PV kernels there, dom0's
# among them, have checks in all caches of their allocator: those are used under
# a lock, which is right on any CPU.
PV_APPEND = "slub_debug=F"

VIRTUAL_TIME_CPUS = 2
"""CPUs of an outer machine in virtual time. They share one line of time: each is
charged for what the others execute. With one the two guests take turns on it."""

KILLED = 137
CRASHED = 134


def packages() -> Path:
    """The directory with the hypervisor, ``xen``, and the unpacked packages, ``root``."""
    identity = hashlib.sha256(repr(PACKAGES).encode()).hexdigest()[:8]
    place = TOP / f"{VERSION}-{identity}"
    TOP.mkdir(parents=True, exist_ok=True)
    with open(TOP / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.exists():
            return place
        downloads = TOP / "deb"
        downloads.mkdir(exist_ok=True)
        missing = [name for name in PACKAGES if not list(downloads.glob(f"{name}_*.deb"))]
        if missing:
            kernels.run_tool(["apt-get", "download", *missing], "download Xen", cwd=downloads)
        scratch = TOP / "new"
        shutil.rmtree(scratch, ignore_errors=True)
        (scratch / "root").mkdir(parents=True)
        for name in PACKAGES:
            newest = max(downloads.glob(f"{name}_*.deb"), key=lambda path: kernels.version_key(path.name))
            kernels.run_tool(["dpkg", "-x", newest, scratch / "root"], f"unpack {name}")
        for name in ("bin", "sbin", "lib", "lib64"):
            if (scratch / "root" / name).exists():
                raise VmlabError(f"Xen's packages have a /{name}, which would hide the outside's")
        image = next((scratch / "root/boot").glob("xen-*.gz"))
        (scratch / "xen").write_bytes(gzip.decompress(image.read_bytes()))
        scratch.rename(place)
    return place


def guest_config(spec: GuestSpec, kernel: Path, initramfs: Path, modules: Path, archive: Path) -> str:
    """The text of a guest's configuration file for xl; ``archive`` is what it has in memory.

    A movable one finds that in its initramfs, and has nothing of Xen's packages.
    """
    outside = "/run/vmlab/outside"
    settings: dict[str, object] = {
        "role": "guest", "kind": "xen", "name": spec.name, "repo": REPO, "modules": modules, "mtu": spec.mtu,
        "net": f"{spec.ip}/24,{spec.ip6}/64", "gw": f"10.77.{spec.subnet}.1",
        **spec.in_memory(archive), "layers": "" if spec.movable else "xen", "port": "/dev/hvc1",
    }  # fmt: skip
    shares = {} if spec.movable else {"root": outside, "repo": REPO, "xen": LAYER}
    lines = {
        "name": spec.name,
        "uuid": spec.uuid,
        "type": spec.machine,
        "kernel": f"{outside}{kernel}",
        "ramdisk": f"{outside}{initramfs}",
        "cmdline": append_line(settings, f"{CLOCK} {spec.extra_append}", "hvc0"),
        # Emulated CPUs do not say that their TSCs are invariant, though they are. Xen would emulate each RDTSC, which
        # it does not on today's hardware.
        "tsc_mode": "native",
        "memory": spec.memory,
        "vcpus": spec.cpus,
        "cpus": "all,^0" if spec.machine == "pvh" else "all",
        "vif": [f"mac={spec.mac},bridge={spec.bridge},vifname={spec.tap},script={spec.directory}/vif"],
        "p9": [f"tag={tag},security_model=none,path={path}" for tag, path in shares.items()],
        # The first one is none: libxl 4.17 gives it the main console's number, and
        # leaves it out with a complaint.
        "channel": ["name=none,connection=pty", f"name=vmlab.agent,connection=socket,path={spec.directory}/agent.sock"],
        "on_poweroff": "destroy",
        "on_reboot": "destroy",
        "on_crash": "destroy",
    }
    # Strings, numbers and lists look the same to xl as to Python.
    return "".join(f"{key} = {value!r}\n" for key, value in lines.items()) + "".join(f"{x}\n" for x in spec.extra_args)


class Xen(HostKind):
    """A Xen host with dom0, xl, xenstored and netback."""

    name = "xen"
    machines = ("pv", "pvh")
    guest_console = "hvc0"
    boot_seconds = 120.0

    def choose_accelerator(self, wanted: str, virtual_time: bool) -> str:
        # Never by itself: Xen under KVM is not tried here.
        if wanted == "auto":
            return "tcg"
        if virtual_time and wanted == "kvm":
            raise VmlabError("virtual time needs --accel tcg")
        return accel.choose(wanted)

    def guest_cpus(self, virtual_time: bool, hosts: int) -> int:
        # Virtual time is for figures, and counts what a CPU does that spins, as if it were work. Of a lab with two
        # hosts, guests migrate: docs/lab.md, "Two hosts".
        return 1 if virtual_time or hosts > 1 else super().guest_cpus(virtual_time, hosts)

    def guest_append(self, machine: str, made_for: str) -> str:
        return PV_APPEND if (machine, made_for) == ("pv", "pvh") else ""

    def needs_svm(self, machine: str) -> bool:
        return machine == "pvh"

    def outer_command(self, outer: Outer) -> list[str]:
        place = packages()
        xen_append = XEN_APPEND
        dom0_append = f"mitigations=off {CLOCK} {self.guest_append('pv', outer.machine)}"
        if outer.accelerator == "kvm":
            cpu = ["-accel", "kvm", "-cpu", "host", "-smp", "2"]
        elif outer.virtual_time:
            cpu = ["-icount", "shift=1,sleep=off", "-accel", "tcg,thread=single", "-cpu", VIRTUAL_TIME_CPU]
            # PVH guests stay off CPU 0 (guest_config()), here without need.
            cpu += ["-smp", str(VIRTUAL_TIME_CPUS + (outer.machine == "pvh"))]
        elif outer.machine == "pvh":
            # The fault of TCG that TCG_CPUS is about hits PVH guests alike: they
            # stay off CPU 0 (guest_config()), which is left to dom0.
            cpu = ["-accel", "tcg,thread=multi", "-cpu", TCG_CPU, "-smp", "3"]
            xen_append += " dom0_vcpus_pin"
        else:
            cpu = ["-accel", "tcg,thread=multi", "-cpu", PV_TCG_CPU, "-smp", "2"]
        settings: dict[str, object] = {
            "role": "host", "kind": "xen", "name": outer.host, "repo": REPO, "modules": outer.modules, "layers": "xen",
        }  # fmt: skip
        dom0 = min(2048, outer.memory * 3 // 8)
        xen_append += f" dom0_mem={dom0}M,max:{dom0}M"
        append = append_line(settings, dom0_append, "hvc0")
        # A comma separates modules: one of our own is written twice.
        modules = [f"{outer.kernel.image} {append}", f"{kernels.build_initramfs(outer.kernel)}"]
        boot = [
            "-kernel", str(place / "xen"), "-append", xen_append,
            "-initrd", ",".join(module.replace(",", ",,") for module in modules),
            "-virtfs", f"local,path={place}/root,mount_tag=xen,security_model=none,readonly=on,multidevs=remap",
        ]  # fmt: skip
        return outer_command(outer, cpu, boot)

    def start_script(self, guest: "Guest", kernel: kernels.Kernel, modules: Path, incoming: bool = False) -> str:
        spec = guest.spec
        inside = guest.inside
        # What is left behind by a migration and what has arrived live side by side.
        config, start, log, status, domids = (
            f"{inside}/{guest.own_file(name)}" for name in ("xl.cfg", "start.sh", "xl.log", "status", "domids")
        )
        if incoming:
            # Xen's tools say what they do, but not when.
            receive = f"listen {spec.migration_port} receive.pid {XL} migrate-receive -e"
            if spec.machine == "pv":
                receive = f"feed {spec.migration_port} receive.pid {XL} restore -e /dev/stdin"
            begin = f"""\
{{ /usr/bin/python3 {RELAY} {receive} 2>&1 && echo {ARRIVED}; }} | /usr/bin/python3 {RELAY} stamp >{log}
    rm -f receive.pid
    {XL} domid {spec.name} >>{domids} 2>>{log}"""
            ready = "-s receive.pid"
        else:
            initramfs = kernels.build_initramfs(kernel, MOVABLE_BOOT_MODULES if spec.movable else GUEST_BOOT_MODULES)
            if spec.movable:
                initramfs = movable.ramdisk(initramfs, movable.build(kernel, modules))
            archive = Path(movable.ROOT) if spec.movable else programs.build()
            text = guest_config(spec, kernel.image, initramfs, modules, archive)
            (guest.lab.directory / guest.name / guest.own_file("xl.cfg")).write_text(text)
            begin = f"{XL} create -e {config} >{log} 2>&1"
            ready = "-e created"
        return f"""#!/bin/sh
# Starts guest {spec.name} inside dom0.
cd {spec.directory}

# Looks after the domain until it is gone. xl would do so until it is suspended for the first time.
mind() {{
    code={KILLED}
    mkfifo released
    xenstore-watch @releaseDomain >released &
    watch=$!
    while read -r _; do
        case $({XL} list -v {spec.name} 2>/dev/null | awk 'NR == 2 {{ print $8 }}') in
        '') break ;;
        # 2 while it is saved or migrated; who does that ends it, or has it go on.
        - | 2) ;;
        3) code={CRASHED}; {XL} destroy {spec.name}; break ;;
        *) code=0; {XL} destroy {spec.name}; break ;;
        esac
    done <released
    kill $watch
}}

if [ "${{1-}}" = run ]; then
    trap '' HUP
    code=1
    if {begin}; then
        touch created
        mind
    fi
    echo $code >{status}.new
    mv {status}.new {status}
    exit
fi
rm -f agent.sock created released receive.pid {status}
for name in {spec.name} {spec.name}--incoming; do
    rm -f /var/log/xen/qemu-dm-$name.log*
    ln -sf {inside}/{guest.own_file("qemu.log")} /var/log/xen/qemu-dm-$name.log
    ln -sf {inside}/console.log /run/vmlab/consoles/guest-$name.log
done
rm -f {inside}/{guest.own_file("qemu.log")}
cat >vif <<'end'
#!/bin/sh
# xl runs this for the guest's network interface.
[ "$1" = online ] || exit 0
ip link set "$vif" name {spec.tap} || exit
{bridge_port(spec)}
xenstore-write "$XENBUS_PATH/hotplug-status" connected
end
chmod +x vif
setsid -f sh {start} run >/dev/null 2>&1 </dev/null
tries=0
until [ {ready} ]; do
    tries=$((tries + 1))
    if [ $tries -gt 6000 ] || [ -e {status} ]; then
        cat {log} >&2
        exit 1
    fi
    sleep 0.01
done
{"" if incoming else f"{XL} domid {spec.name} >>{domids}"}
"""

    def running(self, guest: "Guest") -> bool:
        return self.domid(guest) is not None

    def domid(self, guest: "Guest") -> int | None:
        """The guest's domain id, or None when it does not run."""
        found = guest.host.run([XL, "domid", guest.name], check=False)
        return int(found.out) if found.code == 0 else None

    def kill_command(self, guest: "Guest") -> str:
        # One that waits for a guest to come, or is just receiving it, is no domain of that name.
        waiting = f"{guest.spec.directory}/receive.pid"
        return f"{XL} destroy {guest.name} || {{ kill $(cat {waiting}); {XL} destroy {guest.name}--incoming; }}"

    def pause(self, guest: "Guest") -> None:
        guest.host.run([XL, "pause", guest.name])

    def unpause(self, guest: "Guest") -> None:
        guest.host.run([XL, "unpause", guest.name])

    def stop(self, guest: "Guest") -> None:
        guest.kill()

    def wait_incoming(self, there: "Guest") -> None:
        """Nothing to do: its start has waited."""

    def begin_migration(self, guest: "Guest", uri: str, seconds: float) -> None:
        _, address, port = uri.split(":")
        line = f"/usr/bin/python3 {RELAY} connect {port}"
        # xl runs the program with ADDRESS and more words, and talks to the other xl through it.
        command = f"{XL} migrate -s '{line}' {guest.name} {address}"
        if guest.spec.machine == "pv":
            # Debian's Xen has no shadow page tables, without which nobody knows what
            # a PV guest writes while it is copied: it has to stand still for that.
            command = f"""
                trap '' PIPE
                cd {guest.spec.directory} && rm -f leaving && mkfifo leaving || exit
                {line} {address} <leaving >answer &
                if {XL} save -p {guest.name} leaving && wait $! && grep -qx arrived answer; then
                    {XL} destroy {guest.name}
                else
                    {XL} unpause {guest.name}
                    exit 1
                fi
            """
        try:
            guest.host.run(command, timeout=seconds)
        except CommandFailed as error:
            raise GuestFailed(f"{guest.name} stays on {guest.host.name}: {error}") from error

    def wait_migrated(self, here: "Guest", there: "Guest", seconds: float) -> float | None:
        """What began it has returned when it was over: see who has the guest."""
        if not there.running:
            raise GuestFailed(f"{there.name} has not come to {there.host.name}")
        return None

    def attach(self, guest: "Guest") -> int:
        from .terminal import run_here

        xl = [XL, "console", guest.name]
        return run_here(guest.host.stream(), xl, "/", environment("host", None), terminal=True)

    def blame(self, line: str, domains: dict[int, str]) -> str:
        found = re.search(r"\(XEN\) .*?\b(?:[Dd]omain |d)(\d+)(?:v\d+)?\b", line)
        return domains.get(int(found.group(1)), "host") if found else "host"
