"""What a run would read, how large its model should be, and what it would cost: `plan`, before anything is rented."""
