# SPDX-License-Identifier: GPL-2.0
"""What pages are made from, and how they are looked at."""

import re
import xml.etree.ElementTree as ElementTree

from bench.path.hosts import HOSTS


def host(kind):
    return {
        "cpu": "A <fast> CPU", "cpus": 2, "accelerator": "tcg", "host_kernel": "6.1.0", "guest_kernel": "6.12.0",
        "guest_cpus": 2, "emulator": "QEMU 10.0",
        "machine": "pv", "kind": kind, "hypervisor": "Xen 4.17", "qemu": "QEMU 7.2", "lab_retries": [],
        "virtual_time": HOSTS[kind].virtual_time, "time": "real", "standard_network": HOSTS[kind].standard_network,
        "cpu_time": HOSTS[kind].cpu_time, "clocksource": {"host": "xen", "guest": "xen"},
    }  # fmt: skip


def record(limit):
    return {"disturbed_above_cpus": limit, "repeated": 3, "kept_although_disturbed": 1, "slices": []}


def drawings(text):
    """The SVGs of a page, each well formed, with nothing outside of its width or height, as far as numbers tell."""
    found = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    for svg in found:
        for element in svg.iter():
            for key in ("x1", "x2", "cx", "y1", "y2", "cy"):
                if key in element.attrib:
                    limit = float(svg.attrib["viewBox"].split()[2 if "x" in key else 3])
                    assert -1 <= float(element.attrib[key]) <= limit + 1
    return found
