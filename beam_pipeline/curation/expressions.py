"""The expressions of `--keep`, such as `language == "en" and gopher_words >= 50`, over the columns of a table.

An expression has Python's syntax, of which these parts are allowed: names of columns, numbers, texts, True and False;
and, or, not; comparisons, also chained; in and not in with a list; + - * /. It is evaluated by Arrow, never by Python.
A missing value makes a comparison neither true nor false, and a document is kept only if the whole is true.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np

from beam_pipeline.support.arrow import pa, pc
from beam_pipeline.support.errors import UsageError
from tokenmill_reader.console.spelling import suggestion

_MOST_CHARACTERS = 10_000
# Arrow's functions, by their names.
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
}


class Expression:
    """An expression of `--keep`.

    >>> table = pa.table({"language": ["en", "de", None], "words": [60, 70, 80]})
    >>> Expression("language in ['en', 'fr'] or not words < 80").mask(table)
    array([ True, False,  True])

    Args:
        text: The expression.

    Raises:
        UsageError: If it is not an expression of allowed parts.
    """

    def __init__(self, text: str):
        self._text = text
        if len(text) > _MOST_CHARACTERS:
            raise UsageError(
                f"--keep: has {len(text):,} characters, more than {_MOST_CHARACTERS:,}; use a shorter one"
            )
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
            for _ in self._names(self._tree):
                pass
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UsageError(f"--keep {text}: is not an expression: {error}") from error

    @property
    def names(self) -> list[str]:
        """The columns that it uses, sorted."""
        return sorted(set(self._names(self._tree)))

    def check(self, schema: pa.Schema) -> None:
        """Checks that the expression suits a table's columns.

        Raises:
            UsageError: If it names an absent column, compares other types than it has, or is not a condition.
        """
        for name in self.names:
            if name not in schema.names:
                raise UsageError(
                    f"--keep {self._text}: there is no attribute {name!r}{suggestion(name, schema.names)}; they are "
                    f"{', '.join(schema.names)}"
                )
        self.mask(schema.empty_table())

    def mask(self, table: pa.Table) -> np.ndarray:
        """Returns whether it is true for each row: bool [rows].

        Raises:
            UsageError: If the columns have other types than it needs.
        """
        try:
            result = self._value(self._tree, table)
            if isinstance(result, pa.Scalar):
                result = pa.array([result.as_py()] * len(table), result.type)
            if not pa.types.is_boolean(result.type) and not pa.types.is_null(result.type):
                raise UsageError(
                    f"--keep {self._text}: is a {result.type}, not a condition; compare it with something"
                )
            return pc.fill_null(result.cast(pa.bool_()), False).to_numpy(zero_copy_only=False).astype(bool)
        except (pa.ArrowException, OverflowError) as error:
            raise UsageError(f"--keep {self._text}: {str(error).partition(chr(10))[0]}") from error

    def _names(self, node: ast.expr) -> Iterator[str]:
        """Yields the names in a part of the expression. Raises UsageError for parts that are not allowed."""
        match node:
            case ast.Name():
                yield node.id
            case ast.Constant(value=bool() | int() | float() | str()):
                pass
            case ast.BoolOp():
                yield from self._names_of(node.values)
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                yield from self._names(node.operand)
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                yield from self._names_of([node.left, node.right])
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[ast.List() | ast.Tuple() as items]):
                yield from self._names(node.left)
                if not items.elts or not all(isinstance(item, ast.Constant) for item in items.elts):
                    raise UsageError(
                        f"--keep {self._text}: `in` needs a list of numbers or texts, e.g. ['en', 'de']"
                    )
                yield from self._names_of(items.elts)
            case ast.Compare() if all(type(op) in _COMPARISONS for op in node.ops):
                yield from self._names_of([node.left, *node.comparators])
            case _:
                part = ast.get_source_segment(self._text.strip(), node) or type(node).__name__
                raise UsageError(
                    f"--keep {self._text}: {part!r:.60} is not allowed; use names of attributes, numbers, texts, and, "
                    "or, not, comparisons, in with a list, and + - * /"
                )

    def _names_of(self, nodes: list[ast.expr]) -> Iterator[str]:
        for node in nodes:
            yield from self._names(node)

    def _value(self, node: ast.expr, table: pa.Table) -> Any:
        """Returns the value of a part: a column or a scalar of Arrow."""
        match node:
            case ast.Name():
                return table[node.id].combine_chunks()
            case ast.Constant():
                return pa.scalar(node.value)
            case ast.BoolOp():
                join = pc.and_kleene if isinstance(node.op, ast.And) else pc.or_kleene
                return reduce(join, (self._value(value, table) for value in node.values))
            case ast.UnaryOp():
                return (pc.invert if isinstance(node.op, ast.Not) else pc.negate)(
                    self._value(node.operand, table)
                )
            case ast.BinOp():
                left, right = self._value(node.left, table), self._value(node.right, table)
                if isinstance(node.op, ast.Div):
                    left = pc.cast(left, pa.float64())
                return getattr(pc, _ARITHMETIC[type(node.op)])(left, right)
            case ast.Compare(ops=[ast.In() | ast.NotIn()]):
                (items,) = node.comparators
                value = self._value(node.left, table)
                is_in = pc.is_in(value, pa.array([item.value for item in items.elts]))
                is_in = pc.if_else(pc.is_valid(value), is_in, None)
                return is_in if isinstance(node.ops[0], ast.In) else pc.invert(is_in)
        values = [self._value(part, table) for part in (node.left, *node.comparators)]
        pairs = zip(node.ops, values, values[1:], strict=False)
        results = (getattr(pc, _COMPARISONS[type(op)])(left, right) for op, left, right in pairs)
        return reduce(pc.and_kleene, results)
