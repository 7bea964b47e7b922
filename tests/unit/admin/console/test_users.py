"""The page of users and policies: changed after a look, by operators; no page holds a secret."""

from __future__ import annotations

from support.console_client import console_of
from support.fake_operations import FakeOperations
from tandemmq.admin.audit_log import Role
from tandemmq.admin.console.users import add_user_pages, user_rows
from tandemmq.admin.operations.values import Acl, AclEntry, Unseen, User

_SECRET = "planted-secret"


_console = console_of(add_user_pages)


def test_a_row_says_what_a_user_may_and_where_it_is_otherwise() -> None:
    entry = AclEntry("Topic:orders", ("Pub", "Sub"), "Deny", ("10.0.0.0/8",))
    users = [User("ann", "Normal", "disable", ("broker-b",)), User("root", "Super", "enable")]
    ann, root = user_rows(users, [Acl("User:ann", [entry], ("broker-c",))])
    assert (ann.user, ann.policies, ann.differs_on) == (users[0], [entry], "broker-b, broker-c")
    assert (root.user, root.policies, root.differs_on) == (users[1], (), "")


async def test_users_are_shown_with_their_policies() -> None:
    operations = FakeOperations()
    operations.unseen = (Unseen("broker-b:0", "does not answer"),)
    async with _console(operations) as console:
        page = await console.get("/users")
        assert "billing" in page.text
        assert "Topic:orders" in page.text
        assert "broker-b:0 does not answer" in page.text
        only = await console.get("/users?search=shop")
        assert "Topic:orders" not in only.text.partition("Say what")[0]
    async with _console(FakeOperations(empty=True)) as console:
        assert "There are no users" in (await console.get("/users")).text


async def test_a_user_is_created_and_its_secret_is_on_no_page() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        fields = {"user": "fresh", "password": _SECRET, "is_super": "true"}
        done = await console.post("/users/new", fields)
        assert "User fresh was created." in done.text
        assert operations.users_by_name["fresh"].user_type == "Super"
        again = await console.post("/users/new", fields, status=409)
        assert "there is a user fresh" in again.text
        assert _SECRET not in done.text + again.text


async def test_a_policy_is_changed_after_a_look() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        fields = {"what": "put", "user": "shop", "resources": "Topic:a, Topic:b", "actions": "Pub", "decision": "Deny"}
        review = await console.post("/users/change", fields)
        assert "Deny shop something" in review.text
        assert "User:shop" not in operations.acls_by_subject
        done = await console.post("/users/change", review.fields())
        assert "Policies of shop were changed." in done.text
        entries = operations.acls_by_subject["User:shop"].entries
        assert [(one.resource, one.decision) for one in entries] == [("Topic:a", "Deny"), ("Topic:b", "Deny")]
        review = await console.post("/users/change", {"what": "forget", "user": "shop", "resources": "Topic:a"})
        await console.post("/users/change", review.fields())
        assert [one.resource for one in operations.acls_by_subject["User:shop"].entries] == ["Topic:b"]


async def test_a_user_is_disabled_and_deleted_after_a_look() -> None:
    operations = FakeOperations()
    async with _console(operations) as console:
        review = await console.post("/users/change", {"what": "disable", "user": "billing"})
        assert operations.users_by_name["billing"].user_status == "enable"
        await console.post("/users/change", review.fields())
        assert operations.users_by_name["billing"].user_status == "disable"
        review = await console.post("/users/change", {"what": "delete", "user": "billing"})
        await console.post("/users/change", review.fields())
        assert "billing" not in operations.users_by_name
        missing = await console.post("/users/change", {"what": "delete", "user": "billing"}, status=404)
        assert "there is no user billing" in missing.text
        await console.post("/users/change", {"what": "fly", "user": "shop"}, status=422)


async def test_a_viewer_changes_nothing() -> None:
    operations = FakeOperations()
    async with _console(operations, role=Role.VIEWER) as console:
        await console.post("/users/new", {"user": "fresh", "password": _SECRET}, status=403)
        await console.post("/users/change", {"what": "delete", "user": "billing", "confirm": "true"}, status=403)
    assert sorted(operations.users_by_name) == ["billing", "shop"]
