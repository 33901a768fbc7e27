"""Settings for all tests: property tests use the same examples in every run, and have no deadlines."""

from hypothesis import settings

settings.register_profile("reproducible", deadline=None, derandomize=True)
settings.load_profile("reproducible")
