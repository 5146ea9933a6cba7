# SPDX-License-Identifier: GPL-2.0
"""What the agent takes for many guests: memory, time from an arrival to everyone's directory, CPU."""
