//! Flipped bits, truncations, swapped pages, forged lengths, wrong keys, power cuts: all found.

use crate::*;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// Every bit of a file, one at a time: the head with its zeros, the identity, headers, payloads,
/// padding. `check` finds each; `open`, which verifies by the same code, every bit of the head, the
/// identity and the first records, and a part of the rest.
#[test]
fn every_flipped_bit_is_found() {
    for (key, size) in [(None, 20_000), (Some([9; 32]), 3000)] {
        let dir = quick_dir();
        let path = dir.path().join("a");
        let options = JournalOptions {
            key,
            ..JournalOptions::default()
        };
        let records = sample(&path, options.clone(), size);
        assert!(records.len() >= 7);
        let good = fs::read(&path).unwrap();
        assert!(good.len() >= size);
        let start = Instant::now();
        let mut opened = 0;
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        for bit in 0..good.len() * 8 {
            let (at, mask) = (bit / 8, 1 << (bit % 8));
            file.write_all_at(&[good[at] ^ mask], at as u64).unwrap();
            assert!(Journal::check(&path, &options).is_err(), "check: bit {bit}");
            if bit < 2048 * 8 || bit % 61 == 0 {
                let found = Journal::open(&path, options.clone());
                assert!(found.is_err(), "open: bit {bit}");
                opened += 1;
            }
            file.write_all_at(&[good[at]], at as u64).unwrap();
        }
        // Nothing was cut off or written while it was damaged.
        assert_eq!(fs::read(&path).unwrap(), good);
        assert_eq!(
            Journal::open(&path, options).unwrap().records.len(),
            records.len()
        );
        eprintln!(
            "{} flips, {opened} of them opened, in {:?}",
            good.len() * 8,
            start.elapsed()
        );
    }
}

#[test]
fn every_truncation_is_refused() {
    let dir = quick_dir();
    let path = dir.path().join("a");
    sample(&path, JournalOptions::default(), 20_000);
    let good = fs::read(&path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for len in (0..good.len()).rev() {
        assert!(check_bytes(&good[..len], &JournalOptions::default()).is_err());
        if len % 7 == 0 || len <= 600 {
            file.set_len(len as u64).unwrap();
            let e = Journal::open(&path, JournalOptions::default()).unwrap_err();
            if len >= 512 {
                assert!(matches!(e, JournalError::Truncated { .. }), "{len}: {e}");
                assert!(
                    e.to_string()
                        .contains(&format!("{len} bytes of {}", good.len()))
                );
            } else {
                assert!(matches!(e, JournalError::Foreign { .. }), "{len}: {e}");
            }
            assert!(
                Journal::check(&path, &JournalOptions::default()).is_err(),
                "{len}"
            );
        }
    }
}

/// Pages, sectors, cache lines and whole records that changed places: each is fine by itself.
#[test]
fn what_changed_places_is_found() {
    let dir = quick_dir();
    let path = dir.path().join("a");
    let mut rng = Rng(3);
    let mut journal = Journal::create(&path, IDENTITY, JournalOptions::default()).unwrap();
    // A record fills a page: swapping pages swaps records.
    for _ in 0..8 {
        journal.append(1, &[&rng.bytes(4096 - 64)]).unwrap();
    }
    journal.commit().unwrap();
    let good = fs::read(&path).unwrap();
    for size in [64, 512, 4096] {
        for from in [512, 640, 4736] {
            let places = (good.len() - from) / size;
            for _ in 0..500 {
                let (a, b) = (rng.below(places), rng.below(places));
                let mut bytes = good.clone();
                for i in 0..size {
                    bytes.swap(from + a * size + i, from + b * size + i);
                }
                let found = check_bytes(&bytes, &JournalOptions::default());
                assert_eq!(found.is_err(), bytes != good, "{size}: {a} and {b}");
                if let (Err(e), 4096, 640) = (found, size, from) {
                    // Whole records: each header knows its place, before the chain is asked.
                    assert!(e.to_string().contains("header does not match"), "{e}");
                }
            }
        }
    }
    // A record left out, or twice.
    let record = 640..640 + 4096;
    let mut bytes = good.clone();
    bytes.drain(record.clone());
    assert!(check_bytes(&bytes, &JournalOptions::default()).is_err());
    let mut bytes = good.clone();
    bytes.splice(640..640, good[record].iter().copied());
    assert!(check_bytes(&bytes, &JournalOptions::default()).is_err());
}

/// A record in its place, with all its checksums right, but of another time: the chain knows.
#[test]
fn a_record_of_another_file_is_found() {
    let dir = quick_dir();
    let files: Vec<Vec<u8>> = (0..2u8)
        .map(|file| {
            let path = dir.path().join(file.to_string());
            let mut journal = Journal::create(&path, IDENTITY, JournalOptions::default()).unwrap();
            for record in 0..5 {
                journal.append(1, &[&[file, record, 7]]).unwrap();
            }
            journal.commit().unwrap();
            fs::read(&path).unwrap()
        })
        .collect();
    for record in 0..5 {
        let range = 640 + record * 128..640 + (record + 1) * 128;
        let mut bytes = files[0].clone();
        bytes[range.clone()].copy_from_slice(&files[1][range]);
        let e = check_bytes(&bytes, &JournalOptions::default()).unwrap_err();
        assert!(
            e.to_string().contains("not those that were committed"),
            "{e}"
        );
    }
    // All of them, behind the head of the first.
    let bytes = [&files[0][..512], &files[1][512..]].concat();
    assert!(check_bytes(&bytes, &JournalOptions::default()).is_err());
}

/// Opening a damaged file reports the damage and leaves the file as it is, for repair.
#[test]
fn a_damaged_file_is_not_touched() {
    let dir = quick_dir();
    let path = dir.path().join("a");
    sample(&path, JournalOptions::default(), 2000);
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 1] ^= 1;
    bytes.extend([3; 1000]);
    fs::write(&path, &bytes).unwrap();
    assert!(Journal::open(&path, JournalOptions::default()).is_err());
    assert_eq!(fs::read(&path).unwrap(), bytes);
    bytes[end - 1] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert_eq!(open(&path).dropped_bytes, 1000);
}

/// A forger without the key can make every checksum right, and not the seal; lengths from a forged
/// file reserve nothing.
#[test]
fn a_length_of_2_to_the_60_costs_nothing() {
    let dir = quick_dir();
    let path = dir.path().join("a");
    let mut journal = Journal::create(&path, b"", JournalOptions::default()).unwrap();
    journal.append(1, &[b"x"]).unwrap();
    journal.commit().unwrap();
    drop(journal);
    let good = fs::read(&path).unwrap();
    let forge = |bytes: &mut Vec<u8>| {
        let sum = blake3::hash(&bytes[..96]);
        bytes[96..128].copy_from_slice(sum.as_bytes());
    };
    for length in [
        1u64 << 60,
        u64::MAX,
        u64::MAX - 63,
        0,
        512,
        576 + 64,
        1 << 63,
    ] {
        // In the head.
        let mut bytes = good.clone();
        bytes[16..24].copy_from_slice(&length.to_le_bytes());
        forge(&mut bytes);
        assert!(
            check_bytes(&bytes, &JournalOptions::default()).is_err(),
            "{length}"
        );
        // In the header of the identity, and of a record.
        for at in [512usize, 576] {
            let mut bytes = good.clone();
            bytes[at + 8..at + 16].copy_from_slice(&length.to_le_bytes());
            if bytes == good {
                continue;
            }
            let mut hasher = blake3::Hasher::new();
            hasher.update(&(at as u64).to_le_bytes());
            hasher.update(&bytes[at..at + 16]);
            hasher.update(&bytes[at + 32..at + 64]);
            bytes[at + 16..at + 32].copy_from_slice(&hasher.finalize().as_bytes()[..16]);
            let e = check_bytes(&bytes, &JournalOptions::default()).unwrap_err();
            assert!(matches!(e, JournalError::Damaged { .. }), "{length}: {e}");
        }
    }
    // The version of tomorrow is named.
    let mut bytes = good.clone();
    bytes[8] = 2;
    forge(&mut bytes);
    let e = check_bytes(&bytes, &JournalOptions::default()).unwrap_err();
    assert!(
        e.to_string().contains("version 2; this program reads 1"),
        "{e}"
    );
}

#[test]
fn a_sealed_journal_opens_with_its_key_only() {
    let dir = quick_dir();
    let with = |key| JournalOptions {
        key,
        ..JournalOptions::default()
    };
    let (sealed, plain) = (dir.path().join("sealed"), dir.path().join("plain"));
    let key = Some([1; 32]);
    let records = sample(&sealed, with(key), 2000);
    sample(&plain, with(None), 2000);
    assert_eq!(
        content(&Journal::open(&sealed, with(key)).unwrap()),
        records
    );
    assert!(Journal::check(&sealed, &with(key)).unwrap().sealed);
    let mut other = [1; 32];
    other[31] = 0;
    for (path, key, want) in [
        (&sealed, None, "none was given"),
        (&sealed, Some(other), "another key"),
        (&plain, key, "not sealed"),
    ] {
        let e = Journal::open(path, with(key)).unwrap_err();
        assert!(e.to_string().contains(want), "{e}");
        let e = Journal::check(path, &with(key)).unwrap_err();
        assert!(e.to_string().contains(want), "{e}");
    }
    // JournalOptions are printed in logs; keys are not.
    assert!(!format!("{:?}", with(Some([173; 32]))).contains("173"));
    // A forger who takes the seal off, or makes the checksum right after a change, is found.
    let good = fs::read(&sealed).unwrap();
    for (at, mask) in [(12, 1), (24, 1), (16, 64)] {
        let mut bytes = good.clone();
        bytes[at] ^= mask;
        let sum = blake3::hash(&bytes[..96]);
        bytes[96..128].copy_from_slice(sum.as_bytes());
        assert!(check_bytes(&bytes, &with(key)).is_err());
    }
}

/// Damage after opening is found by `read`, and not copied by a rewrite.
#[test]
fn damage_under_an_open_journal_is_found() {
    let dir = quick_dir();
    let path = dir.path().join("a");
    let mut journal = Journal::create(&path, IDENTITY, JournalOptions::default()).unwrap();
    let record = journal.append(1, &[&[7; 200_000]]).unwrap();
    journal.commit().unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[6], record.offset() + 150_000).unwrap();
    let mut bytes = Vec::new();
    let e = journal.read(record, &mut bytes).unwrap_err();
    assert!(matches!(e, JournalError::Damaged { .. }), "{e}");
    assert!(bytes.is_empty());
    let e = journal.rewrite(|new| new.keep(record)).unwrap_err();
    assert!(matches!(e, JournalError::Damaged { .. }), "{e}");
    file.write_all_at(&[7], record.offset() + 150_000).unwrap();
    journal.rewrite(|new| new.keep(record)).unwrap();
}

/// Power fails while a commit is on its way. Before its records are durable any of their sectors may
/// be missing, and the file may end anywhere behind what counts; after that only the head is open.
#[test]
fn a_power_cut_leaves_one_commit_or_the_other() {
    let dir = quick_dir();
    let path = dir.path().join("a");
    let mut rng = Rng(11);
    let before = sample(&path, JournalOptions::default(), 6000);
    let old = fs::read(&path).unwrap();
    let mut after = before.clone();
    let mut journal = open(&path).journal;
    for len in [900, 5000, 1, 2000] {
        let payload = rng.bytes(len);
        journal.append(9, &[&payload]).unwrap();
        after.push((9, payload));
    }
    journal.commit().unwrap();
    drop(journal);
    let new = fs::read(&path).unwrap();
    let reopened = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        Journal::open(&path, JournalOptions::default()).map(|opened| content(&opened))
    };
    for _ in 0..500 {
        let mut bytes = new.clone();
        bytes[..512].copy_from_slice(&old[..512]);
        for begin in (0..new.len()).step_by(512) {
            if rng.below(2) == 0 {
                let end = (begin + 512).min(new.len());
                bytes[begin.max(old.len()).min(end)..end].fill(0);
            }
        }
        bytes.truncate(old.len() + rng.below(new.len() - old.len() + 1));
        assert!(reopened(&bytes).unwrap() == before);
        assert_eq!(fs::read(&path).unwrap(), old);
        // A disk that lied about its order is found out, not believed.
        if bytes[512..] != new[512..] {
            bytes[..512].copy_from_slice(&new[..512]);
            assert!(reopened(&bytes).is_err());
        }
    }
    assert!(reopened(&new).unwrap() == after);
}

/// Whatever byte is changed and wherever the file ends, what is salvaged is the beginning of what was written, the damage
/// is named, and the file can be deleted, though not while another process has it open.
#[test]
fn what_comes_before_the_damage_is_salvaged() {
    let dir = quick_dir();
    let path = dir.path().join("a");
    let options = JournalOptions::default();
    let records = sample(&path, options.clone(), 8000);
    let good = fs::read(&path).unwrap();
    let salvage = || {
        let mut found = Vec::new();
        let salvaged = Journal::salvage(&path, &options, |kind, bytes| {
            found.push((kind, bytes.to_vec()));
            std::ops::ControlFlow::Continue(())
        });
        salvaged.map(|salvaged| (salvaged, found))
    };
    let (whole, found) = salvage().unwrap();
    assert!(whole.damage.is_none() && found == records);
    assert_eq!(
        (&whole.identity[..], whole.records),
        (IDENTITY, records.len() as u64)
    );
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for at in 0..good.len() {
        file.write_all_at(&[good[at] ^ 32], at as u64).unwrap();
        let (salvaged, found) = salvage().unwrap_or_else(|e| panic!("byte {at}: {e}"));
        assert!(salvaged.damage.is_some(), "byte {at}");
        assert!(records.starts_with(&found), "byte {at}");
        // Before the damage: a head costs nothing, a record itself and what follows.
        assert!(at >= 512 || found == records, "byte {at}");
        let before =
            records
                .iter()
                .scan(512 + 64 + IDENTITY.len().next_multiple_of(64), |end, r| {
                    *end += 64 + r.1.len().next_multiple_of(64);
                    Some(*end)
                });
        let expected = before.filter(|end| *end <= at).count();
        assert!(
            at < 512 || found.len() == expected,
            "byte {at}: {}",
            found.len()
        );
        file.write_all_at(&[good[at]], at as u64).unwrap();
    }
    for len in (0..good.len()).step_by(97) {
        fs::write(&path, &good[..len]).unwrap();
        match salvage() {
            Ok((salvaged, found)) => {
                assert!(
                    salvaged.damage.is_some() && records.starts_with(&found),
                    "{len}"
                );
            }
            Err(error) => assert!(len < 1024, "{len}: {error}"),
        }
        let open = fs::File::open(&path).unwrap();
        open.lock().unwrap();
        let busy = Journal::delete(&path, &options);
        assert!(matches!(busy, Err(JournalError::Busy)), "{len}: {busy:?}");
        drop(open);
        Journal::delete(&path, &options).unwrap();
        assert!(!path.exists());
    }
}
