"""Compare the hash table of numbered ids with a dictionary."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.official.numbered import NumberedIds, as_keys


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 300), max_size=50), max_size=12), st.lists(st.integers(0, 600), max_size=50))
def test_ids_are_numbered_as_they_come(portions: list[list[int]], asked: list[int]) -> None:
    table, expected = NumberedIds(), {}  # type: ignore[var-annotated]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            NumberedIds, "_resize", lambda self, size, resize=NumberedIds._resize: resize(self, min(size, 1 << 11))
        )
        table._resize(4)  # small, so that the table must grow
        for portion in portions:
            keys = as_keys(b"".join(value.to_bytes(16, "big") for value in portion))
            numbers, fresh = table.add(keys)
            for value, number, new in zip(portion, numbers, fresh, strict=True):
                assert new == (value not in expected)
                assert number == expected.setdefault(value, len(expected))
    assert table.keys().tobytes() == b"".join(value.to_bytes(16, "big") for value in expected)
    found = table.find(as_keys(b"".join(value.to_bytes(16, "big") for value in asked)))
    assert found.tolist() == [expected.get(value, -1) for value in asked]
