# SPDX-License-Identifier: GPL-2.0
"""Programs that read into a page that nobody brings (userfaultfd), in the middle of TCP's recvmsg().

    slow_memory.py serve PORT
    slow_memory.py run HOST PORT

`run` makes BATCH connections, sends a byte by each at SIGUSR1, and makes the next BATCH at another SIGUSR1. `serve`
says `batch N` when it has accepted so many times BATCH, and has a thread for each of the last BATCH read that byte into
the page at SIGUSR1. SIGTERM at `serve` brings the page: it says how many threads have read the byte.
"""

import ctypes
import resource
import signal
import socket
import sys
import threading
from pathlib import Path

# As a script it is found beside its folder.
sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.guest.tools.missing import MissingPage, libc

BATCH = 12


def serve(port: int) -> None:
    page = MissingPage()
    right: list[int] = []

    def read(one: socket.socket) -> None:
        # The same byte of the same page for all.
        if libc.recv(one.fileno(), ctypes.c_void_p(page.address), 1, 0) == 1:
            right.append(1)

    threads: list[threading.Thread] = []
    kept: list[socket.socket] = []
    with socket.create_server(("", port), backlog=BATCH) as listener:
        print("ready", flush=True)
        while True:
            batch = [listener.accept()[0] for _ in range(BATCH)]
            kept += batch
            print("batch", len(kept) // BATCH, flush=True)
            if signal.sigwait([signal.SIGUSR1, signal.SIGTERM]) == signal.SIGTERM:
                break
            threads += [threading.Thread(target=read, args=(one,)) for one in batch]
            for thread in threads[-BATCH:]:
                thread.start()
    page.bring()
    for thread in threads:
        thread.join()
    print("right", len(right), len(threads), flush=True)


def run(host: str, port: int) -> None:
    kept = []
    while True:
        batch = [socket.create_connection((host, port)) for _ in range(BATCH)]
        signal.sigwait([signal.SIGUSR1])
        for one in batch:
            one.send(b"x")
        kept += batch
        signal.sigwait([signal.SIGUSR1])


signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
if sys.argv[1] == "serve":
    serve(int(sys.argv[2]))
else:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    run(sys.argv[2], int(sys.argv[3]))
