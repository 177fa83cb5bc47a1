"""The commands of `trunkline policy` say what they are for."""

from tests.cli.samples import run


def test_without_a_command_it_says_which_there_are() -> None:
    done = run("policy")
    assert "test" in done.output
    assert "Try out who may do what" in done.output
