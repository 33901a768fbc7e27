"""The report: one self-contained HTML page with a dataset's figures and charts, and some of its rows."""
