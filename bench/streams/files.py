# SPDX-License-Identifier: GPL-2.0
"""Files by FTP: Debian's vsftpd in one guest and curl in the other, each in a root of its own (vmlab.roots)."""

from types import TracebackType

from vmlab import roots
from vmlab.errors import VmlabError

from ..path.parse import GIGA
from ..path.stage import Stage, wait_for

PACKAGES = ("coreutils", "curl", "dash", "util-linux", "vsftpd")
ROOT = "/run/files"
TIMES = 25
"""How often a file is fetched for one value, as fast-IVC's authors did."""
PORT = 21
CONFIGURATION = f"""\
listen=YES
background=NO
listen_port={PORT}
anonymous_enable=YES
no_anon_password=YES
anon_root=/srv/files
ftp_username=tester
nopriv_user=tester
secure_chroot_dir=/srv/empty
seccomp_sandbox=NO
"""
SERVE = "mkdir -p /srv/files /srv/empty; exec vsftpd /etc/vsftpd.conf"


def rate(text: str) -> float:
    """Gbit/s of all that curl has fetched; it says seconds and bytes of each file in a line. Raises VmlabError."""
    lines = [line.split() for line in text.splitlines()]
    if len(lines) != TIMES or any(len(words) != 2 or int(words[1]) == 0 for words in lines):
        raise VmlabError(f"curl did not fetch {TIMES} files: {text[-200:]!r}")
    return 8 * sum(int(size) for _, size in lines) / sum(float(seconds) for seconds, _ in lines) / GIGA


class Files:
    """Has both roots in the guests' memory while it is entered."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def __enter__(self) -> "Files":
        packed = roots.build("files", "bookworm", PACKAGES)
        for guest in self.stage.guests:
            roots.place(guest, packed, ROOT, self.stage.patient(300))
        self.stage.g2.run(f"cat >{ROOT}/etc/vsftpd.conf", stdin=CONFIGURATION, timeout=self.stage.patient(60))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for guest in self.stage.guests:
            roots.remove(guest, ROOT)

    def fetch(self, size: int) -> float:
        """Gbit/s at which a file of ``size`` bytes comes, each time by a new connection of data."""
        stage = self.stage
        files = f"{ROOT}/srv/files"
        stage.g2.run(f"mkdir -p {files} && head -c {size} /dev/urandom >{files}/one", timeout=stage.patient(60))
        script = (
            f"for number in $(seq {TIMES}); do curl -sS -o /dev/null -w '%{{time_total}} %{{size_download}}\\n' "
            f"ftp://{stage.g2.ip}/one || exit 1; done"
        )
        listens = f"ss -Hltn sport = :{PORT}"
        with stage.g2.popen(roots.command(ROOT, SERVE)) as server:

            def serves() -> bool:
                if server.poll() is not None:
                    raise VmlabError(f"vsftpd ended: {server.out} {server.err}")
                return bool(stage.g2.run(listens, timeout=stage.patient(60)).out.strip())

            wait_for(serves, stage.patient(20), "vsftpd listens")
            return rate(stage.g1.run(roots.command(ROOT, script), timeout=stage.patient(120)).out)
