import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.curation.expressions import Expression
from beam_pipeline.support.errors import UsageError

TABLE = pa.table(
    {"language": ["en", "de", None, "fr"], "words": [10.0, 20.0, 30.0, None], "c4": [True, False, True, None]}
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("words >= 20", [1, 2]),
        ("10 < words <= 30 and language != 'de'", []),  # a missing language is neither equal nor different
        ("10 < words <= 30 or language == 'fr'", [1, 2, 3]),
        ("not language == 'de'", [0, 3]),
        ("language not in ('en', 'de')", [3]),
        ("words in [10, 30]", [0, 2]),
        ("words / 10 + 1 == 2 or -words * 2 < -50", [0, 2]),
        ("c4", [0, 2]),
        ("c4 and not c4", []),
        ("True", [0, 1, 2, 3]),
    ],
)
def test_rows_are_selected(text, rows):
    expression = Expression(text)
    expression.check(TABLE.schema)
    assert np.flatnonzero(expression.mask(TABLE)).tolist() == rows


@pytest.mark.parametrize(
    "text",
    [
        *(
            "__import__('os').system('true')",
            "words.real",
            "(lambda: 1)()",
            "[w for w in words]",
            "words ** 9",
            "f'{words}'",
        ),
        *(
            "words if c4 else 1",
            "words is None",
            "language in words",
            "'e' in language",
            "b'x' == language",
            "words @ 2",
        ),
        *("words := 3", "", "words >", "language in []", "9" * 5000 + " > words", "(" * 2000),
    ],
)
def test_what_is_not_allowed_is_refused(text):
    with pytest.raises(UsageError, match=re.escape(f"--keep {text[:20]}")):
        Expression(text).check(TABLE.schema)


def test_mistakes_are_reported_before_any_row_is_read():
    with pytest.raises(UsageError, match="there is no attribute 'word'"):
        Expression("word > 3").check(TABLE.schema)
    with pytest.raises(UsageError, match="is a double, not a condition; compare it"):
        Expression("words + 1").check(TABLE.schema)
    with pytest.raises(UsageError, match="--keep language > 3: Function 'greater' has no kernel"):
        Expression("language > 3").check(TABLE.schema)


@given(st.text("()abwords'=<>!andortrue0.1+-*/[],: ", max_size=30))
def test_any_text_is_an_expression_or_refused(text):
    try:
        expression = Expression(text)
        expression.check(TABLE.schema)
    except UsageError:
        return
    assert expression.mask(TABLE).shape == (4,)
