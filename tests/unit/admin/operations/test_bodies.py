"""Bodies in the form that suits them, hex always, and nothing that grows without bound."""

from __future__ import annotations

from tandemmq.admin.operations.bodies import HEX_BYTES_MAX, BodyForm, body_preview, body_view


def test_json_is_laid_out_and_keeps_its_numbers_and_doubled_keys() -> None:
    view = body_view(b'{"price":1.10,"a":[1,{}],"a":"x, {\\"y\\":1}","none":[]}')
    assert view.form is BodyForm.JSON
    assert view.text.splitlines() == [
        "{",
        '  "price": 1.10,',
        '  "a": [',
        "    1,",
        "    {}",
        "  ],",
        '  "a": "x, {\\"y\\":1}",',
        '  "none": []',
        "}",
    ]


def test_text_and_hex_of_the_same_body() -> None:
    assert body_view("Grüße\n".encode()).text == "Grüße\n"
    view = body_view(b"hello, tandem world", wanted=BodyForm.HEX)
    assert view.text.splitlines() == [
        "00000000  68 65 6c 6c 6f 2c 20 74  61 6e 64 65 6d 20 77 6f  hello, tandem wo",
        "00000010  72 6c 64                                          rld",
    ]
    assert view.forms == (BodyForm.TEXT, BodyForm.HEX)


def test_what_is_no_text_is_hex_whatever_is_wanted() -> None:
    for body in (b"\xff\xfe", b"a\x00b", "\u0085".encode()):
        view = body_view(body, wanted=BodyForm.JSON)
        assert (view.form, view.forms) == (BodyForm.HEX, (BodyForm.HEX,))


def test_beginning_that_ends_within_a_character_is_text() -> None:
    assert body_view("aaaé".encode()[:-1]).text == "aaa"


def test_deep_json_stays_text() -> None:
    for depth in (500, 20_000):
        body = b"[" * depth + b"1," * 10_000 + b"1" + b"]" * depth
        assert body_view(body).form is BodyForm.TEXT


def test_long_hex_is_cut() -> None:
    view = body_view(bytes(HEX_BYTES_MAX + 1))
    assert view.shown_bytes == HEX_BYTES_MAX
    assert len(view.text.splitlines()) == HEX_BYTES_MAX // 16


def test_previews_are_one_line() -> None:
    assert body_preview(b"a\n  b\tc") == "a b c"
    assert body_preview(b"x" * 200) == "x" * 100 + "…"
    assert body_preview(b"\x00\x01") == "00 01"
    assert body_preview(b"") == ""
