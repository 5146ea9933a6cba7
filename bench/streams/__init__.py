# SPDX-License-Identifier: GPL-2.0
"""`make series-stream`: connections of TCP by lanes, over sizes of messages, blocks and rings."""
