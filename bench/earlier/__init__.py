# SPDX-License-Identifier: GPL-2.0
"""This build of vmloop beside an earlier one, in the same guests."""
