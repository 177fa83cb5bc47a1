"""The [[webhooks]] tables: names, events, servers, keys from variables."""

from base64 import b64encode
from pathlib import Path

import pytest

from trunkline.config import Config, ConfigErrors, load_config

KEY = "whsec_" + b64encode(b"k" * 32).decode()
OLD_KEY = "whsec_" + b64encode(b"o" * 32).decode()
ENVIRON = {"KEY": KEY, "OLD_KEY": OLD_KEY, "HOST": "hooks.example"}
WEBHOOK = """
[[webhooks]]
name = "ops"
url = "https://hooks.example/trunkline?token=${HOST}"
secret_env = "KEY"
"""


def load(text: str, environ: dict[str, str] = ENVIRON) -> Config:
    return load_config(Path("trunkline.toml"), environ, text=text)


def errors_of(text: str, environ: dict[str, str] = ENVIRON) -> str:
    with pytest.raises(ConfigErrors) as caught:
        load(text, environ)
    return str(caught.value)


def test_a_webhook_has_defaults_and_its_key() -> None:
    (webhook,) = load(WEBHOOK).webhooks
    assert webhook.url == "https://hooks.example/trunkline?token=hooks.example"
    assert (webhook.events, webhook.servers) == (("*",), ())
    assert (webhook.timeout, webhook.max_queue, webhook.allow_private) == (10.0, 1000, False)
    assert webhook.keys == (b"k" * 32,)


def test_keys_rotate() -> None:
    (webhook,) = load(WEBHOOK.replace('"KEY"', '["KEY", "OLD_KEY"]')).webhooks
    assert webhook.keys == (b"k" * 32, b"o" * 32)


def test_without_its_variable_a_webhook_has_no_key_and_a_note_says_so() -> None:
    config = load(WEBHOOK.replace('"KEY"', '["NO_KEY", "KEY"]'))
    assert config.webhooks[0].keys == (b"k" * 32,)
    (note,) = config.notes
    assert "webhooks[0].secret_env: the variable NO_KEY is not set" in note
    assert "trunkline webhooks secret" in note


def test_keys_are_secrets() -> None:
    config = load(WEBHOOK)
    assert KEY in set(config.secrets)
    assert KEY not in repr(config)
    assert "b'kkk" not in repr(config)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('events = ["server.dwn"]', 'no event matches "server.dwn"; did you mean "server.down"?'),
        ('events = ["zzz"]', 'no event matches "zzz"; name one of server.down, '),
        ('events = ["Server Down"]', "expected the name of an event"),
        ("events = []", "events"),
        ('servers = ["filse"]', 'there is no server "filse"; did you mean "files"?'),
        ('servers = ["zz"]', 'there is no server "zz"; name one of [servers.NAME]'),
        ("timeout = 0.5", "timeout"),
        ("max_queue = 0", "max_queue"),
        ('colour = "red"', "unknown key"),
        (WEBHOOK, 'there are two webhooks "ops"; choose another name'),
        ('[gateway]\nstate_dir = ""', "webhooks need a state directory"),
    ],
)
def test_a_mistake_is_reported(more: str, message: str) -> None:
    assert message in errors_of(f'{WEBHOOK}{more}\n[servers.files]\ncommand = "x"\n')


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("https://", "ftp://", "expected http:// or https:// and a host"),
        ("https://", "https://me:pass@", "without a name and a password"),
        ("${HOST}", "${NO_HOST}", "NO_HOST"),
        ('"KEY"', '["HOST"]', "the variable HOST: expected whsec_ and base64"),
        ('"KEY"', '"not a name"', "expected the name of a variable, not its value"),
        ('"ops"', '"op s"', "expected a name of letters"),
        ('name = "ops"\n', "", "name"),
    ],
)
def test_a_value_that_cannot_be_used_is_reported(before: str, after: str, message: str) -> None:
    text = errors_of(WEBHOOK.replace(before, after))
    assert message in text
    assert KEY not in text


def test_the_number_of_webhooks_is_limited() -> None:
    text = "".join(WEBHOOK.replace("ops", f"ops{number}") for number in range(33))
    assert "expected at most 32 webhooks, got 33; leave some out" in errors_of(text)


def test_a_server_pattern_and_a_known_server_are_accepted() -> None:
    servers = 'servers = ["files", "git*"]\n[servers.files]\ncommand = "x"\n'
    assert load(WEBHOOK + servers).webhooks[0].servers == ("files", "git*")
