"""Arrow columns made of buffers are what pyarrow makes of the same values."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.common.columns import encoded, flags, numbers, repeated, strings, values_of

texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=8)


@given(texts)
@settings(deadline=None)
def test_texts(values: list[str]) -> None:
    expected = pa.array(values, pa.string())
    for column in (strings(values), encoded([value.encode() for value in values])):
        column.validate(full=True)
        assert column.equals(expected)
    assert repeated("读者", len(values)).to_pylist() == ["读者"] * len(values)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20), st.sampled_from([np.int32, np.int64]))
@settings(deadline=None)
def test_numbers_there_and_back(values: list[int], kind: type[np.int64]) -> None:
    column = numbers(np.array(values, kind))
    column.validate(full=True)
    assert column.equals(pa.array(values, pa.from_numpy_dtype(kind)))
    assert values_of(column).tolist() == values
    halves = pa.chunked_array([column[: len(values) // 2], column[len(values) // 2 :]], column.type)
    assert values_of(halves).tolist() == values
    assert values_of(column[len(values) // 2 :]).tolist() == values[len(values) // 2 :]


@given(st.lists(st.booleans(), max_size=20))
@settings(deadline=None)
def test_flags(values: list[bool]) -> None:
    column = flags(values)
    column.validate(full=True)
    assert column.to_pylist() == values


def test_a_build_loads_no_pandas() -> None:
    """It takes as long to load as all else that a worker process needs."""
    program = (
        "import sys; from builders.release import warm; warm.load();"
        " print('numba' in sys.modules, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
