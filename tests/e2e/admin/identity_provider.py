"""An OpenID Connect provider that signs everybody in as whoever the test says: discovery, code, token, user info."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit

CLIENT_ID: Final = "console"
CLIENT_SECRET: Final = "shared-by-provider-and-proxy-in-this-test"
_ID_TOKEN_S: Final = 600


@dataclass
class IdentityProvider:
    """Who signs in next is `user`, with `groups`."""

    url: str
    user: str = "ada"
    groups: tuple[str, ...] = ()
    # Of the answers that were given: code -> nonce, user, groups.
    _signed_in: dict[str, tuple[str, str, tuple[str, ...]]] = field(default_factory=dict)

    def discovery(self) -> dict[str, object]:
        """What a relying party is told first."""
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "jwks_uri": f"{self.url}/keys",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["HS256"],
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
        }

    def sign_in(self, query: dict[str, str]) -> str:
        """Where the browser goes on, with a code for the proxy."""
        code = f"code-{len(self._signed_in)}"
        self._signed_in[code] = (query.get("nonce", ""), self.user, self.groups)
        return f"{query['redirect_uri']}?code={code}&state={quote(query['state'])}"

    def token(self, form: dict[str, str]) -> dict[str, object]:
        """Proof of who it was, signed with the secret that provider and proxy share."""
        assert (form["client_id"], form["client_secret"]) == (CLIENT_ID, CLIENT_SECRET)
        nonce, user, groups = self._signed_in[form["code"]]
        now = int(time.time())
        claims = {
            "iss": self.url,
            "sub": user,
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + _ID_TOKEN_S,
            "nonce": nonce,
            "groups": list(groups),
        }
        return {"access_token": form["code"], "token_type": "Bearer", "id_token": _signed(claims)}

    def user_info(self, access_token: str) -> dict[str, object]:
        """The same claims over the back channel."""
        _, user, groups = self._signed_in[access_token]
        return {"sub": user, "groups": list(groups)}


@contextmanager
def identity_provider() -> Iterator[IdentityProvider]:
    """The provider on a port of loopback, for as long as the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, query = urlsplit(self.path).path, _fields(urlsplit(self.path).query)
            if path == "/.well-known/openid-configuration":
                self._answer(provider.discovery())
            elif path == "/keys":
                self._answer({"keys": []})
            elif path == "/userinfo":
                self._answer(provider.user_info(self.headers["Authorization"].removeprefix("Bearer ")))
            elif path == "/authorize":
                self.send_response(302)
                self.send_header("Location", provider.sign_in(query))
                self.end_headers()
            else:
                self.send_error(404)

        def do_POST(self) -> None:
            form = _fields(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self._answer(provider.token(form))

        def _answer(self, document: dict[str, object]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider = IdentityProvider(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()


def _signed(claims: dict[str, object]) -> str:
    head = {"alg": "HS256", "typ": "JWT"}
    text = ".".join(_base64(json.dumps(part).encode()) for part in (head, claims))
    signature = hmac.digest(CLIENT_SECRET.encode(), text.encode(), hashlib.sha256)
    return f"{text}.{_base64(signature)}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _fields(text: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(text, keep_blank_values=True).items()}
