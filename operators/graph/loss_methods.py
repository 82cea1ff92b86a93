"""Builder methods for losses, with torch.nn's arguments."""

from __future__ import annotations

from typing import final

from maniple.operators.graph.writer import GraphWriter
from maniple.operators.library.losses.loss import CrossEntropy
from maniple.operators.library.losses.pointwise_loss import NegativeLogLikelihood, PointwiseLoss
from maniple.operators.library.norms.softmax import Softmax
from maniple.operators.operator.builder import Tensor
from maniple.operators.operator.operator import FLOAT_DTYPES


class LossMethods(GraphWriter):
    """The methods that add losses; a mean is over the whole batch, however it is cut."""

    @final
    def cross_entropy(
        self,
        logits: Tensor,
        labels: Tensor,
        name: str | None = None,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """The cross-entropy of the batch, a scalar, as torch.nn.CrossEntropyLoss.

        Args:
            logits: (N, classes, ...).
            labels: (N, ...) class numbers, int64; or (N, classes, ...) probabilities of the logits' dtype.
            name: The node's name.
            weight: (classes,) what a sample of each class counts for.
            ignore_index: The label of samples that do not count.
            reduction: ``"mean"`` over the valid labels of the whole batch, or ``"sum"``.
            label_smoothing: The share of the label's probability that all classes have together.

        Raises:
            RequestError: The shapes or dtypes do not fit.
        """
        operator = CrossEntropy(ignore_index, reduction, label_smoothing)
        if labels.dtype in FLOAT_DTYPES and len(labels.shape) == len(logits.shape):
            likely = self.append(Softmax(1, len(logits.shape), log=True), (logits,), (), self.fresh("log_softmax"))
            soft = PointwiseLoss("soft_cross_entropy", reduction, label_smoothing)
            return self.append(soft, (likely, labels, weight), (), name or self.fresh("cross_entropy"))
        every = labels if reduction == "mean" else None
        return self.append(operator, (logits, labels, every, weight), (), name)

    @final
    def nll_loss(
        self,
        x: Tensor,
        labels: Tensor,
        name: str | None = None,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> Tensor:
        """The negative logarithms of the labels' probabilities, as torch.nn.NLLLoss; see ``cross_entropy``.

        Raises:
            RequestError: The shapes or dtypes do not fit.
        """
        every = labels if reduction == "mean" else None
        return self.append(NegativeLogLikelihood(ignore_index, reduction), (x, labels, every, weight), (), name)

    @final
    def mse_loss(self, x: Tensor, target: Tensor, reduction: str = "mean", name: str | None = None) -> Tensor:
        """Squared differences, as torch.nn.MSELoss.

        Args:
            x: (N, ...).
            target: As ``x``.
            reduction: ``"mean"`` or ``"sum"`` of all elements, or ``"none"``.
            name: The node's name.

        Raises:
            RequestError: The shapes or dtypes do not fit.
        """
        return self._pointwise(PointwiseLoss("mse", reduction), (x, target), name)

    @final
    def l1_loss(self, x: Tensor, target: Tensor, reduction: str = "mean", name: str | None = None) -> Tensor:
        """Absolute differences, as torch.nn.L1Loss; see ``mse_loss``."""
        return self._pointwise(PointwiseLoss("l1", reduction), (x, target), name)

    @final
    def smooth_l1_loss(
        self, x: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0, name: str | None = None
    ) -> Tensor:
        """Differences, squared where they are below ``beta``, as torch.nn.SmoothL1Loss; see ``mse_loss``."""
        return self._pointwise(PointwiseLoss("smooth_l1", reduction, beta), (x, target), name)

    @final
    def huber_loss(
        self, x: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, name: str | None = None
    ) -> Tensor:
        """Differences, squared where they are below ``delta``, as torch.nn.HuberLoss; see ``mse_loss``."""
        return self._pointwise(PointwiseLoss("huber", reduction, delta), (x, target), name)

    @final
    def binary_cross_entropy(
        self,
        x: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        reduction: str = "mean",
        name: str | None = None,
    ) -> Tensor:
        """The cross-entropy of probabilities and targets from 0 to 1, as torch.nn.BCELoss; see ``mse_loss``.

        ``weight`` has the extent of the last dimension.
        """
        return self._pointwise(PointwiseLoss("bce", reduction), (x, target, weight), name)

    @final
    def binary_cross_entropy_with_logits(
        self,
        x: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """The cross-entropy of logits and targets from 0 to 1, as torch.nn.BCEWithLogitsLoss; see ``mse_loss``.

        Both weights have the extent of the last dimension.
        """
        return self._pointwise(PointwiseLoss("bce_with_logits", reduction), (x, target, weight, pos_weight), name)

    @final
    def kl_div(
        self,
        x: Tensor,
        target: Tensor,
        reduction: str = "mean",
        log_target: bool = False,  # as in torch.nn
        name: str | None = None,
    ) -> Tensor:
        """The Kullback-Leibler divergence of logarithms from a target, as torch.nn.KLDivLoss.

        Args:
            x: (N, ...) logarithms of probabilities.
            target: Probabilities, or their logarithms.
            reduction: As in ``mse_loss``, or ``"batchmean"``: the sum divided by N.
            log_target: Whether the target is logarithms.
            name: The node's name.

        Raises:
            RequestError: The shapes or dtypes do not fit.
        """
        return self._pointwise(PointwiseLoss("kl", reduction, log_target=log_target), (x, target), name)

    def _pointwise(self, operator: PointwiseLoss, operands: tuple[Tensor | None, ...], name: str | None) -> Tensor:
        return self.append(operator, operands, (), name or self.fresh(f"{operator.kind}_loss"))
