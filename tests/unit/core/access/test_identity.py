"""What certificates may name, and what a bearer may claim."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.access.identity import AdminLevel, Identity, IdentityUnusable, Role, identity_of

names = st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True)
identities = st.one_of(
    st.builds(
        Identity,
        names,
        st.just(Role.BROKER),
        names,
        st.one_of(st.none(), st.integers(min_value=0, max_value=2**31 - 1)),
    ),
    st.builds(lambda cluster, level: Identity(cluster, Role.ADMIN, level=level), names, st.sampled_from(AdminLevel)),
    st.builds(Identity, names, st.sampled_from([Role.NAME_SERVER, Role.CONSISTENCY, Role.HOOK])),
)


@given(identities, st.lists(st.sampled_from(["https://example.org/x", "spiffe://other/broker/a"]), max_size=3))
def test_an_identity_is_read_as_it_was_written(identity: Identity, others: list[str]) -> None:
    assert identity_of([*others, str(identity)]) == identity


@given(st.lists(st.one_of(st.text(max_size=40), st.text(max_size=30).map("spiffe://tandemmq/".__add__)), max_size=4))
def test_any_other_name_is_refused_with_a_reason(uris: list[str]) -> None:
    try:
        identity = identity_of(uris)
    except IdentityUnusable as error:
        assert str(error)  # noqa: PT017 - both ends are right, neither may be another exception
    else:
        assert str(identity) in uris


@pytest.mark.parametrize(
    ("uris", "words"),
    [
        ([], "names no member of a cluster"),
        (["spiffe://tandemmq/c/nameserver", "spiffe://tandemmq/c/hook"], "names 2 identities"),
        (["spiffe://tandemmq/c"], "is no identity"),
        (["spiffe://tandemmq/c/broker/a b"], "is no identity"),
        (["spiffe://tandemmq/c/broker"], "names no role"),
        (["spiffe://tandemmq/c/broker/a/one"], "names no role"),
        (["spiffe://tandemmq/c/broker/a/01"], "names no role"),
        (["spiffe://tandemmq/c/admin/root"], "names no role"),
        (["spiffe://tandemmq/c/hook/x"], "names no role"),
        (["spiffe://tandemmq/" + "c" * 3_000 + "/hook"], "2048 are allowed"),
    ],
)
def test_each_wrong_name_has_its_own_message(uris: list[str], words: str) -> None:
    with pytest.raises(IdentityUnusable, match=words):
        identity_of(uris)


def test_a_broker_speaks_for_itself_alone() -> None:
    slave = Identity("c", Role.BROKER, "a", 1)
    assert slave.claim_problem("c", "a", 1) is None
    assert "a:1" in str(slave.claim_problem("c", "a", 0))
    assert "broker group a" in str(slave.claim_problem("c", "b", 1))
    assert "cluster c" in str(slave.claim_problem("d", "a", 1))
    assert "only a broker" in str(Identity("c", Role.HOOK).claim_problem("c", "a", 1))


def test_a_certificate_of_a_group_speaks_for_each_of_its_members() -> None:
    anyone = Identity("c", Role.BROKER, "a")
    assert anyone.claim_problem("c", "a", 0) is None
    assert anyone.claim_problem("c", "a", 7) is None
    assert anyone.claim_problem("c", "b", 0) is not None
