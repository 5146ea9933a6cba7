# SPDX-License-Identifier: GPL-2.0
"""Packages of Debian suites that the outside does not run: a newer QEMU, newer kernels.

    for package in suites.fetch("trixie-backports", ["linux-image-amd64"]):
        print(package.name, package.version, package.path)
    root = suites.unpack("trixie", ["qemu-system-x86"], with_dependencies=True)
    source = suites.source("bookworm", "libuv1")

They come from the mirror of the outside's own apt sources, with its keys, by
apt with lists of its own in .cache/suites/. Nothing is installed, and the
outside's lists and configuration stay as they are.

An answer is kept: the same question asked again needs no network, and gives the
same versions. Remove .cache/suites/SUITE to have newer ones.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .errors import VmlabError
from .paths import CACHE

T = TypeVar("T")

TOP = CACHE / "suites"
BACKPORTS = "-backports"

# The indexes of packages, or of sources, are all that is wanted. What the outside has apt do after an update is meant
# for its own lists. The user of apt's sandbox may not be able to reach the checkout. A mirror that
# keeps a day of the past has Release files whose time is over.
SETTINGS = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear Acquire::IndexTargets;
Acquire::IndexTargets::deb::Packages {{
    MetaKey "$(COMPONENT)/binary-$(ARCHITECTURE)/Packages";
    ShortDescription "Packages";
    Description "$(RELEASE)/$(COMPONENT) $(ARCHITECTURE) Packages";
    Optional "0";
}};
Acquire::IndexTargets::deb-src::Sources {{
    MetaKey "$(COMPONENT)/source/Sources";
    ShortDescription "Sources";
    Description "$(RELEASE)/$(COMPONENT) sources";
    Optional "0";
}};
Acquire::Languages "none";
Acquire::Check-Valid-Until "false";
Acquire::Retries "3";
APT::Sandbox::User "";
APT::Install-Recommends "false";
APT::Default-Release "{release}";
Dir::Etc::SourceList "{top}/debian.sources";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "{top}/state";
Dir::State::Lists "{top}/state/lists";
Dir::State::Status "{top}/state/status";
Dir::State::Extended_States "{top}/state/extended_states";
Dir::Cache "{top}/cache";
Dir::Cache::PkgCache "";
Dir::Cache::SrcPkgCache "";
Dir::Log "{top}/state";
"""

ARCHIVE = ".archive"
"""The file that says which archive a source was."""

LINKS = ("bin", "lib", "lib64", "sbin")
"""What base-files makes links to /usr of, which is not installed with an unpacked package."""


@dataclass(frozen=True)
class Package:
    """A package that was downloaded."""

    name: str
    version: str
    """As dpkg writes it, with the epoch."""
    path: Path


@contextmanager
def _locked(suite: str) -> Iterator[Path]:
    """Keep other processes out of what is kept of a suite; gives its directory."""
    if not re.fullmatch(r"[a-z][a-z0-9.-]*", suite):
        raise VmlabError(f"{suite!r} is no name of a suite")
    TOP.mkdir(parents=True, exist_ok=True)
    with open(TOP / f".{suite}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield TOP / suite


def _run(argv: list[str | Path], what: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        argv, cwd=cwd, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=False
    )  # fmt: skip
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        text = " ".join(errors) or done.stderr.strip() or f"status {done.returncode}"
        raise VmlabError(f"{what}: {text}")
    return done.stdout


def key_fields(entry: str) -> str:
    """How the outside's apt trusts a source, as lines of a deb822 stanza.

    ``entry`` is FILE:NUMBER, apt's own name for a stanza of a .sources file or a line of a .list file.
    """
    name, _, number = entry.rpartition(":")
    text = Path(name).read_text()
    if name.endswith(".sources"):
        plain = re.sub(r"^#.*\n", "", text, flags=re.M)
        stanzas = [one for one in re.split(r"\n\s*\n", plain) if one.strip()]
        stanza = stanzas[int(number) - 1].strip("\n") + "\n"
        # A key can be written out below its field, on lines that begin with a space.
        return "".join(re.findall(r"^(?:Signed-By|Trusted):.*\n(?:[ \t].*\n)*", stanza, flags=re.M | re.I))
    line = text.splitlines()[int(number) - 1]
    options = re.search(r"\[(.*?)\]", line)
    fields = dict(word.split("=", 1) for word in options.group(1).split() if "=" in word) if options else {}
    return "".join(f"{key}: {fields[key]}\n" for key in ("signed-by", "trusted") if key in fields)


def _mirror() -> tuple[str, str]:
    """The outside's mirror of Debian, and how apt trusts it."""
    wanted = "$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(SITE)|$(SOURCESENTRY)"
    listed = _run(["apt-get", "indextargets", "--format", wanted, "Created-By: Packages"], "look up apt's sources")
    for line in listed.splitlines():
        origin, label, component, site, entry = line.split("|")
        if (origin, label, component) == ("Debian", "Debian", "main"):
            return site, key_fields(entry)
    raise VmlabError("apt has no list of Debian's own packages here: run apt-get update")


def source_stanza(site: str, trust: str, suite: str, types: str = "deb") -> str:
    """The apt source of a suite; a suite of backports stands on its base. ``types``: deb, or deb-src."""
    names = [suite.removesuffix(BACKPORTS), suite] if suite.endswith(BACKPORTS) else [suite]
    return f"Types: {types}\nURIs: {site}\nSuites: {' '.join(names)}\nComponents: main\n{trust}"


def _prepare(top: Path, suite: str, types: str = "deb") -> None:
    """Write apt's configuration for a suite, and fetch its lists: of packages, or of sources (deb-src)."""
    for name in ("state/lists/partial", "cache/archives/partial", "deb"):
        (top / name).mkdir(parents=True, exist_ok=True)
    (top / "state/status").touch()
    (top / "debian.sources").write_text(source_stanza(*_mirror(), suite, types))
    (top / "apt.conf").write_text(SETTINGS.format(top=top, release=suite))
    # Without this option a list that cannot be had is a warning only.
    _run(_apt(top, "update", "-o", "APT::Update::Error-Mode=any"), f"fetch the lists of {suite}")


def _by_lists(top: Path, suite: str, types: str, download: Callable[[], T]) -> T:
    """Download something by apt's lists, which are fetched if they are missing, or name what the mirror has no more."""
    if (top / "apt.conf").exists():
        with suppress(VmlabError):
            return download()
    _prepare(top, suite, types)
    return download()


def _apt(top: Path, *words: str) -> list[str | Path]:
    return ["apt-get", "-q", "-y", "-c", top / "apt.conf", *words]


def file_name(uri_line: str) -> str | None:
    """The name of the file that a line of apt-get --print-uris is about; None if it is another line."""
    found = re.match(r"'\S+' (\S+_\S+_\w+\.deb) \d+ \S+:\S+$", uri_line)
    return found.group(1) if found else None


def _download(top: Path, names: list[str], with_dependencies: bool) -> list[Path]:
    """Have apt fetch packages; those whose file is there already are checked only."""
    what = f"download {' '.join(names)} of {top.name}"
    if with_dependencies:
        planned = _run(_apt(top, "install", "--simulate", *names), what)
        names = ["=".join(found) for found in re.findall(r"^Inst (\S+) \((\S+) ", planned, flags=re.M)]
    listed = map(file_name, _run(_apt(top, "download", "--print-uris", *names), what).splitlines())
    _run(_apt(top, "download", *names), what, cwd=top / "deb")
    return sorted({top / "deb" / name for name in listed if name})


def _download_source(top: Path, name: str) -> Path:
    """Have apt fetch a source package; the file that describes it."""
    what = f"download the source of {name} of {top.name}"
    listed = _run(_apt(top, "source", "--download-only", "--print-uris", name), what)
    described = re.search(r"'\S+' (\S+\.dsc) ", listed)
    if not described:
        raise VmlabError(f"{what}: apt names no .dsc file")
    _run(_apt(top, "source", "--download-only", name), what, cwd=top / "deb")
    return top / "deb" / described.group(1)


def _download_upstream(top: Path, name: str) -> Path:
    """Have apt fetch what of a source package is its project's; the archive."""
    what = f"download the project's source of {name} of {top.name}"
    words = ("source", "--download-only", "--tar-only")
    listed = re.search(r"'\S+' (\S+\.orig\.tar\.\w+) ", _run(_apt(top, *words, "--print-uris", name), what))
    if not listed:
        raise VmlabError(f"{what}: apt names no archive")
    _run(_apt(top, *words, name), what, cwd=top / "deb")
    return top / "deb" / listed.group(1)


def fetch(suite: str, names: Iterable[str], *, with_dependencies: bool = False) -> list[Package]:
    """Download packages of a suite, such as ``trixie``, ``trixie-backports`` or ``sid``.

    Returns them sorted by name; with their dependencies, all that apt would
    install on an empty machine, without recommendations. Packages that are not in
    a suite of backports come from its base. A name can be NAME=VERSION. Two
    processes may ask at the same time. Raises VmlabError when it cannot be done.
    """
    wanted = sorted(set(names))
    question = json.dumps([wanted, with_dependencies])
    with _locked(suite) as top:
        answer = top / "answers" / f"{hashlib.sha256(question.encode()).hexdigest()[:16]}.json"
        files = [top / "deb" / name for name in json.loads(answer.read_text())["files"]] if answer.exists() else []
        if not files or not all(path.exists() for path in files):
            files = _by_lists(top, suite, "deb", lambda: _download(top, wanted, with_dependencies))
            answer.parent.mkdir(exist_ok=True)
            new = answer.with_suffix(".new")
            new.write_text(json.dumps({"question": question, "files": [path.name for path in files]}) + "\n")
            new.rename(answer)
    return [_package(path) for path in files]


def _package(path: Path) -> Package:
    name, version, _ = path.name.split("_", 2)
    return Package(name, urllib.parse.unquote(version), path)


def source(suite: str, name: str, *, upstream: bool = False) -> Path:
    """The source of a package, unpacked, with Debian's patches; not to be changed.

    ``upstream``: without those, as its project has it, and the name of its archive in the file ARCHIVE. Made once:
    remove .cache/suites/SUITE-source to have a newer one. Raises VmlabError.
    """
    with _locked(f"{suite}-source") as top:
        tree = top / "tree" / (f"{name}.orig" if upstream else name)
        if not tree.exists():
            download = _download_upstream if upstream else _download_source
            file = _by_lists(top, suite, "deb-src", lambda: download(top, name))
            new = tree.with_name(f"{tree.name}.new")
            shutil.rmtree(new, ignore_errors=True)
            new.parent.mkdir(exist_ok=True)
            # apt has checked it, by the keys of the mirror.
            words: list[str | Path] = ["dpkg-source", "--no-check", "-x", file, new]
            if upstream:
                new.mkdir()
                words = ["tar", "-xf", file, "--strip-components=1", "--no-same-owner", "-C", new]
            _run(words, f"unpack {file.name}")
            if upstream:
                (new / ARCHIVE).write_text(file.name)
            new.rename(tree)
    return tree


def unpack(suite: str, names: Iterable[str], *, with_dependencies: bool = False) -> Path:
    """A directory with the files of packages of a suite, fetched first; made once for these very versions.

    No script of a package is run. Programs in it are run by its own loader,
    with its own libraries, where the outside's are older.
    """
    packages = fetch(suite, names, with_dependencies=with_dependencies)
    content = hashlib.sha256("\n".join(one.path.name for one in packages).encode()).hexdigest()[:12]
    with _locked(suite) as top:
        root = top / "root" / content
        if not root.exists():
            new = root.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            for name in LINKS:
                (new / "usr" / name).mkdir(parents=True)
                (new / name).symlink_to(f"usr/{name}")
            for one in packages:
                # dpkg would have a package's own directory take the place of a link.
                unpacked = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", one.path], stdout=subprocess.PIPE)
                _run_tar(unpacked, new, one.path.name)
            new.rename(root)
    return root


def _run_tar(unpacked: subprocess.Popen[bytes], into: Path, name: str) -> None:
    """Put the files of a package, as they come, below ``into``."""
    tar: list[str | Path] = ["tar", "-x", "--keep-directory-symlink", "--no-same-owner", "-C", into]
    done = subprocess.run(tar, stdin=unpacked.stdout, capture_output=True, text=True, check=False)
    if done.returncode or unpacked.wait():
        raise VmlabError(f"unpack {name}: {done.stderr.strip()}")
