# SPDX-License-Identifier: GPL-2.0
"""How long after its arrival a guest of Xen has its channel."""
