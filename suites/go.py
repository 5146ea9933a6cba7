# SPDX-License-Identifier: GPL-2.0
"""Go's own tests of its network packages, of Debian's package of its source, and golang.org/x/net's of a connection.

Since 1.24 Go's listeners are MPTCP's, and what they accept of a client that does not speak MPTCP is TCP's.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from vmlab import VmlabError, suites

from . import outside
from .machine import THERE, Machine
from .result import Results, Run, worst
from .suite import LONGEST

VERSION = "1.24"
SUITE = "trixie"
FROM = (f"golang-{VERSION}-go", f"golang-{VERSION}-src")
PACKAGES = ("net", "net/http", "net/http/httputil", "net/rpc", "net/smtp", "crypto/tls")
COPY = "/tmp/go"
LEFT_OUT = "-test.skip '^TestDialParallelSpuriousConnection$'"
"""It takes both families of addresses to be those of the loopback interface, and waits for ever where they are not."""
WORDS = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}

CONNECTION = f"""\
package net_test

import (
	"net"
	"testing"

	"golang.org/x/net/nettest"
)

// Whether a connection of TCP does what nettest says that a net.Conn does.
func TestTCPConn(t *testing.T) {{
	nettest.TestConn(t, func() (one, other net.Conn, stop func(), err error) {{
		listener, err := net.Listen("tcp", "{THERE}:0")
		if err != nil {{
			return nil, nil, nil, err
		}}
		defer listener.Close()
		if one, err = net.Dial("tcp", listener.Addr().String()); err != nil {{
			return nil, nil, nil, err
		}}
		if other, err = listener.Accept(); err != nil {{
			one.Close()
			return nil, nil, nil, err
		}}
		return one, other, func() {{ one.Close(); other.Close() }}, nil
	}})
}}
"""


def binary(package: str) -> str:
    """The name of the program with a package's tests."""
    return package.replace("/", "_") + ".test"


def run_of(package: str, text: str, status: int) -> Run:
    """What a program came to, from what it says with -test.v. Tests that it runs again in a child speak twice."""
    found: Results = {}
    for word, name in re.findall(r"--- (PASS|FAIL|SKIP): (\S+) \(\d", text):
        key = f"{package}.{name}"
        found[key] = worst(found.get(key), WORDS[word])
    ended = re.search(r"^(PASS|FAIL)$", text, flags=re.MULTILINE)
    if re.search(r"^panic: ", text, flags=re.MULTILINE):
        ended = None
    return Run(found, status, "" if ended else f"{package}: {text[-300:]}")


def certify(root: Path) -> None:
    """Have the certificate with which tests speak HTTPS be one for the peer's address: they check it."""
    key, certificate = root / "key.pem", root / "cert.pem"
    words: list[str | Path] = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "36500"]
    words += ["-subj", "/O=Acme Co", "-addext", f"subjectAltName=IP:{THERE},IP:::1,DNS:example.com"]
    words += ["-keyout", key, "-out", certificate]
    outside.run(words, "make a certificate for Go's tests")
    held = root / "src/net/http/internal/testcert/testcert.go"
    text = held.read_text()
    for kind, path in (("CERTIFICATE", certificate), ("RSA TESTING KEY", key)):
        block = re.compile(f"-----BEGIN {kind}-----.*?-----END {kind}-----", flags=re.DOTALL)
        fresh = path.read_text().strip()
        text, count = block.subn(fresh, text)
        if count != 1:
            raise VmlabError(f"{held} has {count} blocks {kind}, not one")
    held.write_text(text)


def build(scratch: Path, unpacked: Path) -> Iterable[str]:
    """Compile the tests, in a tree of Go whose tests name the peer; they read files of it when they run."""
    root = scratch / "root"
    environment = {
        "GOROOT": str(root),
        "GOCACHE": str(scratch / "cache"),
        "HOME": str(scratch),
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOPROXY": "off",
    }
    outside.copy(unpacked / f"usr/lib/go-{VERSION}", root)
    outside.redirect(root / "src" / name for name in ("net", "crypto/tls", "vendor"))
    certify(root)
    (root / "src/net/vmloop_test.go").write_text(CONNECTION)
    for package in PACKAGES:
        words: list[str | Path] = [root / "bin/go", "test", "-c", "-o", scratch / binary(package), package]
        outside.run(words, f"compile Go's tests of {package}", cwd=root / "src", **environment)
    return ["root/src/net", "root/src/crypto/tls", *map(binary, PACKAGES)]


class Go:
    """The short tests of all packages: the others want the Internet."""

    name = "go"

    def version(self, machine: Machine) -> str:
        """Of the packages of Debian's."""
        return suites.fetch(SUITE, FROM)[0].version

    def prepare(self, machine: Machine) -> None:
        """Their programs, and the files that they read."""
        unpacked = suites.unpack(SUITE, FROM)
        identity = (self.version(machine), PACKAGES, CONNECTION)
        machine.unpack(outside.made("go", identity, build, unpacked), COPY)

    def run(self, machine: Machine) -> Run:
        """One package after the other."""
        whole = Run({}, 0)
        for package in PACKAGES:
            log = f"{COPY}/{binary(package)}.log"
            environment = f"GOROOT={COPY}/root HOME={COPY}"
            status = machine.inside(
                f"cd {COPY}/root/src/{package} && {environment} {COPY}/{binary(package)} "
                f"-test.v -test.short -test.timeout {LONGEST}s {LEFT_OUT} >{log} 2>&1; echo $?",
                timeout=LONGEST + 60,
            )
            text = machine.keep(f"{self.name} {package}", machine.inside(f"cat {log}"))
            one = run_of(package, text, int(status))
            whole.results |= one.results
            whole.status |= one.status
            whole.cut = "; ".join(filter(None, (whole.cut, one.cut)))
        return whole


SUITES = (Go(),)
