"""The table hooks: one for every table of the file."""

from trunkline.config.model import TABLE_HOOKS, Config, ConfigTable


def test_every_table_except_servers_has_hooks() -> None:
    assert {*TABLE_HOOKS, "servers"} == set(ConfigTable.__struct_fields__)


def test_every_resolved_table_is_a_field_of_config() -> None:
    resolved = {name for name, hooks in TABLE_HOOKS.items() if hooks.resolve}
    assert resolved <= set(Config.__struct_fields__)
