"""Who is asking: an id for what is theirs, a subject and roles for what they may do."""

from trunkline.mcp.principal import LOCAL, Principal


def test_it_is_named_by_its_id_unless_it_has_another_name() -> None:
    assert LOCAL.subject == LOCAL.id == "local"
    assert Principal("key:1", "ci").subject == "ci"


def test_the_same_one_with_other_roles_is_not_taken_for_equal() -> None:
    assert Principal("a", roles=("dev",)) != Principal("a", roles=("admin",))
    assert Principal("a", roles=("dev",)) == Principal("a", roles=("dev",))
