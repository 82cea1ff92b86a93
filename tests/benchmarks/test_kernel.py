from __future__ import annotations

import numpy as np
import pytest
from taskbench.kernel import compute, produce, run_task

from maniple.process.error import RunError


def payload(step: int, point: int, pairs: int = 3) -> np.ndarray:
    return np.tile(np.array([step, point], np.int64), (pairs, 1))


def test_a_task_writes_its_step_and_point_over_its_whole_payload() -> None:
    output = produce(5, 1, 0, 3, (0, 1, 2), *(payload(4, source) for source in (0, 1, 2)))
    np.testing.assert_array_equal(output, payload(5, 1))


@pytest.mark.parametrize("source", [0, 1, 2])
@pytest.mark.parametrize("pair", [0, 2])
@pytest.mark.parametrize("word", [0, 1])
def test_any_wrong_word_of_any_input_is_found(source: int, pair: int, word: int) -> None:
    inputs = [payload(4, number) for number in (0, 1, 2)]
    inputs[source][pair, word] += 7
    with pytest.raises(RunError, match=rf"step 5, point 1.*\(4, {source}\) at pair {pair} of its input {source}"):
        produce(5, 1, 0, 3, (0, 1, 2), *inputs)


def test_inputs_that_lie_side_by_side_are_one_run() -> None:
    inputs = np.concatenate([payload(4, 0), payload(4, 1)])
    output = np.zeros((3, 2), np.int64)
    run_task(5, 1, 0, 3, output.ctypes.data, 0, 2, inputs.ctypes.data)
    np.testing.assert_array_equal(output, payload(5, 1))
    with pytest.raises(RunError, match=r"expected \(4, 1\)"):
        run_task(5, 1, 0, 3, output.ctypes.data, 1, 1, inputs.ctypes.data)


def test_the_kernel_is_task_benchs_recurrence() -> None:
    value = 1.2345
    for _ in range(2):
        value = value * value + value
    assert compute(2) == pytest.approx(value**64, rel=1e-12)
