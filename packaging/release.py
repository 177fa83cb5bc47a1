"""Build and check a release, and tag it: `make release`. Uploading stays a step of its own.

`--no-tag` builds and checks only, for example before the changelog has the date of the release.
"""

import argparse
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECTS = (ROOT, ROOT / "packaging" / "trunkline")
TOOLS = Path(sys.executable).parent


class ReleaseError(Exception):
    """A check has failed; the message says which one and what to do."""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command, and return what it printed on stdout."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = f"{done.stdout}\n{done.stderr}".strip()
        raise ReleaseError(f"{Path(command[0]).name} failed:\n{said}")
    return done.stdout


def read_version() -> str:
    source = (ROOT / "src/trunkline/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "(.+)"', source)
    assert found is not None
    return found[1]


def check_repository(version: str) -> None:
    """Refuse to tag uncommitted changes, a version without a date, and a version that is tagged."""
    if run("git", "status", "--porcelain"):
        raise ReleaseError("the checkout has changes: commit them first")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE
    ):
        heading = f"## [{version}] - {time.strftime('%Y-%m-%d')}"
        raise ReleaseError(f'CHANGELOG.md: {version} has no date; write "{heading}"')
    if run("git", "tag", "--list", f"v{version}"):
        raise ReleaseError(f"the tag v{version} exists: raise the version")


def build(target: Path) -> dict[str, str]:
    """Build both projects, and return the SHA-256 of each file."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for project in PROJECTS:
        run(TOOLS / "python", "-m", "hatchling", "build", "-d", target, cwd=project)
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(target.iterdir())
    }


def build_twice(target: Path) -> dict[str, str]:
    hashes = build(target)
    again = target.with_name(f"{target.name}-again")
    differing = sorted(name for name, digest in build(again).items() if hashes.get(name) != digest)
    shutil.rmtree(again)
    if differing:
        raise ReleaseError(f"two builds differ: {', '.join(differing)}")
    return hashes


def check_files(target: Path) -> None:
    files = [str(file) for file in sorted(target.iterdir())]
    run(TOOLS / "twine", "check", "--strict", *files)
    for file in files:
        if file.endswith(".whl") and "slim" in file:
            run(TOOLS / "check-wheel-contents", file)


def install(target: Path, folder: Path, *packages: str) -> Path:
    """Install packages of this release into an empty environment, and return its Python."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "install", "--find-links", target, *packages)
    return python


def measure(python: Path, statement: str) -> str:
    """Return what an installation weighs, and how long a statement takes in a new process."""
    listed = json.loads(
        run(python, "-m", "pip", "list", "--format=json", "--disable-pip-version-check")
    )
    names = {each["name"] for each in listed} - {"pip", "setuptools"}
    (library,) = (python.parents[1] / "lib").iterdir()
    # Without pip, which every environment has, and without compiled files, which depend on use.
    size = sum(
        file.stat().st_size
        for file in (library / "site-packages").rglob("*")
        if file.is_file()
        and file.suffix != ".pyc"
        and not file.is_relative_to(library / "site-packages/pip")
    )
    took = shortest_time(python, statement) - shortest_time(python, "pass")
    return f"{len(names)} packages, {size / 1e6:.1f} MB, `{statement}` in {took * 1000:.0f} ms"


def shortest_time(python: Path, statement: str) -> float:
    """Return the processor time of a new process, which other programs hardly change."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(python, "-c", statement)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(7))


def try_out(target: Path, folder: Path, version: str) -> None:
    """Use what users install: the engine alone, then the gateway."""
    engine = install(target, folder / "slim", f"trunkline-slim=={version}")
    print("trunkline-slim:", measure(engine, "import trunkline.jsonrpc"))
    python = install(target, folder / "full", f"trunkline=={version}")
    print("trunkline:", measure(python, "import trunkline.cli.program"))
    for command in ((python, "-m", "trunkline"), (python.with_name("trunkline"),)):
        printed = run(*command, "--version", cwd=folder).split()
        if version not in printed:
            raise ReleaseError(f"`trunkline --version` printed {printed}, not {version}")
    if '"state":"ready"' not in run(
        python, "-m", "trunkline", "call", "trunkline__status", cwd=folder
    ):
        raise ReleaseError("`trunkline call trunkline__status` shows no server that is ready")


def write_notices(target: Path, python: Path, version: str) -> None:
    """Write the bill of materials, and the licences of all packages that are installed with us.

    Uninstalls pip and its setuptools first: they are no part of what users install.
    """
    installed = json.loads(run(python, "-m", "pip", "list", "--format=json"))
    installers = {each["name"] for each in installed} & {"pip", "setuptools"}
    run(python, "-m", "pip", "--quiet", "uninstall", "--yes", *sorted(installers))
    bill = target / f"trunkline-{version}.cdx.json"
    project = ("--pyproject", PROJECTS[1] / "pyproject.toml")
    command = (TOOLS / "cyclonedx-py", "environment", *project, "--output-reproducible")
    run(*command, "-o", bill, python)
    licences = target / f"trunkline-{version}-third-party-licences.txt"
    listed = run(
        TOOLS / "pip-licenses",
        f"--python={python}",
        "--format=plain-vertical",
        "--with-license-file",
        "--no-license-path",
        "--ignore-packages",
        "trunkline",
        "trunkline-slim",
    )
    licences.write_text(listed, encoding="utf-8")


def audit(*, is_required: bool) -> str:
    """Look up the locked packages in the database of vulnerabilities; it needs a network."""
    command = (
        TOOLS / "pip-audit",
        "--format=json",
        "--disable-pip",
        "-r",
        "requirements/runtime.txt",
    )
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except ValueError:
        reason = done.stderr.strip() or f"exit code {done.returncode}"
        if is_required:
            raise ReleaseError(f"pip-audit failed:\n{reason}") from None
        return f"not possible here: {reason.splitlines()[-1]}"
    vulnerable = [each for each in found if each.get("vulns")]
    if vulnerable:
        raise ReleaseError(f"known vulnerabilities: {json.dumps(vulnerable, indent=2)}")
    skipped = sum("skip_reason" in each for each in found)
    unknown = f"; the registry has no data for {skipped} others" if skipped else ""
    return f"{len(found) - skipped} packages without a known vulnerability{unknown}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-tag", action="store_true", help="build and check only")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    target: Path = options.output.resolve()
    version = read_version()
    if not options.no_tag:
        check_repository(version)
    for name, digest in build_twice(target).items():
        print(f"{digest}  {name}")
    check_files(target)
    folder = target.with_name(f"{target.name}-try")
    try_out(target, folder, version)
    write_notices(target, folder / "full/bin/python", version)
    print("pip-audit:", audit(is_required=not options.no_tag))
    shutil.rmtree(folder)
    if not options.no_tag:
        run("git", "tag", "--annotate", f"v{version}", "--message", f"Trunkline {version}")
        print(f"Tagged v{version}. To publish: git push origin v{version}")
        print(f"  twine upload {target}/*.whl {target}/*.tar.gz")


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    try:
        main()
    except ReleaseError as error:
        sys.exit(f"release: {error}")
