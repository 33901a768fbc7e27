"""Figures parsed from the text of optimized HLO: FLOPs, traffic, loops and collectives."""

from __future__ import annotations

import pytest

from tpu_trainer.tpu_check.collectives import collectives
from tpu_trainer.tpu_check.convolution import convolution_flops
from tpu_trainer.tpu_check.hlo import HloModule

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


def test_a_kernel_whose_attributes_have_line_breaks_counts_with_its_estimate() -> None:
    # As JAX describes its kernels.
    kernel = """custom-call(%x, %weights), custom_call_target="tpu_custom_call", \
frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 1024}"
}}, metadata={op_name="attend"}, \
backend_config={"custom_call_config":{"body":"TUw","cost_estimate":{"bytes_accessed":"9","flops":"700"}}}"""
    text = HLO.replace("fusion(%x, %weights), kind=kOutput, calls=%fused", kernel)
    module = HloModule.parse(f'{text}\nFileNames\n1 "step.py"\n')
    (loop,) = module.loops()
    assert (loop.trips, loop.flops) == (7, 700)
    assert module.by_name["y"].op_name == "attend"
    assert module.repetition_cost(module.flops) == 6 * 700


def test_of_branches_with_products_the_one_with_the_fewest_counts() -> None:
    array = "f32[16,32]{1,0:T(8,128)}"
    branches = f"""
%once (a.1: f32[16,32]) -> f32[16,32] {{
  %a.1 = {array} parameter(0)
  %u = f32[32,32]{{1,0:T(8,128)}} constant({{...}})
  ROOT %one = {array} fusion(%a.1, %u), kind=kOutput, calls=%fused
}}

%twice (b.1: f32[16,32]) -> f32[16,32] {{
  %b.1 = {array} parameter(0)
  %v = f32[32,32]{{1,0:T(8,128)}} constant({{...}})
  %first = {array} fusion(%b.1, %v), kind=kOutput, calls=%fused
  ROOT %second = {array} fusion(%first, %v), kind=kOutput, calls=%fused
}}

%never (c.1: f32[16,32]) -> f32[16,32] {{
  %c.1 = {array} parameter(0)
  ROOT %negative = {array} negate(%c.1)
}}

%body"""

    def flops(names: str) -> float:
        kinds = f"conditional(%i, %x, %x), branch_computations={{{names}}}"
        text = HLO.replace("\n%body", branches, 1).replace(
            "fusion(%x, %weights), kind=kOutput, calls=%fused", kinds
        )
        (loop,) = HloModule.parse(text).loops()
        return loop.flops

    product = 2 * 16 * 32 * 32
    assert flops("%twice, %once") == product
    # A branch without products can be a step that is left out.
    assert flops("%twice, %never") == 2 * product


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
    (instruction,) = [each for each, _ in module.executed() if each.name == "begun"]
    size = module.traffic(instruction)
    assert size.hbm == pytest.approx(4 * 136 * 768, abs=4)  # and a flag
    assert size.total == pytest.approx(2 * 4 * 136 * 768, abs=8)


# The form that libtpu writes: an all-gather in fusions that start it, overlap with it and end it; fusions that replace
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


STACKS = """\
HloModule stacks, is_scheduled=true

%layer (p0: f32[12,16,32], p1: s32[], p2: f32[12,16,32], p3: f32[16,32]) -> f32[12,16,32] {
  %p0 = f32[12,16,32]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %p2 = f32[12,16,32]{2,1,0} parameter(2)
  %p3 = f32[16,32]{1,0} parameter(3)
  %zero = s32[] constant(0)
  %slice = f32[1,16,32]{2,1,0} dynamic-slice(%p0, %p1, %zero, %zero), dynamic_slice_sizes={1,16,32}
  %new = f32[1,16,32]{2,1,0} bitcast(%p3)
  %sum = f32[1,16,32]{2,1,0} add(%slice, %new)
  ROOT %update = f32[12,16,32]{2,1,0} dynamic-update-slice(%p2, %sum, %p1, %zero, %zero)
}

ENTRY %main (weights: f32[12,16,32], number: s32[], gradients: f32[12,16,32], x: f32[16,32]) -> f32[12,16,32] {
  %weights = f32[12,16,32]{2,1,0} parameter(0)
  %number = s32[] parameter(1)
  %gradients = f32[12,16,32]{2,1,0} parameter(2)
  %x = f32[16,32]{1,0} parameter(3)
  ROOT %result = f32[12,16,32]{2,1,0} fusion(%weights, %number, %gradients, %x), kind=kLoop, calls=%layer
}
"""


def test_a_fusion_moves_the_layer_that_it_uses_of_stacks() -> None:
    module = HloModule.parse(STACKS)
    # It reads a layer of the weights, the number and x, and writes a layer of the gradients.
    assert module.traffic(module.by_name["result"]).total == 3 * 4 * 16 * 32 + 4
    # Of weights that something else uses, it reads all.
    module = HloModule.parse(STACKS.replace("add(%slice, %new)", "reduce-window(%p0, %new)"))
    assert module.traffic(module.by_name["result"]).total == (12 + 2) * 4 * 16 * 32 + 4


def test_an_asynchronous_collective_counts_once() -> None:
    module = HloModule.parse(ASYNCHRONOUS)
    assert [loop.trips for loop in module.loops()] == [2]
    figures = {each.kind: (each.count, each.bytes, each.sent) for each in collectives(module)}
    array_bytes = 4 * 32 * 8
    assert figures == {
        "all-gather": (1, 2 * 32 * 8, 2 * 32 * 8 * 7 // 8),
        "reduce-scatter": (2, 2 * array_bytes, 2 * array_bytes * 3 // 4),
        "all-reduce": (1, array_bytes, array_bytes),  # among two devices
        "collective-permute": (2, 2 * 2 * 2 * 8, 2 * 2 * 2 * 8),
    }


def test_an_overlapping_collective_reads_and_writes_its_arrays_once() -> None:
    module = HloModule.parse(ASYNCHRONOUS)
    bytes_by_name = {each.name: module.traffic(each).hbm for each, _ in module.executed()}
    part, whole_bytes, product = 2 * 4 * 8, 2 * 32 * 8, 2 * 64 * 8
    assert bytes_by_name["begun"] == whole_bytes
    assert bytes_by_name["overlapping"] == 2 * product
    assert bytes_by_name["ended"] == part


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
    (collective,) = collectives(module)
    assert (collective.kind, collective.count, collective.bytes) == ("all-gather", 1, 2 * 32 * 8)
    assert sum(module.traffic(each).hbm for each, _ in module.executed()) == 2 * (4 + 32) * 8


@pytest.mark.parametrize(
    ("attributes", "left_shape", "right_shape", "result", "multiplications"),
    [
        pytest.param("dim_labels=fb_io->bf", [8, 6], [8, 5], [6, 5], 8 * 6 * 5, id="plain"),
        pytest.param(
            "window={size=8x25 stride=7x24 lhs_dilate=8x25}, dim_labels=01bf_01oi->01bf, sharding={replicated}",
            [8, 25, 16, 16], [8, 25, 4, 16], [8, 25, 16, 4], 8 * 25 * 16 * 16 * 4, id="a batch of 8 x 25",
        ),
        pytest.param(
            "window={size=8x25 stride=8x25 pad=7_7x24_24 lhs_dilate=7x24 rhs_reversal=1x1}, dim_labels=01fb_01oi->01fb",
            [8, 25, 16, 4], [8, 25, 16, 16], [8, 25, 16, 4], 8 * 25 * 16 * 16 * 4, id="a reversed batch",
        ),
        pytest.param(
            "window={size=2x8 pad=1_1x0_0 rhs_reversal=1x0}, dim_labels=1fb0_1i0o->b0f1",
            [8, 16, 20, 1], [8, 16, 2, 10], [20, 2, 10, 1], 20 * 8 * 16 * 2 * 10, id="two parts of the result",
        ),
        pytest.param(
            "window={size=1x25 pad=0_0x24_24 rhs_reversal=0x1}, dim_labels=0bf1_1oi0->0b1f",
            [8, 16, 32, 1], [25, 4, 32, 1], [8, 16, 25, 4], 8 * 16 * 32 * 25 * 4, id="the result by heads",
        ),
    ],
)  # fmt: skip
def test_flops_of_products_that_are_windows(
    attributes: str, left_shape: list[int], right_shape: list[int], result: list[int], multiplications: int
) -> None:
    assert convolution_flops(attributes, left_shape, right_shape, result) == 2 * multiplications
