# SPDX-License-Identifier: GPL-2.0
"""Throughput through what guests put above and below their interfaces, with vmloop and without."""
