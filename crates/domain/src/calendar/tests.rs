//! Tests of the calendar, rule by rule; `oracle` holds it against a clock that is watched minute by minute.
//! They must not depend on the time zones of the machine.

mod oracle;

use jiff::Zoned;

use super::*;

/// `22:00-06:00`, `Mon,tue 22:00-06:00`, `22:00-06:00 Asia/Shanghai`: a window in short.
fn calendar(windows: &[&str], zone: &str, except: &[&str]) -> Calendar {
    try_calendar(windows, Some(zone), except).unwrap()
}

fn try_calendar(
    windows: &[&str],
    zone: Option<&str>,
    except: &[&str],
) -> Result<Calendar, Vec<(String, CalendarError)>> {
    let days: Vec<Vec<String>> = windows.iter().map(|text| words(text).0).collect();
    let texts: Vec<_> = windows.iter().zip(&days).map(|(text, days)| WindowText { days, ..words(text).1 }).collect();
    let except: Vec<_> = except.iter().map(ToString::to_string).collect();
    Calendar::parse(&texts, zone, &except)
}

fn words(text: &str) -> (Vec<String>, WindowText<'_>) {
    let words: Vec<_> = text.split(' ').collect();
    let at = words.iter().position(|word| word.contains(':')).unwrap();
    let (start, end) = words[at].split_once('-').unwrap();
    let days = words[..at].iter().flat_map(|days| days.split(',')).map(str::to_owned).collect();
    (days, WindowText { start, end, days: &[], zone: words.get(at + 1).copied() })
}

/// `2026-03-29T03:00[Europe/Berlin]`, `2026-03-29T01:00[UTC]`.
fn moment(text: &str) -> Timestamp {
    text.parse::<Zoned>().unwrap().timestamp()
}

/// All openings of some days, as the clocks of a zone show them.
fn openings(calendar: &Calendar, zone: &str, from: &str, to: &str) -> Vec<String> {
    let at = |date: &str| moment(&format!("{date}T00:00[{zone}]"));
    let show = |moment: Timestamp| moment.in_tz(zone).unwrap().strftime("%a %d %H:%M%:::z").to_string();
    let spans = calendar.spans(at(from), at(to));
    spans.into_iter().map(|(start, end)| format!("{} to {}", show(start), show(end))).collect()
}

fn problems(windows: &[&str], zone: Option<&str>, except: &[&str]) -> Vec<String> {
    let problems = try_calendar(windows, zone, except).unwrap_err();
    problems.into_iter().map(|(field, problem)| format!("{field} {problem}")).collect()
}

/// A moment just before an edge still has the state that the edge ends.
const INSTANT: SignedDuration = SignedDuration::from_nanos(1);
const ALWAYS: Hours = Hours { open: true, since: None, until: None };

#[test]
fn without_windows_and_exceptions_it_is_always_open() {
    let now = moment("2026-11-05T12:00[UTC]");
    for calendar in [Calendar::always(), calendar(&[], "Asia/Shanghai", &[])] {
        assert!(calendar.is_always());
        assert_eq!(calendar.at(now), ALWAYS);
        assert_eq!(calendar.spans(now, Timestamp::MAX), [(Timestamp::MIN, Timestamp::MAX)]);
    }
    assert!(!calendar(&["00:00-24:00"], "UTC", &[]).is_always());
    assert!(!calendar(&[], "UTC", &["2026-12-24"]).is_always());
}

#[test]
fn a_window_is_open_from_its_start_to_just_before_its_end() {
    let calendar = calendar(&["08:00-18:00"], "UTC", &[]);
    let (start, end) = (moment("2026-11-05T08:00[UTC]"), moment("2026-11-05T18:00[UTC]"));
    let open = Hours { open: true, since: Some(start), until: Some(end) };
    assert_eq!(calendar.at(start), open);
    assert_eq!(calendar.at(end.checked_sub(INSTANT).unwrap()), open);
    let tomorrow = moment("2026-11-06T08:00[UTC]");
    assert_eq!(calendar.at(end), Hours { open: false, since: Some(end), until: Some(tomorrow) });
    assert!(open.covers(start) && !open.covers(end) && !open.covers(start.checked_sub(INSTANT).unwrap()));
    assert!(ALWAYS.covers(Timestamp::MIN) && ALWAYS.covers(Timestamp::MAX));
}

#[test]
fn a_window_that_crosses_midnight_belongs_to_the_day_it_starts_on() {
    let calendar = calendar(&["Mon 22:00-06:00"], "UTC", &[]);
    let week = openings(&calendar, "UTC", "2026-11-02", "2026-11-09");
    assert_eq!(week, ["Mon 02 22:00+00 to Tue 03 06:00+00"], "not the small hours of Monday");
}

#[test]
fn an_end_of_24_00_is_the_midnight_after() {
    let evening = ["Fri 06 20:00+00 to Sat 07 00:00+00"];
    for end in ["24:00", "00:00"] {
        let calendar = calendar(&[&format!("Fri 20:00-{end}")], "UTC", &[]);
        assert_eq!(openings(&calendar, "UTC", "2026-11-02", "2026-11-09"), evening);
    }
}

#[test]
fn a_start_that_is_the_end_makes_a_whole_day() {
    let calendar = calendar(&["Wed 07:00-07:00"], "UTC", &[]);
    assert_eq!(openings(&calendar, "UTC", "2026-11-02", "2026-11-09"), ["Wed 04 07:00+00 to Thu 05 07:00+00"]);
}

#[test]
fn days_are_english_full_or_three_letters_in_any_case() {
    for days in ["Mon,Tue,Wed,Thu,Fri,Sat,Sun", "MONDAY,tuesday,Wednesday,thuRSday,friday,SATurday,sunday"] {
        let calendar = calendar(&[&format!("{days} 08:00-09:00")], "UTC", &[]);
        assert_eq!(openings(&calendar, "UTC", "2026-11-02", "2026-11-09").len(), 7);
    }
    for (i, day) in ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"].into_iter().enumerate() {
        let calendar = calendar(&[&format!("{day} 08:00-09:00")], "UTC", &[]);
        let expected = format!("{day} {:02} 08:00+00 to {day} {:02} 09:00+00", i + 2, i + 2);
        assert_eq!(openings(&calendar, "UTC", "2026-11-02", "2026-11-09"), [expected]);
    }
}

#[test]
fn a_window_has_its_own_zone_else_the_policys_else_utc() {
    let windows = ["Mon 08:00-09:00", "Mon 08:00-09:00 Asia/Shanghai"];
    let of = |zone| openings(&try_calendar(&windows, zone, &[]).unwrap(), "UTC", "2026-11-02", "2026-11-03");
    assert_eq!(
        of(Some("America/New_York")),
        ["Mon 02 00:00+00 to Mon 02 01:00+00", "Mon 02 13:00+00 to Mon 02 14:00+00"]
    );
    assert_eq!(of(None), ["Mon 02 00:00+00 to Mon 02 01:00+00", "Mon 02 08:00+00 to Mon 02 09:00+00"]);
}

#[test]
fn windows_that_touch_or_overlap_have_no_edge_between_them() {
    let one = ["Mon 02 08:00+00 to Mon 02 20:00+00"];
    // 20:00 in Shanghai is 12:00 in UTC.
    for windows in
        [["08:00-12:00", "12:00-20:00"], ["08:00-15:00", "10:00-20:00"], ["08:00-12:00", "20:00-04:00 Asia/Shanghai"]]
    {
        assert_eq!(openings(&calendar(&windows, "UTC", &[]), "UTC", "2026-11-02", "2026-11-03"), one);
    }
}

#[test]
fn windows_that_cover_all_time_never_end() {
    let now = moment("2026-11-05T12:00[UTC]");
    for windows in [&["00:00-24:00"][..], &["05:00-05:00"], &["00:00-09:00", "08:00-23:00", "23:00-00:00"]] {
        for zone in ["UTC", "Europe/Berlin", "America/Santiago"] {
            assert_eq!(calendar(windows, zone, &[]).at(now), ALWAYS, "{windows:?} {zone}");
        }
    }
}

#[test]
fn a_window_that_would_start_on_an_excepted_date_does_not_open() {
    let calendar = calendar(&["22:00-06:00"], "Europe/Berlin", &["2026-12-24", "2026-12-24"]);
    assert_eq!(
        openings(&calendar, "Europe/Berlin", "2026-12-24", "2026-12-26"),
        ["Wed 23 22:00+01 to Thu 24 06:00+01", "Fri 25 22:00+01 to Sat 26 06:00+01"],
        "a window that began the evening before stays open",
    );
}

#[test]
fn excepted_dates_are_those_of_the_windows_own_zone() {
    // It starts at 01:00 on the 25th in Shanghai, which is still the 24th in UTC.
    let window = ["01:00-02:00 Asia/Shanghai"];
    let open = |except| calendar(&window, "UTC", &[except]).at(moment("2026-12-24T17:30[UTC]")).open;
    assert!(open("2026-12-24") && !open("2026-12-25"));
}

#[test]
fn without_windows_an_excepted_date_is_closed_from_midnight_to_midnight_of_the_policys_zone() {
    let calendar = calendar(&[], "Asia/Shanghai", &["2026-12-25", "2026-12-26", "2027-02-01"]);
    let at = |text| moment(&format!("{text}[Asia/Shanghai]"));
    let until = Some(at("2027-02-01T00:00"));
    assert_eq!(
        calendar.at(at("2026-12-24T12:00")),
        Hours { open: true, since: None, until: Some(at("2026-12-25T00:00")) }
    );
    assert_eq!(
        calendar.at(at("2026-12-25T12:00")),
        Hours { open: false, since: Some(at("2026-12-25T00:00")), until: Some(at("2026-12-27T00:00")) },
    );
    assert_eq!(calendar.at(at("2026-12-27T00:00")), Hours { open: true, since: Some(at("2026-12-27T00:00")), until });
    assert_eq!(calendar.at(at("2027-02-02T00:00")).until, None);
}

#[test]
fn an_exception_years_ahead_is_the_next_edge() {
    let calendar = calendar(&[], "Europe/Berlin", &["2026-01-01", "2031-12-24", "9999-01-01"]);
    let until = calendar.at(moment("2026-11-05T12:00[UTC]")).until;
    assert_eq!(until, Some(moment("2031-12-24T00:00[Europe/Berlin]")));
    let until = calendar.at(moment("2032-11-05T12:00[UTC]")).until;
    assert_eq!(until, Some(moment("9999-01-01T00:00[Europe/Berlin]")));
}

#[test]
fn a_pause_of_many_excepted_dates_has_its_true_beginning_and_end() {
    let first = jiff::civil::date(2026, 1, 1);
    let dates: Vec<_> = first.series(jiff::Span::new().days(1)).take(1000).map(|date| date.to_string()).collect();
    let calendar = Calendar::parse(&[], None, &dates).unwrap();
    let hours = calendar.at(moment("2027-05-05T12:00[UTC]"));
    // 365 + 365 + 270 days.
    let (since, until) = (moment("2026-01-01T00:00[UTC]"), moment("2028-09-27T00:00[UTC]"));
    assert_eq!(hours, Hours { open: false, since: Some(since), until: Some(until) });
}

#[test]
fn the_29th_of_february_is_a_day_like_any_other() {
    let calendar = calendar(&["20:00-04:00"], "UTC", &["2028-02-28"]);
    assert_eq!(
        openings(&calendar, "UTC", "2028-02-28", "2028-03-01"),
        ["Sun 27 20:00+00 to Mon 28 04:00+00", "Tue 29 20:00+00 to Wed 01 04:00+00"],
    );
    assert!(Calendar::parse(&[], None, &["2028-02-29".into()]).is_ok());
}

#[test]
fn a_time_that_the_clocks_skip_moves_to_the_first_that_exists() {
    // 02:00 to 03:00 does not exist in Berlin on 2026-03-29, 02:00 to 02:30 not on Lord Howe Island on 2026-10-04.
    let of = |window, zone, from, to| openings(&calendar(&[window], zone, &[]), zone, from, to);
    let berlin = |window| of(window, "Europe/Berlin", "2026-03-29", "2026-03-30");
    assert_eq!(berlin("02:30-05:00"), ["Sun 29 03:00+02 to Sun 29 05:00+02"]);
    assert_eq!(berlin("01:00-02:30"), ["Sun 29 01:00+01 to Sun 29 03:00+02"]);
    assert_eq!(berlin("02:10-02:50"), [""; 0], "nothing of it exists");
    let howe = of("02:10-04:00", "Australia/Lord_Howe", "2026-10-04", "2026-10-05");
    assert_eq!(howe, ["Sun 04 02:30+11 to Sun 04 04:00+11"]);
    // The 30th of December 2011 does not exist in Samoa.
    let samoa = |window| of(window, "Pacific/Apia", "2011-12-29", "2012-01-01");
    assert_eq!(samoa("Fri 10:00-12:00"), [""; 0]);
    assert_eq!(samoa("Thu 12:00-12:00"), ["Thu 29 12:00-10 to Sat 31 00:00+14"]);
    assert_eq!(samoa("Fri 12:00-12:00"), ["Sat 31 00:00+14 to Sat 31 12:00+14"]);
}

#[test]
fn a_time_that_the_clocks_show_twice_means_the_first() {
    // 02:00 to 03:00 comes twice in Berlin on 2026-10-25, 01:30 to 02:00 on Lord Howe Island on 2026-04-05.
    let of = |window, zone, from, to| openings(&calendar(&[window], zone, &[]), zone, from, to);
    let berlin = |window| of(window, "Europe/Berlin", "2026-10-25", "2026-10-26");
    assert_eq!(berlin("02:30-05:00"), ["Sun 25 02:30+02 to Sun 25 05:00+01"]);
    assert_eq!(berlin("01:00-02:30"), ["Sun 25 01:00+02 to Sun 25 02:30+02"]);
    let howe = of("01:45-02:15", "Australia/Lord_Howe", "2026-04-05", "2026-04-06");
    assert_eq!(howe, ["Sun 05 01:45+11 to Sun 05 02:15+10:30"]);
    // Newfoundland once set its clocks from 00:01 back to 23:01 of the day before.
    let early = calendar(&["Sun 00:00-03:00"], "America/St_Johns", &[]);
    let again = moment("2005-10-30T02:45[UTC]");
    assert_eq!(again.in_tz("America/St_Johns").unwrap().strftime("%a %H:%M").to_string(), "Sat 23:15");
    let since = moment("2005-10-30T02:30[UTC]");
    assert_eq!(early.at(again), Hours { open: true, since: Some(since), until: Some(moment("2005-10-30T06:30[UTC]")) });
    let late = calendar(&["Sat 23:10-24:00"], "America/St_Johns", &[]);
    assert_eq!((late.at(again).open, late.at(again).since), (false, Some(since)), "the end has passed already");
}

#[test]
fn a_later_date_never_gives_an_earlier_start_or_end() {
    for zone in ["Europe/Berlin", "America/St_Johns", "America/Santiago", "Pacific/Apia", "Africa/Casablanca"] {
        for window in ["00:00-00:00", "23:30-00:30", "02:10-02:50", "12:00-11:59"] {
            let calendar = calendar(&[window], zone, &[]);
            let dates = jiff::civil::date(1970, 1, 1).series(jiff::Span::new().days(1)).take(30_000);
            let spans: Vec<_> = dates.filter_map(|date| calendar.windows[0].on(date)).collect();
            assert!(spans.is_sorted_by(|one, next| one.0 < next.0 && one.1 < next.1), "{window} {zone}");
        }
    }
}

#[test]
fn all_problems_are_reported_at_once_in_the_order_of_the_fields() {
    let windows = ["Mon,Caturday 7:00-25:00 Mars/Base", "08:00-09:00", "24:00-08:60"];
    assert_eq!(
        problems(&windows, Some("CEST"), &["2026-12-24", "2026-02-30"]),
        [
            "timeWindows[0].start is `7:00`: give HH:MM from 00:00 to 23:59, two digits each, such as `07:00`",
            "timeWindows[0].end is `25:00`: give HH:MM from 00:00 to 24:00, two digits each, such as `07:00`",
            "timeWindows[0].days[1] is `Caturday`, which is no day of the week: give an English name such as `Monday` or `Mon`",
            "timeWindows[0].timeZone is `Mars/Base`, which is no IANA time zone: give a name such as `Europe/Berlin`, \
             `Asia/Shanghai` or `UTC`, not an abbreviation or an offset",
            "timeWindows[2].start is `24:00`, which only an end can be: give `00:00` of the next day",
            "timeWindows[2].end is `08:60`: give HH:MM from 00:00 to 24:00, two digits each, such as `07:00`",
            "timeZone is `CEST`, which is no IANA time zone: give a name such as `Europe/Berlin`, `Asia/Shanghai` or \
             `UTC`, not an abbreviation or an offset",
            "exceptDates[1] is `2026-02-30`, which is no date: give a day that exists as YYYY-MM-DD, such as `2026-12-24`",
        ],
    );
}

#[test]
fn inexact_spellings_are_refused() {
    let first = |windows: &[&str], zone, except: &[&str]| try_calendar(windows, zone, except).unwrap_err().remove(0);
    for time in ["", "8", "0800", "8:00", "08:0", "+8:00", "08:00:00", " 8:00", "24:01", "-1:00", "٠٨:٠٠"] {
        let window = WindowText { start: time, end: "09:00", days: &[], zone: None };
        let [(field, problem)] = &Calendar::parse(&[window], None, &[]).unwrap_err()[..] else { panic!("{time}") };
        assert_eq!((field.as_str(), problem), ("timeWindows[0].start", &CalendarError::Start(time.into())));
        let window = WindowText { start: "09:00", end: time, ..window };
        assert_eq!(Calendar::parse(&[window], None, &[]).unwrap_err()[0].1, CalendarError::End(time.into()));
    }
    for zone in ["", "Etc/Unknown", "+02:00", "CET-1CEST", "Europe", "/etc/localtime"] {
        assert_eq!(first(&[], Some(zone), &[]), ("timeZone".into(), CalendarError::Zone(zone.into())));
    }
    for day in ["", "Mo", "Mond", "Montag", "1", "Mon "] {
        let window = WindowText { start: "08:00", end: "09:00", days: &[day.into()], zone: None };
        let problem = Calendar::parse(&[window], None, &[]).unwrap_err().remove(0);
        assert_eq!(problem, ("timeWindows[0].days[0]".into(), CalendarError::Day(day.into())));
    }
    for date in ["", "2026-1-1", "26-01-01", "2026-13-01", "2027-02-29", "20261224", "2026-12-24T00:00", "-026-12-24"] {
        assert_eq!(first(&[], None, &[date]), ("exceptDates[0]".into(), CalendarError::Date(date.into())));
    }
    let long = first(&[], Some(&"x".repeat(1000)), &[]).1.to_string();
    assert!(long.len() < 300, "what is repeated is cut: {long}");
}
