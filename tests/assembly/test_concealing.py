"""What a server was given in confidence is not in what it says."""

from trunkline.assembly.concealing import conceal_of, without_secrets
from trunkline.config import Config, ServerSettings

SERVER = ServerSettings(
    name="s",
    url="http://x.example",
    env={"KEY": "hunter2", "LONG": "hunter2-and-more", "SHORT": "abc"},
    headers={"Authorization": "Bearer t0ken"},
)


def test_values_and_their_words_are_cut_out_the_longest_first() -> None:
    said = "hunter2-and-more, hunter2, Bearer t0ken, t0ken; abc stays"
    assert without_secrets(said, SERVER) == "…, …, …, …; abc stays"


def test_what_is_concealed_is_what_the_server_has_by_then() -> None:
    now = [Config(servers=(SERVER,))]
    conceal = conceal_of(lambda: now[0])
    assert conceal("s", "hunter2") == "…"
    assert conceal("other", "hunter2") == "hunter2"
    now[0] = Config()
    assert conceal("s", "hunter2") == "hunter2"
