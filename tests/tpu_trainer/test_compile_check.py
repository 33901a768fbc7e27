"""compile-check without a TPU compiler: its rules, its arithmetic, its options."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tpu_trainer
from tpu_trainer.chips import CHIPS, Topology
from tpu_trainer.command_line import parse
from tpu_trainer.compile_check import find_largest_batch
from tpu_trainer.config import CompileCheckConfig, ModelConfig
from tpu_trainer.errors import UsageError
from tpu_trainer.tpu_check import compiler, rules
from tpu_trainer.tpu_check.collectives import collectives
from tpu_trainer.tpu_check.compiler import Executable, OutOfMemory, Program
from tpu_trainer.tpu_check.figures import figures, roofline, table
from tpu_trainer.tpu_check.hlo import HloModule
from tpu_trainer.tpu_check.step import ReplicaStep, product_flops, rows_without_dataset

SQUARE = {"x": tf.TensorSpec([4, 4])}


def line_of(function: Callable[..., Any], text: str) -> str:
    """`file:line` of the line in `function` that holds `text`."""
    lines, first = inspect.getsourcelines(function)
    index = next(index for index, line in enumerate(lines) if text in line)
    return f"{__file__}:{first + index}: "


def test_a_python_condition_on_data_is_named() -> None:
    @tf.autograph.experimental.do_not_convert
    def step(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        total = tf.reduce_sum(batch["x"])
        if total > 0:
            return total
        return -total

    module, (finding,) = rules.check_and_lower(Program(step, SQUARE))
    assert module is None
    assert finding.rule == rules.CONDITION
    assert finding.place.startswith(line_of(test_a_python_condition_on_data_is_named, "if total > 0"))
    assert "if total > 0" in finding.place


def test_a_branch_on_the_device_is_told_but_compiles() -> None:
    def step(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        total = tf.reduce_sum(batch["x"])
        return tf.cond(total > 0, lambda: total, lambda: -total)

    (finding,) = rules.graph_findings(Program(step, SQUARE).trace())
    assert (finding.rule, finding.fatal) == (rules.CONDITION, False)
    assert finding.place.startswith(line_of(test_a_branch_on_the_device_is_told_but_compiles, "tf.cond"))


def test_a_shape_that_depends_on_data_is_named_inside_a_loop_too() -> None:
    def step(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, total + tf.reduce_sum(tf.boolean_mask(batch["x"], batch["x"] > total))

        return tf.while_loop(lambda i, total: i < 3, body, [0, 0.0])[1]

    module, (finding,) = rules.check_and_lower(Program(step, SQUARE))
    assert module is None
    assert finding.rule == rules.SHAPE
    name = line_of(test_a_shape_that_depends_on_data_is_named_inside_a_loop_too, "tf.boolean_mask")
    assert finding.place.startswith(name)


def test_an_input_of_changing_shape_is_named() -> None:
    specs = {"x": tf.TensorSpec([4, 4]), "row": tf.TensorSpec([None], tf.int32)}
    module, (finding,) = rules.check_and_lower(Program(lambda batch: batch["x"], specs))
    assert module is None
    assert finding.rule == rules.INPUT_SHAPE
    assert "'row' has shape (None,)" in finding.what


def test_a_sound_step_has_no_findings() -> None:
    graph = Program(lambda batch: tf.where(batch["x"] > 0, batch["x"], 0.0), SQUARE).trace()
    assert rules.graph_findings(graph) == []


def test_product_flops() -> None:
    weights = tf.ones([4, 8])

    def step(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        products = tf.matmul(batch["x"], weights)  # 2 · 4 · 8 · 4
        outer = tf.einsum("ab,cb->ac", products, products)  # 2 · 4 · 4 · 8
        return tf.while_loop(  # 5 · (2 · 4 · 4 · 4)
            lambda i, y: i < 5,
            lambda i, y: (i + 1, tf.matmul(y, y, transpose_a=True)),
            [0, outer],
            maximum_iterations=5,
        )[1]

    assert product_flops(Program(step, SQUARE).trace()) == 256 + 256 + 5 * 128


def test_the_trainers_step_keeps_the_rules_and_sums_over_replicas() -> None:
    network = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = CompileCheckConfig(model=ModelConfig(config=network))
    rows = rows_without_dataset(config, vocab_size=100, max_length=8)
    step = ReplicaStep(config=config, rows=rows, topology=Topology.parse("v5e:2x2"))
    graph = step.program(2).trace()
    assert rules.graph_findings(graph) == []
    assert any(operation.type == "XlaAllReduce" for operation in graph.get_operations())
    products = 16 * 16 * 4 + 2 * 16 * 24 + 2 * 8 * 16  # weights, and scores with their use
    head = 16 * 16 + 16 * 128  # at the one position of 8 that is predicted
    assert step.model_flops(2) == 3 * 2 * (2 * 8 * products + 2 * 1 * head)


@pytest.mark.parametrize(
    ("name", "replicas"),
    [("v3:2x2", 8), ("v4:2x2x1", 4), ("v5e:2x4", 8), ("v5p:2x2x2", 8), ("v6e:1x1", 1), ("tpu7x:2x2x1", 8)],
)
def test_replicas_of_a_topology(name: str, replicas: int) -> None:
    assert Topology.parse(name).replicas == replicas


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5e", r"'v5e': give a generation and the number of chips along each side, such as v5e:2x4"),
        ("v9:2x4", "the generation must be one of v3, v4, v5e, v5p, v6e, tpu7x"),
        ("v4:2x2", "v4 needs 3 sides of at least 1, such as v4:2x2x1"),
        ("v5e:0x4", "v5e needs 2 sides of at least 1"),
    ],
)
def test_topologies_that_cannot_be(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Topology.parse(name)


def test_roofline() -> None:
    # v3: 123 TFLOP/s and 900 GB/s for two replicas.
    line = roofline(
        Topology.parse("v3:1x1"),
        flops=61.5e12,
        hbm_traffic=900e9,
        sent=1e9,
        model_flops=30.75e12,
        tokens=1000,
    )
    assert line["compute_seconds"] == pytest.approx(1)
    assert line["memory_seconds"] == pytest.approx(2)
    assert (line["bound_by"], line["least_step_seconds"]) == ("memory", pytest.approx(2))
    assert line["tokens_per_second"] == pytest.approx(500)
    assert line["mfu_bound"] == pytest.approx(0.25)
    assert all(chip.source.startswith("https://cloud.google.com/tpu/docs/") for chip in CHIPS.values())


HLO = """\
HloModule step, is_scheduled=true, replica_count=8

%add (a: f32[], b: f32[]) -> f32[] {
  %b = f32[]{:T(128)} parameter(1)
  %a = f32[]{:T(128)} parameter(0)
  ROOT %sum = f32[]{:T(128)} add(%a, %b)
}

%condition (state: (s32[], f32[16,32])) -> pred[] {
  %bound = s32[]{:T(128)} constant(7)
  %state = (s32[]{:T(128)}, f32[16,32]{1,0:T(8,128)}) parameter(0)
  %counter = s32[]{:T(128)} get-tuple-element(%state), index=0
  ROOT %less = pred[]{:T(512)} compare(%counter, %bound), direction=LT
}

%fused (p0: f32[16,32], p1: f32[32,32]) -> f32[16,32] {
  %p0 = f32[16,32]{1,0:T(8,128)} parameter(0)
  %p1 = f32[32,32]{1,0:T(8,128)} parameter(1)
  ROOT %product = f32[16,32]{1,0:T(8,128)S(1)} convolution(%p0, %p1), dim_labels=bf_io->bf
}

%body (state.1: (s32[], f32[16,32])) -> (s32[], f32[16,32]) {
  %state.1 = (s32[]{:T(128)}, f32[16,32]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  %x = f32[16,32]{1,0:T(8,128)} get-tuple-element(%state.1), index=1
  %weights = f32[32,32]{1,0:T(8,128)} constant({...})
  %y = f32[16,32]{1,0:T(8,128)S(1)} fusion(%x, %weights), kind=kOutput, calls=%fused
  ROOT %next = (s32[]{:T(128)}, f32[16,32]{1,0:T(8,128)S(1)}) tuple(%i, %y)
}

ENTRY %main (x.1: f32[16,32]) -> f32[16,32] {
  %x.1 = f32[16,32]{1,0:T(8,128)} parameter(0)
  %zero = s32[]{:T(128)} constant(0)
  %start = (s32[]{:T(128)}, f32[16,32]{1,0:T(8,128)}) tuple(%zero, %x.1)
  %loop = (s32[]{:T(128)}, f32[16,32]{1,0:T(8,128)}) while(%start), \
condition=%condition, body=%body, metadata={op_name="while"}
  %last = f32[16,32]{1,0:T(8,128)} get-tuple-element(%loop), index=1
  %half = bf16[16,32]{1,0:T(8,128)(2,1)} convert(%last)
  %total = bf16[16,32]{1,0:T(8,128)(2,1)} all-reduce(%half), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
  ROOT %result = f32[16,32]{1,0:T(8,128)} convert(%total)
}
"""


def test_what_the_text_of_a_module_tells() -> None:
    module = HloModule.parse(HLO)
    (loop,) = module.loops()
    assert (loop.name, loop.trips, loop.flops) == ("while", 7, 2 * 16 * 32 * 32)
    assert loop.bytes_accessed == 4 * (16 * 32 + 32 * 32 + 16 * 32)
    (collective,) = collectives(module)
    assert (collective.kind, collective.count, collective.bytes) == ("all-reduce", 1, 2 * 16 * 32)
    assert module.repetition_cost(module.flops) == 6 * loop.flops
    with pytest.raises(ValueError, match="not the text of an HLO module"):
        HloModule.parse("nothing")


def test_a_loop_in_a_loop_counts_with_all_iterations_of_both() -> None:
    state = "(s32[]{:T(128)}, f32[16,32]{1,0:T(8,128)})"
    outer = f"""
%outer_condition (o: (s32[], f32[16,32])) -> pred[] {{
  %last_trip = s32[]{{:T(128)}} constant(3)
  %o = {state} parameter(0)
  %n = s32[]{{:T(128)}} get-tuple-element(%o), index=0
  ROOT %more = pred[]{{:T(512)}} compare(%n, %last_trip), direction=LT
}}

%outer_body (o.1: (s32[], f32[16,32])) -> (s32[], f32[16,32]) {{
  %o.1 = {state} parameter(0)
  ROOT %inner = {state} while(%o.1), condition=%condition, body=%body
}}

ENTRY"""
    text = HLO.replace("\nENTRY", outer).replace(
        "while(%start), condition=%condition, body=%body",
        "while(%start), condition=%outer_condition, body=%outer_body",
    )
    module = HloModule.parse(text)
    product = 2 * 16 * 32 * 32
    assert [(loop.trips, loop.flops) for loop in module.loops()] == [(3, 7 * product), (7, product)]
    assert module.repetition_cost(module.flops) == (3 * 7 - 1) * product


@pytest.mark.parametrize(
    "start",
    [
        "slice-start(%weights), slice={[0:136], [0:768]}",
        "async-start(%weights), calls=%sliced",  # as the compiler itself writes it
    ],
)
def test_a_slice_that_is_fetched_ahead_moves_as_much_as_it_holds(start: str) -> None:
    module = HloModule.parse(
        f"""HloModule fetch, is_scheduled=true

%sliced (whole: f32[514,768]) -> f32[136,768] {{
  %whole = f32[514,768]{{1,0:T(8,128)}} parameter(0)
  ROOT %slice = f32[136,768]{{1,0:T(8,128)S(1)}} slice(%whole), slice={{[0:136], [0:768]}}
}}

ENTRY %main (weights: f32[514,768]) -> f32[136,768] {{
  %weights = f32[514,768]{{1,0:T(8,128)}} parameter(0)
  %begun = ((f32[514,768]{{1,0:T(8,128)}}), f32[136,768]{{1,0:T(8,128)S(1)}}, s32[]{{:S(2)}}) {start}
  ROOT %done = f32[136,768]{{1,0:T(8,128)S(1)}} slice-done(%begun)
}}
"""
    )
    (begun,) = [each for each, _ in module.executed() if each.name == "begun"]
    size = module.traffic(begun)
    assert size.hbm == pytest.approx(4 * 136 * 768, abs=4)  # and a flag
    assert size.total == pytest.approx(2 * 4 * 136 * 768, abs=8)


# As libtpu writes it: an all-gather in fusions that start it, overlap with it and end it; fusions that replace
# reduce-scatters, which share a channel; a ring of permutations in a loop that advances two steps at a time.
ASYNCHRONOUS = """\
HloModule step, is_scheduled=true, num_partitions=8

%start (a: bf16[4,8]) -> (bf16[4,8], bf16[32,8], u32[]) {
  %a = bf16[4,8]{1,0} parameter(0)
  %all-gather.1 = bf16[32,8]{1,0} all-gather(%a), channel_id=3, replica_groups=[1,8]<=[8], dimensions={0}, \
frontend_attributes={chain_id="0"}
  ROOT %starts = (bf16[4,8]{1,0}, bf16[32,8]{1,0}, u32[]{:S(2)}) custom-call(%all-gather.1), \
custom_call_target="AsyncCollectiveStart"
}

%middle (b: bf16[4,8], b1: bf16[32,8], b2: u32[], b3: bf16[64,8]) -> (bf16[64,8], bf16[4,8], bf16[32,8], u32[]) {
  %b = bf16[4,8]{1,0} parameter(0)
  %b1 = bf16[32,8]{1,0} parameter(1)
  %b2 = u32[]{:S(2)} parameter(2)
  %b3 = bf16[64,8]{1,0} parameter(3)
  %all-gather.2 = bf16[32,8]{1,0:S(1)} all-gather(%b), channel_id=3, replica_groups=[1,8]<=[8], dimensions={0}, \
frontend_attributes={chain_id="0"}
  ROOT %product = (bf16[64,8]{1,0}, bf16[4,8]{1,0}, bf16[32,8]{1,0}, u32[]{:S(2)}) custom-call(%b3, %all-gather.2)
}

%end (d: bf16[4,8], d1: bf16[32,8], d2: u32[]) -> bf16[32,8] {
  %d = bf16[4,8]{1,0} parameter(0)
  %d1 = bf16[32,8]{1,0} parameter(1)
  %d2 = u32[]{:S(2)} parameter(2)
  ROOT %all-gather.3 = bf16[32,8]{1,0} all-gather(%d), channel_id=3, replica_groups=[1,8]<=[8], dimensions={0}, \
frontend_attributes={chain_id="0"}
}

%all-reduce-scatter.1 (c: f32[32,8]) -> f32[8,8] {
  %c = f32[32,8]{1,0} parameter(0)
  %whole = f32[32,8]{1,0} all-reduce(%c), channel_id=4, \
replica_groups=mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'y'}, to_apply=%add
  ROOT %part = f32[8,8]{1,0} slice(%whole), slice={[0:8], [0:8]}
}

%all-reduce-scatter.2 (e: f32[32,8]) -> f32[8,8] {
  %e = f32[32,8]{1,0} parameter(0)
  %whole.1 = f32[32,8]{1,0} all-reduce(%e), channel_id=4, \
replica_groups=mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'y'}, to_apply=%add
  ROOT %part.1 = f32[8,8]{1,0} slice(%whole.1), slice={[0:8], [0:8]}
}

%ring (state: (s32[], bf16[2,8])) -> (s32[], bf16[2,8]) {
  %state = (s32[], bf16[2,8]{1,0}) parameter(0)
  %counter = s32[] get-tuple-element(%state), index=0
  %two = s32[] constant(2)
  %next = s32[] add(%counter, %two)
  %x = bf16[2,8]{1,0} get-tuple-element(%state), index=1
  %sent = (bf16[2,8]{1,0}, bf16[2,8]{1,0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%x), channel_id=5, \
source_target_pairs={{0,1},{1,0}}
  %received = bf16[2,8]{1,0} collective-permute-done(%sent)
  ROOT %states = (s32[], bf16[2,8]{1,0}) tuple(%next, %received)
}

%more (state.1: (s32[], bf16[2,8])) -> pred[] {
  %state.1 = (s32[], bf16[2,8]{1,0}) parameter(0)
  %counter.1 = s32[] get-tuple-element(%state.1), index=0
  %end = s32[] constant(4)
  ROOT %less = pred[] compare(%counter.1, %end), direction=LT
}

ENTRY %main (p: bf16[4,8], q: f32[32,8], r: (s32[], bf16[2,8]), t: bf16[64,8]) -> f32[8,8] {
  %p = bf16[4,8]{1,0} parameter(0)
  %t = bf16[64,8]{1,0} parameter(3)
  %q = f32[32,8]{1,0} parameter(1)
  %r = (s32[], bf16[2,8]{1,0}) parameter(2)
  %begun = (bf16[4,8]{1,0}, bf16[32,8]{1,0}, u32[]{:S(2)}) fusion(%p), kind=kCustom, \
output_to_operand_aliasing={{0}: (0, {})}, calls=%start
  %g0 = bf16[4,8]{1,0} get-tuple-element(%begun), index=0
  %g1 = bf16[32,8]{1,0} get-tuple-element(%begun), index=1
  %g2 = u32[]{:S(2)} get-tuple-element(%begun), index=2
  %overlapping = (bf16[64,8]{1,0}, bf16[4,8]{1,0}, bf16[32,8]{1,0}, u32[]{:S(2)}) fusion(%g0, %g1, %g2, %t), \
kind=kOutput, output_to_operand_aliasing={{1}: (0, {}), {2}: (1, {}), {3}: (2, {})}, calls=%middle
  %ended = bf16[32,8]{1,0} fusion(%g0, %g1, %g2), kind=kCustom, output_to_operand_aliasing={{}: (1, {})}, calls=%end
  %loop = (s32[], bf16[2,8]{1,0}) while(%r), condition=%more, body=%ring
  %scattered.1 = f32[8,8]{1,0} fusion(%q), kind=kCustom, calls=%all-reduce-scatter.2
  %sum = f32[] all-reduce(%q), channel_id=3, replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add
  ROOT %scattered = f32[8,8]{1,0} fusion(%q), kind=kCustom, calls=%all-reduce-scatter.1
}
"""


def test_an_asynchronous_collective_counts_once() -> None:
    module = HloModule.parse(ASYNCHRONOUS)
    assert [loop.trips for loop in module.loops()] == [2]
    found = {each.kind: (each.count, each.bytes, each.sent) for each in collectives(module)}
    whole = 4 * 32 * 8
    assert found == {
        "all-gather": (1, 2 * 32 * 8, 2 * 32 * 8 * 7 // 8),
        "reduce-scatter": (2, 2 * whole, 2 * whole * 3 // 4),
        "all-reduce": (1, whole, whole),  # among two devices
        "collective-permute": (2, 2 * 2 * 2 * 8, 2 * 2 * 2 * 8),
    }


def test_an_overlapping_collective_reads_and_writes_its_arrays_once() -> None:
    module = HloModule.parse(ASYNCHRONOUS)
    moved = {each.name: module.traffic(each).hbm for each, _ in module.executed()}
    part, whole, product = 2 * 4 * 8, 2 * 32 * 8, 2 * 64 * 8
    assert moved["begun"] == whole
    assert moved["overlapping"] == 2 * product
    assert moved["ended"] == part


@pytest.mark.parametrize(
    "start",
    [
        "(bf16[4,8]{1,0}, bf16[32,8]{1,0}) all-gather-start(%p), replica_groups=[1,8]<=[8], dimensions={0}",
        "((bf16[4,8]{1,0}), bf16[32,8]{1,0}, u32[]{:S(2)}) async-start(%p), calls=%gather",
        '((bf16[4,8]{1,0}), bf16[32,8]{1,0}, u32[]{:S(2)}) async-start(%p), async_execution_thread="sparsecore", '
        "calls=%offloaded",
        # Started before its operand is known.
        '((), (), (s32[64]{0:T(64)})) async-start(), async_execution_thread="sparsecore", calls=%offloaded\n'
        "  %updated = ((bf16[4,8]{1,0}), bf16[32,8]{1,0}, (s32[64]{0:T(64)})) async-update(%begun, %p), "
        "output_to_operand_aliasing={{2,0}: (0, {2,0})}",
    ],
)
def test_a_collective_beside_the_program_counts(start: str) -> None:
    module = HloModule.parse(
        f"""HloModule step, is_scheduled=true, num_partitions=8

%gather (a: bf16[4,8]) -> bf16[32,8] {{
  %a = bf16[4,8]{{1,0}} parameter(0)
  ROOT %gathered = bf16[32,8]{{1,0}} all-gather(%a), channel_id=1, replica_groups=[1,8]<=[8], dimensions={{0}}
}}

%offloaded (b: bf16[4,8]) -> bf16[32,8] {{
  %b = bf16[4,8]{{1,0}} parameter(0)
  ROOT %call = bf16[32,8]{{1,0}} custom-call(%b), custom_call_target="offload", called_computations={{%gather}}
}}

ENTRY %main (p: bf16[4,8]) -> bf16[32,8] {{
  %p = bf16[4,8]{{1,0}} parameter(0)
  %begun = {start}
  ROOT %done = bf16[32,8]{{1,0}} async-done(%begun)
}}
"""
    )
    (found,) = collectives(module)
    assert (found.kind, found.count, found.bytes) == ("all-gather", 1, 2 * 32 * 8)
    assert sum(module.traffic(each).hbm for each, _ in module.executed()) == 2 * (4 + 32) * 8


@pytest.mark.parametrize(
    ("name", "bandwidth"),
    [
        ("v5e:1x1", 0),
        ("v5e:2x4", 100e9),  # two of four links
        ("v5e:16x16", 200e9),
        ("v4:2x2x1", 100e9),
        ("v5p:4x4x4", 600e9),
        ("tpu7x:2x2x1", 200e9),
    ],
)
def test_links_of_a_chip_at_a_corner(name: str, bandwidth: float) -> None:
    assert Topology.parse(name).ici_bandwidth == pytest.approx(bandwidth)


def test_sending_can_bound_a_step() -> None:
    line = roofline(
        Topology.parse("v5e:2x4"), flops=1e9, hbm_traffic=1e9, sent=50e9, model_flops=1e9, tokens=8000
    )
    assert (line["bound_by"], line["least_step_seconds"]) == ("communication", pytest.approx(0.5))
    assert line["tokens_per_second"] == pytest.approx(16000)


def report_of(result: Executable | OutOfMemory) -> dict[str, Any]:
    return figures(result, topology=Topology.parse("v5e:1x1"), replica_rows=2, max_length=8, model_flops=1e9)


def test_figures_of_a_program_with_a_loop() -> None:
    # The compiler counts a loop's body once.
    result = Executable(
        arguments=100,
        outputs=60,
        aliased=50,
        temporaries=30,
        code=5,
        flops=32768.0,
        bytes_accessed=9000.0,
        hlo=HLO,
    )
    report = report_of(result)
    assert report["hbm"]["needed"] == 145
    assert report["flops"] == 7 * 32768
    assert report["bytes_accessed"] == 9000 + 6 * 8192
    # Seven trips, whose product stays on the chip, and before and after them two conversions and a sum.
    in_a_trip, others = 4 * (16 * 32 + 32 * 32), (4 + 2) * 16 * 32 + (2 + 2) * 16 * 32 + (2 + 4) * 16 * 32
    assert report["hbm_traffic"] == 7 * in_a_trip + others
    assert report["intensity"] == report["flops"] / report["hbm_traffic"]
    text = table([("a", report), ("b", report_of(OutOfMemory(needed=3e10, available=1.6e10)))])
    assert [line.split()[-2:] for line in text.splitlines() if line.startswith("fits")] == [["yes", "NO"]]


@pytest.mark.parametrize("most", [3, 8, 9, 100, 1001])
@pytest.mark.parametrize("power", [0.7, 1.0, 1.5])
def test_the_largest_batch_that_fits(most: int, power: float) -> None:
    tried = []

    def check(rows: int) -> dict[str, Any]:
        tried.append(rows)
        hbm = {"needed": 5.0 + rows**power, "available": 5.0 + (most + 0.5) ** power}
        return {"fits": hbm["needed"] <= hbm["available"], "replica_rows": rows, "hbm": hbm}

    assert find_largest_batch(check, multiple=3)["replica_rows"] == most // 3 * 3
    assert len(set(tried)) == len(tried) <= 14
    with pytest.raises(UsageError, match="not even 2000 row"):
        find_largest_batch(check, multiple=2000)


def test_other_releases_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = compiler.WRITTEN_FOR | {"jax": "0.11.0"}
    monkeypatch.setattr(metadata, "version", lambda name: installed[name])
    with pytest.raises(UsageError, match=r"needs jax 0.10, but 0.11.0 is installed; `make compile-check`"):
        compiler.versions()

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(UsageError, match=r"needs tensorflow 2.20, but tensorflow is not installed"):
        compiler.versions()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology", "v1:1x1"], "the generation must be one of"),
        (["--train.batch_size", "12"], "must be a multiple of the 8 replicas of v5e:2x4"),
        (
            ["--compare", "a.yaml", "b.yaml", "--train.steps", "3"],
            "--train cannot be combined with --compare",
        ),
        (["--vocab_size", "3"], "--vocab_size is 3: must be at least 8"),
        (["--data.train", "OUT", "--max_length", "64"], "--max_length is 64: --data.train determines it"),
    ],
)
def test_options_that_do_not_fit(
    arguments: list[str], message: str, run_verb: Callable[..., int], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(compiler, "versions", lambda: {})
    assert run_verb("compile-check", *arguments) == 2
    assert message in capsys.readouterr().err


def test_a_refused_topology_costs_no_tensorflow() -> None:
    code = (
        "import sys; from tpu_trainer.__main__ import main; "
        "sys.argv = ['tpu_trainer', 'compile-check', '--topology', 'v9:2x2']; status = main(); "
        "assert 'tensorflow' not in sys.modules; sys.exit(status)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr


def test_both_spellings_of_a_flag() -> None:
    for flag in ("--find-batch-size", "--find_batch_size"):
        assert parse(["compile-check", flag])[1].find_batch_size
    assert not parse(["compile-check"])[1].find_batch_size


def test_only_what_compiles_or_executes_programs_imports_jax() -> None:
    allowed = {
        "tpu_check": ("compiler.py", "kernel_sources.py"),
        "training": ("lowering_cache.py", "pjrt.py", "peers.py", "pjrt_executor.py", "stablehlo.py"),
    }
    for path in Path(tpu_trainer.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if {name.split(".")[0] for name in names} & {"jax", "jaxlib", "libtpu"}:
                assert path.name in allowed.get(path.parent.name, ()), path
                private = any("_src" in name or name.startswith("jaxlib.") for name in names)
                assert path.name in ("compiler.py", "peers.py", "pjrt.py", "stablehlo.py") or not private, (
                    path
                )
