"""Packages: the source distribution has the whole project, the wheel has everything that runs."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from email.parser import HeaderParser
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from commands import ROOT, output

from builders.core.errors import EXTRAS
from builders.core.version import VERSION

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BUILD = "import sys, setuptools.build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"
NOT_OURS = ("*.egg-info", "__pycache__", "build", "dist", ".git", ".venv", ".venvs", ".*_cache", ".hypothesis")


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def build(kind: str, source: Path, out: Path) -> Path:
    return out / output([sys.executable, "-c", BUILD, kind, out], source).splitlines()[-1]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution, which has every file of the project. The build does not change the checkout."""
    out = tmp_path_factory.mktemp("source")
    source = Path(shutil.copytree(ROOT, out / "x", ignore=shutil.ignore_patterns(*NOT_OURS)))
    expected = files_of(source)
    with tarfile.open(build("sdist", source, out / "dist")) as tar:
        tar.extractall(out, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(out)
    folder = out / f"dureader_retrieval-{VERSION}"
    assert not expected - files_of(folder)
    return folder


@pytest.fixture(scope="module")
def packed(unpacked: Path) -> Path:
    return build("wheel", unpacked, unpacked.parent / "wheel")


@pytest.fixture
def installed(packed: Path, tmp_path: Path) -> Path:
    """Programs of a new environment that has the wheel, and the libraries of this environment."""
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(python), "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(packed)], check=True)
    (site,) = (tmp_path / "venv" / "lib").glob("*/site-packages")
    (site / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python.parent


API = """
import json, sys, baselines, builders
from baselines import evaluate, open_release, search
from builders.core.errors import install
release = open_release(sys.argv[1])
scores = [evaluate("bm25", release, split="dev"), evaluate(search("bm25", release, "dev"), release, "dev")]
print(json.dumps([install("ray"), builders.__file__, baselines.__file__, *scores]))
"""


@pytest.mark.slow
def test_the_wheel_runs_in_a_clean_environment(installed: Path, sample_release: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop("PYTHONPATH", None)

    def call(program: str, *words: object) -> str:
        return output([installed / program, *words], tmp_path, environment)

    call("dureader-retrieval", "release", "--raw", "builders/sample", "--out", "release")
    call("dureader-retrieval", "add", "answers", "--raw", "builders/sample", "--release", "release", "--out", "release")
    assert files_of(tmp_path / "release") == files_of(sample_release)
    call("dureader-retrieval", "bm25", "--release", "release", "--out", "a.run")
    words = ["evaluate", "--release", sample_release, "--split", "dev", "a.run", "--format", "json"]
    (result,) = json.loads(call("dureader-retrieval", *words))
    assert result["queries"] == 16 and result["official"]["MRR@10"] > 0.3
    advice, *files, scores, of_run = json.loads(call("python", "-c", API, sample_release))
    assert advice == 'pip install "dureader-retrieval[ray]"'
    assert all(installed.parent in Path(file).parents for file in files)
    assert scores == of_run and result["official"].items() <= scores.items()


def test_the_programs_run_from_the_source_distribution(unpacked: Path, sample_release: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    for words in (["builders", "--version"], ["baselines"], ["builders", "check", "--release", sample_release]):
        output([sys.executable, "-m", *words], unpacked, environment)


def test_the_wheel_has_both_programs_with_their_data_files_and_needs_two_libraries(packed: Path) -> None:
    wheel = packed.parent / "site"
    with zipfile.ZipFile(packed) as file:
        file.extractall(wheel)
    shipped = {"dureader_retrieval.py", "dureader_retrieval_ir.py"}
    for program in ("builders", "baselines"):
        shipped |= {f"{program}/{name}" for name in files_of(ROOT / program) if "__pycache__" not in name}
    assert {name for name in files_of(wheel) if ".dist-info/" not in name} == shipped
    (metadata,) = wheel.glob("*.dist-info/METADATA")
    head = HeaderParser().parsestr(metadata.read_text(encoding="utf-8"))
    assert [need for need in head.get_all("Requires-Dist") if "extra ==" not in need] == [
        "cyclopts>=5.5",
        "datasets<6,>=5.2",
    ]
    assert head.get_all("Provides-Extra") == [*PROJECT["project"]["optional-dependencies"]]
    assert head["Version"] == VERSION
    assert head["Author"] == "The dureader_retrieval contributors"
    assert not head.get_all("Project-URL") and not head["Home-page"]


def test_the_version_and_pythons_are_the_same_everywhere() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    first, last = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["project"]["requires-python"]).groups()
    versions = [c.rpartition(" ")[2] for c in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert versions == [f"3.{number}" for number in range(int(first), int(last))]
    for name, said in (
        ("CITATION.cff", f"\nversion: {VERSION}\n"),
        ("Makefile", f"Python 3.{first} to {versions[-1]} is needed"),
        ("Makefile", f"not (3, {first}) <= sys.version_info < (3, {last})"),
        ("README.md", f"Python 3.{first} or later"),
    ):
        assert said in (ROOT / name).read_text(encoding="utf-8")


def test_every_requirement_of_an_extra_has_a_version_in_the_constraints() -> None:
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = {name.lower() for name in re.findall(r"^([\w.-]+)==", constraints, re.MULTILINE)}
    extras = PROJECT["project"]["optional-dependencies"]
    for extra, needs in {**extras, "dev": PROJECT["dependency-groups"]["dev"]}.items():
        own = {name for need in needs for name in re.findall(r"^dureader-retrieval\[(.+)\]", need)}
        assert {name for names in own for name in names.split(",")} <= {*extras}
        if extra not in ("gpu", "space"):  # make does not install these extras
            names = {re.match(r"[\w.-]+", need)[0].lower() for need in needs}
            assert not names - pinned - {"dureader-retrieval"}, extra


def distribution(requirement: str) -> str:
    """Return the name in a requirement, in the one form that pip compares."""
    return re.sub("[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def test_every_library_of_an_extra_has_its_advice() -> None:
    """An error for a missing library names the extra that installs it (``EXTRAS``)."""
    providers = packages_distributions()
    extras = {"": PROJECT["project"]["dependencies"], **PROJECT["project"]["optional-dependencies"]}
    del extras["gpu"]  # a second package with the module faiss
    for extra, requirements in extras.items():
        provided = set()
        for library in EXTRAS[extra].split():
            # A library that is not installed here has the name of its package.
            provided |= {distribution(package) for package in providers.get(library, [library])}
        assert {distribution(requirement) for requirement in requirements} - {"dureader-retrieval"} <= provided, extra
