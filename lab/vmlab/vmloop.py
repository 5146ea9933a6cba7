# SPDX-License-Identifier: GPL-2.0
"""vmloop in a lab that a person uses: an agent in each host, the modules in each guest."""

import json
import os
import shlex
import time
from pathlib import Path

from . import paths
from .errors import VmlabError
from .lab import Lab
from .machine import Guest, Host
from .process import allowed

BIN = Path(os.environ.get("VMLOOP_BIN") or paths.OUT / "bin")
"""What `make host` builds, or another build of it."""

PROGRAMS = "/usr/local/bin"
"""Where machines get them: in memory there, and in everybody's PATH."""

HYPERVISORS = {"kvm": "qemu", "xen": "xen"}

POLICY = "/etc/vmloop/policy.toml"

MODULES = {"kvm": "vmloop_ivshmem vmloop_net", "xen": "vmloop_xen vmloop_net"}


def up(lab: Lab, policy: Path | None) -> None:
    """Start what does not run yet; returns when each agent has all guests of its host."""
    if lab.kind.name not in MODULES:
        raise VmlabError(f"lab {lab.name} has no guests: vmlab vmloop up is for labs of up kvm and up xen")
    missing = [name for name in ("vmloopd", "vmloop") if not (BIN / name).exists()]
    if missing:
        raise VmlabError(f"no {BIN}/{missing[0]}: build it first, with: make host")
    for host in lab.hosts.values():
        _start_agent(lab, host, policy)
    for guest in lab.guests.values():
        _load_modules(lab, guest)
    if lab.kind.name == "kvm":
        # On Xen the agent finds domains by itself.
        for host in lab.hosts.values():
            _attach(host, [guest for guest in lab.guests.values() if guest.host is host])


def down(lab: Lab) -> None:
    """Unload the modules, and end the agents."""
    for guest in lab.guests.values():
        modules = reversed(["vmloop", *MODULES[lab.kind.name].split()])
        guest.run(f"rmmod {' '.join(modules)}", check=False, timeout=60)
    for host in lab.hosts.values():
        host.run(["pkill", "-x", "vmloopd"], check=False)


def _start_agent(lab: Lab, host: Host, policy: Path | None) -> None:
    text = policy.read_text() if policy else "# of vmlab vmloop up\ndefault = 'same-bridge'\n"
    host.run(f"mkdir -p {Path(POLICY).parent} && cat >{POLICY}", stdin=text)
    if host.run("pgrep -x vmloopd", check=False).code == 0:
        host.run("vmloop --host policy reload")
        return
    copy = shlex.join(["cp", str(BIN / "vmloopd"), str(BIN / "vmloop"), f"{PROGRAMS}/"])
    log = f"/run/vmlab/lab/{host.name}/vmloopd.log"
    host.run(f"{copy} && setsid -f vmloopd --hypervisor {HYPERVISORS[lab.kind.name]} --policy {POLICY} >>{log} 2>&1")
    deadline = time.monotonic() + allowed(30)
    while host.run("vmloop --host status", check=False).code:
        if time.monotonic() > deadline:
            raise VmlabError(f"the agent of {host.name} does not answer: see {lab.directory}/{host.name}/vmloopd.log")
        time.sleep(0.2)


def _load_modules(lab: Lab, guest: Guest) -> None:
    if guest.run(f"test -e {PROGRAMS}/vmloop", check=False).code:
        guest.run(f"mkdir -p {PROGRAMS}")
        guest.put(BIN / "vmloop", f"{PROGRAMS}/vmloop")
    done = guest.run(f"modprobe -a {MODULES[lab.kind.name]}", check=False, timeout=120)
    if done.code:
        raise VmlabError(f"{guest.name}: {done.err.strip()}\n  build the modules, then ./vmlab stage: make modules")


def _attach(host: Host, guests: list[Guest]) -> None:
    known = {guest["name"] for guest in json.loads(host.run("vmloop --host ls --json").out)["guests"]}
    for guest in guests:
        if guest.name not in known:
            host.run(["vmloop", "--host", "attach", "--qmp", guest.qmp_socket, "--name", guest.name], timeout=60)
