"""The verb `report`: writes an HTML report of a dataset into its folder."""

from __future__ import annotations

from collections.abc import Sequence

from beam_pipeline.dataset import lock
from beam_pipeline.dataset.own_pages import is_own_page, signed_page
from beam_pipeline.options.command_line import Parsed, parse
from beam_pipeline.options.dataset_options import ReportConfig
from beam_pipeline.report_page.page import render
from beam_pipeline.support import filesystem
from beam_pipeline.support.console import print_document
from beam_pipeline.support.errors import DataError
from beam_pipeline.views.reading import open_dataset
from tokenmill_reader.console.elapsed import elapsed
from tokenmill_reader.format.names import REPORT


def main(argv: Sequence[str] | Parsed) -> None:
    """Runs the verb with these arguments.

    Raises:
        DataError: If the folder is not a finished dataset.
    """
    config, _ = parse(ReportConfig, argv)
    dataset = filesystem.absolute(config.dataset)
    with lock.hold_dataset(dataset, verb="report"):
        path = write_report(dataset)
    if config.console.json:
        print_document({"dataset": dataset, "report": path})
    else:
        print(path)


def write_report(dataset: str) -> str:
    """Writes `report.html` into the folder of a dataset or of one split, and returns its path.

    Raises:
        DataError: If the folder is not a finished dataset, or has a `report.html` that this program did not write.
    """
    path = filesystem.join(dataset, REPORT)
    with elapsed("writing the report"):
        page = signed_page(render(open_dataset(dataset)))
    if filesystem.exists(path) and not is_own_page(filesystem.read_bytes(path)):
        raise DataError(f"{path}: was not written by this program, or has changed since; move it elsewhere")
    filesystem.write_bytes(path, page)
    return path
