// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One side of a channel of version 2; docs/protocol.md, sections 1 to 3 and 9.
//!
//! What the other side says is read once and handed out; whoever uses it checks it. Only
//! where it says that rings lie is checked here, as that is used as an address.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::fs::{SealFlags, fcntl_get_seals};
use zerocopy::{FromZeros, IntoBytes};

use crate::lanes::{self, Entry, News, VMLOOP_ENTRY_SIZE, VMLOOP_TABLE_ENTRIES};
use crate::mapping::Mapping;
use crate::ring::{self, Broken, Copied, End, Grain, Rx, Tx};
use crate::shm::{self, Header, Lane};

const PAGE: u64 = shm::VMLOOP_SHM_PAGE;

/// Words of news of either kind.
const NEWS_WORDS: usize = lanes::VMLOOP_NEWS_BITS as usize;

/// `struct vmloop_news_tx`, and `struct vmloop_news_rx`, which has the same fields.
#[repr(C)]
struct RawNews {
    groups: u64,
    lanes: [u64; NEWS_WORDS],
    ours: *mut News,
    theirs: *const News,
}

unsafe extern "C" {
    fn vmloop_news_init(tx: *mut RawNews, rx: *mut RawNews, ours: *mut News, theirs: *const News);
    fn vmloop_news_tell(tx: *mut RawNews, lane: u32) -> bool;
    fn vmloop_news_groups(rx: *mut RawNews) -> u64;
    fn vmloop_news_lanes(rx: *mut RawNews, group: u32) -> u64;
}

/// What a lane is, as one side describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// `VMLOOP_LANE_*`
    pub kind: u32,
    /// Bytes of the ring that it produces.
    pub ring_size: u32,
    /// Where that begins in its data.
    pub ring_offset: u64,
    /// `VMLOOP_F_*` that its path offers.
    pub features: u64,
    /// The path's own.
    pub path: [u8; 64],
}

/// A side of a region.
pub struct Table {
    map: Arc<Mapping>,
    side: usize,
    /// Where the two sides begin, ours first.
    ours: u64,
    theirs: u64,
    /// Where the data of the two begin, and how long they are.
    tx: (u64, u64),
    rx: (u64, u64),
    room: u32,
    told: Box<RawNews>,
    taken: Box<RawNews>,
}

// SAFETY: the pointers are to shared memory that belongs to no thread and lives as long
// as `map`; they are used through &mut self only.
unsafe impl Send for Table {}

/// A ring that this side produces.
pub struct LaneTx {
    ring: Tx,
    _map: Arc<Mapping>,
}

/// A ring that the other side produces.
pub struct LaneRx {
    ring: Rx,
    _map: Arc<Mapping>,
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The header, checked as `vmloop_region_open()` does.
fn read_header(fd: BorrowedFd<'_>) -> io::Result<Header> {
    let file = File::from(fd.try_clone_to_owned()?);
    let mut header = Header::new_zeroed();
    file.read_exact_at(header.as_mut_bytes(), 0)?;
    if header.magic != shm::VMLOOP_SHM_MAGIC
        || header.major != lanes::VMLOOP_TABLE_MAJOR
        || header.kind != shm::VMLOOP_REGION_CHANNEL
    {
        return Err(invalid("no channel with a table of lanes"));
    }
    if header.size > file.metadata()?.len() || usize::try_from(header.size).is_err() {
        return Err(invalid("a region that is larger than its memory"));
    }
    // Who has the memory as well could cut it off under our hands.
    if !fcntl_get_seals(fd)?.contains(SealFlags::SHRINK) {
        return Err(invalid("memory whose size is not sealed"));
    }
    let least = VMLOOP_TABLE_ENTRIES + 2 * VMLOOP_ENTRY_SIZE;
    let mut parts = vec![(0, PAGE)];
    for side in 0..2 {
        parts.push((header.side_offset[side], u64::from(header.side_size)));
        parts.push((header.data_offset[side], header.data_size[side]));
    }
    parts.sort_unstable();
    let apart = parts
        .windows(2)
        .all(|two| two[0].0.checked_add(two[0].1).is_some_and(|end| end <= two[1].0));
    let last = parts[parts.len() - 1];
    let whole = parts.iter().all(|part| part.0 % PAGE == 0 && part.1 % PAGE == 0 && part.1 > 0);
    let ends = last.0.checked_add(last.1).is_some_and(|end| end <= header.size);
    if header.side_size < least || !apart || !whole || !ends {
        return Err(invalid("parts that cannot be there"));
    }
    Ok(header)
}

impl Table {
    /// Maps a channel's memory, of which we are side `side`, 0 or 1.
    ///
    /// # Errors
    /// Those of mmap(2); `InvalidData` for a region that is not of version 2, or cannot be.
    pub fn map(fd: impl AsFd, side: usize) -> io::Result<Self> {
        assert!(side < 2);
        let header = read_header(fd.as_fd())?;
        let map = Arc::new(Mapping::new(fd.as_fd(), header.size as usize)?);
        let (ours, theirs) = (header.side_offset[side], header.side_offset[1 - side]);
        let news = |side: u64| -> *mut News {
            let at = side + offset_of!(lanes::Table, news) as u64;
            map.at(at, size_of::<News>() as u64).cast()
        };
        let empty = || {
            Box::new(RawNews {
                groups: 0,
                lanes: [0; NEWS_WORDS],
                ours: std::ptr::null_mut(),
                theirs: std::ptr::null(),
            })
        };
        let (mut told, mut taken) = (empty(), empty());
        // SAFETY: both pointers are within the mapping, as at() checked, aligned, as sides
        // begin at pages, and live as long as the mapping, which `told` and `taken` do not
        // outlive.
        unsafe { vmloop_news_init(&mut *told, &mut *taken, news(ours), news(theirs)) };
        let room = (header.side_size - VMLOOP_TABLE_ENTRIES) / VMLOOP_ENTRY_SIZE;
        Ok(Self {
            map,
            side,
            ours,
            theirs,
            tx: (header.data_offset[side], header.data_size[side]),
            rx: (header.data_offset[1 - side], header.data_size[1 - side]),
            room: room.min(lanes::VMLOOP_LANES_MAX) & !1,
            told,
            taken,
        })
    }

    /// Which side we are.
    pub fn side(&self) -> usize {
        self.side
    }

    /// Lanes that there is room for.
    pub fn room(&self) -> u32 {
        self.room
    }

    /// Pages of our own data.
    pub fn pages(&self) -> u32 {
        u32::try_from(self.tx.1 / PAGE).unwrap_or(u32::MAX)
    }

    fn entry(&self, side: u64, lane: u32) -> u64 {
        assert!(lane < self.room);
        side + u64::from(VMLOOP_TABLE_ENTRIES) + u64::from(lane) * u64::from(VMLOOP_ENTRY_SIZE)
    }

    /// Says what we are, all but the state.
    pub fn describe(&self, features: u64, lanes: u32) {
        let version =
            u32::from(lanes::VMLOOP_TABLE_MAJOR) | u32::from(lanes::VMLOOP_TABLE_MINOR) << 16;
        let at = |field: usize| self.ours + field as u64;
        self.map.u32_at(at(offset_of!(lanes::Table, major))).store(version, Relaxed);
        self.map.u64_at(at(offset_of!(lanes::Table, features))).store(features, Relaxed);
        self.map.u32_at(at(offset_of!(lanes::Table, lanes))).store(lanes, Relaxed);
    }

    /// What the other side says that it is: its version, its features, its lanes.
    pub fn described(&self) -> (u16, u64, u32) {
        let at = |field: usize| self.theirs + field as u64;
        (
            self.map.u32_at(at(offset_of!(lanes::Table, major))).load(Relaxed) as u16,
            self.map.u64_at(at(offset_of!(lanes::Table, features))).load(Relaxed),
            self.map.u32_at(at(offset_of!(lanes::Table, lanes))).load(Relaxed),
        )
    }

    /// Our state, `VMLOOP_SIDE_*`, as it lies in the memory.
    pub fn our_state(&self) -> u32 {
        self.map.u32_at(self.ours + offset_of!(lanes::Table, state) as u64).load(Relaxed)
    }

    /// Says our state; the doorbell is to be rung.
    pub fn say_state(&self, state: u32) {
        let at = self.ours + offset_of!(lanes::Table, state) as u64;
        self.map.u32_at(at).store(state, Release);
    }

    /// The other side's state; what it said before is there to read.
    pub fn state(&self) -> u32 {
        self.map.u32_at(self.theirs + offset_of!(lanes::Table, state) as u64).load(Acquire)
    }

    /// Describes our ring in our entry, before it is opened.
    pub fn describe_lane(&self, lane: u32, what: &Description) {
        let at = self.entry(self.ours, lane);
        let put = |field: usize, value| self.map.u32_at(at + field as u64).store(value, Relaxed);
        put(offset_of!(Entry, lane) + offset_of!(Lane, kind), what.kind);
        put(offset_of!(Entry, lane) + offset_of!(Lane, ring_size), what.ring_size);
        put(offset_of!(Entry, bell), 0);
        let ring_offset = at + (offset_of!(Entry, lane) + offset_of!(Lane, ring_offset)) as u64;
        self.map.u64_at(ring_offset).store(what.ring_offset, Relaxed);
        let features = at + offset_of!(Entry, features) as u64;
        self.map.u64_at(features).store(what.features, Relaxed);
        for (index, word) in what.path.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            let at = at + (offset_of!(Entry, path) + 8 * index) as u64;
            self.map.u64_at(at).store(word, Relaxed);
        }
    }

    /// What the other side's entry describes, each word read once.
    pub fn described_lane(&self, lane: u32) -> Description {
        let at = self.entry(self.theirs, lane);
        let get = |field: usize| self.map.u32_at(at + field as u64).load(Relaxed);
        let mut path = [0; 64];
        for (index, word) in path.chunks_exact_mut(8).enumerate() {
            let at = at + (offset_of!(Entry, path) + 8 * index) as u64;
            word.copy_from_slice(&self.map.u64_at(at).load(Relaxed).to_le_bytes());
        }
        let ring_offset = at + (offset_of!(Entry, lane) + offset_of!(Lane, ring_offset)) as u64;
        Description {
            kind: get(offset_of!(Entry, lane) + offset_of!(Lane, kind)),
            ring_size: get(offset_of!(Entry, lane) + offset_of!(Lane, ring_size)),
            ring_offset: self.map.u64_at(ring_offset).load(Relaxed),
            features: self.map.u64_at(at + offset_of!(Entry, features) as u64).load(Relaxed),
            path,
        }
    }

    /// Where the other side's ring of a lane ends, as it says: only to begin there.
    pub fn their_head(&self, lane: u32) -> u32 {
        let field = offset_of!(Entry, lane) + offset_of!(Lane, tx_head);
        self.map.u32_at(self.entry(self.theirs, lane) + field as u64).load(Relaxed)
    }

    /// Says where the other side's ring begins, for the side that accepts.
    pub fn begin_reading(&self, lane: u32, start: u32) {
        let field = offset_of!(Entry, lane) + offset_of!(Lane, rx_tail);
        self.map.u32_at(self.entry(self.ours, lane) + field as u64).store(start, Relaxed);
    }

    /// The other side's word of a lane's life.
    pub fn life(&self, lane: u32) -> u32 {
        let at = self.entry(self.theirs, lane) + offset_of!(Entry, life) as u64;
        self.map.u32_at(at).load(Acquire)
    }

    /// Says ours, after all that belongs to it.
    pub fn say_life(&self, lane: u32, word: u32) {
        let at = self.entry(self.ours, lane) + offset_of!(Entry, life) as u64;
        self.map.u32_at(at).store(word, Release);
    }

    /// Why the other side closed a lane, or refused it.
    pub fn reason(&self, lane: u32) -> u32 {
        let at = self.entry(self.theirs, lane) + offset_of!(Entry, reason) as u64;
        self.map.u32_at(at).load(Relaxed)
    }

    /// Says why we do.
    pub fn say_reason(&self, lane: u32, reason: u32) {
        let at = self.entry(self.ours, lane) + offset_of!(Entry, reason) as u64;
        self.map.u32_at(at).store(reason, Relaxed);
    }

    /// There is something new about a lane; whether the other side wants a doorbell.
    pub fn tell(&mut self, lane: u32) -> bool {
        assert!(lane < self.room);
        // SAFETY: self.told was initialised by map(), and has a bit for each lane.
        unsafe { vmloop_news_tell(&mut *self.told, lane) }
    }

    /// The lanes that the other side has told of since the last call, and maybe others.
    /// All of them must be looked at.
    pub fn take(&mut self, mut news: impl FnMut(u32)) {
        // SAFETY: self.taken was initialised by map().
        let mut groups = unsafe { vmloop_news_groups(&mut *self.taken) };
        while groups != 0 {
            let group = groups.trailing_zeros();
            groups &= groups - 1;
            // SAFETY: as above; a word has no more bits than there are groups.
            let mut lanes = unsafe { vmloop_news_lanes(&mut *self.taken, group) };
            while lanes != 0 {
                let lane = group * lanes::VMLOOP_NEWS_BITS + lanes.trailing_zeros();
                lanes &= lanes - 1;
                if lane < self.room {
                    news(lane);
                }
            }
        }
    }

    /// Pointers to both entries of a lane, ours first.
    fn lane(&self, lane: u32) -> (*mut Lane, *const Lane) {
        let at = |side| self.map.at(self.entry(side, lane), size_of::<Lane>() as u64);
        (at(self.ours).cast(), at(self.theirs).cast())
    }

    /// Begins to produce: `size` bytes from `offset` in our data on, at position `start`.
    ///
    /// # Errors
    /// [`Broken`] for a size that there is not, or what is not aligned.
    ///
    /// # Panics
    /// If the ring is not within our data.
    pub fn tx(
        &self,
        lane: u32,
        grain: Grain,
        offset: u64,
        size: u32,
        start: u32,
    ) -> Result<LaneTx, Broken> {
        assert!(offset <= self.tx.1 && u64::from(size) <= self.tx.1 - offset);
        let (ours, theirs) = self.lane(lane);
        let data = self.map.at(self.tx.0 + offset, u64::from(size));
        // SAFETY: all of it is within the mapping, as at() checked, which the result keeps.
        // Of two results for one lane the later one is used, and neither is unsound: all
        // accesses are atomic or volatile.
        let ring = unsafe { Tx::new(grain, data, size, start, ours, theirs) }?;
        Ok(LaneTx { ring, _map: Arc::clone(&self.map) })
    }

    /// Begins to consume what the other side describes, at position `start`.
    ///
    /// # Errors
    /// [`Broken`] for a ring that cannot be.
    pub fn rx(
        &self,
        lane: u32,
        grain: Grain,
        what: &Description,
        start: u32,
    ) -> Result<LaneRx, Broken> {
        let (offset, size) = (what.ring_offset, what.ring_size);
        if !offset.is_multiple_of(PAGE)
            || offset > self.rx.1
            || u64::from(size) > self.rx.1 - offset
        {
            return Err(Broken);
        }
        let (ours, theirs) = self.lane(lane);
        let data = self.map.at(self.rx.0 + offset, u64::from(size));
        // SAFETY: as in tx(); offset and size are copies, and checked.
        let ring = unsafe { Rx::new(grain, data, size, start, ours, theirs) }?;
        Ok(LaneRx { ring, _map: Arc::clone(&self.map) })
    }
}

/// Copies the next record, or `most` bytes at most of a ring of bytes, as it is. Nothing
/// is published.
///
/// # Errors
/// The end whose other side is broken.
pub fn copy(rx: &mut LaneRx, tx: &mut LaneTx, most: u32) -> Result<Copied, End> {
    ring::copy(&mut rx.ring, &mut tx.ring, most)
}

impl LaneTx {
    /// Writes a record; false while there is no room.
    ///
    /// # Errors
    /// [`Broken`], by the other side, or for a record that never fits.
    pub fn push(&mut self, kind: u16, info: u16, payload: &[u8]) -> Result<bool, Broken> {
        self.ring.push(kind, info, payload)
    }

    /// Writes bytes to a ring of bytes: how many there was room for.
    ///
    /// # Errors
    /// [`Broken`], by the other side.
    pub fn write(&mut self, bytes: &[u8]) -> Result<u32, Broken> {
        self.ring.write(bytes)
    }

    /// Shows what was written; true if the other side wants a doorbell.
    pub fn publish(&mut self) -> bool {
        self.ring.publish()
    }

    /// Where the next byte goes.
    pub fn head(&self) -> u32 {
        self.ring.head()
    }

    /// Up to where the other side has published that it has read.
    ///
    /// # Errors
    /// [`Broken`], by the other side.
    pub fn tail(&mut self) -> Result<u32, Broken> {
        self.ring.tail()
    }

    /// How many bytes the other side has not published as read.
    pub fn account(&mut self) -> u32 {
        self.ring.account()
    }

    /// Asks for a doorbell when the other side has read up to `position`; false if it has
    /// already, or if the ring is broken.
    pub fn wait_read(&mut self, position: u32) -> bool {
        self.ring.wait_read(position)
    }

    /// Asks for a doorbell when a record of `size` bytes fits; false if it does.
    pub fn wait_room(&mut self, size: u32) -> bool {
        self.ring.wait_room(size)
    }

    /// Asks for a doorbell when there is room in a ring of bytes; false if there is.
    pub fn wait_space(&mut self) -> bool {
        self.ring.wait_space()
    }
}

impl LaneRx {
    /// Takes the next record: its type and more about it, and its payload. None if there
    /// is none.
    ///
    /// # Errors
    /// [`Broken`], by the other side.
    pub fn pop(&mut self, into: &mut Vec<u8>) -> Result<Option<(u16, u16)>, Broken> {
        self.ring.pop(into, usize::MAX)
    }

    /// Takes bytes of a ring of bytes, `most` at most, and appends them to `into`.
    ///
    /// # Errors
    /// [`Broken`], by the other side.
    pub fn read(&mut self, into: &mut Vec<u8>, most: u32) -> Result<u32, Broken> {
        self.ring.read(into, most)
    }

    /// Where the next record or byte is.
    pub fn tail(&self) -> u32 {
        self.ring.tail()
    }

    /// Up to where the other side was told that we have read.
    pub fn published(&self) -> u32 {
        self.ring.published()
    }

    /// Gives back what was taken; true if the other side wants a doorbell.
    pub fn publish(&mut self) -> bool {
        self.ring.publish()
    }

    /// Gives back what was taken, up to `position` only, which lies between what was
    /// published and what was taken; true if the other side wants a doorbell.
    pub fn publish_to(&mut self, position: u32) -> bool {
        self.ring.publish_to(position)
    }

    /// Asks for a doorbell at the next record or byte; false if there is one already, or
    /// if the ring is broken.
    pub fn sleep(&mut self) -> bool {
        self.ring.sleep()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Layout, channel_header, create};

    unsafe extern "C" {
        fn vmloop_shim_news_size() -> usize;
        fn vmloop_shim_news_theirs() -> usize;
    }

    #[test]
    fn the_mirror_is_as_large_as_the_original() {
        // SAFETY: functions without arguments that return constants.
        let c = unsafe { [vmloop_shim_news_size(), vmloop_shim_news_theirs()] };
        assert_eq!(c, [2 * size_of::<RawNews>(), offset_of!(RawNews, theirs)]);
    }

    #[test]
    fn headers_that_cannot_be_are_refused() {
        let good = channel_header(64 << 10, Layout::Table);
        let table = |header: &Header| Table::map(create("test", header).expect("memfd"), 0);
        assert_eq!(table(&good).expect("a good one").room(), 12);
        let spoilt: [fn(&mut Header); 9] = [
            |header| header.magic += 1,
            |header| header.major = 1,
            |header| header.kind = shm::VMLOOP_REGION_CONTROL,
            |header| header.side_size = 4096,
            |header| header.side_offset[1] += 8,
            |header| header.data_offset[0] = header.data_offset[1],
            |header| header.data_size[1] += 1 << 20,
            |header| header.data_offset[1] = !4095,
            |header| header.side_offset[0] = 0,
        ];
        for (index, spoil) in spoilt.iter().enumerate() {
            let mut header = good;
            spoil(&mut header);
            assert!(table(&header).is_err(), "{index}");
        }
    }

    #[test]
    fn memory_that_can_be_cut_off_is_refused() {
        let header = channel_header(64 << 10, Layout::Table);
        let file = tempfile();
        file.set_len(header.size).expect("memory");
        file.write_all_at(header.as_bytes(), 0).expect("memory");
        assert!(Table::map(&file, 0).is_err());
    }

    fn tempfile() -> File {
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        File::from(rustix::fs::memfd_create("test", flags).expect("memfd"))
    }
}
