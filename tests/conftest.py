# SPDX-License-Identifier: GPL-2.0
"""Makes the lab's fixtures known to every test."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))

pytest_plugins = ["vmlab.pytest_plugin"]
