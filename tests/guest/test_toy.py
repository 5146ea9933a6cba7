# SPDX-License-Identifier: GPL-2.0
"""Many lanes between two guests: the toy path (kernel/paths/toy/), whose far end of each lane is an echo.

What of it needs no second guest is in test_lanes.py.
"""

import json

import pytest

from tests.guest.net import DROPS, TOOLS, Net, until
from tests.guest.toy import RING, TOY, Toy


@pytest.mark.main("lanes of two paths share a channel's doorbell; test_lanes.py has it on KVM", on="xen")
def test_lanes_beside_packets(net: Net, toy: Toy, request: pytest.FixtureRequest) -> None:
    """Some lanes flow, 500 others come and go, again and again, and packets: all of it arrives as it was sent."""
    seconds = request.config.getoption("--lane-seconds")
    before = net.peers(toy.g1)["g2"]
    churned = 0
    with (
        toy.g1.popen(toy.words("flow", "bytes", 4 * RING, 10, seconds)) as flow,
        toy.g1.popen(toy.words("flow", "records", 4 * RING, 10, seconds)) as records,
        net.transfer(toy.g1, toy.g2) as transfer,
    ):
        while flow.poll() is None:
            for kind in ("bytes", "records"):
                assert toy.run("churn", kind, RING, 250, 8)["bytes"] > 0
            churned += 500
        for one in (flow, records):
            result = one.wait(60 * net.slow)
            assert result.code == 0, result.err
            said = json.loads(result.out.splitlines()[-1])
            assert said["moved"] > 0, "no ring has moved"
            assert said["least"] > 0, "a lane had no turn"
            print(f"{churned} lanes came and went; 10 lanes: {said}")
        transfer.finish()
    after = net.peers(toy.g1)["g2"]
    assert (after.state, after.tag) == ("up", before.tag)
    assert after.stats["tx_bytes"] > before.stats["tx_bytes"]
    assert not any(after.stats[name] != before.stats[name] for name in DROPS)


@pytest.mark.parametrize(
    "end",
    [
        "path",
        "off",
        "channel",
        pytest.param("transport", marks=pytest.mark.main("unread bytes were counted wrong when a side went")),
    ],
)
def test_account(net: Net, toy: Toy, end: str) -> None:
    """However the lanes end, their opener learns what the peer has read, to the byte."""
    before = toy.read()
    with toy.g1.popen(toy.words("hold", "bytes", RING, 40)) as hold:
        hold.wait_for("ready")
        if end == "path":
            toy.g2.run("rmmod vmloop_toy")
        elif end == "off":
            toy.g2.run(["/run/vmloop-test/control", "off"])
        elif end == "channel":
            net.command("close", "g1", "g2")
        else:
            toy.g2.run(["rmmod", net.transport])
        result = hold.wait(30 * net.slow)
    if end == "off":
        toy.g2.run(["/run/vmloop-test/control", "on"])
    elif end == "transport":
        toy.g2.run(f"modprobe {net.transport}")
    assert result.code == 0, result.err
    account = json.loads(result.out.splitlines()[-1])
    assert account["unread"] > 0 and account["moved"] > 0, account
    # Whoever closed first reads no more: what comes back after that is lost, and was read.
    assert account["came"] <= account["sent"] - account["unread"], account
    if end == "path":
        assert account["came"] == account["sent"] - account["unread"], account
    else:
        assert toy.read() - before == account["sent"] - account["unread"], account


@pytest.mark.main("a task that does not run held up the unplugging of a device")
def test_stopped_program(net: Net, toy: Toy) -> None:
    """A program that was stopped amid its reads and writes does not keep a channel."""
    with toy.g1.popen(toy.words("flow", "bytes", 4 * RING, 20, 600)) as flow:
        started = net.peers(toy.g1)["g2"].stats["tx_doorbells"]
        until(
            lambda: net.peers(toy.g1)["g2"].stats["tx_doorbells"] - started > 20, 10 * net.slow, "the lanes are in use"
        )
        toy.g1.run("pkill -STOP -x toy")
        net.command("close", "g1", "g2")
        until(lambda: net.channel_count(toy.g1) == 1, 10 * net.slow, "g1 has its channel to g3 only")
        toy.g1.run("pkill -CONT -x toy")
        assert flow.wait(20 * net.slow).code != 0, "the lanes have ended"
    assert net.peers(toy.g1)["g2"].state != "broken"


def test_page_that_nobody_brings(net: Net, toy: Toy) -> None:
    """Tasks that wait for their own memory, amid a read and a write, keep no channel."""
    with toy.g1.popen(toy.words("stuck", "bytes", RING)) as stuck:
        stuck.wait_for("ready", 30)
        net.command("close", "g1", "g2")
        until(lambda: net.channel_count(toy.g1) == 1, 10 * net.slow, "g1 has its channel to g3 only")
        toy.g1.run("pkill -USR1 -x toy")
        result = stuck.wait(20 * net.slow)
    assert result.code == 0, result.err
    said = json.loads(result.out.splitlines()[-1])
    assert said["read"] == 4, "what had come is kept"
    assert (said["written"], said["error"]) == (-1, "Broken pipe"), said


WINDOW = 1 << 20
PATIENT = 100
"""Tenths of a second. That a guest takes windows the host learns a moment after it can."""


def window_devices(guest) -> list[str]:
    """Devices of a guest of KVM's that are windows: those without doorbells."""
    found = guest.run(
        "cd /sys/bus/pci/devices; for d in *; do echo $d $(cat $d/vendor $d/device $d/resource); done"
    ).out
    # Of three words each BAR has; those with doorbells have a second one, with their table.
    ours = [line.split() for line in found.splitlines() if " 0x1af4 0x1110 " in line]
    return [words[0] for words in ours if int(words[3], 16) and not int(words[6], 16)]


def held(net: Net, guest) -> dict[str, int]:
    """What stands for windows in a guest.

    On Xen pages that it has granted to peers, maps of theirs, and what it has put aside; on KVM devices
    without doorbells, and what QEMU has of their memory.
    """
    if net.is_xen:
        names = ("granted", "mapped", "quarantined")
        return {name: int(guest.run(f"cat /sys/module/vmloop_xen/parameters/{name}").out) for name in names}
    objects = [entry["name"] for entry in guest.qmp("qom-list", {"path": "/objects"})]
    sets = guest.qmp("query-fdsets")
    return {
        "devices": len(window_devices(guest)),
        "memory": sum(name.startswith("vmloop-") for name in objects),
        "descriptors": sum("vmloop" in str(one) for one in sets),
    }


def gains(net: Net, side: str) -> dict[str, int]:
    """By how much that grows with a window, at its owner or at its reader."""
    if net.is_xen:
        return {"granted" if side == "owner" else "mapped": WINDOW // 4096 + 1}
    return {"devices": 1, "memory": 1}


def has(net: Net, guest, before: dict[str, int], more: dict[str, int]) -> bool:
    """Whether a guest holds so much more than before."""
    return held(net, guest) == {name: count + more.get(name, 0) for name, count in before.items()}


@pytest.mark.parametrize(
    "owner",
    [
        "g1",
        pytest.param("g2", marks=pytest.mark.main("what a guest put into a window its peer did not find", on="both")),
    ],
)
def test_references(net: Net, toy: Toy, owner: str) -> None:
    """What a guest puts into a window the other reads there; of windows that have ended nothing is left."""
    if owner == "g2":
        toy.g1, toy.g2 = toy.g2, toy.g1
    before = {guest.name: held(net, guest) for guest in (toy.g1, toy.g2)}
    with toy.g1.popen(toy.words("flow", "records", 4 * RING, 10, 6)) as flow:
        said = toy.run("refer", "records", WINDOW, 3, 5)
        result = flow.wait(60 * net.slow)
        assert result.code == 0, result.err
    assert said["windows"] > 4 and said["referred"] > said["refused"] > 0, said
    for guest in (toy.g1, toy.g2):
        until(lambda: has(net, guest, before[guest.name], {}), 20 * net.slow, "nothing of a window is left")  # noqa: B023


@pytest.mark.kvm_only
def test_reader_cannot_write(net: Net, toy: Toy) -> None:
    """A reader that writes to a window past its modules changes nothing."""
    with toy.g1.popen(toy.words("keep", "records", WINDOW, PATIENT)) as keep:
        keep.wait_for("ready", 30)
        toy.g1.run("pkill -STOP -x toy")
        for guest, said in ((toy.g1, "changed"), (toy.g2, "same")):
            [device] = window_devices(guest)
            assert guest.run([str(TOOLS / "shm"), "scribble", device]).out.strip() == said
        toy.g1.run("pkill -CONT -x toy")
        keep.terminate()
        keep.wait(30 * net.slow)


ENDS = [
    "path",
    "off",
    "channel",
    "transport",
    "owner_off",
    "program",
    pytest.param("prepare", marks=pytest.mark.kvm_only),
    pytest.param("agent", marks=pytest.mark.kvm_only),
    pytest.param("unplugged", marks=pytest.mark.kvm_only),
]


def unplug_window(guest) -> None:
    """As somebody who plays with the guest's QEMU."""
    devices = guest.qmp("qom-list", {"path": "/machine/peripheral"})
    window = next(one["name"] for one in devices if one["name"].startswith("vmloop-win-"))
    guest.qmp("device_del", {"id": window})


@pytest.mark.parametrize("ms", [0, 1000], ids=lambda ms: f"{ms}ms")
@pytest.mark.parametrize("end", ENDS)
def test_window_end(net: Net, toy: Toy, end: str, ms: int) -> None:
    """However a window ends, and however long the reader would use it, both let go of all of it."""
    toy.g2.run(f"echo {ms} >/sys/module/vmloop_toy/parameters/hold_ms")
    before = {guest.name: held(net, guest) for guest in (toy.g1, toy.g2)}
    with toy.g1.popen(toy.words("keep", "records", WINDOW, PATIENT)) as keep:
        keep.wait_for("ready", 30)
        assert has(net, toy.g1, before["g1"], gains(net, "owner")), held(net, toy.g1)
        assert has(net, toy.g2, before["g2"], gains(net, "reader")), held(net, toy.g2)
        if end == "path":
            toy.g2.run("rmmod vmloop_toy")
        elif end in ("off", "owner_off"):
            (toy.g1 if end == "owner_off" else toy.g2).run(["/run/vmloop-test/control", "off"])
        elif end == "channel":
            net.command("close", "g1", "g2")
        elif end == "transport":
            toy.g2.run(["rmmod", net.transport])
        elif end == "prepare":
            net.command("prepare", "g2")
        elif end == "agent":
            net.kill_agent()
            net.start_agent()
        elif end == "unplugged":
            unplug_window(toy.g2)
        else:
            keep.terminate()
        result = keep.wait(30 * net.slow)
    assert result.code == 0 or end == "program", result.err
    if end in ("off", "owner_off"):
        (toy.g1 if end == "owner_off" else toy.g2).run(["/run/vmloop-test/control", "on"])
    elif end == "transport":
        toy.g2.run(f"modprobe {net.transport}")
    elif end == "prepare":
        net.command("resume", "g2")
    # Other channels of the two may have ended as well.
    net.bring_up(toy.g1, toy.g2)
    if net.is_xen:
        both = (toy.g1, toy.g2)
        until(lambda: all(held(net, guest)["quarantined"] == 0 for guest in both), 10 * net.slow, "none is put aside")
    net.recover(toy.g1, toy.g2)
    net.ensure()
    for guest in (toy.g1, toy.g2):
        until(lambda: has(net, guest, before[guest.name], {}), 20 * net.slow, "nothing of a window is left")  # noqa: B023


@pytest.mark.parametrize("dead", ["owner", "reader"])
def test_window_of_the_dead(net: Net, toy: Toy, dead: str) -> None:
    """Of a window whose other side was killed nothing is left, however long it was in use."""
    toy.g2.run("echo 1000 >/sys/module/vmloop_toy/parameters/hold_ms")
    lost, other = (toy.g1, toy.g2) if dead == "owner" else (toy.g2, toy.g1)
    before = held(net, other)
    with toy.g1.popen(toy.words("keep", "records", WINDOW, PATIENT)) as keep:
        keep.wait_for("ready", 30)
        assert held(net, other) != before
        lost.kill()
        if dead == "reader":
            result = keep.wait(30 * net.slow)
            assert result.code == 0, result.err
    until(lambda: held(net, other) == before, 30 * net.slow, "nothing of the window is left")
    lost.start()
    net.ensure()


@pytest.mark.main("a guest with other modules than its peer had no channel", on="both")
def test_peer_without_tables(net: Net, g1, g2) -> None:
    """With modules that know one lane only a channel has one lane, of packets, and carries them as ever."""
    net.unload(g2)
    g2.run(f"modprobe vmloop tables=0 && modprobe -a {net.transport} vmloop_net", timeout=60 * net.slow)
    try:
        net.bring_up(g1, g2)
        with net.carried(g1, g2):
            g1.run(f"ping -c 10 -i 0.05 -q {g2.ip}")
        with net.transfer(g2, g1) as transfer:
            transfer.wait_bytes(20_000_000)
            transfer.finish()
        g1.run("modprobe vmloop_toy")
        peer = str(net.peers(g1)["g2"].peer["id"])
        refused = g1.run([TOY, "hold", peer, "bytes", str(RING), "1"], check=False)
        assert refused.code == 1 and "no lane: Operation not supported" in refused.err, refused
    finally:
        g1.run("rmmod vmloop_toy", check=False)
        net.unload(g2)
        net.load(g2)
    net.bring_up(g1, g2)


@pytest.mark.main("a packet lane did not come back while another path kept the channel")
def test_packets_come_back(net: Net, toy: Toy) -> None:
    """The module of packets goes and comes in one guest; the channel stays, as the toy path has a use for it."""
    tag = net.peers(toy.g1)["g2"].tag
    with toy.g1.popen(toy.words("hold", "bytes", RING, 4)) as hold:
        hold.wait_for("ready")
        toy.g2.run("rmmod vmloop_net")
        toy.g1.run(f"ping -c 3 -i 0.05 -q {toy.g2.ip}")
        assert net.peers(toy.g1)["g2"].peer["ring_size"] == 0, "no lane of packets is left"
        toy.g2.run("modprobe vmloop_net")
        until(lambda: net.peers(toy.g1)["g2"].peer["ring_size"], 10 * net.slow, "a lane of packets is there again")
        with net.carried(toy.g1, toy.g2):
            toy.g1.run(f"ping -c 10 -i 0.05 -q {toy.g2.ip}")
        assert hold.poll() is None, "the other lanes have ended"
        hold.terminate()
        hold.wait(20 * net.slow)
    assert net.peers(toy.g1)["g2"].tag == tag
