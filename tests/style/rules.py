# SPDX-License-Identifier: GPL-2.0
"""The rules that keep the tree's layers apart, and a few about its text.

A rule looks at one file and says what is wrong with it. It gets the path
relative to the top, the text, and nothing else, so that it can be shown a bad
example.
"""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

TOP = Path(__file__).resolve().parents[2]

Rule = Callable[[PurePosixPath, str], Iterator[str]]

# Most lines of a file of the host side.
RUST_LINES = 600

# Made by a fuzzer.
FOREIGN = ("tests/ring/corpus/",)


def tracked_files() -> list[PurePosixPath]:
    """All files that git has or would take, without those that nobody here wrote."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=TOP, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [PurePosixPath(name) for name in listed if not name.startswith(FOREIGN) and (TOP / name).is_file()]


def code_of(text: str) -> str:
    """C without its comments; lines stay where they are."""
    text = re.sub(r"/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    return re.sub(r"//.*", "", text)


def includes(text: str) -> list[tuple[str, str]]:
    """What a C file includes: the kind of quote, and the name."""
    return re.findall(r"^\s*#\s*include\s*([<\"])([^>\"]+)[>\"]", code_of(text), re.MULTILINE)


def is_c(path: PurePosixPath) -> bool:
    return path.suffix in (".c", ".h")


def below(path: PurePosixPath, folder: str) -> bool:
    return folder in (str(parent) for parent in path.parents)


def core_names_nobody(path: PurePosixPath, text: str) -> Iterator[str]:
    """The core names no hypervisor, no transport, no path and no device."""
    if not (is_c(path) and below(path, "kernel/core")):
        return
    names = r"xen|xenbus|grant_table|evtchn|ivshmem|qemu|kvm|hyperv|vmware|vhost|pci|loopback|netfilter"
    for number, line in enumerate(code_of(text).splitlines(), 1):
        for found in re.finditer(rf"(?<![a-z])({names})(?![a-z])", line, re.IGNORECASE):
            yield f"line {number}: the core names {found[0]!r}"


def modules_see_one_header(path: PurePosixPath, text: str) -> Iterator[str]:
    """A transport or a path sees the core's one header and its own, no other's."""
    if not is_c(path) or not (below(path, "kernel/transports") or below(path, "kernel/paths")):
        return
    for quote, name in includes(text):
        if quote == "<" and re.match(r"(linux|net|uapi|asm|asm-generic|xen|trace)/", name):
            continue
        if quote == '"' and name in ("vmloop.h", "vmloop_shm.h", "compat.h"):
            continue
        if quote == '"' and "/" not in name and (TOP / path.parent / name).is_file():
            continue
        yield f"includes {name}, which is neither the core's header nor its own"


def modules_name_no_other(path: PurePosixPath, text: str) -> Iterator[str]:
    """Nobody calls a transport or a path by its symbols, but itself."""
    if not is_c(path) or not below(path, "kernel"):
        return
    others = {
        folder.name
        for kind in ("transports", "paths")
        for folder in (TOP / "kernel" / kind).glob("*/")
        if folder.name not in path.parts
    }
    for number, line in enumerate(code_of(text).splitlines(), 1):
        for other in sorted(others):
            if re.search(rf"\bvmloop_{other}_\w+", line):
                yield f"line {number}: names the module {other}"


PURE = ("ring", "area", "life", "news", "owner")
"""Files of the core that see nothing of the kernel, and are tested in user space."""


def pure_is_pure(path: PurePosixPath, text: str) -> Iterator[str]:
    """ring.[ch] and their like see ring_os.h and the shared layout, so that they compile anywhere."""
    if path.parent != PurePosixPath("kernel/core") or path.stem not in PURE or not is_c(path):
        return
    for quote, name in includes(text):
        if quote != '"' or name not in (f"{path.stem}.h", "ring_os.h", "vmloop_shm.h", "vmloop_lanes.h"):
            yield f"includes {name}"
    for found in re.finditer(
        r"\b(kmalloc|kfree|malloc|free|spin_lock|mutex_lock|sk_buff|skb|pci_\w+|printk|pr_\w+)\b", code_of(text)
    ):
        yield f"uses {found[0]}"


def shared_layout_is_plain(path: PurePosixPath, text: str) -> Iterator[str]:
    """The shared layout depends on integers only, of the same size everywhere."""
    if path.parent != PurePosixPath("include") or path.suffix != ".h":
        return
    for _, name in includes(text):
        if name not in ("linux/types.h", "vmloop_shm.h"):
            yield f"includes {name}"
    for found in re.finditer(
        r"^\s+(?:unsigned |signed )?(?:int|long|short|size_t|bool)\b", code_of(text), re.MULTILINE
    ):
        yield f"{found[0].strip()} has another size elsewhere"


def no_bug(path: PurePosixPath, text: str) -> Iterator[str]:
    """Nothing that a peer does may stop or frighten a guest."""
    if not is_c(path) or not below(path, "kernel"):
        return
    for number, line in enumerate(code_of(text).splitlines(), 1):
        for found in re.finditer(r"\b(BUG|BUG_ON|VM_BUG_ON|panic)\s*\(", line):
            yield f"line {number}: {found[1]}"


def no_loud_warning(path: PurePosixPath, text: str) -> Iterator[str]:
    """A WARN can be reached by a peer sooner or later, and panics some guests."""
    if not is_c(path) or not below(path, "kernel"):
        return
    for number, line in enumerate(code_of(text).splitlines(), 1):
        for found in re.finditer(r"\b(WARN|WARN_ON)\s*\(", line):
            yield f"line {number}: {found[1]}; if no peer can cause it, WARN_ON_ONCE, else count it"


def c_head(path: PurePosixPath, text: str) -> Iterator[str]:
    """A C file begins with its licence and with what it is for."""
    if not is_c(path):
        return
    lines = text.splitlines()
    licence = r"// SPDX-License-Identifier: \S.*" if path.suffix == ".c" else r"/\* SPDX-License-Identifier: \S.* \*/"
    if not lines or not re.fullmatch(licence, lines[0]):
        yield "line 1 is not its SPDX licence"
    head = "\n".join(lines[1:3])
    if not re.match(rf"/\*\n \* {re.escape(path.name)} - \S", head):
        yield f"no comment '{path.name} - what it is for' at its head"


def script_head(path: PurePosixPath, text: str) -> Iterator[str]:
    """Python, Rust-free scripts and Makefiles carry their licence too."""
    script = path.suffix == ".py" or text.startswith("#!") or path.name in ("Makefile", "Kbuild")
    if script and text and "SPDX-License-Identifier: " not in "\n".join(text.splitlines()[:3]):
        yield "no SPDX licence in its first three lines"


def known_licence(path: PurePosixPath, text: str) -> Iterator[str]:
    """Every licence that a file names has its text in LICENSES/."""
    for found in re.finditer(r"^\W*SPDX-License-Identifier: ([\w.+ -]+?)\s*(?:\*/)?$", text, re.MULTILINE):
        for name in re.split(r" (?:OR|AND) ", found[1]):
            if not (TOP / "LICENSES" / name).is_file():
                yield f"licence {name!r} is not in LICENSES/"


def no_paths_of_a_machine(path: PurePosixPath, text: str) -> Iterator[str]:
    """Nothing depends on where somebody's home or checkout is."""
    for number, line in enumerate(text.splitlines(), 1):
        for found in re.finditer(r"(?<![\w.}$*-])/(?:home|Users|work|root)/[\w.]+", line):
            yield f"line {number}: {found[0]}"


def no_odd_ends(path: PurePosixPath, text: str) -> Iterator[str]:
    """No blanks at the end of a line, no file without a last newline."""
    if text and not text.endswith("\n"):
        yield "no newline at its end"
    for number, line in enumerate(text.splitlines(), 1):
        if line != line.rstrip():
            yield f"line {number} ends with blanks"


def rust_files_are_short(path: PurePosixPath, text: str) -> Iterator[str]:
    """A file of the host side that grows past this is two."""
    if path.suffix != ".rs" or path.parts[:1] != ("host",) or "src" not in path.parts:
        return
    if (lines := len(text.splitlines())) > RUST_LINES:
        yield f"{lines} lines of {RUST_LINES}"


RULES: tuple[Rule, ...] = (
    core_names_nobody,
    modules_see_one_header,
    modules_name_no_other,
    pure_is_pure,
    shared_layout_is_plain,
    no_bug,
    no_loud_warning,
    c_head,
    script_head,
    known_licence,
    no_paths_of_a_machine,
    no_odd_ends,
    rust_files_are_short,
)
