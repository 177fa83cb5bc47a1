"""Addresses without who asks there."""

import pytest

from trunkline.routing.userinfo import HIDDEN, beginning, without_user

TOKEN = "t" * 20


@pytest.mark.parametrize("any_name", [True, False])
@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("db://u:p@h/x", f"db://{HIDDEN}@h/x"),
        ("db://u:p/q@h@h/x", f"db://{HIDDEN}@h/x"),
        ("db://u:80@h/x", f"db://{HIDDEN}@h/x"),
        (f"db://{TOKEN}@h/x", f"db://{HIDDEN}@h/x"),
        ("db://h/see=db://u:p@h", f"db://h/see=db://{HIDDEN}@h"),
        ("db://h:80/@x", "db://h:80/@x"),
        ("db://h/a@b", "db://h/a@b"),
        ("db://h", "db://h"),
        ("", ""),
    ],
)
def test_a_password_is_never_shown_and_places_are(address: str, shown: str, any_name: bool) -> None:
    assert without_user(address, any_name) == shown


def test_a_short_name_is_shown_unless_no_name_is() -> None:
    assert without_user("ssh://git@h/x") == "ssh://git@h/x"
    assert without_user("ssh://git@h/x", any_name=True) == f"ssh://{HIDDEN}@h/x"


def test_a_password_that_was_cut_is_no_less_one() -> None:
    assert without_user(beginning("db://u:" + "p" * 100 + "@h", 20)) == f"db://{HIDDEN}@"
    assert beginning("db://h", 6) == "db://h"
