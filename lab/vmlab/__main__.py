# SPDX-License-Identifier: GPL-2.0
"""``python -m vmlab`` is ``./vmlab``."""

from .cli import main

main(prog_name="vmlab")
