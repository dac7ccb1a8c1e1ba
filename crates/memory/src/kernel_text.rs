//! Small text files of the kernel: bounded reads, and the numbers in them. Parsing is pure.

use std::fs::File;
use std::path::Path;

/// Longer files are cut. The largest in use, `memory.stat` of a group, has a few KiB.
pub(crate) const TEXT_BYTES_MAX: usize = 32 << 10;

/// The text of one file, or `None`. What lies beyond [`TEXT_BYTES_MAX`] is cut at a line.
pub(crate) fn read_capped(path: &Path) -> Option<String> {
    let mut buffer = vec![0; TEXT_BYTES_MAX];
    KernelFile::open(path).read(&mut buffer).map(str::to_string)
}

/// A small text file that the kernel writes anew for every read from its beginning, or none.
#[derive(Default)]
pub(crate) struct KernelFile(Option<File>);

impl KernelFile {
    pub(crate) fn open(path: &Path) -> KernelFile {
        KernelFile(File::open(path).ok())
    }

    pub(crate) fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// The text, cut at a line where the buffer ends first.
    pub(crate) fn read<'a>(&self, buffer: &'a mut [u8]) -> Option<&'a str> {
        let file = self.0.as_ref()?;
        let mut len = 0;
        while len < buffer.len() {
            match read_at(file, &mut buffer[len..], len as u64).ok()? {
                0 => break,
                n => len += n,
            }
        }
        if len == buffer.len() {
            len = whole_lines(buffer);
        }
        std::str::from_utf8(&buffer[..len]).ok()
    }
}

#[cfg(unix)]
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, at)
}

#[cfg(not(unix))]
fn read_at(mut file: &File, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
    use std::io::{Read, Seek, SeekFrom};
    file.seek(SeekFrom::Start(at))?;
    file.read(buffer)
}

/// How many of `bytes` are whole lines: half a number is no number.
fn whole_lines(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|&b| b == b'\n').map_or(0, |n| n + 1)
}

/// `key:   1234 kB` → bytes.
pub(crate) fn field_kib(text: &str, key: &str) -> Option<u64> {
    let rest = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let number = rest.trim().strip_suffix("kB")?.trim();
    number.parse::<u64>().ok()?.checked_mul(1024)
}

/// A limit as the kernel writes it: a number, or `max`. Version 1 has no word for "none" and writes
/// the largest multiple of a page below 2^63.
pub(crate) fn parse_limit(text: &str) -> Option<u64> {
    const UNLIMITED: u64 = (1 << 63) - (1 << 20);
    text.trim().parse::<u64>().ok().filter(|&n| n < UNLIMITED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_do_not_fit_and_garbage_are_none() {
        assert_eq!(field_kib("Rss: 18446744073709551615 kB\n", "Rss"), None);
        assert_eq!(
            field_kib("RssAnon: 5 kB\nRss: 7 kB\n", "Rss"),
            Some(7 << 10)
        );
        assert_eq!(parse_limit("-1\n"), None);
        assert_eq!(parse_limit("12\n"), Some(12));
    }
}
