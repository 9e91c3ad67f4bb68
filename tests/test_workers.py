"""Worker processes whose parent or sibling is killed, and Ctrl-C, at the moment when the workers start."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
from commands import ROOT

from builders.core.jobs import WorkerDied, in_order, process_pool

TIME_LIMIT = 300  # seconds; far above what a busy machine takes
STARTING = """
import signal, sys, time
from builders.core.exit_codes import exit_code
from builders.core.jobs import in_order, process_pool

def work():
    with process_pool(2) as pool:
        tasks = [pool.submit(time.sleep, 600) for _ in range(2)]
        print("started", flush=True)
        list(in_order(pool, time.sleep, [600], 4))
    return 0

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process of a shell ignores Ctrl-C
sys.exit(exit_code(work))
"""


def start_workers() -> subprocess.Popen[str]:
    """Start a script in its own session, and return when its two workers are starting."""
    process = subprocess.Popen(
        [sys.executable, "-c", STARTING],
        cwd=ROOT,
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    return process


def processes_of_session(session: int) -> list[str]:
    """Return the state and the command line of each process of a session, without zombies."""
    ps_words = ["ps", "--no-headers", "-o", "stat=,args=", "-s", str(session)]
    ps_lines = subprocess.run(ps_words, capture_output=True, text=True, check=False).stdout.splitlines()
    return [line for line in ps_lines if not line.startswith("Z")]


@pytest.mark.parametrize("delay", [0.0, 0.1])
def test_workers_end_if_their_parent_is_killed_while_they_start(delay: float) -> None:
    process = start_workers()
    time.sleep(delay)
    process.kill()
    process.wait()
    deadline = time.monotonic() + TIME_LIMIT
    while processes_of_session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    remaining_processes = processes_of_session(process.pid)
    if remaining_processes:
        os.killpg(process.pid, signal.SIGKILL)
    assert remaining_processes == []
    # The pool's semaphores would stay in memory until the machine is restarted.
    assert not any(name.startswith(f"sem.loky-{process.pid}-") for name in os.listdir("/dev/shm"))


@pytest.mark.parametrize("delay", [0.0, 0.06, 0.12, 0.2])
def test_ctrl_c_while_workers_start_is_one_line(delay: float) -> None:
    process = start_workers()
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.communicate(timeout=TIME_LIMIT) == ("", "interrupted\n")
    assert process.returncode == 130


def test_a_stopped_pool_ends_only_its_own_processes() -> None:
    foreign_process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    foreign_process.start()
    with pytest.raises(KeyboardInterrupt), process_pool(2) as pool:
        assert list(in_order(pool, abs, [-1, -2], 4)) == [1, 2]
        raise KeyboardInterrupt
    time.sleep(0.2)
    assert foreign_process.is_alive()
    foreign_process.kill()
    foreign_process.join()


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.004, 0.006])  # seconds until Python notices the killed worker
def test_a_worker_killed_while_another_one_starts_is_named(delay: float) -> None:
    with pytest.raises(WorkerDied), process_pool(2) as pool:
        assert pool is not None
        os.kill(pool.submit(os.getpid).result(), signal.SIGKILL)
        time.sleep(delay)
        list(in_order(pool, abs, range(1_000), 4))


def work_in_pool(_: int) -> list[int]:
    """Use a pool in a process that may not start any."""
    with process_pool(2) as pool:
        return list(in_order(pool, abs, [-1, -2], 4))


def test_a_daemonic_process_works_alone() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:  # its processes may not have children
        assert pool.map(work_in_pool, [0]) == [[1, 2]]


def keep_value(value: str) -> None:
    """Keep the value of this worker process."""
    os.environ["WORKER_VALUE"] = value


def value_of_worker(seconds: float) -> str:
    """Return the value of this process, after a time in which every worker gets a task."""
    time.sleep(seconds)
    return os.environ["WORKER_VALUE"]


def test_each_worker_of_a_pool_gets_a_value_of_its_own() -> None:
    with process_pool(2, keep_value, ["a", "b"]) as first_pool, process_pool(2, keep_value, ["c", "d"]) as second_pool:
        assert first_pool is not None and second_pool is not None
        first_tasks = []
        second_tasks = []
        for _ in range(2):  # the pools start their workers by turns
            first_tasks.append(first_pool.submit(value_of_worker, 1.0))
            second_tasks.append(second_pool.submit(value_of_worker, 1.0))
        first_values = sorted(task.result() for task in first_tasks)
        second_values = sorted(task.result() for task in second_tasks)
    assert first_values == ["a", "b"] and second_values == ["c", "d"]
