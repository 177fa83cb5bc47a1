"""Masking the secrets of a server in its own output."""

from trunkline.app.telemetry import mask_secrets, secret_masker
from trunkline.backends.command import CommandSettings
from trunkline.backends.url import OAuthSettings, UrlSettings
from trunkline.config import Config, ServerSettings

WEB = ServerSettings(
    name="web",
    backend=UrlSettings(
        url="http://x.example",
        headers={"Authorization": "Bearer t0ken"},
        oauth=OAuthSettings(token_url="https://y.example", client_id="g", client_secret="s3cr3t"),
    ),
)
CHILD = ServerSettings(
    name="s",
    backend=CommandSettings(
        command="x", env={"KEY": "hunter2", "LONG": "hunter2-and-more", "SHORT": "abc"}
    ),
)


def test_secret_values_and_their_words_are_masked_longest_first() -> None:
    text = "hunter2-and-more, hunter2, Bearer t0ken, t0ken, s3cr3t; abc stays"
    assert mask_secrets(text, CHILD, WEB) == "…, …, …, …, …; abc stays"


def test_the_masked_secrets_follow_the_current_configuration() -> None:
    current = [Config(servers=(CHILD,))]
    mask = secret_masker(lambda: current[0])
    assert mask("s", "hunter2") == "…"
    assert mask("other", "hunter2") == "hunter2"
    current[0] = Config()
    assert mask("s", "hunter2") == "hunter2"
