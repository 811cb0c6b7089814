//! Times as Kubernetes writes them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SECONDS_OF_DAY: u64 = 86_400;

/// `2026-12-01T13:44:00Z`: whole seconds, as Kubernetes writes its timestamps. Times before 1970
/// become 1970.
pub fn to_rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (year, month, day) = civil(seconds / SECONDS_OF_DAY);
    let second = seconds % SECONDS_OF_DAY;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// Reads `2026-12-01T13:44:00Z`, also with a fraction (as in `MicroTime`) or an offset; `None`
/// for anything else and for times before 1970.
pub fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let at = |index: usize, expected: u8| text.as_bytes().get(index).filter(|&&byte| byte == expected);
    at(4, b'-')?;
    at(7, b'-')?;
    at(10, b'T')?;
    at(13, b':')?;
    at(16, b':')?;
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if year < 1970
        || !(1..=12).contains(&month)
        || !(1..=31).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    let mut rest = &text[19..];
    let mut fraction = Duration::ZERO;
    if let Some(digits) = rest.strip_prefix('.') {
        let length = digits.bytes().take_while(u8::is_ascii_digit).count();
        let nanos = format!("{:0<9}", digits.get(..length.clamp(1, 9))?);
        fraction = Duration::from_nanos(nanos.parse().ok()?);
        rest = &digits[length..];
    }
    let seconds = days(year, month, day) * SECONDS_OF_DAY + hour * 3600 + minute * 60 + second;
    let time = UNIX_EPOCH + Duration::from_secs(seconds) + fraction;
    if rest == "Z" {
        return Some(time);
    }
    let sign = rest.bytes().next()?;
    let hours: u64 = rest.get(1..3)?.parse().ok()?;
    let minutes: u64 = rest.get(4..6)?.parse().ok()?;
    if rest.len() != 6 || rest.as_bytes()[3] != b':' {
        return None;
    }
    let offset = Duration::from_secs(hours * 3600 + minutes * 60);
    match sign {
        b'+' => time.checked_sub(offset),
        b'-' => time.checked_add(offset),
        _ => None,
    }
}

/// Year, month and day of a day since 1970-01-01 (Howard Hinnant's `civil_from_days`).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// The inverse of [`civil`], for years from 1970 on.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, seconds: u64) {
        let time = UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(parse_rfc3339(text), Some(time));
        assert_eq!(to_rfc3339(time), text);
    }

    #[test]
    fn times_go_back_and_forth() {
        check("1970-01-01T00:00:00Z", 0);
        check("2000-02-29T23:59:59Z", 951_868_799);
        check("2026-12-01T13:44:00Z", 1_796_132_640);
        for day in (0..60_000).step_by(17) {
            let (year, month, date) = civil(day);
            assert_eq!(days(year, month, date), day);
        }
    }

    #[test]
    fn fractions_and_offsets_are_read() {
        let time = UNIX_EPOCH + Duration::from_millis(951_868_799_250);
        assert_eq!(parse_rfc3339("2000-02-29T23:59:59.250000Z"), Some(time));
        assert_eq!(parse_rfc3339("2000-03-01T01:29:59.25+01:30"), Some(time));
        assert_eq!(parse_rfc3339("2000-02-29T22:59:59.25-01:00"), Some(time));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "2000-02-29", "2000-02-29T23:59:59", "2000-13-01T00:00:00Z", "2000-01-01T00:00:00+1"]
        {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }
}
