"""Trackers: libraries that keep and draw the figures of runs, such as Weights & Biases and MLflow.

A program opens `Trackers`, logs figures and finishes. Each library runs in a process of its own (`__main__.py`), which
gets the figures through a pipe (`channel.py`): whatever the library does, the program neither waits nor ends.
`names.py` has what a program must know before it starts one, and the other modules translate to one library each.
"""

from tokenmill_reader.tracking.channel import Channel
from tokenmill_reader.tracking.names import NAMES, problem
from tokenmill_reader.tracking.parameters import parameters
from tokenmill_reader.tracking.trackers import Record, Trackers, names_of

__all__ = ["NAMES", "Channel", "Record", "Trackers", "names_of", "parameters", "problem"]
