# SPDX-License-Identifier: GPL-2.0
"""Sizes in bytes, as people write them."""

import argparse

UNITS = {"G": 1 << 30, "M": 1 << 20, "K": 1 << 10}


def size_name(size: int) -> str:
    """Bytes for people: 64, 4K, 1M; what is no whole number of them as it is."""
    for name, unit in UNITS.items():
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return f"{size:,}"


def parse_size(text: str) -> int:
    """Bytes from 64, 4K, 1M. Raises ArgumentTypeError for what is none."""
    number, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS else (text, 1)
    if not (number.isascii() and number.isdigit() and int(number)):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write bytes, or K, M, G of them, as in 64K")
    return int(number) * unit


def parse_ring_size(text: str) -> int:
    """The same for a ring: a power of two from 64K to 1G."""
    size = parse_size(text)
    if size & (size - 1) or not 64 << 10 <= size <= 1 << 30:
        raise argparse.ArgumentTypeError(f"{text!r} is no size of a ring: choose a power of two from 64K to 1G")
    return size
