"""The collectives of a step of --strategy pjrt, with XLA's partitioner on CPU devices.

CPU programs have all-reduces where TPUs have reduce-scatters: bytes are compared, not kinds.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.tpu_trainer import cpu_devices
from tests.tpu_trainer.mesh_collectives import CHOSEN, GROUP_ROWS, HIDDEN, LAYERS, LENGTH, VOCABULARY

TABLE = 4 * VOCABULARY * HIDDEN
# The activations of a group of devices at one place of the network.
ACTIVATIONS = 4 * GROUP_ROWS * LENGTH * HIDDEN
EXCESS = 1.2


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of mesh_collectives.py."""
    pytest.importorskip("jax")
    result = cpu_devices.run_module("mesh_collectives", tmp_path_factory.mktemp("cache"))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def bytes_of(collectives: dict[str, Any], kind: str) -> int:
    return collectives[kind]["bytes"] if kind in collectives else 0


def test_data_parallel_devices_sum_the_gradient_once_for_all_chunks_of_the_loss(
    report: dict[str, Any],
) -> None:
    collectives = report["data"]
    # The table has two gradients, as embedding and as output matrix.
    assert report["weights"] <= bytes_of(collectives, "all-reduce") <= 1.05 * (report["weights"] + TABLE)
    assert sum(bytes_of(collectives, kind) for kind in collectives) == bytes_of(collectives, "all-reduce")


def test_fsdp_gathers_each_weight_twice_and_sums_its_gradient_once(report: dict[str, Any]) -> None:
    collectives = report["fsdp"]
    # Like ZeRO-3: for the forward and for the backward pass.
    assert 1.8 * report["weights"] <= bytes_of(collectives, "all-gather") <= EXCESS * 2 * report["weights"]
    assert collectives["all-gather"]["count"] <= 2 * report["variables"]
    sums = bytes_of(collectives, "all-reduce") + bytes_of(collectives, "reduce-scatter")
    assert 0.8 * report["weights"] <= sums <= EXCESS * report["weights"]
    # Each device looks up its columns of the table's gradient.
    assert bytes_of(collectives, "all-to-all") <= EXCESS * ACTIVATIONS


def test_fsdp_gathers_the_weights_of_layers_again_for_each_micro_batch(report: dict[str, Any]) -> None:
    collectives = report["fsdp, micro-batches"]
    # Kept for all micro-batches, they would need their memory throughout the step.
    layers = report["weights"] - TABLE
    gathered = bytes_of(collectives, "all-gather")
    assert 1.9 * 2 * layers <= gathered <= 2 * (EXCESS * 2 * layers + 2 * TABLE)


def test_fsdp_that_keeps_gathered_weights_gathers_each_once(report: dict[str, Any]) -> None:
    collectives = report["keep"]
    # The table has two gathers, for lookups and as output matrix.
    assert (
        0.9 * report["weights"] <= bytes_of(collectives, "all-gather") <= EXCESS * (report["weights"] + TABLE)
    )
    sums = bytes_of(collectives, "all-reduce") + bytes_of(collectives, "reduce-scatter")
    assert 0.8 * report["weights"] <= sums <= EXCESS * report["weights"]


def test_tensor_parallel_devices_sum_activations_as_in_megatron(report: dict[str, Any]) -> None:
    collectives = report["tensor"]
    # Two sums in each layer's forward pass, two in its backward pass and one in its recomputation; one in the lookup of
    # the embeddings, and one of the gradient of the last hidden states. Only CPUs sum the gradients of the inputs of
    # queries, keys and values one by one: two more.
    activations = (7 * LAYERS + 2) * ACTIVATIONS
    gradients = (report["weights"] + TABLE) / 4
    assert 0.8 * activations <= bytes_of(collectives, "all-reduce") <= EXCESS * (activations + gradients)
    assert bytes_of(collectives, "all-gather") + bytes_of(collectives, "all-to-all") <= 0.2 * ACTIVATIONS


def test_devices_that_divide_rows_gather_keys_and_values_and_sum_their_gradients(
    report: dict[str, Any],
) -> None:
    collectives = report["sequence"]
    # Keys and values of each layer, forward and in the recomputation; and the gradient of the embeddings' lookup.
    assert bytes_of(collectives, "all-gather") <= EXCESS * (4 * LAYERS + 1) * ACTIVATIONS
    sums = bytes_of(collectives, "all-reduce") + bytes_of(collectives, "reduce-scatter")
    assert sums <= EXCESS * (report["weights"] + TABLE + 2 * LAYERS * ACTIVATIONS)
    assert "all-to-all" not in collectives
    assert "collective-permute" not in collectives


def test_tokens_are_sent_to_their_experts_and_back(report: dict[str, Any]) -> None:
    collectives = report["expert"]
    # Forward, in the recomputation and backward: to the experts and back, once for each choice. The places that are
    # spare are a quarter, and those of a pass for queues that are longer are as many.
    sent = 6 * LAYERS * CHOSEN * 1.25 * ACTIVATIONS
    assert sent <= bytes_of(collectives, "all-to-all") <= EXCESS * 2.5 * sent
    assert bytes_of(collectives, "all-gather") <= 0.1 * ACTIVATIONS
