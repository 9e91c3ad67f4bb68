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
from gpu_common import Kept, Rows, Setting, Step, check

from builders.core.tables import markdown_table

WORK = Path("build/gpu")  # relative, because the pack's records of finished steps contain relative paths
SITE = ROOT / WORK / "site"


# --- preparation ---


def install_wheels(pack: Path) -> None:
    """Install the pack's wheels into SITE. Make the wheels importable in this process and in child processes."""
    if all(importlib.util.find_spec(name) for name in ("datasets", "ir_measures", "msgspec", "sentence_transformers")):
        return  # the project's own environment has these packages
    if not SITE.is_dir():
        names = [path.name.split("-")[0] for path in (pack / "wheels").glob("*.whl")]
        options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--find-links", str(pack / "wheels")]
        words = [sys.executable, "-m", "pip", "install", *options, "--target", str(SITE), *names]
        subprocess.run(words, check=True)
    sys.path.insert(0, str(SITE))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])])


def unpack_runs(archive: Path, runs: Path) -> None:
    """Unpack the files of finished steps of `reproduce`, and compress the files again.

    The compressed bytes differ from the original bytes, so the checksums in the steps' records are updated.
    """
    from builders.core.finished_outputs import record_path  # after the installation of the pack's wheels

    new = runs.with_name("new")
    with tarfile.open(archive) as tar:
        tar.extractall(new, filter="data")
    for path in new.glob("*.gz"):
        path.write_bytes(gzip.compress(path.read_bytes(), 1, mtime=0))
        record = record_path(path)
        content = json.loads(record.read_text(encoding="utf-8"))
        content["files"] |= {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
        record.write_text(json.dumps(content), encoding="utf-8")
    new.rename(runs)


def unpack(pack: Path) -> Setting:
    """Unpack the pack's model and runs into the work folder."""
    WORK.mkdir(parents=True, exist_ok=True)
    if not (WORK / "model").is_dir():
        runpy.run_path(str(pack / "unpack_q4.py"))["main"](pack / "model.npz", pack / "tokenizer", WORK / "model")
    if not (WORK / "runs").is_dir():
        unpack_runs(pack / "runs.tar.xz", WORK / "runs")
    settings = Path("baselines/settings/e5-gpu.toml")
    return Setting("", False, WORK / "model", pack / "release", settings, WORK)


def make_tiny(setting: Setting) -> Rows:
    """Write a tiny model, the tests' release, and settings for the model. Return no rows."""
    from releases import make_release, tables
    from tiny_models import write_dual

    setting.work.mkdir(parents=True)
    write_dual(setting.model, similarity="cosine", prompts={"query": "问：", "document": "文："})
    # Configs with joined rows are skipped, because `reproduce` would use their negatives.
    joined = ("train", "train"), ("dev", "dev")
    make_release(setting.release, {key: rows for key, rows in tables().items() if key not in joined})
    setting.settings.write_text(
        '["*"]\ntrain.batch = 4\ntrain.max_steps = 2\ntrain.evaluations = 0\n'
        f'[de-bm25-neg]\nmodel.start = "{setting.model}"\nmodel.pooling = ""\nmodel.similarity = ""\n'
        "train.scale = 20.0\ndata.passage_length = 64\n",
        encoding="utf-8",
    )
    return []


# --- the part `train` ---


def real_training(setting: Setting) -> Rows:
    """Run `reproduce` until the time limit: Table 4 with seed 0, then Table 5, then 7 and 8, then the other seeds."""
    out = setting.work / "reports"
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + setting.seconds - 10
    tables = [[4]] if setting.small else [[4], [4, 5], [4, 5, 7, 8]]
    for seed, chosen in itertools.product(range(setting.of(5, 1)), tables):
        report = out / f"seed{seed}.tables{'-'.join(map(str, chosen))}.json"
        if not report.exists() and not reproduce(setting, seed, chosen, report, deadline):
            break
    return report_rows(out)


def reproduce(setting: Setting, seed: int, tables: list[int], report: Path, deadline: float) -> bool:
    """Run `reproduce` for some tables, and write its report. Return False if the deadline stopped it."""
    chosen, part = report.with_name(f"seed{seed}.toml"), report.with_suffix(".part")
    text = setting.settings.read_text(encoding="utf-8").replace("intfloat/multilingual-e5-small", str(setting.model))
    chosen.write_text(text.replace('["*"]\n', f'["*"]\ntrain.seed = {seed}\n'), encoding="utf-8")
    words: list[object] = ["reproduce", "--release", setting.release, "--table", *tables, "--settings", chosen]
    words += ["--out", setting.work / "runs", "--one-process", "--format", "json"]
    with open(part, "w", encoding="utf-8") as file:
        process = subprocess.Popen([sys.executable, "-m", "baselines", *map(str, words)], stdout=file, cwd=ROOT)
        try:
            code = process.wait(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(8)
            process.kill()
            return False
    if code:
        raise RuntimeError(f"reproduce failed with exit code {code}")
    part.rename(report)
    return True


def report_rows(out: Path) -> Rows:
    """Return the rows and the steps' seconds of reports. A seed's report with the most tables is used."""
    rows: Rows = []
    for seed in sorted({path.name.split(".")[0] for path in out.glob("*.json")}):
        report = json.loads(max(out.glob(f"{seed}.*.json"), key=lambda path: len(path.name)).read_text("utf-8"))
        for each in report["rows"]:
            low, high = each["interval"]
            own = {"table": each["table"], "row": each["title"], "measure": each["metric"]}
            rows.append({"seed": seed, **own, "ours": f"{each['ours']:.2f} ({low:.1f} to {high:.1f})"})
        seconds = {Path(name).name: step["seconds"] for name, step in report["steps"].items()}
        rows.append({"seed": seed, "row": "seconds of the steps", "ours": json.dumps(seconds)})
    return rows


# --- the runner ---


def run_step(function: Callable[[Setting], Rows], setting: Setting, log: Path, limit: float) -> dict[str, Any]:
    """Run a step in a forked process, and return its rows. Kill the process and its children at the time limit.

    Libraries load once, before the fork. This process must never compute with PyTorch, because its children could then
    use neither PyTorch's threads nor the GPU.
    """
    partial = log.with_suffix(".partial")
    partial.unlink(missing_ok=True)

    def inside(connection: Any) -> None:
        os.setsid()
        sys.stdout = sys.stderr = open(log, "w", buffering=1, encoding="utf-8")  # noqa: SIM115 (open until the end)
        for number in (1, 2):  # child processes write to these file descriptors
            os.dup2(sys.stdout.fileno(), number)
        Kept.file = partial
        try:
            connection.send((function(setting), ""))
        except BaseException as error:
            traceback.print_exc()
            connection.send(([], f"{type(error).__name__}: {error}"[:300]))
        os._exit(0)

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(False)
    process = context.Process(target=inside, args=(sender,))
    begin = time.monotonic()
    process.start()
    sender.close()
    try:
        rows, error = receiver.recv() if receiver.poll(limit) else ([], f"not done after {limit:.0f} s")
    except EOFError:
        rows, error = [], "the step's process died"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # the process may not have a process group yet
    process.join()
    if not rows and partial.exists():
        rows = json.loads(partial.read_text(encoding="utf-8"))
    return {"rows": rows, "error": error, "seconds": round(time.monotonic() - begin, 1)}


def run_steps(steps: Sequence[Step], base: Setting, out: Path, deadline: float) -> list[str]:
    """Run the steps, write and print their results, and return the names of failed steps and checks."""
    results: dict[str, Any] = {}
    about = about_machine(base)
    for function, limit in steps:
        name, left = function.__name__, min(float(limit), deadline - time.monotonic())
        found = results[name] = {"rows": [], "error": "no time left", "seconds": 0.0}
        if left >= min(5.0, limit):
            found = results[name] = run_step(function, replace(base, seconds=left), out / f"{name}.log", left)
        write_results(out, about, results)
        print(f"{name}: {found['seconds']} s {found['error']}", flush=True)
        if found["rows"]:
            print(table(found["rows"]), flush=True)
    failed = [name for name, each in results.items() if each["error"]]
    failed += [row["check"] for each in results.values() for row in each["rows"] if row.get("passed") is False]
    print(f"{out / 'results.md'}: {len(results)} steps, failed: {', '.join(failed) or 'none'}")
    return failed


def about_machine(setting: Setting) -> dict[str, Any]:
    """Describe the machine. nvidia-smi names the GPU, because PyTorch must not use the GPU before the steps fork."""
    card = setting.device
    if setting.cuda:
        words = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            card = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    about = machine("torch", "transformers", "sentence-transformers", "accelerate")
    return {"card": card, **about, **about.pop("versions")}


def table(rows: Rows) -> str:
    """Format rows as a Markdown table with the columns of all rows."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return markdown_table(columns, [[str(row.get(name, "")) for name in columns] for row in rows])


def write_results(out: Path, about: dict[str, Any], results: dict[str, Any]) -> None:
    """Write results.json and results.md. results.md has a table of all checks, and a table for each other step."""
    write_json(out / "results.json", {"machine": about, **results})
    parts, checks = [", ".join(f"{name}: {value}" for name, value in about.items())], []
    for name, each in results.items():
        if name.startswith("check_"):
            checks += each["rows"] + ([check(name, False, each["error"])] if each["error"] else [])
        else:
            title = f"{name}, {each['seconds']} s{': ' + each['error'] if each['error'] else ''}"
            parts.append(f"{title}\n\n{table(each['rows'])}" if each["rows"] else title)
    parts[1:1] = [table(checks)] if checks else []
    (out / "results.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


# --- the command line ---


def main(words: list[str] | None = None) -> int:
    begin = time.monotonic()
    parser = parser_of(__doc__)
    parts, pack = ["checks", "speed", "train"], Path("build/gpu-pack")
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
    os.environ |= {"USE_JAX": "0", "USE_TF": "0", **({"TORCH_COMPILE_DISABLE": "1"} if args.small else {})}
    install_wheels(args.pack)
    import gpu_checks
    import gpu_speed

    if args.small:
        small = (args.out / "small").resolve()
        shutil.rmtree(small, ignore_errors=True)
        base = Setting(args.device, True, small / "model", small / "release", small / "settings.toml", small)
        if error := run_step(make_tiny, base, args.out / "make_tiny.log", args.limit)["error"]:
            raise SystemExit(f"--small: {error}; see {args.out / 'make_tiny.log'}")
    else:
        base = replace(unpack(args.pack), device=args.device)
    steps_of = {"checks": gpu_checks.STEPS, "speed": gpu_speed.STEPS, "train": [(real_training, 570)]}
    steps = [step for part in args.parts for step in steps_of[part]]
    steps = [step for step in steps if not args.steps or step[0].__name__ in args.steps]
    if args.small:
        steps = [(function, int(args.limit)) for function, _ in steps]  # the steps' own limits are for a GPU
    return bool(run_steps(steps, base, args.out, begin + args.limit))


if __name__ == "__main__":
    sys.exit(main())
