"""The house rules that a program can decide. `CONTRIBUTING.md` lists them all."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

ROOT = Path(__file__).resolve().parent.parent
FACE = ROOT / "src" / "maniple"

# Each layer and the layers that it may import.
#
#     mappers  strategies
#          \     /
#         operators
#          runtime
#          regions
#          process
MAY_IMPORT: dict[str, frozenset[str]] = {
    "process": frozenset({"process"}),
    "regions": frozenset({"process", "regions"}),
    "runtime": frozenset({"process", "regions", "runtime"}),
    "operators": frozenset({"process", "regions", "runtime", "operators"}),
    "mappers": frozenset({"process", "regions", "runtime", "operators", "mappers"}),
    "strategies": frozenset({"process", "regions", "runtime", "operators", "strategies"}),
}
# The rooms of a layer: each may import those before it, for type checking, too.
ROOMS: dict[str, tuple[str, ...]] = {
    "runtime": [
        "transports",
        "control",
        "devices",
        "machine",
        "schedule",
        "analysis",
        "observe",
        "storage",
        "program",
        "lanes",
        "peers",
        "execution",
        "session",
        "cluster",
    ],
    "operators": [
        "rules",
        "recording",
        "operator",
        "precision",
        "training",
        "library",
        "graph",
        "rewriting",
        "pipeline_order",
        "plan",
        "lowering",
        "proving",
        "torch_import",
    ],
    "strategies": [
        "cost_model",
        "timing",
        "interface",
        "named",
        "simulation",
        "search",
        "bound",
        "elimination",
        "optcnn",
        "soap",
        "exhaustive",
        "frontier",
        "pipeline",
        "dnn_partitioning",
        "segmentation",
        "flow",
    ],
}
# What points upwards all the same: (importer, imported), with the reason. Nothing does.
UPWARDS: dict[tuple[str, str], str] = {}
# What holds the state of a rank, by the names that others know it by. Only its own methods change it.
OWNERS = frozenset({"runtime", "rank", "waiting", "resources", "under_way", "recovery", "journal", "endings"})
# Modules, one for each, that name what torch, numba and CPython keep to themselves.
PRIVATE_NAMES_IN = frozenset(
    {"process/torch_internals.py", "process/python_internals.py", "process/compilation/numba_internals.py"}
)
# What a package says is not its face, beside all names with an underscore.
NO_FACE = ("numba.core", "numba.np", "numba.misc")
# Names with an underscore that are documented.
DOCUMENTED = frozenset({"_asdict", "_exit", "_fields", "_make", "_replace"})
# What stays elsewhere, with the reason. The list only becomes shorter.
PRIVATE_ELSEWHERE = {
    # numba's settings and options of one function, asked for where functions are declared.
    "process/compilation/compiled.py": frozenset({"numba.core.config", "numba.core.options", "_nrt"}),
    # A code library of our own: its whole subject is what numba keeps to itself, and it is left out where that lacks.
    "process/compilation/inner_library.py": frozenset(
        {"numba.core.cgutils", "numba.core.codegen", "numba.core.compiler", "_codegen", "_create_empty_module"}
        | {"_finalize_dynamic_globals", "_finalize_final_module", "_get_module_for_linking", "_linking_libraries"}
        | {"_raise_if_finalized", "_reload_init", "_verify_declare_only_symbols"}
    ),
    # Documented, and told there to live in numba.core: how compiling tells that it goes on.
    "strategies/simulation/compilation.py": frozenset({"numba.core.event"}),
}
# What a function keeps between calls, and every other object of a module that changes, with the reason.
MODULE_STATE = {
    "maniple.program._latest": "the program of this process: launches name no session",
    "maniple.trained_module._TRAINED": "a module is one for all worlds and graphs of a process, and knows no trainer",
    "operators.library.elementwise.aten._ONE_AT_A_TIME": "CPython counts how deep a tree is for all threads together",
    "operators.library.shapes.opaque._FUNCTIONS": "a graph file names functions of the program that wrote it",
    "operators.lowering.step_program._HELD": "fragments of programs that live, found again by their key",
    "operators.lowering.step_program._ONE_AT_A_TIME": "two threads would lower the same fragment twice",
    "operators.proving.user_operator._REFUSED": "what a proof refused, of the context that proves",
    "operators.recording.inductor_tape._COMPILED": "what torch compiled in this process, by calls and layouts",
    "operators.recording.inductor_tape._COMPILING": "two threads would compile the same function twice",
    "operators.torch_import.from_torch._ONE_AT_A_TIME": "torch's export changes torch's own globals",
    "operators.torch_import.handler_table.TABLE": "handlers, entered as their modules are imported",
    "regions.privilege._REDUCE": "the program's own reductions, by symbol",
    "runtime.analysis.column_analysis._ROOM": "room for the records of a thread's analyses, kept from one to the next",
    "runtime.control.exit_hook._controls": "sys.excepthook is one of a process; it tells the launcher through these",
    "runtime.control.exit_hook._installed": "as above: taken once",
    "runtime.control.world._joined": "a process joins one world, once",
    "runtime.control.world._lock": "as above: by one thread",
    "runtime.devices.device_peaks.NO_CAPTURE": "torch's allocator is one, whoever captures or has it give back",
    "runtime.devices.null_tensor._here": "which stream this thread is",
    "runtime.devices.null_tensor.HOMES": "memory has one device, whoever asks for it",
    "runtime.devices.processor._SETTING": "torch's count of threads is set by one thread at a time",
    "runtime.devices.processor._here": "which processor this thread is",
    "runtime.execution.rank._RUNTIMES": "a world has one runtime, for trainers and launches together",
    "process.digest._kept": "a thread's packer, which takes longer to make than to use",
    "process.inventory._given": "the system forgets which cores a process had before it was bound",
    "runtime.storage.copy_kernels._IN_PLACE": "how the program's own reductions fold",
    "runtime.storage.copy_kernels._OUT": "as above",
    "strategies.cost_model.body_name._NUMBERS": "numbers for what has no name, never the same twice",
    "process.compilation.compiled._MODULES": "modules with compiled functions, entered as they are imported",
}
# What functions give is kept by functools: what a pure function gave, but for these.
KEPT_EFFECTS = {
    "process.inventory.announce": "a text is said once",
    "process.malloc_tuning.keep_freed": "malloc is told once",
    "strategies.exhaustive.exhaustive._search_small": "compiles, once",
    "strategies.frontier.pareto._search_small": "compiles, once",
    "strategies.simulation.compilation.compile_all": "compiles, once",
}
CONTAINERS = frozenset(
    {"list", "dict", "set", "bytearray", "deque", "defaultdict", "Counter", "OrderedDict"}
    | {"WeakValueDictionary", "WeakKeyDictionary", "WeakSet"}
)
CHANGEABLE = frozenset({"local", "Lock", "RLock", "Condition", "Event", "Semaphore", "count", "cycle", "ContextVar"})
CHANGES = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove"}
    | {"reverse", "setdefault", "sort", "update"}
)
MOST_MODULES = 20
LONGEST_FILE = 400
LONGEST_FUNCTION = 60
MOST_PUBLIC_NAMES = 60
EMPTY_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "manager", "misc", "core", "base"})
NO_CODE_ON_THE_WIRE = frozenset({"pickle", "cloudpickle", "dill", "marshal", "shelve", "multiprocessing"})
HEAVY = ("numba", "matplotlib", "sklearn", "IPython")

SOURCES = (
    sorted(path for layer in MAY_IMPORT for path in (ROOT / layer).rglob("*.py"))
    + sorted(FACE.glob("*.py"))
    + sorted(FACE.glob("testing/*.py"))
    + sorted(FACE.glob("zoo/*.py"))
)


T = TypeVar("T")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    """The program of a module; no rule changes it."""
    return ast.parse(path.read_text(encoding="utf-8"), named(path))


def broken_by(faults: Callable[[Path], list[T]]) -> dict[str, list[T]]:
    """The modules that break a rule, each with its faults."""
    return {named(path): found for path in SOURCES if (found := faults(path))}


def imported(tree: ast.Module) -> Iterator[str]:
    """The dotted names that a module imports, anywhere in it; ``from a import b`` gives ``a`` and ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def is_bare(name: str) -> bool:
    """Whether a name is relative, or reaches a layer without going through the package."""
    return name.startswith(".") or name.split(".", maxsplit=1)[0] in MAY_IMPORT


def layer_faults(layer: str, names: Iterator[str]) -> list[str]:
    """The imported names that a module of ``layer`` may not import."""
    allowed = MAY_IMPORT[layer]
    faults = []
    for name in names:
        package, _, inner = name.partition(".")
        if is_bare(name) or (package == "maniple" and inner.split(".")[0] not in allowed):
            faults.append(name)
    return faults


def foreign_assignments(tree: ast.Module) -> list[str]:
    """The places that set what an owner of a rank's state holds, from outside: `runtime.x = 1`, `del a.rank.x`."""
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store | ast.Del)
        and isinstance(node.value, ast.Name | ast.Attribute)
        and (node.value.id if isinstance(node.value, ast.Name) else node.value.attr).lstrip("_") in OWNERS
    ]


def environment_uses(tree: ast.Module) -> list[int]:
    """The lines that read or write environment variables."""
    words = {"environ", "environb", "getenv", "putenv"}
    lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in words]
    lines += [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "os" and words & {alias.name for alias in node.names}
    ]
    return sorted(lines)


def long_functions(tree: ast.Module) -> list[str]:
    return [
        f"{node.name} at line {node.lineno}: {length} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > LONGEST_FUNCTION
    ]


def test_there_is_something_to_check() -> None:
    assert {named(path).split("/")[0] for path in SOURCES} == {*MAY_IMPORT, "src"}


def test_files_and_functions_are_short() -> None:
    def faults(path: Path) -> list[str]:
        length = len(path.read_text(encoding="utf-8").splitlines())
        return [f"{length} lines"] * (length > LONGEST_FILE) + long_functions(tree_of(path))

    assert broken_by(faults) == {}


def test_modules_are_named_after_what_they_hold() -> None:
    def faults(path: Path) -> list[str]:
        words = {word for part in path.relative_to(ROOT).with_suffix("").parts for word in part.split("_")}
        return sorted(words & EMPTY_NAMES)

    assert broken_by(faults) == {}


def test_no_code_on_the_wire() -> None:
    def faults(path: Path) -> list[str]:
        return [name for name in imported(tree_of(path)) if name.split(".")[0] in NO_CODE_ON_THE_WIRE]

    assert broken_by(faults) == {}


def test_imports_point_downwards() -> None:
    def faults(path: Path) -> list[str]:
        layer = named(path).split("/")[0]
        if layer == "src":
            return [name for name in imported(tree_of(path)) if is_bare(name)]
        return layer_faults(layer, imported(tree_of(path)))

    assert broken_by(faults) == {}


def upward(path: Path) -> Iterator[tuple[str, str]]:
    """The imports of a module that lead to a room above its own, within its layer."""
    layer, room, *_ = path.relative_to(ROOT).parts
    importer = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for name in imported(tree_of(path)):
        package, _, inner = name.partition(".")
        parts = inner.split(".")
        if package != "maniple" or parts[0] != layer or len(parts) < 3 or room not in ROOMS[layer]:
            continue
        if ROOMS[layer].index(parts[1]) > ROOMS[layer].index(room):
            yield importer, ".".join(parts[:3])


def rooms_of(layer: str) -> list[Path]:
    """The folders of modules of a layer."""
    return sorted({path.parent for path in (ROOT / layer).rglob("*.py")} - {ROOT / layer})


def test_imports_between_rooms_point_downwards() -> None:
    found = {edge for path in SOURCES if named(path).split("/")[0] in ROOMS for edge in upward(path)}
    assert found == set(UPWARDS)


@pytest.mark.parametrize("layer", ROOMS)
def test_every_module_is_in_a_room_of_at_most_twenty(layer: str) -> None:
    assert [path.name for path in (ROOT / layer).glob("*.py")] == ["__init__.py"]
    assert {room.relative_to(ROOT / layer).parts[0] for room in rooms_of(layer)} == set(ROOMS[layer])
    crowded = {named(room): len(list(room.glob("*.py"))) - 1 for room in rooms_of(layer)}
    assert {room: count for room, count in crowded.items() if count > MOST_MODULES} == {}


@pytest.mark.parametrize("room", [room for layer in ROOMS for room in rooms_of(layer)], ids=named)
def test_every_room_says_what_lives_in_it(room: Path) -> None:
    said = ast.get_docstring(tree_of(room / "__init__.py"))
    assert said is not None
    assert len(said.splitlines()) >= 3


def test_environment_variables_are_read_in_one_module() -> None:
    uses = broken_by(lambda path: environment_uses(tree_of(path)))
    assert list(uses) == ["process/environment.py"]


def test_the_state_of_a_rank_is_changed_by_what_owns_it() -> None:
    assert broken_by(lambda path: foreign_assignments(tree_of(path))) == {}


@pytest.mark.parametrize("layer", sorted(MAY_IMPORT))
def test_every_layer_has_its_tests(layer: str) -> None:
    assert list((ROOT / "tests" / layer).rglob("test_*.py"))


def test_test_folders_mirror_the_layers() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders - {"laws", "oracles", "end_to_end", "face", "zoo", "benchmarks"} <= set(MAY_IMPORT)


def test_the_face_is_small() -> None:
    import maniple

    names = {name for name in (*dir(maniple), *getattr(maniple, "__all__", ())) if not name.startswith("_")}
    assert len(names - set(MAY_IMPORT) - {"annotations"}) < MOST_PUBLIC_NAMES


def test_heavy_packages_are_imported_on_use() -> None:
    code = f"import sys, maniple; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.strip() == "[]"


def is_private(name: str) -> bool:
    """Whether a name begins with an underscore, and is none of Python's own."""
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__")) and name not in DOCUMENTED


def own_attributes(trees: Iterable[ast.Module]) -> frozenset[str]:
    """The attributes that classes of some modules define, or that the modules give to objects."""
    found: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.ClassDef):
            found |= {child.name for child in node.body if isinstance(child, ast.FunctionDef)}
            found |= {child.target.id for child in node.body if isinstance(child, ast.AnnAssign)}  # type: ignore[union-attr]
    return frozenset(found)


def called(node: ast.expr) -> str:
    """The last part of the name of what is called, without what stands in brackets after it."""
    if isinstance(node, ast.Subscript):
        return called(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def private_uses(tree: ast.Module, own: frozenset[str]) -> set[str]:
    """What a module uses of others though it is not for it: imported, asked of an object, or looked up by its name."""
    found = {
        name
        for name in imported(tree)
        if not name.startswith("maniple") and (any(map(is_private, name.split("."))) or name.startswith(NO_FACE))
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            found.add(node.attr)
        if isinstance(node, ast.Call) and called(node.func) in {"getattr", "hasattr", "setattr", "import_module"}:
            texts = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            found |= {text for text in texts if (is_private(text) and text not in own) or text.startswith(NO_FACE)}
    return found


def changed_names(tree: ast.Module) -> set[str]:
    """The names whose objects a module changes, or binds anew from within a function."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            found |= set(node.names)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            found.add(called(node.value) if isinstance(node.value, ast.Name) else "")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            found.add(called(node.func.value) if isinstance(node.func.value, ast.Name) else "")
    return found


def module_state(tree: ast.Module, changed: set[str]) -> set[str]:
    """The names at a module's top that stand for what changes.

    Args:
        tree: The module.
        changed: The names that it, or what imports them from it, changes.
    """
    kinds = {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and any(called(base) in CHANGEABLE for base in node.bases)
    }
    found = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        displayed = isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)
        made = called(value.func) if isinstance(value, ast.Call) else ""
        for name in (target.id for target in targets if isinstance(target, ast.Name)):
            if made in CHANGEABLE | kinds or ((displayed or made in CONTAINERS) and name in changed):
                found.add(name)
    return found


def kept_results(tree: ast.Module) -> set[str]:
    """The functions of a module whose results functools keeps."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {
        node.name
        for node in functions
        for decorator in node.decorator_list
        if called(decorator.func if isinstance(decorator, ast.Call) else decorator) in {"cache", "lru_cache"}
    }


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("src.")


def test_private_names_of_others_are_used_in_one_module_each() -> None:
    trees = {named(path): tree_of(path) for path in SOURCES}
    own = own_attributes(trees.values())
    for path, tree in trees.items():
        if path not in PRIVATE_NAMES_IN:
            assert private_uses(tree, own) - PRIVATE_ELSEWHERE.get(path, frozenset()) == set(), path


def test_what_changes_in_a_module_is_named_with_its_reason() -> None:
    trees = {dotted(path): tree_of(path) for path in SOURCES}
    own = {module: changed_names(tree) for module, tree in trees.items()}
    changed = {module: set(names) for module, names in own.items()}
    for module, tree in trees.items():
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)):
            home = (node.module or "").removeprefix("maniple.")
            if home in changed:
                changed[home] |= {alias.name for alias in node.names if alias.name in own[module]}
    found = {f"{module}.{name}" for module, tree in trees.items() for name in module_state(tree, changed[module])}
    assert found - set(MODULE_STATE) == set(), "make it an object's, or say here why it is the process's"
    assert set(MODULE_STATE) - found == set(), "no longer there, or no longer changed"
    kept = {f"{module}.{name}" for module, tree in trees.items() for name in kept_results(tree)}
    assert set(KEPT_EFFECTS) <= kept


@pytest.mark.parametrize("file", sorted(PRIVATE_NAMES_IN))
def test_what_a_package_keeps_to_itself_says_the_version_that_the_tests_run_with(file: str) -> None:
    """That version, and of others only what was run with them: none is known to do that nothing was run with."""
    pinned = dict(line.split("==") for line in (ROOT / "constraints-dev.txt").read_text().splitlines() if "==" in line)
    package = Path(file).stem.removesuffix("_internals")
    version = ".".join(pinned[package].split(".")[:2]) if package in pinned else "3.11"
    name = "CPython" if package == "python" else package
    assert f"Checked with {name} {version}, and with no other" in (ast.get_docstring(tree_of(ROOT / file)) or "")


# Each rule above, shown a program that breaks it.


def test_a_forbidden_import_is_seen() -> None:
    tree = ast.parse("def f():\n    from maniple import strategies\n    import runtime.rank\n    from . import task\n")
    assert layer_faults("runtime", imported(tree)) == [
        "maniple",
        "maniple.strategies",
        "runtime.rank",
        ".",
        "..task",
    ]
    assert layer_faults("strategies", imported(ast.parse("from maniple.mappers.plan_mapper import PlanMapper"))) == [
        "maniple.mappers.plan_mapper",
        "maniple.mappers.plan_mapper.PlanMapper",
    ]
    assert layer_faults("operators", imported(ast.parse("from maniple.trainer import Trainer"))) != []
    assert (
        layer_faults("operators", imported(ast.parse("from maniple.runtime.schedule.schedule import Schedule"))) == []
    )


def test_a_use_of_the_environment_is_seen() -> None:
    assert environment_uses(ast.parse("import os\nos.environ['A']\nos.getenv('A')\nfrom os import environ\n")) == [
        2,
        3,
        4,
    ]


def test_a_long_function_is_seen() -> None:
    body = "def f():\n" + "    pass\n" * LONGEST_FUNCTION
    assert long_functions(ast.parse(body)) == [f"f at line 1: {LONGEST_FUNCTION + 1} lines"]
    assert long_functions(ast.parse("def f():\n" + "    pass\n" * (LONGEST_FUNCTION - 1))) == []


def test_a_change_of_what_another_owns_is_seen() -> None:
    body = "def f(self, runtime, rank):\n    self.rank = rank\n    runtime.last = 1\n    self._runtime.taken += 1\n"
    body += "    del a.resources.engine\n    runtime.endings.add(f)\n    a = b.rank.world, rank.table[1]\n"
    assert foreign_assignments(ast.parse(body)) == [
        "line 3: runtime.last",
        "line 4: self._runtime.taken",
        "line 5: a.resources.engine",
    ]


def test_a_private_name_of_another_is_seen() -> None:
    program = """
import sys
from numba.core import cgutils
from torch._C import thing
class Own:
    _kept: int = 0
    def _ask(self): self._made = 1
def f(x, own):
    own._ask(), own._made, own._kept, x._asdict(), x.__dict__
    sys._getframe(1), getattr(x, "_hooks"), import_module("_signal")
"""
    tree = ast.parse(program)
    found = private_uses(tree, own_attributes([tree]))
    assert found == {
        *("numba.core", "numba.core.cgutils", "torch._C", "torch._C.thing"),
        *("_getframe", "_hooks", "_signal"),
    }


def test_state_of_a_module_is_seen() -> None:
    program = """
import threading
table, constant, other, names, total, _lock = {}, [], (), set(), 0, None
TABLE = {}
CONSTANT: list[int] = [1]
_lock = threading.Lock()
class Here(threading.local): pass
here = Here()
QUEUE = deque[int]()
total = 0
kept = []
def f():
    global total
    TABLE["a"] = 1
    QUEUE.append(2)
    kept[:] = [CONSTANT]
    local = []
    local.append(1)
@cache
def g(): ...
"""
    tree = ast.parse(program)
    assert module_state(tree, changed_names(tree)) == {"TABLE", "_lock", "here", "QUEUE", "total", "kept"}
    assert kept_results(tree) == {"g"}
