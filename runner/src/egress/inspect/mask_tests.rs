use super::*;

const VALUE: &str = "gh/p+Q=t'\"v <0123456789";

fn mask() -> Mask {
    Mask::new(&[VALUE.to_owned()])
}

fn split(text: &[u8], step: usize) -> Vec<u8> {
    let (mut mask, mut out) = (mask(), Vec::new());
    for piece in text.chunks(step) {
        out.extend(mask.pass(piece));
    }
    out.extend(mask.rest());
    out
}

#[test]
fn a_value_is_hidden_however_it_is_split() {
    let escaped = "gh\\/p+Q\\u003dt\\u0027\\\"v \\u003C0123456789";
    let text = format!("a {} b {} c {}", VALUE, escaped, &VALUE[..22]);
    let hidden = (VALUE.len(), escaped.len());
    let (first, second) = ("*".repeat(hidden.0), "*".repeat(hidden.1));
    let masked = format!("a {} b {} c {}", first, second, &VALUE[..22]);
    for step in 1..text.len() {
        let out = split(text.as_bytes(), step);
        assert_eq!(String::from_utf8(out).unwrap(), masked, "{}", step);
    }
}

#[test]
fn what_is_held_back_does_not_depend_on_the_text() {
    let hold = LONGEST_ESCAPE * VALUE.len() - 1;
    assert_eq!(mask().hold, hold);
    let texts = (1..VALUE.len()).flat_map(|n| [VALUE[..n].to_owned(), "x".repeat(n)]);
    for text in texts {
        for before in [0, 1, hold, 4 * hold] {
            let mut mask = mask();
            let mut stream = vec![b'-'; before];
            stream.extend_from_slice(text.as_bytes());
            let passed = stream.len().saturating_sub(hold);
            assert_eq!(mask.pass(&stream), stream[..passed], "{} {}", text, before);
            assert_eq!(mask.holds(), !stream.is_empty());
            assert_eq!(mask.rest(), stream[passed..]);
            assert!(!mask.holds());
        }
    }
}

#[test]
fn after_a_pause_the_rest_of_a_value_is_still_hidden() {
    let mut mask = mask();
    assert_eq!(mask.pass(&VALUE.as_bytes()[..9]), b"");
    assert_eq!(mask.rest(), VALUE.as_bytes()[..9]);
    assert_eq!(mask.pass(&VALUE.as_bytes()[9..]), b"");
    assert_eq!(mask.rest(), b"**************");
    // And much later nothing of it is.
    let much = vec![b'-'; 10_000];
    assert_eq!(mask.pass(&much), much[..10_000 - mask.hold]);
    assert_eq!(mask.rest(), much[..mask.hold]);
}

#[test]
fn a_guess_must_be_complete_to_the_bit() {
    let base64 = |text: &str| crate::base64::encode(text.as_bytes());
    for at in [0, VALUE.len() - 1] {
        let mut wrong = VALUE.as_bytes().to_vec();
        // The bit that shares a digit of base64 with what is beside the value.
        wrong[at] ^= if at == 0 { 0x40 } else { 1 };
        let wrong = String::from_utf8(wrong).unwrap();
        for before in ["", "x", "xy"] {
            for after in ["", "x", "xy"] {
                let wrong = base64(&[before, &wrong, after].concat());
                assert_eq!(split(wrong.as_bytes(), 7), wrong.as_bytes());
                let right = split(base64(&[before, VALUE, after].concat()).as_bytes(), 7);
                let hidden = right.iter().filter(|&&byte| byte == MASK).count();
                assert!(
                    hidden >= (8 * VALUE.len()).div_ceil(6),
                    "{:?} {:?}",
                    before,
                    after
                );
            }
        }
    }
}

#[test]
fn a_value_is_hidden_in_base64_however_often_it_is_there() {
    let text = crate::base64::encode(VALUE.repeat(4_000).as_bytes());
    let mut hidden = text.clone().into_bytes();
    mask().whole(&mut hidden);
    // The last digit has bits that belong to no byte.
    let digits = text.trim_end_matches('=').len();
    assert!(hidden[..digits].iter().all(|&byte| byte == MASK));
}

#[test]
fn lines_of_a_head_stay() {
    let text = crate::base64::encode(VALUE.as_bytes());
    let mut head = format!("X: {}\r\n{}\r\n\r\n", &text[..20], &text[20..]).into_bytes();
    mask().whole(&mut head);
    assert_eq!(
        String::from_utf8(head).unwrap(),
        format!("X: {}\r\n***********=\r\n\r\n", "*".repeat(20))
    );
}

#[test]
fn a_value_that_begins_or_ends_with_a_quote_is_hidden_with_it() {
    let mask = Mask::new(&["'0123456789\\".to_owned()]);
    let mut text = br"(''0123456789\\)".to_vec();
    mask.whole(&mut text);
    assert_eq!(text, b"(**************)");
}

#[test]
fn one_of_several_values_is_hidden() {
    let mask = Mask::new(&["0123456789".to_owned(), "abcdefghijklmnop".to_owned()]);
    let mut text = b"0123456789 abcdefghijklmnop 012345678 abcdefghijklmno".to_vec();
    mask.whole(&mut text);
    assert_eq!(
        text,
        &b"********** **************** 012345678 abcdefghijklmno"[..]
    );
    let mut mask = Mask::default();
    assert_eq!(mask.pass(b"0123456789"), b"0123456789");
    assert!(!mask.holds());
}

/// Whether nothing of a form is shown in a text, whatever the pieces are in which it comes.
fn hides(value: &str, before: &str, form: &str, behind: &str) -> bool {
    let text = [before, form, behind].concat();
    [1, 3, 1000].iter().all(|&step| {
        let (mut mask, mut out) = (Mask::new(&[value.to_owned()]), Vec::new());
        for piece in text.as_bytes().chunks(step) {
            out.extend(mask.pass(piece));
        }
        out.extend(mask.rest());
        let shown = out[before.len()..before.len() + form.len()].iter();
        shown.filter(|&&byte| byte != MASK && byte != b'=').count() == 0
    })
}

#[test]
fn a_value_of_symbols_alone_is_hidden_in_its_longest_form() {
    let value = "<&\"'<&\"'<&>'<&\"'<&\"'";
    let form: String = value
        .chars()
        .map(|one| match one {
            '<' => "\\u0026lt;",
            '>' => "\\u0026gt;",
            '&' => "\\u0026amp;",
            '"' => "\\u0026quot;",
            _ => "\\u0026#x27;",
        })
        .collect();
    assert!(hides(value, "", &form, ""));
}

#[test]
fn an_escaped_quote_at_an_end_is_hidden() {
    for quote in ["\"", "\\\"", "\\u0022", "&quot;", "&#x22;", "%22", "%2522"] {
        let form = [quote, "0123456789", quote].concat();
        assert!(hides("\"0123456789\"", "[", &form, "]"), "{}", quote);
    }
}

#[test]
fn a_text_beside_a_value_does_not_keep_it_from_being_found() {
    let before = [
        "%",
        "%2",
        "%25",
        "%252525",
        "\\",
        "\\\\\\\\\\\\\\\\",
        "\\x",
        "\\u",
        "\\u0",
        "\\u00",
        "\\\\u00",
        "&",
        "&#",
        "&#x",
        "&l",
        "&amp",
        "%u",
        "=",
    ];
    for (value, url, json) in [
        (
            "3fab+Q/z\"k&=t<Qx7v",
            "3fab%2BQ%2Fz%22k%26%3Dt%3CQx7v",
            "3fab+Q/z\\\"k\\u0026=t\\u003cQx7v",
        ),
        (
            "00ab<Q/z\"k&=t<Qx7v",
            "00ab%3CQ%2Fz%22k%26%3Dt%3CQx7v",
            "00ab\\u003cQ/z\\\"k&=t<Qx7v",
        ),
        (
            "2525ab<cdefghijklm",
            "2525ab%3Ccdefghijklm",
            "2525ab\\u003ccdefghijklm",
        ),
        (
            "u0041/cdefghijklm",
            "u0041%2Fcdefghijklm",
            "u0041\\/cdefghijklm",
        ),
        (
            "<lt;cdefghijklmno",
            "%3Clt%3Bcdefghijklmno",
            "\\u003clt;cdefghijklmno",
        ),
        (
            "lt;cdefghij/klmno",
            "lt%3Bcdefghij%2Fklmno",
            "lt;cdefghij\\/klmno",
        ),
    ] {
        for before in before {
            assert!(hides(value, before, url, "]"), "{} {}", before, url);
            assert!(hides(value, before, json, "]"), "{} {}", before, json);
            let base64 = crate::base64::encode(value.as_bytes());
            assert!(hides(value, before, &base64, "]"), "{} {}", before, base64);
        }
    }
    for end in [
        "%", "%4", "%25", "&", "&l", "&amp", "&#", "&#6", "\\u00", "\\x4",
    ] {
        let value = ["ghp<cdefghij", end].concat();
        let json = value.replace('\\', "\\\\").replace('<', "\\u003c");
        for behind in ["41", "1", "0041", "t;", "lt;", ";", "60;", "0;"] {
            assert!(hides(&value, "[", &json, behind), "{} {}", json, behind);
        }
    }
    let base64 = crate::base64::encode(b"sk-Qz7Xk9vRt2mN4pL8sW6y<>?~~");
    let (php, url) = (
        base64.replace('/', "\\/"),
        base64.replace('/', "%2F").replace('+', "%2B"),
    );
    for before in before {
        for form in [&base64, &php, &url] {
            assert!(
                hides("sk-Qz7Xk9vRt2mN4pL8sW6y<>?~~", before, form, "]"),
                "{} {}",
                before,
                form
            );
        }
    }
}

#[test]
fn a_value_with_an_escape_is_hidden_where_each_of_its_characters_is_escaped() {
    let writers: [fn(char) -> String; 6] = [
        |one| format!("\\u{:04X}", u32::from(one)),
        |one| format!("\\x{:02x}", u32::from(one)),
        |one| format!("&#{};", u32::from(one)),
        |one| format!("&#0{};", u32::from(one)),
        |one| format!("&#x{:x};", u32::from(one)),
        |one| format!("%{:02X}", u32::from(one)),
    ];
    for value in [
        "ab%41cdEFGH12",
        "sig=ab%2Bcd%2Fef%3D",
        "ab&amp;cdEFGH12",
        "ab&#65;cdEFGH12345",
        "ab\\u0041cdEFGH12",
        "'%41\\\"cdEFGH&lt;12",
    ] {
        let utf16: Vec<String> = value.chars().map(String::from).collect();
        let mut forms = vec![utf16.join("\0")];
        for write in writers {
            let one = |one: char| match one.is_ascii_alphanumeric() {
                true => String::from(one),
                false => write(one),
            };
            forms.push(value.chars().map(one).collect());
        }
        for form in forms {
            for before in ["", "%", "%2", "&#", "&#x3", "\\u00", "["] {
                assert!(hides(value, before, &form, "]"), "{} {}", before, form);
            }
            for behind in ["0", "00", ";", "60;"] {
                assert!(hides(value, "[", &form, behind), "{} {}", form, behind);
            }
        }
    }
}
