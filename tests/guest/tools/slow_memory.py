# SPDX-License-Identifier: GPL-2.0
"""Programs that read into a page that nobody brings (userfaultfd), in the middle of TCP's recvmsg().

    slow_memory.py serve PORT
    slow_memory.py run HOST PORT

`run` makes BATCH connections, sends a byte by each at SIGUSR1, and makes the next BATCH at another SIGUSR1. `serve`
says `batch N` when it has accepted so many times BATCH, and has a thread for each of the last BATCH read that byte into
the page at SIGUSR1. SIGTERM at `serve` brings the page: it says how many threads have read the byte.
"""

import ctypes
import fcntl
import mmap
import resource
import signal
import socket
import struct
import sys
import threading

BATCH = 12
USERFAULTFD = 323
UFFDIO_API = 0xC018AA3F
UFFDIO_REGISTER = 0xC020AA00
UFFDIO_COPY = 0xC028AA03
API, MODE_MISSING = 0xAA, 1

libc = ctypes.CDLL(None, use_errno=True)


def page_that_is_missing() -> tuple[mmap.mmap, int, int]:
    """Memory, its address, and the file descriptor by which its page can be brought."""
    fd = libc.syscall(USERFAULTFD, 0)
    if fd < 0:
        sys.exit("no userfaultfd: " + str(ctypes.get_errno()))
    fcntl.ioctl(fd, UFFDIO_API, struct.pack("QQQ", API, 0, 0))
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(fd, UFFDIO_REGISTER, struct.pack("QQQQ", address, mmap.PAGESIZE, MODE_MISSING, 0))
    return memory, address, fd


def serve(port: int) -> None:
    memory, address, fd = page_that_is_missing()
    right: list[int] = []

    def read(one: socket.socket) -> None:
        # The same byte of the same page for all.
        if libc.recv(one.fileno(), ctypes.c_void_p(address), 1, 0) == 1:
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
    source = ctypes.create_string_buffer(mmap.PAGESIZE)
    fcntl.ioctl(fd, UFFDIO_COPY, struct.pack("QQQQq", address, ctypes.addressof(source), mmap.PAGESIZE, 0, 0))
    for thread in threads:
        thread.join()
    print("right", len(right), len(threads), flush=True)
    del memory


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
