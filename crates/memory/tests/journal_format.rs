//! The byte tables of docs/reference/session-files.md, checked against a written journal: the test reads offsets and sizes
//! from the tables and compares the bytes there.

use haversack_memory::journal::{Journal, JournalOptions};

const DOCUMENT: &str = include_str!("../../../docs/reference/session-files.md");

/// Rows of a table as (offset, bytes, words). The last row may have no size.
fn table(head: &str) -> Vec<(usize, Option<usize>, &'static str)> {
    let begin = format!("| {head} | bytes | |");
    let rows = DOCUMENT.lines().skip_while(|line| *line != begin).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        (cells[1].parse().unwrap(), cells[2].parse().ok(), cells[3])
    })
    .collect()
}

/// The row whose words begin like this, as a piece of `bytes`.
fn field<'a>(
    rows: &[(usize, Option<usize>, &str)],
    bytes: &'a [u8],
    words: &str,
) -> (usize, &'a [u8]) {
    let row = rows.iter().find(|row| row.2.starts_with(words));
    let &(offset, size, _) = row.unwrap_or_else(|| panic!("no row {words:?} in {rows:?}"));
    (offset, &bytes[offset..offset + size.unwrap()])
}

fn number(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

#[test]
fn the_tables_are_what_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let key = [7; 32];
    let options = JournalOptions {
        key: Some(key),
        ..JournalOptions::default()
    };
    let identity = b"some identity";
    let mut journal = Journal::create(&path, identity, options).unwrap();
    let payload = [5; 100];
    journal.append(9, &[&payload]).unwrap();
    journal.commit().unwrap();
    let length = journal.committed_bytes();
    drop(journal);
    let file = std::fs::read(&path).unwrap();

    let head = table("head");
    let mut end = 0;
    for (offset, size, words) in &head {
        assert_eq!(*offset, end, "{words}");
        end += size.unwrap();
    }
    let of = |words| field(&head, &file, words).1;
    assert_eq!(of("`HAVERJNL`"), b"HAVERJNL");
    assert_eq!(number(of("version, 1")), 1);
    assert_eq!(number(of("flags: 1 is sealed")), 1);
    assert_eq!(number(of("committed length")), length);
    assert_eq!((length as usize, length % 64), (file.len(), 0));
    assert_eq!(number(of("commits")), 1);
    let hash = |bytes: &[u8]| *blake3::hash(bytes).as_bytes();
    assert_eq!(of("BLAKE3 of the identity"), hash(identity));
    assert_eq!(of("BLAKE3 of bytes 0..96"), hash(&file[..96]));
    let seal = blake3::keyed_hash(&key, &file[..128]);
    assert_eq!(of("seal"), seal.as_bytes());
    assert!(of("zero").iter().all(|&byte| byte == 0));

    // The identity is the first record; the other one follows its payload and padding.
    let record = table("record");
    let payload_at = record.last().unwrap().0;
    let mut at = end;
    let mut chain = hash(b"HAVERJNL");
    for (role, kind, payload) in [(1, None, &identity[..]), (0, Some(9), &payload[..])] {
        let bytes = &file[at..];
        let of = |words| field(&record, bytes, words).1;
        assert_eq!(number(of("role")), role);
        assert!(kind.is_none_or(|kind| number(of("kind")) == kind));
        assert_eq!(number(of("payload bytes")), payload.len() as u64);
        assert_eq!(of("BLAKE3 of the payload"), hash(payload));
        let covered = [&(at as u64).to_le_bytes(), &bytes[..16], &bytes[32..64]].concat();
        assert_eq!(of("first half of BLAKE3"), &hash(&covered)[..16]);
        assert_eq!(&bytes[payload_at..payload_at + payload.len()], payload);
        chain = hash(&[&chain[..], &bytes[..payload_at]].concat());
        at += (payload_at + payload.len()).next_multiple_of(64);
    }
    assert_eq!(at, file.len());
    assert_eq!(field(&head, &file, "chain over all records").1, chain);
}
