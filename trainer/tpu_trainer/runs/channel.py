"""Messages between the processes that train together, for work that they share in the background."""

from __future__ import annotations


class Channel:
    """Carries messages to process 0 and back. This one is of a process that is alone.

    All processes must call its methods in the same order, each in one thread at a time.
    """

    index = 0
    """Number of this process."""
    count = 1
    """Number of processes."""

    def gather(self, text: str) -> list[str]:
        """Sends a text to process 0.

        Returns:
            In process 0, those of all processes, by number; it waits for them. Nothing in the others.

        Raises:
            OSError: If another process is lost.
        """
        return [text]

    def from_first(self, text: str) -> str:
        """Returns the text with which process 0 calls this. The others wait for it.

        Raises:
            OSError: If another process is lost.
        """
        return text
