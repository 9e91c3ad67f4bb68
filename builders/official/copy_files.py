"""Find the files of a copy: in a folder, a file, or a dataset repository on a hub."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from builders.core.cache import cached_sha256
from builders.core.errors import InputError, log
from builders.core.finished_outputs import UNKNOWN, VerbInput
from builders.core.hub import OTHER_HUB, clear_errors, commit_in, need_hub
from builders.core.paths import expect_inside
from builders.core.read_files import convert_read_errors
from builders.core.typed import problem_of
from builders.official.copy_rows import kind_of
from builders.sources.source_files import split_of

# No metadata such as dataset_infos.json. Files with other endings need a name that says what they hold, so that a
# licence or a readme is not read.
_DATA_NAME = re.compile(
    r"\.(jsonl|tsv|parquet)(\.gz)?$|(corpus|collection|docs|quer|topic|qrels)[^/]*\.(txt|trec|xml|sgml?)(\.gz)?$",
    re.IGNORECASE,
)
_NO_DATA = "has no .jsonl, .tsv or .parquet file"
_REPOSITORY = re.compile(r"([\w.-]{1,96}/[\w.-]{1,96})(?:/(.+))?")  # ORG/NAME, or ORG/NAME/PATH


class CopyFile(NamedTuple):
    """A file of a copy.

    Attributes:
        path: the path of the file.
        shown: the file's name in the manifest.
        kind: the kind of the file, from :func:`.copy_rows.kind_of`.
        split: the split in the name, or "".
    """

    path: Path
    shown: str
    kind: str
    split: str


def copy_input(sources: Sequence[str]) -> VerbInput:
    """Describe the copies that a verb reads, so that a later call finds the release if they are unchanged.

    A local copy is described by the SHA-256 of its data files, a repository on the hub by its commit. If the hub fails,
    the commit is unknown. A source that is neither is ignored, because :func:`find_copy_files` reports it.
    """
    hashes: dict[str, str] = {}
    problem: InputError | None = None
    for number, source in enumerate(sources, 1):
        path = Path(source)
        if path.exists():
            for name, file in _local_files(path).items():
                with convert_read_errors(file):
                    hashes[f"{number}: {path.name}/{name}"] = cached_sha256(file)
            continue
        repository = _REPOSITORY.fullmatch(source)
        if repository:
            try:
                hashes[f"{number}: {source}"] = _repository_info(repository[1]).commit
            except InputError as error:
                hashes[f"{number}: {source}"] = UNKNOWN
                problem = error
    return VerbInput("the copy", hashes, problem)


def _local_files(path: Path) -> dict[str, Path]:
    """Return the data files of a folder by relative path, or the file ``path`` by its name.

    Raises :class:`InputError` for a folder without data files, and for a link out of the folder.
    """
    if path.is_file():
        return {path.name: path}
    files = {}
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path)
        # Hidden folders have the hub client's metadata of downloads.
        is_hidden = any(part.startswith(".") for part in name.parts)
        if file.is_file() and _DATA_NAME.search(name.name) and not is_hidden:
            files[name.as_posix()] = expect_inside(file, path)
    if not files:
        raise InputError(_NO_DATA, path=path)
    return files


def find_copy_files(source: str) -> list[CopyFile]:
    """Return the data files of a folder, a file, or a repository on the hub, which is downloaded.

    ``source`` is a path, or ORG/NAME or ORG/NAME/PATH of a repository. A path that exists takes precedence.
    """
    path = Path(source)
    repository = _REPOSITORY.fullmatch(source)
    folder_name = ""  # the first part of the files' names in the manifest
    if path.exists():
        paths_by_name = _local_files(path)
        if path.is_dir():
            folder_name = path.name
    elif repository:
        folder_name = repository[1]
        paths_by_name = _fetch_files(folder_name, repository[2] or "")
    else:
        raise InputError("does not exist; expected a file, a folder, or ORG/NAME on a hub", path=source)
    files: list[CopyFile] = []
    for name, file_path in paths_by_name.items():
        shown_name = f"{folder_name}/{name}" if folder_name else name
        kind = kind_of(file_path, name, folder_name)
        files.append(CopyFile(file_path, shown_name, kind, split_of(name) or ""))
    return files


class RepositoryInfo(NamedTuple):
    """The newest commit of a dataset on the hub, and the names of its files."""

    commit: str
    names: list[str]


def _repository_info(repo: str) -> RepositoryInfo:
    """Ask the hub for the newest commit of the dataset ``repo``. Raises :class:`InputError` if the hub fails."""
    need_hub()
    from huggingface_hub import HfApi

    api = HfApi()
    with clear_errors(repo, api.endpoint, "dataset", "download"):
        info = api.dataset_info(repo)
        return RepositoryInfo(commit_in(info, repo), [sibling.rfilename for sibling in info.siblings or []])


def _fetch_files(repo: str, repo_path: str) -> dict[str, Path]:
    """Download the data files of a repository, and return their paths by name.

    ``repo_path`` is a file or folder of the repository. If it is empty, all data files are downloaded. Raises
    :class:`InputError` if the hub fails, for an unsafe name, and if there is no data file.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    repository = _repository_info(repo)
    commit = repository.commit
    with clear_errors(repo, api.endpoint, "dataset", "download"):
        names = sorted(name for name in repository.names if _DATA_NAME.search(name))
        if repo_path:
            # The added slashes prevent that dev.jsonl selects dev.jsonl.gz.
            path_prefix = f"{repo_path.rstrip('/')}/"
            names = [name for name in names if f"{name}/".startswith(path_prefix)]
        if not names:
            raise InputError(f"{repo} {_NO_DATA} {repo_path}".rstrip() + OTHER_HUB)
        for name in names:
            problem = problem_of(name)
            if problem:
                raise InputError(f"{repo}: {problem}{OTHER_HUB}")
        log.info("%s at %s: %d files", repo, commit, len(names))
        paths_by_name: dict[str, Path] = {}
        for name in names:
            paths_by_name[name] = Path(api.hf_hub_download(repo, name, repo_type="dataset", revision=commit))
        return paths_by_name
