# SPDX-License-Identifier: GPL-2.0
"""kTLS that is given a socket whose other thread connects meanwhile.

    late_tls.py serve PORT
    late_tls.py run HOST PORT

`run` has a socket that kTLS has before, says "ready", and at SIGUSR1 one that is not connected when it asks for kTLS,
and is when kTLS gets it: its name is in a page that is brought in between. It says "given", and uses both at SIGUSR1.
`serve` sends back what it gets.
"""

import ctypes
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path

# As a script it is found beside its folder.
sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.guest.tools.missing import MissingPage, libc

TCP_ULP = 31


def serve(port: int) -> None:
    def answer(one: socket.socket) -> None:
        while part := one.recv(1 << 16):
            one.sendall(part)

    with socket.create_server(("", port)) as listener:
        print("ready", flush=True)
        for _ in range(2):
            threading.Thread(target=answer, args=(listener.accept()[0],)).start()


def use(one: socket.socket) -> None:
    """Calls by both of its tables."""
    for turn in range(100):
        one.sendall(b"x" * turn)
        waits = select.poll()
        waits.register(one, select.POLLIN)
        assert not turn or waits.poll(10_000), turn
        assert turn == 0 or one.recv(turn, socket.MSG_WAITALL) == b"x" * turn
        assert waits.poll(0) == []


def run(host: str, port: int) -> None:
    page, said = MissingPage(), []
    before = socket.create_connection((host, port))
    before.setsockopt(socket.SOL_TCP, TCP_ULP, b"tls")
    print("ready", flush=True)
    signal.sigwait([signal.SIGUSR1])
    late = socket.socket()

    def ask() -> None:
        size = ctypes.c_int(3)
        said.append(threading.get_native_id())
        result = libc.setsockopt(late.fileno(), socket.SOL_TCP, TCP_ULP, ctypes.c_void_p(page.address), size)
        said.append(result or ctypes.get_errno() * result)

    asks = threading.Thread(target=ask)
    asks.start()
    while not said or "userfault" not in Path(f"/proc/self/task/{said[0]}/wchan").read_text():
        time.sleep(0.01)
    late.connect((host, port))
    page.bring(b"tls")
    asks.join()
    assert said[1] == 0, said
    print("given", flush=True)
    signal.sigwait([signal.SIGUSR1])
    for one in (before, late):
        use(one)
        one.close()


signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
if sys.argv[1] == "serve":
    serve(int(sys.argv[2]))
else:
    run(sys.argv[2], int(sys.argv[3]))
