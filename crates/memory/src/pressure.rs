//! Pressure stall information: how much time tasks lost waiting for memory.
//!
//! `some` is time in which at least one task waited, `full` time in which all of them did. Averages
//! are percentages; the total counts since the machine or the group began.

/// One reading of a `memory` pressure file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Psi {
    /// Percent of the last ten seconds.
    pub some_avg10: f32,
    pub full_avg10: f32,
    pub full_total_us: u64,
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, and the same for `full`.
pub(crate) fn parse(text: &str) -> Option<Psi> {
    let field = |kind: &str, key: &str| {
        text.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next()? == kind).then_some(())?;
            words.find_map(|w| w.strip_prefix(key)?.strip_prefix('='))
        })
    };
    let percent = |kind: &str| {
        let value = field(kind, "avg10")?.parse::<f32>().ok()?;
        (0.0..=100.0).contains(&value).then_some(value)
    };
    Some(Psi {
        some_avg10: percent("some")?,
        full_avg10: percent("full")?,
        full_total_us: field("full", "total")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_read_and_garbage_is_none() {
        let text = "some avg10=1.25 avg60=0.40 avg300=0.02 total=16639112\n\
                    full avg10=0.50 avg60=0.00 avg300=0.02 total=11435965\n";
        assert_eq!(
            parse(text),
            Some(Psi {
                some_avg10: 1.25,
                full_avg10: 0.5,
                full_total_us: 11_435_965,
            })
        );
        let full = "full avg10=0 total=1\n";
        for garbage in [
            "".to_string(),
            text.lines().next().unwrap().to_string(),
            text.replace("avg10=1.25", "avg10=NaN"),
            text.replace("avg10=1.25", "avg10=inf"),
            text.replace("avg10=1.25", "avg10=-1"),
            text.replace("avg10=1.25", "avg10=101"),
            text.replace("total=11435965", "total=99999999999999999999"),
            text.replace("total=", "sum="),
            text.replace("some", "none"),
            format!("some avg10\n{full}"),
            format!("some\n{full}"),
            "\u{0}\u{0}".to_string(),
        ] {
            assert_eq!(parse(&garbage), None, "{garbage:?}");
        }
    }
}
