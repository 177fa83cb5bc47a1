"""The list of tables: none is missing, and each becomes a part of Config."""

from trunkline.config.model import Config, ConfigTable
from trunkline.config.tables import TABLES


def test_every_table_of_a_file_but_the_servers_has_its_line() -> None:
    assert {*TABLES, "servers"} == set(ConfigTable.__struct_fields__)


def test_what_is_filled_in_is_a_field_of_config() -> None:
    filled = {name for name, ways in TABLES.items() if ways.fill}
    assert filled <= set(Config.__struct_fields__)
