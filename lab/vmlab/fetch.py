# SPDX-License-Identifier: GPL-2.0
"""Puts into the cache what labs need and this machine has not, before the first one boots.

python -m vmlab.fetch 6.1 6.12
"""

import sys

from . import emulator, kernels, xen
from .errors import VmlabError


def main() -> int:
    """Fetch the emulator, Xen, and the kernels that are named."""
    try:
        emulator.find()
        xen.packages()
        for series in sys.argv[1:]:
            kernels.find_kernel(series)
    except VmlabError as error:
        print(f"vmlab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
