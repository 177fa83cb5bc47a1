"""What all tests share: the `--update` switch, and folders for what gateways leave."""

from collections.abc import Generator

import pytest
from hypothesis import settings

# A machine may be busy: how long an example takes is nothing that a test can judge. Half as many as
# hypothesis would try keep `make test` short; those that matter most ask for more themselves.
settings.register_profile("patient", deadline=None, max_examples=50)
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update", action="store_true", help="rewrite generated files instead of comparing them"
    )


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update"))


@pytest.fixture(scope="session", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
        yield
