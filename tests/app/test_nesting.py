"""Gateways below gateways: a gateway never starts itself without end."""

from pathlib import Path

import pytest

from trunkline.app.nesting import (
    MAX_NESTED_GATEWAYS,
    NESTING_VARIABLE,
    find_nesting_error,
    nesting_variables,
)


def test_a_gateway_is_refused_below_one_with_the_same_file(tmp_path: Path) -> None:
    file, link = tmp_path / "a.toml", tmp_path / "b.toml"
    link.symlink_to(file)
    assert find_nesting_error({}, file) is None
    variables = nesting_variables({}, file)
    assert f"with the same configuration {link}" in (find_nesting_error(variables, link) or "")


def test_a_gateway_with_another_file_is_allowed_and_a_circle_is_not(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    below_first = nesting_variables({}, first)
    assert find_nesting_error(below_first, second) is None
    assert find_nesting_error(nesting_variables(below_first, second), first) is not None


@pytest.mark.parametrize("has_file", [True, False])
def test_the_depth_is_limited(has_file: bool, tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    for number in range(MAX_NESTED_GATEWAYS):
        source = tmp_path / f"{number}.toml" if has_file else None
        assert find_nesting_error(environ, source) is None
        environ = nesting_variables(environ, source)
    assert "3 gateways have started each other" in (find_nesting_error(environ, None) or "")


def test_an_empty_variable_means_no_gateway_above() -> None:
    assert find_nesting_error({NESTING_VARIABLE: ""}, Path("a.toml")) is None
