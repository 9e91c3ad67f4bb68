"""Upload a release to the hub with cards, histograms, eval.yaml and a new manifest."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from builders.check.count import ReleaseFigures
from builders.check.histograms import draw_histograms
from builders.check.release_report import run_check, unlisted_files
from builders.core.cache import describe_file
from builders.core.errors import InputError
from builders.core.hub import report_commit, report_planned_files, upload_files
from builders.core.locks import temporary_folder
from builders.core.read_files import sha256_of
from builders.core.results import Report
from builders.core.write_files import write_bytes, write_text
from builders.publish.pages import eval_yaml, example_block, scores_table
from builders.publish.publish_options import SplitScores
from builders.store.benchmark_tasks import parts_of
from builders.store.card import CHINESE, card_markdown, configs_of, is_reading
from builders.store.layout import MANIFEST, NAME
from builders.store.manifest import CARD, CARD_ZH, EVAL, STATS, is_published, read_stats, write_manifest
from builders.store.reader import Release, refuse_outer_links

_SHOWN_FILES = 3  # files that an error names
# `datasets` refuses repositories with scripts; .lock files come from its cache.
_FORBIDDEN = (".py", ".lock")


def upload_release(
    release: Release,
    *,
    repo: str,
    create: bool = False,
    private: bool = False,
    scores: Sequence[SplitScores] = (),
    framework: str = "",
    accepted_tests: Collection[str] = (),
    dry_run: bool = False,
) -> Report:
    """Test a release, upload it in one commit, and return the commit's URL as a report.

    The arguments are the options of `publish`. ``accepted_tests`` are names of tests whose errors count as warnings.

    Raises :class:`InputError` if the release fails a test or contains unlisted files, or if the hub reports an error.
    """
    # Refuse files that must not be published.
    unlisted = unlisted_files(release)
    all_paths = [entry.path for entry in release.manifest.files] + list(unlisted)
    forbidden = [file_path for file_path in all_paths if file_path.endswith(_FORBIDDEN)]
    if forbidden:
        shown_paths = ", ".join(forbidden[:_SHOWN_FILES])
        raise InputError(f"has {shown_paths}; remove all .py and .lock files", path=release.path)
    if unlisted:
        shown_paths = ", ".join(unlisted[:_SHOWN_FILES])
        if len(unlisted) > _SHOWN_FILES:
            shown_paths += ", ..."
        raise InputError(f"has {shown_paths}, which the manifest does not list; remove these files", path=release.path)
    refuse_outer_links(release)

    # Refuse a release that fails a test.
    report = run_check(release, frozenset(accepted_tests))
    if report.errors:
        error = report.errors[0]
        raise InputError(
            f"fails `check` ({len(report.errors)} findings; {error.test} in {error.where}: {error.what});"
            f" run `python -m builders check --release {release.path}` to see all findings",
            path=release.path,
        )

    with temporary_folder() as work:
        files = stage_files(release, report.figures, work, repo=repo, scores=scores, framework=framework)
        if dry_run:
            return report_planned_files(files, repo)
        commit_url = upload_files(
            files,
            repo,
            kind="dataset",
            manifest=MANIFEST,
            name=NAME,
            message=f"Release {files[MANIFEST][1][:12]}",
            create=create,
            private=private,
        )
    return report_commit(commit_url)


def stage_files(
    release: Release, figures: ReleaseFigures, work: Path, *, repo: str, scores: Sequence[SplitScores], framework: str
) -> dict[str, tuple[Path, str]]:
    """Prepare the published files. Return {path in the repository: (file, SHA-256)}.

    Data files are published from the release. Cards, histograms, eval.yaml, the manifest and a copy of stats.json are
    written to the folder ``work``. A download of all published files is again a release. ``figures`` are those of
    :func:`.run_check`. The other arguments are options of `publish`.
    """
    builds = release.manifest.builds
    release_stats = read_stats(release.path)
    stats = {**release_stats, **figures.stats}
    # The data files. Cards, and files that an earlier `publish` wrote, are made again.
    data_entries = []
    for entry in release.manifest.files:
        if entry.path not in (CARD, STATS) and not is_published(entry.path):
            data_entries.append(entry)
    configs = configs_of(data_entries)

    # Histograms, the Chinese card and eval.yaml, whose hashes are in the new manifest.
    made_files: dict[str, bytes] = {}
    for image_name, image in draw_histograms(figures.lengths, figures.positives).items():
        made_files[f"assets/{image_name}"] = image
    card_parts: dict[str, Any] = {
        "repo": repo,
        "images": sorted(made_files),
        "example": example_block(release, configs),
        "scores": scores_table(release, builds, {split_scores.split: split_scores.file for split_scores in scores}),
        "split": _main_split(release),
    }
    made_files[CARD_ZH] = card_markdown(data_entries, stats, builds, CHINESE, **card_parts).encode()
    benchmark_file = eval_yaml(configs, is_reading(builds), framework)
    if benchmark_file:
        made_files[EVAL] = benchmark_file.encode()
    for file_name, content in made_files.items():
        write_bytes(work / file_name, content)

    # The English card, which lists the other files, and the manifest.
    entries = data_entries + [describe_file(work, file_name) for file_name in made_files]
    write_text(work / CARD, card_markdown(entries, stats, builds, **card_parts))
    if release_stats:
        write_bytes(work / STATS, (release.path / STATS).read_bytes())
    write_manifest(work, entries, builds)

    # Data files are read from the release, and all other files from ``work``.
    files = {entry.path: (release.path / entry.path, entry.sha256) for entry in data_entries}
    for file_name in (*made_files, CARD, STATS, MANIFEST):
        staged_file = work / file_name
        if staged_file.exists():
            files[file_name] = (staged_file, sha256_of(staged_file))
    return files


def _main_split(release: Release) -> str:
    """Return the first judged dev or test split of the main set, for the card's commands; "" without such a split."""
    for set_name, split in parts_of(set(release.splits())):
        if set_name == "main":
            return split
    return ""
