"""HPACK against RFC 7541's own examples and the `hpack` package."""

from __future__ import annotations

import hpack
import pytest
from hpack.huffman_table import decode_huffman
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.http2.frames import timeout_s
from tandemmq.http2.hpack import (
    TABLE_BYTES,
    Header,
    HeaderBlockError,
    HeaderDecoder,
    HeaderEncoder,
    decode,
    literal,
    measure,
)

TEXT = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=200)
NAME = st.from_regex(r"\A[a-z0-9_.-]{1,40}\Z")
HEADERS = st.lists(
    st.one_of(
        st.tuples(NAME, TEXT),
        st.sampled_from(
            [(":method", "POST"), (":path", "/"), (":status", "200"), ("te", "trailers"), ("x-mq", "a" * 300)]
        ),
    ),
    max_size=30,
)


def fields(headers: list[Header]) -> list[tuple[str, str]]:
    """As the `hpack` package has them."""
    return [(header.name, header.value) for header in headers]


# RFC 7541, C.3 and C.4: three requests on one connection, without and with Huffman's code.
REQUESTS = (
    [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
    [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
        ("cache-control", "no-cache"),
    ],
    [
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ],
)
PLAIN = (
    "828684410f7777772e6578616d706c652e636f6d",
    "828684be58086e6f2d6361636865",
    "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
)
HUFFMAN = (
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
)


@pytest.mark.parametrize("blocks", [PLAIN, HUFFMAN], ids=["plain", "huffman"])
def test_requests_of_rfc_7541_appendix_c(blocks: tuple[str, ...]) -> None:
    decoder = HeaderDecoder()
    assert [fields(decoder.decode(bytes.fromhex(block))) for block in blocks] == list(REQUESTS)


@pytest.mark.parametrize(
    ("block", "headers"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", [("custom-key", "custom-header")]),
        ("040c2f73616d706c652f70617468", [(":path", "/sample/path")]),
        ("100870617373776f726406736563726574", [("password", "secret")]),
        ("82", [(":method", "GET")]),
    ],
    ids=["C.2.1", "C.2.2", "C.2.3", "C.2.4"],
)
def test_header_field_of_rfc_7541_appendix_c_2(block: str, headers: list[tuple[str, str]]) -> None:
    assert fields(HeaderDecoder().decode(bytes.fromhex(block))) == headers


@given(st.lists(st.tuples(HEADERS, st.booleans()), max_size=8))
def test_decodes_what_the_hpack_package_encodes(blocks: list[tuple[list[tuple[str, str]], bool]]) -> None:
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    for headers, uses_huffman in blocks:
        assert fields(decoder.decode(encoder.encode(headers, huffman=uses_huffman))) == headers
        assert not decoder.malformed


@given(st.lists(st.tuples(HEADERS, st.integers(0, TABLE_BYTES)), min_size=1, max_size=8))
def test_follows_the_peer_s_table_through_resizes(blocks: list[tuple[list[tuple[str, str]], int]]) -> None:
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    for headers, table_bytes in blocks:
        encoder.header_table_size = table_bytes
        assert fields(decoder.decode(encoder.encode(headers))) == headers


@given(st.binary(max_size=200))
def test_decodes_or_refuses_any_bytes_as_the_hpack_package_does(block: bytes) -> None:
    ours, theirs = HeaderDecoder(), hpack.Decoder()
    theirs.max_allowed_table_size = TABLE_BYTES
    try:
        expected = [(bytes(n).decode("latin-1"), bytes(v).decode("latin-1")) for n, v in theirs.decode(block, raw=True)]
    except (hpack.HPACKError, UnicodeDecodeError):
        expected = None
    try:
        found = fields(ours.decode(block))
    except HeaderBlockError:
        found = None
    if expected is None or found is None:
        # Ours is stricter in two places the RFC leaves open: the length of integers and a size update's place.
        assert found is None or expected is None
        assert expected is None or _has_long_integer_or_late_resize(block)
        return
    assert found == expected


def _has_long_integer_or_late_resize(block: bytes) -> bool:
    return any(0x20 <= byte < 0x40 for byte in block) or block.count(b"\x80") + sum(b > 0x80 for b in block) >= 4


@pytest.mark.parametrize(
    "block",
    [
        "80",  # index 0
        "be",  # an empty dynamic table
        "ff",  # an index that does not end
        "ffffffffff7f",  # an index out of range
        "41",  # a literal without its value
        "4105616263",  # a value beyond the end
        "3fe21f",  # a table of 4097 bytes
        "8220",  # a size update behind a header
        "4181ff41",  # more than 7 bits of padding
        "00 84 ffffffff 00",  # the end-of-string symbol
        "00 81 00 00",  # padding of zeros
    ],
)
def test_refuses_a_malformed_block(block: str) -> None:
    with pytest.raises(HeaderBlockError):
        HeaderDecoder().decode(bytes.fromhex(block))


def test_an_entry_larger_than_the_table_empties_it() -> None:
    decoder = HeaderDecoder()
    decoder.decode(b"\x40\x01a\x01b")
    decoder.decode(b"\x40\x01n" + b"\x7f\x81\x1f" + b"x" * 4096)
    with pytest.raises(HeaderBlockError):
        decoder.decode(b"\xbe")


@pytest.mark.parametrize("field", [b"\x40\x01A\x01b", b"\x40\x01a\x02b\n", b"\x40\x00\x01b", b"\x40\x03a b\x01c"])
def test_a_malformed_header_stays_malformed_when_it_comes_from_the_table(field: bytes) -> None:
    decoder = HeaderDecoder()
    decoder.decode(field)
    assert decoder.malformed
    decoder.decode(b"\x82")
    assert not decoder.malformed
    decoder.decode(b"\xbe")
    assert decoder.malformed


@given(st.lists(st.tuples(HEADERS, st.sampled_from(["", "\n", "\xff"])), max_size=12), st.booleans())
def test_counts_and_judges_each_list_whatever_the_one_before_it(
    blocks: list[tuple[list[tuple[str, str]], str]], has_table: bool
) -> None:
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    encoder.header_table_size = TABLE_BYTES if has_table else 0
    for headers, bad in blocks:
        sent = [(name.encode(), value.encode()) for name, value in headers]
        if bad:
            sent.append((b"x-bad", bad.encode("latin-1")))
        found = decoder.decode(encoder.encode(sent))
        assert [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields(found)] == sent
        assert decoder.list_bytes == sum(len(name) + len(value) + 32 for name, value in sent)
        assert decoder.malformed == bool(bad)


@given(st.lists(HEADERS, max_size=12), st.booleans())
def test_a_block_tells_whether_its_names_are_those_of_the_one_before(
    blocks: list[list[tuple[str, str]]], has_table: bool
) -> None:
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    encoder.header_table_size = TABLE_BYTES if has_table else 0
    before: list[str] = []
    for headers in blocks:
        decoder.decode(encoder.encode(headers))
        names = [name for name, _ in headers]
        assert decoder.same_names == (names == before != [])
        is_kept = sum(len(name) + len(value) + 32 for name, value in headers) <= TABLE_BYTES
        before = names if is_kept else []


def test_no_names_are_not_the_same_as_those_of_a_block_that_was_not_kept() -> None:
    decoder = HeaderDecoder()
    decoder.decode(literal("te", "\n"))
    assert decoder.malformed
    decoder.decode(b"")
    assert not decoder.same_names


@given(st.lists(HEADERS, min_size=2, max_size=8))
def test_a_list_once_given_stays_as_it_was(blocks: list[list[tuple[str, str]]]) -> None:
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    found = [decoder.decode(encoder.encode(headers)) for headers in blocks]
    assert [fields(headers) for headers in found] == blocks


def test_keeps_no_large_list_for_the_next_block() -> None:
    decoder = HeaderDecoder()
    large = decoder.decode(literal("x", "y" * TABLE_BYTES))
    assert len(decoder.decode(b"\x82")) == 1
    assert not decoder.same_names
    assert len(large[0].value) == TABLE_BYTES


def test_a_value_behind_a_malformed_name_of_the_table_is_malformed() -> None:
    decoder = HeaderDecoder()
    decoder.decode(b"\x40\x01A\x01b")
    decoder.decode(b"\x7e\x01c")  # a literal with the name of the newest entry
    assert decoder.malformed


def test_a_malformed_value_spoils_only_itself() -> None:
    decoder = HeaderDecoder()
    decoder.decode(b"\x40\x01a\x01\n")
    assert decoder.malformed
    decoder.decode(b"\x7e\x01c")
    assert not decoder.malformed


@pytest.mark.parametrize("tail", [b"\x82" * 40, b"\x00\x01a\x01b"])
def test_reads_nothing_behind_the_end_of_a_block_inside_a_frame(tail: bytes) -> None:
    for block in (b"\xff", b"\x41", b"\x7f", b"\x40\x01a", b"\x40\x05ab", b"\x0f", b"\x3f", b"\x41\x82\xf2"):
        with pytest.raises(HeaderBlockError):
            HeaderDecoder().decode(b"\x00" + block + tail, 1, 1 + len(block))


# Huffman


@given(st.binary(max_size=300), st.binary(max_size=3), st.binary(max_size=3))
def test_huffman_round_trip(text: bytes, before: bytes, behind: bytes) -> None:
    encoder = hpack.huffman.HuffmanEncoder(
        hpack.huffman_constants.REQUEST_CODES, hpack.huffman_constants.REQUEST_CODES_LENGTH
    )
    code = encoder.encode(text)
    measured = measure(before + code + behind, len(before), len(before) + len(code))
    assert measured >> 1 == len(text)
    assert measured & 1 == any(not 0x20 <= byte < 0x7F for byte in text)
    assert decode(code) == text.decode("latin-1")


def test_huffman_texts_are_right_however_many_were_met() -> None:
    encoder = hpack.huffman.HuffmanEncoder(
        hpack.huffman_constants.REQUEST_CODES, hpack.huffman_constants.REQUEST_CODES_LENGTH
    )
    for number in (*range(3_000), *range(100)):
        text = f"{2_990_000 + number}u"
        assert decode(encoder.encode(text.encode())) == text
        assert timeout_s(text) == pytest.approx(2.99 + number * 1e-6)


@given(st.binary(max_size=30))
def test_takes_the_huffman_codes_that_the_hpack_package_takes(code: bytes) -> None:
    try:
        expected = decode_huffman(code)
    except hpack.HPACKDecodingError:
        with pytest.raises(HeaderBlockError):
            measure(code, 0, len(code))
    else:
        assert measure(code, 0, len(code)) >> 1 == len(expected)
        assert decode(code) == expected.decode("latin-1")


# The encoder


def oracle(decoder: hpack.Decoder, block: bytes) -> list[tuple[str, str]]:
    """What the `hpack` package makes of a block."""
    return [(str(name), str(value)) for name, value in decoder.decode(block)]


def test_answers_are_what_the_hpack_package_decodes_and_shrink() -> None:
    encoder, decoder = HeaderEncoder(), hpack.Decoder()
    response = [(":status", "200"), ("content-type", "application/grpc")]
    for _ in range(3):
        head, ok = encoder.response(), encoder.ok()
        assert oracle(decoder, head) == response
        assert oracle(decoder, ok) == [("grpc-status", "0")]
    assert (len(head), len(ok)) == (2, 1)


@given(st.lists(st.sampled_from(["response", "ok", "block", "small", "none", "default", "large"]), max_size=20))
def test_answers_stay_decodable_whatever_table_the_peer_announces(steps: list[str]) -> None:
    encoder, decoder = HeaderEncoder(), hpack.Decoder()
    sizes = {"small": 100, "none": 0, "default": TABLE_BYTES, "large": 65_536}
    for step in steps:
        if step in sizes:
            encoder.peer_table_bytes(sizes[step])
            decoder.max_allowed_table_size = sizes[step]
        elif step == "response":
            assert oracle(decoder, encoder.response()) == [(":status", "200"), ("content-type", "application/grpc")]
        elif step == "ok":
            assert oracle(decoder, encoder.ok()) == [("grpc-status", "0")]
        else:
            assert oracle(decoder, encoder.block(literal("grpc-status", "5"))) == [("grpc-status", "5")]


@given(NAME, TEXT)
def test_a_literal_round_trips(name: str, value: str) -> None:
    assert fields(HeaderDecoder().decode(literal(name, value))) == [(name, value)]
    assert oracle(hpack.Decoder(), literal(name, value)) == [(name, value)]
