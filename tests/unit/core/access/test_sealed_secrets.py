"""Secrets at rest."""

from __future__ import annotations

import base64
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.access.sealed_secrets import CannotOpen, KeysUnreadable, SecretKeys

OLD, NEW = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
NONCE = bytes(range(12))


@given(st.text(min_size=1, max_size=300).filter(lambda text: text.isprintable()))
def test_a_secret_comes_back_for_its_user_alone(secret: str) -> None:
    keys = SecretKeys.parse(OLD)
    sealed = keys.seal("ann", secret, nonce=NONCE)
    assert keys.open("ann", sealed) == secret.encode()
    with pytest.raises(CannotOpen, match="bob"):
        keys.open("bob", sealed)


def test_a_sealed_secret_does_not_show() -> None:
    sealed = SecretKeys.parse(OLD).seal("ann", "open sesame", nonce=NONCE)
    assert "open sesame" not in sealed
    assert b"open sesame" not in base64.b64decode(sealed.rpartition(":")[2])


def test_an_older_key_opens_and_the_first_seals() -> None:
    before = SecretKeys.parse(OLD).seal("ann", "open sesame", nonce=NONCE)
    keys = SecretKeys.parse(f"# newest first\n{NEW}\n\n{OLD}\n")
    assert keys.open("ann", before) == b"open sesame"
    after = keys.seal("ann", "open sesame", nonce=NONCE)
    assert SecretKeys.parse(NEW).open("ann", after) == b"open sesame"
    with pytest.raises(CannotOpen, match="not in the key file"):
        SecretKeys.parse(NEW).open("ann", before)


@given(st.binary(max_size=60), st.text(max_size=20))
def test_no_changed_text_opens_or_breaks(box: bytes, text: str) -> None:
    keys = SecretKeys.parse(OLD)
    head = keys.seal("ann", "open sesame", nonce=NONCE).rpartition(":")[0]
    for sealed in (f"{head}:{base64.b64encode(box).decode()}", f"{head}:{text}", text):
        with pytest.raises(CannotOpen):
            keys.open("ann", sealed)


@pytest.mark.parametrize(
    "text", ["", "# nothing", "short", base64.b64encode(b"x" * 31).decode(), f"{OLD}\nnot base64!"]
)
def test_a_file_without_keys_is_told_how_to_get_one_and_not_shown(text: str) -> None:
    with pytest.raises(KeysUnreadable) as failure:
        SecretKeys.parse(text)
    assert "keys" in str(failure.value) or "openssl" in str(failure.value)
    assert OLD not in str(failure.value)


def test_keys_are_neither_shown_nor_pickled() -> None:
    keys = SecretKeys.parse(OLD)
    assert OLD not in repr(keys)
    with pytest.raises(TypeError):
        pickle.dumps(keys)


def test_a_mark_between_brokers_is_a_key_holder_s() -> None:
    keys = SecretKeys.parse(f"{NEW}\n{OLD}")
    mark = SecretKeys.parse(OLD).link_mark("from ann")
    assert keys.is_link_mark("from ann", mark), "a broker that has the old key alone, while keys change"
    assert not keys.is_link_mark("from bob", mark)
    assert not keys.is_link_mark("from ann", "")
