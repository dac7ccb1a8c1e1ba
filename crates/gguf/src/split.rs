//! Split sets: `NAME-00001-of-00003.gguf` and its siblings.
//!
//! Which files belong together is decided by the *name* we were given and the counts inside, never
//! by a path written in a file: siblings are in the same directory, under names we build.

use super::Part;
use super::error::{GgufError, Problem};
use super::parse::ENTRIES_MAX;
use std::path::{Path, PathBuf};

/// Parts of one set. Sets of more than a few dozen are not published.
const PARTS_MAX: u32 = 1000;

/// `first` alone, or the whole set that it is a part of, in order.
pub(super) fn complete(opened: Part) -> Result<Vec<Part>, GgufError> {
    let count = header(&opened, "split.count")?.unwrap_or(0);
    // A set is not packed.
    if count < 2 || opened.packed.is_some() {
        return Ok(vec![opened]);
    }
    if count > PARTS_MAX {
        let accepted = format!("at most {PARTS_MAX}");
        return Err(opened.error(Problem::value("split.count", count, accepted)));
    }
    let number = header(&opened, "split.no")?.unwrap_or(0);
    if number >= count {
        let accepted = format!("0 to {}", count - 1);
        return Err(opened.error(Problem::value("split.no", number, accepted)));
    }
    let Some(stem) = stem(&opened.path, number, count) else {
        let want = format!("NAME{}", suffix(number, count));
        return Err(opened.error(Problem::Split(format!(
            "part {} of {count} must be called {want}, with the other parts beside it",
            number + 1
        ))));
    };

    let mut opened = Some(opened);
    let mut parts = Vec::new();
    for i in 0..count {
        let part = match opened.take_if(|_| i == number) {
            Some(part) => part,
            None => Part::open(&sibling(&stem, i, count))?,
        };
        if part.packed.is_some() {
            let what = "it is a packed model, not a part of a set".into();
            return Err(part.error(Problem::Split(what)));
        }
        parts.push(part);
    }
    agree(&parts, count)?;
    Ok(parts)
}

/// Every part must say the same about the set, and together hold what it says.
fn agree(parts: &[Part], count: u32) -> Result<(), GgufError> {
    let promised = header(&parts[0], "split.tensors.count")?;
    let mut found = 0u64;
    for (i, part) in parts.iter().enumerate() {
        let number = i as u32;
        for (key, want) in [
            ("split.count", Some(count)),
            ("split.no", Some(number)),
            ("split.tensors.count", promised),
        ] {
            let got = header(part, key)?;
            if got != want {
                let show = |n: Option<u32>| n.map_or("absent".into(), |n| n.to_string());
                return Err(part.error(Problem::value(key, show(got), show(want))));
            }
        }
        found += part.table.tensors.len() as u64;
    }
    if let Some(promised) = promised
        && u64::from(promised) != found
    {
        let accepted = format!("{found}, as many as the parts hold");
        return Err(parts[0].error(Problem::value("split.tensors.count", promised, accepted)));
    }
    if found > ENTRIES_MAX {
        let field = "the number of tensors of all parts";
        let accepted = format!("at most {ENTRIES_MAX}");
        return Err(parts[0].error(Problem::value(field, found, accepted)));
    }
    Ok(())
}

fn header(part: &Part, key: &str) -> Result<Option<u32>, GgufError> {
    part.integer(key, "u16", "0 to 4294967295")
}

fn suffix(number: u32, count: u32) -> String {
    format!("-{:05}-of-{count:05}.gguf", number + 1)
}

/// The path before the suffix, if the file is called as its number demands.
fn stem(path: &Path, number: u32, count: u32) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(&suffix(number, count))?;
    (!stem.is_empty()).then(|| path.with_file_name(stem))
}

pub(super) fn sibling(stem: &Path, number: u32, count: u32) -> PathBuf {
    let mut name = stem.as_os_str().to_os_string();
    name.push(suffix(number, count));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_are_named_by_us_and_stay_in_the_directory() {
        let path = Path::new("/models/a-b-00002-of-00003.gguf");
        let stem = stem(path, 1, 3).unwrap();
        assert_eq!(sibling(&stem, 1, 3), path);
        assert_eq!(
            sibling(&stem, 0, 3),
            Path::new("/models/a-b-00001-of-00003.gguf")
        );
        assert_eq!(super::stem(path, 0, 3), None);
        assert_eq!(super::stem(path, 1, 4), None);
        assert_eq!(super::stem(Path::new("-00001-of-00002.gguf"), 0, 2), None);
        assert_eq!(super::stem(Path::new("model.gguf"), 0, 2), None);
    }
}
