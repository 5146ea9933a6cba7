# SPDX-License-Identifier: GPL-2.0
"""The command line: ./vmlab VERB ..."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from . import paths
from .errors import VmlabError
from .kernels import SERIES

KERNELS = f"{', '.join(SERIES)}, or the newest's version, as in 7.3"
NAME = click.option("--name", default="lab", show_default=True, metavar="LAB", help="Which lab.")

STATUS_WIDTH = 1000
"""Columns that the table of a lab may have; it takes some 150."""


class Group(click.Group):
    """Shows the lab's own errors as one line."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except VmlabError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """A small data centre inside QEMU: hosts are outer machines, guests inner ones."""


@main.group()
def up() -> None:
    """Boot a lab."""


@up.command("kvm")
@click.option("--hosts", default=1, show_default=True, help="1 or 2. Guests of two hosts can be migrated.")
@click.option("--guests", default=2, show_default=True, help="How many guests: g1, g2, ...")
@click.option("--kernel", default="6.1", show_default=True, help=f"Guests' kernel: {KERNELS}.")
@click.option("--host-kernel", default="6.1", show_default=True, help="The host's kernel.")
@click.option("--machine", default="pc", show_default=True, help="Guests' machine: pc or q35.")
@click.option("--mtu", default=1500, show_default=True, help="MTU of bridge, taps and guests.")
@click.option("--memory", default=4096, show_default=True, metavar="MIB", help="Of each outer machine.")
@click.option("--guest-memory", type=int, metavar="MIB", help="Of each guest  [default: 512, debug kernel 1024]")
@click.option("--guest-cpus", type=click.IntRange(1), help="Of each guest  [default: 2, in virtual time 1]")
@click.option("--modules", metavar="DIR", help="*.ko for the guests  [default: out/modules/RELEASE]")
@click.option("--accel", default="auto", show_default=True, help="Of the outer machine: auto, tcg or kvm.")
@NAME
def up_kvm(hosts: int, guests: int, kernel: str, host_kernel: str, machine: str, mtu: int, memory: int,
           guest_memory: int | None, guest_cpus: int | None, modules: str | None, accel: str,
           name: str) -> None:  # fmt: skip
    """Boot a KVM host, or two, and their guests."""
    _up(
        name, guests, hosts=hosts, kernel=kernel, host_kernel=host_kernel, machine=machine, mtu=mtu, memory=memory,
        guest_memory=guest_memory, guest_cpus=guest_cpus or 0, modules=modules, accelerator=accel,
    )  # fmt: skip


def _up(name: str, guests: int, **options: Any) -> None:
    from rich.console import Console

    from .lab import Lab
    from .progress import busy

    with busy(Console(stderr=True), f"booting lab {name}"):
        lab = Lab.up(name, guests, **options)
    print(f"lab {name} is up: {', '.join([*lab.hosts, *lab.guests])}")


@up.command("xen")
@click.option("--hosts", default=1, show_default=True, help="1 or 2. Guests of two hosts can be migrated.")
@click.option("--guests", default=2, show_default=True, help="How many guests: g1, g2, ...")
@click.option("--kernel", default="6.1", show_default=True, help=f"Guests' kernel: {KERNELS}.")
@click.option("--host-kernel", default="6.1", show_default=True, help="dom0's kernel.")
@click.option("--pvh", is_flag=True, help="PVH guests  [default: PV]")
@click.option("--virtual-time", is_flag=True, help="Clocks go by the instructions executed, whatever else runs here.")
@click.option("--mtu", default=1500, show_default=True, help="MTU of bridge and guests.")
@click.option("--memory", default=4096, show_default=True, metavar="MIB", help="Of each outer machine.")
@click.option("--guest-memory", type=int, metavar="MIB", help="Of each guest  [default: 512, debug kernel 1024]")
@click.option("--guest-cpus", type=click.IntRange(1), help="Of each guest  [default: 2, in virtual time 1]")
@click.option("--modules", metavar="DIR", help="*.ko for the guests  [default: out/modules/RELEASE]")
@click.option("--accel", default="auto", show_default=True, help="Of the outer machine: auto (tcg), tcg or kvm.")
@NAME
def up_xen(hosts: int, guests: int, kernel: str, host_kernel: str, pvh: bool, virtual_time: bool, mtu: int, memory: int,
           guest_memory: int | None, guest_cpus: int | None, modules: str | None, accel: str,
           name: str) -> None:  # fmt: skip
    """Boot a Xen host, or two, and their guests."""
    _up(
        name, guests, kind="xen", hosts=hosts, kernel=kernel, host_kernel=host_kernel,
        machine="pvh" if pvh else "pv", mtu=mtu, memory=memory, guest_memory=guest_memory, guest_cpus=guest_cpus or 0,
        modules=modules, accelerator=accel, virtual_time=virtual_time,
    )  # fmt: skip


@up.command("solo")
@click.option("--kernel", default="6.1", show_default=True, help=f"One of {KERNELS}.")
@click.option("--cpus", default=2, show_default=True, help="How many run side by side.")
@click.option("--memory", default=2048, show_default=True, metavar="MIB")
@click.option("--modules", metavar="DIR", help="*.ko  [default: out/modules/RELEASE]")
@click.option("--append", default="", metavar="WORDS", help="For the kernel's command line.")
@click.option("--accel", default="auto", show_default=True, help="auto, tcg or kvm.")
@NAME
def up_solo(kernel: str, cpus: int, memory: int, modules: str | None, append: str, accel: str, name: str) -> None:
    """Boot one machine by itself, called host: for what needs no hypervisor, such as the loopback transport."""
    _up(
        name, 0, kind="solo", kernel=kernel, cpus=cpus, memory=memory, modules=modules, append=append,
        accelerator=accel,
    )  # fmt: skip


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-t", "--tty/--no-tty", default=False, help="Give the command a terminal.")
@click.option("--cwd", help="Directory to run in  [default: the same as here]")
@click.option("--env", multiple=True, metavar="KEY=VALUE", help="Set in the command's environment.")
@NAME
@click.argument("machine")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec(tty: bool, cwd: str | None, env: tuple[str, ...], name: str, machine: str, command: tuple[str, ...]) -> None:
    """Run COMMAND in a MACHINE (host, g1, ...), as if it ran here."""
    # Not by way of Lab: start-up time is most of what a short command takes.
    from .process import Stream, environment
    from .terminal import run_here

    stream = Stream(paths.runtime_dir(name) / "switch.sock", machine)
    extra = dict(pair.partition("=")[::2] for pair in env)
    argv = list(command[1:] if command[0] == "--" else command)
    status = run_here(stream, argv, cwd or os.getcwd(), environment(machine, extra), terminal=tty)
    sys.stdout.flush()
    os._exit(status)  # the thread that reads stdin may never return


@main.command()
@NAME
@click.argument("source")
@click.argument("target")
def cp(name: str, source: str, target: str) -> None:
    """Copy a file: one of SOURCE and TARGET is MACHINE:PATH."""
    from .lab import Lab

    lab = Lab.open(name)
    from_machine, _, from_path = source.rpartition(":")
    to_machine, _, to_path = target.rpartition(":")
    if bool(from_machine) == bool(to_machine):
        raise VmlabError("cp copies between the outside and a machine: name one path as MACHINE:PATH")
    if to_machine:
        if to_path.endswith("/"):
            to_path += Path(source).name
        if not Path(source).is_file():
            raise VmlabError(f"{source}: no such file")
        lab.machine(to_machine).put(source, to_path)
    else:
        place = Path(target)
        lab.machine(from_machine).get(from_path, place / Path(from_path).name if place.is_dir() else place)


@main.command()
@NAME
@click.option("--follow", "-f", is_flag=True, help="Go on showing what it prints.")
@click.option("--interactive", "-i", is_flag=True, help="A shell on a guest's console; Ctrl-] leaves it.")
@click.argument("machine")
def console(name: str, follow: bool, interactive: bool, machine: str) -> None:
    """Show what the console of MACHINE has printed."""
    import time

    from .lab import Lab

    if interactive:
        guest = Lab.open(name).guest(machine)
        if not sys.stdin.isatty():
            raise VmlabError("console -i needs a terminal")
        # Without the agent too, as a console is for when all else fails.
        if guest.answers(3):
            device = f"/dev/{guest.lab.kind.guest_console}"
            guest.run(f"setsid -f setsid -c sh -c 'exec bash -i' <>{device} >&0 2>&0", check=False)
        os._exit(guest.lab.kind.attach(guest))
    lab = Lab.open(name) if follow else Lab(name)
    path = lab.directory / machine / "console.log"
    if not path.exists():
        raise VmlabError(f"no console of {machine} in lab {name}")
    with open(path, "rb") as file:
        while True:
            data = file.read()
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
            if not data and (not follow or not lab.running):
                break
            if not data:
                time.sleep(0.1)


@main.command()
@NAME
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(name: str, as_json: bool) -> None:
    """Say how a lab does."""
    from .lab import Lab

    lab = Lab.open(name)
    info = lab.info()
    if as_json:
        import json

        print(json.dumps(info, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("machine", "host", "state", "kernel", "type", "CPUs", "address", "ethernet", "bridge", "mtu")
    kind = f"{info['kind']} on {info['accelerator']}{', virtual time' if info['virtual_time'] else ''}"
    kind += f", QEMU {info['emulator'].partition(' ')[0]}"
    if info["dilation"] != 1:
        kind += f", {info['dilation']:g} times slower"
    for host in lab.hosts.values():
        table.add_row(host.name, "", "up", info["host_kernel"], kind, str(info["host_cpus"]), host.ip, "", "", "")
    for guest in info["guests"]:
        state = "up" if guest["running"] else f"ended ({guest['exit_status']})"
        bridge = guest["bridge"] + (f" vlan {guest['vlan']}" if guest["vlan"] else "")
        table.add_row(
            guest["name"],
            guest["host"],
            state,
            guest["kernel"],
            guest["machine"],
            str(guest["cpus"]),
            guest["ip"],
            guest["mac"],
            bridge,
            str(guest["mtu"]),
        )
    # No column is cut, however narrow the terminal is; a file or a pipe has no width.
    Console(width=STATUS_WIDTH).print(table)


@main.command()
@NAME
@click.option("--kernel", help=f"One of {KERNELS}.")
@click.option("--machine", help="pc or q35; pv or pvh on a Xen host.")
@click.option("--memory", type=int, metavar="MIB")
@click.option("--guest-cpus", "--cpus", "cpus", type=click.IntRange(1), help="[default: as the others]")
@click.option("--mtu", type=int)
@click.option("--bridge", help="In the host, made if it does not exist  [default: br0]")
@click.option("--vlan", type=int, help="Of its port of the bridge.")
@click.option("--subnet", type=int, metavar="N", help="10.77.N.0/24, with the host as its router  [default: 0]")
@click.option("--host", help="Of a lab with two  [default: in turn]")
@click.option("--root-ports", type=int, help="Hotplug ports of a q35 machine  [default: 8]")
@click.option(
    "--qemu-arg",
    "extra_args",
    multiple=True,
    metavar="WORD",
    help="One more word for its QEMU, or line of its xl configuration.",
)
@click.option("--append", "extra_append", metavar="WORDS", help="For its kernel's command line.")
@click.argument("guest", required=False)
def add(name: str, guest: str | None, **options: Any) -> None:
    """Boot one more GUEST; what is left out is as in the lab's other guests."""
    from .lab import Lab

    words = list(options.pop("extra_args"))
    given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    if words:
        given["extra_args"] = words
    print(Lab.open(name).add_guest(guest, **given).name)


@main.command()
@NAME
@click.argument("guest")
@click.argument("host")
def migrate(name: str, guest: str, host: str) -> None:
    """Move a GUEST to another HOST while it runs, by plain QMP or xl migrate."""
    from .lab import Lab

    Lab.open(name).migrate(guest, host)


@main.command()
@NAME
@click.argument("guest")
def start(name: str, guest: str) -> None:
    """Start a GUEST that has ended."""
    from .lab import Lab

    Lab.open(name).guest(guest).start()


@main.command()
@NAME
@click.argument("guest")
def kill(name: str, guest: str) -> None:
    """Kill a GUEST: its QEMU, or by xl destroy."""
    from .lab import Lab

    Lab.open(name).guest(guest).kill()


@main.command()
@NAME
def stage(name: str) -> None:
    """Put the newest modules where machines see them: the next modprobe loads those."""
    from .lab import Lab

    Lab.open(name).stage_modules()


@main.group()
def vmloop() -> None:
    """Have a lab's guests talk through shared memory."""


@vmloop.command("up")
@NAME
@click.option(
    "--policy",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The agent's  [default: all guests on the same bridge and VLAN may talk]",
)
def vmloop_up(name: str, policy: Path | None) -> None:
    """Start the agent in hosts, load the modules in guests, and attach those."""
    from .lab import Lab
    from .vmloop import up

    up(Lab.open(name), policy)


@vmloop.command("down")
@NAME
def vmloop_down(name: str) -> None:
    """Unload the modules and end the agent."""
    from .lab import Lab
    from .vmloop import down

    down(Lab.open(name))


@main.command()
@NAME
def down(name: str) -> None:
    """End a lab."""
    from .lab import Lab

    Lab(name).down()


@main.command()
def ls() -> None:
    """List the labs of this checkout."""
    from .lab import Lab

    for path in sorted(paths.LABS.glob("*/state.json")):
        lab = Lab(path.parent.name)
        state = lab.state
        print(f"{lab.name}\t{'up' if lab.running else 'dead'}\t{' '.join([*lab.hosts, *state.get('guests', {})])}")


@main.command("build-kernel")
@click.argument("kind", type=click.Choice(["debug", "kcsan"]))
def build_kernel(kind: str) -> None:
    """Build the kernel of --kernel debug or kcsan (takes long, once)."""
    from .build_kernel import KINDS, build

    print(f"{kind} kernel {build(kind).release} is ready; build modules for it with KDIR={KINDS[kind].build}")
