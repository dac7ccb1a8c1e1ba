//! The date before a message: part of the text that is read and saved, so that a turn that is recalled alone says when it
//! was said. Pure.
//!
//! ```text
//! [Friday, 20 November 2026]
//! I moved to Ghent today.
//! ```
//!
//! Dates are in UTC. A turn's record says whether its text begins with one; what is shown of it is the message alone.

use haversack_text::template::date_in_words;

/// Tokens of a date line at most: one for each byte of the longest.
pub const DATE_TOKENS_MAX: usize = "[Wednesday, 30 September 9999]\n".len();

/// The day of a time, in words.
pub fn date_of(time_ms: u64) -> String {
    date_in_words(i64::try_from(time_ms / 1000).unwrap_or(i64::MAX))
}

/// A message behind the date of this time, if it has one.
pub fn dated(text: &str, time_ms: Option<u64>) -> String {
    match time_ms {
        Some(time_ms) => format!("[{}]\n{text}", date_of(time_ms)),
        None => text.to_owned(),
    }
}

/// A message without the date line that it begins with.
pub fn undated(text: &str) -> &str {
    text.split_once('\n').map_or("", |(_, message)| message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_line_goes_before_a_message_and_away_again() {
        let text = dated("One.\nTwo.", Some(1_795_132_800_000));
        assert_eq!(text, "[Friday, 20 November 2026]\nOne.\nTwo.");
        assert_eq!(undated(&text), "One.\nTwo.");
        assert_eq!(dated("One.", None), "One.");
        assert_eq!(undated(&dated("", Some(0))), "");
        assert_eq!(date_of(0), "Thursday, 1 January 1970");
        for time_ms in [u64::MAX, i64::MAX as u64, 253_402_300_800_000] {
            assert_eq!(date_of(time_ms), "Friday, 31 December 9999");
        }
        let longest = (0..3653).map(|day| dated("", Some(day * 86_400_000)).len());
        assert_eq!(longest.max(), Some(DATE_TOKENS_MAX));
    }
}
