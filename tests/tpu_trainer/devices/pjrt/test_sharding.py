"""The rules that divide variables over a mesh."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tpu_trainer.config import MeshConfig
from tpu_trainer.config.mesh import SHARDS
from tpu_trainer.devices.pjrt.sharding import bytes_per_device, gathered, place_variables
from tpu_trainer.support.errors import UsageError

GPT2 = {
    "network/embeddings.tokens.weight": (128, 32),
    "network/embeddings.positions.weight": (64, 32),
    "network/layers.attention_norm.weight": (8, 32),
    "network/layers.attention.query.weight": (8, 32, 32),
    "network/layers.attention.query.bias": (8, 32),
    "network/layers.attention.output.weight": (8, 32, 32),
    "network/layers.attention.output.bias": (8, 32),
    "network/layers.mlp.up.weight": (8, 128, 32),
    "network/layers.mlp.up.bias": (8, 128),
    "network/layers.mlp.down.weight": (8, 32, 128),
    "network/final_norm.bias": (32,),
    "optimizer/step": (),
    "optimizer/mean/layers.mlp.up.weight": (8, 128, 32),
    "average/layers.mlp.up.weight": (8, 128, 32),
    "running": (7,),
}


def place(
    shapes: Mapping[str, tuple[int, ...]], mesh: MeshConfig, *, data: int
) -> dict[str, tuple[str | None, ...]]:
    """Returns the placements with one name for each dimension: `data` for all axes that divide tokens."""
    return {
        name: tuple("data" if axes == SHARDS else "+".join(axes) or None for axes in placement)
        for name, placement in place_variables(shapes, replace(mesh, data=data)).items()
    }


def place_gpt2(mesh: MeshConfig, *, data: int) -> dict[str, tuple[str | None, ...]]:
    placement = place(GPT2, mesh, data=data)
    assert placement.keys() == GPT2.keys()
    weights = {axes for name, axes in placement.items() if name.endswith("up.weight")}
    assert len(weights) == 1 or mesh.fsdp == "zero"  # the optimizer's and the average's as the network's
    return {
        name.removeprefix("network/").removeprefix("layers."): axes
        for name, axes in placement.items()
        if not name.startswith(("optimizer", "average"))
    }


def test_tensor_parallelism_divides_pairs_of_matrices_and_the_vocabulary() -> None:
    placement = place_gpt2(MeshConfig(model=4), data=2)
    assert {name: axes for name, axes in placement.items() if any(axes)} == {
        "embeddings.tokens.weight": ("model", None),
        "attention.query.weight": (None, "model", None),
        "attention.query.bias": (None, "model"),
        "attention.output.weight": (None, None, "model"),
        "mlp.up.weight": (None, "model", None),
        "mlp.up.bias": (None, "model"),
        "mlp.down.weight": (None, None, "model"),
    }


def test_each_expert_is_divided_like_an_mlp() -> None:
    shapes = {
        "network/layers.mlp.router.weight": (2, 4, 32),
        "network/layers.mlp.gate.weight": (2, 4, 16, 32),
        "network/layers.mlp.down.weight": (2, 4, 32, 16),
    }
    placement = place(shapes, MeshConfig(model=2, fsdp=True), data=2)
    assert list(placement.values()) == [
        (None, None, None),  # too small
        (None, None, "model", "data"),
        (None, None, "data", "model"),
    ]


def test_the_expert_axis_divides_experts_and_all_axes_but_model_the_other_weights() -> None:
    shapes = {
        "network/layers.attention.query.weight": (2, 32, 32),
        "network/layers.mlp.router.weight": (2, 4, 32),
        "network/layers.mlp.gate.weight": (2, 4, 64, 32),
        "optimizer/mean/layers.mlp.gate.weight": (2, 4, 64, 32),
    }
    mesh = MeshConfig(data=2, expert=2, sequence=2, model=2, fsdp=True)
    placement = place_variables(shapes, mesh)
    shards = ("data", "sequence", "expert")
    experts = ((), ("expert",), ("model",), ("data", "sequence"))
    assert list(placement.values()) == [((), ("model",), shards), ((), (), ()), experts, experts]
    assert gathered(experts) == ((), ("expert",), ("model",), ())
    assert bytes_per_device(shapes, placement, mesh.sizes) == 4 * (
        2 * 32 * 32 // 16 + 2 * 4 * 32 + 2 * 8192 * 2 // 16
    )


def test_a_dimension_that_the_optimizer_reduced_is_not_divided() -> None:
    shapes = {
        "network/layers.mlp.up.weight": (8, 128, 32),
        "optimizer/row_mean_square/layers.mlp.up.weight": (8, 128, 1),
        "optimizer/column_mean_square/layers.mlp.up.weight": (8, 1, 32),
    }
    placement = place(shapes, MeshConfig(model=4), data=1)
    assert list(placement.values()) == [(None, "model", None), (None, "model", None), (None, None, None)]


def test_fsdp_divides_the_largest_free_dimension_and_zero_only_the_optimizer() -> None:
    data_parallel = place_gpt2(MeshConfig(fsdp=True), data=8)
    assert data_parallel["mlp.up.weight"] == (None, "data", None)
    assert data_parallel["mlp.down.weight"] == (None, None, "data")
    assert data_parallel["embeddings.tokens.weight"] == (None, "data")  # a table's columns
    # Too small, and the layers are never divided.
    assert data_parallel["attention_norm.weight"] == data_parallel["mlp.up.bias"] == (None, None)
    assert place_gpt2(MeshConfig(fsdp="keep"), data=8) == data_parallel
    tensor_parallel = place_gpt2(MeshConfig(model=4, fsdp=True), data=2)
    assert tensor_parallel["mlp.up.weight"] == (None, "model", "data")
    assert tensor_parallel["embeddings.tokens.weight"] == ("model", "data")
    assert tensor_parallel["embeddings.positions.weight"] == (None, "data")
    zero = place(GPT2, MeshConfig(fsdp="zero"), data=8)
    assert [name.partition("/")[0] for name, axes in zero.items() if any(axes)] == ["optimizer", "average"]
    assert not any(map(any, place_gpt2(MeshConfig(fsdp=True), data=1).values()))


def test_the_bytes_of_a_device_are_those_of_its_parts() -> None:
    mesh = MeshConfig(model=4, fsdp=True)
    shapes = {name: GPT2[name] for name in list(GPT2)[:3]}
    mesh = replace(mesh, data=2)
    axes = place_variables(shapes, mesh)
    expected = 4 * (128 * 32 // 8 + 64 * 32 // 2 + 8 * 32)
    assert bytes_per_device(shapes, axes, mesh.sizes) == expected


@pytest.mark.parametrize(
    ("shapes", "mesh", "data", "message"),
    [
        ({"network/layers.unknown.weight": (8, 8)}, MeshConfig(model=2), 1,
         "no rule for 'network/layers.unknown.weight' [8, 8]"),
        ({"network/layers.mlp.up.weight": (8, 30, 8)}, MeshConfig(model=4), 1,
         "model 4 does not divide dimension 1 of 'network/layers.mlp.up.weight' [8, 30, 8]"),
        (GPT2, MeshConfig(rules={"tokens": ["data"]}), 2, "has 2 dimensions, its rule 1"),
        (GPT2, MeshConfig(rules={"token_types": ["data"]}), 2, "'token_types' matches no variable"),
        (GPT2, MeshConfig(rules={"up.weight": [None, "data", None]}), 3, "data 3 does not divide dimension 1"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(
    shapes: dict[str, tuple[int, ...]], mesh: MeshConfig, data: int, message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        place_variables(shapes, replace(mesh, data=data))
    assert "--mesh.rules" in str(error.value)


def test_own_rules_come_first_and_also_divide_the_optimizer() -> None:
    mesh = MeshConfig(model=4, fsdp=True, rules={"up.weight": ["model", None, None], "tokens": [None, None]})
    placement = place(GPT2, mesh, data=2)
    assert {axes for name, axes in placement.items() if "up.weight" in name} == {("model", None, None)}
    assert placement["network/embeddings.tokens.weight"] == (None, None)
