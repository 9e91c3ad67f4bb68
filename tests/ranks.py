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


def train(rank: int, world: int, port: int, module: str, words: list[str]) -> NoReturn:
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in own.items()})
    sys.argv[1:] = words
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        sys.exit(end.code or int(any("gloo" in name for name in threads)))
    sys.exit(f"{module} has not exited")


torch.set_num_threads(1)
for world, module, words in json.loads(sys.argv[1]):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {}
    for rank in range(world):
        pid = os.fork()
        if not pid:
            train(rank, world, port, module, words)
        ranks[pid] = rank
    failed = ""
    while ranks:
        pid, status = os.wait()
        rank = ranks.pop(pid)
        if status and not failed:
            failed = f"process {rank} of {world}: status {status} ({' '.join(words[:2])})"
            for other in ranks:
                os.kill(other, signal.SIGTERM)  # as torchrun
    if failed:
        sys.exit(failed)
