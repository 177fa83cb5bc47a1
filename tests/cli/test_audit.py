"""`trunkline audit`: query, export and verify the stored records."""

import json
from pathlib import Path

import pytest
from typer.testing import Result

from tests.audit.samples import (
    make_batches,
    make_call,
    make_chain,
    stored_rows,
    tamper,
    write_chain,
)
from tests.cli.samples import BROKEN, child, config, run
from trunkline.audit.hash_chain import Retention
from trunkline.audit.refusals import RefusalCount, encode_count
from trunkline.audit.store import CALL_KINDS, RecordFilter, next_hash
from trunkline.cli.audit import RecordSelection
from trunkline.gateway.events import AuthRejected, BackendStateChanged, KillSwitchChanged


@pytest.fixture
def file(tmp_path: Path) -> str:
    chain = write_chain(tmp_path, 20)
    encoder = chain.encoder
    denied = make_call(
        name="git__push", status="denied", kind="not_allowed", code=-32003, backend="git"
    )
    rejections = [(2000.0, AuthRejected("10.0.0.1", "no token"))] * 3
    chain.append([encoder.encode_call(denied), *encoder.encode(rejections)])
    chain.store.close()
    tip_name = "audit-x.tip"
    (tmp_path / "audit.tip").rename(tmp_path / tip_name)
    text = f'[gateway]\nstate_dir = ""\n[audit]\nurl = "sqlite:///{tmp_path}/audit.db"\n'
    return config(tmp_path, text)


def audit(file: str, *arguments: str) -> Result:
    return run("audit", *arguments, "--config", file)


def test_query_prints_a_table_of_records(file: str) -> None:
    result = audit(file, "query", "--tool", "git*")
    assert result.exit_code == 0
    (header, line) = result.stdout.splitlines()
    assert header.split() == ["time", "status", "took", "subject", "server", "what", "why"]
    assert line.split()[2:] == [
        *("denied", "3.0", "ms", "alice", "git", "git__push", "not_allowed,"),
        *("code", "-32003,", "rule", "policy", "3"),
    ]
    (_, line) = audit(file, "query", "--all", "--limit", "1").stdout.splitlines()
    assert line.split()[2:] == ["(auth_rejected)", "10.0.0.1", "no", "token,", "3", "times"]


def test_query_shows_addresses_if_a_call_came_from_another_machine(
    tmp_path: Path, file: str
) -> None:
    chain = make_chain(tmp_path)
    chain.store.open()
    for address in ("127.0.0.1", "192.0.2.7", ""):
        chain.append([chain.encoder.encode_call(make_call(name="far__x", address=address))])
    chain.store.close()
    lines = [line.split() for line in audit(file, "query", "--tool", "far*").stdout.splitlines()]
    assert lines[0] == "time status took subject address server what why".split()
    assert [line[6] for line in lines[1:]] == ["127.0.0.1", "192.0.2.7", "fs"]
    (header, _) = audit(file, "query", "--limit", "1").stdout.splitlines()
    assert "address" not in header


def test_query_shows_calls_unless_everything_is_asked_for(tmp_path: Path, file: str) -> None:
    refused = RefusalCount("ann", "denied", "tools/call", 2500.0, 2505.0, "fs__x", 4)
    chain = make_chain(tmp_path)
    chain.store.open()
    state = BackendStateChanged("fs", "waiting", "it ended", 2.0)
    chain.append([*chain.encoder.encode([(2600.0, state)]), encode_count(chain.encoder, refused)])
    chain.append(make_batches(3))
    chain.store.close()

    def kinds(*more: str) -> list[str]:
        found = json.loads(audit(file, "query", "--json", *more).stdout)
        return [row["record"]["kind"] for row in found[-6:]]

    assert kinds() == ["call", "call", "refused", "call", "call", "call"]
    assert kinds("--all") == ["auth_rejected", "backend", "refused", "call", "call", "call"]
    assert kinds("--status", "denied") == ["call", "refused"]


def test_commands_that_start_servers_record_nothing_about_them(tmp_path: Path) -> None:
    text = f'[audit]\nurl = "sqlite:///{tmp_path}/new.db"\n'
    place = config(tmp_path, text, BROKEN, child("small", "echo"))
    for command in (("check",), ("tools",), ("find", "echo")):
        run(*command, "--config", place)
        assert not (tmp_path / "new.db").exists()
    run("call", "small__echo", "--config", place)
    found = json.loads(audit(place, "query", "--all", "--json").stdout)
    assert [row["record"]["kind"] for row in found] == ["started", "call", "stopped"]


def test_query_shows_why_arguments_are_invalid(tmp_path: Path, file: str) -> None:
    chain = make_chain(tmp_path)
    chain.store.open()
    for status in ("invalid_arguments", "success"):
        call = make_call(name="fs__x", status=status, mismatch="path is missing", rule=None)
        chain.append([chain.encoder.encode_call(call)])
    chain.store.close()
    _, *lines = audit(file, "query", "--limit", "2").stdout.splitlines()
    assert [line.partition("fs__x")[2].strip() for line in lines] == ["path is missing", ""]


def test_query_shows_why_the_answer_of_a_server_could_not_be_used(
    tmp_path: Path, file: str
) -> None:
    chain = make_chain(tmp_path)
    chain.store.open()
    reason = "Upstream failed: fs: no object"
    kind = {"status": "error", "kind": "upstream_failed", "code": -32603, "rule": None}
    call = make_call(name="fs__x", failure=reason, **kind)
    chain.append([chain.encoder.encode_call(call)])
    chain.store.close()
    line = audit(file, "query", "--limit", "1").stdout.splitlines()[-1]
    assert f"upstream_failed, {reason}, code -32603" in line


def test_query_shows_which_kill_switch_changed_and_how(tmp_path: Path, file: str) -> None:
    changes = [
        KillSwitchChanged("pause", "", True, "anna"),
        KillSwitchChanged("pause", "", False, "anna"),
        KillSwitchChanged("tool", "fs__x", True, "anna"),
        KillSwitchChanged("server", "fs", False, "anna"),
        KillSwitchChanged("all", "", True, "anna"),
    ]
    chain = make_chain(tmp_path)
    chain.store.open()
    chain.append(chain.encoder.encode((3000.0, event) for event in changes))
    chain.store.close()
    _, *lines = audit(file, "query", "--all", "--limit", "5").stdout.splitlines()
    assert [line.partition("(switched) ")[2] for line in lines] == [
        "gateway: paused",
        "gateway: resumed",
        "tool fs__x: disabled",
        "server fs: revived",
        "all: disabled",
    ]


def test_query_with_json_prints_records_as_json(file: str) -> None:
    found = json.loads(
        audit(file, "query", "--status", "denied", "--status", "error", "--json").stdout
    )
    assert [row["record"]["name"] for row in found] == ["git__push"]
    assert (found[0]["seq"], len(found[0]["hash"])) == (22, 64)
    many = audit(file, "query", "--json", "--limit", "5")
    assert len(json.loads(many.stdout)) == 5
    assert "showing the newest 5" in many.stderr
    assert json.loads(audit(file, "query", "--since", "1h", "--json").stdout) == []
    assert (
        len(json.loads(audit(file, "query", "--subject", "al*", "--server", "fs", "--json").stdout))
        == 20
    )


def test_export_writes_one_line_per_record(file: str) -> None:
    lines = audit(file, "export").stdout.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(1, 24))
    assert len(audit(file, "export", "--tool", "fs__*").stdout.splitlines()) == 20


def test_query_splits_batched_calls_and_export_stored_keeps_the_batch(
    tmp_path: Path, file: str
) -> None:
    chain = make_chain(tmp_path)
    chain.store.open()
    chain.append(make_batches(10, 100))
    chain.store.close()
    found = json.loads(audit(file, "query", "--tool", "fs__tool_10?", "--json").stdout)
    assert [row["record"]["name"] for row in found] == [f"fs__tool_{n}" for n in range(100, 110)]
    assert {row["seq"] for row in found} == {24}
    lines = audit(file, "export", "--stored").stdout.splitlines()
    before, last = (json.loads(line) for line in lines[-2:])
    body = lines[-1].partition('"record":')[2].removesuffix("}").encode()
    assert next_hash(bytes.fromhex(before["hash"]), body).hex() == last["hash"]
    refused = audit(file, "export", "--stored", "--tool", "x")
    assert (refused.exit_code, "--stored: expected no selection" in refused.stderr) == (2, True)


@pytest.mark.holds("I8.1")
def test_verify_accepts_an_intact_chain_and_names_missing_records(file: str) -> None:
    good = audit(file, "verify")
    assert (good.exit_code, "23 records, intact; the tip is 23:" in good.stdout) == (0, True)
    assert "there is no tip file" in good.stderr
    end = good.stdout.rpartition(" ")[2].strip()
    assert audit(file, "verify", "--expect", end).exit_code == 0
    tamper(Path(file).parent, "DELETE FROM record WHERE seq = 4")
    bad = audit(file, "verify", "--json")
    found = json.loads(bad.stdout)
    assert (bad.exit_code, found["ok"]) == (1, False)
    assert [(row["kind"], row["first"]) for row in found["findings"]] == [("missing", 4)]
    tamper(Path(file).parent, "DELETE FROM record WHERE seq > 20", "UPDATE chain SET seq = 20")
    assert (
        "records 21 to 23 are missing at the end" in audit(file, "verify", "--expect", end).stdout
    )


@pytest.mark.holds("I8.1")
def test_verify_checks_an_expected_tip_against_the_pruned_records(
    tmp_path: Path, file: str
) -> None:
    ends = {row.seq: f"{row.seq}:{row.hash.hex()}" for row in stored_rows(tmp_path)}
    chain = make_chain(tmp_path)
    chain.store.open()
    chain.prune(Retention(keep_days=1, max_mib=None), 1005.5 + 86400)
    chain.store.close()
    good = audit(file, "verify", "--expect", ends[6])
    assert good.exit_code == 0
    assert "records up to 6 were pruned: see record 24 (pruned, " in good.stderr
    assert audit(file, "verify", "--expect", ends[7]).exit_code == 0
    wrong = audit(file, "verify", "--expect", f"6:{'00' * 32}")
    assert wrong.exit_code == 1
    assert "pruned record 6 does not match the saved tip" in wrong.stdout
    older = audit(file, "verify", "--expect", ends[3])
    assert older.exit_code == 1
    assert "the saved tip names record 3, but records up to 6 were pruned" in older.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("query", "--since", "soon"), 2, "--since: expected a time"),
        (("query", "--status", "sad"), 2, "--status: expected one of success"),
        (("verify", "--expect", "x"), 2, "--expect: expected NUMBER:HASH"),
        (("verify", "--expect", "1:00"), 2, "--expect: expected NUMBER:HASH"),
        (("verify", "--expect", f"0:{'00' * 32}"), 2, "--expect: expected NUMBER:HASH"),
    ],
)
def test_invalid_arguments_are_refused(
    file: str, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    result = audit(file, *arguments)
    assert (result.exit_code, expected in result.stderr) == (code, True)


def test_a_missing_audit_log_is_reported(tmp_path: Path) -> None:
    off = config(tmp_path, '[audit]\nurl = ""\n')
    assert "there is no audit log" in audit(off, "query").stderr
    nowhere = config(tmp_path, '[audit]\nurl = "sqlite:///nowhere.db"\n')
    result = audit(nowhere, "query")
    assert (result.exit_code, "nowhere.db: there is no audit log" in result.stderr) == (1, True)


def test_a_record_with_an_invalid_body_is_still_listed(tmp_path: Path, file: str) -> None:
    tamper(tmp_path, "UPDATE record SET body = '{' WHERE seq = 22")
    assert "git__push" in audit(file, "query", "--tool", "git*").stdout
    assert make_chain(tmp_path).store.url.endswith("audit.db")


def test_control_characters_in_a_record_are_escaped(tmp_path: Path, file: str) -> None:
    tamper(tmp_path, "UPDATE record SET name = 'x' || char(27) || '[2J' WHERE seq = 5")
    for command in ("verify", "query"):
        stdout = audit(file, command).stdout
        assert "x\\x1b[2J" in stdout
        assert "\x1b" not in stdout


def test_a_selection_without_options_matches_all_records() -> None:
    assert RecordSelection().to_filter() == RecordFilter()
    assert RecordSelection(is_for_calls=True).to_filter() == RecordFilter(kinds=CALL_KINDS)
