"""A custom model as a user writes it: 64x64 tanh, with a value net of its own."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from shoal.models.torch_models import TorchModelV2


class TwoNets(TorchModelV2, nn.Module):
    """The shape of the default MLP, in torch."""

    def __init__(self, obs_space: Any, action_space: Any, num_outputs: int, model_config: Any, name: str) -> None:
        TorchModelV2.__init__(self, obs_space, action_space, num_outputs, model_config, name)
        nn.Module.__init__(self)
        size = obs_space.shape[0]
        self.policy = nn.Sequential(
            nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, num_outputs)
        )
        self.value = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, input_dict: Any, state: Any, seq_lens: Any) -> tuple[Tensor, Any]:  # noqa: ARG002
        """Logits for the observations."""
        self._obs = input_dict["obs_flat"]
        return self.policy(self._obs), state

    def value_function(self) -> Tensor:
        """Values of the observations that `forward` saw last."""
        values: Tensor = self.value(self._obs)
        return values.squeeze(1)
