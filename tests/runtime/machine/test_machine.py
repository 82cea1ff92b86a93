"""The machine description: presets, detection, links, the TOML file and every refusal."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.process import environment
from maniple.process.error import RequestError, RunError
from maniple.process.inventory import Inventory, announce, take_inventory
from maniple.runtime.machine import machine as machine_module
from maniple.runtime.machine.machine import BETWEEN_HOSTS, CORE_BANDWIDTH, CORE_FLOPS_PER_S, WITHIN_HOST, Machine
from maniple.runtime.machine.machine_part import Host, Link, Memory, Processor, Rate

SIZES = st.integers(1, 4)


def test_the_table_of_two_nodes() -> None:
    assert str(Machine.preset("cpu:2x1")).splitlines() == [
        "machine cpu:2x1",
        "processor  kind  cores  rank  host   memory",
        "p0         cpu   1      0     node0  8.0 GiB",
        "p1         cpu   1      1     node1  8.0 GiB",
    ]


def test_a_preset_of_one_rank_shares_one_memory() -> None:
    machine = Machine.preset("cpu:4")
    assert len(machine.hosts) == len(machine.memories) == 1
    assert machine.processors_of(0) == (0, 1, 2, 3)
    assert {processor.cores for processor in machine.processors} == {1}


@given(processors=SIZES, per_node=SIZES, nodes=SIZES, cores=SIZES)
def test_ids_ranks_and_memories_agree(processors: int, per_node: int, nodes: int, cores: int) -> None:
    machine = Machine.cpu(processors, ranks=per_node * nodes, nodes=nodes, cores=cores)
    for index, processor in enumerate(machine.processors):
        assert processor.id == index
        assert machine.memory_of(index) == machine.rank_of(index) == index // processors
        assert index in machine.processors_of(processor.memory)
        assert processor.flops_per_s == cores * CORE_FLOPS_PER_S
    for memory in machine.memories:
        assert memory.host == memory.id // per_node
        assert memory.bandwidth == CORE_BANDWIDTH * cores * processors


def test_links_default_to_the_rate_of_their_class_unless_listed() -> None:
    machine = Machine.cpu(1, ranks=4, nodes=2)
    assert machine.link(0, 1) == Link(0, 1, WITHIN_HOST.latency_s, WITHIN_HOST.bandwidth)
    assert machine.link(1, 2) == Link(1, 2, BETWEEN_HOSTS.latency_s, BETWEEN_HOSTS.bandwidth)
    listed = Link(1, 2, 0.0, 7.0)
    wired = replace(machine, links=(listed,))
    assert wired.link(1, 2) == listed
    assert wired.link(2, 1) == Link(2, 1, BETWEEN_HOSTS.latency_s, BETWEEN_HOSTS.bandwidth)


@pytest.mark.parametrize(
    ("source", "target", "message"), [(0, 0, "no link to itself"), (0, 2, "memory 2 does not exist; the machine has 2")]
)
def test_links_that_do_not_exist(source: int, target: int, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Machine.preset("cpu:2x1").link(source, target)


def test_a_processor_that_does_not_exist() -> None:
    with pytest.raises(RequestError, match=r"processor 7 does not exist; the machine has 4: 0\.\.3"):
        Machine.preset("cpu:4").memory_of(7)


@pytest.mark.parametrize("name", ["p100", "cpu", "cpu:0", "cpu:", "cpu:2x0", "cpu:-1", "CPU:2", "cpu:2x1 ", ""])
def test_unknown_presets_list_the_good_forms(name: str) -> None:
    with pytest.raises(RequestError, match=r"cpu:PROCESSORS .*cpu:RANKSxPROCESSORS"):
        Machine.preset(name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0,), "processors_per_rank: expected at least 1, got 0"), ((1, 3, 2), "3 ranks do not spread evenly over 2")],
)
def test_impossible_counts(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Machine.cpu(*arguments)


def test_equal_machines_have_equal_fingerprints_and_others_do_not() -> None:
    machine = Machine.cpu(2, ranks=2)
    # The literal is what another process of any other run computed: the digest must not depend on the process.
    assert machine.fingerprint() == Machine.cpu(2, ranks=2).fingerprint() == "c220bc100d283d5d72e9b841c2b80831"
    others = [
        Machine.cpu(2, ranks=2, nodes=1),
        Machine.cpu(2, ranks=2, cores=2),
        replace(machine, links=(Link(0, 1, 0.0, 1.0),)),
        replace(machine, within_host=Rate(0.0, 1.0)),
    ]
    assert len({machine.fingerprint(), *(other.fingerprint() for other in others)}) == 1 + len(others)


@given(processors=SIZES, ranks=SIZES, name=st.text(st.characters(exclude_categories=["Cs"])), rate=st.floats(0, 1e9))
def test_the_file_gives_the_machine_back(
    tmp_path_factory: pytest.TempPathFactory, processors: int, ranks: int, name: str, rate: float
) -> None:
    path = tmp_path_factory.mktemp("machine") / "machine.toml"
    links = (Link(0, 1, rate, 1e9 / 3), Link(1, 0, 1e-300, 1.0)) if ranks > 1 else ()
    machine = replace(Machine.cpu(processors, ranks=ranks), name=name, links=links)
    machine.save(path)
    assert Machine.load(path) == machine


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cores = 1", "cores = 0", r"processors\[0\]\.cores: expected an integer >= 1, got 0"),
        ("cores = 1", "coers = 1", r"processors\[0\]\.coers: unknown key; did you mean 'cores'\?"),
        ("cores = 1\n", "", r"processors\[0\]\.cores: this key is missing"),
        ('kind = "cpu"', 'kind = "tpu"', r"processors\[0\]\.kind: expected one of the choices, got 'tpu'"),
        ("memory = 0", "memory = true", r"processors\[0\]\.memory: expected an integer >= 0, got True"),
        ("bandwidth = 2000000000.0", "bandwidth = 0", r"within_host\.bandwidth: expected a number > 0, got 0"),
        ("bandwidth = 2000000000.0", "bandwidth = inf", r"within_host\.bandwidth: expected a finite number"),
        ("bandwidth = 2000000000.0", "bandwidth = nan", r"within_host\.bandwidth: expected a finite number"),
        ("latency_s = 5e-05", "latency_s = -1", r"within_host\.latency_s: expected a finite number >= 0, got -1"),
        ("version = 2", "version = 3", "version: 3 is newer than 2"),
        ("version = 2\n", "", "version: expected an integer >= 1, got None"),
        ("launch_s = 5e-06", "launch_s = -1", r"processors\[0\]\.launch_s: expected a finite number >= 0, got -1"),
        ("switches = []", 'switches = ["s", "s"]', "switches: expected different names"),
        ("between_hosts", "# between_hosts", r"links: no way leads from memory 0 to memory 1; add the missing links"),
        (
            "links = []",
            'links = [{ source = 0, target = "s", latency_s = 0, bandwidth = 1 }]',
            r"links\[0\]: a link from 0",
        ),
        ("links = []", "links = 3", "links: expected a list, got 3"),
        ("links = []", "links = [{ source = 0, target = 5, latency_s = 0, bandwidth = 1 }]", "joins no two memories"),
        ("host = 1", "host = 9", "memory 1: host 9 does not exist"),
        ("[[hosts]]\nid = 1", "[[hosts]]\nid = 4", r"hosts: expected the ids 0, 1, \.\.\. in order, got \[0, 4\]"),
        ("[[hosts]]", "[[hosts]", "not a TOML document"),
    ],
)
def test_wrong_files_name_the_entry(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "cluster.toml"
    Machine.preset("cpu:2x1").save(path)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(RequestError, match=message) as caught:
        Machine.load(path)
    assert "machine" in str(caught.value) or str(caught.value).startswith(str(path))


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        Machine.load(tmp_path / "none.toml")
    with pytest.raises(RequestError, match="cannot be written"):
        Machine.preset("cpu:1").save(tmp_path / "none" / "machine.toml")
    assert list(tmp_path.iterdir()) == []


def test_parts_must_fit_together() -> None:
    machine = Machine.preset("cpu:2x1")
    with pytest.raises(RequestError, match="at least one processor"):
        replace(machine, processors=())
    with pytest.raises(RequestError, match="in the order of their memories"):
        replace(machine, processors=tuple(replace(processor, memory=0) for processor in machine.processors))
    with pytest.raises(RequestError, match="two links"):
        replace(machine, links=(Link(0, 1, 0.0, 1.0), Link(0, 1, 0.0, 2.0)))


@dataclass
class Exchange:
    """A control plane whose other ranks answer with facts given beforehand."""

    found: list[Inventory]

    def gather(self, payload: bytes) -> list[bytes]:
        assert Inventory.from_bytes(payload) == take_inventory()
        return [inventory.to_bytes() for inventory in self.found]


@dataclass
class FakeWorld:
    """What detection reads of a world."""

    control: Exchange
    rank: int = 0
    size: int = 4
    ranks_per_node: int = 2
    processors: int = 2
    cores: int = 3
    device: str = "cpu"
    machine: str | None = None
    memory_bytes: int | None = None


def test_detection_describes_the_launched_world_alike_on_every_rank() -> None:
    found = [Inventory(host, 6, memory, has_gpu=False) for host, memory in (("a", 64), ("a", 64), ("b", 32), ("b", 32))]
    machines = [Machine.detect(FakeWorld(Exchange(found), rank)) for rank in range(4)]  # type: ignore[arg-type]
    assert len(set(machines)) == 1
    machine = machines[0]
    assert [host.name for host in machine.hosts] == ["a", "b"]
    assert [memory.host for memory in machine.memories] == [0, 0, 1, 1]
    assert [memory.capacity_bytes for memory in machine.memories] == [32, 32, 16, 16]
    assert [processor.cores for processor in machine.processors] == [3] * 8


def test_ranks_that_said_nothing_are_noticed() -> None:
    with pytest.raises(RunError, match="1 of 4 ranks"):
        Machine.detect(FakeWorld(Exchange([take_inventory()])))  # type: ignore[arg-type]


def test_detection_without_a_launcher_gives_one_processor_with_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "read", lambda: None)
    machine = Machine.detect()
    mine = take_inventory()
    assert len(machine.processors) == 1
    assert machine.processors[0].cores == mine.cores
    assert machine.memories[0].capacity_bytes == mine.memory_bytes > 0


def test_gpus_are_refused_aloud_and_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(machine_module, "take_inventory", lambda: Inventory("h", 2, 64, has_gpu=True))
    monkeypatch.setattr(environment, "read", lambda: None)
    announce.cache_clear()
    assert Machine.detect().processors[0].kind == "cpu"
    assert Machine.detect().processors[0].kind == "cpu"
    assert capsys.readouterr().err == "maniple: GPUs on h are not used; run with --device cuda to use them\n"


@pytest.mark.parametrize("payload", [b"", b"{}", b"[1, 2]", b'["h", 0, 1, false]', b'["h", 1, 1, 3]', b"\xff"])
def test_facts_that_are_no_facts(payload: bytes) -> None:
    with pytest.raises((RunError, RequestError)):
        Inventory.from_bytes(payload)


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.mkdir()
    with pytest.raises(RequestError, match="cannot be written"):
        Machine.preset("cpu:1").save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["machine.toml"]


def test_the_file_of_the_page_is_a_machine_and_its_table_names_every_key(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "machines.md").read_text(encoding="utf-8")
    section = page.partition("## A file of one's own")[2].partition("\n## ")[0]
    text = section.partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "unequal.toml").write_text(text, encoding="utf-8")
    machine = Machine.load(tmp_path / "unequal.toml")
    assert machine.processors[0].flops_per_s == 2 * machine.processors[1].flops_per_s
    assert machine.memories[0].capacity_bytes == 2 * machine.memories[1].capacity_bytes
    told = set(re.findall(r"`(\w+)`", section.partition("| table |")[2]))
    of_parts = {field.name for part in (Host, Memory, Processor) for field in fields(part)}
    assert of_parts | {"version", "name", "links", "switches", "within_host", "between_hosts"} <= told
