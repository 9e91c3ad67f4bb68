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


def list_files(folder: Path) -> set[str]:
    """Return the paths of all files in a folder, relative to the folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def build(package_type: str, source: Path, out: Path) -> Path:
    """Build an `sdist` or a `wheel`, and return its path."""
    printed = output([sys.executable, "-c", BUILD, package_type, out], source)
    return out / printed.splitlines()[-1]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution, which has every file of the project. The build does not change the checkout."""
    out = tmp_path_factory.mktemp("source")
    source = Path(shutil.copytree(ROOT, out / "x", ignore=shutil.ignore_patterns(*NOT_OURS)))
    source_files = list_files(source)
    with tarfile.open(build("sdist", source, out / "dist")) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(out, filter="data")
        else:  # an older Python
            tar.extractall(out)
    folder = out / f"dureader_retrieval-{VERSION}"
    assert not source_files - list_files(folder)
    return folder


@pytest.fixture(scope="module")
def wheel(unpacked: Path) -> Path:
    """Build the wheel from the source distribution."""
    return build("wheel", unpacked, unpacked.parent / "wheel")


@pytest.fixture
def program_folder(wheel: Path, tmp_path: Path) -> Path:
    """Programs of a new environment that has the wheel, and the libraries of this environment."""
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--quiet", "--python", python, "install", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True)
    (site_packages,) = (tmp_path / "venv" / "lib").glob("*/site-packages")
    (site_packages / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python.parent


API = """
import json, sys, baselines, builders
from baselines import evaluate, open_release, search
from builders.core.errors import install_command
release = open_release(sys.argv[1])
scores = [evaluate("bm25", release, split="dev"), evaluate(search("bm25", release, "dev"), release, "dev")]
files = [builders.__file__, baselines.__file__]
print(json.dumps({"advice": install_command("ray"), "files": files, "scores": scores}))
"""


@pytest.mark.slow
def test_the_wheel_runs_in_a_clean_environment(program_folder: Path, sample_release: Path, tmp_path: Path) -> None:
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop("PYTHONPATH", None)

    def call(program: str, *words: object) -> str:
        return output([program_folder / program, *words], tmp_path, environment)

    call("dureader-retrieval", "release", "--raw", "builders/sample", "--out", "release")
    call("dureader-retrieval", "add", "answers", "--raw", "builders/sample", "--release", "release", "--out", "release")
    assert list_files(tmp_path / "release") == list_files(sample_release)
    call("dureader-retrieval", "bm25", "--release", "release", "--out", "a.run")
    words = ["evaluate", "--release", sample_release, "--split", "dev", "a.run", "--format", "json"]
    (result,) = json.loads(call("dureader-retrieval", *words))
    assert result["queries"] == 16
    assert result["official"]["MRR@10"] > 0.3
    api_result = json.loads(call("python", "-c", API, sample_release))
    assert api_result["advice"] == 'pip install "dureader-retrieval[ray]"'
    for file in api_result["files"]:
        assert program_folder.parent in Path(file).parents
    model_scores, run_scores = api_result["scores"]
    assert model_scores == run_scores
    assert result["official"].items() <= model_scores.items()


def test_the_programs_run_from_the_source_distribution(unpacked: Path, sample_release: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    for words in (["builders", "--version"], ["baselines"], ["builders", "check", "--release", sample_release]):
        output([sys.executable, "-m", *words], unpacked, environment)


def test_the_wheel_has_both_programs_with_their_data_files_and_needs_two_libraries(wheel: Path) -> None:
    unpacked_wheel = wheel.parent / "site"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(unpacked_wheel)
    expected_files = {"dureader_retrieval.py", "dureader_retrieval_ir.py"}
    for program in ("builders", "baselines"):
        expected_files |= {f"{program}/{name}" for name in list_files(ROOT / program) if "__pycache__" not in name}
    assert {name for name in list_files(unpacked_wheel) if ".dist-info/" not in name} == expected_files
    (metadata_path,) = unpacked_wheel.glob("*.dist-info/METADATA")
    metadata = HeaderParser().parsestr(metadata_path.read_text(encoding="utf-8"))
    requirements = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert requirements == ["cyclopts>=5.5", "datasets<6,>=5.2"]
    assert metadata.get_all("Provides-Extra") == list(PROJECT["project"]["optional-dependencies"])
    assert metadata["Version"] == VERSION
    assert metadata["Author"] == "The dureader_retrieval contributors"
    assert not metadata.get_all("Project-URL")
    assert not metadata["Home-page"]


def test_the_version_and_pythons_are_the_same_everywhere() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    first, last = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["project"]["requires-python"]).groups()
    classifiers = "\n".join(PROJECT["project"]["classifiers"])
    versions = re.findall(r":: (3\.\d+)$", classifiers, re.MULTILINE)
    assert versions == [f"3.{number}" for number in range(int(first), int(last))]
    for name, text in (
        ("CITATION.cff", f"\nversion: {VERSION}\n"),
        ("Makefile", f"Python 3.{first} to {versions[-1]} is needed"),
        ("Makefile", f"not (3, {first}) <= sys.version_info < (3, {last})"),
        ("README.md", f"Python 3.{first} to {versions[-1]}"),
    ):
        assert text in (ROOT / name).read_text(encoding="utf-8")


def distribution(requirement: str) -> str:
    """Return the name in a requirement, in the one form that pip compares."""
    return re.sub("[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def test_every_requirement_of_an_extra_has_a_version_in_the_constraints() -> None:
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = {name.lower() for name in re.findall(r"^([\w.-]+)==", constraints, re.MULTILINE)}
    extras = PROJECT["project"]["optional-dependencies"]
    groups = PROJECT["dependency-groups"]
    # A group may include other groups, which are tables.
    own_requirements = [requirement for requirement in groups["dev"] if isinstance(requirement, str)]
    requirements_by_extra = extras | {"dev": own_requirements, "checks": groups["checks"], "docs": groups["docs"]}
    for extra, requirements in requirements_by_extra.items():
        # An extra may include other extras of this project.
        for included in re.findall(r"^dureader-retrieval\[(.+)\]", "\n".join(requirements), re.MULTILINE):
            assert set(included.split(",")) <= set(extras)
        if extra not in ("gpu", "space"):  # make does not install these extras
            names = {re.match(r"[\w.-]+", requirement)[0].lower() for requirement in requirements}
            assert not names - pinned - {"dureader-retrieval"}, extra


def test_every_library_of_an_extra_has_its_advice() -> None:
    """An error for a missing library names the extra that installs it (``EXTRAS``)."""
    providers = packages_distributions()
    requirements_by_extra = {"": PROJECT["project"]["dependencies"]} | PROJECT["project"]["optional-dependencies"]
    del requirements_by_extra["gpu"]  # a second package with the module faiss
    for extra, requirements in requirements_by_extra.items():
        provided = {"dureader-retrieval"}
        for library in EXTRAS[extra].split():
            # A library that is not installed here has the name of its package.
            provided |= {distribution(package) for package in providers.get(library, [library])}
        assert {distribution(requirement) for requirement in requirements} <= provided, extra
