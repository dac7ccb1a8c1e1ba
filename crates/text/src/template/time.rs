//! `strftime_now`: the date as text, from a clock that is handed in. Not a calendar library: the Gregorian
//! calendar and the directives that templates use, English names, no time zone.

use super::limits::{Buffer, Outcome, fail};

const MONTHS: &str =
    "January February March April May June July August September October November December";
const DAYS: &str = "Sunday Monday Tuesday Wednesday Thursday Friday Saturday";

/// The last second of the year 9999.
const MAX_SECONDS: i64 = 253_402_300_799;

/// The word of that place in a list of words.
fn word(list: &'static str, at: usize) -> &'static str {
    list.split(' ').nth(at).unwrap_or_default()
}

/// Year, month and day of a count of days since 1 January 1970. The year here begins in March, which puts the
/// leap day last; 400 years have 146097 days.
fn civil(days: i64) -> (i64, usize, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = (march_month + 2) % 12 + 1;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month as usize, day)
}

/// The day of a time, in UTC: `Friday, 20 November 2026`. Years after 9999 are its end.
pub fn date_in_words(unix_seconds: i64) -> String {
    let seconds = unix_seconds.clamp(0, MAX_SECONDS);
    let days = seconds.div_euclid(86_400);
    let (year, month, day) = civil(days);
    let weekday = word(DAYS, (days + 4).rem_euclid(7) as usize);
    let month = word(MONTHS, (month - 1).min(11));
    format!("{weekday}, {day} {month} {year}")
}

pub fn strftime(unix_seconds: i64, format: &str, out: &mut Buffer) -> Outcome<()> {
    // Years -9999 to 9999 are plenty, and keep the arithmetic far from its ends.
    let seconds = unix_seconds.clamp(-377_705_116_800, MAX_SECONDS);
    let days = seconds.div_euclid(86_400);
    let second_of_day = seconds.rem_euclid(86_400);
    let (year, month, day) = civil(days);
    let (hour, minute) = (second_of_day / 3600, second_of_day / 60 % 60);
    let second = second_of_day % 60;
    let weekday = (days + 4).rem_euclid(7);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let month_index = (month - 1).min(11);
    let day_of_year = before[month_index] + day + i64::from(leap && month > 2);
    let month_name = word(MONTHS, month_index);
    let day_name = word(DAYS, weekday as usize);
    let hour12 = (hour + 11) % 12 + 1;
    let short = |name: &'static str| name.get(..3).unwrap_or(name);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push_char(c)?;
            continue;
        }
        let mut directive = chars.next();
        let bare = directive == Some('-');
        if bare {
            directive = chars.next();
        }
        let number = |value: i64, width: usize| {
            if bare {
                value.to_string()
            } else {
                format!("{value:0width$}")
            }
        };
        let piece = match directive {
            Some('Y') => number(year, 4),
            Some('y') => number(year.rem_euclid(100), 2),
            Some('m') => number(month as i64, 2),
            Some('d') => number(day, 2),
            Some('e') => format!("{day:2}"),
            Some('j') => number(day_of_year, 3),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => short(month_name).to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => short(day_name).to_owned(),
            Some('u') => (if weekday == 0 { 7 } else { weekday }).to_string(),
            Some('w') => weekday.to_string(),
            Some('s') => seconds.to_string(),
            Some('F') => format!("{year:04}-{month:02}-{day:02}"),
            Some('T' | 'X') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('R') => format!("{hour:02}:{minute:02}"),
            Some('D' | 'x') => format!("{month:02}/{day:02}/{:02}", year.rem_euclid(100)),
            Some('c') => {
                let (day_name, month_name) = (short(day_name), short(month_name));
                format!("{day_name} {month_name} {day:2} {hour:02}:{minute:02}:{second:02} {year}")
            }
            Some('Z' | 'z') => String::new(),
            Some('n') => "\n".to_owned(),
            Some('t') => "\t".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => return fail(format!("strftime_now does not know %{other}")),
            None => return fail("strftime_now: the format ends in '%'"),
        };
        out.push(&piece)?;
    }
    Ok(())
}
