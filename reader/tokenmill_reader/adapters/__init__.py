"""The datasets in the classes of other libraries. Each module imports one library."""
