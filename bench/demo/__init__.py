# SPDX-License-Identifier: GPL-2.0
"""`make demo`: two guests talk, with vmloop and without, and a page shows what came of it."""
