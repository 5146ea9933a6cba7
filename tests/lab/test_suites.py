# SPDX-License-Identifier: GPL-2.0
"""Packages of other suites, from a mirror that the test makes."""

import hashlib
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from vmlab import VmlabError, suites


def make_package(mirror, name, version, **fields):
    """Put a package into a mirror's pool, with one program that says its version; returns its paragraph."""
    tree = mirror / "build" / name
    (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
    (tree / "usr/bin").mkdir(parents=True, exist_ok=True)
    (tree / "usr/bin" / name).write_text(f"echo {version}\n")
    about = {"Package": name, "Version": version, "Architecture": "amd64", "Maintainer": "Nobody", **fields}
    control = "".join(f"{key}: {value}\n" for key, value in about.items()) + "Description: a package\n"
    (tree / "DEBIAN/control").write_text(control)
    deb = mirror / f"pool/{name}_{version.partition(':')[2] or version}_amd64.deb"
    deb.parent.mkdir(exist_ok=True)
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tree, deb], check=True, capture_output=True)
    data = deb.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    return f"{control}Filename: pool/{deb.name}\nSize: {len(data)}\nSHA256: {digest}\n"


def publish(mirror, suite, paragraphs):
    """Write a suite's lists; its Release is over since long."""
    top = mirror / "dists" / suite
    (top / "main/binary-amd64").mkdir(parents=True, exist_ok=True)
    data = "\n".join(paragraphs).encode()
    (top / "main/binary-amd64/Packages").write_bytes(data)
    (top / "Release").write_text(
        f"Origin: Debian\nLabel: Debian\nSuite: {suite}\nCodename: {suite}\nComponents: main\nArchitectures: amd64\n"
        "Date: Sat, 01 Jan 2022 00:00:00 UTC\nValid-Until: Sat, 08 Jan 2022 00:00:00 UTC\n"
        f"SHA256:\n {hashlib.sha256(data).hexdigest()} {len(data)} main/binary-amd64/Packages\n"
    )


def publish_sources(mirror, suite, described):
    """Write a suite's list of sources, with one package, beside that of its packages."""
    text = described.read_text().replace("Source:", "Package:")
    lines = [line for line in text.splitlines() if line]
    digests, files = [], []
    for path in [described, *described.parent.glob(f"{described.stem}.tar.*")]:
        data = path.read_bytes()
        digests.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} {path.name}")
        files.append(f" {hashlib.md5(data).hexdigest()} {len(data)} {path.name}")
    kept: list[str | None] = []
    for line in lines:
        if line.startswith(("Checksums-", "Files")):
            kept.append(None)
        elif line.startswith(" ") and kept and kept[-1] is None:
            continue
        else:
            kept.append(line)
    paragraph = [*filter(None, kept), "Directory: pool", "Files:", *files, "Checksums-Sha256:", *digests]
    top = mirror / "dists" / suite
    (top / "main/source").mkdir(parents=True)
    data = ("\n".join(paragraph) + "\n").encode()
    (top / "main/source/Sources").write_bytes(data)
    with (top / "Release").open("a") as release:
        release.write(f" {hashlib.sha256(data).hexdigest()} {len(data)} main/source/Sources\n")


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A mirror with a suite and its backports, and a cache of the test's own."""
    top = tmp_path / "mirror"
    top.mkdir()
    library = make_package(top, "library", "1.0")
    publish(top, "new", [make_package(top, "tool", "2:1.0", Depends="library"), library])
    publish(top, "new-backports", [make_package(top, "tool", "2:1.1~bpo", Depends="library")])
    monkeypatch.setattr(suites, "TOP", tmp_path / "cache")
    monkeypatch.setattr(suites, "_mirror", lambda: (f"file:{top}", "Trusted: yes\n"))
    return top


def names(packages):
    return [(one.name, one.version) for one in packages]


def test_a_package_alone_and_with_what_it_needs(mirror):
    assert names(suites.fetch("new", ["tool"])) == [("tool", "2:1.0")]
    assert names(suites.fetch("new", ["tool"], with_dependencies=True)) == [("library", "1.0"), ("tool", "2:1.0")]


def test_backports_stand_on_their_base(mirror):
    found = suites.fetch("new-backports", ["tool"], with_dependencies=True)
    assert names(found) == [("library", "1.0"), ("tool", "2:1.1~bpo")]


def test_an_answer_needs_no_mirror(mirror):
    before = suites.fetch("new", ["tool"])
    (mirror / "dists").rename(mirror / "gone")
    assert suites.fetch("new", ["tool"]) == before
    before[0].path.unlink()
    (mirror / "pool").rename(mirror / "pool-gone")
    with pytest.raises(VmlabError):
        suites.fetch("new", ["tool"])


def test_a_mirror_that_went_on(mirror):
    suites.fetch("new", ["library"])
    for path in (mirror / "pool").glob("tool_*"):
        path.unlink()
    publish(mirror, "new", [make_package(mirror, "tool", "2:2.0")])
    assert names(suites.fetch("new", ["tool"])) == [("tool", "2:2.0")]


def test_files_of_packages_that_several_unpack(mirror):
    with ThreadPoolExecutor() as threads:
        roots = set(threads.map(lambda _: suites.unpack("new", ["tool"], with_dependencies=True), range(4)))
    (root,) = roots
    assert subprocess.run(["sh", root / "bin/tool"], capture_output=True, text=True).stdout == "2:1.0\n"
    assert (root / "usr/bin/library").exists()
    assert [path.name for path in root.parent.iterdir()] == [root.name]


def test_a_source(mirror):
    """With its patches, and never a part of it."""
    tree = mirror / "build/library-1.0"
    (tree / "debian/source").mkdir(parents=True)
    (tree / "debian/source/format").write_text("3.0 (native)\n")
    (tree / "debian/control").write_text(
        "Source: library\nMaintainer: N <n@b>\n\nPackage: library\nArchitecture: all\n"
    )
    (tree / "debian/changelog").write_text(
        "library (1.0) new; urgency=low\n\n  * .\n\n -- N <n@b>  Sat, 01 Jan 2022 00:00:00 +0000\n"
    )
    (tree / "code.c").write_text("int one;\n")
    subprocess.run(["dpkg-source", "-b", tree.name], cwd=tree.parent, check=True, capture_output=True)
    for path in [*tree.parent.glob("library_*.dsc"), *tree.parent.glob("library_*.tar.*")]:
        path.rename(mirror / "pool" / path.name)
    publish_sources(mirror, "new", mirror / "pool/library_1.0.dsc")
    assert (suites.source("new", "library") / "code.c").read_text() == "int one;\n"
    assert names(suites.fetch("new", ["library"])) == [("library", "1.0")]
    (mirror / "dists").rename(mirror / "gone")
    assert (suites.source("new", "library") / "code.c").exists()
    (mirror / "gone").rename(mirror / "dists")
    with pytest.raises(VmlabError, match="Unable to find a source package for nonsense"):
        suites.source("new", "nonsense")


def test_what_cannot_be_had(mirror):
    with pytest.raises(VmlabError, match="Unable to locate package nonsense"):
        suites.fetch("new", ["nonsense"])
    with pytest.raises(VmlabError, match="fetch the lists of old"):
        suites.fetch("old", ["tool"])
    with pytest.raises(VmlabError, match="no name of a suite"):
        suites.fetch("../new", ["tool"])


def test_sources_are_trusted_as_the_outside_says(tmp_path):
    modern = tmp_path / "a.sources"
    modern.write_text(
        "# the first\nTypes: deb\nURIs: http://one\nSigned-By: /a.gpg\n\n"
        "Types: deb\nURIs: http://two\nSigned-By:\n -----BEGIN-----\n .\n abc\nComponents: main\n"
    )
    assert suites.key_fields(f"{modern}:1") == "Signed-By: /a.gpg\n"
    assert suites.key_fields(f"{modern}:2") == "Signed-By:\n -----BEGIN-----\n .\n abc\n"
    old = tmp_path / "b.list"
    old.write_text("# none\ndeb [arch=amd64 signed-by=/b.gpg] http://one suite main\ndeb http://two suite main\n")
    assert suites.key_fields(f"{old}:2") == "signed-by: /b.gpg\n"
    assert suites.key_fields(f"{old}:3") == ""
