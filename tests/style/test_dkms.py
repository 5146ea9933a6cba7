# SPDX-License-Identifier: GPL-2.0
"""Packages have all modules, but for the path of the tests."""

import re
from pathlib import Path

TOP = Path(__file__).parents[2]
OF_TESTS = {"vmloop_toy"}


def test_all_modules_are_packaged():
    made = set(
        re.findall(r"\b(vmloop\w*)\.o", "\n".join(re.findall(r"^obj-m.*", (TOP / "kernel/Kbuild").read_text(), re.M)))
    )
    listed = re.findall(r'^BUILT_MODULE_NAME\[(\d+)\]="(\w+)"', (TOP / "packaging/dkms.conf").read_text(), re.M)
    assert {name for _, name in listed} == made - OF_TESTS
    assert [int(number) for number, _ in listed] == list(range(len(listed)))
