# SPDX-License-Identifier: GPL-2.0
"""Measures the packet path: the standard network against the channel, in one boot of a lab."""
