use super::*;

fn asked(fields: &str) -> String {
    let text = format!("GET / HTTP/1.1\r\n{}\r\n", fields);
    let mut head = head::request(text.as_bytes()).unwrap().unwrap().0;
    ask_for_whole_text(&mut head);
    let text = String::from_utf8(head.to_bytes()).unwrap();
    text.trim_end()
        .split("\r\n")
        .skip(1)
        .collect::<Vec<_>>()
        .join("|")
}

#[test]
fn a_host_of_secrets_is_asked_for_whole_text() {
    let fields = [
        "Range",
        "If-Range",
        "Request-Range",
        "x-ms-range",
        "X_Range",
        "Accept_Encoding",
        "accept.encoding",
        "Accept-Charset",
        "A-IM",
        "Want-Digest",
        "Want_Repr-Digest",
        "Sec-WebSocket-Extensions",
    ];
    for name in fields {
        assert_eq!(
            asked(&format!("{}: x\r\n", name)),
            "Accept-Encoding: identity",
            "{}",
            name
        );
    }
    assert_eq!(
        asked(
            "Accept: text/plain;charset=ibm037;q=1, a/b ; Charset = utf-7\r\nContent-Range: x\r\n"
        ),
        "Content-Range: x|Accept-Encoding: identity|Accept: text/plain;q=1, a/b"
    );
    assert_eq!(
        asked("Accept: text/html;q=0.9, */*\r\n"),
        "Accept: text/html;q=0.9, */*|Accept-Encoding: identity"
    );
}
