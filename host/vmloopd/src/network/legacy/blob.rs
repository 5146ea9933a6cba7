// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Numbers and texts in what the kernel gives of its old tables. An offset that leads
//! out of it is an error, and never a panic.

use std::io;

/// What is read.
#[derive(Clone, Copy)]
pub struct Blob<'a>(pub &'a [u8]);

/// That it makes no sense.
pub fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel's table makes no sense")
}

impl<'a> Blob<'a> {
    /// So many bytes from an offset.
    ///
    /// # Errors
    /// [`nonsense`], as for all of the following.
    pub fn bytes(self, at: usize, count: usize) -> io::Result<&'a [u8]> {
        let end = at.checked_add(count).ok_or_else(nonsense)?;
        self.0.get(at..end).ok_or_else(nonsense)
    }

    fn array<const N: usize>(self, at: usize) -> io::Result<[u8; N]> {
        self.bytes(at, N)?.try_into().map_err(|_| nonsense())
    }

    /// A byte.
    ///
    /// # Errors
    /// [`nonsense`]
    pub fn u8(self, at: usize) -> io::Result<u8> {
        Ok(self.array::<1>(at)?[0])
    }

    /// A number of 16 bits.
    ///
    /// # Errors
    /// [`nonsense`]
    pub fn u16(self, at: usize) -> io::Result<usize> {
        Ok(u16::from_ne_bytes(self.array(at)?).into())
    }

    /// A number of 32 bits.
    ///
    /// # Errors
    /// [`nonsense`]
    pub fn u32(self, at: usize) -> io::Result<usize> {
        Ok(u32::from_ne_bytes(self.array(at)?) as usize)
    }

    /// A number of 32 bits with a sign.
    ///
    /// # Errors
    /// [`nonsense`]
    pub fn i32(self, at: usize) -> io::Result<i32> {
        Ok(i32::from_ne_bytes(self.array(at)?))
    }

    /// A text of so many bytes at most.
    ///
    /// # Errors
    /// [`nonsense`]
    pub fn text(self, at: usize, most: usize) -> io::Result<String> {
        let bytes = self.bytes(at, most)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(most);
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}
