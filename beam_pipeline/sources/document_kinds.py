"""The documents of a text file: its lines, its paragraphs, or the whole file."""

from __future__ import annotations

from collections.abc import Iterable

from beam_pipeline.options.input_options import Document, InputConfig
from beam_pipeline.sources.compression import extension

# Documents with markup, and source code, by the extension of their files. A line of them is not a text. (But .xml and
# .sql files are often dumps of a whole corpus or database.)
_MARKUP = (
    ".md .markdown .mdx .qmd .rmd .rst .html .htm .xhtml .tex .adoc .asciidoc .org .textile .wiki .ipynb"
)
_CODE = (
    ".py .pyi .pyx .c .h .cc .cpp .cxx .hh .hpp .cu .cs .java .kt .kts .scala .groovy .go .rs .swift .m .mm .zig .d "
    ".js .mjs .cjs .jsx .ts .tsx .vue .svelte .css .scss .less .php .rb .pl .pm .lua .r .jl .dart .hs .ml .mli .fs "
    ".clj .ex .exs .erl .el .lisp .scm .f .f90 .f95 .pas .asm .s .v .vhdl .sv .sh .bash .zsh .fish .ps1 .bat "
    ".proto .cmake .toml .yaml .yml"
)
WHOLE_FILES = frozenset(f"{_MARKUP} {_CODE}".split())


def document_kind(path: str, config: InputConfig) -> Document:
    """Returns `line`, `paragraph` or `file`: what is a document of this text file."""
    if config.document != "auto":
        return config.document
    return "file" if extension(path) in WHOLE_FILES else "line"


def common_kind(paths: Iterable[str], config: InputConfig) -> Document:
    """Returns the kind of document of all these text files: `line` if there are none, `auto` if they differ."""
    kinds = {document_kind(path, config) for path in paths}
    return kinds.pop() if len(kinds) == 1 else "auto" if kinds else "line"
