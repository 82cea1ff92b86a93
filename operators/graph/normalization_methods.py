"""Builder methods for normalizations, with torch.nn's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from maniple.operators.graph.writer import GraphWriter
from maniple.operators.library.norms.feature_norm import GroupNorm, RMSNorm
from maniple.operators.library.norms.normalization import BatchNorm, LayerNorm
from maniple.operators.library.norms.softmax import Softmax
from maniple.operators.operator.builder import Tensor
from maniple.operators.operator.operator import Initial
from maniple.process.error import RequestError


class NormalizationMethods(GraphWriter):
    """The methods that add normalizations."""

    @final
    def softmax(self, x: Tensor, dim: int, name: str | None = None) -> Tensor:
        """Exponentials that sum to 1 along ``dim``, as torch.nn.Softmax.

        Raises:
            RequestError: There is no such dimension.
        """
        return self.append(Softmax(_dimension("softmax.dim", dim, x), len(x.shape)), (x,), (), name)

    @final
    def log_softmax(self, x: Tensor, dim: int, name: str | None = None) -> Tensor:
        """The logarithm of the softmax along ``dim``, as torch.nn.LogSoftmax.

        Raises:
            RequestError: There is no such dimension.
        """
        return self.append(Softmax(_dimension("log_softmax.dim", dim, x), len(x.shape), log=True), (x,), (), name)

    @final
    def layer_norm(
        self,
        x: Tensor,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,  # as in torch.nn
        bias: bool = True,  # as in torch.nn
        name: str | None = None,
        *,
        parameters: Sequence[Tensor | None] = (),
    ) -> Tensor:
        """Each sample's last dimensions with mean 0 and variance 1, as torch.nn.LayerNorm.

        Args:
            x: (N, ..., *normalized_shape).
            normalized_shape: The last dimensions.
            eps: Added to the variance.
            elementwise_affine: Whether there is a weight.
            bias: Whether there is a bias beside it.
            name: The node's name.
            parameters: An existing weight, and bias, to share.

        Raises:
            RequestError: The arguments do not fit.
        """
        last = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        operator = LayerNorm(last, len(x.shape), eps, elementwise_affine, bias)
        return self.append(operator, (x,), parameters, name)

    @final
    def batch_norm(
        self,
        x: Tensor,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,  # as in torch.nn
        name: str | None = None,
        *,
        statistics: Sequence[Tensor] | None = None,
        parameters: Sequence[Tensor | None] = (),
    ) -> Tensor:
        """Each channel with mean 0 and variance 1 over the mini-batch, as torch.nn.BatchNorm1d, 2d and 3d.

        Args:
            x: (N, channels, ...).
            eps: Added to the variance.
            momentum: The share of the mini-batch in the next running statistics.
            affine: Whether there are weight and bias.
            name: The node's name.
            statistics: Existing buffers for the running mean and variance; by default they are made, as
                ``name.running_mean`` and ``name.running_var``.
            parameters: An existing weight and bias to share.

        Raises:
            RequestError: The arguments do not fit.
        """
        if len(x.shape) < 2:
            raise RequestError(f"batch_norm: expected an input (batch, channels, ...), got '{x.name}' {x.shape}")
        operator = BatchNorm(x.shape[1], len(x.shape), eps, momentum, affine)
        label = self.fresh(operator.name) if name is None else name
        mean, variance = statistics or (
            self.buffer(f"{label}.running_mean", x.shape[1:2], x.dtype),
            self.buffer(f"{label}.running_var", x.shape[1:2], x.dtype, Initial("constant", 1.0)),
        )
        found, next_mean, next_variance = self.apply(operator, (x, mean, variance), parameters, label)
        self.assign(mean, next_mean)
        self.assign(variance, next_variance)
        return found

    @final
    def rms_norm(
        self,
        x: Tensor,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,  # as in torch.nn
        name: str | None = None,
        *,
        parameters: Sequence[Tensor | None] = (),
    ) -> Tensor:
        """Each sample's last dimensions with mean square 1, as torch.nn.RMSNorm; see ``layer_norm``.

        Raises:
            RequestError: The arguments do not fit.
        """
        last = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        return self.append(RMSNorm(last, len(x.shape), eps, elementwise_affine), (x,), parameters, name)

    @final
    def group_norm(
        self,
        x: Tensor,
        num_groups: int,
        eps: float = 1e-5,
        affine: bool = True,  # as in torch.nn
        name: str | None = None,
        *,
        parameters: Sequence[Tensor | None] = (),
    ) -> Tensor:
        """Each sample's groups of channels with mean 0 and variance 1, as torch.nn.GroupNorm.

        Args:
            x: (N, channels, ...).
            num_groups: Divides the channels; as many as channels: torch.nn.InstanceNorm.
            eps: Added to the variance.
            affine: Whether there are weight and bias.
            name: The node's name.
            parameters: An existing weight and bias to share.

        Raises:
            RequestError: The arguments do not fit.
        """
        if len(x.shape) < 2:
            raise RequestError(f"group_norm: expected an input (batch, channels, ...), got '{x.name}' {x.shape}")
        return self.append(GroupNorm(num_groups, x.shape[1], len(x.shape), eps, affine), (x,), parameters, name)


def _dimension(name: str, dim: int, x: Tensor) -> int:
    """A dimension counted from 0, where a negative one counts from the end."""
    rank = len(x.shape)
    if not -rank <= dim < rank:
        raise RequestError(
            f"{name}: expected a dimension from {-rank} to {rank - 1} of '{x.name}' {x.shape}, got {dim}"
        )
    return dim % rank
