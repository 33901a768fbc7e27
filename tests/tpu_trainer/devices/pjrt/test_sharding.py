"""The rules that divide variables over a mesh."""

from __future__ import annotations

import re

import pytest

from tpu_trainer.config import MeshConfig
from tpu_trainer.devices.pjrt.sharding import bytes_per_device, place_variables
from tpu_trainer.support.errors import UsageError

GPT2 = {
    "network/transformer/wte/embeddings": (128, 32),
    "network/transformer/wpe/embeddings": (64, 32),
    "network/transformer/h_._0/ln_1/gamma": (32,),
    "network/transformer/h_._0/attn/c_attn/weight": (32, 96),
    "network/transformer/h_._0/attn/c_attn/bias": (1, 96),
    "network/transformer/h_._0/attn/c_proj/weight": (32, 32),
    "network/transformer/h_._0/attn/c_proj/bias": (1, 32),
    "network/transformer/h_._0/mlp/c_fc/weight": (32, 128),
    "network/transformer/h_._0/mlp/c_proj/weight": (128, 32),
    "optimizer/iteration": (),
    "optimizer/AdamW/m/transformer/h_._0/mlp/c_fc/weight": (32, 128),
    "average/transformer/h_._0/mlp/c_fc/weight": (32, 128),
    "running": (7,),
}


def place_gpt2(mesh: MeshConfig, *, data: int) -> dict[str, tuple[str | None, ...]]:
    placement = place_variables(GPT2, mesh, data=data)
    assert placement.keys() == GPT2.keys()
    copies = ("optimizer", "average")
    return {
        name.rpartition("h_._0/")[2]: axes for name, axes in placement.items() if not name.startswith(copies)
    }


def test_tensor_parallelism_divides_pairs_of_matrices_and_the_vocabulary() -> None:
    placement = place_gpt2(MeshConfig(model=4), data=2)
    assert {name: axes for name, axes in placement.items() if any(axes)} == {
        "network/transformer/wte/embeddings": ("model", None),
        "attn/c_attn/weight": (None, "model"),
        "attn/c_attn/bias": (None, "model"),
        "attn/c_proj/weight": ("model", None),
        "mlp/c_fc/weight": (None, "model"),
        "mlp/c_proj/weight": ("model", None),
    }


def test_a_dimension_that_the_optimizer_reduced_is_not_divided() -> None:
    shapes = {
        "network/h_._0/mlp/c_proj/weight": (128, 32),
        "optimizer/row_mean_square/h_._0/mlp/c_proj/weight": (128, 1),
        "optimizer/column_mean_square/h_._0/mlp/c_proj/weight": (1, 32),
    }
    placement = place_variables(shapes, MeshConfig(model=4), data=1)
    assert list(placement.values()) == [("model", None), ("model", None), (None, None)]


def test_fsdp_divides_the_largest_free_dimension_and_zero_only_the_optimizer() -> None:
    data_parallel = place_gpt2(MeshConfig(fsdp=True), data=8)
    assert data_parallel["attn/c_attn/weight"] == (None, "data")
    assert data_parallel["network/transformer/wte/embeddings"] == (None, "data")  # a table's columns
    assert data_parallel["ln_1/gamma"] == (None,)  # too small
    assert place_gpt2(MeshConfig(fsdp="keep"), data=8) == data_parallel
    tensor_parallel = place_gpt2(MeshConfig(model=4, fsdp=True), data=2)
    assert tensor_parallel["mlp/c_fc/weight"] == ("data", "model")
    assert tensor_parallel["network/transformer/wte/embeddings"] == ("model", "data")
    assert tensor_parallel["network/transformer/wpe/embeddings"] == (None, "data")
    zero = place_variables(GPT2, MeshConfig(fsdp="zero"), data=8)
    assert [name.partition("/")[0] for name, axes in zero.items() if any(axes)] == ["optimizer", "average"]
    assert not any(map(any, place_gpt2(MeshConfig(fsdp=True), data=1).values()))


def test_the_bytes_of_a_device_are_those_of_its_parts() -> None:
    mesh = MeshConfig(model=4, fsdp=True)
    shapes = {name: GPT2[name] for name in list(GPT2)[:3]}
    axes = place_variables(shapes, mesh, data=2)
    assert bytes_per_device(shapes, axes, {"data": 2, "model": 4}) == 4 * (128 * 32 // 8 + 64 * 32 // 2 + 32)


@pytest.mark.parametrize(
    ("shapes", "mesh", "data", "message"),
    [
        ({"network/h/unknown/kernel": (8, 8)}, MeshConfig(model=2), 1, "no rule for 'network/h/unknown/kernel' [8, 8]"),
        (
            {"network/h/c_attn/weight": (8, 30)},
            MeshConfig(model=4),
            1,
            "model 4 does not divide dimension 1 of 'network/h/c_attn/weight' [8, 30]",
        ),
        (GPT2, MeshConfig(rules={"wte": ["data"]}), 2, "has 2 dimensions, its rule 1"),
        (GPT2, MeshConfig(rules={"wtf": ["data"]}), 2, "'wtf' matches no variable"),
        (GPT2, MeshConfig(rules={"c_fc/weight": ["data", None]}), 3, "data 3 does not divide dimension 0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(
    shapes: dict[str, tuple[int, ...]], mesh: MeshConfig, data: int, message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        place_variables(shapes, mesh, data=data)
    assert "--mesh.rules" in str(error.value)


def test_own_rules_come_first_and_also_divide_the_optimizer() -> None:
    mesh = MeshConfig(model=4, fsdp=True, rules={"c_fc": ["model", None], "wte": [None, None]})
    placement = place_variables(GPT2, mesh, data=2)
    assert {axes for name, axes in placement.items() if "c_fc" in name} == {("model", None)}
    assert placement["network/transformer/wte/embeddings"] == (None, None)
