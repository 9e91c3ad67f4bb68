"""Check and measure the GPU code with one command that takes about ten minutes.

  --parts checks   run the checks in docs/gpu.md; report passed or failed, with the measured values (gpu_checks.py)
  --parts speed    measure the GPU's peak rates, and search, encoding and training relative to them (gpu_speed.py)
  --parts train    reproduce Tables 4, 5, 7 and 8 from multilingual-e5-small with official batch sizes; resumable

Every step runs in a separate process with a time limit. A failed step does not end the other steps. After each step,
the results of all finished steps are written to OUT/results.json, and as tables to OUT/results.md. The models and data
come from --pack (benchmarks/gpu_pack.py). --small creates tiny models and data instead, and needs no GPU.

Example:

  make gpu PARTS="checks speed"
"""

import contextlib
import gzip
import hashlib
import importlib.util
import itertools
import json
import multiprocessing
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import ROOT, machine, parser_of, write_json
from gpu_common import Rows, SavedRows, Setting, Step, check

from builders.core.tables import markdown_table

WORK = Path("build/gpu")  # relative, because the pack's records of finished steps contain relative paths
SITE = ROOT / WORK / "site"
# Seconds.
_REPORT_SECONDS = 10  # for the reports, after the last training
_TERMINATION_SECONDS = 8  # for a training that is terminated, to save its state
_SHORTEST_STEP = 5.0  # a step is not started if less time is left


# --- preparation ---


def install_wheels(pack: Path) -> None:
    """Install the pack's wheels into SITE. Make the wheels importable in this process and in child processes."""
    if all(importlib.util.find_spec(name) for name in ("datasets", "ir_measures", "msgspec", "sentence_transformers")):
        return  # the project's own environment has these packages
    if not SITE.is_dir():
        packages = [path.name.split("-")[0] for path in (pack / "wheels").glob("*.whl")]
        options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--find-links", str(pack / "wheels")]
        command = [sys.executable, "-m", "pip", "install", *options, "--target", str(SITE), *packages]
        subprocess.run(command, check=True)
    sys.path.insert(0, str(SITE))
    search_path = str(SITE)  # of child processes
    if os.environ.get("PYTHONPATH"):
        search_path += os.pathsep + os.environ["PYTHONPATH"]
    os.environ["PYTHONPATH"] = search_path


def unpack_runs(archive: Path, runs: Path) -> None:
    """Unpack the files of finished steps of `reproduce` into the folder ``runs``, and compress the files again.

    The archive has these files uncompressed, under names that end in .gz (gpu_pack.py). The compressed bytes differ
    from the original bytes, so the checksums in the steps' records are updated.
    """
    from builders.core.finished_outputs import record_path  # after the installation of the pack's wheels

    new_folder = runs.with_name("new")
    with tarfile.open(archive) as tar:
        tar.extractall(new_folder, filter="data")
    new_checksums: dict[str, str] = {}  # by the checksum before
    for path in new_folder.glob("*.gz"):
        path.write_bytes(gzip.compress(path.read_bytes(), 1, mtime=0))
        content = json.loads(record_path(path).read_text(encoding="utf-8"))
        new_checksums[content["files"][path.name]] = hashlib.sha256(path.read_bytes()).hexdigest()
    # A record has the checksums of the step's outputs and of its inputs.
    for step_record in new_folder.glob(".*.json"):
        text = step_record.read_text(encoding="utf-8")
        for earlier_checksum, checksum in new_checksums.items():
            text = text.replace(earlier_checksum, checksum)
        step_record.write_text(text, encoding="utf-8")
    new_folder.rename(runs)  # last, so that an interrupted unpacking begins again


def unpack(pack: Path) -> Setting:
    """Unpack the pack's model and runs into the work folder. The caller replaces the device "" of the result."""
    WORK.mkdir(parents=True, exist_ok=True)
    if not (WORK / "model").is_dir():
        new_model = WORK / "model.new"
        shutil.rmtree(new_model, ignore_errors=True)
        runpy.run_path(str(pack / "unpack_q4.py"))["main"](pack / "model.npz", pack / "tokenizer", new_model)
        new_model.rename(WORK / "model")
    if not (WORK / "runs").is_dir():
        unpack_runs(pack / "runs.tar.xz", WORK / "runs")
    if not (WORK / "crosslingual-runs").is_dir() and (pack / "crosslingual-runs.tar.xz").exists():
        unpack_runs(pack / "crosslingual-runs.tar.xz", WORK / "crosslingual-runs")
    settings = Path("baselines/settings/e5-gpu.toml")
    return Setting("", False, WORK / "model", pack / "release", settings, WORK)


def make_tiny(setting: Setting) -> Rows:
    """Write a tiny model, the tests' release, and settings for the model. Return no rows."""
    from releases import make_release, tables
    from tiny_models import write_dual

    setting.work.mkdir(parents=True)
    write_dual(setting.model, similarity="cosine", prompts={"query": "问：", "document": "文："})
    # Configs with joined rows are skipped, because `reproduce` would use their negatives.
    joined_configs = (("train", "train"), ("dev", "dev"))
    release_tables = {key: rows for key, rows in tables().items() if key not in joined_configs}
    make_release(setting.release, release_tables)
    setting.settings.write_text(
        '["*"]\ntrain.batch = 4\ntrain.max_steps = 2\ntrain.evaluations = 0\n'
        f'[de-bm25-neg]\nmodel.start = "{setting.model}"\nmodel.pooling = ""\nmodel.similarity = ""\n'
        "train.scale = 20.0\ndata.passage_length = 64\n"
        f'[ce-bm25-neg]\nmodel.start = "{setting.model}"\ndata.passage_length = 64\n',
        encoding="utf-8",
    )
    return []


# --- the part `train` ---


def real_training(setting: Setting) -> Rows:
    """Run `reproduce` until the time limit: Table 4 with seed 0, then Table 5, then 7 and 8, then the other seeds."""
    reports_folder = setting.work / "reports"
    reports_folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + setting.seconds - _REPORT_SECONDS
    # Every call also has the tables of the earlier calls, whose steps are finished. So its report is complete.
    table_sets = [[4]] if setting.small else [[4], [4, 5], [4, 5, 7, 8]]
    for seed, tables in itertools.product(range(setting.of(5, 1)), table_sets):
        report_path = reports_folder / f"seed{seed}.tables{'-'.join(map(str, tables))}.json"
        if not report_path.exists() and not reproduce(setting, seed, tables, report_path, deadline):
            break
    return report_rows(reports_folder)


def reproduce(
    setting: Setting, seed: int, tables: list[int], report: Path, deadline: float, row: str = "", runs: str = "runs"
) -> bool:
    """Run `reproduce` for some tables, or one row of them, and write its report.

    Return False if the deadline, a time of ``time.monotonic``, stopped it. ``row`` is the name of the row ("": all
    rows). ``runs`` is the folder of the outputs in the work folder.
    """
    # The settings of this seed, with the pack's model in place of the hub's.
    settings_path = report.with_name(f"seed{seed}.toml")
    settings = setting.settings.read_text(encoding="utf-8")
    settings = settings.replace("intfloat/multilingual-e5-small", str(setting.model))
    settings = settings.replace('["*"]\n', f'["*"]\ntrain.seed = {seed}\n')
    settings_path.write_text(settings, encoding="utf-8")

    words: list[object] = ["reproduce", "--release", setting.release, "--table", *tables, "--settings", settings_path]
    words += ["--out", setting.work / runs, "--one-process", "--format", "json"]
    if row:
        words += ["--row", row]
    partial_report = report.with_suffix(".part")
    with open(partial_report, "w", encoding="utf-8") as file:
        process = subprocess.Popen([sys.executable, "-m", "baselines", *map(str, words)], stdout=file, cwd=ROOT)
        try:
            exit_code = process.wait(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.terminate()  # a training then saves its state
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_TERMINATION_SECONDS)
            process.kill()
            return False
    if exit_code:
        raise RuntimeError(f"reproduce failed with exit code {exit_code}")
    partial_report.rename(report)
    return True


def report_rows(out: Path) -> Rows:
    """Return the rows of the reports in ``out``, and the seconds of their steps.

    Of the reports of a seed, only the report with the most tables is used.
    """
    rows: Rows = []
    seed_names = {path.name.split(".")[0] for path in out.glob("*.json")}
    for seed_name in sorted(seed_names):
        # The report with the most tables has the longest name.
        report_path = max(out.glob(f"{seed_name}.*.json"), key=lambda path: len(path.name))
        report = json.loads(report_path.read_text("utf-8"))
        for figure in report["rows"]:
            low, high = figure["interval"]
            rows.append(
                {
                    "seed": seed_name,
                    "table": figure["table"],
                    "row": figure["title"],
                    "measure": figure["metric"],
                    "ours": f"{figure['ours']:.2f} ({low:.1f} to {high:.1f})",
                }
            )
        seconds = {Path(output).name: step["seconds"] for output, step in report["steps"].items()}
        rows.append({"seed": seed_name, "row": "seconds of the steps", "ours": json.dumps(seconds)})
    return rows


# --- the runner ---


def run_step(function: Callable[[Setting], Rows], setting: Setting, log: Path, limit: float) -> dict[str, Any]:
    """Run a step in a forked process. Kill the process and its children at the time limit, ``limit`` seconds.

    Returns ``rows``, ``error`` ("": none) and ``seconds``. If the step did not return, ``rows`` are the rows that it
    has saved (:class:`gpu_common.SavedRows`).

    Libraries load once, before the fork. This process must never compute with PyTorch, because its children could then
    use neither PyTorch's threads nor the GPU.
    """
    partial_path = log.with_suffix(".partial")
    partial_path.unlink(missing_ok=True)

    def run_inside(connection: Any) -> None:
        """Run the step in the forked process, and send its rows and its error."""
        os.setsid()  # a process group, so that the children can be killed, too
        sys.stdout = sys.stderr = open(log, "w", buffering=1, encoding="utf-8")  # noqa: SIM115 (open until the end)
        for descriptor in (1, 2):  # child processes write to these file descriptors
            os.dup2(sys.stdout.fileno(), descriptor)
        SavedRows.file = partial_path
        try:
            connection.send((function(setting), ""))
        except BaseException as error:
            traceback.print_exc()
            connection.send(([], f"{type(error).__name__}: {error}"[:300]))
        os._exit(0)  # without the exit handlers of this process's libraries, which belong to the parent

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(False)
    process = context.Process(target=run_inside, args=(sender,))
    start_time = time.monotonic()
    process.start()
    sender.close()
    rows: Rows = []
    error = f"not done after {limit:.0f} s"
    try:
        if receiver.poll(limit):
            rows, error = receiver.recv()
    except EOFError:
        error = "the step's process died"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # the process may not have a process group yet
    process.join()
    if not rows and partial_path.exists():
        rows = json.loads(partial_path.read_text(encoding="utf-8"))
    return {"rows": rows, "error": error, "seconds": round(time.monotonic() - start_time, 1)}


def run_steps(steps: Sequence[Step], base: Setting, out: Path, deadline: float) -> list[str]:
    """Run the steps, write and print their results, and return the names of failed steps and checks.

    ``base`` is the setting of all steps without a time limit. ``deadline`` is a time of ``time.monotonic``.
    """
    results: dict[str, Any] = {}
    machine_facts = about_machine(base)
    for function, limit in steps:
        name = function.__name__
        remaining_seconds = min(float(limit), deadline - time.monotonic())
        if remaining_seconds >= min(_SHORTEST_STEP, limit):
            setting = replace(base, seconds=remaining_seconds)
            results[name] = run_step(function, setting, out / f"{name}.log", remaining_seconds)
        else:
            results[name] = {"rows": [], "error": "no time left", "seconds": 0.0}
        write_results(out, machine_facts, results)
        print(f"{name}: {results[name]['seconds']} s {results[name]['error']}", flush=True)
        if results[name]["rows"]:
            print(table(results[name]["rows"]), flush=True)

    failed_names = [name for name, result in results.items() if result["error"]]
    for result in results.values():
        failed_names += [row["check"] for row in result["rows"] if row.get("passed") is False]
    print(f"{out / 'results.md'}: {len(results)} steps, failed: {', '.join(failed_names) or 'none'}")
    return failed_names


def about_machine(setting: Setting) -> dict[str, Any]:
    """Describe the machine. nvidia-smi names the GPU, because PyTorch must not use the GPU before the steps fork."""
    card = setting.device
    if setting.cuda:
        command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            card = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    machine_facts = machine("torch", "transformers", "sentence-transformers", "accelerate")
    versions = machine_facts.pop("versions")
    return {"card": card} | machine_facts | versions


def table(rows: Rows) -> str:
    """Format rows as a Markdown table with the columns of all rows."""
    columns = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    cells = [[str(row.get(column, "")) for column in columns] for row in rows]
    return markdown_table(columns, cells)


def write_results(out: Path, machine_facts: dict[str, Any], results: dict[str, Any]) -> None:
    """Write results.json and results.md. results.md has a table of all checks, and a table for each other step.

    ``results`` has the results of :func:`run_step` by the step's name.
    """
    write_json(out / "results.json", {"machine": machine_facts} | results)
    check_rows: Rows = []
    step_texts = []
    for name, result in results.items():
        if name.startswith("check_"):
            check_rows += result["rows"]
            if result["error"]:
                check_rows.append(check(name, False, result["error"]))
            continue
        text = f"{name}, {result['seconds']} s"
        if result["error"]:
            text += f": {result['error']}"
        if result["rows"]:
            text += f"\n\n{table(result['rows'])}"
        step_texts.append(text)
    parts = [", ".join(f"{name}: {value}" for name, value in machine_facts.items())]
    if check_rows:
        parts.append(table(check_rows))
    parts += step_texts
    (out / "results.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


# --- the command line ---


def main(words: list[str] | None = None) -> int:
    start_time = time.monotonic()
    parser = parser_of(__doc__)
    parts = ["checks", "speed", "train"]
    pack = Path("build/gpu-pack")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts[:2], help="parts (default: checks speed)")
    parser.add_argument("--steps", nargs="+", metavar="NAME", help="run only these steps of the parts (default: all)")
    parser.add_argument("--device", default="cuda:0", help="cuda:N or cpu (default: cuda:0)")
    parser.add_argument("--small", action="store_true", help="use tiny models and data, for tests without a GPU")
    parser.add_argument("--pack", type=Path, default=pack, help=f"output of gpu_pack.py (default: {pack})")
    parser.add_argument("--out", type=Path, default=WORK / "results", help=f"results (default: {WORK / 'results'})")
    parser.add_argument("--limit", type=float, default=540, help="seconds for all steps together (default: 540)")
    args = parser.parse_args(words)
    os.chdir(ROOT)
    args.out.mkdir(parents=True, exist_ok=True)
    # Without these variables, libraries would import JAX and TensorFlow if installed.
    os.environ["USE_JAX"] = "0"
    os.environ["USE_TF"] = "0"
    if args.small:
        os.environ["TORCH_COMPILE_DISABLE"] = "1"  # compilation takes minutes on a CPU
    install_wheels(args.pack)
    import gpu_checks
    import gpu_speed

    if args.small:
        work = (args.out / "small").resolve()
        shutil.rmtree(work, ignore_errors=True)
        base = Setting(args.device, True, work / "model", work / "release", work / "settings.toml", work)
        log_path = args.out / "make_tiny.log"
        error = run_step(make_tiny, base, log_path, args.limit)["error"]
        if error:
            raise SystemExit(f"--small: {error}; see {log_path}")
    else:
        base = replace(unpack(args.pack), device=args.device)
    steps_by_part = {"checks": gpu_checks.STEPS, "speed": gpu_speed.STEPS, "train": [(real_training, 570)]}
    step_names = [function.__name__ for part in args.parts for function, _ in steps_by_part[part]]
    for name in args.steps or []:
        if name not in step_names:
            raise SystemExit(f"--steps {name}: not a step of these parts; expected {', '.join(step_names)}")
    steps: list[Step] = []
    for part in args.parts:
        for function, limit in steps_by_part[part]:
            if args.steps and function.__name__ not in args.steps:
                continue
            if args.small:
                limit = int(args.limit)  # the steps' own limits are for a GPU
            steps.append((function, limit))
    return bool(run_steps(steps, base, args.out, start_time + args.limit))


if __name__ == "__main__":
    sys.exit(main())
