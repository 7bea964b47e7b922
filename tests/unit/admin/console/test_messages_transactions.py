"""The page of undecided transactions: ended after a look, by operators."""

from __future__ import annotations

from support.console_client import console_of
from support.fake_operations import FakeOperations
from tandemmq.admin.audit_log import Role
from tandemmq.admin.console.messages import add_transaction_pages
from tandemmq.admin.operations.values import Unseen

_console = console_of(add_transaction_pages)


async def test_undecided_ones_are_shown() -> None:
    operations = FakeOperations()
    operations.unseen = (Unseen("broker-b:0", "does not answer"),)
    async with _console(operations) as console:
        page = await console.get("/transactions")
        assert "PAY-1 orders" in page.text
        assert "PAY-2 refunds" in page.text
        assert "broker-b:0 does not answer" in page.text
        only = await console.get("/transactions?search=refunds")
        assert "PAY-1" not in only.text
    async with _console(FakeOperations(empty=True)) as console:
        assert "Every one was committed or rolled back" in (await console.get("/transactions")).text


async def test_one_is_ended_after_a_look() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        review = await console.post("/transactions/resolve", {"transaction_id": "djE=", "end": "commit"})
        assert "Commit a transaction" in review.text
        assert "PAY-1" in review.text
        assert operations.cluster.ended == {}
        done = await console.post("/transactions/resolve", review.fields())
        assert done.address == "/transactions"
        assert "The transaction of message PAY-1 was committed." in done.text
        assert operations.cluster.ended == {"djE=": "commit"}
        fields = {"transaction_id": "djE=", "end": "rollback"}
        contrary = await console.post("/transactions/resolve", fields, status=409)
        assert "it ended by commit" in contrary.text


async def test_a_viewer_ends_nothing() -> None:
    operations = FakeOperations()
    async with _console(operations, role=Role.VIEWER) as console:
        fields = {"transaction_id": "djE=", "end": "commit", "confirm": "true"}
        await console.post("/transactions/resolve", fields, status=403)
    assert operations.cluster.ended == {}
