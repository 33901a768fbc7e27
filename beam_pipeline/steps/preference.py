"""Which of several equal or similar documents is kept: `--dedup_keep`, as a score of each document.

The one with the highest score is kept, and of several with the same, the first in the order of the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.steps.curate import CuratedBatch
from beam_pipeline.steps.keep import UnitAttributes
from beam_pipeline.support.arrow import pa, pc


@dataclass(frozen=True)
class Preference:
    """The scores of documents. Made on a worker, since it keeps the attributes of a unit."""

    config: PrepareConfig

    @cached_property
    def _attributes(self) -> UnitAttributes:
        return UnitAttributes(self.config.curation.attributes)

    def scores(self, unit: WorkUnit, curated: CuratedBatch) -> np.ndarray | None:
        """Returns the score of each document of `curated.batch`, float64; None if simply the first is kept.

        Documents without a value of the attribute are kept only if all have none. Values are rounded to float64: of
        whole numbers beyond 2^53 that are as good as equal, the first is kept.

        Raises:
            DataError: If the texts have changed since the attributes were measured.
        """
        if not self.config.prefers:
            return None
        if self.config.dedup_keep == "longest":
            return curated.batch.texts.sizes.astype(np.float64)
        table = self._attributes.of_batch(unit, curated.read, curated.first)
        values = pc.fill_null(
            table[self.config.dedup_keep].cast(pa.float64(), safe=False), -np.inf
        ).to_numpy()
        scores = np.where(np.isnan(values), -np.inf, values)
        return scores[curated.numbers - curated.first]
