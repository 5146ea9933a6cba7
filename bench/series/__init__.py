# SPDX-License-Identifier: GPL-2.0
"""`make series`: throughput over the size of messages, and over the size of the rings."""
