"""The processes of one training under torchrun: they begin together, none leaves before all have done, all end at once.

torchrun ends the others as soon as a process has ended in an error. So one that returned early and was then aborted by
a library's threads took the first one with it while that still wrote the checkpoint.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import signal
import threading
import time
from collections.abc import Iterator

from builders.core.errors import log

# The first process evaluates, and writes, while the others wait. torchrun ends all when one has died, in a second.
_WAIT = datetime.timedelta(hours=2)
_OTHERS_END = 15.0  # seconds


@contextlib.contextmanager
def together(rank: int, world: int, device: str) -> Iterator[None]:
    """The process group of a training of several processes, for the block.

    The block must leave no reference to a model or a trainer: what they hold of the group is freed before the group.
    Where another process fails, this one ends with exit code 1; that one's error is the line to read.
    """
    import torch

    if rank and threading.current_thread() is threading.main_thread():
        # It has nothing to clean up; and while it waits for another one's gradients it would see no SIGTERM.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if device != "cpu":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("gloo" if device == "cpu" else "nccl", timeout=_WAIT)
    try:
        torch.distributed.barrier()
        yield
        gc.collect()
        torch.distributed.barrier()  # the first one has written
    except RuntimeError as error:
        if not (isinstance(error, torch.distributed.DistError) or "gloo" in str(error)):  # of another process
            raise
        time.sleep(_OTHERS_END)  # by now torchrun has ended this one, too
        log.warning("process %d of %d: another one has ended (%s)", rank, world, str(error).partition("\n")[0])
        raise SystemExit(1) from error
    finally:
        # After an error NCCL may wait for processes that do not come: not for longer than this.
        leaving = threading.Thread(target=torch.distributed.destroy_process_group, daemon=True)
        leaving.start()
        leaving.join(timeout=_OTHERS_END)
