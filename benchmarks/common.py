"""Helpers of the benchmarks: options, description of the machine, time, memory, raw rows and JSON files.

Importing this module makes the project and the helpers in tests/ importable.
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

_OPTIONS: dict[str, dict[str, Any]] = {
    "--raw": {
        "nargs": "+",
        "type": Path,
        "default": [ROOT / "builders" / "sample"],
        "metavar": "PATH",
        "help": "files or folders in DuReader's raw format (default: the embedded sample)",
    },
    "--threads": {"type": int, "default": len(os.sched_getaffinity(0)), "help": "threads (default: all cores)"},
    "--repeats": {"type": int, "default": 5, "metavar": "N", "help": "measurements of each figure (default: 5)"},
    "--json": {"type": Path, "metavar": "FILE", "help": "file for the figures (default: no file)"},
}
_FIELDS = ("question_id", "question", "question_type", "fact_or_opinion", "answers")
_DOCUMENT_FIELDS = ("title", "paragraphs", "is_selected", "bs_rank_pos")
_TIMED_PRODUCTS = 10  # matrix products in one measurement of a rate
_SAMPLING_SECONDS = 0.1  # between two samples of a process's memory
_TAG = "\ue000"  # placeholder for the number; a private-use character that occurs in no text


def parser_of(description: str | None, *shared_options: str) -> argparse.ArgumentParser:
    """Return a parser. ``shared_options`` names options that several benchmarks have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option_name in shared_options:
        parser.add_argument(option_name, **_OPTIONS[option_name])
    return parser


def machine(*packages: str) -> dict[str, Any]:
    """Return the number of cores, the load of the last minute, and the versions of Python and of ``packages``.

    The keys are ``cores``, ``load_before``, ``python`` and ``versions`` (by the package's name on PyPI).
    """
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


def synchronize(device: str) -> None:
    """Wait until the device has finished its work."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()


def timed(function: Callable[[], Any], device: str = "cpu", repeats: int = 1, warm: int = 0) -> tuple[float, Any]:
    """Return the median seconds of ``repeats`` calls after ``warm`` warm-up calls, and the last result."""
    call_seconds = []
    result = None
    for _ in range(warm + repeats):
        synchronize(device)
        start_time = time.perf_counter()
        result = function()
        synchronize(device)
        call_seconds.append(time.perf_counter() - start_time)
    return statistics.median(call_seconds[warm:]), result


def in_turns(
    ways: Mapping[Any, Callable[[], Any]], repeats: int, device: str = "cpu"
) -> tuple[dict[Any, float], dict[Any, Any]]:
    """Call the functions in turns, so that other load affects every function. The first round is a warm-up.

    Returns the median seconds and the last result of each function.
    """
    seconds_by_way: dict[Any, list[float]] = {way: [] for way in ways}
    results = {}
    for _ in range(1 + repeats):
        for way, function in ways.items():
            call_seconds, results[way] = timed(function, device)
            seconds_by_way[way].append(call_seconds)
    medians = {way: statistics.median(call_seconds[1:]) for way, call_seconds in seconds_by_way.items()}
    return medians, results


def matrix_rate(device: str, dtype: str, size: int | None = None) -> float:
    """Return the floating-point operations per second of matrix products. 10 products are timed 5 times.

    The matrices have ``size`` rows and columns (default: 8192 on a GPU, 2048 on a CPU). The rate is a median.
    """
    import torch

    from baselines.retrieve.devices import DTYPES

    if size is None:
        size = 8_192 if device.startswith("cuda") else 2_048
    left_matrix = torch.randn(size, size, device=device).to(DTYPES[dtype])
    right_matrix = torch.randn(size, size, device=device).to(DTYPES[dtype])
    seconds, _ = timed(lambda: [left_matrix @ right_matrix for _ in range(_TIMED_PRODUCTS)], device, 5, 2)
    # A product has size**3 multiplications and as many additions.
    return _TIMED_PRODUCTS * 2 * size**3 / seconds


def memory(pid: int, field: str = "Pss") -> int:
    """Return the memory of a process and its descendants, in bytes. A process that has ended counts as 0.

    ``field`` is a field of /proc/PID/smaps_rollup: Pss counts a page that n processes share as 1/n in each of them, Rss
    counts such a page fully in each of them, and Pss_Anon is Pss without pages of mapped files.
    """
    total_bytes = 0
    unvisited_pids = [pid]
    while unvisited_pids:
        process_folder = Path(f"/proc/{unvisited_pids.pop()}")
        try:
            for line in (process_folder / "smaps_rollup").read_text().splitlines():
                if line.startswith(f"{field}:"):
                    total_bytes += int(line.split()[1]) * 1024
            for thread_folder in (process_folder / "task").iterdir():
                unvisited_pids += map(int, (thread_folder / "children").read_text().split())
        except OSError:  # the process has just ended
            continue
    return total_bytes


def command(program: str, *words: object) -> int:
    """Run a verb in this process and return its exit code. ``program`` is builders or baselines."""
    from builders.core.command import main

    return main(program, "", importlib.import_module(f"{program}.__main__").VERBS, [str(word) for word in words])


def measured(*words: object, watch: bool = True) -> tuple[dict[str, float], Any]:
    """Run a verb of ``builders`` with ``--format json`` in a new process. Return its costs and the JSON that it prints.

    The costs are wall seconds, processor seconds, and peak memory in MB (:func:`memory`) with and without mapped files.
    Processor seconds and memory include child processes. Memory is sampled ten times a second if ``watch``, else 0.
    """
    peaks = {"Pss": 0, "Pss_Anon": 0}
    times_before = os.times()
    start_time = time.perf_counter()
    with tempfile.TemporaryFile() as output_file:
        command_line = [sys.executable, "-m", "builders", *map(str, words), "--format", "json"]
        process = subprocess.Popen(command_line, cwd=ROOT, stdout=output_file)
        while watch and process.poll() is None:
            for field, peak in peaks.items():
                peaks[field] = max(peak, memory(process.pid, field))
            time.sleep(_SAMPLING_SECONDS)
        process.wait()
        seconds = time.perf_counter() - start_time
        times_after = os.times()
        if process.returncode:
            sys.exit(f"builders {words[0]} failed with exit code {process.returncode}")
        output_file.seek(0)
        result = json.load(output_file)
    user_seconds = times_after.children_user - times_before.children_user
    system_seconds = times_after.children_system - times_before.children_system
    costs = {
        "seconds": round(seconds, 2),
        "processor_seconds": round(user_seconds + system_seconds, 2),
        "peak_mb": round(peaks["Pss"] / 1e6),
        "peak_mb_without_mapped_files": round(peaks["Pss_Anon"] / 1e6),
    }
    return costs, result


def raw_rows(paths: list[Path], questions: int, folder: Path) -> int:
    """Write ``questions`` rows in the raw format to ``folder``, one file per split, and return their size in bytes.

    The rows of ``paths`` are repeated as often as needed. The splits get the same number of rows. A number is appended
    to each question and paragraph, so that all texts are distinct.
    """
    from builders.release.rows import find_sources
    from builders.sources.lines import lines_of_block, read_blocks

    folder.mkdir(parents=True, exist_ok=True)
    templates: dict[str, list[bytes]] = {}
    for block in read_blocks(find_sources(paths)):
        for _, line in lines_of_block(block):
            if bytes(line).strip():
                templates.setdefault(block.source.split, []).append(_template(json.loads(bytes(line))))
    # The numbers are dealt to the splits in turns. For example, of three splits, the first has the numbers 0, 3, 6 ...
    for split_number, (split, split_templates) in enumerate(templates.items()):
        row_numbers = range(split_number, questions, len(templates))
        with open(folder / f"{split}.json", "wb") as file:
            for template, row_number in zip(cycle(split_templates), row_numbers, strict=False):
                file.write(template.replace(_TAG.encode(), b"%d" % row_number))
    return sum(file.stat().st_size for file in folder.iterdir())


def _template(row: dict[str, Any]) -> bytes:
    """Return a row as a line of JSON, with the placeholder as its id and at the end of its question and paragraphs.

    Other fields than those of ``_FIELDS`` and ``_DOCUMENT_FIELDS`` are dropped.
    """
    template: dict[str, Any] = {name: row[name] for name in _FIELDS if name in row}
    template["question"] += f"#{_TAG}"
    template["documents"] = []
    for row_document in row["documents"]:
        document = {name: row_document[name] for name in _DOCUMENT_FIELDS if name in row_document}
        document["paragraphs"] = [f"{paragraph}#{_TAG}" for paragraph in document["paragraphs"]]
        template["documents"].append(document)
    template["question_id"] = _TAG
    line = json.dumps(template, ensure_ascii=False)
    # An id is a number, so the placeholder loses its quotes.
    line = line.replace(f'"question_id": "{_TAG}"', f'"question_id": {_TAG}')
    return line.encode() + b"\n"


def write_json(path: Path | None, figures: dict[str, Any], *, show: bool = False) -> None:
    """Write the figures to the file of ``--json``, if given. With ``show``, also print them."""
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    if show:
        print(text)
    if path is not None:
        # Renamed, because a later call may resume from the file.
        new_path = path.with_name(f"{path.name}.new")
        new_path.write_text(text + "\n", encoding="utf-8")
        new_path.replace(path)
