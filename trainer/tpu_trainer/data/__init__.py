"""What is learnt from: dataset folders, their order, their batches."""
