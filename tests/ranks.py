"""Run trainings of several processes, like torchrun, in forks of a process that has loaded the libraries.

python -m ranks '[[2, "baselines", ["train", ...]], [4, "baselines", ["train", ...]]]'

Each job is a number of processes, a module, and its command line. The exit code is 1 if a process fails, or if a thread
of gloo is still alive after a training, because such a thread can abort the process at its end.
"""

import json
import os
import runpy
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

import torch


def run_rank(rank: int, world_size: int, port: int, module: str, words: list[str]) -> NoReturn:
    """Run one process of a job in this process, which is a fork."""
    os.environ["RANK"] = str(rank)
    os.environ["LOCAL_RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = str(world_size)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    sys.argv[1:] = words
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as program_exit:
        thread_names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        has_gloo_thread = any("gloo" in thread_name for thread_name in thread_names)
        sys.exit(program_exit.code or int(has_gloo_thread))
    sys.exit(f"{module} has not exited")


def find_free_port() -> int:
    """Return a port of this machine that no process uses."""
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        return int(free_socket.getsockname()[1])


torch.set_num_threads(1)
for world_size, module, words in json.loads(sys.argv[1]):
    port = find_free_port()
    rank_of_pid = {}
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            run_rank(rank, world_size, port, module, words)
        rank_of_pid[pid] = rank
    first_failure = ""
    while rank_of_pid:
        pid, status = os.wait()
        rank = rank_of_pid.pop(pid)
        if status and not first_failure:
            first_failure = f"process {rank} of {world_size}: status {status} ({' '.join(words[:2])})"
            # Like torchrun, end all processes as soon as one fails.
            for running_pid in rank_of_pid:
                os.kill(running_pid, signal.SIGTERM)
    if first_failure:
        sys.exit(first_failure)
