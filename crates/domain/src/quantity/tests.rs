//! Tests of amounts: agreement with Kubernetes' own code and exactness by property.
//! They must not repeat the arithmetic under test.

use proptest::prelude::*;

use super::*;

fn quantity(text: &str) -> Quantity {
    Quantity::parse(text).unwrap()
}

/// Vectors written by `vectors/quantity.go`, which links apimachinery.
#[test]
fn quantities_read_and_print_as_in_kubernetes() {
    for line in include_str!("../../vectors/quantity.tsv").lines() {
        let mut columns = line.split('\t');
        let (text, nano) = (columns.next().unwrap(), columns.next().unwrap());
        let parsed = Quantity::parse(text);
        if nano == "error" {
            assert!(parsed.is_err(), "{text:?} must not parse, gave {parsed:?}");
            continue;
        }
        let parsed = parsed.unwrap();
        // Kubernetes counts on where we saturate; its figure may not even fit into 128 bits.
        let exact = nano.parse().unwrap_or(if nano.starts_with('-') { -i128::MAX } else { i128::MAX });
        assert_eq!(parsed.nano(), exact.clamp(-LARGEST, LARGEST), "{text:?}");
        if exact.abs() > LARGEST {
            continue;
        }
        for format in [Format::DecimalSi, Format::BinarySi] {
            let printed = columns.next().unwrap();
            if printed != "?" {
                assert_eq!(parsed.display(format).to_string(), printed, "{text:?} as {format:?}");
            }
        }
    }
}

#[test]
fn amounts_that_kubernetes_accepts_and_we_cannot_count_saturate() {
    let most = Quantity::from_nano(LARGEST);
    for text in ["1e23", "1e30", "1e308", "1e999999999", "1e2147483647", "0.0001e999999", &"9".repeat(200)] {
        assert_eq!(quantity(text), most, "{text}");
        assert_eq!(quantity(&format!("-{text}")), Quantity::from_nano(-LARGEST), "-{text}");
    }
    for text in ["1e-308", "1e-2147483648", &format!("0.{}1", "0".repeat(400))] {
        assert_eq!(quantity(text), Quantity::from_nano(1), "{text}");
    }
    assert_eq!(quantity("0e2147483647"), Quantity::ZERO);
    assert_eq!(quantity(&format!("{}1", "0".repeat(400))), Quantity::from_whole(1));
    assert_eq!(serde_json::from_str::<Quantity>("1e308").unwrap(), most, "as a number");
}

#[test]
fn a_sum_over_huge_amounts_loses_nothing_when_they_are_subtracted_again() {
    let (absurd, small) = (quantity("1e308"), quantity("250m"));
    let sum = (0..10_000).fold(small, |sum, _| sum.saturating_add(absurd));
    assert_eq!((0..10_000).fold(sum, |sum, _| sum.saturating_sub(absurd)), small);
}

#[test]
fn suffixes_above_exa_are_kept_in_the_number() {
    assert_eq!(quantity("1000E").to_string(), "1000E");
    assert_eq!(Quantity::from_nano((1 << 72) * NANO).display(Format::BinarySi).to_string(), "4096Ei");
}

#[test]
fn an_error_repeats_only_the_beginning_of_a_long_text() {
    let error = Quantity::parse(&"x".repeat(100_000)).unwrap_err();
    assert!(error.to_string().len() < 300);
    assert_eq!(error.reason(), "InvalidQuantity");
}

#[test]
fn json_may_hold_a_string_a_number_or_null() {
    let read = |json: &str| serde_json::from_str::<Quantity>(json).unwrap();
    assert_eq!(read(r#""250m""#), Quantity::from_milli(250));
    assert_eq!(read(r#"" 2 ""#), Quantity::from_whole(2));
    assert_eq!(read("2"), Quantity::from_whole(2));
    assert_eq!(read("-2"), Quantity::from_whole(-2));
    assert_eq!(read("0.1"), Quantity::from_milli(100));
    assert_eq!(read("1e-7"), Quantity::from_nano(100));
    assert_eq!(read("null"), Quantity::ZERO);
    assert!(serde_json::from_str::<Quantity>("true").is_err());
    assert_eq!(serde_json::to_string(&Quantity::from_milli(1500)).unwrap(), r#""1500m""#);
}

#[test]
fn percent_outside_0_to_100_is_refused() {
    assert_eq!(Percent::parse(0).unwrap().get(), 0);
    assert_eq!(Percent::parse(100).unwrap(), Percent::ALL);
    for given in [-1, 101, 256, i64::MAX, i64::MIN] {
        assert!(Percent::parse(given).unwrap_err().to_string().contains(&given.to_string()));
        assert!(serde_json::from_str::<Percent>(&given.to_string()).is_err());
    }
}

#[test]
fn percent_of_pods_and_cores_rounds_down() {
    let third = Percent::parse(33).unwrap();
    assert_eq!(quantity("110").percent_floor(third), quantity("36300m"));
    assert_eq!(quantity("110").percent_floor(third).floor_whole(), quantity("36"));
    assert_eq!(quantity("1n").percent_floor(Percent::parse(99).unwrap()), Quantity::ZERO);
    assert_eq!(quantity("-1n").percent_floor(Percent::parse(1).unwrap()), quantity("-1n"));
}

#[test]
fn rounding_goes_down_and_up_also_below_zero() {
    assert_eq!(quantity("1500m").floor_whole(), quantity("1"));
    assert_eq!(quantity("-1500m").floor_whole(), quantity("-2"));
    assert_eq!(quantity("1500m").ceil_whole(), quantity("2"));
    assert_eq!(quantity("-1500m").ceil_whole(), quantity("-1"));
    assert_eq!(quantity("1500u").floor_milli(), quantity("1m"));
    assert_eq!(quantity("1500u").ceil_milli(), quantity("2m"));
    assert_eq!(quantity("2").ceil_whole(), quantity("2"));
    assert_eq!(Quantity::from_nano(i128::MAX).ceil_whole(), Quantity::from_nano(i128::MAX));
}

fn any_nano() -> impl Strategy<Value = i128> {
    // Plain random bits are all huge: shifted, every order of magnitude is as likely.
    (-LARGEST..=LARGEST, 0u32..103).prop_map(|(nano, shift)| nano >> shift)
}

proptest! {
    #[test]
    fn what_is_printed_parses_back_to_the_same_amount(nano in any_nano(), tens in 0u32..25) {
        let quantity = Quantity::from_nano(nano / 10i128.pow(tens) * 10i128.pow(tens));
        prop_assert_eq!(Quantity::parse(&quantity.to_string()), Ok(quantity));
        // Above 2⁶³ units Kubernetes caps binary amounts when it reads them.
        if quantity.nano().abs() <= i128::from(i64::MAX) * NANO {
            prop_assert_eq!(Quantity::parse(&quantity.display(Format::BinarySi).to_string()), Ok(quantity));
        }
    }

    #[test]
    fn order_is_the_order_of_the_numbers(left in -100_000i64..100_000, right in -100_000i64..100_000) {
        let amounts = [quantity(&format!("{left}m")), quantity(&format!("{right}m"))];
        prop_assert_eq!(amounts[0].cmp(&amounts[1]), left.cmp(&right));
    }

    #[test]
    fn finer_digits_round_away_from_zero(whole in 0i64..1000, figures in "[0-9]{1,30}") {
        let exact = format!("{whole}.{figures}");
        let padded = format!("{figures:0<9}");
        let (kept, cut) = padded.split_at(9);
        let up = i128::from(cut.bytes().any(|byte| byte != b'0'));
        let expected = i128::from(whole) * NANO + kept.parse::<i128>().unwrap() + up;
        prop_assert_eq!(quantity(&exact).nano(), expected);
        prop_assert_eq!(quantity(&format!("-{exact}")).nano(), -expected);
    }

    #[test]
    fn parsing_never_panics(text in ".{0,40}", numeric in "[-+]?[0-9.]{0,50}[eEinumkKMGTP]{0,3}[-+]?[0-9]{0,20}") {
        let _ = Quantity::parse(&text);
        let _ = Quantity::parse(&numeric);
    }

    #[test]
    fn sums_and_differences_undo_each_other(left in any_nano(), right in any_nano()) {
        let (left, right) = (Quantity::from_nano(left / 4), Quantity::from_nano(right / 4));
        prop_assert_eq!(left.checked_add(right).unwrap().checked_sub(right), Some(left));
        prop_assert_eq!(left.saturating_add(right).saturating_sub(right), left);
    }

    #[test]
    fn percent_lies_between_nothing_and_all(nano in 0i128..i128::MAX, percent in 0i64..=100) {
        let (quantity, percent) = (Quantity::from_nano(nano), Percent::parse(percent).unwrap());
        let part = quantity.percent_floor(percent);
        prop_assert!(Quantity::ZERO <= part && part <= quantity);
        prop_assert_eq!(quantity.percent_floor(Percent::ALL), quantity);
    }

    #[test]
    fn percent_is_exact(nano in -1_000_000_000_000i128..1_000_000_000_000, percent in 0i64..=100) {
        let part = Quantity::from_nano(nano).percent_floor(Percent::parse(percent).unwrap()).nano();
        let product = nano * i128::from(percent);
        prop_assert!(part * 100 <= product && product < (part + 1) * 100);
    }
}
