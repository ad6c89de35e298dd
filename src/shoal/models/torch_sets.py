"""PyTorch modules for inputs of varying number: pooled items of sequences, and scores of the actions on offer."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SetNet(nn.Module):
    """One row of features for the items of a sequence, the same in whatever order they come.

    Each item passes the same layers; then all are pooled into one row (zeros where there is none), and how many there
    are, as a share of the most, stands behind.
    """

    def __init__(self, items: nn.Module, num_features: int, pooling: str) -> None:
        super().__init__()
        self.items, self.pooling = items, pooling
        self.score = nn.Linear(num_features, 1) if pooling == "attention" else None
        self.num_features = num_features + 1

    def forward(self, part: Tensor) -> Tensor:
        """Features `[B, D]` of a part `[B, L, 1 + R]`."""
        present = part[..., :1]
        count = present.sum(dim=1)
        x = self.items(part[..., 1:])
        if self.pooling == "max":
            lowest = torch.finfo(x.dtype).min
            pooled = torch.where(present > 0, x, lowest).amax(dim=1) * (count > 0)
        else:
            weights = present / count.clamp(min=1).unsqueeze(1)
            if self.score is not None:
                scores = torch.where(present > 0, self.score(x), torch.finfo(x.dtype).min)
                weights = torch.softmax(scores, dim=1) * present
            pooled = (x * weights).sum(dim=1)
        return torch.cat([pooled, count / part.shape[1]], dim=1)


def mean_offer(avail: Tensor, mask: Tensor | None) -> Tensor:
    """The mean `[B, E]` of the embeddings `[B, A, E]` that a mask `[B, A]` allows."""
    if mask is None:
        return avail.mean(dim=1)
    weights = mask.to(avail.dtype)
    weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=1)
    return (avail * weights.unsqueeze(2)).sum(dim=1)


def scores(avail: Tensor, wanted: Tensor) -> Tensor:
    """How well each action on offer `[B, A, E]` fits what is wanted `[B, E]`: their dot products `[B, A]`."""
    return (avail * wanted.unsqueeze(1)).sum(dim=2)
