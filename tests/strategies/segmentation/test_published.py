"""Pipelines of the published profiles against the published optimizer's predictions and exact optima."""

from __future__ import annotations

from pathlib import Path

import pytest

from maniple.strategies.pipeline.problem import Segmentation, SegmentationProblem
from maniple.strategies.pipeline.profile import read_profile
from maniple.strategies.pipeline.stage_costs import Assumptions, Level
from maniple.strategies.segmentation.segment import segment

BANDWIDTH = 1e9

# Exact straight pipelines: 4 and 8 stages with communication, then without.
STRAIGHT = {
    "alexnet": (0.066454, 0.066454, 0.028721, 0.028721),
    "vgg16": (0.411042, 0.411042, 0.216450, 0.159531),
    "resnet18": (0.201601, 0.201601, 0.069523, 0.035207),
    "resnet50": (0.256901, 0.256901, 0.111497, 0.056684),
    "resnet101": (0.132752, 0.131187, 0.103941, 0.052125),
    "densenet121": (0.102612, 0.102612, 0.081985, 0.041615),
    "gnmt_large": (0.137129, 0.082845, 0.137129, 0.082845),
}
# The published optimizer with replication: 4 and 8 devices with activation traffic, then with weights' traffic only.
REPLICATED = {
    "alexnet": (0.034217, 0.018874, 0.023166, 0.011620),
    "vgg16": (0.205521, 0.103833, 0.175733, 0.093513),
    "resnet18": (0.100004, 0.050783, 0.065918, 0.033883),
    "resnet50": (0.162881, 0.092012, 0.111497, 0.056315),
    "resnet101": (0.116555, 0.096592, 0.103941, 0.052125),
    "densenet121": (0.089976, 0.047118, 0.081985, 0.041615),
    "gnmt_large": (0.137129, 0.082845, 0.137129, 0.082845),
}
# Its two levels: 4 devices in a server at 10 GB/s, then 2 or 4 servers at 1.25 GB/s.
TWO_LEVELS = {
    "vgg16": (0.157821, 0.067134),
    "alexnet": (0.019818, 0.015099),
    "resnet50": (0.076194, 0.043208),
}


def found(folder: Path, name: str, *levels: Level, replicate: bool, crossings: float = 2.0) -> Segmentation:
    graph = read_profile(folder / "pipedream-profiles" / f"{name}.txt")
    return segment(SegmentationProblem(graph, levels, replicate, assumptions=Assumptions(crossings=crossings)))


@pytest.mark.parametrize("name", list(STRAIGHT))
def test_straight_pipelines(reference_data: Path, name: str) -> None:
    results = [
        found(reference_data, name, Level(devices, bandwidth), replicate=False)
        for bandwidth in (BANDWIDTH, float("inf"))
        for devices in (4, 8)
    ]
    assert [result.bottleneck_s for result in results] == pytest.approx(STRAIGHT[name], abs=1e-6)
    assert all(result.exact for result in results)


@pytest.mark.parametrize("name", list(REPLICATED))
def test_replicated_pipelines(reference_data: Path, name: str) -> None:
    results = [
        found(reference_data, name, Level(devices, BANDWIDTH), replicate=True, crossings=crossings)
        for crossings in (2.0, 0.0)
        for devices in (4, 8)
    ]
    for result, published in zip(results, REPLICATED[name], strict=True):
        assert result.exact
        assert result.bottleneck_s <= published + 1e-6


@pytest.mark.parametrize("name", list(TWO_LEVELS))
def test_two_levels(reference_data: Path, name: str) -> None:
    for servers, published in zip((2, 4), TWO_LEVELS[name], strict=True):
        result = found(reference_data, name, Level(4, 1e10), Level(servers, 1.25e9), replicate=True)
        assert result.exact
        assert result.bottleneck_s <= published + 1e-6


def test_inception_is_solved_exactly(reference_data: Path) -> None:
    result = found(reference_data, "inception_v3", Level(8, BANDWIDTH), replicate=True)
    assert result.exact
    assert result.states == 221_565


def test_nasnet_is_within_a_hundredth_without_communication(reference_data: Path) -> None:
    graph = read_profile(reference_data / "pipedream-profiles" / "nasnetamobile.txt")
    result = segment(SegmentationProblem(graph, (Level(8),), states=300_000))
    assert result.gap < 0.01
