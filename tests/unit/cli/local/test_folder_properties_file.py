from __future__ import annotations

from tandemmq.cli.local.folder import parse_properties, with_values

_TEXT = "# a comment = not a value\nbrokerName = broker-a\n\nnamesrvAddr=127.0.0.1:9876;127.0.0.1:9877\n"


def test_comments_and_blank_lines_are_no_values() -> None:
    assert parse_properties(_TEXT) == {
        "brokerName": "broker-a",
        "namesrvAddr": "127.0.0.1:9876;127.0.0.1:9877",
    }


def test_last_of_two_values_counts() -> None:
    assert parse_properties("a=1\na=2\n") == {"a": "2"}


def test_changed_values_keep_their_place_and_comments() -> None:
    assert with_values(_TEXT, {"brokerName": "broker-b"}) == _TEXT.replace(
        "brokerName = broker-a", "brokerName=broker-b"
    )


def test_missing_key_is_appended() -> None:
    assert with_values("a=1\n", {"b": "2"}) == "a=1\nb=2\n"
