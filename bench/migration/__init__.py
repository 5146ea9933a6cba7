# SPDX-License-Identifier: GPL-2.0
"""Two hosts, and a guest that moves between them under traffic."""
