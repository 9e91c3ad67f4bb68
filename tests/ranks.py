"""Trainings of several processes, as torchrun would start them, forked from one that has loaded the libraries.

python ranks.py '[[2, ["train", ...]], [4, ["train", ...]]]'

Exits with 1 where a process fails, or where a thread of the process group is alive after its training: such threads
abort some processes at their end.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import matplotlib.backends.backend_agg  # noqa: F401 (what a training loads: once, before the forks)
import torch
import torch._dynamo

import baselines.train.training  # noqa: F401
from baselines.__main__ import VERBS
from builders.common.command import main


def train(rank: int, world: int, port: int, words: list[str]) -> int:
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in own.items()})
    code = main("baselines", "", VERBS, words)
    threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return code or int(any("gloo" in name for name in threads))


torch.set_num_threads(1)
for world, words in json.loads(sys.argv[1]):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {}
    for rank in range(world):
        pid = os.fork()
        if not pid:
            sys.exit(train(rank, world, port, words))
        ranks[pid] = rank
    while ranks:
        pid, status = os.wait()
        rank = ranks.pop(pid)
        if status:
            for other in ranks:
                os.kill(other, 9)
            sys.exit(f"process {rank} of {world}: status {status} ({' '.join(words[:2])})")
