# SPDX-License-Identifier: GPL-2.0
"""The tree keeps its own rules, and each rule is able to find something."""

import sys
from pathlib import Path, PurePosixPath

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.style import rules
from tests.style.rules import RULES, TOP, Rule, tracked_files


def texts() -> dict[PurePosixPath, str]:
    """All text files; what is not text has no style."""
    found = {}
    for path in tracked_files():
        try:
            found[path] = (TOP / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found


@pytest.fixture(scope="module")
def tree() -> dict[PurePosixPath, str]:
    return texts()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tree(rule: Rule, tree: dict[PurePosixPath, str]) -> None:
    wrong = [f"{path}: {what}" for path, text in tree.items() for what in rule(path, text)]
    assert not wrong, f"{rule.__doc__}\n" + "\n".join(wrong)


def test_tree_is_seen(tree: dict[PurePosixPath, str]) -> None:
    """What finds no file finds no fault."""
    names = {str(path) for path in tree}
    assert {"kernel/core/ring.c", "include/vmloop_shm.h", "Makefile", "scripts/run-tests"} <= names
    assert sum(name.endswith(".c") for name in names) > 10


HEAD = "// SPDX-License-Identifier: GPL-2.0\n/*\n * x.c - an example.\n */\n"
LOOPBACK = "kernel/transports/loopback/loopback.c"

# Each rule, a file that breaks it, and the same file as it should be.
EXAMPLES = [
    (rules.core_names_nobody, "kernel/core/x.c", "#include <xen/xenbus.h>\n", "#include <linux/types.h>\n"),
    (rules.core_names_nobody, "kernel/core/x.c", "int ivshmem_probe(void);\n", "/* not ivshmem */\n"),
    (rules.core_names_nobody, "kernel/core/x.c", "struct pci_dev *pdev;\n", "struct pciture *p;\n"),
    (rules.core_names_nobody, "kernel/core/x.h", 's = "QEMU";\n', 's = "host";\n'),
    (rules.modules_see_one_header, LOOPBACK, '#include "core.h"\n', '#include "vmloop.h"\n'),
    (rules.modules_see_one_header, LOOPBACK, '#include "../../core/ring.h"\n', '#include "vmloop_shm.h"\n'),
    (rules.modules_see_one_header, "kernel/paths/net/x.c", '#include "ivshmem.h"\n', '#include "net.h"\n'),
    (rules.modules_see_one_header, "kernel/paths/net/x.c", "#include <vmloop.h>\n", "#include <linux/skbuff.h>\n"),
    (rules.modules_name_no_other, "kernel/paths/net/x.c", "vmloop_ivshmem_ring(d);\n", "vmloop_net_ring(d);\n"),
    (rules.modules_name_no_other, "kernel/core/x.c", "vmloop_loopback_init();\n", "vmloop_ring_init();\n"),
    (rules.pure_is_pure, "kernel/core/ring.c", "void f(struct sk_buff *b);\n", "void f(struct vmloop_ring_tx *tx);\n"),
    (rules.pure_is_pure, "kernel/core/ring.c", "#include <linux/slab.h>\n", '#include "ring.h"\n'),
    (rules.pure_is_pure, "kernel/core/ring.h", '#include "core.h"\n', '#include "ring_os.h"\n'),
    (rules.pure_is_pure, "kernel/core/ring.c", "p = kmalloc(1, GFP_KERNEL);\n", "p = 0;\n"),
    (rules.pure_is_pure, "kernel/core/life.c", '#include "ring.h"\n', '#include "life.h"\n'),
    (rules.shared_layout_is_plain, "include/vmloop_shm.h", "#include <stdint.h>\n", "#include <linux/types.h>\n"),
    (rules.shared_layout_is_plain, "include/vmloop_shm.h", "\tunsigned long size;\n", "\t__u64 size;\n"),
    (rules.shared_layout_is_plain, "include/vmloop_lanes.h", "\tbool open;\n", "\t__u32 open;\n"),
    (rules.no_bug, "kernel/core/x.c", "\tBUG_ON(!ring);\n", "\tBUILD_BUG_ON(sizeof(x) != 4);\n"),
    (rules.no_bug, LOOPBACK, '\tpanic("x");\n', "\t/* never BUG() */\n"),
    (rules.no_loud_warning, "kernel/core/x.c", "\tif (WARN_ON(x))\n", "\tif (WARN_ON_ONCE(x))\n"),
    (rules.c_head, "kernel/core/x.c", HEAD.replace("//", "#"), HEAD),
    (rules.c_head, "kernel/core/x.c", HEAD.replace("x.c - an", "y.c - an"), HEAD),
    (rules.c_head, "tests/x.c", "", HEAD),
    (rules.script_head, "scripts/x", "#!/bin/sh\nset -e\n", "#!/bin/sh\n# SPDX-License-Identifier: GPL-2.0\n"),
    (rules.script_head, "lab/x.py", "import os\n", "# SPDX-License-Identifier: GPL-2.0\nimport os\n"),
    (rules.known_licence, "x.c", "// SPDX-License-Identifier: GPL-2.0 OR WTFPL\n", HEAD),
    (rules.no_paths_of_a_machine, "x.md", "cd /ho" + "me/me/vmloop\n", "cd $HOME/vmloop\n"),
    (rules.no_paths_of_a_machine, "x.py", 'open("/ro' + 'ot/x")\n', 'open("/run/x")\n'),
    (rules.rust_files_are_short, "host/a/src/b/c.rs", "\n" * 601, "\n" * 600),
    (rules.no_odd_ends, "x.md", "text", "text\n"),
    (rules.no_odd_ends, "x.md", "text \n", "text\n"),
]


@pytest.mark.parametrize(("rule", "name", "bad", "good"), EXAMPLES, ids=lambda value: getattr(value, "__name__", ""))
def test_rule_finds_what_is_wrong(rule: Rule, name: str, bad: str, good: str) -> None:
    assert list(rule(PurePosixPath(name), bad)), "this should have been found wrong"
    assert not list(rule(PurePosixPath(name), good)), "this should have been found right"


def test_every_rule_has_an_example() -> None:
    assert {example[0] for example in EXAMPLES} == set(RULES)
