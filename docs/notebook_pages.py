"""Gives each notebook of the docs a page of its own: its text, and its code as blocks. A hook of MkDocs."""

from __future__ import annotations

import json
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        text = page_of(Path(notebook.abs_src_path))
        files.append(File.generated(config, notebook.src_uri.removesuffix("ipynb") + "md", content=text))
    return files


def page_of(notebook: Path) -> str:
    """Returns a notebook as Markdown, with a link to the notebook below its heading."""
    blocks = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        blocks.append(source if cell["cell_type"] == "markdown" else f"```ipython\n{source}\n```")
    heading, _, rest = "\n\n".join(blocks).partition("\n")
    return f"{heading}\n\n[The notebook]({notebook.name}), to open in Jupyter, Colab or Kaggle.\n{rest}\n"
