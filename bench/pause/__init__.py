# SPDX-License-Identifier: GPL-2.0
"""For how long a guest of Xen stands still when it is saved."""
