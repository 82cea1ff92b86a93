"""The tables of docs/explanation/antichain.md, from what benchmarks/antichain.py has measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Row = dict[str, object]

# Exact straight pipelines of the published profiles: 4 and 8 stages with communication at 1 GB/s, then without.
STRAIGHT = {
    "alexnet": (0.066454, 0.066454, 0.028721, 0.028721),
    "vgg16": (0.411042, 0.411042, 0.216450, 0.159531),
    "resnet18": (0.201601, 0.201601, 0.069523, 0.035207),
    "resnet50": (0.256901, 0.256901, 0.111497, 0.056684),
    "resnet101": (0.132752, 0.131187, 0.103941, 0.052125),
    "densenet121": (0.102612, 0.102612, 0.081985, 0.041615),
    "gnmt_large": (0.137129, 0.082845, 0.137129, 0.082845),
}
# The published optimizer, replicated with communication on 4 and 8 devices; then on 2 and 4 servers of 4 devices.
REPLICATED = {
    "alexnet": (0.034217, 0.018874),
    "vgg16": (0.205521, 0.103833),
    "resnet18": (0.100004, 0.050783),
    "resnet50": (0.162881, 0.092012),
    "resnet101": (0.116555, 0.096592),
    "densenet121": (0.089976, 0.047118),
    "gnmt_large": (0.137129, 0.082845),
}
TWO_LEVELS = {"alexnet": (0.019818, 0.015099), "vgg16": (0.157821, 0.067134), "resnet50": (0.076194, 0.043208)}
MEANS = {4: 3.4, 8: 3.76}
WITHIN_S = 1e-6

SPEED_UPS = {"replicated": "replicated", "straight": "straight"} | {
    name: f"equal {name}" for name in ("compute", "memory", "layers")
}


def number(row: Row, key: str) -> float:
    """Give a measured number."""
    return float(str(row[key]))


def markdown(rows: Sequence[Row]) -> str:
    """Give rows as a table, all under the keys of the first."""
    heads = list(rows[0])
    lines = [heads, ["---"] * len(heads), *([str(row[head]) for head in heads] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def seconds(value: float) -> str:
    """Give a time with two digits, in milliseconds below a tenth of a second."""
    return f"{value:.2g} s" if value >= 0.1 else f"{value * 1e3:.2g} ms"


def pipelines(rows: Sequence[Row]) -> list[Row]:
    """Show the bottleneck of every profile in every case, and the slowest search."""
    columns = [("4", True, False), ("8", True, False), ("4", True, True), ("8", True, True), ("4", False, False)]
    columns += [("8", False, False), ("4x2", True, True), ("4x4", True, True)]
    found: list[Row] = []
    for profile in dict.fromkeys(row["profile"] for row in rows):
        own = [row for row in rows if row["profile"] == profile]
        shown: Row = {"profile": profile}
        for levels, linked, replicate in columns:
            head = f"{levels}{' repl.' if replicate else ''}{' comm' if linked and 'x' not in levels else ''}"
            row = case(own, levels, linked=linked, replicate=replicate)
            gap = "" if row is None or row["exact"] else f" ({100 * number(row, 'gap'):.2g} %)"
            shown[head] = "" if row is None else f"{number(row, 'bottleneck_s'):.6f}{gap}"
        shown["slowest flat search"] = seconds(max(number(r, "search_s") for r in own if "x" not in str(r["levels"])))
        found.append(shown)
    return found


def case(rows: Sequence[Row], levels: str, *, linked: bool, replicate: bool) -> Row | None:
    """Find the row of one case of a profile."""
    for row in rows:
        if (row["levels"], row["bandwidth"] is not None, row["replicate"]) == (levels, linked, replicate):
            return row
    return None


def placements(rows: Sequence[Row]) -> list[Row]:
    """Show the largest loads beside the published ones."""
    return [
        {
            "workload": row["workload"],
            "load ms": f"{number(row, 'max_load_ms'):.6g}{'' if row['exact'] else ' (not proven)'}",
            "published exact": row["published_exact_ms"] or f"not finished; linearised {row['published_linear_ms']}",
            "its seconds": row["published_exact_s"] or row["published_linear_s"],
            "ours": f"{number(row, 'search_s'):.2g}",
        }
        for row in rows
    ]


def latencies(rows: Sequence[Row]) -> list[Row]:
    """Show the latency of one sample."""
    return [
        {
            "workload": row["workload"],
            "latency ms": f"{number(row, 'latency_ms'):.1f}",
            "gap": f"{100 * number(row, 'gap'):.2g} %",
            "search": seconds(number(row, "search_s")),
        }
        for row in rows
    ]


def balances(rows: Sequence[Row], name: str, count: str) -> list[Row]:
    """Show the worst load over the mean, at 8 stages."""
    kinds = {"antichain": "antichain"} | {kind: SPEED_UPS[kind] for kind in ("compute", "memory", "layers")}
    return [
        {name: row[name]} | {head: f"{number(row, f'{kind}_balance'):.2f}" for kind, head in kinds.items()}
        for row in rows
        if row[count] == 8
    ]


def speed_ups(rows: Sequence[Row], means: Sequence[Row]) -> list[Row]:
    """Show how much faster a step is than on one device, on 4 and on 8, and the geometric means."""
    found: list[Row] = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        found.append({"model": model, **beside(own)})
    return [*found, {"model": "**geometric mean**", **beside(means)}]


def beside(rows: Sequence[Row]) -> Row:
    """Put the speed-ups on 4 and on 8 devices side by side."""
    return {f"{row['devices']}: {head}": f"{number(row, kind):.2f}" for row in rows for kind, head in SPEED_UPS.items()}


def searches(rows: Sequence[Row]) -> list[Row]:
    """Show how long the zoo's searches took beside what they may take."""
    return [
        {
            "model": row["model"],
            "devices": row["devices"],
            "search": seconds(number(row, "search_s")),
            "at most": seconds(number(row, "allowed_s")),
        }
        for row in rows
    ]


def figures(tables: dict[str, list[Row]]) -> list[Row]:
    """Hold what was measured against what was set out to be reached; a row for each."""
    found = [
        {
            "figure": f"mean speed-up on {row['devices']} GPUs",
            "wanted": f"above {MEANS[int(str(row['devices']))]}",
            "measured": f"{number(row, 'replicated'):.2f}",
            "reached": yes(number(row, "replicated") > MEANS[int(str(row["devices"]))]),
        }
        for row in tables["means over the zoo"]
    ]
    late = [row for row in tables["zoo"] if number(row, "search_s") > number(row, "allowed_s")]
    found.append(counted("searches of the zoo in max(5 ms, published / 10)", tables["zoo"], late))
    if "pipelines" in tables:
        found += published(tables)
    return found


def published(tables: dict[str, list[Row]]) -> list[Row]:
    """Hold the published files' results against what is published about them."""
    rows, loads = tables["pipelines"], tables["placements"]
    straight = compared(rows, STRAIGHT, [(4, True), (8, True), (4, False), (8, False)], replicate=False)
    replicated = compared(rows, REPLICATED, [(4, True), (8, True)], replicate=True)
    levels = compared(rows, TWO_LEVELS, [("4x2", True), ("4x4", True)], replicate=True)
    timed = [row for row in rows if row["replicate"] and row["levels"] == "8" and row["bandwidth"] is not None]
    limits = dict.fromkeys(STRAIGHT, 0.2) | {"gnmt_large": 2.0, "inception_v3": 10.0, "nasnetamobile": 20.0}
    timed = [row for row in timed if row["profile"] in limits]
    late = [row for row in timed if number(row, "search_s") > limits[str(row["profile"])]]
    mobile = [row for row in rows if row["profile"] == "nasnetamobile" and row["bandwidth"] is None]
    wide = [row for row in mobile if number(row, "gap") > 0.01]
    known = [row for row in loads if row["published_exact_ms"] is not None]
    slow = [row for row in loads if number(row, "search_s") >= number(row, finished(row))]
    other = [row for row in loads if row["published_exact_ms"] is None]
    return [
        counted("straight pipelines equal to the exact ones to 1e-6 s", straight, off(straight, lambda a, b: a != b)),
        counted("replicated pipelines never above the published", replicated, off(replicated, lambda a, b: a > b)),
        counted("two levels never above the published", levels, off(levels, lambda a, b: a > b)),
        counted("replicated searches for 8 in 0.2, 2, 10 and 20 s", timed, late),
        counted("nasnetamobile without communication within 1 %", mobile, wide),
        counted(
            "loads equal to the published exact ones to 6 digits",
            known,
            [row for row in known if row["max_load_ms"] != row["published_exact_ms"]],
        ),
        counted(
            "Inception's loads below the linearised ones, or proven",
            other,
            [r for r in other if not r["exact"] and number(r, "max_load_ms") >= number(r, "published_linear_ms")],
        ),
        counted(
            "loads found sooner than by the published exact search, or the linearised where that does not finish",
            loads,
            slow,
        ),
    ]


def finished(row: Row) -> str:
    """Name the seconds of the published search that finished: the exact one, or the linearised."""
    return "published_linear_s" if row["published_exact_s"] is None else "published_exact_s"


def compared(
    rows: Sequence[Row], known: dict[str, tuple[float, ...]], cases: Sequence[tuple[object, bool]], *, replicate: bool
) -> list[Row]:
    """Put published bottlenecks beside ours."""
    found: list[Row] = []
    for profile, values in known.items():
        own = [row for row in rows if row["profile"] == profile]
        for (levels, linked), value in zip(cases, values, strict=True):
            row = case(own, str(levels), linked=linked, replicate=replicate)
            if row is not None:
                found.append({"ours": row["bottleneck_s"], "published": value})
    return found


def off(rows: Sequence[Row], differs: Callable[[float, float], bool]) -> list[Row]:
    """Keep rows that differ by more than rounding."""
    return [
        row
        for row in rows
        if abs(number(row, "ours") - number(row, "published")) > WITHIN_S
        and differs(number(row, "ours"), number(row, "published"))
    ]


def counted(figure: str, rows: Sequence[Row], missed: Sequence[Row]) -> Row:
    """Give the row of a figure that holds for each of some rows."""
    return {
        "figure": figure,
        "wanted": f"all {len(rows)}",
        "measured": str(len(rows) - len(missed)),
        "reached": yes(bool(rows) and not missed),
    }


def yes(reached: bool) -> str:  # noqa: FBT001 (what it turns into a word)
    """Say whether a figure was reached."""
    return "yes" if reached else "**no**"
