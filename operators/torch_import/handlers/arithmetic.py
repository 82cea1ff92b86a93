"""Arithmetic: pointwise operators, reductions, products, and operators that keep some dimensions whole."""

from __future__ import annotations

from math import prod
from typing import Any

from maniple.operators.library.elementwise.aten import Aten, AtenContraction, AtenLinear
from maniple.operators.library.elementwise.extremum import Extremum
from maniple.operators.library.elementwise.pointwise import Add, ReLU
from maniple.operators.library.shapes.layout import Triangle
from maniple.operators.operator.axes import activation_axes
from maniple.operators.operator.builder import Tensor
from maniple.operators.operator.operator import FLOAT_DTYPES
from maniple.operators.operator.pattern_text import Pattern, broadcast, text
from maniple.operators.torch_import.exported_call import Call, spell
from maniple.operators.torch_import.handler_table import POINTWISE, handles
from maniple.operators.torch_import.handlers.layout import axes, dimension, permute, reshape
from maniple.operators.torch_import.translation import Translation

NAMED_POINTWISE = (
    *("hardswish", "__and__", "__or__", "__xor__", "subtract", "not_equal", "arctan2", "fix", "absolute"),
    *("where", "log_sigmoid", "to", "type_as", "_to_copy", "copy", "fill", "masked_fill", "greater", "less"),
    *("greater_equal", "less_equal", "multiply", "divide", "true_divide", "negative", "clip", "rsub", "pow"),
    *("arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "selu", "relu6", "isfinite", "isreal", "square"),
    "floor_divide",
)
"""Operators of one element of each operand that torch does not tag so."""


def pointwise(into: Translation, call: Call, **other: str) -> Any:
    """An operator of one element of each operand, which repeats dimensions of one element."""
    written, operands = spell(call, **other)
    given = [into.broadcastable(operand) for operand in operands]
    patterns, result = broadcast(call.shape, [tensor.shape for tensor in given])
    if any(tensor_pattern and not result for tensor_pattern in patterns):
        return None
    missing = [axis for axis in result if all(axis not in pattern for pattern in patterns)]
    sizes = tuple((axis, call.shape[result.index(axis)]) for axis in missing)
    if missing:  # known values that repeat are kept once
        written = f"expand({written}, shape0)"
    found = Aten(written, text(patterns, [result] * len(call.shapes)), call.dtypes, sizes)
    return into.results(call, found, given)


@handles(POINTWISE, *NAMED_POINTWISE)
def _pointwise(into: Translation, call: Call) -> Any:
    return pointwise(into, call)


@handles("prelu")
def _prelu(into: Translation, call: Call) -> Any:
    """With one slope, or with a slope for every channel: dimension 1, whatever follows it."""
    x, weight = into.tensor(call["self"]), into.tensor(call["weight"])
    if prod(weight.shape) == 1:
        return pointwise(into, call)
    names = axes(x)
    return into.apply(Aten("prelu(x0, x1)", text([names, names[1:2]], [names]), call.dtypes), (x, weight))[0]


@handles("rrelu")
def _rrelu(into: Translation, call: Call) -> Any:
    """With random slopes in training, and with their mean otherwise."""
    return None if call["training"] else pointwise(into, call)


@handles("to", "type_as", "_to_copy", "float", "double", "long", "bool")
def _convert(into: Translation, call: Call) -> Any:
    tensor = into.tensor(call["self"])
    if tensor.dtype == call.dtypes[0]:
        return tensor
    names = axes(tensor)
    kind = AtenLinear if tensor.dtype in FLOAT_DTYPES and call.dtypes[0] in FLOAT_DTYPES else Aten
    return into.apply(kind(f"to.dtype(x0, {call.dtypes[0]})", text([names], [names]), call.dtypes), (tensor,))[0]


@handles("relu")
def _relu(into: Translation, call: Call) -> Any:
    tensor = into.tensor(call["self"])
    return into.apply(ReLU(), (tensor,))[0] if tensor.shape and tensor.dtype in FLOAT_DTYPES else pointwise(into, call)


@handles("add.Tensor")
def _add(into: Translation, call: Call) -> Any:
    operands = call.tensors()
    if len(operands) == 2 and call["alpha"] == 1:
        a, b = (into.broadcastable(operand) for operand in operands)
        if a.shape == b.shape != () and a.dtype == b.dtype and a.dtype in FLOAT_DTYPES:
            return into.apply(Add(), (a, b))[0]
    return pointwise(into, call)


@handles("copy")
def _copy(into: Translation, call: Call) -> Any:
    source = into.tensor(call["src"])
    if (source.shape, source.dtype) == (call.shape, call.dtypes[0]):
        return source
    return into.expand(source, call.shape) if source.dtype == call.dtypes[0] else None


@handles("addmm", "addbmm", "baddbmm", "addmv", "addr")
def _product_and_sum(into: Translation, call: Call) -> Any:
    """``beta * self + alpha * (a @ b)``, as a product and a sum."""
    a, b = (into.tensor(item) for name, item in call.arguments.items() if name not in {"self", "beta", "alpha"})
    if call.packet == "addr":
        product = outer(into, a, b)
    else:
        product = matmul(into, a, b)
        product = total(into, product, [0], product.dtype) if call.packet == "addbmm" else product
    base, (beta, alpha) = into.broadcastable(call["self"]), (call["beta"], call["alpha"])
    if (beta, alpha) == (1, 1):
        return add(into, product, base)
    patterns, result = broadcast(product.shape, [product.shape, base.shape])
    kept, written = ([product, base], f"add.Tensor(mul.Scalar(x0, {alpha}), mul.Scalar(x1, {beta}))")
    if not beta:  # then torch does not look at the tensor
        kept, patterns, written = [product], patterns[:1], f"mul.Scalar(x0, {alpha})"
    return into.apply(AtenLinear(written, text(patterns, [result]), (product.dtype,)), kept)[0]


def add(into: Translation, a: Tensor, b: Tensor) -> Tensor:
    """The sum of a tensor and one that repeats along it."""
    if a.shape == b.shape:
        return into.apply(Add(), (a, b))[0]
    patterns, result = broadcast(a.shape, [a.shape, b.shape])
    return into.apply(AtenLinear("add.Tensor(x0, x1)", text(patterns, [result]), (a.dtype,)), (a, b))[0]


# -- products -------------------------------------------------------------------------------------------------------


@handles("matmul", "mm", "bmm", "mv", "dot", "vdot", "inner", "__rmatmul__")
def _matmul(into: Translation, call: Call) -> Any:
    a, b = (into.tensor(item) for item in call.tensors())
    if call.packet == "inner":
        if not a.shape or not b.shape:
            return None
        b = permute(into, b, [*range(len(b.shape))][::-1]) if len(b.shape) == 2 else b
        if len(b.shape) > 2:
            return None
    return matmul(into, a, b)


def matmul(into: Translation, a: Tensor, b: Tensor) -> Tensor:
    """A matrix product with torch.matmul's meaning."""
    rows, columns = ["m"] * (len(a.shape) > 1), ["n"] * (len(b.shape) > 1)
    outer = max(len(a.shape), len(b.shape), 2) - 2
    names = [*("b", "h")[:outer], *(f"h{axis}" for axis in range(2, outer))]

    def batch(tensor: Tensor, other: Tensor) -> Pattern:
        shape, rest = tensor.shape[:-2], other.shape[:-2]
        found = []
        for axis, extent in enumerate(shape):
            back = len(shape) - axis
            repeats = extent == 1 and back <= len(rest) and rest[-back] != 1
            found.append("1" if repeats else names[len(names) - back])
        return found

    left = [*batch(a, b), *rows, "k"]
    right = [*batch(b, a), "k", *columns]
    result = [*names, *rows, *columns]
    return into.apply(AtenContraction("matmul(x0, x1)", text([left, right], [result]), (a.dtype,)), (a, b))[0]


@handles("einsum")
def _einsum(into: Translation, call: Call) -> Any:
    given = [into.tensor(item) for item in call["tensors"]]
    equation = call["equation"].replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow or not equation.replace(",", "").replace("->", "").isalpha():
        return None
    if any(len(set(term)) != len(term) for term in (*terms, right)):
        return None
    extents: dict[str, int] = {}
    for term, tensor in zip(terms, given, strict=True):
        for letter, extent in zip(term, tensor.shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                return None
    operands = ", ".join(f"x{place}" for place in range(len(given)))
    rule = text([list(term) for term in terms], [list(right)])
    kind = AtenContraction if len(given) > 1 else AtenLinear
    return into.apply(kind(f"einsum({equation!r}, [{operands}])", rule, call.dtypes), given)[0]


@handles("outer", "ger")
def _outer(into: Translation, call: Call) -> Any:
    a, b = (into.tensor(item) for item in call.tensors())
    return outer(into, a, b) if a.dtype == b.dtype else None


def outer(into: Translation, a: Tensor, b: Tensor) -> Tensor:
    """The product of every element of one vector and every element of the other."""
    return into.apply(Aten("outer(x0, x1)", "m, n -> m n", (a.dtype,)), (a, b))[0]


# -- reductions -----------------------------------------------------------------------------------------------------


@handles("sum", "mean")
def _sum(into: Translation, call: Call) -> Any:
    tensor = into.tensor(call["self"])
    found = call.arguments.get("dim")
    rank = len(tensor.shape)
    dims = sorted({dimension(axis, rank) for axis in found}) if found else list(range(rank))
    keep = bool(call.arguments.get("keepdim", False))
    return total(into, tensor, dims, call.dtypes[0], keep=keep, mean=call.packet == "mean")


def total(
    into: Translation, tensor: Tensor, dims: list[int], dtype: str, *, keep: bool = False, mean: bool = False
) -> Tensor:
    """The sum or the mean over dimensions; parts of a split add up."""
    names = axes(tensor)
    result = ["1" if axis in dims else name for axis, name in enumerate(names) if keep or axis not in dims]
    written = f"sum.dim_IntList(x0, {dims}, {keep}, dtype={dtype})" if names else f"sum(x0, dtype={dtype})"
    if mean:
        written = f"div.Scalar({written}, {prod(tensor.shape[axis] for axis in dims)})"
    kind = AtenLinear if tensor.dtype in FLOAT_DTYPES else Aten
    return into.apply(kind(written, text([names], [result]), (dtype,)), (tensor,))[0]


LINES = (
    *("softmax", "log_softmax", "cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"),
    *(
        "sort",
        "topk",
        "argsort",
        "flip",
        "roll",
        "glu",
        "argmax",
        "argmin",
        "max.dim",
        "min.dim",
        "median",
        "nanmedian",
    ),
    *("logsumexp", "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "prod"),
    *("any", "all", "kthvalue", "mode", "diff", "count_nonzero", "nansum", "nanmean", "softmin", "aminmax"),
    *("special_log_softmax", "special_softmax", "special_logsumexp", "fliplr", "flipud", "normalize", "unfold"),
)
"""Operators along some dimensions, which need these whole."""


@handles(*LINES)
def _lines(into: Translation, call: Call) -> Any:
    return lines(into, call, _dims(call))


def _dims(call: Call) -> list[int] | None:
    """The dimensions that an operator works along; None for all."""
    match call.packet:
        case "flipud":
            return [0]
        case "fliplr":
            return [1]
    for name in ("dim", "dims", "axis", "dimension"):
        found = call.arguments.get(name)
        if isinstance(found, int):
            return [found]
        if isinstance(found, list | tuple) and found:
            return list(found)
    return None


def lines(into: Translation, call: Call, dims: list[int] | None) -> Any:
    """An operator along some dimensions of its first operand, which stay whole; others are independent."""
    written, operands = spell(call)
    given = [into.tensor(operand) for operand in operands]
    if len(given) != 1 or not given[0].shape or dims is None:
        return None
    shape = given[0].shape
    along = {dimension(axis, len(shape)) for axis in dims}
    names = list(activation_axes(len(shape)))
    pattern = [f"{name}!" if axis in along else name for axis, name in enumerate(names)]
    results = []
    for found in call.shapes:
        if len(found) == len(shape):
            kept = [*range(len(shape))]
        elif len(found) == len(shape) - len(along):
            kept = [axis for axis in range(len(shape)) if axis not in along]
        else:
            return None
        if any(axis not in along and found[place] != shape[axis] for place, axis in enumerate(kept)):
            return None
        results.append(
            [
                str(found[place]) if axis in along and found[place] != shape[axis] else pattern[axis]
                for place, axis in enumerate(kept)
            ]
        )
    return into.results(call, Aten(written, text([pattern], results), call.dtypes), given)


@handles("renorm")
def _renorm(into: Translation, call: Call) -> Any:
    """Every part along the dimension is bounded by its norm over all others."""
    rank = len(call.shape)
    return lines(into, call, [axis for axis in range(rank) if axis != dimension(call["dim"], rank)])


@handles("tril", "triu")
def _triangle(into: Translation, call: Call) -> Any:
    tensor = into.tensor(call["self"])
    if tensor.dtype not in FLOAT_DTYPES:
        return lines(into, call, [-2, -1])
    return into.apply(Triangle(len(tensor.shape), call["diagonal"], call.packet == "triu"), (tensor,))[0]


@handles("amax", "amin", "max", "min")
def _extremum(into: Translation, call: Call) -> Any:
    """The extremum alone; with its place, which no fold gives, an operator along whole lines."""
    tensor, rank = into.tensor(call["self"]), len(call["self"].shape)
    if call.many or len(call.tensors()) > 1 or not rank or tensor.dtype not in FLOAT_DTYPES:
        return pointwise(into, call) if len(call.tensors()) > 1 else lines(into, call, _dims(call))
    dims = _dims(call) or range(rank)
    along = tuple(sorted({dimension(axis, rank) for axis in dims}))
    keep = bool(call.arguments.get("keepdim", False))
    return into.apply(Extremum(along, rank, keep, call.packet in {"amin", "min"}), (tensor,))[0]


@handles("squeeze_copy", "view_copy")
def _copies(into: Translation, call: Call) -> Any:
    return reshape(into, into.tensor(call["self"]), call.shape)
