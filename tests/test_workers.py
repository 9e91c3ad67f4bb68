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

STARTING = """
import signal, sys, time
from builders.core.exit_codes import exit_code
from builders.core.jobs import in_order, process_pool

def work():
    with process_pool(2) as pool:
        tasks = [pool.submit(time.sleep, 60) for _ in range(2)]
        print("started", flush=True)
        list(in_order(pool, time.sleep, [60], 4))
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
    words = ["ps", "--no-headers", "-o", "stat=,args=", "-s", str(session)]
    lines = subprocess.run(words, capture_output=True, text=True, check=False).stdout.splitlines()
    return [line for line in lines if not line.startswith("Z")]


@pytest.mark.parametrize("delay", [0.0, 0.1])
def test_workers_end_if_their_parent_is_killed_while_they_start(delay: float) -> None:
    process = start_workers()
    time.sleep(delay)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while processes_of_session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = processes_of_session(process.pid)
    if left:
        os.killpg(process.pid, signal.SIGKILL)
    assert left == []
    assert not any(name.startswith(f"sem.loky-{process.pid}-") for name in os.listdir("/dev/shm"))


@pytest.mark.parametrize("delay", [0.0, 0.06, 0.12, 0.2])
def test_ctrl_c_while_workers_start_is_one_line(delay: float) -> None:
    process = start_workers()
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.communicate(timeout=60) == ("", "interrupted\n")
    assert process.returncode == 130


def test_a_stopped_pool_ends_only_its_own_processes() -> None:
    other = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    other.start()
    with pytest.raises(KeyboardInterrupt), process_pool(2) as pool:
        assert list(in_order(pool, abs, [-1, -2], 4)) == [1, 2]
        raise KeyboardInterrupt
    time.sleep(0.2)
    assert other.is_alive()
    other.kill()
    other.join()


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.004, 0.006])  # seconds until Python notices the killed worker
def test_a_worker_killed_while_another_one_starts_is_named(delay: float) -> None:
    with pytest.raises(WorkerDied), process_pool(2) as pool:
        assert pool is not None
        os.kill(pool.submit(os.getpid).result(), signal.SIGKILL)
        time.sleep(delay)
        list(in_order(pool, abs, range(1_000), 4))


def work_in_pool(_: int) -> list[int]:
    with process_pool(2) as pool:
        return list(in_order(pool, abs, [-1, -2], 4))


def test_a_daemonic_process_works_alone() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:  # its processes may not have children
        assert pool.map(work_in_pool, [0]) == [[1, 2]]


def name_of_worker(seconds: float) -> str:
    time.sleep(seconds)
    return multiprocessing.current_process().name


def test_the_workers_of_a_pool_are_numbered_from_1_beside_other_pools() -> None:
    with process_pool(2) as other, process_pool(2) as pool:
        assert other is not None and pool is not None
        tasks = []
        for _ in range(2):  # the pools start their workers by turns
            tasks += [pool.submit(name_of_worker, 1.0), other.submit(name_of_worker, 1.0)]
        names = [task.result() for task in tasks]
    assert sorted(names[::2]) == sorted(names[1::2]) == ["Worker-1", "Worker-2"]
