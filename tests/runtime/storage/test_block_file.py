"""Block files: safetensors' own reader reads them, and any rectangle comes back, and no other bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from maniple.process.error import RequestError
from maniple.process.file_system import Disk
from maniple.regions.rectangle import Rect
from maniple.runtime.storage import block_file
from maniple.runtime.storage.block_file import (
    CODES,
    SEAL,
    Block,
    BlockReader,
    StoredBlock,
    bytes_of,
    file_size,
    in_order,
    pieces_of,
    sealed_pieces,
    whole_tensors,
)
from maniple.runtime.storage.copy_kernels import torch_dtype


def value(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    drawn = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(len(shape)))
    return (drawn > 50) if dtype == "bool" else drawn.to(torch_dtype(dtype))


def write(path: Path, blocks: tuple[Block, ...], whole: dict[str, torch.Tensor]) -> None:
    def give(block: Block) -> torch.Tensor:
        return whole[block.name][block.rect.slices((0,) * block.rect.ndim)]

    Disk().write_beside(path, pieces_of(blocks, give))
    assert path.stat().st_size == file_size(blocks)


@pytest.mark.parametrize("dtype", CODES)
def test_every_type_is_read_by_the_formats_own_reader(tmp_path: Path, dtype: str) -> None:
    whole = {"w": value(dtype, (4, 6)), "s": value(dtype, ())}
    blocks = in_order([Block("w", dtype, Rect((1, 2), (4, 6))), Block("s", dtype, Rect((), ()))])
    write(tmp_path / "a.safetensors", blocks, whole)
    found = load_file(tmp_path / "a.safetensors")
    assert set(found) == {"w[1:4,2:6]", "s[]"}
    assert torch.equal(found["w[1:4,2:6]"], whole["w"][1:4, 2:6])
    assert torch.equal(found["s[]"], whole["s"])


def test_wide_elements_come_first_so_that_each_lies_where_its_elements_may() -> None:
    blocks = [Block(dtype, dtype, Rect((0,), (3,))) for dtype in ("bool", "float32", "bfloat16", "float64")]
    assert [block.name for block in in_order(blocks)] == ["float64", "float32", "bfloat16", "bool"]
    assert len(block_file.header_of(blocks)) % 8 == 0


def test_a_long_tensor_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_file, "PIECE", 16)
    drawn = value("float32", (5, 2)).T  # not contiguous
    pieces = list(bytes_of(drawn))
    assert [len(piece) for piece in pieces] == [16, 16, 8]
    assert b"".join(pieces) == drawn.contiguous().numpy().tobytes()


@settings(max_examples=40)
@given(st.data())
def test_any_rectangle_is_read_from_any_blocks_and_no_other_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("blocks")
    shape = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    whole = {"w": value("float32", shape)}
    rows = Rect.of_shape(shape).split(0, data.draw(st.integers(1, shape[0])))
    rects = [cut for row in rows for cut in row.split(1, data.draw(st.integers(1, shape[1])))]
    stored = []
    for number, rect in enumerate(rects):
        blocks = (Block("w", "float32", rect),)
        write(folder / f"{number}.safetensors", blocks, whole)
        stored.append(StoredBlock(folder / f"{number}.safetensors", blocks[0].key, rect))
    low = tuple(data.draw(st.integers(0, extent - 1)) for extent in shape)
    high = tuple(data.draw(st.integers(least + 1, extent)) for least, extent in zip(low, shape, strict=True))
    wanted = Rect(low, high)
    with BlockReader({"w": stored}) as reader:
        assert torch.equal(reader.read("w", wanted, "float32"), whole["w"][wanted.slices((0, 0))])
        assert reader.bytes_read == 4 * wanted.volume
        assert set(reader._open) == {each.file for each in stored if not each.rect.intersect(wanted).is_empty}


def test_what_is_not_there_or_broken_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    whole = {"w": value("float32", (4, 6))}
    block = Block("w", "float32", Rect((0, 0), (2, 6)))
    write(path, (block,), whole)
    stored = StoredBlock(path, block.key, block.rect)
    with BlockReader({"w": [stored]}) as reader:
        with pytest.raises(RequestError, match="no values for 6 of its 12 elements"):
            reader.read("w", Rect((1, 0), (3, 6)), "float32")
        with pytest.raises(RequestError, match="v: the files have no values"):
            reader.read("v", Rect((0,), (3,)), "float32")
        with pytest.raises(RequestError, match="expected float64, got float32"):
            reader.read("w", block.rect, "float64")
    other = BlockReader({"w": [StoredBlock(path, block.key, Rect((0, 0), (3, 6)))]})
    with other, pytest.raises(RequestError, match=r"expected \(3, 6\), got \(2, 6\)"):
        other.read("w", Rect((0, 0), (3, 6)), "float32")
    path.write_bytes(path.read_bytes()[:-3])
    for read in (lambda: whole_tensors(path), lambda: BlockReader({"w": [stored]}).read("w", block.rect, "float32")):
        with pytest.raises(RequestError, match="cannot be read"):
            read()


def test_a_sealed_file_is_refused_whichever_byte_is_another(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    whole = {"w": value("float32", (2, 3)), "n": value("int8", (3,))}
    blocks = in_order(
        Block(name, dtype, Rect.of_shape(whole[name].shape)) for name, dtype in {"w": "float32", "n": "int8"}.items()
    )
    Disk().write_beside(path, sealed_pieces(blocks, lambda block: whole[block.name]))
    assert path.stat().st_size == file_size((*blocks, SEAL))
    block_file.check_seal(path)
    found = load_file(path)
    assert all(torch.equal(found[block.key], whole[block.name]) for block in blocks)
    written = path.read_bytes()
    for place in range(len(written)):
        path.write_bytes(written[:place] + bytes([written[place] ^ 1]) + written[place + 1 :])
        with pytest.raises(RequestError, match=f"{path}: expected bytes of checksum"):
            block_file.check_seal(path)
    for damaged in (b"", written[:7], written[:-1], written + b"x"):
        path.write_bytes(damaged)
        with pytest.raises(RequestError, match="the file was damaged"):
            block_file.check_seal(path)
    path.unlink()
    with pytest.raises(RequestError, match="cannot be read"):
        block_file.check_seal(path)


def test_files_of_others_are_read_by_their_tensors_names(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": value("float32", (3, 2)), "s": value("int64", ())}, path)
    found = whole_tensors(path)
    assert {name: each.rect.shape for name, each in found.items()} == {"a": (3, 2), "s": ()}
    with BlockReader({name: [each] for name, each in found.items()}) as reader:
        assert torch.equal(reader.read("a", Rect((1, 0), (2, 2)), None), value("float32", (3, 2))[1:2])
