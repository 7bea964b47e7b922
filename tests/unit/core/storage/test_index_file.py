"""What an index holds for a message, beside the hash of the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.storage.index_file import key_hash, tag_hash, term_hashes

TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="abcXYZ0189_-%", max_size=200),
    st.text(alphabet="a\ud800\udc00", max_size=4),  # Java's strings may hold half a surrogate pair.
)


@given(topic=TEXTS, keys=st.lists(TEXTS, max_size=4), tag=st.none() | TEXTS)
def test_the_hashes_are_those_that_a_search_asks_for(topic: str, keys: list[str], tag: str | None) -> None:
    expected = [key_hash(topic, key) for key in keys] + ([tag_hash(topic, tag)] if tag else [])
    assert term_hashes(topic, keys, tag) == expected
    assert term_hashes(topic, keys, tag) == expected


def test_more_tags_and_topics_than_are_remembered() -> None:
    for number in range(1_100):
        assert term_hashes("orders", (), f"tag-{number}") == [tag_hash("orders", f"tag-{number}")]
    for number in range(16_500):
        term_hashes(f"topic-{number}", (), None)
    assert term_hashes("orders", ("id-1",), None) == [key_hash("orders", "id-1")]
