// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Hardware addresses as text.

/// Reads `52:54:00:12:34:56`.
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let hex = |part: &&str| part.len() == 2 && part.bytes().all(|c| c.is_ascii_hexdigit());
        let part = parts.next().filter(hex)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    (parts.next().is_none() && mac != [0; 6]).then_some(mac)
}

/// Writes `52:54:00:12:34:56`.
pub fn format_mac(mac: &[u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_addresses() {
        assert_eq!(parse_mac("52:54:00:12:34:5F"), Some([0x52, 0x54, 0, 0x12, 0x34, 0x5f]));
        for bad in [
            "",
            "52:54:00:12:34",
            "52:54:00:12:34:56:78",
            "0:0:0:0:0:0",
            "00:00:00:00:00:00",
            "+1:54:00:12:34:56",
        ] {
            assert_eq!(parse_mac(bad), None, "{bad}");
        }
        assert_eq!(format_mac(&[0x52, 0x54, 0, 0x12, 0x34, 0x5f]), "52:54:00:12:34:5f");
    }
}
