//! Byte counts as users write and read them.

/// Parses `1500M`, `4G`, `4GiB`, `4gib`, `64k` or a plain number of bytes. K, M and G are binary;
/// nothing else is accepted: `4GB` would have two meanings.
pub fn parse(text: &str) -> Result<u64, String> {
    const ACCEPTED: &str =
        "accepted: a whole number above 0 with K, M or G (binary), such as 1500M, 4G or 4GiB";
    let refuse = || format!("not a byte size; {ACCEPTED}");

    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(refuse()),
    };
    let number: u64 = number.parse().map_err(|_| refuse())?;
    let bytes = number
        .checked_mul(1 << shift)
        .filter(|&bytes| bytes <= i64::MAX as u64)
        .ok_or_else(|| format!("more bytes than any machine has; {ACCEPTED}"))?;
    if bytes == 0 { Err(refuse()) } else { Ok(bytes) }
}

/// `93.8 MiB`, for people. Machines get the number.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_the_contract() {
        for (text, bytes) in [
            ("1500M", 1500 << 20),
            ("4G", 4 << 30),
            ("4GiB", 4 << 30),
            ("4gib", 4 << 30),
            ("64k", 64 << 10),
            ("1048576", 1 << 20),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            "0",
            "0G",
            "G",
            "-1",
            "-4G",
            "+4G",
            "1.5G",
            "4GB",
            "4Gi",
            "4 G",
            " 4G",
            "4T",
            "0x10",
            "99999999999999999999",
            "18446744073709551615G",
            "17179869184G",
            "9223372036854775808",
            "４G",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn human_sizes() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(98_362_432), "93.8 MiB");
        assert_eq!(human(u64::MAX), "16777216.0 TiB");
    }
}
