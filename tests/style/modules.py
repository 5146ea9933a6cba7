# SPDX-License-Identifier: GPL-2.0
"""Which file of a Rust crate needs which, and circles among them.

A file needs another one if it names something of that module, or if it calls, on
``self``, a method that another file defines for the same type. That a module
declares its children is no need. Tests within a file do not count.
"""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

Module = tuple[str, ...]

# What says nothing about modules: strings, characters, comments.
BARE = re.compile(r"""r#".*?"#|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])'|//[^\n]*""", re.DOTALL)
PUBLIC = r"(?:pub(?:\([^)]*\))? )?"
METHOD = re.compile(rf"^    {PUBLIC}(?:const |async )*fn (\w+)", re.MULTILINE)


def bare(text: str) -> str:
    """Rust without comments, strings and the tests at its end."""
    text = re.sub(r"\n#\[cfg\(test\)\]\nmod \w+ \{.*", "\n", text, flags=re.DOTALL)
    return BARE.sub(lambda found: "" if found[0].startswith("//") else '""', text)


def module_of(path: PurePosixPath) -> Module:
    """Of a path below a crate's ``src``."""
    parts = path.with_suffix("").parts
    return parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts


def leaves(tree: str) -> Iterator[tuple[str, ...]]:
    """Paths of a ``use``: ``a::{b, c::d}`` has ``a::b`` and ``a::c::d``."""
    head, brace, rest = tree.strip().partition("{")
    start = tuple(part.strip() for part in head.split("::") if part.strip())
    if not brace:
        yield tuple(part.split(" as ")[0].strip() for part in start)
        return
    depth, begin = 0, 0
    inner = rest.rpartition("}")[0]
    for at, char in enumerate(inner + ","):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            if inner[begin:at].strip():
                for leaf in leaves(inner[begin:at]):
                    yield start + (() if leaf == ("self",) else leaf)
            begin = at + 1


class Crate:
    """The files of one crate, by the path below its ``src``."""

    def __init__(self, files: dict[PurePosixPath, str]) -> None:
        # Where there is a library, the program is another crate.
        other = PurePosixPath("main.rs") if PurePosixPath("lib.rs") in files else None
        self.text = {module_of(path): bare(text) for path, text in files.items() if path != other}

    def absolute(self, module: Module, path: tuple[str, ...]) -> Module | None:
        """What a path within a module means, from the top of the crate; None if it is another crate's."""
        base: Module
        if path[0] == "crate":
            base, path = (), path[1:]
        elif path[0] in ("self", "super"):
            base = module
            while path and path[0] in ("self", "super"):
                base, path = (base[:-1] if path[0] == "super" else base), path[1:]
        elif (*module, path[0]) in self.text:
            base = module
        else:
            return None
        return base + path

    def owner(self, path: Module) -> Module:
        """The module that has what a path from the top names."""
        while path and path not in self.text:
            path = path[:-1]
        return path

    def imports(self, module: Module) -> Iterator[Module]:
        """Everything of this crate that a module names, from the top."""
        text = self.text[module]
        for tree in re.findall(rf"^\s*{PUBLIC}use ([^;]+);", text, re.MULTILINE):
            for leaf in leaves(tree):
                if (path := self.absolute(module, leaf)) is not None:
                    yield path
        text = re.sub(rf"^\s*{PUBLIC}use [^;]+;", "", text, flags=re.MULTILINE)
        for word in re.findall(r"(?<![\w:])\w+(?:::\w+)+", text):
            if (path := self.absolute(module, tuple(word.split("::")))) is not None:
                yield path

    def methods(self) -> dict[tuple[Module, str], list[tuple[Module, set[str], set[str]]]]:
        """For each type: the modules with methods of it, what they define, and what they call on ``self``."""
        found: dict[tuple[Module, str], list[tuple[Module, set[str], set[str]]]] = {}
        for module, text in self.text.items():
            imported = {path[-1]: self.owner(path[:-1]) for path in self.imports(module) if path}
            for name, block in re.findall(r"^impl(?:<[^>]*>)? (\w+)(?:<[^>]*>)? \{\n(.*?)^\}", text, re.M | re.S):
                is_here = re.search(rf"^{PUBLIC}(?:struct|enum) {name}\b", text, re.MULTILINE)
                home = module if is_here else imported.get(name, module)
                defined = set(METHOD.findall(block))
                called = set(re.findall(r"\bself\s*\.(\w+)\(", block))
                found.setdefault((home, name), []).append((module, defined, called))
        return found

    def needs(self) -> dict[Module, set[Module]]:
        """For each module the others that it needs."""
        needs = {module: {self.owner(path) for path in self.imports(module)} for module in self.text}
        for blocks in self.methods().values():
            for module, _, called in blocks:
                own = set().union(*(defined for other, defined, _ in blocks if other == module))
                for other, defined, _ in blocks:
                    if (called - own) & defined:
                        needs[module].add(other)
        return {module: (others - {module}) & needs.keys() for module, others in needs.items()}

    def circles(self) -> list[str]:
        """Modules that need each other, a shortest way round for each that is in one."""
        needs, found = self.needs(), []
        for start in sorted(needs):
            ways = [[start]]
            seen = {start}
            while ways:
                way = ways.pop(0)
                if start in needs[way[-1]]:
                    found.append(" -> ".join("::".join(("crate", *module)) for module in [*way, start]))
                    break
                for other in sorted(needs[way[-1]] - seen):
                    seen.add(other)
                    ways.append([*way, other])
        return found


def crates(files: dict[PurePosixPath, str]) -> dict[str, Crate]:
    """All crates of the host side, by name."""
    by_name: dict[str, dict[PurePosixPath, str]] = {}
    for path, text in files.items():
        if path.suffix == ".rs" and path.parts[0] == "host" and path.parts[2:3] == ("src",):
            by_name.setdefault(path.parts[1], {})[PurePosixPath(*path.parts[3:])] = text
    return {name: Crate(found) for name, found in by_name.items()}
