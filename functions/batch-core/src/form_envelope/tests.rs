//! Envelopes as the SDKs send them, hostile ones, and random ones.

use proptest::prelude::*;

use super::*;

/// Looks at a whole form through the two windows that a store would read.
fn open(form: &[u8]) -> Result<&[u8], EnvelopeFault> {
    let head = &form[..form.len().min(HEAD_BYTES)];
    let tail = &form[form.len().saturating_sub(TAIL_BYTES)..];
    let range = payload(head, tail, form.len() as u64)?;
    Ok(&form[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()])
}

fn form(boundary: &str, headers: &str, payload: &[u8]) -> Vec<u8> {
    let (start, end) = (
        format!("--{boundary}\r\n{headers}\r\n\r\n"),
        format!("\r\n--{boundary}--\r\n"),
    );
    [start.as_bytes(), payload, end.as_bytes()].concat()
}

const HEADER: &str = "Content-Disposition: form-data; name=\"data\"";

#[test]
fn recorded_envelopes_of_the_sdks_are_opened() {
    let recorded: [(&str, &[u8], &[u8]); 4] = [
        (
            "openai-python 3.57.0, bytes",
            b"--89ac5a40d10285561527baa0dd38b17d\r\nContent-Disposition: form-data; name=\"data\"; filename=\"upload\"\r\nContent-Type: application/octet-stream\r\n\r\nline 1\nline 2\n\r\n--89ac5a40d10285561527baa0dd38b17d--\r\n",
            b"line 1\nline 2\n",
        ),
        (
            "openai-python 1.109.1, a tuple with a name",
            b"--21ee308f51852bb3daed65cf4efdec8b\r\nContent-Disposition: form-data; name=\"data\"; filename=\"a %22q%22 \xc3\xa9.jsonl\"\r\nContent-Type: application/jsonl\r\n\r\nx\r\n--y\r\n\r\n--21ee308f51852bb3daed65cf4efdec8b--\r\n",
            b"x\r\n--y\r\n",
        ),
        (
            "openai-node 6.49.0, a File",
            b"------formdata-undici-082610646243\r\nContent-Disposition: form-data; name=\"data\"; filename=\"a.jsonl\"\r\nContent-Type: application/octet-stream\r\n\r\nline 1\nline 2\n\r\n------formdata-undici-082610646243--\r\n",
            b"line 1\nline 2\n",
        ),
        (
            "openai-node 6.49.0, a stream",
            b"--openai-04bihu7lcbgk\r\nContent-Disposition: form-data; name=\"data\"; filename=\"in.jsonl\"\r\nContent-Type: application/octet-stream\r\n\r\nline 1\nline 2\n\r\n--openai-04bihu7lcbgk--\r\n",
            b"line 1\nline 2\n",
        ),
    ];
    for (client, form, expected) in recorded {
        assert_eq!(open(form), Ok(expected), "{client}");
    }
}

#[test]
fn the_last_line_end_may_be_missing() {
    let whole = form("b", HEADER, b"{}");
    assert_eq!(open(&whole[..whole.len() - 2]), Ok(&b"{}"[..]));
}

#[test]
fn an_empty_part_is_opened() {
    assert_eq!(open(&form("b", HEADER, b"")), Ok(&b""[..]));
}

#[test]
fn names_are_read_in_any_spelling() {
    for header in [
        "content-disposition:form-data;name=data",
        "Content-Disposition: Form-Data; NAME=\"data\"",
        "Content-Disposition: form-data; filename=\"a;b=\\\"name=x\\\"\"; name=\"data\"",
        "Content-Disposition: form-data; filename=\"C:\\temp\\in.jsonl\"; name=\"data\"",
        "Content-Type: text/plain\r\nContent-Disposition: form-data; name=\"data\"",
        "Content-Disposition: form-data; name=\"data\"\r\nContent-Transfer-Encoding: Binary",
    ] {
        assert_eq!(
            open(&form("b", header, b"text")),
            Ok(&b"text"[..]),
            "{header}"
        );
    }
}

#[test]
fn forms_that_are_not_one_field_of_data_are_refused() {
    use EnvelopeFault as Fault;
    let whole = form("b", HEADER, b"text");
    let two = [
        &form("b", HEADER, b"text")[..whole.len() - "--\r\n".len()],
        b"\r\nContent-Disposition: form-data; name=\"more\"\r\n\r\nx\r\n--b--\r\n",
    ]
    .concat();
    let long_header = format!("{HEADER}\r\nX: {}", "x".repeat(HEAD_BYTES));
    let cases: Vec<(&str, Vec<u8>, Fault)> = vec![
        ("nothing", Vec::new(), Fault::NoBoundary),
        (
            "raw lines",
            b"{\"custom_id\":1}\r\n".to_vec(),
            Fault::NoBoundary,
        ),
        ("no hyphens", b"b\r\n\r\n".to_vec(), Fault::NoBoundary),
        (
            "an empty boundary",
            form("", HEADER, b"x"),
            Fault::NoBoundary,
        ),
        ("a control", form("b\x07", HEADER, b"x"), Fault::NoBoundary),
        (
            "line feeds alone",
            String::from_utf8(whole.clone())
                .unwrap()
                .replace("\r\n", "\n")
                .into_bytes(),
            Fault::NoBoundary,
        ),
        (
            "a line feed in the headers",
            form("b", &format!("X: y\n{HEADER}"), b"x"),
            Fault::BadHeader,
        ),
        (
            "endless headers",
            form("b", &long_header, b"x"),
            Fault::NoHeaderEnd,
        ),
        (
            "no headers",
            b"--b\r\n\r\ntext\r\n--b--\r\n".to_vec(),
            Fault::NoHeaderEnd,
        ),
        (
            "another name",
            form("b", &HEADER.replace("\"data\"", "\"file\""), b"x"),
            Fault::OtherField,
        ),
        (
            "no name",
            form("b", "Content-Disposition: form-data", b"x"),
            Fault::OtherField,
        ),
        (
            "no disposition",
            form("b", "Content-Type: text/plain", b"x"),
            Fault::OtherField,
        ),
        (
            "two dispositions",
            form("b", &format!("{HEADER}\r\n{HEADER}"), b"x"),
            Fault::BadHeader,
        ),
        (
            "two names",
            form("b", &format!("{HEADER}; name=\"data\""), b"x"),
            Fault::BadHeader,
        ),
        (
            "an open quote",
            form("b", "Content-Disposition: form-data; name=\"data", b"x"),
            Fault::BadHeader,
        ),
        (
            "an attachment",
            form("b", &HEADER.replace("form-data", "attachment"), b"x"),
            Fault::BadHeader,
        ),
        (
            "base64",
            form(
                "b",
                &format!("{HEADER}\r\nContent-Transfer-Encoding: base64"),
                b"eA==",
            ),
            Fault::Encoded("base64".to_owned()),
        ),
        ("two fields", two, Fault::MoreFields),
        (
            "two ends",
            [&whole[..], &form("b", HEADER, b"x")].concat(),
            Fault::MoreFields,
        ),
        (
            "text after the end",
            [&whole[..], b"more"].concat(),
            Fault::NoEnd,
        ),
        (
            "another end",
            form("b", HEADER, b"x").replace_end(b"--c--\r\n"),
            Fault::NoEnd,
        ),
    ];
    for (name, form, fault) in cases {
        assert_eq!(open(&form), Err(fault), "{name}");
    }
}

trait ReplaceEnd {
    fn replace_end(self, end: &[u8]) -> Self;
}

impl ReplaceEnd for Vec<u8> {
    fn replace_end(mut self, end: &[u8]) -> Self {
        self.truncate(self.len() - end.len());
        self.extend_from_slice(end);
        self
    }
}

#[test]
fn a_form_that_broke_off_is_refused_wherever_it_broke() {
    let whole = form(
        "----formdata-undici-082610646243",
        HEADER,
        b"a line\r\n--\r\nand another",
    );
    // The last line end may be missing.
    for len in 0..whole.len() - 2 {
        assert!(open(&whole[..len]).is_err(), "{len}");
    }
    assert!(open(&whole[..whole.len() - 2]).is_ok());
}

#[test]
fn large_parts_are_found_by_their_edges() {
    let payload = b"0123456789abcdef".repeat(1024 * 1024 / 16);
    let form = form("b", HEADER, &payload);
    assert!(open(&form) == Ok(&payload[..]));
}

fn boundaries() -> impl Strategy<Value = String> {
    "[0-9A-Za-z'()+_,./:=?-]{1,70}"
}

/// Bytes that are rich in line ends, hyphens and beginnings of the boundary.
fn payloads(boundary: String) -> impl Strategy<Value = (String, Vec<u8>)> {
    let near = boundary.clone();
    let piece = prop_oneof![
        Just(b"\r\n--".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"--".to_vec()),
        Just(format!("\r\n--{}", &near[..near.len() - 1]).into_bytes()),
        Just(format!("--{near}--").into_bytes()),
        Just(format!("\r\n --{near}\r\n").into_bytes()),
        proptest::collection::vec(any::<u8>(), 0..3000),
    ];
    proptest::collection::vec(piece, 0..8)
        .prop_map(move |pieces| (boundary.clone(), pieces.concat()))
}

proptest! {
    #[test]
    fn payloads_come_back_byte_for_byte(
        (boundary, payload) in boundaries().prop_flat_map(payloads),
        epilogue in "[ \t]{0,3}(\r\n[ \r\n]{0,4})?",
    ) {
        // A sender picks a boundary that its payload does not hold.
        let delimiter = format!("\r\n--{boundary}");
        let framed = [b"\r\n", payload.as_slice(), b"\r\n--"].concat();
        prop_assume!(memmem::find(&framed[2..], delimiter.as_bytes()).is_none());
        let mut form = form(&boundary, HEADER, &payload);
        form.truncate(form.len() - 2);
        form.extend_from_slice(epilogue.as_bytes());
        prop_assert_eq!(open(&form), Ok(payload.as_slice()));
    }

    #[test]
    fn random_bytes_never_panic(
        head in proptest::collection::vec(any::<u8>(), 0..64),
        tail in proptest::collection::vec(any::<u8>(), 0..64),
        bytes in any::<u64>(),
    ) {
        let head = [b"--b\r\nContent-Disposition: form-data; name=data\r\n\r\n".as_slice(), &head].concat();
        let tail = [tail.as_slice(), b"\r\n--b--"].concat();
        if let Ok(range) = payload(&head, &tail, bytes) {
            prop_assert!(range.start <= range.end);
        }
    }
}
