"""What the report and the pages of `browse` share: their styles, and the templates' filters."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import jinja2

from beam_pipeline.support.amounts import human_bytes
from tokenmill_reader.console.escaping import visible


def read_text(package: str, name: str) -> str:
    """Returns the content of a text file of a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


@cache
def environment(package: str) -> jinja2.Environment:
    """Returns the environment of a package's templates. All values are escaped."""
    environment = jinja2.Environment(
        autoescape=True,
        optimized=False,  # folding constants takes longer than it saves: each template is compiled for a page or two
        undefined=jinja2.StrictUndefined,
        loader=jinja2.PackageLoader(package, ""),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "number": lambda value: f"{value:,}",
        "percent": lambda value, digits=2: f"{value:.{digits}%}",
        "human_bytes": human_bytes,
        "printable": visible,
        "one_line": lambda text: visible(text, one_line=True),
    }
    return environment
