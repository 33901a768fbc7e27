"""FLOPs of matrix products in optimized HLO for TPUs, where each is a convolution."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np


def convolution_flops(
    attributes: str, left: Sequence[int], right: Sequence[int], result: Sequence[int]
) -> float:
    """Returns the FLOPs of a convolution, two for each pair of elements that it multiplies.

    As XLA's `HloCostAnalysis::HandleConvolution`: products with padding or with the holes of a dilation do not count.
    XLA writes batch dimensions, and parts of a product that other devices have, as spatial dimensions with padding.

    Args:
        attributes: The instruction's text with `window={…}`, if it has one, and `dim_labels=…`.
        left: Shape of the first operand.
        right: Shape of the second operand.
        result: Shape of the result.
    """
    names = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", attributes).groups()
    left, right, result = (
        dict(zip(labels, shape, strict=True))
        for labels, shape in zip(names, (left, right, result), strict=True)
    )
    window = re.search(r"\bwindow=\{([^}]*)\}", attributes)
    fields = dict(field.split("=") for field in window[1].split()) if window else {}
    dimensions = range(len(left) - 2)
    # stride=7x24 has a number for each dimension; pad=0_0x24_24 has the padding before and after.
    stride, padding, left_dilation, right_dilation = (
        [int(number.split("_")[0]) for number in fields[name].split("x")]
        if name in fields
        else [default for _ in dimensions]
        for name, default in (("stride", 1), ("pad", 0), ("lhs_dilate", 1), ("rhs_dilate", 1))
    )
    flops = 2.0 * result["b"] * result["f"] * right["i"]
    for i in dimensions:
        starts = np.arange(result[str(i)]) * stride[i] - padding[i]
        places = starts[:, None] + np.arange(right[str(i)]) * right_dilation[i]
        element, hole = np.divmod(places, left_dilation[i])
        flops *= np.count_nonzero((hole == 0) & (element >= 0) & (element < left[str(i)]))
    return float(flops)
