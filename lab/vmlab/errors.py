# SPDX-License-Identifier: GPL-2.0
"""What can go wrong, by whose fault it is."""


class VmlabError(Exception):
    """A wrong use of the lab, or something missing on the outside."""


class LabFailed(VmlabError):
    """The stage broke: the outer machine, its boot, or the lab's own programs.

    Says nothing about the software under test, so a test run may boot the lab
    once more, and reports that it did.
    """


class GuestFailed(VmlabError):
    """A guest broke: panic, oops, QEMU ended, no answer. Never retried."""


class CommandFailed(VmlabError):
    """A command in a machine ended with another status than 0, or too late."""


class CommandTimeout(CommandFailed):
    """A command still runs at its deadline, in a machine that is well."""


class ConsoleFailed(GuestFailed):
    """A guest's console shows what no kernel should print."""


def story(error: BaseException) -> str:
    """All that went wrong, the first of it first: who cleans up afterwards fails in turn."""
    found = [error]
    while (before := found[0].__cause__ or found[0].__context__) is not None and before not in found:
        found.insert(0, before)
    told = dict.fromkeys(str(one) or type(one).__name__ for one in found)
    return "\n  and then: ".join(told)
