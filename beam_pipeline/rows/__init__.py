"""Documents → rows: packing, blocks of rows, and the place of each row in its split."""
