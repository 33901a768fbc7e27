"""The part of Beam's interface that the steps use: Apache Beam's if the process has imported it before the steps, else
that of `one_process`.

So each process has one of the two. The command line imports Beam if it gets one of its options, such as a runner; a
worker of a runner has imported it, and so has a program with a pipeline of its own.
"""

from __future__ import annotations

import sys
from typing import Any

IS_BEAM = "apache_beam" in sys.modules
"""Whether the steps are Apache Beam's."""

if IS_BEAM:
    from apache_beam import (
        CoGroupByKey,
        CombineFn,
        CombineGlobally,
        CombinePerKey,
        Create,
        DoFn,
        FlatMap,
        Flatten,
        GroupByKey,
        Map,
        ParDo,
        Pipeline,
        PTransform,
        Reshuffle,
        combiners,
    )
    from apache_beam.metrics import Metrics
    from apache_beam.pvalue import AsIter, AsSingleton, DoOutputsTuple, PCollection, TaggedOutput
    from apache_beam.transforms.window import GlobalWindow
    from apache_beam.utils.windowed_value import WindowedValue

    def at_end_of_bundle(tag: str, value: Any) -> TaggedOutput:
        """Makes an output of `finish_bundle`."""
        window = GlobalWindow()
        return TaggedOutput(tag, WindowedValue(value, window.max_timestamp(), [window]))

else:
    from beam_pipeline.support.one_process import (
        AsIter,
        AsSingleton,
        CoGroupByKey,
        CombineFn,
        CombineGlobally,
        CombinePerKey,
        Create,
        DoFn,
        DoOutputsTuple,
        FlatMap,
        Flatten,
        GroupByKey,
        Map,
        Metrics,
        ParDo,
        PCollection,
        Pipeline,
        PTransform,
        Reshuffle,
        TaggedOutput,
        at_end_of_bundle,
        combiners,
    )

__all__ = [
    "IS_BEAM",
    "AsIter",
    "AsSingleton",
    "CoGroupByKey",
    "CombineFn",
    "CombineGlobally",
    "CombinePerKey",
    "Create",
    "DoFn",
    "DoOutputsTuple",
    "FlatMap",
    "Flatten",
    "GroupByKey",
    "Map",
    "Metrics",
    "PCollection",
    "PTransform",
    "ParDo",
    "Pipeline",
    "Reshuffle",
    "TaggedOutput",
    "at_end_of_bundle",
    "combiners",
]
