"""The manual: its examples run, and it leaves nothing public out."""

import ast
import json
import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
from msgspec import Struct

import trunkline
from trunkline import jsonrpc
from trunkline.admin.service import ActiveSwitchInfo, CommandResult
from trunkline.app.auth import KeyMaterial
from trunkline.app.control import SuspendedCallStatus
from trunkline.app.reload import ReloadResult
from trunkline.audit.call_batch import SharedFields
from trunkline.audit.log import AuditStatus
from trunkline.audit.verification import Finding, VerificationReport
from trunkline.cli.audit import ExportedRecord
from trunkline.cli.check import CheckReport, ServerReport
from trunkline.cli.policy import ExpectationResult, Explanation
from trunkline.cli.tools import ListedTool, RankedTool

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    text = page.read_text(encoding="utf-8")
    return [
        (text[: found.start()].count("\n") + 1, found[2])
        for found in BLOCK.finditer(text)
        if found[1] == language
    ]


def headings(page: str) -> str:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if line.startswith("#"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_run_in_order(page: Path) -> None:
    namespace: dict[str, object] = {"__name__": page.stem}
    for line, code in blocks(page, "python"):
        exec(compile("\n" * line + code, page, "exec"), namespace)
    for _, code in blocks(page, "toml"):
        tomllib.loads(code)


def test_every_public_name_of_the_engine_has_one_heading_and_no_other_has_one() -> None:
    found = [line for line in headings("reference/engine.md").splitlines() if "`" in line]
    documented = [name for line in found for name in re.findall(r"`(\w+)[`(]", line)]
    assert sorted(documented) == sorted(jsonrpc.__all__)


PRINTED = [
    *(("check", kind) for kind in (CheckReport, ServerReport, KeyMaterial)),
    ("tools", ListedTool),
    ("find", RankedTool),
    *(("policy", kind) for kind in (Explanation, ExpectationResult)),
    *(("ps", kind) for kind in (SuspendedCallStatus, AuditStatus)),
    ("status", ActiveSwitchInfo),
    ("pause", CommandResult),
    ("reload", ReloadResult),
    *(("audit", kind) for kind in (ExportedRecord, VerificationReport, Finding)),
]


@pytest.mark.parametrize(
    ("command", "kind"), PRINTED, ids=lambda each: getattr(each, "__name__", each)
)
def test_the_manual_names_every_member_of_the_json_output(command: str, kind: type[Struct]) -> None:
    text = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    section = text.partition(f"## `trunkline {command}`\n")[2].partition("\n## ")[0]
    assert [name for name in kind.__struct_encode_fields__ if f"`{name}`" not in section] == []


def test_the_manual_names_every_field_that_recorded_calls_share() -> None:
    text = (ROOT / "docs" / "reference" / "audit.md").read_text(encoding="utf-8")
    fields = SharedFields.__struct_encode_fields__
    assert [name for name in fields if f"`{name}`" not in text] == []


def test_the_map_of_the_code_describes_every_package_and_names_only_files_that_exist() -> None:
    text = (ROOT / "docs" / "explain" / "code.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "trunkline"
    packages = [file.parent.name for file in package.glob("*/__init__.py")]
    assert [one for one in packages if f"| `{one}/` |" not in text] == []
    files = re.findall(r"`(\w+/\w+\.py)`", text)
    assert len(files) > 20
    assert [f for f in files if not (package / f).exists() and not (ROOT / f).exists()] == []


def imported_packages() -> dict[str, set[str]]:
    """Return the packages that we import and that are not of Python, with the importing files."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    source = ROOT / "src" / "trunkline"
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import():
                    names = [each.name for each in node.names]
                case ast.ImportFrom(module=str(module)):
                    names = [module]
                case _:
                    continue
            for name in names:
                found[name.partition(".")[0]].add(path.relative_to(source).as_posix())
    ours = {*sys.stdlib_module_names, "trunkline"}
    return {name: files for name, files in found.items() if name not in ours}


def test_the_table_of_libraries_names_every_package_and_the_files_that_import_it() -> None:
    text = (ROOT / "docs/design/0027-libraries.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", text, re.MULTILINE))
    listed = {name: set(re.findall(r"`([\w/.]+)`", files)) for name, files in rows.items()}
    assert rows["msgspec"] == "everywhere"
    assert listed == {**imported_packages(), "msgspec": set()}


def test_every_link_to_a_file_of_the_repository_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub and MkDocs make them."""
    titles = re.findall(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title).strip()) for title in plain}


def test_every_link_to_a_heading_leads_to_one() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", text):
            linked = page.parent / target if target else page
            assert anchor in anchors(linked), f"{page.name}: {target}#{anchor}"


def test_the_guide_for_systemd_shows_the_units_as_they_are() -> None:
    shown = {code for _, code in blocks(ROOT / "docs" / "guides" / "systemd.md", "ini")}
    files = [path.read_text(encoding="utf-8") for path in (ROOT / "packaging/systemd").iterdir()]
    assert len(files) == 4
    assert [text for text in files if text not in shown] == []


def test_the_changelog_and_the_package_are_of_one_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## [{trunkline.__version__}] - " in changelog


def test_a_change_is_one_line_of_at_most_thirty_words() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    _, _, release = text.partition("\n### ")
    lines = [line for line in f"### {release}".splitlines() if line]
    assert [line for line in lines if not line.startswith(("### ", "## ", "- "))] == []
    assert [line for line in lines if len(line.split()) > 31] == []


def test_every_exception_of_the_conformance_suite_is_explained() -> None:
    eras = (ROOT / "docs" / "explain" / "eras.md").read_text(encoding="utf-8")
    files = sorted((ROOT / "conformance" / "baselines").glob("*.json"))
    assert len(files) == 4
    for file in files:
        for scenario, reason in json.loads(file.read_bytes())["exceptions"].items():
            assert f"`{scenario}`" in eras
            assert reason["because"]


def test_readme_says_of_other_gateways_what_the_comparison_says() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "explain" / "comparison.md").read_text(encoding="utf-8")
    section = readme.partition("## Which gateway\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert 7 <= len(rows) <= 10
    assert [row for row in rows if row not in page.splitlines()] == []
    (date,) = re.findall(r"read on ([\w ]+);", section)
    assert f"read on {date};" in page
