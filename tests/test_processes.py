"""Worker processes that are started with the builders' modules."""

import subprocess
import sys

_PROGRAM = """
from builders.common.jobs import process_pool
with process_pool(2, ["builders.release.warm"]) as pool:
    print(pool.submit(eval, "'builders.release.label' in __import__('sys').modules").result())
with process_pool(2) as pool:
    print(pool.submit(eval, "__import__('pandas').Series(__import__('pyarrow').array([1]).to_pandas()).sum()").result())
    print(pool.submit(eval, "__import__('scipy.sparse').sparse.eye(2).sum()").result())
"""


def test_a_later_pool_of_the_same_program_finds_every_library() -> None:
    """All pools of a program are forked from one process."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "1", "2.0"], done.stderr
