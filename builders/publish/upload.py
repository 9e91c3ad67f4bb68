"""Upload a release to the hub with cards, histograms, eval.yaml and a new manifest."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from builders.check.count import Figures
from builders.check.histograms import draw
from builders.check.release_report import check, unlisted_files
from builders.core.cache import describe
from builders.core.errors import InputError
from builders.core.files import sha256_of, temporary_folder, write_bytes, write_text
from builders.core.hub import report_commit, report_planned_files, upload
from builders.core.results import Report
from builders.publish.pages import eval_yaml, example, scores_table
from builders.publish.publish_options import SplitScores
from builders.store.benchmark_tasks import parts_of
from builders.store.card import CHINESE, card, configs_of, is_reading
from builders.store.layout import MANIFEST, NAME
from builders.store.manifest import CARD, CARD_ZH, EVAL, STATS, is_published, read_stats, write_manifest
from builders.store.reader import Release, refuse_outer_links

_FORBIDDEN = (".py", ".lock")  # `datasets` refuses repositories with scripts; .lock files come from its cache


def publish(
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
    unlisted = unlisted_files(release)
    if found := [e for e in (*(e.path for e in release.manifest.files), *unlisted) if e.endswith(_FORBIDDEN)]:
        raise InputError(f"has {', '.join(found[:3])}; remove all .py and .lock files", path=release.path)
    if unlisted:
        shown = ", ".join(unlisted[:3]) + ", ..." * (len(unlisted) > 3)
        raise InputError(f"has {shown}, which the manifest does not list; remove these files", path=release.path)
    refuse_outer_links(release)
    report = check(release, frozenset(accepted_tests))
    if report.errors:
        first = report.errors[0]
        raise InputError(
            f"fails `check` ({len(report.errors)} findings; {first.test} in {first.where}: {first.what});"
            f" run `python -m builders check --release {release.path}` to see all findings",
            path=release.path,
        )
    with temporary_folder() as work:
        files = stage(release, report.figures, work, repo=repo, scores=scores, framework=framework)
        if dry_run:
            return report_planned_files(files, repo)
        commit_url = upload(
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


def stage(
    release: Release, figures: Figures, work: Path, *, repo: str, scores: Sequence[SplitScores], framework: str
) -> dict[str, tuple[Path, str]]:
    """Prepare the published files. Return {path in the repository: (file, SHA-256)}.

    Data files are published from the release. Cards, histograms, eval.yaml, the manifest and a copy of stats.json are
    written to the folder ``work``. A download of all published files is again a release.
    """
    builds, written = release.manifest.builds, read_stats(release.path)
    own = [e for e in release.manifest.files if e.path not in (CARD, STATS) and not is_published(e.path)]
    configs, stats = configs_of(own), {**written, **figures.stats}
    made = {f"assets/{name}": content for name, content in draw(figures.lengths, figures.positives).items()}
    published: dict[str, Any] = {
        "repo": repo,
        "images": sorted(made),
        "example": example(release, configs),
        "scores": scores_table(release, builds, {part.split: part.file for part in scores}),
        "split": next((split for name, split in parts_of({*release.splits()}) if name == "main"), ""),
    }
    made[CARD_ZH] = card(own, stats, builds, CHINESE, **published).encode()
    if benchmark := eval_yaml(configs, is_reading(builds), framework):
        made[EVAL] = benchmark.encode()
    for name, content in made.items():
        write_bytes(work / name, content)
    entries = [*own, *(describe(work, name) for name in made)]
    write_text(work / CARD, card(entries, stats, builds, **published))
    if written:
        write_bytes(work / STATS, (release.path / STATS).read_bytes())
    write_manifest(work, entries, builds)
    return {e.path: (release.path / e.path, e.sha256) for e in own} | {
        name: (work / name, sha256_of(work / name)) for name in (*made, CARD, STATS, MANIFEST) if (work / name).exists()
    }
