"""The report of ``reproduce`` as one self-contained HTML page: no scripts, no network, embedded images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from baselines.reproduce import leaderboard, report_text
from baselines.reproduce.drawings import curve_svg, svg_of
from builders.core.errors import log
from builders.core.read_files import read_utf8
from builders.core.write_files import write_text

PAGE = "reproduce.html"
_TEMPLATE = Path(__file__).with_name("report_page.html.jinja")
_STYLE = Path(__file__).with_name("report_page.css")


def write_page(path: Path, report: Mapping[str, Any], own: Sequence[leaderboard.Own]) -> Path:
    """Write the page of a report with the leaderboard, which includes the runs ``own``, and return its path."""
    published = leaderboard.read_leaderboard()
    write_text(path, render_page(report, leaderboard.leaderboard_values(published, own), published.sources))
    log.info("wrote %s", path)
    return path


def render_page(
    report: Mapping[str, Any], tables: Sequence[Mapping[str, Any]], sources: Mapping[str, leaderboard.FigureSource]
) -> str:
    """Return the page as HTML. Texts of the release, of the published scores and of the user are escaped.

    Args:
        report: the JSON value of :func:`baselines.reproduce.run_tables.run_tables`. Its ``page`` is not needed.
        tables: the leaderboard's tables (:func:`baselines.reproduce.leaderboard.leaderboard_values`).
        sources: the sources of the leaderboard's scores, by name.
    """
    import jinja2

    environment = jinja2.Environment(autoescape=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    reasons = report_text.Reasons()
    # A list, because ``reasons`` is complete only after all sections are made.
    sections = list(report_text.report_sections(report, reasons))
    svg_paths = [Path(path) for path in report["images"] if path.endswith(".svg")]
    images = {}  # by section; the section figure2 has figure2.SPLIT.svg
    for section in sections:
        section_paths = [path for path in svg_paths if path.name.startswith(f"{section.name}.")]
        images[section.name] = [svg_of(read_utf8(path)) for path in section_paths]
    trainings = [(training, curve_svg(training["recipe"], training)) for training in report["trainings"]]
    return environment.from_string(read_utf8(_TEMPLATE)).render(
        board_legend=leaderboard.LEGEND,
        boards=[leaderboard.grid_of(table) for table in tables],
        images=images,
        legend=[report_text.LEGEND, report_text.MARKS, *reasons.lines()],
        measured_on=report_text.measured_on(report),
        own_run=leaderboard.OWN,
        predictions=report_text.prediction_lines(report),
        sections=sections,
        sources=leaderboard.listed_of(sources),
        steps=list(report["steps"].values()),
        style=read_utf8(_STYLE),
        trainings=trainings,
    )
