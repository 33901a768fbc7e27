"""What the families with experts share."""

from __future__ import annotations

from collections.abc import Mapping

from tpu_trainer.network.architecture import Mlp
from tpu_trainer.network.families.family import ConfigValues, Fused


def experts(values: ConfigValues, *, size: int, count: int) -> Mlp:
    """Returns the experts of each layer.

    As in transformers, `router_aux_loss_coef` counts only if `output_router_logits` is true.

    Args:
        values: The configuration.
        size: Of one expert.
        count: Of experts.

    Raises:
        UsageError: If a token is to choose more experts than there are.
    """
    chosen, factor = values["num_experts_per_tok"], values["router_aux_loss_coef"]
    if chosen > count:
        raise values.error("num_experts_per_tok", f"must be at most the number of experts, {count}")
    return Mlp(
        size=size,
        activation=values.activation("hidden_act"),
        gated=True,
        experts=count,
        chosen_experts=chosen,
        normalize_choice=values["norm_topk_prob"],
        balance_loss=factor if values["output_router_logits"] else 0.0,
    )


def expert_modules(modules: Mapping[str, str | Fused]) -> dict[str, str | Fused]:
    """Returns a dense family's modules with experts for the MLP."""
    mlp = "model.layers.{}.mlp"
    return {name: ours for name, ours in modules.items() if not name.startswith(mlp)} | {
        f"{mlp}.gate": "layers.mlp.router",
        f"{mlp}.experts.{{}}.gate_proj": "layers.mlp.gate",
        f"{mlp}.experts.{{}}.up_proj": "layers.mlp.up",
        f"{mlp}.experts.{{}}.down_proj": "layers.mlp.down",
    }
