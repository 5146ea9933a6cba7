# SPDX-License-Identifier: GPL-2.0
"""Benchmarks and the demo. They emit series and never pass or fail."""
