"""Run `train` under torchrun with one process that fails at its second step."""

import os
import sys
from typing import Any

from baselines.__main__ import VERBS
from baselines.train import trainers
from builders.core.command import main
from builders.core.errors import InputError

failing, words = sys.argv[1], sys.argv[2:]
norm = trainers._SeededBatches._get_grad_norm


def fail(self: Any, *args: Any, **given: Any) -> Any:
    if self.state.global_step == 1:
        raise InputError("the second step fails here")
    return norm(self, *args, **given)


if os.environ["RANK"] == failing:
    trainers._SeededBatches._get_grad_norm = fail  # type: ignore[method-assign]
sys.exit(main("baselines", "", VERBS, words))
