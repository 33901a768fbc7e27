"""Curation: decides which documents become part of a dataset, and records why the others do not."""
