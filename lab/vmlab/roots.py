# SPDX-License-Identifier: GPL-2.0
"""Roots with Debian's programs, unpacked and not installed: for machines that run what the outside does not have.

    packed = roots.build("servers", "bookworm", ["nginx-light", "wrk"])
    roots.place(guest, packed, "/run/servers")
    guest.run(roots.command("/run/servers", "wrk http://10.0.0.2/"))

They have their own libraries, whatever the outside runs, and are in a machine's memory. No script of a package has run
in them; there are two users, root and `tester`.
"""

import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from . import archive, paths, suites
from .machine import Guest, Machine

USER = 1000
"""Of `tester`."""
LEFT_OUT = (
    "usr/include",
    "usr/share/doc",
    "usr/share/i18n",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/lib/gcc",
    "usr/lib/llvm-14",
    "usr/lib/python3*",
    "usr/lib/postgresql/15/lib/bitcode",
    "usr/lib/x86_64-linux-gnu/*.a",
    "usr/lib/x86_64-linux-gnu/lib[altu]*san.so*",
    "usr/lib/x86_64-linux-gnu/libLLVM*",
    "usr/lib/x86_64-linux-gnu/libz3*",
    "usr/lib/x86_64-linux-gnu/perl/*/CORE",
    "usr/lib/x86_64-linux-gnu/libclang*",
    "usr/bin/*lto-dump*",
    "usr/bin/python3*",
)
"""What is large, and not run: compilers, documentation; and what a database compiles queries with."""
COMPILER = ("usr/include", "usr/lib/gcc", "usr/lib/x86_64-linux-gnu/*.a")
"""What of that a program needs that compiles while it runs."""
MOUNTED = ("proc", "sys", "dev")
PORT = 7900
"""And a guest's index: where its host sends it an archive, if it has no file system of the outside's."""
PASSWD = f"root:x:0:0::/root:/bin/sh\ntester:x:{USER}:{USER}::/tmp:/bin/sh\n"
GROUP = f"root:x:0:\ntester:x:{USER}:\n"


def build(
    name: str,
    suite: str,
    packages: Iterable[str],
    change: Callable[[Path], None] | None = None,
    identity: object = None,
    compiler: bool = False,
) -> Path:
    """The archive of a root with packages of a suite and all that they need; made once.

    ``change`` may alter the root before it is packed; what that depends on is in ``identity``. With ``compiler``, it
    can compile C. Raises VmlabError.
    """
    left_out = [pattern for pattern in LEFT_OUT if not compiler or pattern not in COMPILER]
    unpacked = suites.unpack(suite, packages, with_dependencies=True)

    def make(scratch: Path) -> list[str]:
        shutil.copytree(unpacked, scratch, symlinks=True, dirs_exist_ok=True)
        _trim(scratch, left_out)
        if change:
            change(scratch)
        return ["."]

    return archive.made("roots", name, (unpacked.name, left_out, PASSWD, identity), make)


def _trim(root: Path, left_out: Iterable[str]) -> None:
    """Leave out what is large, and add what scripts of packages would."""
    for pattern in left_out:
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    for name in (*MOUNTED, "tmp", "root"):
        (root / name).mkdir(exist_ok=True)
    if not (root / "usr/bin/awk").exists() and (root / "usr/bin/mawk").exists():
        (root / "usr/bin/awk").symlink_to("mawk")
    (root / "etc/passwd").write_text(PASSWD)
    (root / "etc/group").write_text(GROUP)


def place(machine: Machine, packed: Path, root: str, timeout: float = 300) -> None:
    """Have a root in a machine's memory, unless this one is there."""
    if machine.run(f"cat {root}.is", check=False).out.strip() == packed.name:
        return
    remove(machine, root)
    with _reading(machine, packed) as read:
        machine.run(f"mkdir -p {root} && {read} | tar -xf - -C {root}", timeout=timeout)
    machine.run(
        f"chmod 1777 {root}/tmp && cp /etc/hosts {root}/etc/hosts && "
        f"for name in {' '.join(MOUNTED)}; do mount --rbind /$name {root}/$name && mount --make-rslave {root}/$name "
        f"|| exit 1; done; "
        f"echo {packed.name} >{root}.is",
        timeout=timeout,
    )


@contextmanager
def _reading(machine: Machine, packed: Path) -> Iterator[str]:
    """A command of a machine's that prints the archive, during the block."""
    if not isinstance(machine, Guest) or not machine.spec.movable:
        # In large pieces: what tar reads at a time, 10 KiB, takes a guest of Xen's some 40 ms by 9p.
        yield f"dd if={packed} bs=1M status=none"
        return
    host, port = machine.host, PORT + machine.spec.index
    listens = f"/run/archive-{machine.name}.pid"
    host.run(["rm", "-f", listens])
    with host.popen(["/usr/bin/python3", str(paths.RELAY), "listen", str(port), listens, "/bin/cat", str(packed)]):
        host.run(f"until [ -s {listens} ]; do sleep 0.05; done")
        yield f"nc {host.ip} {port} </dev/null"


def remove(machine: Machine, root: str) -> None:
    """Give the memory of a root back; nothing of it may run any more.

    What is mounted there is the machine's own: unless all of that is gone, nothing is removed.
    """
    mounted = f"cut -d ' ' -f 2 /proc/mounts | grep '^{root}/' | sort -r"
    machine.run(
        f"for at in $({mounted}); do umount $at || exit 1; done; left=$({mounted}); "
        f'test -z "$left" && rm -rf {root} {root}.is',
        timeout=300,
    )


def command(root: str, script: str, user: int = 0) -> str:
    """A command of a machine's shell that runs a script in a root, as a user."""
    # With its path: busybox would run an applet of its own.
    as_user = f"/usr/bin/setpriv --reuid={user} --regid={user} --clear-groups " if user else ""
    environment = "env -i PATH=/usr/sbin:/usr/bin HOME=/tmp LC_ALL=C.UTF-8"
    return f"exec {environment} chroot {root} {as_user}/bin/sh -c {shlex.quote(script)}"
