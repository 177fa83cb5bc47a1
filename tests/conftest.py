"""Shared by all tests: the `--update` and `--stores` switches, and temporary state directories."""

import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

# No deadline: machines may be busy. Half of hypothesis' default number of examples keeps
# `make test` short; the most important tests ask for more themselves.
settings.register_profile("patient", deadline=None, max_examples=50)
settings.load_profile("patient")

# A background job of a shell ignores SIGINT, and so would the programs that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update", action="store_true", help="rewrite generated files instead of comparing them"
    )
    parser.addoption(
        "--stores",
        choices=("memory", "bytes", "later"),
        default="memory",
        help="run the tests with other stores than those in memory: see tests/stores.py",
    )


def pytest_configure(config: pytest.Config) -> None:
    kind = str(config.getoption("--stores"))
    if kind != "memory":
        from tests.stores import replace_stores

        replace_stores(kind)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--stores") == "later":
        left_out = [item for item in items if item.get_closest_marker("at_once") is not None]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update"))


@pytest.fixture(scope="session", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
        yield
