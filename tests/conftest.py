"""For all tests: property tests draw the same examples in every run, and no test depends on the machine's speed."""

from hypothesis import settings

settings.register_profile("reproducible", deadline=None, derandomize=True)
settings.load_profile("reproducible")
