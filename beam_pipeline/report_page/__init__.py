"""The report: one self-contained HTML page of a dataset's figures, charts and some of its rows."""
