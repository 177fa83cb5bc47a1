"""Who is asking."""

from trunkline.mcp.principal import LOCAL, Principal


def test_without_a_subject_the_id_is_the_subject() -> None:
    assert (LOCAL.id, LOCAL.subject, LOCAL.roles, LOCAL.scopes) == ("local", "local", (), set())
    assert Principal("jwt:a|b", "b", ("dev",)).subject == "b"


def test_two_are_equal_if_all_that_is_known_of_them_is() -> None:
    assert Principal("a", roles=("x",)) == Principal("a", roles=("x",))
    assert Principal("a", roles=("x",)) != Principal("a", roles=("y",))
