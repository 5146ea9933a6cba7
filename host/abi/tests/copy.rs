// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Records that are copied from one ring to another, as they are, wherever either wraps.

use vmloop_abi::memory::{Layout, channel_header, create};
use vmloop_abi::ring::{Copied, Grain};
use vmloop_abi::table::{Description, LaneRx, LaneTx, Table, copy};

const SIZE: u32 = 4096;

/// A ring that begins at a position: both ends.
fn ring(start: u32) -> (LaneTx, LaneRx) {
    let memory = create("test", &channel_header(64 << 10, Layout::Table)).expect("memory");
    let [one, other] = [0, 1].map(|side| Table::map(&memory, side).expect("a region"));
    let what = Description { kind: 6, ring_size: SIZE, ring_offset: 0, features: 0, path: [0; 64] };
    let tx = one.tx(0, Grain::Records, 0, SIZE, start).expect("a ring");
    let rx = other.rx(0, Grain::Records, &what, start).expect("a ring");
    (tx, rx)
}

#[test]
fn places_do_not_count_padding() {
    // 96 bytes before the near ring's end, and 48 before the far one's.
    let (mut near, mut from) = ring(SIZE - 96);
    let (mut to, mut far) = ring(SIZE - 48);
    let payloads = [vec![1; 24], vec![2; 40], vec![3; 24], vec![4; 1000]];
    for (index, payload) in payloads.iter().enumerate() {
        assert_eq!(near.push(7, index as u16, payload), Ok(true));
    }
    near.publish();
    let places = [
        (SIZE - 96, SIZE - 48, 32),
        // 16 bytes of padding in the far ring.
        (SIZE - 64, SIZE, 48),
        // As many in the near one.
        (SIZE, SIZE + 48, 32),
        (SIZE + 32, SIZE + 80, 1008),
    ];
    for (from_place, to_place, bytes) in places {
        let copied = copy(&mut from, &mut to, SIZE).expect("good rings");
        assert_eq!(copied, Copied::Some { from: from_place, to: to_place, bytes });
    }
    assert_eq!(copy(&mut from, &mut to, SIZE), Ok(Copied::Empty));
    to.publish();
    let mut payload = Vec::new();
    for (index, sent) in payloads.iter().enumerate() {
        assert_eq!(far.pop(&mut payload), Ok(Some((7, index as u16))));
        assert_eq!(payload, *sent);
    }
    assert_eq!(far.pop(&mut payload), Ok(None));
    // Room is given back in part.
    assert_eq!(near.tail(), Ok(SIZE - 96));
    from.publish_to(SIZE);
    assert_eq!(near.tail(), Ok(SIZE));
    assert_eq!(from.tail(), SIZE + 1040);
}
