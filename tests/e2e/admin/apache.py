"""Apache with mod_auth_openidc in front of the console: what signs people in, and tells the admin who they are."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from e2e.admin.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider
from e2e.programs import RunningProgram, free_port

_MODULES: Final = Path("/usr/lib/apache2/modules")
_NEEDED: Final = (
    "mpm_event",
    "authn_core",
    "authz_core",
    "authz_user",
    "auth_openidc",
    "headers",
    "proxy",
    "proxy_http",
)
# What docs/operations/admin.md shows.
_SITE: Final = """
OIDCProviderMetadataURL {provider}/.well-known/openid-configuration
OIDCClientID {client_id}
OIDCClientSecret {client_secret}
OIDCRedirectURI {url}/signed-in
OIDCCryptoPassphrase of-the-sessions-of-this-test
OIDCProviderTokenEndpointAuth client_secret_post
OIDCIDTokenSignedResponseAlg HS256

<Location "/">
  AuthType openid-connect
  Require valid-user
  # In place of what the user sent.
  RequestHeader set X-Forwarded-User %{{OIDC_CLAIM_sub}}e
  RequestHeader set X-Forwarded-Groups %{{OIDC_CLAIM_groups}}e
  ProxyPass {admin}/
</Location>
<Location "/signed-in">
  ProxyPass !
</Location>
ProxyPreserveHost On
"""


@contextmanager
def signing_in_proxy(folder: Path, *, admin_url: str, provider: IdentityProvider) -> Iterator[str]:
    """Apache in front of an admin service; gives its own address."""
    program = _apache()
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    lines = [
        f"ServerRoot {folder}",
        f"PidFile {folder}/apache.pid",
        f"ErrorLog {folder}/apache-error.log",
        f"Listen 127.0.0.1:{port}",
        f"ServerName 127.0.0.1:{port}",
        *(f"LoadModule {name}_module {_MODULES}/mod_{name}.so" for name in _NEEDED),
        *(["User www-data", "Group www-data"] if os.geteuid() == 0 else []),
        _SITE.format(provider=provider.url, client_id=CLIENT_ID, client_secret=CLIENT_SECRET, url=url, admin=admin_url),
    ]
    configuration = folder / "apache.conf"
    configuration.write_text("\n".join(lines) + "\n")
    command = [program, "-f", str(configuration), "-DFOREGROUND"]
    # It answers with the way to the provider, which answers too.
    with RunningProgram("apache", command, folder=folder, ready_url=f"{url}/signed-in"):
        yield url


def _apache() -> str:
    """Path of Apache, installed with its module if it is missing and that is possible."""
    has_all = shutil.which("apache2", path=_places()) and (_MODULES / "mod_auth_openidc.so").exists()
    if not has_all and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        packages = ("apache2", "libapache2-mod-auth-openidc")
        subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=True)
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], env=quiet, check=True)
    found = shutil.which("apache2", path=_places())
    assert found is not None, "apache2 is missing; install apache2 and libapache2-mod-auth-openidc, or run as root"
    return found


def _places() -> str:
    """Debian keeps servers where only root's PATH leads."""
    return os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
