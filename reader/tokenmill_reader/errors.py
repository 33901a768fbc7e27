"""The errors for datasets and records that cannot be read."""

REMEDY = "copy or prepare the dataset again"


class DatasetError(ValueError):
    """A dataset, a shard or a record is missing, damaged or unsuitable. The message has the place and the remedy."""


class RecordFault(ValueError):
    """A record cannot be decoded. The caller adds the place."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        """The index of the record among those that were passed."""
        self.reason = reason
