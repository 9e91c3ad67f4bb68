"""Run `train` under torchrun with one process that fails at its second step."""

import os
import sys
from typing import Any

from baselines.__main__ import VERBS
from baselines.train import trainers
from builders.core.command import main
from builders.core.errors import InputError

failing_rank = sys.argv[1]
train_words = sys.argv[2:]
original_get_grad_norm = trainers._SeededBatches._get_grad_norm


def fail_at_second_step(self: Any, *args: Any, **options: Any) -> Any:
    if self.state.global_step == 1:
        raise InputError("the second step fails here")
    return original_get_grad_norm(self, *args, **options)


# The trainer calls this method once a step.
if os.environ["RANK"] == failing_rank:
    trainers._SeededBatches._get_grad_norm = fail_at_second_step  # type: ignore[method-assign]
sys.exit(main("baselines", "", VERBS, train_words))
