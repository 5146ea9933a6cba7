# SPDX-License-Identifier: GPL-2.0
"""Time dilation: an emulated outer machine's clocks run at a fraction of their speed.

On a slow outside an emulated machine does less in each second of its clock, and
programs inside give up that never do elsewhere: libxl waits 40 s for a script, 60 s
for a QEMU. With its clocks slowed down as much, it is again what it is elsewhere,
by its own clocks; all of a lab's machines have the same factor. From D. Gupta et
al., "To Infinity and Beyond: Time-Warped Network Emulation", NSDI 2006, where Xen
does it; here libfaketime does, below QEMU. The TSC, which QEMU takes from the CPU,
keeps its speed, and machines find by their other clocks that it is a fast one.
"""

from pathlib import Path

from .errors import VmlabError
from .process import SLOW

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


def factor(accelerator: str, virtual_time: bool) -> float:
    """How many times slower than real the clocks of such an outer machine run."""
    # Virtual time does not depend on the outside. Under KVM clocks are the outside's own.
    return SLOW if accelerator == "tcg" and not virtual_time else 1.0


def environment(factor: float) -> dict[str, str]:
    """What a QEMU's environment needs for clocks that run at 1/``factor``; nothing for 1.

    Raises VmlabError when the library is missing.
    """
    if factor == 1:
        return {}
    if not LIBRARY.exists():
        raise VmlabError(f"VMLAB_SLOW={factor:g} needs {LIBRARY}: 'make deps' installs it")
    return {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME": f"+0 x{1 / factor:.9f}",
        # Files that a machine sees keep their times.
        "NO_FAKE_STAT": "1",
    }
