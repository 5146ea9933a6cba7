# SPDX-License-Identifier: GPL-2.0
"""What only Xen has: domains that are destroyed, pages that are granted, a XenStore that guests write to.

A domain's id decides which side of a channel it is: the lower grants the pages
and waits for the event channel, the higher maps and binds. Started again, a
domain has the highest id of all; so nothing here goes by names g1 to g3.
"""

import json

import pytest

from tests.guest import xen
from tests.guest.net import TOOLS, until
from tests.guest.test_transitions import ENOUGH, Watch, judge

pytestmark = pytest.mark.xen_only


def by_domain(net, *guests):
    """The guests with the lowest domain id first, and all those ids by name."""
    ids = xen.ids(guests)
    assert len(set(ids.values())) == len(guests), f"a guest does not run: {ids}"
    return sorted(guests, key=lambda guest: ids[guest.name]), ids


def wait_held(net, guest, ids, wanted, what, seconds=15):
    """Wait until a guest holds exactly that."""
    seen: list[xen.Held] = []

    def is_so():
        seen[:] = [xen.held(net.host, guest, ids[guest.name])]
        return seen == [wanted]

    until(is_so, seconds * net.slow, f"{guest.name} {what}: {wanted}", seen)


def tags(net, a, b):
    return net.peers(a)[b.name].tag, net.peers(b)[a.name].tag


# Domains that are destroyed


def pytest_generate_tests(metafunc):
    if "turn" in metafunc.fixturenames:
        metafunc.parametrize("turn", range(metafunc.config.getoption("--destroys")))


@pytest.mark.parametrize(
    "role", ["granted", pytest.param("mapped", marks=pytest.mark.main("a domain that dies keeps nothing of its peer"))]
)
def test_destroy_of_one_side(net, g1, g2, g3, request, role, turn):
    """`xl destroy` of the side that granted, or mapped, under a transfer: nothing stays behind.

    The survivor's other channel, with the lowest of the three, carries a
    transfer all the time. Counted are the module's own counters, the kernel's
    list of interrupts and of mapped areas, and Xen's event channels. All are
    seen with both channels first, so none of them is blind; afterwards they
    must be exactly those of one channel, on either end of it. A page of the
    dead that somebody still maps keeps its domain in Xen's list.
    """
    (third, lower, higher), ids = by_domain(net, g1, g2, g3)
    doomed, survivor = (lower, higher) if role == "granted" else (higher, lower)
    both = xen.expected(net, survivor, (third, doomed), ids)
    alone = {one: xen.expected(net, one, (other,), ids) for one, other in ((survivor, third), (third, survivor))}
    wait_held(net, survivor, ids, both, "holds two channels")
    before = tags(net, survivor, third)
    # By turns the dead is who sends and who receives.
    source, sink = (survivor, doomed) if turn % 2 == 0 else (doomed, survivor)
    with net.transfer(source, sink, port=7101) as ended, net.transfer(survivor, third) as other:
        watch = Watch(net, other, survivor, third)
        watch.on_channel(ENOUGH // 3)
        Watch(net, ended, source, sink).on_channel(ENOUGH // 6)
        doomed.kill()
        for guest in (survivor, third):
            wait_held(net, guest, ids, alone[guest], f"has let go of {doomed.name}")
        until(
            lambda: ids[doomed.name] not in xen.domains(net.host),
            15 * net.slow,
            f"Xen has forgotten domain {ids[doomed.name]}",
        )
        watch.on_channel(ENOUGH // 3)
        longest = other.finish()
    assert tags(net, survivor, third) == before, "the survivor's other channel was replaced"
    # And so it stays: what comes late, and what goes and comes again, is seen here.
    for guest in (survivor, third):
        assert xen.held(net.host, guest, ids[guest.name]) == alone[guest]
    doomed.start()
    net.ensure()
    judge(request, net, longest)


@pytest.mark.parametrize(
    "first", [pytest.param("granted", marks=pytest.mark.main("what Xen lent is given back")), "mapped"]
)
def test_unloaded_modules_hold_nothing(net, g1, g2, g3, first):
    """Whichever side unloads first, both hold nothing then: the other's module is still there to count.

    Each has held something before: the same look showed it.
    """
    net.unload(g3)
    (lower, higher), ids = by_domain(net, g1, g2)
    pair = (lower, higher) if first == "granted" else (higher, lower)
    complaints = [messages(guest) for guest in pair]
    for one, other in (pair, pair[::-1]):
        wait_held(net, one, ids, xen.expected(net, one, (other,), ids), "holds one channel")
        assert one.run("xenstore-list data/vmloop").out.split()
    for guest, left in ((pair[0], pair[1]), (pair[1], None)):
        net.unload(guest)
        assert xen.held(net.host, guest, ids[guest.name]) == xen.GONE
        listed = guest.run("xenstore-list data/vmloop", check=False)
        assert not listed.out.split(), "a guest that ends removes its tree"
        if left:
            wait_held(net, left, ids, xen.NOTHING, "holds nothing")
    assert [messages(guest) for guest in pair] == complaints, "see dmesg"
    net.load(g1, g2, g3)
    net.ensure()


def messages(guest):
    """What the module has said of pages that it could not take back, or let go of."""
    return guest.run("dmesg | grep -E 'vmloop_xen: .*(still maps|would not unmap)' || true").out


# Pages


def grants(net, reader, owner, ids):
    """All grants of the channel's region, read by the side that maps it from its descriptor."""
    tag = net.peers(reader)[owner.name].tag
    peer, side, wish, gref, _ = net.told(reader)[f"channel/{tag}"].split()
    assert (int(peer), side, wish) == (ids[owner.name], "1", "map")
    listed = reader.run([str(TOOLS / "grant"), "list", peer, gref]).out
    found = [int(line) for line in listed.split()]
    assert len(found) == xen.pages(net.peers(reader)[owner.name].peer["ring_size"])[0]
    return found


def mappable(guest, domain, refs):
    """Which of these grants of a domain Xen lets a guest map."""
    text = "\n".join(map(str, refs)) + "\n"
    answers = guest.run([str(TOOLS / "grant"), "try", str(domain)], stdin=text, timeout=120).out.splitlines()
    assert [int(line.split()[0]) for line in answers] == refs
    return [int(line.split()[0]) for line in answers if line.endswith(" yes")]


@pytest.mark.main("isolation: no third guest maps a pair's pages")
def test_each_pair_has_pages_of_its_own(net, g1, g2, g3):
    """Xen lets the peer map every page of a region, and no page of it anybody else.

    That the peer can shows that the grants are there, and that the tool does
    not take everything for refused.
    """
    (owner, *peers), ids = by_domain(net, g1, g2, g3)
    for guest in peers:
        guest.run("modprobe xen_gntdev")
    refs = {guest.name: grants(net, guest, owner, ids) for guest in peers}
    assert not set(refs[peers[0].name]) & set(refs[peers[1].name]), "two channels share a page"
    for guest, other in (peers, peers[::-1]):
        assert mappable(guest, ids[owner.name], refs[guest.name]) == refs[guest.name]
        assert mappable(other, ids[owner.name], refs[guest.name]) == [], f"{other.name} can map what is {guest.name}'s"
    for guest in peers:
        with net.carried(owner, guest):
            owner.run(f"ping -c 3 -i 0.05 -q {guest.ip}")


# XenStore


@pytest.mark.main("isolation: XenStore")
def test_no_guest_reads_anothers_nodes(net, g1, g3):
    """Nor lists them; the guest itself and dom0 read the very same."""
    base = f"/local/domain/{g1.domid}"
    nodes = ("vmloop/page/0", "data/vmloop/hello", "data/vmloop/address")
    for node in nodes:
        own = g1.run(["xenstore-read", f"{base}/{node}"]).out
        assert own.strip()
        refused = g3.run(["xenstore-read", f"{base}/{node}"], check=False)
        assert refused.code != 0, f"{node} can be read"
        assert not refused.out
    for node in ("vmloop", "vmloop/page", "data/vmloop"):
        assert g1.run(["xenstore-list", f"{base}/{node}"]).out.split()
        refused = g3.run(["xenstore-list", f"{base}/{node}"], check=False)
        assert refused.code != 0, f"{node} can be listed"
        assert not refused.out


@pytest.mark.main("isolation: XenStore")
def test_no_guest_writes_what_dom0_says(net, g1, g3):
    """Not in its own directory, which it can read, nor in another's."""
    own, other = (f"/local/domain/{guest.domid}/vmloop" for guest in (g3, g1))

    def dom0():
        return [net.host.run(["xenstore-ls", "-f", path]).out for path in (own, other)]

    def at_rest():
        seen = dom0()
        return seen == dom0() and seen

    before = until(at_rest, 20 * net.slow, "dom0 has nothing more to say")
    assert g1.mac in before[0], "the directory is not where it was looked for"
    for words in (
        ("write", f"{own}/page/0", "1 1\\nagent 1 0 1 1 1 1 0 65536 forged"),
        ("write", f"{own}/page/1", "1 2\\nchannel/77 1 1 map 1 1"),
        ("write", f"{own}/new", "1"),
        ("rm", f"{own}/page/0"),
        ("rm", own),
        ("chmod", own, f"n{g3.domid}"),
        ("write", f"{other}/new", "1"),
        ("rm", other),
        ("write", f"/local/domain/{g1.domid}/data/vmloop/hello", "1"),
        ("rm", f"/local/domain/{g1.domid}/data/vmloop"),
    ):
        verb, *rest = words
        assert g3.run([f"xenstore-{verb}", *rest], check=False).code != 0, f"{words} was not refused"
    assert dom0() == before
    # What it may write, it can: the refusals were not the tool's.
    g3.run("xenstore-write data/vmloop-test 1 && xenstore-rm data/vmloop-test")
    g1.run("xenstore-exists data/vmloop/hello")


@pytest.mark.main("a directory of several nodes is read as a whole")
def test_pages_of_one_state_only(net, g1, g2):
    """A guest takes the pages of a directory together: never one of another state of them.

    Nobody but the test writes them meanwhile. The second page is of another
    state at first; once it is not, all that it says is there.
    """
    net.kill_agent()
    head, *lines = net.page(g1, 0).splitlines()
    generation, count = map(int, head.split())
    assert count == 1, "three guests need no more"
    known = next(line for line in lines if line.startswith(f"peer/{g2.domid}/interface/"))
    _, own, _, *rest = known.split()
    words = ("peer/4000/interface/0", own, "00:16:3e:99:99:99", *rest[:2])
    more = ["peer/4000 00000000000000ff 0 stranger", " ".join(words)]

    def write(number, head, lines):
        text = "\\n".join([head, *lines])
        net.host.run(["xenstore-write", f"/local/domain/{g1.domid}/vmloop/page/{number}", text])

    before = net.peers(g1)
    assert g2.name in before and "stranger" not in before
    write(1, f"{generation + 7} 2", more)
    write(0, f"{generation + 1} 2", lines)
    # It looks several times at once, and again after a second.
    apart = net.lab.now() + 2.5
    while net.lab.now() < apart:
        assert net.peers(g1).keys() == before.keys(), "pages of two states were taken together"
    write(1, f"{generation + 1} 2", more)
    until(lambda: "stranger" in net.peers(g1), 10 * net.slow, "the second page is read")
    assert net.peers(g1).keys() == before.keys() | {"stranger"}
    assert net.both_up(g1, g2), "channels work without an agent"
    net.start_agent()
    until(lambda: net.peers(g1).keys() == before.keys(), 10 * net.slow, "the agent's pages are read")
    assert net.host.run(["xenstore-exists", f"/local/domain/{g1.domid}/vmloop/page/1"], check=False).code != 0
    net.ensure()


def test_more_addresses_than_one_node_has(net, g3):
    """Forty are told in three nodes of sixteen at most, and all are taken back."""

    def listed():
        guests = {guest["name"]: guest for guest in net.listing()["guests"]}
        return {ip.partition("/")[0] for ip in guests["g3"]["ips"]}

    before = listed()
    assert g3.ip in before
    more = {f"10.98.7.{n}" for n in range(1, 41)}
    g3.run("n=0; while [ $n -lt 40 ]; do n=$((n + 1)); ip addr add 10.98.7.$n/24 dev eth0; done")
    until(lambda: listed() == before | more, 20 * net.slow, "the agent knows all")
    g3.run("ip addr flush to 10.98.7.0/24 dev eth0")
    until(lambda: listed() == before, 20 * net.slow, "the agent knows that they are gone")


BEGIN = """
set -e
at=data/vmloop
hello='1 0 00000000f0f0f0f0 0 forged 6.1'
# Prints what stands behind the word in the first page, once it is there; a
# pattern in the word is printed, too.
wait_for() {
    tries=0
    until found=$(xenstore-read -R vmloop/page/0 2>/dev/null | sed -n "s,^$1 ,\\1 ,p" | head -n 1); [ -n "$found" ]; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || { echo "no $1 came" >&2; exit 1; }
        sleep 0.1
    done
    echo $found
}
# The agent believes that modules are there, and reads on.
say_hello() {
    xenstore-write $at/hello "$hello"
}
"""

ATTACKS = {
    "hello": """
        for value in '' 1 '1 0' '1 0 0 0 v k' '1 0 xyzzy 0 v k' '99999999999 0 1 0 v k' '7 0 1 0 v k' \
            '1 0 1ffffffffffffffff 0 v k' '\\x01\\x00\\xff\\x80'; do
            xenstore-write $at/hello "$value"
        done
    """,
    "incarnations": """
        n=0
        while [ $n -lt 60 ]; do
            n=$((n + 1))
            xenstore-write $at/hello "1 0 $(printf %016x $n) 0 forged 6.1"
        done
        xenstore-write $at/hello x
    """,
    "forged_addresses": """
        say_hello
        xenstore-write $at/address/1 nonsense $at/address "17 $MAC1 $IP1/24 $MAC2 $IP2/24 $MAC3 $IP1/24 $MAC3 $IP2/24 \
$MAC3 127.0.0.1/8 ff:ff:ff:ff:ff:ff 255.255.255.255/0 $MAC3 10.99.0.3/24"
    """,
    "hundred_addresses": """
        say_hello
        n=0
        while [ $n -lt 20 ]; do
            many="$MAC3 10.99.$n.1/24 $MAC1 10.99.$n.2/24 $MAC3 10.99.$n.3/24 $MAC3 10.99.$n.4/24"
            xenstore-write $at/address/$n "$many $many $many $many"
            n=$((n + 1))
        done
        for count in 100 65 18446744073709551615 99999999999999999999 x; do
            xenstore-write $at/address "$count $many"
        done
    """,
    "long_values": """
        say_hello
        for length in 257 1900 4000; do
            long=$(head -c $length /dev/zero | tr '\\0' 5)
            for node in address/1 want/$ID1 want/$ID2 channel/1 channel/2 stats nonsense hello; do
                # XenStore itself refuses the longest.
                xenstore-write $at/$node "$long" 2>/dev/null || [ $length -gt 1900 ] || exit
            done
            say_hello
            xenstore-write $at/address 17
        done
        xenstore-write $at/want/$ID1 "$(head -c 1900 /dev/zero | tr '\\0' 5)"
    """,
    "binary": """
        say_hello
        for node in address/1 want/$ID1 want/$ID2 channel/1 channel/2 stats nonsense; do
            xenstore-write $at/$node '\\x00\\xff\\x0a\\x80%s%n'
        done
        xenstore-write $at/address 17
    """,
    "paths": """
        say_hello
        for node in want/0 want/18446744073709551616 want/x want/32767/1 channel/0 channel/x channel/16384 \
            channel/99999999999999999999 address/99999999999 stats/1/2/3 a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p; do
            xenstore-write $at/$node '1 1'
        done
    """,
    "wants": """
        say_hello
        n=0
        while [ $n -lt 200 ]; do
            xenstore-write $at/want/$n '1 1' $at/want/$((n + 1)) '0000000000000001 4294967295' \
                $at/want/$((n + 2)) '1' $at/want/$((n + 3)) 'ffffffffffffffff 99999999999'
            n=$((n + 4))
        done
    """,
    "channel": """
        say_hello
        set -- $(wait_for "\\(peer\\)/$ID1")
        xenstore-write $at/want/$ID1 "$2 1"
        set -- $(wait_for 'channel/\\([0-9]*\\)')
        tag=$1
        for word in explode 'offer x y' 'offer 4294967295 4294967295' up 'fail 99999999999' idle broken up closed \
            'fail 16'; do
            xenstore-write $at/channel/$tag "$word" $at/channel/$((tag + 1)) "$word" $at/channel/1 "$word"
        done
        xenstore-write $at/want/x 1
    """,
    "quota": """
        say_hello
        fill() {
            branch=$1
            set --
            n=0
            while [ $n -lt 20 ]; do
                set -- "$@" "$at/junk$branch/$n" x
                n=$((n + 1))
            done
            xenstore-write "$@" 2>/dev/null
        }
        branch=0
        while fill $branch; do
            branch=$((branch + 1))
            [ $branch -lt 200 ] || { echo "no quota" >&2; exit 1; }
        done
        [ $branch -gt 10 ] || { echo "only $branch branches" >&2; exit 1; }
        n=0
        while xenstore-write $at/more/$n x 2>/dev/null; do
            n=$((n + 1))
            [ $n -lt 100 ] || { echo "no quota" >&2; exit 1; }
        done
    """,
    "flood": """
        export at
        for k in 1 2 3; do
            timeout 5 sh -c 'while :; do
                xenstore-write $at/hello x $at/want/1 y $at/address 9 $at/channel/5 z
            done' &
        done
        wait
    """,
    "again_and_again": """
        n=0
        while [ $n -lt 20 ]; do
            n=$((n + 1))
            xenstore-rm $at 2>/dev/null || true
            say_hello
            xenstore-write $at/address "1 $MAC1 $IP1/24" $at/want/x 1
        done
    """,
}
"""What g3 runs, with addresses and ids of all three. Each ends with status 0 only if it could do what it was
to do, and what it leaves is something that the agent counts as nonsense once it has read it."""


class Truth:
    """What is so of g1 and g2, whatever g3 says."""

    def __init__(self, net, g1, g2, g3):
        self.net = net
        self.pair = ((g1, g2), (g2, g1))
        self.g3 = g3
        self.tags = tags(net, g1, g2)
        self.pid = self.status()["pid"]

    def status(self):
        return json.loads(self.net.command("status", "--json").out)

    @property
    def malformed(self):
        """How often the agent has read nonsense."""
        return self.status()["counters"]["malformed"]

    def check(self):
        """The agent answers, and everybody but g3 is who they are."""
        net, g3 = self.net, self.g3
        asked = net.lab.now()
        guests = {guest["name"]: guest for guest in net.listing()["guests"]}
        took = net.lab.now() - asked
        assert took < 10 * net.slow, f"the agent answered after {took:.1f} s"
        assert net.agent.poll() is None, "the agent has ended"
        assert [nic["mac"] for nic in guests["g3"]["nics"]] == [g3.mac]
        theirs = {ip for guest, _ in self.pair for ip in (guest.ip, guest.ip6)}
        for guest, peer in self.pair:
            listed = guests[guest.name]
            assert listed["state"] == "ready"
            assert [nic["mac"] for nic in listed["nics"]] == [guest.mac]
            assert guest.ip in {ip.partition("/")[0] for ip in listed["ips"]}
            peers = net.peers(guest)
            macs, ips = xen.interfaces(peers[peer.name].peer)
            assert macs == {peer.mac}
            assert peer.ip in ips
            if g3.name in peers:
                macs, ips = xen.interfaces(peers[g3.name].peer)
                assert macs <= {g3.mac}, f"{guest.name} believes that g3 has {macs}"
                assert not ips & (theirs | {"127.0.0.1", "255.255.255.255"}), f"{guest.name} believes that g3 is {ips}"
        assert tags(net, *self.pair[0]) == self.tags, "the channel was replaced"


def believed(net, guest, peer):
    """The IP addresses that a guest believes of a peer; none if it knows no such peer."""
    found = net.peers(guest).get(peer.name)
    return xen.interfaces(found.peer)[1] if found else set()


@pytest.mark.parametrize("name", ATTACKS)
def test_nonsense_in_its_own_nodes(net, g1, g2, g3, name):
    """Whatever g3 writes below data/vmloop, it harms nobody else, and itself only until its modules are back.

    The transfer from g1 to g2 goes on by its channel, every byte of it. That the agent has read
    what g3 wrote, and not looked past it, its count of nonsense shows; that it
    takes the true among the forged addresses, g1's directory.
    """
    net.unload(g3)
    for guest in (g1, g2):
        net.wait_state(guest, g3, "gone")
    truth = Truth(net, g1, g2, g3)
    truth.check()
    malformed = truth.malformed
    known = {
        f"{what}{n}": str(value)
        for n, guest in enumerate((g1, g2, g3), 1)
        for what, value in (("MAC", guest.mac), ("IP", guest.ip), ("ID", guest.domid))
    }
    with net.transfer(g1, g2) as transfer:
        watch = Watch(net, transfer, g1, g2)
        watch.on_channel(ENOUGH // 6)
        with g3.popen(BEGIN + ATTACKS[name], env=known) as attack:
            while attack.poll() is None:
                truth.check()
                transfer.check()
            ended = attack.wait(20)
        assert ended.code == 0, f"the attack could not be made: {ended.err}"
        until(lambda: truth.malformed > malformed, 15 * net.slow, "the agent reads it")
        if name == "forged_addresses":
            until(lambda: "10.99.0.3" in believed(net, g1, g3), 15 * net.slow, "g1 hears of the address that is g3's")
        truth.check()
        watch.on_channel(ENOUGH // 6)
        transfer.finish()
    truth.check()
    assert truth.status()["pid"] == truth.pid, "the agent was started again"
    # The modules remove the tree when they begin, whatever is there.
    net.load(g3)
    net.recover(g1, g3)
    net.recover(g2, g3)
    with net.carried(g1, g3):
        g1.run(f"ping -c 3 -i 0.05 -q {g3.ip}")
    left = g3.run("xenstore-ls -f data/vmloop").out
    assert "forged" not in left, left
    assert "junk" not in left, left
