# SPDX-License-Identifier: GPL-2.0
"""Runs other projects' own tests with the stream path and without it, and compares the results."""
