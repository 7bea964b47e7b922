"""What holds for every integration test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling, Scheduling

from support.process_template import share_imports

# Minutes of tests, each with a cluster of its own.
_SPREAD: Final = ("tests/integration/test_failover.py",)


class _FilesTogether(LoadFileScheduling):
    """A file's tests share what they start, so they stay in one process; those that share nothing fill the gaps."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(_SPREAD) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """With `--dist loadfile`; other ways are as they are."""
    return _FilesTogether(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def _services_share_their_imports() -> Iterator[None]:
    with share_imports():
        yield
