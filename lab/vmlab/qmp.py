# SPDX-License-Identifier: GPL-2.0
"""QMP commands to an inner QEMU, whose socket is inside the host."""

import asyncio
import logging
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from qemu.qmp import QMPClient
from qemu.qmp.error import QMPError

from .errors import GuestFailed
from .process import Stream, allowed
from .protocol import OPEN_CONNECT, Frame

if TYPE_CHECKING:
    from .machine import Guest


def _relay(stream: Stream, ours: socket.socket) -> None:
    """Carry bytes between a local socket and one inside the host."""

    def outward() -> None:
        try:
            while data := ours.recv(65536):
                stream.write(data)
        except OSError:
            pass
        stream.close()

    threading.Thread(target=outward, daemon=True).start()
    while True:
        kind, payload = stream.read()
        if kind == Frame.OUT:
            stream.grant(len(payload))
            try:
                ours.sendall(payload)
            except OSError:
                break
        elif kind in (Frame.EXIT, Frame.ERROR):
            break
    # Wakes both the reader at the other end and our own thread.
    try:
        ours.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


async def talk(name: str, qemu: socket.socket, command: str, arguments: dict[str, Any]) -> Any:
    """Run one command on a new QMP connection; returns what it returned."""
    client = QMPClient(name)
    # An event may come before the greeting, and before the answer to
    # qmp_capabilities: QEMU lets a new client in before it forgets that the
    # last one had negotiated. The client's own beginning takes it for what
    # should come, and fails; its session can tell them apart. To that the
    # greeting is an answer to nobody, of which it would warn.
    client.await_greeting = client.negotiate = False
    client.logger.setLevel(logging.ERROR)
    await client.connect(qemu)
    try:
        await client.execute("qmp_capabilities")
        return await client.execute(command, arguments)
    finally:
        # A QEMU that ends may hang up first; what it answered holds.
        with suppress(EOFError, OSError, QMPError):
            await client.disconnect()


def execute(guest: "Guest", command: str, arguments: dict[str, Any], timeout: float) -> Any:
    """Run one command on the lab's QMP socket of ``guest``.

    Raises GuestFailed when QEMU refuses it or does not answer in time.
    """
    stream = guest.host.stream()
    stream.open([guest.lab_qmp_socket], "/", {}, OPEN_CONNECT)
    theirs, ours = socket.socketpair()
    relay = threading.Thread(target=_relay, args=(stream, ours), daemon=True)
    relay.start()

    async def bounded() -> Any:
        return await asyncio.wait_for(talk(guest.name, theirs, command, arguments), allowed(timeout))

    try:
        return asyncio.run(bounded())
    except (QMPError, TimeoutError, OSError, EOFError) as error:
        raise GuestFailed(f"{guest.name}: QMP {command}: {error or 'no answer'}") from error
    finally:
        theirs.close()
        relay.join(2)
        ours.close()
