# SPDX-License-Identifier: GPL-2.0
"""Programs that users have, one guest's talking to another's: what each serves with, and what its client is.

They are Debian's, in a root of their own (vmlab.roots). A client runs until it is told to end; one whose connection
breaks ends by itself, or says so.
"""

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from vmlab import Guest, roots
from vmlab.process import Process

from tests.guest.net import HERE, at_once, until

SUITE = "bookworm"
PACKAGES = (
    "bash",
    "coreutils",
    "dash",
    "diffutils",
    "netcat-openbsd",
    "nginx-light",
    "openssh-client",
    "openssh-server",
    "postgresql-15",
    "redis-server",
    "rsync",
    "util-linux",
    "wrk",
)
ROOT = "/run/programs"
DATABASE = "PATH=/usr/lib/postgresql/15/bin:$PATH"
SSH = (
    "ssh -p 2222 -i /tmp/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "
    "-o ServerAliveInterval=5 -o ServerAliveCountMax=100"
)


SCARCE = ("tcp room", "tcp quota")
"""How connections stand that stay on TCP for want of memory: the channel has none, or their user has its share."""


@dataclass(frozen=True)
class Program:
    """A server and its client; SERVER stands for its address."""

    name: str
    port: int
    serve: str
    client: str
    prepare: str = "true"
    """What the client's side does first."""
    user: int = 0
    """Of the server."""
    end: int = signal.SIGTERM
    """The signal after which the client says what it has seen."""
    wrong: str = "rror|FATAL|abort"
    """What it says if a connection broke."""
    right: str = ""
    """And what it says at its end."""
    lasting: bool = True
    """Its connections last as long as it does."""


NGINX = """\
daemon off; user root; worker_processes 1; pid /tmp/nginx.pid; error_log /tmp/nginx.log;
events {}
http { access_log off; keepalive_requests 100000000; server { listen 8080; root /tmp/www; } }
"""

PROGRAMS = (
    Program(
        "nginx",
        8080,
        f"mkdir -p /tmp/www /var/lib/nginx /var/log/nginx; head -c 65536 /dev/urandom >/tmp/www/file; "
        f"echo '{NGINX}' >/tmp/nginx.conf; exec nginx -c /tmp/nginx.conf",
        "exec wrk -t 1 -c 4 -d 3600s --timeout 60s http://SERVER:8080/file",
        end=signal.SIGINT,
        wrong="Socket errors|Non-2xx",
        right="Requests/sec: *[1-9]",
    ),
    Program(
        "redis",
        6379,
        "cd /tmp; exec redis-server --port 6379 --bind 0.0.0.0 --protected-mode no --save ''",
        "exec redis-benchmark -h SERVER -c 4 -d 16384 -t set,get -n 1000000000 -q",
    ),
    Program(
        "postgresql",
        5432,
        f"{DATABASE}; cd /tmp; initdb --no-sync -U tester -A trust -D /tmp/db >/tmp/initdb.log && "
        "echo 'host all all 0.0.0.0/0 trust' >>/tmp/db/pg_hba.conf && "
        "exec postgres -D /tmp/db -c listen_addresses='*' -c unix_socket_directories= -c fsync=off -c jit=off",
        f"{DATABASE}; exec pgbench -h SERVER -U tester -c 4 -T 3600 postgres",
        prepare=f"{DATABASE}; pgbench -h SERVER -U tester -q -i -s 1 postgres",
        user=roots.USER,
    ),
    Program(
        "ssh",
        2222,
        "mkdir -p /run/sshd; ssh-keygen -q -t ed25519 -N '' -f /tmp/host; "
        "echo sshd:x:998:998::/run/sshd:/usr/sbin/nologin >>/etc/passwd; "
        "exec /usr/sbin/sshd -D -e -f /dev/null -p 2222 -h /tmp/host -o AuthorizedKeysFile=/tmp/allowed "
        "-o StrictModes=no -o PermitRootLogin=yes -o UsePAM=no",
        f"head -c 4194304 /dev/urandom >/tmp/file; while :; do "
        f"rsync --whole-file --ignore-times -e '{SSH}' /tmp/file root@SERVER:/tmp/copy || "
        f"{{ echo error: rsync; exit 1; }}; "
        f'test "$({SSH} root@SERVER sha256sum </tmp/file)" = "$(sha256sum </tmp/file)" || '
        f"{{ echo error: bytes; exit 1; }}; "
        f"{SSH} root@SERVER cmp /tmp/copy - </tmp/file || {{ echo error: another file; exit 1; }}; done",
        # rsync would say of any other that it was an error.
        end=signal.SIGKILL,
        wrong="error|lost|reset|closed",
        lasting=False,
    ),
)

[SSH_PROGRAM] = [one for one in PROGRAMS if one.name == "ssh"]


class Running:
    """All programs at work.

    ``slow`` is by how much things may take longer. Where the server's guest moves, nothing of the outside's may have a
    line to what runs in it (``moves``). Where memory for lanes is scarce, connections may stay on TCP for want of it.
    """

    def __init__(self, client: Guest, server: Guest, slow: float, moves: bool = False, scarce: bool = False) -> None:
        self.client = client
        self.server = server
        self.slow = slow
        self.moves = moves
        self.scarce = scarce
        self.clients: dict[Program, Process] = {}
        self.standing: dict[str, str] = {}
        """How the module says that each connection stands, by local address."""

    def start(self, stack: ExitStack) -> None:
        """All servers, then all clients: these take the CPUs that a server needs to begin."""

        def at(script: str) -> str:
            return roots.command(ROOT, script.replace("SERVER", self.server.ip))

        ends = {program: self.serve(program, stack) for program in PROGRAMS}
        for program, has_ended in ends.items():

            def serves(program: Program = program, has_ended: Callable[[], str] = has_ended) -> bool:
                end = has_ended()
                assert not end, f"{program.name} ended: {end}"
                return self.client.run(at(f"nc.openbsd -z SERVER {program.port}"), check=False).code == 0

            until(serves, 90 * self.slow, f"{program.name} serves")
        for program in PROGRAMS:
            self.client.run(at(program.prepare), timeout=120 * self.slow)
        for program in PROGRAMS:
            self.clients[program] = stack.enter_context(self.client.popen(at(program.client)))

    def serve(self, program: Program, stack: ExitStack) -> Callable[[], str]:
        """Start a server; what is returned says how it ended, if it has."""
        serve = roots.command(ROOT, program.serve, program.user)
        if not self.moves:
            server = stack.enter_context(self.server.popen(serve))
            return lambda: "" if server.poll() is None else f"{server.poll()}: {server.err}"
        file = f"/tmp/{program.name}"
        self.server.run(f"cat >{file}.sh", stdin=f"echo $$ >{file}.pid\n({serve})\necho $? >{file}.end\n")
        self.server.run(f"rm -f {file}.end; setsid -f sh {file}.sh >{file}.log 2>&1 </dev/null")
        stack.callback(self.server.run, f"pkill -KILL -s $(cat {file}.pid)", check=False)
        return lambda: str(self.server.run(f"cat {file}.end && cat {file}.log", check=False).out)

    def lanes(self) -> dict[int, dict[str, int]]:
        """Bytes of each connection that lanes have carried, by local address, of each program by its port."""
        found: dict[int, dict[str, int]] = {program.port: {} for program in PROGRAMS}
        said = self.client.run([f"{HERE}/vmloop", "streams", "--json"], check=False)
        for one in json.loads(said.out) if said.code == 0 else []:
            port = int(one["remote"].rpartition(":")[2])
            if port in found:
                found[port][one["local"]] = one["bytes_sent"] + one["bytes_received"]
                self.standing[one["local"]] = f"{one['state']} {one['why']} after {one['lanes']} lanes"
        return found

    def by_tcp(self) -> dict[int, dict[str, int]]:
        """The same that TCP has carried, of each connection that there is."""
        found: dict[int, dict[str, int]] = {program.port: {} for program in PROGRAMS}
        for line in self.client.run("ss -tinHO state established").out.splitlines():
            local, remote = line.split()[2:4]
            port = int(remote.rpartition(":")[2])
            if port in found:
                found[port][local] = sum(map(int, re.findall(r"bytes_(?:acked|received):(\d+)", line)))
        return found

    def carried(self) -> dict[int, dict[str, int]]:
        """The same of all bytes, by lanes and by TCP."""
        found = self.lanes()
        for port, connections in self.by_tcp().items():
            for local, count in connections.items():
                found[port][local] = found[port].get(local, 0) + count
        return found

    def go_on(self, by_lanes: bool = False) -> None:
        """Wait until each connection of each program has carried more; of a program whose do not last, any of them.

        One that its program has closed need not: pgbench has one to begin with. Between domains of Xen's there is
        memory for ten lanes.
        """
        look = self.lanes if by_lanes else self.carried
        scarce = by_lanes and self.scarce
        before = look()
        left: dict[str, set[str]] = {
            one.name: set(before[one.port]) if one.lasting and before[one.port] else {"any"} for one in PROGRAMS
        }

        def all_went_on() -> bool:
            self.check()
            now = look()
            there = self.by_tcp()
            for one in PROGRAMS:
                more = {
                    local
                    for local, n in now[one.port].items()
                    if n > before[one.port].get(local, 0) or (scarce and self.standing[local].startswith(SCARCE))
                }
                left[one.name] -= more | ({"any"} if more else set())
                left[one.name] &= {"any", *there[one.port]}
            return not any(left.values())

        seen = (left, self.standing)
        until(all_went_on, 90 * self.slow, f"each program goes on{' by lanes' * by_lanes}", seen)

    def check(self) -> None:
        """All clients are at work."""
        for program, client in self.clients.items():
            code = client.poll()
            assert code is None, f"{program.name}'s client ended with {code}: {client.out[-500:]} {client.err[-500:]}"

    def until_ssh_gives_up(self) -> None:
        """Wait until TCP has told the client that asks now and then whether its server lives that it does not.

        The others may wait for much longer, as with TCP: what they sent has arrived. None is told of another error. If
        ssh was about to read, it ends the session next, and says of that alone that it failed.
        """
        until(lambda: self.clients[SSH_PROGRAM].poll() is not None, 600 * self.slow, "ssh gives up")
        for client in self.clients.values():
            said = client.out + client.err
            assert not re.search("reset by peer|closed the connection|closed by remote", said), said[-1000:]
        said = self.clients[SSH_PROGRAM].err
        assert re.search("timed out|No route to host|send disconnect: Broken pipe", said), said

    def finish(self) -> None:
        """End all clients; none says that a connection broke."""
        self.check()
        for program, client in self.clients.items():
            client.send_signal(program.end)
        for program, client in self.clients.items():
            result = client.wait(60 * self.slow)
            said = result.out + result.err
            assert not re.search(program.wrong, said), f"{program.name}: {said[-1000:]}"
            assert re.search(program.right, said), f"{program.name}: {said[-1000:]}"


@contextmanager
def running(client: Guest, server: Guest, slow: float, moves: bool = False, scarce: bool = False) -> Iterator[Running]:
    """All programs, from one guest to another."""
    archive = roots.build("programs", SUITE, PACKAGES)
    at_once(*(lambda guest=guest: roots.place(guest, archive, ROOT, 300 * slow) for guest in (client, server)))
    client.run(roots.command(ROOT, "test -e /tmp/key || ssh-keygen -q -t ed25519 -N '' -f /tmp/key"))
    server.run(
        f"rm -rf {ROOT}/tmp/db {ROOT}/tmp/host*; cat >{ROOT}/tmp/allowed",
        stdin=client.run(f"cat {ROOT}/tmp/key.pub").out,
    )
    one = Running(client, server, slow, moves, scarce)
    try:
        with ExitStack() as stack:
            one.start(stack)
            yield one
    finally:
        for guest in (client, server):
            if guest.running:
                roots.remove(guest, ROOT)
