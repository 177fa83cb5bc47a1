"""Masking the secrets of a server in its own output."""

from trunkline.app.telemetry import mask_secrets, secret_masker
from trunkline.config import Config, ServerSettings

SERVER = ServerSettings(
    name="s",
    url="http://x.example",
    env={"KEY": "hunter2", "LONG": "hunter2-and-more", "SHORT": "abc"},
    headers={"Authorization": "Bearer t0ken"},
)


def test_secret_values_and_their_words_are_masked_longest_first() -> None:
    text = "hunter2-and-more, hunter2, Bearer t0ken, t0ken; abc stays"
    assert mask_secrets(text, SERVER) == "…, …, …, …; abc stays"


def test_the_masked_secrets_follow_the_current_configuration() -> None:
    current = [Config(servers=(SERVER,))]
    mask = secret_masker(lambda: current[0])
    assert mask("s", "hunter2") == "…"
    assert mask("other", "hunter2") == "hunter2"
    current[0] = Config()
    assert mask("s", "hunter2") == "hunter2"
