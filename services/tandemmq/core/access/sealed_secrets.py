"""Secrets at rest: sealed with a key that the operator mounts, so that a table, a backup or a replica tells nothing.

    sealed:v1:<key id>:<base64 of nonce (12) | ciphertext | tag (16)>

AES-256-GCM. The user's name is authenticated with the secret, so that nobody who can write a table gives one user the
secret of another. A key file holds keys of 32 bytes in base64, one a line: the first seals, all of them open. To change
the key, put a new one on top, set each user's secret anew, and take the old line away.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32
_KEYS_MAX: Final = 16
_VERSION: Final = "sealed:v1"


class KeysUnreadable(ValueError):
    """The key file holds no keys; the message says what it should hold. The operator's fault."""


class CannotOpen(ValueError):
    """A secret was sealed with a key that is not in the file, or its text was changed. The message names the key."""


class SecretKeys:
    """The keys of one file. Neither `repr` nor pickles show them."""

    __slots__ = ("_ciphers", "_first", "_link_key")

    def __init__(self, keys: list[bytes]) -> None:
        self._ciphers: Final = {_key_id(key): AESGCM(key) for key in keys}
        self._first: Final = _key_id(keys[0])
        self._link_key: Final = [hmac.digest(key, b"tandemmq: who a forwarded call is from", "sha256") for key in keys]

    @classmethod
    def parse(cls, text: str) -> SecretKeys:
        """Reads a key file. Raises KeysUnreadable, which does not show what is in it."""
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        keys: list[bytes] = []
        for number, line in enumerate(lines, 1):
            try:
                key = base64.b64decode(line, validate=True)
            except (binascii.Error, ValueError):
                key = b""
            if len(key) != _KEY_BYTES:
                raise KeysUnreadable(
                    f"key {number} is not {_KEY_BYTES} bytes in base64; make one: openssl rand -base64 {_KEY_BYTES}"
                )
            keys.append(key)
        if not 1 <= len(keys) <= _KEYS_MAX:
            raise KeysUnreadable(f"it holds {len(keys)} keys; put 1 to {_KEYS_MAX} there, one a line")
        return cls(keys)

    def seal(self, username: str, secret: str, *, nonce: bytes) -> str:
        """The secret of a user as it may be written down. `nonce`: 12 bytes of chance, never the same twice."""
        assert len(nonce) == NONCE_BYTES, "AES-GCM's nonce"
        box = self._ciphers[self._first].encrypt(nonce, secret.encode(), username.encode())
        return f"{_VERSION}:{self._first}:{base64.b64encode(nonce + box).decode()}"

    def open(self, username: str, sealed: str) -> bytes:
        """The secret in UTF-8. Raises CannotOpen."""
        head, _, box_text = sealed.rpartition(":")
        version, _, key_id = head.rpartition(":")
        cipher = self._ciphers.get(key_id)
        if version != _VERSION or cipher is None:
            raise CannotOpen(
                f"the secret of {username} was sealed with key {key_id[:8]!r}, which is not in the key file"
            )
        try:
            box = base64.b64decode(box_text, validate=True)
            return cipher.decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], username.encode())
        except (binascii.Error, ValueError, InvalidTag) as error:
            raise CannotOpen(f"the sealed secret of {username} was changed, or is another user's") from error

    # Between brokers

    def link_mark(self, text: str) -> str:
        """What only a holder of the file can put to `text`: brokers tell each other so whom a call is from."""
        return hmac.digest(self._link_key[0], text.encode(), "sha256").hex()

    def is_link_mark(self, text: str, mark: str) -> bool:
        """Whether a holder of the file put it there."""
        expected = [hmac.digest(key, text.encode(), "sha256").hex() for key in self._link_key]
        return any(hmac.compare_digest(one.encode(), mark.encode()) for one in expected)

    def __repr__(self) -> str:
        return f"SecretKeys({len(self._ciphers)} keys)"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("keys are not pickled")


def _key_id(key: bytes) -> str:
    """Tells keys apart, and nothing else of them."""
    return hashlib.sha256(b"tandemmq key id" + key).hexdigest()[:8]
