//! Dates for templates, from seconds since 1970 in UTC. Reads no clock.

use std::fmt::Write as _;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// A moment, taken apart.
struct Civil {
    year: i64,
    /// 1 to 12.
    month: usize,
    /// 1 to 31.
    day: i64,
    /// 1 to 366.
    day_of_year: i64,
    /// 0 is Sunday.
    weekday: usize,
    /// Of the day.
    second: i64,
}

/// Formats a moment as C's `strftime` does in the C locale; none if the format asks for more than is built.
pub(super) fn strftime(format: &str, unix_s: i64) -> Option<String> {
    let civil = civil_of(unix_s);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut conversion = chars.next()?;
        let padded = conversion != '-';
        if !padded {
            conversion = chars.next()?;
        }
        write_conversion(&mut out, &civil, conversion, padded)?;
    }
    Some(out)
}

fn write_conversion(out: &mut String, civil: &Civil, conversion: char, padded: bool) -> Option<()> {
    let (hour, minute, second) = (
        civil.second / 3600,
        civil.second / 60 % 60,
        civil.second % 60,
    );
    let (month, day) = (civil.month as i64, civil.day);
    let (number, width) = match conversion {
        'Y' => (civil.year, 1),
        'y' => (civil.year.rem_euclid(100), 2),
        'm' => (month, 2),
        'd' => (day, 2),
        'j' => (civil.day_of_year, 3),
        'H' => (hour, 2),
        'I' => ((hour + 11) % 12 + 1, 2),
        'M' => (minute, 2),
        'S' => (second, 2),
        other => {
            let text = match other {
                'B' => MONTHS[civil.month - 1].to_owned(),
                'b' | 'h' => MONTHS[civil.month - 1][..3].to_owned(),
                'A' => DAYS[civil.weekday].to_owned(),
                'a' => DAYS[civil.weekday][..3].to_owned(),
                'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
                'e' => format!("{day:2}"),
                'F' => format!("{}-{month:02}-{day:02}", civil.year),
                'D' => format!("{month:02}/{day:02}/{:02}", civil.year.rem_euclid(100)),
                'T' => format!("{hour:02}:{minute:02}:{second:02}"),
                'Z' => "UTC".to_owned(),
                'z' => "+0000".to_owned(),
                '%' => "%".to_owned(),
                _ => return None,
            };
            out.push_str(&text);
            return Some(());
        }
    };
    let width = if padded { width } else { 1 };
    write!(out, "{number:0width$}").ok()
}

/// Source: `civil_from_days` in Howard Hinnant, "chrono-compatible low-level date algorithms".
fn civil_of(unix_s: i64) -> Civil {
    let (days, second) = (unix_s.div_euclid(86_400), unix_s.rem_euclid(86_400));
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * from_march + 2) / 153;
    let day = from_march - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let day_of_year = if month > 2 {
        from_march + 60 + i64::from(leap)
    } else {
        from_march - 305
    };
    Civil {
        year,
        month: usize::try_from(month).expect("months are 1 to 12"),
        day,
        day_of_year,
        weekday: usize::try_from((days + 4).rem_euclid(7)).expect("weekdays are 0 to 6"),
        second,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(unix_s: i64, format: &str, expected: Option<&str>) {
        assert_eq!(strftime(format, unix_s).as_deref(), expected);
    }

    #[test]
    fn dates_are_those_of_strftime() {
        check(0, "%d %b %Y %A %j", Some("01 Jan 1970 Thursday 001"));
        check(951_782_400, "%Y-%m-%d %a %j", Some("2000-02-29 Tue 060"));
        check(
            1_796_083_199,
            "%d %B %Y %H:%M:%S %I %p %j %y",
            Some("30 November 2026 23:59:59 11 PM 334 26"),
        );
        check(1_798_761_599, "%F %j", Some("2026-12-31 365"));
        check(-1, "%F %T", Some("1969-12-31 23:59:59"));
        check(1_767_225_600, "%-d/%-m %e %%", Some("1/1  1 %"));
    }

    #[test]
    fn unknown_conversions_are_refused() {
        check(0, "%Q", None);
        check(0, "%", None);
    }
}
