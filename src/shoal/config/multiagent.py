"""The keys of environments with several agents: what stands under multiagent."""

from __future__ import annotations

from pydantic import BaseModel

from shoal.config.fields import STRICT, Count


class MultiAgentConfig(BaseModel):
    """Which policies act for the agents of an environment (docs/agents.md)."""

    model_config = STRICT

    num_agents: Count = 0
    """Number of agents of each environment; shoal counts them itself at the start; 0: not counted yet, or one."""
