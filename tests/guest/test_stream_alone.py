# SPDX-License-Identifier: GPL-2.0
"""Connections, and calls, that are TCP's alone."""

import signal
from functools import partial
from pathlib import Path

import pytest

from tests.guest.net import until
from tests.guest.streams import NEVER, Streams
from tests.guest.test_stream import ANEW, CONNECT, TURNS
from tests.guest.veth import IP, inside

pytestmark = [pytest.mark.loopback, pytest.mark.kvm_only]

PORT = 5541
LATE_TLS = Path(__file__).parent / "tools/late_tls.py"


SIGNED = """
import socket, struct, sys
role, here, there, port, key = *sys.argv[1:4], int(sys.argv[4]), sys.argv[5].encode()

def sign(one, host):
    address = struct.pack('=HH', socket.AF_INET, 0) + socket.inet_aton(host)
    if key:
        # TCP_MD5SIG: struct tcp_md5sig
        one.setsockopt(socket.SOL_TCP, 14, address.ljust(128, b'\\0') +
                       struct.pack('=BBHi', 0, 0, len(key), 0) + key.ljust(80, b'\\0'))

if role == 'serve':
    with socket.create_server((here, port)) as listener:
        sign(listener, there)
        print('ready', flush=True)
        one, _ = listener.accept()
else:
    one = socket.socket()
    sign(one, there)
    one.connect((there, port))
for turn in range(2000):
    if role == 'run':
        one.sendall(b'x')
    assert one.recv(1) == b'x'
    if role == 'serve':
        one.sendall(b'x')
one.close()
"""
"""A byte goes to and fro; with a key TCP signs all of it. The key is there before the connection."""


@pytest.mark.main("connections that TCP signs left it, and its signatures, for a lane")
def test_signed_from_the_first_packet(stage: str, streams: Streams) -> None:
    """A connection has no lane whose keys (TCP_MD5SIG) were set before it was made, as BGP's are."""
    host = streams.host
    streams.leave_after(1)
    for port, key in ((PORT, "secret"), (PORT + 1, "")):
        with host.popen(inside("b", "python3", "-c", SIGNED, "serve", IP[1], IP[0], port, key)) as server:
            server.wait_for("ready", 60)
            host.run(inside("a", "python3", "-c", SIGNED, "run", IP[0], IP[1], port, key), timeout=120)
            assert server.wait(60).code == 0, server.err
        assert (streams.counter("paired") == 0) == bool(key)


IMPATIENT = (
    TURNS
    + """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)

def libc_splice(source, sink):
    if libc.splice(source, None, sink, None, ctypes.c_size_t(100), 0) < 0:
        raise OSError(ctypes.get_errno(), 'splice')

if role == 'run':
    # Less than a call may take that waits for the peer.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(4)
    one.setblocking(False)
    for call in (
        lambda: one.setsockopt(socket.SOL_TCP, 31, b'tls'),
        lambda: libc_splice(one.fileno(), os.pipe()[1]),
        lambda: one.setsockopt(socket.SOL_TCP, 31, b'tls'),
    ):
        try:
            call()
            print('done', flush=True)
        except OSError as error:
            print(os.strerror(error.errno), flush=True)
    signal.alarm(0)
    one.setblocking(True)
    print('told', flush=True)
one.close()
"""
)
"""`run` makes calls that have a connection go back to TCP, and does not want to wait in them."""

SILENCE = f"add table ip silence; add chain ip silence out {{ type filter hook output priority 0; }}; \
add rule ip silence out tcp sport {PORT} drop"


def test_calls_that_do_not_wait(stage: str, streams: Streams) -> None:
    """A program with O_NONBLOCK does not stand still in a call, though the peer never answers."""
    host = streams.host
    streams.leave_after(1)
    host.run("modprobe tls")
    with host.popen(inside("b", "python3", "-c", IMPATIENT, "serve", "-", PORT)) as server:
        server.wait_for("ready", 60)
        with host.popen(inside("a", "python3", "-c", IMPATIENT, "run", IP[1], PORT)) as client:
            until(lambda: streams.counter("rx_bytes") > 100, 60, "bytes come by a lane")
            host.run(inside("b", "nft", SILENCE))
            try:
                client.terminate()
                client.wait_for("told", 60)
            finally:
                host.run(inside("b", "nft", "delete table ip silence"))
            assert client.out.split("\n")[:3] == [
                "Device or resource busy", "Resource temporarily unavailable", "Device or resource busy",
            ]  # fmt: skip
            assert client.wait(60).code == 0, client.err
        assert server.wait(90).code == 0, server.err


@pytest.mark.main("kTLS had our tables where a program connected while it asked for it, past rmmod")
def test_kernel_tls_meanwhile(stage: str, streams: Streams) -> None:
    """kTLS that got a socket of ours has nothing of ours when the module has gone; nor have its other sockets."""
    host = streams.host
    streams.leave_after(NEVER)
    host.run("modprobe tls")
    with host.popen(inside("b", "python3", LATE_TLS, "serve", PORT)) as server:
        server.wait_for("ready", 60)
        with host.popen(inside("a", "python3", LATE_TLS, "run", IP[1], PORT)) as client:
            client.wait_for("ready", 60)
            taken = streams.counter("taken")
            client.send_signal(signal.SIGUSR1)
            client.wait_for("given", 60)
            assert streams.counter("taken") > taken
            host.run("rmmod vmloop_tcp", timeout=120)
            client.send_signal(signal.SIGUSR1)
            assert client.wait(60).code == 0, client.err
        assert server.wait(60).code == 0, server.err


ANOTHER = (
    CONNECT.replace("one, _ = listener.accept()", "(one, _), (two, _) = listener.accept(), listener.accept()")
    + ANEW
    + """
import threading
from pathlib import Path

def ask():
    said.append(threading.get_native_id())
    # TCP_INQ
    err = libc.setsockopt(one.fileno(), socket.SOL_TCP, 36, ctypes.byref(ctypes.c_int(1)), 4)
    said.append(os.strerror(ctypes.get_errno()) if err else 'done')

# Python's own setsockopt() does not let the other thread run.
said = []
one.setblocking(True)
if role == 'serve':
    try:
        while part := one.recv(1):
            one.sendall(part)
    except ConnectionResetError:
        pass
    while two.recv(1):
        pass
    sys.exit()
two = socket.create_connection((address, port))
ends = []
signal.signal(signal.SIGTERM, lambda *_: ends.append(1))
while not ends:
    one.sendall(b'x')
    assert one.recv(1) == b'x'
print('stops', flush=True)
there = place(address, port + 1)
asks = threading.Thread(target=ask)
asks.start()
while not said or 'vmloop_tcp' not in Path(f'/proc/self/task/{said[0]}/stack').read_text():
    time.sleep(0.01)
connect_anew(one.fileno(), there)
asks.join()
print('asked', flush=True)
one.sendall(b'x')
one.close()
two.close()
"""
)
"""`run` has its socket connect anew, to the next port, while its other thread asks for an option that TCP alone has."""


@pytest.mark.main("a socket that connected anew while a call handed it to TCP was in the module's table for ever")
def test_another_connection_amid_a_call(stage: str, streams: Streams) -> None:
    """A call that waits for a connection to be TCP's does not take the next connection of the socket for it."""
    host = streams.host
    streams.leave_after(1)

    def used() -> str:
        """Sockets of the client's namespace that have memory."""
        return host.run(inside("a", "grep", "used", "/proc/net/sockstat")).out

    before = used()
    # Which of the two threads is first may be chance.
    for port in range(PORT, PORT + 8, 2):
        with (
            host.popen(inside("b", "python3", "-c", ANOTHER, "serve", "-", port)) as server,
            host.popen(inside("b", "socat", "-u", f"TCP-LISTEN:{port + 1},reuseaddr", "OPEN:/dev/null")) as other,
        ):
            server.wait_for("ready", 60)
            came = streams.counter("rx_bytes")
            with host.popen(inside("a", "python3", "-c", ANOTHER, "run", IP[1], port)) as client:
                until(
                    partial(lambda least: streams.counter("rx_bytes") > least + 100, came), 60, "bytes come by a lane"
                )
                host.run(inside("b", "nft", SILENCE.replace(str(PORT), str(port))))
                try:
                    client.terminate()
                    client.wait_for("asked", 60)
                finally:
                    host.run(inside("b", "nft", "delete table ip silence"))
                assert client.wait(60).code == 0, client.err
            assert server.wait(90).code == 0, server.err
            assert other.wait(60).code == 0, other.err
    until(lambda: used() == before, 60, f"as many sockets as before, {before}")


NFS = """
import signal, socket, struct, subprocess, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])

def put(name, text):
    with open('/proc/fs/nfsd/' + name, 'w') as file:
        file.write(text + '\\n')

def ask(one, number):
    # ONC RPC (RFC 5531): NFS 4's call that does nothing, with no credentials, as one record.
    call = struct.pack('>10I', number, 0, 2, 100003, 4, 0, 0, 0, 0, 0)
    one.sendall(struct.pack('>I', 1 << 31 | len(call)) + call)
    assert one.recv(28, socket.MSG_WAITALL) == struct.pack('>7I', 1 << 31 | 24, number, 1, 0, 0, 0, 0)

if role == 'serve':
    subprocess.run(['mount', '-t', 'nfsd', 'nfsd', '/proc/fs/nfsd'], check=True)
    put('versions', '-3 +4')
    with socket.create_server((address, port)) as listener:
        put('portlist', str(listener.fileno()))
    # It waits when the kernel accepts for the first time.
    first = socket.create_connection((address, port), 20)
    put('threads', '1')
    ask(first, 1)
    print('ready', flush=True)
    signal.sigwait([signal.SIGTERM])
    put('threads', '0')
else:
    some = []
    for number in range(5):
        some.append(socket.create_connection((address, port), 20))
        for turn in range(200):
            ask(some[-1], turn)
    print('asked', flush=True)
    signal.sigwait([signal.SIGTERM])
    for one in some:
        ask(one, 7)
        one.close()
"""
"""The kernel's NFS server accepts by a listener of the program's, and answers."""


@pytest.mark.main("what the kernel accepted by a program's listener had our calls, which kTLS may copy")
def test_kernel_accepts(stage: str, streams: Streams) -> None:
    """What the kernel accepts by a listener that a program made is the kernel's alone, and so is the listener."""
    host = streams.host
    streams.leave_after(1)
    host.run("modprobe nfsd")
    host.run("ip -n b link set lo up")
    with host.popen(inside("b", "python3", "-c", NFS, "serve", IP[1], PORT)) as server:
        server.wait_for("ready", 60)
        with host.popen(inside("a", "python3", "-c", NFS, "run", IP[1], PORT)) as client:
            client.wait_for("asked", 60)
            assert streams.counter("paired") == 0
            host.run("rmmod vmloop_tcp", timeout=120)
            client.terminate()
            assert client.wait(60).code == 0, client.err
        server.terminate()
        assert server.wait(60).code == 0, server.err


ISCSI = "/sys/kernel/config/target/iscsi"


@pytest.mark.main("rmmod waited for the next initiator, where an iSCSI target listened")
def test_kernel_listens(stage: str, streams: Streams) -> None:
    """A listener that the kernel has made, and waits at (an iSCSI target's), is none of ours."""
    host = streams.host
    host.run("modprobe iscsi_target_mod")
    host.run("mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config")
    group = f"{ISCSI}/iqn.2026-11.org.example:one/tpgt_1"
    host.run(f"mkdir {ISCSI}; mkdir -p {group} && mkdir {group}/np/0.0.0.0:{PORT}", check=False)
    try:
        assert f":{PORT}" in host.run("ss -Hltn").out
        host.run("rmmod vmloop_tcp", timeout=30)
    finally:
        host.run(f"rmdir {group}/np/* {group} {ISCSI}/iqn* {ISCSI}", check=False)
