"""Documents to rows: packing, blocks of rows, and the place of each in the split."""
